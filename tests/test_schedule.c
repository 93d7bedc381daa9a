/* Layouts and ring schedules, as data: every rank meets every block that it needs once, messages pair up under a transport that holds a
 * send until its receive is posted, gradients come home complete and in ring order, causal work is balanced (cases 16, 17, 44, 46, 91). */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "block/mask.h"
#include "check.h"
#include "ring/layout.h"
#include "ring/schedule.h"

enum { MAX_P = 64 };

static uint64_t random_state = 88172645463325252u;
static uint64_t random_below(uint64_t n) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (random_state >> 11) % n;
}

/* Who needs whose block. */
struct pattern {
    int P;
    bool needs[MAX_P][MAX_P]; /* [rank][block] */
    const char *name;
};

static bool pattern_needs(const void *context, int r, int b) {
    const struct pattern *p = context;
    return p->needs[r][b];
}

/* ---- all ranks, simulated by the walkers' protocol ---- */

/* A message: a block's keys and values (n = 0), or the sum of its gradients over ranks, in the order of addition. */
struct message {
    int block, n, from;
    int rank[MAX_P];
};

/* From rank i to rank i + 1. The n-th send meets the n-th receive. */
struct channel {
    int sent, received;
    struct message content[MAX_P + 2];
};

struct rank_state {
    struct ra__schedule schedule;
    struct ra__step step[MAX_P];
    int at;                                           /* step; schedule.steps: only the last sum is left to leave; steps + 1: done */
    bool posted;                                      /* the transfers of step `at` */
    bool here;                                        /* keys and values of step `at` */
    int kv_sent, kv_received, dkv_sent, dkv_received; /* counts that this step waits for */
    bool leaving;
    int leaving_to;
    struct message sum; /* leaving */
};

struct simulation {
    const struct pattern *pattern;
    struct rank_state rank[MAX_P];
    struct channel kv[MAX_P], dkv[MAX_P];
    struct message home[MAX_P];
    int home_messages[MAX_P];
};

static struct simulation sim;

static void send_sum(struct simulation *s, int r) {
    struct rank_state *me = &s->rank[r];
    if (!me->leaving)
        return;
    me->leaving = false;
    me->sum.from = r;
    if (me->leaving_to == me->sum.block) {
        s->home_messages[me->leaving_to]++;
        s->home[me->leaving_to] = me->sum;
    } else {
        CHECK_EQ_INT(me->leaving_to, (r + 1) % s->pattern->P);
        s->dkv[r].content[s->dkv[r].sent++] = me->sum;
    }
}

static void post(struct simulation *s, int r) {
    struct rank_state *me = &s->rank[r];
    const int P = s->pattern->P, previous = (r + P - 1) % P;
    me->posted = true;
    if (me->at < me->schedule.steps) {
        const struct ra__step *step = &me->step[me->at];
        s->kv[previous].received += step->receives_kv;
        s->dkv[previous].received += step->receives_dkv;
        if (step->sends_kv) {
            CHECK_MSG(me->here, "%s P %d: rank %d sends block %d at step %d without having it", s->pattern->name, P, r, step->block,
                      me->at);
            s->kv[r].content[s->kv[r].sent++] = (struct message){.block = step->block};
        }
    }
    send_sum(s, r);
    me->kv_sent = s->kv[r].sent;
    me->dkv_sent = s->dkv[r].sent;
    me->kv_received = s->kv[previous].received;
    me->dkv_received = s->dkv[previous].received;
}

/* The transfers of the step are through: check what came, compute, hand on. */
static void finish_step(struct simulation *s, int r) {
    struct rank_state *me = &s->rank[r];
    const int P = s->pattern->P, previous = (r + P - 1) % P;
    const struct ra__step *step = &me->step[me->at];
    struct message arrived = {.block = step->block};
    if (step->receives_dkv) {
        arrived = s->dkv[previous].content[me->dkv_received - 1];
        CHECK_EQ_INT(arrived.block, step->block);
    }
    if (step->computes)
        CHECK_MSG(me->here, "%s P %d: rank %d computes on block %d at step %d without having it", s->pattern->name, P, r, step->block,
                  me->at);
    if (step->dkv_to >= 0) {
        CHECK(step->computes || step->receives_dkv); /* else there is no sum */
        if (step->computes)
            arrived.rank[arrived.n++] = r;
        me->sum = arrived;
        me->leaving = true;
        me->leaving_to = step->dkv_to;
    } else {
        CHECK(!step->receives_dkv && !(step->computes && me->at > 0)); /* nothing gets lost */
    }
    if (step->receives_kv)
        CHECK_EQ_INT(s->kv[previous].content[me->kv_received - 1].block, me->step[me->at + 1].block);
    me->here = step->receives_kv;
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
        s->dkv[previous].sent < me->dkv_received)
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

static void check_rank(const struct simulation *s, int r) {
    const struct pattern *p = s->pattern;
    const struct rank_state *me = &s->rank[r];
    CHECK_EQ_INT(me->schedule.P, p->P);
    CHECK_EQ_INT(me->schedule.r, r);
    CHECK(me->schedule.steps >= 1 && me->schedule.steps <= p->P);
    bool computed[MAX_P] = {false};
    for (int i = 0; i < p->P; i++) {
        const struct ra__step *step = &me->step[i];
        CHECK_EQ_INT(step->block, (r - i + p->P) % p->P);
        if (i >= me->schedule.steps)
            CHECK(!step->computes && !step->sends_kv && !step->receives_kv && !step->receives_dkv && step->dkv_to < 0);
        CHECK(!step->computes || !computed[step->block]);
        computed[step->block] |= step->computes;
    }
    for (int b = 0; b < p->P; b++)
        CHECK_MSG(computed[b] == p->needs[r][b], "%s P %d: rank %d, block %d: computed %d, needed %d", p->name, p->P, r, b, computed[b],
                  p->needs[r][b]);
}

/* Block b reaches exactly as far as it is needed; its gradients arrive once, from every rank that made some, in ring order. */
static void check_block(const struct simulation *s, int b) {
    const struct pattern *p = s->pattern;
    int reach = 0, users = 0;
    for (int d = 1; d < p->P; d++)
        if (p->needs[(b + d) % p->P][b]) {
            reach = d;
            CHECK(s->home[b].rank[users] == (b + d) % p->P);
            users++;
        }
    CHECK_EQ_INT(ra__schedule_reach(p->P, b, pattern_needs, p), reach);
    for (int d = 0; d < p->P; d++)
        CHECK_EQ_INT(s->rank[(b + d) % p->P].step[d].sends_kv, d < reach);
    CHECK_EQ_INT(s->home_messages[b], users > 0);
    CHECK_EQ_INT(s->home[b].n, users);
    CHECK_EQ_INT(s->rank[b].schedule.home_from, users ? (b + reach) % p->P : -1);
    if (users)
        CHECK_EQ_INT(s->home[b].from, s->rank[b].schedule.home_from);
}

static void check_pattern(const struct pattern *p) {
    const int before = atomic_load(&check_failures);
    memset(&sim, 0, sizeof sim);
    sim.pattern = p;
    for (int r = 0; r < p->P; r++) {
        struct rank_state *me = &sim.rank[r];
        ra__schedule_make(&me->schedule, me->step, p->P, r, pattern_needs, p);
        me->here = true; /* its own block */
    }
    run(&sim);
    for (int r = 0; r < p->P; r++) {
        CHECK_MSG(sim.rank[r].at == sim.rank[r].schedule.steps + 1, "%s P %d: rank %d hangs at step %d", p->name, p->P, r, sim.rank[r].at);
        CHECK_EQ_INT(sim.kv[r].sent, sim.kv[r].received);
        CHECK_EQ_INT(sim.dkv[r].sent, sim.dkv[r].received);
        check_rank(&sim, r);
        check_block(&sim, r);
    }
    if (atomic_load(&check_failures) != before)
        fprintf(stderr, "in pattern %s, P %d\n", p->name, p->P);
}

static void everyone_needs_everything(void) {
    for (int P = 1; P <= MAX_P; P++) {
        struct pattern p = {.P = P, .name = "all"};
        memset(p.needs, true, sizeof p.needs);
        check_pattern(&p);
        CHECK_EQ_INT(sim.rank[0].schedule.steps, P);
    }
}

static void causal_layouts(void) {
    for (int P = 1; P <= MAX_P; P++)
        for (int layout = 0; layout < 3; layout++)
            for (int length = 0; length < 4; length++) {
                const int64_t lengths[] = {4 * P, P / 2 + 1, 37, 0}, S = lengths[length];
                struct pattern p = {.P = P, .name = "causal"};
                for (int r = 0; r < P; r++)
                    for (int b = 0; b < P; b++) {
                        const struct ra__shard q = ra__layout_shard((ra_layout)layout, S, P, r);
                        const struct ra__shard k = ra__layout_shard((ra_layout)layout, S, P, b);
                        p.needs[r][b] = q.T && k.T && ra__mask_last_key(ra__shard_last(&q), 0, 1) >= ra__shard_first(&k);
                    }
                check_pattern(&p);
                for (int i = 0; layout == RA_CONTIGUOUS && i < P; i++) /* the last rank's queries see all; nothing goes on from there */
                    CHECK_EQ_INT(sim.rank[P - 1].step[i].sends_kv, 0);
            }
}

static void random_needs(void) {
    for (int trial = 0; trial < 600; trial++) {
        struct pattern p = {.P = 1 + (int)random_below(trial < 500 ? 9 : MAX_P), .name = "random"};
        const uint64_t percent = random_below(101);
        for (int r = 0; r < p.P; r++)
            for (int b = 0; b < p.P; b++)
                p.needs[r][b] = random_below(100) < percent;
        check_pattern(&p);
    }
}

/* All 2^9 patterns of three ranks, and all 2^4 of two. */
static void every_small_pattern(void) {
    for (int P = 1; P <= 3; P++)
        for (int bits = 0; bits < 1 << (P * P); bits++) {
            struct pattern p = {.P = P, .name = "small"};
            for (int i = 0; i < P * P; i++)
                p.needs[i / P][i % P] = bits >> i & 1;
            check_pattern(&p);
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
    RUN(random_needs);
    RUN(every_small_pattern);
    RUN(layouts_partition);
    RUN(long_sequences);
    RUN(permutations);
    RUN(causal_work_is_balanced);
    return check_result();
}
