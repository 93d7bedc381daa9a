/* What a query sees by position, as spans, against the definition pair by pair: every condition alone and with others, packed sequences of
 * both alignments, slices, far numbers; the same mask given in several ways; unions; what a plan says each rank needs. */
#include "plan/plan.h"

#include <stdlib.h>

#include "base/memory.h"
#include "harness.h"

static int64_t below(int64_t n) {
    return n > 0 ? (int64_t)(uniform() * (double)n) : 0;
}

static bool small(void) {
    return getenv("RA_TEST_SMALL") != NULL;
}

/* ---- the definition ---- */

static int64_t floor_of(int64_t a, int64_t N) {
    return a >= 0 ? a / N : -((-a + N - 1) / N);
}

static bool slice_covers(const struct ra__slice *s, int64_t q, int64_t k) {
    if (q < s->q0 || q >= s->q1 || k < s->k0 || k >= s->k1)
        return false;
    const bool causal = k - s->k1 <= q - s->q1, inverse = k - s->k0 >= q - s->q0;
    return s->type == 0 || (s->type == 1 && causal) || (s->type == 2 && inverse) || (s->type == 3 && causal && inverse);
}

static bool visible(const struct ra__mask_rule *r, int64_t i, int64_t j) {
    bool covered = !r->slice;
    for (int64_t n = 0; n < r->slices; n++)
        covered |= slice_covers(&r->slice[n], i, j);
    if (!covered)
        return false;
    int64_t q = i, k = j, nq = r->Sq, nk = r->Skv;
    if (r->cu_q) {
        int64_t s = 0;
        while (s < r->sequences && !(i >= r->cu_q[s] && i < r->cu_q[s + 1]))
            s++;
        if (s == r->sequences || j < r->cu_k[s] || j >= r->cu_k[s + 1])
            return false;
        q = i - r->cu_q[s];
        k = j - r->cu_k[s];
        nq = r->cu_q[s + 1] - r->cu_q[s];
        nk = r->cu_k[s + 1] - r->cu_k[s];
    }
    q += r->bottom_right ? nk - nq : 0;
    if (r->block && floor_of(k, r->block) > floor_of(q, r->block) && k >= r->prefix)
        return false;
    if (r->left >= 0 && k < q - r->left && k >= r->keep_first)
        return false;
    return r->right < 0 || k <= q + r->right;
}

/* ---- random rules ---- */

enum { MAX_S = 60, MAX_SLICES = 12, MAX_SEQUENCES = 6 };

struct storage {
    int32_t cu_q[MAX_SEQUENCES + 1], cu_k[MAX_SEQUENCES + 1];
    struct ra__slice slice[MAX_SLICES];
    int64_t reach[MAX_SLICES];
    struct ra__span out[2 * MAX_SLICES + 2];
};

static int by_int(const void *x, const void *y) {
    return *(const int32_t *)x - *(const int32_t *)y;
}

static void random_offsets(int32_t *cu, int64_t n, int64_t S) {
    cu[0] = 0;
    for (int64_t i = 1; i <= n; i++)
        cu[i] = (int32_t)below(S + 1);
    qsort(cu + 1, (size_t)n, sizeof *cu, by_int);
    if (below(2))
        cu[n] = (int32_t)S;
}

static void random_slices(struct storage *s, int64_t n, int64_t Sq, int64_t Skv) {
    for (int64_t i = 0; i < n; i++) {
        struct ra__slice *x = &s->slice[i];
        x->q0 = below(Sq + 1);
        x->q1 = x->q0 + below(Sq - x->q0 + 1);
        x->k0 = below(Skv + 1);
        x->k1 = x->k0 + below(Skv - x->k0 + 1);
        x->type = below(4);
    }
    ra__slices_sort(s->slice, s->reach, n);
}

static struct ra__mask_rule random_rule(struct storage *s) {
    struct ra__mask_rule r = {.Sq = 1 + below(MAX_S), .Skv = 1 + below(MAX_S), .left = -1, .right = -1};
    r.bottom_right = below(2);
    r.block = below(2) ? 0 : below(2) ? 1 : 1 + below(9);
    r.left = below(2) ? -1 : below(20);
    r.right = below(3) ? -1 : below(20);
    r.prefix = below(2) ? 0 : below(30);
    r.keep_first = below(2) ? 0 : below(15);
    if (below(3) == 0) {
        r.sequences = below(MAX_SEQUENCES + 1);
        random_offsets(s->cu_q, r.sequences, r.Sq);
        random_offsets(s->cu_k, r.sequences, r.Skv);
        r.cu_q = s->cu_q;
        r.cu_k = s->cu_k;
    }
    if (below(3) == 0) {
        r.slices = below(MAX_SLICES + 1);
        random_slices(s, r.slices, r.Sq, r.Skv);
        r.slice = s->slice;
        r.slice_reach = s->reach;
    }
    ra__mask_rule_finish(&r);
    return r;
}

/* Sorted, disjoint, not touching, clipped, and exactly the visible keys. */
static void check_row(const struct ra__mask_rule *r, int64_t i, struct ra__span *out) {
    const int64_t n = ra__mask_row(r, i, out);
    CHECK(n <= r->most);
    for (int64_t s = 0; s < n; s++) {
        CHECK(out[s].begin < out[s].end && out[s].begin >= 0 && out[s].end <= r->Skv);
        CHECK(s == 0 || out[s].begin > out[s - 1].end);
    }
    int64_t wrong = 0;
    for (int64_t j = 0; j < r->Skv; j++) {
        bool in = false;
        for (int64_t s = 0; s < n; s++)
            in |= j >= out[s].begin && j < out[s].end;
        wrong += in != visible(r, i, j);
    }
    CHECK_MSG(wrong == 0,
              "query %lld of %lld x %lld: %lld keys wrong (block %lld, left %lld, right %lld, prefix %lld, keep %lld, bottom-right %d, "
              "sequences %lld, slices %lld)",
              (long long)i, (long long)r->Sq, (long long)r->Skv, (long long)wrong, (long long)r->block, (long long)r->left,
              (long long)r->right, (long long)r->prefix, (long long)r->keep_first, r->bottom_right, (long long)r->sequences,
              r->slice ? (long long)r->slices : -1);
}

static void rows(void) {
    static struct storage s;
    for (int trial = 0; trial < (small() ? 1000 : 20000); trial++) {
        const struct ra__mask_rule r = random_rule(&s);
        for (int64_t i = 0; i < r.Sq; i++)
            check_row(&r, i, s.out);
    }
}

/* Numbers at the ends of their types mean what they say. */
static void far_numbers(void) {
    const int64_t far = INT64_MAX / 4, huge = INT64_MAX;
    struct ra__span out[2];
    struct ra__mask_rule r = {.Sq = far, .Skv = far, .left = huge, .right = huge, .prefix = huge, .keep_first = huge, .block = huge};
    ra__mask_rule_finish(&r);
    CHECK(ra__mask_row(&r, far - 1, out) == 1 && out[0].begin == 0 && out[0].end == far);
    CHECK(ra__mask_row(&r, 0, out) == 1 && out[0].begin == 0 && out[0].end == far);
    r = (struct ra__mask_rule){.Sq = far, .Skv = 5, .left = huge, .right = huge, .block = 1, .bottom_right = true};
    ra__mask_rule_finish(&r);
    CHECK(ra__mask_row(&r, 0, out) == 0); /* position 5 - far */
    CHECK(ra__mask_row(&r, far - 1, out) == 1 && out[0].begin == 0 && out[0].end == 5);
    r = (struct ra__mask_rule){.Sq = 5, .Skv = far, .left = 3, .right = 0, .block = 1, .bottom_right = true, .keep_first = 2};
    ra__mask_rule_finish(&r);
    CHECK(ra__mask_row(&r, 4, out) == 2 && out[0].end == 2 && out[1].begin == far - 4 && out[1].end == far);
}

/* A list without slices hides all; no list hides nothing. */
static void no_slices(void) {
    struct ra__slice none[1];
    int64_t reach[1];
    struct ra__span out[2];
    struct ra__mask_rule r = {.Sq = 3, .Skv = 4, .left = -1, .right = -1};
    ra__mask_rule_finish(&r);
    CHECK(ra__mask_row(&r, 1, out) == 1 && out[0].begin == 0 && out[0].end == 4);
    ra__slices_sort(none, reach, 0);
    r.slice = none;
    r.slice_reach = reach;
    ra__mask_rule_finish(&r);
    CHECK_EQ_INT(ra__mask_row(&r, 1, out), 0);
}

static void check_same(const struct ra__mask_rule *a, const struct ra__mask_rule *b, const char *what) {
    struct ra__span x[2 * MAX_SLICES + 2], y[2 * MAX_SLICES + 2];
    for (int64_t i = 0; i < a->Sq; i++) {
        const int64_t n = ra__mask_row(a, i, x);
        CHECK_MSG(ra__mask_row(b, i, y) == n && memcmp(x, y, (size_t)n * sizeof *x) == 0, "%s: query %lld", what, (long long)i);
    }
}

/* One mask, several ways to say it: the same spans, hence the same tiles and bits. */
static void several_ways(void) {
    static struct storage s;
    for (int64_t Sq = 1; Sq < 30; Sq += 4)
        for (int64_t Skv = 1; Skv < 30; Skv += 3) {
            const struct ra__mask_rule all = {.Sq = Sq, .Skv = Skv, .left = -1, .right = -1, .most = 2};
            struct ra__mask_rule causal = all, other;
            causal.block = 1;
            causal.bottom_right = true;
            other = all;
            other.right = 0;
            other.bottom_right = true;
            check_same(&causal, &other, "a right window of 0");
            other = all;
            random_slices(&s, 0, Sq, Skv);
            s.slice[0] = (struct ra__slice){0, Sq, 0, Skv, 1};
            s.slice[1] = (struct ra__slice){Sq / 2, Sq, 0, Skv, 1}; /* its lower half again */
            ra__slices_sort(s.slice, s.reach, 2);
            other.slice = s.slice;
            other.slice_reach = s.reach;
            other.slices = 2;
            ra__mask_rule_finish(&other);
            check_same(&causal, &other, "causal slices");
            const int32_t cu_q[] = {0, 0, (int32_t)Sq, (int32_t)Sq}, cu_k[] = {0, 0, (int32_t)Skv, (int32_t)Skv};
            other = causal;
            other.cu_q = cu_q;
            other.cu_k = cu_k;
            other.sequences = 3;
            check_same(&causal, &other, "one packed sequence between empty ones");
            struct ra__mask_rule window = all;
            window.left = 3;
            window.right = 2;
            s.slice[0] = (struct ra__slice){0, Sq, 0, Skv, 0}; /* all, in four quarters */
            s.slice[0] = (struct ra__slice){0, Sq / 2, 0, Skv / 2, 0};
            s.slice[1] = (struct ra__slice){0, Sq / 2, Skv / 2, Skv, 0};
            s.slice[2] = (struct ra__slice){Sq / 2, Sq, 0, Skv / 2, 0};
            s.slice[3] = (struct ra__slice){Sq / 2, Sq, Skv / 2, Skv, 0};
            ra__slices_sort(s.slice, s.reach, 4);
            other = window;
            other.slice = s.slice;
            other.slice_reach = s.reach;
            other.slices = 4;
            ra__mask_rule_finish(&other);
            check_same(&window, &other, "a window within four quarters");
        }
}

/* The aligned key is the last that a causal query sees, where there is one. */
static void aligned(void) {
    static struct storage s;
    for (int trial = 0; trial < 500; trial++) {
        struct ra__mask_rule r = random_rule(&s);
        r.block = 1;
        r.left = r.right = -1;
        r.prefix = r.keep_first = 0;
        r.slice = NULL;
        r.slices = 0;
        ra__mask_rule_finish(&r);
        for (int64_t i = 0; i < r.Sq; i++) {
            const int64_t key = ra__mask_aligned(&r, i), n = ra__mask_row(&r, i, s.out);
            CHECK(n == 0 || s.out[0].end - 1 <= key);
            CHECK(key < 0 || key >= r.Skv || !visible(&r, i, key) || s.out[0].end - 1 == key);
        }
    }
}

/* Tens of thousands of slices: a row looks at its own only. */
static void many_slices(void) {
    const int64_t n = small() ? 2000 : 30000, S = 4 * n;
    struct ra__slice *slice = malloc((size_t)n * sizeof *slice);
    int64_t *reach = malloc((size_t)n * sizeof *reach);
    for (int64_t i = 0; i < n; i++)
        slice[i] = (struct ra__slice){4 * i, 4 * i + 4, 4 * i, 4 * i + 4, 1};
    slice[0].q1 = S; /* one that reaches over all others */
    slice[0].type = 0;
    ra__slices_sort(slice, reach, n);
    struct ra__mask_rule r = {.Sq = S, .Skv = S, .left = -1, .right = -1, .slice = slice, .slice_reach = reach, .slices = n};
    ra__mask_rule_finish(&r);
    CHECK_EQ_INT(r.most, 6);
    struct ra__span out[6];
    for (int64_t i = 4; i < S; i++) {
        const int64_t count = ra__mask_row(&r, i, out);
        CHECK(i < 8 ? count == 1 && out[0].end == i + 1
                    : count == 2 && out[0].end == 4 && out[1].begin == i / 4 * 4 && out[1].end == i + 1);
    }
    free(slice);
    free(reach);
}

/* A union holds what any row holds, in order; spans that no row crosses stay apart. */
static void unions(void) {
    static struct storage s;
    const ra_allocator memory = ra__allocator_or_default(NULL);
    for (int trial = 0; trial < (small() ? 300 : 3000); trial++) {
        const struct ra__mask_rule r = random_rule(&s);
        struct ra__span_set set = {.memory = &memory};
        const int64_t step = 1 + below(4);
        bool seen[MAX_S] = {false}, crossed[MAX_S + 1] = {false};
        for (int64_t i = below(step); i < r.Sq; i += step) {
            const int64_t n = ra__mask_row(&r, i, s.out);
            CHECK(ra__span_set_add(&set, s.out, n));
            for (int64_t j = 0; j < r.Skv; j++) {
                seen[j] |= visible(&r, i, j);
                crossed[j] |= j > 0 && visible(&r, i, j) && visible(&r, i, j - 1);
            }
        }
        ra__span_set_finish(&set);
        int64_t at = 0, wrong = 0;
        for (int64_t j = 0; j < r.Skv; j++) {
            while (at < set.count && set.span[at].end <= j)
                at++;
            const bool in = at < set.count && set.span[at].begin <= j, begins = in && set.span[at].begin == j;
            wrong += in != seen[j] || (in && begins == crossed[j]);
        }
        CHECK_MSG(wrong == 0, "%lld keys of a union are wrong", (long long)wrong);
        ra__span_set_free(&set);
    }
}

/* ---- a plan's answers for every pair of ranks ---- */

/* Pairs, and which rows of block b rank r needs, by asking each. */
static void check_ranks(const ra_plan *plan, int r, int b, bool *needed) {
    const ra_problem *p = &plan->problem;
    const int P = plan->ring.schedule.P;
    const struct ra__shard q = ra__layout_shard(p->layout, p->Sq, P, r), k = ra__layout_shard(p->layout, p->Skv, P, b);
    bool any = false;
    for (int64_t t = 0; t < k.T; t++) {
        const int64_t j = ra__shard_position(&k, t);
        needed[t] = false;
        for (int64_t i = 0; i < q.T; i++)
            for (int64_t e = 0; e < p->B; e++)
                needed[t] |= visible(&plan->rule, ra__shard_position(&q, i), j) && (!plan->ring.kv_lens || j < plan->ring.kv_lens[e]);
        any |= needed[t];
    }
    CHECK_EQ_INT(ra__plan_needs(plan, r, b), any);
    struct ra__stretch ranges[MAX_S];
    const int64_t max = below(4) ? MAX_S : 1, n = ra__plan_rows(plan, r, b, ranges, max);
    CHECK(n <= max && (n > 0) == any);
    int64_t at = 0, outside = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t end = ranges[i].t0 + ranges[i].n;
        if (!CHECK(ranges[i].n > 0 && ranges[i].t0 >= at && end <= k.T))
            return;
        CHECK(i == 0 || ranges[i].t0 - at >= 16);
        CHECK(needed[ranges[i].t0] && needed[end - 1]);
        for (; at < ranges[i].t0; at++)
            outside += needed[at];
        int64_t gap = 0; /* no long gap inside */
        for (; at < end; at++) {
            gap = needed[at] ? 0 : gap + 1;
            CHECK(gap < 16 || max == 1);
        }
    }
    for (; at < k.T; at++)
        outside += needed[at];
    CHECK_EQ_INT(outside, 0);
}

static double pairs_of(const ra_plan *plan, int r) {
    const ra_problem *p = &plan->problem;
    const struct ra__shard q = ra__layout_shard(p->layout, p->Sq, plan->ring.schedule.P, r);
    double pairs = 0;
    for (int64_t i = 0; i < q.T; i++)
        for (int64_t e = 0; e < p->B; e++)
            for (int64_t j = 0; j < p->Skv; j++)
                pairs += visible(&plan->rule, ra__shard_position(&q, i), j) && (!plan->ring.kv_lens || j < plan->ring.kv_lens[e]);
    return pairs;
}

static void ranks(void) {
    static struct storage s;
    static bool needed[MAX_S];
    ra_comm *comm;
    if (!CHECK_OK(ra_comm_create_self(NULL, &comm)))
        return;
    for (int trial = 0; trial < (small() ? 100 : 1500); trial++) {
        int64_t lens[3];
        ra_plan plan = {.comm = comm, .rule = random_rule(&s)};
        const int P = 1 + (int)below(7);
        ra_problem_init(&plan.problem);
        plan.problem.B = 1 + below(3);
        plan.problem.Sq = plan.rule.Sq;
        plan.problem.Skv = plan.rule.Skv;
        plan.problem.layout = (ra_layout)below(3);
        plan.ring.schedule.P = P;
        plan.ring.schedule.r = (int)below(P);
        plan.ring.attn.k = ra__kernels();
        plan.ring.attn.B = plan.problem.B;
        plan.ring.q = ra__layout_shard(plan.problem.layout, plan.rule.Sq, P, plan.ring.schedule.r);
        for (int64_t e = 0; e < plan.problem.B; e++)
            lens[e] = below(plan.rule.Skv + 1);
        plan.ring.kv_lens = below(2) ? lens : NULL;
        if (CHECK_OK(ra__masks_build(&plan)))
            for (int r = 0; r < P; r++) {
                CHECK(ra__plan_pairs(&plan, r) == pairs_of(&plan, r));
                for (int b = 0; b < P; b++)
                    check_ranks(&plan, r, b, needed);
            }
        ra__masks_free(&plan);
    }
    ra_comm_destroy(comm);
}

int main(void) {
    RUN(rows);
    RUN(far_numbers);
    RUN(no_slices);
    RUN(several_ways);
    RUN(aligned);
    RUN(many_slices);
    RUN(unions);
    RUN(ranks);
    return check_result();
}
