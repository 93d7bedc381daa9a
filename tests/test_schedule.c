/* Layouts and ring schedules, as data: every rank gets every row that it needs once, messages pair up under a transport that holds a send
 * until its receive is posted, no row travels further than it is needed, gradients come home complete, causal work is balanced (cases 16,
 * 17, 44, 46, 91). */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "block/mask.h"
#include "check.h"
#include "ring/layout.h"
#include "ring/schedule.h"

enum { MAX_P = 64, ROWS = 90 };

static uint64_t random_state = 88172645463325252u;
static uint64_t random_below(uint64_t n) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (random_state >> 11) % n;
}

/* Who needs which rows of whose block. */
struct pattern {
    int P;
    int64_t most;                   /* ranges of a list */
    bool exact;                     /* no row visits anybody who does not need it */
    bool needs[MAX_P][MAX_P][ROWS]; /* [rank][block] */
    const char *name;
};

static int64_t pattern_needs(const void *context, int r, int b, struct ra__stretch *range, int64_t most) {
    const struct pattern *p = context;
    int64_t count = 0;
    for (int t = 0; t < ROWS; t++)
        if (p->needs[r][b][t])
            count = ra__rows_append(range, count, most, t, t + 1);
    return count;
}

static void need_all(struct pattern *p, int r, int b, bool needs) {
    memset(p->needs[r][b], needs, sizeof p->needs[r][b]);
}

static bool has(const struct ra__rows *rows, int t) {
    struct ra__rows_cursor c = {.rows = rows};
    int64_t run = INT64_MAX;
    return ra__rows_find(&c, t, &run) >= 0;
}

/* ---- all ranks, simulated by the walkers' protocol ---- */

/* Some rows of a block; of gradients: which ranks' parts are in each. */
struct message {
    int block;
    bool row[ROWS];
    uint64_t parts[ROWS];
};

static void fill(struct message *m, int block, const struct ra__rows *rows) {
    *m = (struct message){.block = block};
    for (int t = 0; t < ROWS; t++)
        m->row[t] = has(rows, t);
}

static void check_rows(const struct message *m, int block, const struct ra__rows *rows) {
    CHECK_EQ_INT(m->block, block);
    for (int t = 0; t < ROWS; t++)
        CHECK_EQ_INT(m->row[t], has(rows, t));
}

/* From rank i to rank i + 1. The n-th send meets the n-th receive. */
struct channel {
    int sent, received;
    struct message content[MAX_P + 2];
};

/* Rows from their owner: at most once from one rank to another. */
struct service {
    bool sent, received;
    struct message content;
};

struct rank_state {
    struct ra__schedule schedule;
    int at;                                           /* step; schedule.steps: only the last sum is left to leave; steps + 1: done */
    bool posted;                                      /* the transfers of step `at` */
    struct message here;                              /* keys and values of step `at` */
    int kv_sent, kv_received, dkv_sent, dkv_received; /* counts that this step waits for ... */
    struct service *serves, *served;                  /* ... and these, unless NULL */
    const struct ra__step *left;                      /* whose sums leave */
    struct message sum;
};

struct simulation {
    const struct pattern *pattern;
    struct rank_state rank[MAX_P];
    struct channel kv[MAX_P], dkv[MAX_P];
    struct service service[MAX_P][MAX_P]; /* [from][to] */
    uint64_t home[MAX_P][ROWS];           /* whose parts came home */
    int home_messages[MAX_P][MAX_P];      /* [block][rank] */
};

static struct simulation sim;

static void send_sums(struct simulation *s, int r) {
    struct rank_state *me = &s->rank[r];
    const struct ra__step *step = me->left;
    me->left = NULL;
    if (step && step->pass.n) {
        struct message *on = &s->dkv[r].content[s->dkv[r].sent++];
        fill(on, step->block, &step->pass);
        for (int t = 0; t < ROWS; t++)
            on->parts[t] = on->row[t] ? me->sum.parts[t] : 0;
    }
    if (step && step->home.n) {
        s->home_messages[step->block][r]++;
        for (int t = 0; t < ROWS; t++)
            if (has(&step->home, t)) {
                CHECK(!(s->home[step->block][t] & me->sum.parts[t])); /* once */
                s->home[step->block][t] |= me->sum.parts[t];
            }
    }
}

static void post(struct simulation *s, int r) {
    struct rank_state *me = &s->rank[r];
    const int P = s->pattern->P, previous = (r + P - 1) % P, at = me->at;
    const struct ra__step *step = &me->schedule.step[at], *coming = at + 1 < me->schedule.steps ? step + 1 : NULL;
    me->posted = true;
    me->serves = me->served = NULL;
    if (at < me->schedule.steps) {
        s->kv[previous].received += coming && coming->passed.n;
        s->dkv[previous].received += step->passed.n > 0;
        if (coming && coming->served.n) {
            me->served = &s->service[coming->block][r];
            CHECK(!me->served->received);
            me->served->received = true;
        }
        for (int t = 0; t < ROWS; t++)
            CHECK_MSG(me->here.row[t] || !has(&step->pass, t), "%s P %d: rank %d sends row %d of block %d without having it",
                      s->pattern->name, P, r, t, step->block);
        if (step->pass.n)
            fill(&s->kv[r].content[s->kv[r].sent++], step->block, &step->pass);
        if (step->serve.n) {
            me->serves = &s->service[r][(r + at + 1) % P];
            CHECK(!me->serves->sent);
            me->serves->sent = true;
            fill(&me->serves->content, r, &step->serve);
        }
    }
    send_sums(s, r);
    me->kv_sent = s->kv[r].sent;
    me->dkv_sent = s->dkv[r].sent;
    me->kv_received = s->kv[previous].received;
    me->dkv_received = s->dkv[previous].received;
}

/* What has come for the next step is at hand. */
static void arrive(struct simulation *s, int r) {
    struct rank_state *me = &s->rank[r];
    const struct ra__step *step = &me->schedule.step[me->at + 1];
    struct message passed = {.block = step->block}, served = {.block = step->block};
    if (step->passed.n)
        passed = s->kv[(r + s->pattern->P - 1) % s->pattern->P].content[me->kv_received - 1];
    if (step->served.n)
        served = me->served->content;
    check_rows(&passed, step->block, &step->passed);
    check_rows(&served, step->block, &step->served);
    me->here = (struct message){.block = step->block};
    for (int t = 0; t < ROWS; t++) {
        CHECK(!passed.row[t] || !served.row[t]);
        me->here.row[t] = passed.row[t] || served.row[t];
    }
    check_rows(&me->here, step->block, &step->here);
}

/* The transfers of the step are through: check what came, compute, hand on. */
static void finish_step(struct simulation *s, int r) {
    struct rank_state *me = &s->rank[r];
    const int previous = (r + s->pattern->P - 1) % s->pattern->P;
    const struct ra__step *step = &me->schedule.step[me->at];
    struct message arrived = {.block = step->block};
    bool computes = false;
    if (step->passed.n) {
        arrived = s->dkv[previous].content[me->dkv_received - 1];
        check_rows(&arrived, step->block, &step->passed);
    }
    for (int t = 0; t < ROWS; t++) {
        const bool here = has(&step->here, t), passes = has(&step->pass, t), home = has(&step->home, t);
        CHECK_MSG(here || !s->pattern->needs[r][step->block][t], "%s P %d: rank %d needs row %d of block %d without having it",
                  s->pattern->name, s->pattern->P, r, t, step->block);
        CHECK(passes + home == (here && me->at > 0)); /* nothing gets lost */
        computes |= s->pattern->needs[r][step->block][t];
        if (here && step->computes)
            arrived.parts[t] |= (uint64_t)1 << r;
    }
    CHECK_EQ_INT(step->computes, computes);
    me->sum = arrived;
    me->left = step;
    if (me->at + 1 < me->schedule.steps)
        arrive(s, r);
}

static bool advance(struct simulation *s, int r) {
    struct rank_state *me = &s->rank[r];
    const int previous = (r + s->pattern->P - 1) % s->pattern->P;
    if (me->at > me->schedule.steps)
        return false;
    if (!me->posted) {
        post(s, r);
        return true;
    }
    if (s->kv[r].received < me->kv_sent || s->dkv[r].received < me->dkv_sent || s->kv[previous].sent < me->kv_received ||
        s->dkv[previous].sent < me->dkv_received || (me->serves && !me->serves->received) || (me->served && !me->served->sent))
        return false;
    if (me->at < me->schedule.steps)
        finish_step(s, r);
    me->at++;
    me->posted = false;
    return true;
}

/* Runs all ranks until none can go on; in a random order now and then. */
static void run(struct simulation *s) {
    const int P = s->pattern->P;
    for (bool moved = true; moved;) {
        moved = false;
        int first = (int)random_below((uint64_t)P);
        for (int i = 0; i < P; i++)
            moved |= advance(s, (first + i) % P);
    }
}

/* ---- what a schedule promises ---- */

static void check_list(const struct ra__rows *rows) {
    int64_t n = 0;
    for (int64_t i = 0; i < rows->count; i++) {
        CHECK(rows->range[i].n > 0 && rows->range[i].t0 >= 0 && rows->range[i].t0 + rows->range[i].n <= ROWS);
        CHECK(i == 0 || rows->range[i].t0 > rows->range[i - 1].t0 + rows->range[i - 1].n);
        n += rows->range[i].n;
    }
    CHECK_EQ_INT(rows->n, n);
}

static void check_rank(const struct simulation *s, int r) {
    const struct pattern *p = s->pattern;
    const struct ra__schedule *schedule = &s->rank[r].schedule;
    CHECK_EQ_INT(schedule->P, p->P);
    CHECK_EQ_INT(schedule->r, r);
    CHECK(schedule->steps >= 1 && schedule->steps <= p->P);
    CHECK_EQ_INT(schedule->step[0].here.n, ROWS);
    int returns = 0;
    int64_t home = 0;
    for (int i = 0; i < p->P; i++) {
        const struct ra__step *step = &schedule->step[i];
        const struct ra__rows *lists[] = {&step->here, &step->passed, &step->served,          &step->pass,
                                          &step->home, &step->serve,  &schedule->returning[i]};
        for (size_t n = 0; n < sizeof lists / sizeof *lists; n++) {
            check_list(lists[n]);
            CHECK(i < schedule->steps || n == 6 || lists[n]->n == 0);
        }
        CHECK_EQ_INT(step->block, (r - i + p->P) % p->P);
        returns += schedule->returning[i].n > 0;
        home += schedule->returning[i].n;
        CHECK_EQ_INT(s->home_messages[r][(r + i) % p->P], schedule->returning[i].n > 0);
    }
    CHECK(home <= 2 * ROWS); /* the memory for it */
    CHECK_EQ_INT(schedule->returns, returns);
}

/* Rows that are here without being needed lie in short gaps between rows that are. */
static bool exact(const struct ra__rows *here, const bool *needs) {
    for (int t = 0; t < ROWS; t++) {
        int before = t, behind = t;
        if (needs[t] || !has(here, t))
            continue;
        while (before >= 0 && !needs[before])
            before--;
        while (behind < ROWS && !needs[behind])
            behind++;
        if (before < 0 || behind == ROWS || behind - before > RA__ROWS_GAP)
            return false;
    }
    return true;
}

/* Rows of block b visit only who needs them, unless that takes too much memory; gradients come home from every rank that made some. */
static void check_block(const struct simulation *s, int b) {
    const struct pattern *p = s->pattern;
    for (int d = 1; d < p->P && p->exact; d++)
        CHECK_MSG(exact(&s->rank[(b + d) % p->P].schedule.step[d].here, p->needs[(b + d) % p->P][b]),
                  "%s P %d: rank %d gets rows of block %d that it does not need", p->name, p->P, (b + d) % p->P, b);
    for (int t = 0; t < ROWS; t++) {
        uint64_t parts = 0;
        for (int d = 1; d < p->P; d++) {
            const struct ra__step *step = &s->rank[(b + d) % p->P].schedule.step[d];
            parts |= (uint64_t)(step->computes && has(&step->here, t)) << (b + d) % p->P;
        }
        CHECK(s->home[b][t] == parts);
    }
}

static void check_pattern(const struct pattern *p) {
    const int before = atomic_load(&check_failures);
    const ra_allocator memory = ra__allocator_or_default(NULL);
    memset(&sim, 0, sizeof sim);
    sim.pattern = p;
    for (int r = 0; r < p->P; r++) {
        struct rank_state *me = &sim.rank[r];
        CHECK(ra__schedule_make(&me->schedule, &memory, p->P, r, ROWS, p->most, pattern_needs, p));
        fill(&me->here, r, &me->schedule.step[0].here); /* its own block */
    }
    run(&sim);
    for (int r = 0; r < p->P; r++) {
        CHECK_MSG(sim.rank[r].at == sim.rank[r].schedule.steps + 1, "%s P %d: rank %d hangs at step %d", p->name, p->P, r, sim.rank[r].at);
        CHECK_EQ_INT(sim.kv[r].sent, sim.kv[r].received);
        CHECK_EQ_INT(sim.dkv[r].sent, sim.dkv[r].received);
        check_rank(&sim, r);
        check_block(&sim, r);
    }
    for (int r = 0; r < p->P; r++)
        ra__schedule_free(&sim.rank[r].schedule);
    if (atomic_load(&check_failures) != before)
        fprintf(stderr, "in pattern %s, P %d\n", p->name, p->P);
}

static struct pattern *new_pattern(int P, const char *name) {
    static struct pattern p;
    memset(&p, 0, sizeof p);
    p.P = P;
    p.most = RA__ROWS_MOST;
    p.exact = true;
    p.name = name;
    return &p;
}

static bool small(void) {
    return getenv("RA_TEST_SMALL") != NULL;
}

static void everyone_needs_everything(void) {
    for (int P = 1; P <= MAX_P; P += P < 9 ? 1 : 11) {
        struct pattern *p = new_pattern(P, "all");
        memset(p->needs, true, sizeof p->needs);
        check_pattern(p);
        for (int r = 0; r < P; r++) {
            CHECK_EQ_INT(sim.rank[r].schedule.steps, P);
            CHECK_EQ_INT(sim.rank[r].schedule.returns, P > 1);
        }
    }
}

static void causal_layouts(void) {
    for (int P = 1; P <= MAX_P; P += P < 9 ? 1 : 11)
        for (int layout = 0; layout < 3; layout++)
            for (int length = 0; length < 4; length++) {
                const int64_t lengths[] = {4 * P, P / 2 + 1, 37, 0}, S = lengths[length];
                struct pattern *p = new_pattern(P, "causal");
                for (int r = 0; r < P; r++)
                    for (int b = 0; b < P; b++) {
                        const struct ra__shard q = ra__layout_shard((ra_layout)layout, S, P, r);
                        const struct ra__shard k = ra__layout_shard((ra_layout)layout, S, P, b);
                        need_all(p, r, b, q.T && k.T && ra__mask_last_key(ra__shard_last(&q), 0, 1) >= ra__shard_first(&k));
                    }
                check_pattern(p);
            }
}

/* The last rows of every block for the next rank, as a window wants it: one short message a rank, whose gradients go straight back. In the
 * zigzag layout also some for the rank before: the longest way round, but straight. */
static void window(void) {
    struct pattern *p = new_pattern(8, "window");
    const ra_allocator memory = ra__allocator_or_default(NULL);
    for (int r = 1; r < 8; r++)
        memset(p->needs[r][r - 1] + 25, true, 20);
    for (int r = 0; r < 7; r++)
        memset(p->needs[r][r + 1] + ROWS - 20, true, 20);
    check_pattern(p);
    struct ra__schedule s;
    CHECK(ra__schedule_make(&s, &memory, 8, 3, ROWS, RA__ROWS_MOST, pattern_needs, p));
    for (int i = 0; i < 8; i++) {
        const struct ra__step *step = &s.step[i];
        CHECK(step->serve.n == (i == 0 || i == 6 ? 20 : 0) && step->pass.n == 0 && step->passed.n == 0);
        CHECK(i == 0 || step->here.n == (i == 1 || i == 7 ? 20 : 0));
        CHECK(s.returning[i].n == (i == 1 || i == 7 ? 20 : 0));
    }
    CHECK(s.step[1].here.range[0].t0 == 25 && s.step[7].here.range[0].t0 == ROWS - 20);
    ra__schedule_free(&s);
}

/* Every other rank needs a block: it would come home in too many pieces. */
static void every_other(void) {
    struct pattern *p = new_pattern(16, "every other");
    p->exact = false;
    for (int r = 0; r < 16; r++)
        for (int b = 0; b < 16; b++)
            need_all(p, r, b, (r + b) % 2);
    check_pattern(p);
    CHECK_EQ_INT(sim.rank[0].schedule.returns, 1);
}

/* One row in `rare` is needed, in runs of up to `run`. */
static void random_rows(bool *row, uint64_t rare, uint64_t run) {
    for (int t = 0; t < ROWS; t++)
        if (random_below(rare) == 0)
            for (uint64_t n = 1 + random_below(run); n > 0 && t < ROWS; n--, t++)
                row[t] = true;
}

static void random_needs(void) {
    for (int trial = 0; trial < (small() ? 60 : 600); trial++) {
        struct pattern *p = new_pattern(1 + (int)random_below(trial % 30 ? 9 : MAX_P), "random");
        const uint64_t percent = random_below(101), rare = 1 + random_below(60), run = 1 + random_below(30);
        p->exact = false;
        p->most = trial % 4 ? RA__ROWS_MOST : 1 + (int64_t)random_below(3);
        for (int r = 0; r < p->P; r++)
            for (int b = 0; b < p->P; b++)
                if (random_below(100) < percent) {
                    if (trial % 3)
                        random_rows(p->needs[r][b], rare, run);
                    else
                        need_all(p, r, b, true);
                }
        check_pattern(p);
    }
}

/* All 2^9 patterns of three ranks, and all 2^4 of two. */
static void every_small_pattern(void) {
    for (int P = 1; P <= 3; P++)
        for (int bits = 0; bits < 1 << (P * P); bits += small() ? 7 : 1) {
            struct pattern *p = new_pattern(P, "small"); /* too few ranks for many pieces */
            for (int i = 0; i < P * P; i++)
                need_all(p, i / P, i % P, bits >> i & 1);
            check_pattern(p);
        }
}

/* ---- layouts ---- */

static int64_t part_begin(int64_t n, int64_t N, int64_t i) { /* the header's definition */
    return i * (n / N) + (i < n % N ? i : n % N);
}

/* The definition of each layout, read literally. */
static bool belongs(ra_layout layout, int64_t S, int64_t P, int64_t r, int64_t i) {
    if (layout == RA_STRIPED)
        return i % P == r;
    if (layout == RA_CONTIGUOUS)
        return i >= part_begin(S, P, r) && i < part_begin(S, P, r + 1);
    const int64_t m = 2 * P - 1 - r;
    return (i >= part_begin(S, 2 * P, r) && i < part_begin(S, 2 * P, r + 1)) ||
           (i >= part_begin(S, 2 * P, m) && i < part_begin(S, 2 * P, m + 1));
}

static void check_shard(ra_layout layout, int64_t S, int P, int r, char *owned) {
    const struct ra__shard s = ra__layout_shard(layout, S, P, r);
    int64_t count = 0, next = 0, positions[300], low = S, high = -1;
    CHECK_EQ_INT(ra_shard_size(layout, S, P, r), s.T);
    if (!CHECK(s.T <= 300 && s.stretches.count <= 2))
        return;
    ra__shard_positions(&s, positions);
    for (int i = 0; i < s.stretches.count; i++) {
        const struct ra__stretch part = s.stretches.part[i];
        CHECK_EQ_INT(part.t0, next);
        CHECK(part.n > 0);
        next += part.n;
        for (int64_t t = part.t0; t < part.t0 + part.n; t++)
            CHECK(t == part.t0 || positions[t] == positions[t - 1] + s.stride);
    }
    CHECK_EQ_INT(next, s.T);
    for (int64_t t = 0; t < s.T; t++) {
        const int64_t i = positions[t];
        if (!CHECK(i >= 0 && i < S))
            return;
        CHECK_EQ_INT(ra_shard_position(layout, S, P, r, t), i);
        CHECK_MSG(belongs(layout, S, P, r, i), "layout %d S %lld P %d: rank %d has token %lld", layout, (long long)S, P, r, (long long)i);
        CHECK_EQ_INT(owned[i]++, 0);
        low = i < low ? i : low;
        high = i > high ? i : high;
    }
    for (int64_t i = 0; i < S; i++)
        count += belongs(layout, S, P, r, i);
    CHECK_EQ_INT(count, s.T);
    if (s.T) {
        CHECK_EQ_INT(ra__shard_first(&s), low);
        CHECK_EQ_INT(ra__shard_last(&s), high);
    }
    CHECK_EQ_INT(ra_shard_position(layout, S, P, r, s.T), -1);
    CHECK_EQ_INT(ra_shard_position(layout, S, P, r, -1), -1);
}

static void layouts_partition(void) {
    for (int64_t S = 0; S <= 140; S += S < 40 ? 1 : 9)
        for (int P = 1; P <= 64; P += P < 12 ? 1 : 13)
            for (int layout = 0; layout < 3; layout++) {
                char owned[300] = {0};
                for (int r = 0; r < P; r++)
                    check_shard((ra_layout)layout, S, P, r, owned);
                for (int64_t i = 0; i < S; i++)
                    CHECK_EQ_INT(owned[i], 1);
            }
}

/* Lengths that do not fit in 32 bits. */
static void long_sequences(void) {
    const int64_t S = ((int64_t)1 << 40) + 5;
    for (int layout = 0; layout < 3; layout++) {
        int64_t sum = 0;
        for (int r = 0; r < 7; r++) {
            int64_t T = ra_shard_size((ra_layout)layout, S, 7, r), last = ra_shard_position((ra_layout)layout, S, 7, r, T - 1);
            sum += T;
            CHECK(belongs((ra_layout)layout, S, 7, r, last));
        }
        CHECK_EQ_INT(sum, S);
    }
}

static void check_permutation(ra_layout layout, int64_t S, int P, int64_t outer, int64_t bytes) {
    unsigned char source[2048], there[2048 + 1], back[2048 + 1];
    const int64_t n = outer * S * bytes;
    if (!CHECK(n <= 2048))
        return;
    for (int64_t i = 0; i < n; i++)
        source[i] = (unsigned char)random_below(256);
    there[n] = back[n] = 0xa5;
    CHECK_OK(ra_permute(layout, S, P, source, there, outer, bytes));
    CHECK_OK(ra_unpermute(layout, S, P, there, back, outer, bytes));
    CHECK_MSG(n == 0 || memcmp(source, back, (size_t)n) == 0, "layout %d S %lld P %d: not the identity", layout, (long long)S, P);
    CHECK(there[n] == 0xa5 && back[n] == 0xa5);
    for (int64_t o = 0; o < outer; o++) {
        int64_t i = 0;
        for (int r = 0; r < P; r++)
            for (int64_t t = 0; t < ra_shard_size(layout, S, P, r); t++, i++)
                CHECK(
                    !memcmp(there + (o * S + i) * bytes, source + (o * S + ra_shard_position(layout, S, P, r, t)) * bytes, (size_t)bytes));
    }
}

static void permutations(void) {
    static const struct {
        int64_t S;
        int P;
        int64_t outer, bytes;
    } cases[] = {{37, 4, 1, 4}, {37, 4, 3, 5}, {1, 1, 1, 1},   {2, 7, 2, 8}, {64, 8, 4, 2},
                 {65, 8, 2, 2}, {5, 64, 1, 3}, {100, 3, 2, 4}, {0, 4, 2, 4}, {16, 2, 0, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int layout = 0; layout < 3; layout++)
            check_permutation((ra_layout)layout, cases[i].S, cases[i].P, cases[i].outer, cases[i].bytes);
}

/* ---- balance ---- */

struct balance {
    ra_problem problem;
    double pairs[8];
};

static ra_status plan_pairs(ra_comm *comm, int rank, void *user) {
    struct balance *b = user;
    ra_plan *plan;
    ra_plan_info info;
    ra_status s = ra_plan_create(comm, &b->problem, &plan);
    if (s != RA_OK)
        return s;
    ra_plan_query(plan, &info);
    b->pairs[rank] = info.pairs;
    CHECK(info.flops_forward == info.pairs * (double)(2 * b->problem.D + 2 * b->problem.Dv));
    CHECK(info.flops_backward == info.pairs * (double)(6 * b->problem.D + 4 * b->problem.Dv));
    ra_plan_destroy(plan);
    return RA_OK;
}

static double imbalance(ra_layout layout, int causal) {
    struct balance b = {.pairs = {0}};
    double sum = 0, max = 0;
    ra_problem_init(&b.problem);
    b.problem.Sq = b.problem.Skv = 4096;
    b.problem.H = 3;
    b.problem.D = 8;
    b.problem.Dv = 5;
    b.problem.layout = layout;
    b.problem.threads = 1;
    b.problem.mask.causal = causal;
    CHECK_OK(ra_local_run(8, NULL, NULL, plan_pairs, &b));
    for (int r = 0; r < 8; r++) {
        double expected = 0;
        for (int64_t t = 0; t < ra_shard_size(layout, 4096, 8, r); t++)
            expected += causal ? (double)ra_shard_position(layout, 4096, 8, r, t) + 1 : 4096;
        CHECK_MSG(b.pairs[r] == 3 * expected, "layout %d: rank %d plans %g pairs, positions say %g", layout, r, b.pairs[r], 3 * expected);
        sum += b.pairs[r];
        max = b.pairs[r] > max ? b.pairs[r] : max;
    }
    return max / (sum / 8);
}

static void causal_work_is_balanced(void) {
    CHECK(imbalance(RA_ZIGZAG, 1) <= 1.02);
    CHECK(imbalance(RA_STRIPED, 1) <= 1.02);
    CHECK(imbalance(RA_CONTIGUOUS, 1) > 1.5); /* else the two lines above prove nothing */
    for (int layout = 0; layout < 3; layout++)
        CHECK(imbalance((ra_layout)layout, 0) == 1);
}

int main(void) {
    RUN(everyone_needs_everything);
    RUN(causal_layouts);
    RUN(window);
    RUN(every_other);
    RUN(random_needs);
    RUN(every_small_pattern);
    RUN(layouts_partition);
    RUN(long_sequences);
    RUN(permutations);
    RUN(causal_work_is_balanced);
    return check_result();
}
