/* Names and what they stand for: sizes, and a function that makes cases of them. */
#include "shapes.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

typedef struct shape shape;

/* What the functions below work on. */
typedef struct making {
    const shape *shape;
    const options *o;
    const crew *crew;
    bench_cases *cases;
} making;

struct shape {
    const char *name, *what;
    int by_default;
    int (*make)(const making *m, failure *f);
    int64_t S, H, G, D;
    int causal;
};

static int64_t given(int64_t n, int64_t otherwise) {
    return n >= 0 ? n : otherwise;
}

/* A case of the shape's sizes, where the options give no others, compared with nothing. */
static __attribute__((format(printf, 3, 4))) bench_case *add(const making *m, int causal, const char *format, ...) {
    bench_case *x = &m->cases->at[m->cases->n++];
    memset(x, 0, sizeof *x);
    x->o = *m->o;
    x->against = -1;
    x->o.S = given(x->o.S, m->shape->S);
    if (x->o.H < 0) {
        x->o.H = m->shape->H;
        x->o.G = given(x->o.G, m->shape->G);
    }
    x->o.D = given(x->o.D, m->shape->D);
    x->o.causal |= causal && !x->o.causal_block;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(x->name, sizeof x->name, format, arguments);
    va_end(arguments);
    return x;
}

/* Comparisons take turns, and are made on one thread unless threads are what is compared or given. */
static void take_turns(const making *m) {
    enum { ROUNDS = 5 };
    m->cases->rounds = m->o->repeat ? (int)m->o->repeat : ROUNDS;
}

static void one_thread(bench_case *x) {
    x->o.threads = x->o.threads ? x->o.threads : 1;
}

static int last(const making *m) {
    return m->cases->n - 1;
}

static const char *suffix(int causal) {
    return causal ? "-causal" : "";
}

/* Both masks, unless the options give one; both usual head sizes, unless they give one. */
#define EACH_MASK(m, causal) for (int causal = (m)->o->causal || (m)->o->causal_block; causal <= 1; causal++)
#define EACH_SIZE(m, d)      for (int64_t d = given((m)->o->D, 64); d > 0; d = d == 64 && (m)->o->D < 0 ? 128 : 0)

static int plain(const making *m, failure *f) {
    (void)f;
    add(m, m->shape->causal, "%s", m->shape->name);
    return 0;
}

static int gqa(const making *m, failure *f) {
    (void)f;
    take_turns(m);
    bench_case *all = add(m, m->shape->causal, "multi-head");
    all->o.G = all->o.H;
    add(m, m->shape->causal, "%s", m->shape->name)->against = last(m) - 1;
    return 0;
}

static int threads(const making *m, failure *f) {
    (void)f;
    take_turns(m);
    EACH_SIZE(m, d) EACH_MASK(m, causal) {
        bench_case *one = add(m, causal, "d%" PRId64 "%s-one", d, suffix(causal));
        one->o.D = d;
        one->o.threads = 1;
        bench_case *all = add(m, causal, "d%" PRId64 "%s-all", d, suffix(causal));
        all->o.D = d;
        all->against = last(m) - 1;
    }
    return 0;
}

/* 16-bit storage against fp32. */
static int narrow(const making *m, failure *f) {
    const int dtype = strcmp(m->shape->name, "bf16") == 0 ? RA_BF16 : RA_F16;
    (void)f;
    take_turns(m);
    EACH_SIZE(m, d) EACH_MASK(m, causal) {
        for (int i = 0; i < 2; i++) {
            const int type = i ? dtype : RA_F32;
            bench_case *x = add(m, causal, "%s-d%" PRId64 "%s", dtype_name(type), d, suffix(causal));
            one_thread(x);
            x->o.D = d;
            x->o.dtype = type;
            x->against = i ? last(m) - 1 : -1;
        }
    }
    return 0;
}

static int segments(const making *m, failure *f) {
    (void)f;
    take_turns(m);
    EACH_MASK(m, causal) for (int i = 0; i < 2; i++) {
        bench_case *x = add(m, causal, "%s%s", i ? "segments" : "whole", suffix(causal));
        one_thread(x);
        x->o.segments = i ? 8 : 0;
        x->against = i ? last(m) - 1 : -1;
    }
    return 0;
}

static int sweep_d(const making *m, failure *f) {
    static const int64_t sizes[] = {32, 40, 64, 80, 96, 128, 192, 256};
    (void)f;
    for (int i = 0; i < (int)(sizeof sizes / sizeof sizes[0]); i++) {
        bench_case *x = add(m, 0, "d%" PRId64 "%s", sizes[i], suffix(m->o->causal));
        one_thread(x);
        x->o.D = sizes[i];
    }
    return 0;
}

/* Every length against the shape's own, which goes first. */
static int sweep_s(const making *m, failure *f) {
    static const int64_t lengths[] = {0, 512, 1024, 2048, 8192, 16384, 65536};
    (void)f;
    take_turns(m);
    EACH_MASK(m, causal) {
        const int reference = m->cases->n;
        for (int i = 0; i < (int)(sizeof lengths / sizeof lengths[0]); i++) {
            const int64_t S = lengths[i] ? lengths[i] : given(m->o->S, m->shape->S);
            if (S == 65536 && !causal)
                continue; /* four times the time for what 16384 has shown */
            bench_case *x = add(m, causal, "s%" PRId64 "%s", S, suffix(causal));
            one_thread(x);
            x->o.S = S;
            x->against = i ? reference : -1;
            x->forward_only = S == 65536;
        }
    }
    return 0;
}

/* Sizes that no tile divides against the next one that all do: 96 tokens are whole tiles in every kernel set, and so are head sizes that
 * are multiples of 8. */
static int tails(const making *m, failure *f) {
    static const int64_t sizes[] = {36, 60, 100, 127};
    const int64_t S = given(m->o->S, m->shape->S), whole = (S + 96) / 96 * 96, lengths[] = {whole, whole - 1, S + 1, S, S - 1};
    (void)f;
    take_turns(m);
    const int reference = m->cases->n;
    for (int i = 0; i < 5 && lengths[i] >= 0; i++) {
        bench_case *x = add(m, 0, "s%" PRId64 "%s", lengths[i], suffix(m->o->causal));
        one_thread(x);
        x->o.S = lengths[i];
        x->against = i ? reference : -1;
    }
    for (int i = 0; i < 8; i++) {
        const int64_t D = i % 2 ? sizes[i / 2] : (sizes[i / 2] + 7) / 8 * 8;
        bench_case *x = add(m, 0, "d%" PRId64 "%s", D, suffix(m->o->causal));
        one_thread(x);
        x->o.D = D;
        x->against = i % 2 ? last(m) - 1 : -1;
    }
    return 0;
}

/* One new query against a long cache of every type, with one query head a kv head and with eight. */
static int decode(const making *m, failure *f) {
    if (m->o->causal || m->o->causal_block)
        return fail(f, EXIT_USAGE, "decode: its one query sees all keys; leave the causal mask out");
    for (int type = RA_F32; type <= RA_F16; type++)
        for (int group = 1; group <= 8; group *= 8) {
            bench_case *x = add(m, 0, "decode-%s%s", dtype_name(type), group > 1 ? "-gqa" : "");
            x->o.Skv = x->o.S;
            x->o.Sq = 1;
            x->o.dtype = type;
            x->o.G = given(m->o->G, m->shape->G);
            x->o.H = given(m->o->H, x->o.G) * group;
            x->forward_only = x->reads = 1;
        }
    return 0;
}

/* A causal mask gives all ranks the same work when the sequence is dealt out in zigzag. */
static void deal_out(bench_case *x, int ranks) {
    x->o.ring = ranks;
    if (!x->o.layout && (x->o.causal || x->o.causal_block))
        x->o.layout = RA_ZIGZAG;
}

/* Ranks that share the cores out against one rank that has them all. */
static int ring(const making *m, failure *f) {
    static const int usual[] = {2, 4, 8};
    const int processes = m->crew->size > 1, chosen = m->o->ring || processes;
    (void)f;
    take_turns(m);
    EACH_MASK(m, causal) {
        bench_case *one = add(m, causal, "one-rank%s", suffix(causal));
        one->alone = processes;
        one->o.ring = processes ? 0 : 1;
        const int reference = last(m);
        for (int i = 0; i < (chosen ? 1 : 3); i++) {
            const int ranks = chosen ? crew_ranks(m->crew) : usual[i];
            bench_case *x = add(m, causal, "ring-%d%s", ranks, suffix(causal));
            deal_out(x, processes ? 0 : ranks);
            x->o.threads = 0;
            x->against = reference;
        }
    }
    return 0;
}

/* A ring over a slow link against the same ring over a fast one. */
static int slow_link(const making *m, failure *f) {
    static const double shares[] = {0, 0.5, 0.9};
    const int ranks = m->o->ring ? (int)m->o->ring : 2;
    if (m->crew->size > 1)
        return fail(f, EXIT_USAGE, "slow-link: only the link between local ranks can be slowed; run it without mpirun");
    if (ranks < 2)
        return fail(f, EXIT_USAGE, "slow-link: one rank has no link; --ring 2 or more");
    take_turns(m);
    EACH_MASK(m, causal) {
        const int reference = m->cases->n;
        for (int i = 0; i < 3; i++) {
            bench_case *x = i ? add(m, causal, "slow-%.1f%s", shares[i], suffix(causal)) : add(m, causal, "fast%s", suffix(causal));
            deal_out(x, ranks);
            x->slow_share = shares[i];
            x->against = i ? reference : -1;
        }
    }
    return 0;
}

static const shape shapes[] = {
    {"d64", "4096 tokens, 4 heads of 64", 1, plain, 4096, 4, 4, 64, 0},
    {"d128", "4096 tokens, 4 heads of 128", 1, plain, 4096, 4, 4, 128, 0},
    {"d64-causal", "the same under a causal mask", 1, plain, 4096, 4, 4, 64, 1},
    {"d128-causal", "the same under a causal mask", 1, plain, 4096, 4, 4, 128, 1},
    {"gqa", "8 query heads that share one key/value head, against 8 of each", 1, gqa, 4096, 8, 1, 64, 1},
    {"long", "32768 tokens, one head of 64, causal", 0, plain, 32768, 1, 1, 64, 1},
    {"sweep-d", "head sizes from 32 to 256, one thread", 0, sweep_d, 4096, 4, 4, 64, 0},
    {"sweep-s", "512 to 65536 tokens against 4096, full and causal, one thread", 0, sweep_s, 4096, 4, 4, 64, 0},
    {"tails", "lengths and head sizes that tiles do not divide against the next that they do, one thread", 0, tails, 4096, 4, 4, 64, 0},
    {"bf16", "bf16 against f32 storage, heads of 64 and 128, full and causal, one thread", 0, narrow, 4096, 4, 4, 64, 0},
    {"f16", "f16 against f32 storage, likewise", 0, narrow, 4096, 4, 4, 64, 0},
    {"segments", "8 segments against none, full and causal, one thread; counted is what is visible", 0, segments, 4096, 4, 4, 64, 0},
    {"threads", "all cores against one thread, heads of 64 and 128, full and causal", 0, threads, 4096, 4, 4, 64, 0},
    {"decode", "one query, 131072 keys of 8 heads of 128, every type, in percent of the speed of reading memory", 0, decode, 131072, 8, 8,
     128, 0},
    {"ring", "2, 4 and 8 ranks (under mpirun: the processes) against one rank on the same cores, full and causal", 0, ring, 8192, 4, 4, 128,
     0},
    {"slow-link", "2 ranks whose transfers take 0.5 and 0.9 of a step's computation, against a fast link, full and causal", 0, slow_link,
     8192, 4, 4, 128, 0},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

int shapes_count(void) {
    return SHAPES;
}

int shapes_by_default(int at) {
    return shapes[at].by_default;
}

const char *shapes_name(int at) {
    return shapes[at].name;
}

int shapes_find(const char *name, failure *f) {
    const char *names[SHAPES + 1] = {0};
    for (int i = 0; i < SHAPES; i++) {
        names[i] = shapes[i].name;
        if (strcmp(names[i], name) == 0)
            return i;
    }
    const char *near = nearest_name(name, names);
    return fail(f, EXIT_USAGE, "unknown shape %s, did you mean %s? (ringattn bench --list names them all)", name, near ? near : names[0]);
}

void shapes_list(void) {
    for (int i = 0; i < SHAPES; i++)
        printf("%-12s %c %s\n", shapes[i].name, shapes[i].by_default ? '*' : ' ', shapes[i].what);
    printf("* without any name these are run; all runs all\n");
}

int shapes_cases(int at, const options *o, const crew *c, bench_cases *cases, failure *f) {
    memset(cases, 0, sizeof *cases);
    return shapes[at].make(&(making){&shapes[at], o, c, cases}, f);
}
