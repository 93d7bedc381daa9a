/* The mask language against brute force: last visible keys, shrunken tiles, "full" claims, fills with bias, for tiles cut from every layout
 * with every kind of mask (cases 22, 2, 50). */
#include "block/mask.h"

#include "base/memory.h"
#include "harness.h"
#include "plan/spans.h"
#include "ring/layout.h"

static int64_t below(int64_t n) {
    return (int64_t)(uniform() * (double)n);
}

static bool small(void) {
    return getenv("RA_TEST_SMALL") != NULL;
}

/* floor(a / N) by search. */
static int64_t floor_of(int64_t a, int64_t N) {
    int64_t group = 0;
    while (group * N > a)
        group--;
    while ((group + 1) * N <= a)
        group++;
    return group;
}

static void last_keys(void) {
    for (int64_t N = 1; N <= 9; N++)
        for (int64_t offset = -30; offset <= 30; offset++)
            for (int64_t i = 0; i < 40; i++) {
                int64_t last = -100; /* the largest j with floor(j / N) <= floor((i + offset) / N), negative ones too */
                for (int64_t j = -60; j < 100; j++)
                    if (floor_of(j, N) <= floor_of(i + offset, N))
                        last = j;
                CHECK_MSG(ra__mask_last_key(i, offset, N) == last, "query %lld, offset %lld, blocks of %lld: %lld, expected %lld",
                          (long long)i, (long long)offset, (long long)N, (long long)ra__mask_last_key(i, offset, N), (long long)last);
            }
}

static void last_keys_far_out(void) {
    const int64_t far = INT64_MAX / 4;
    CHECK_EQ_INT(ra__mask_last_key(far, far, 1), 2 * far);
    CHECK_EQ_INT(ra__mask_last_key(0, -far, 1), -far);
    CHECK(ra__mask_last_key(far, far, INT64_MAX) >= 2 * far);
    CHECK(ra__mask_last_key(far, far, INT64_MAX / 2) >= 2 * far);
    CHECK_EQ_INT(ra__mask_last_key(0, -far, INT64_MAX), -1);
    CHECK_EQ_INT(ra__mask_last_key(0, -1, far), -1);
}

/* ---- random views ---- */

enum { MAX_T = 96, MAX_B = 2, MAX_H = 2, MAX_S = 400, MAX_SPANS = 5, LANES = 24 };

/* Queries of one rank, keys of another, and what every pair's answer is. */
struct scene {
    struct ra__mask_view view;
    struct ra__shard q, k;
    struct ra__mask_rule rule;
    struct ra__slice slice[MAX_SPANS - 1];
    int64_t reach[MAX_SPANS - 1];
    int32_t cu[2][4];
    int64_t first[MAX_T + 1], edge[MAX_T * MAX_SPANS];
    struct ra__span span[MAX_T * 2 * MAX_SPANS];
    int64_t q_position[MAX_T], k_position[MAX_T], q_aligned[MAX_T], kv_lens[MAX_B];
    int32_t q_segment[MAX_B * MAX_T], k_segment[MAX_B * MAX_T];
    float slopes[MAX_H];
    ra_tensor bias;
    void *bias_data;
    bool tight; /* one span from 0 on in every row: nothing may be missed */
};

/* What decides by position: nothing, causal with blocks, windows, all of it, slices, packed sequences. */
enum kind { PLAIN, CAUSAL, BLOCKS, WINDOW, MIXED, SLICES, PACKED, KINDS };

static void random_cut(int32_t *cu, int64_t S) {
    const int32_t a = (int32_t)below(S + 1), b = (int32_t)below(S + 1);
    cu[0] = 0;
    cu[1] = a < b ? a : b;
    cu[2] = a < b ? b : a;
    cu[3] = below(2) ? (int32_t)S : cu[2];
}

static void make_rule(struct scene *s, enum kind kind, int64_t Sq, int64_t Skv) {
    struct ra__mask_rule *r = &s->rule;
    *r = (struct ra__mask_rule){.Sq = Sq, .Skv = Skv, .left = -1, .right = -1, .bottom_right = below(2)};
    if (kind == CAUSAL || (kind > WINDOW && below(2)))
        r->block = 1;
    if (kind == BLOCKS)
        r->block = 1 + below(below(2) ? 9 : 200);
    if (kind == WINDOW || (kind > WINDOW && below(2))) {
        r->left = below(3) ? below(80) : -1;
        r->right = below(2) ? below(80) : -1;
    }
    if (kind == MIXED || kind == PACKED) {
        r->prefix = below(2) * below(100);
        r->keep_first = below(2) * below(50);
    }
    if (kind == SLICES) {
        r->slices = 1 + below(MAX_SPANS - 1);
        for (int64_t i = 0; i < r->slices; i++) {
            struct ra__slice *x = &s->slice[i];
            x->q0 = below(2) ? 0 : below(Sq + 1);
            x->q1 = below(2) ? Sq : x->q0 + below(Sq - x->q0 + 1);
            x->k0 = below(Skv + 1);
            x->k1 = x->k0 + below(Skv - x->k0 + 1);
            x->type = below(4);
        }
        ra__slices_sort(s->slice, s->reach, r->slices);
        r->slice = s->slice;
        r->slice_reach = s->reach;
    }
    if (kind == PACKED) {
        random_cut(s->cu[0], Sq);
        random_cut(s->cu[1], Skv);
        r->cu_q = s->cu[0];
        r->cu_k = s->cu[1];
        r->sequences = 3;
    }
    ra__mask_rule_finish(r);
}

static void make_spans(struct scene *s) {
    const ra_allocator memory = ra__allocator_or_default(NULL);
    struct ra__span_set all = {.memory = &memory};
    s->first[0] = 0;
    for (int64_t t = 0; t < s->q.T; t++) {
        const int64_t n = ra__mask_row(&s->rule, s->q_position[t], s->span + s->first[t]);
        s->first[t + 1] = s->first[t] + n;
        CHECK(n <= MAX_SPANS && ra__span_set_add(&all, s->span + s->first[t], n));
        s->q_aligned[t] = ra__mask_aligned(&s->rule, s->q_position[t]);
    }
    ra__span_set_finish(&all);
    for (int64_t i = 0; i + 1 < all.count; i++)
        s->edge[i] = all.span[i + 1].begin;
    s->view.q = (struct ra__spans){s->first, s->span, s->edge, all.count > 1 ? all.count - 1 : 0};
    ra__span_set_free(&all);
}

static void make_segments(int32_t *ids, const int64_t *position, int64_t T, int64_t document, int64_t kind) {
    for (int64_t b = 0; b < MAX_B; b++)
        for (int64_t t = 0; t < T; t++)
            ids[b * T + t] = (int32_t)(kind == 0 ? (position[t] + 5 * b) / document : kind == 1 ? below(4) - 2 : 7);
}

static void make_bias(struct scene *s, int64_t Skv) {
    static const float special[] = {3.4e38f, -3.4e38f, 0, -0.0f, 1e-40f};
    const int64_t nb = 1 + below(2), nh = 1 + below(2), nt = below(2) ? s->q.T : 1, n = nb * nh * nt * Skv;
    const ra_dtype t = (ra_dtype)below(3);
    s->bias_data = malloc((size_t)(n + 1) * 4);
    for (int64_t i = 0; i < n; i++)
        put_value(s->bias_data, t, i, below(4) == 0 ? -INFINITY : below(9) == 0 ? special[below(5)] : normal());
    s->bias = ra_tensor_bias(s->bias_data, t, nb, nh, nt, Skv);
    s->view.bias = &s->bias;
}

static bool make_scene(struct scene *s, enum kind kind, bool segments, bool lens, bool bias, bool alibi) {
    const int P = 1 + (int)below(4);
    const int64_t Sq = 1 + below(MAX_T * P - 1), Skv = 1 + below(MAX_T * P - 1);
    const ra_layout layout = (ra_layout)below(3);
    memset(s, 0, sizeof *s);
    s->q = ra__layout_shard(layout, Sq, P, (int)below(P));
    s->k = ra__layout_shard(layout, Skv, P, (int)below(P));
    if (s->q.T == 0 || s->k.T == 0 || s->q.T > MAX_T || s->k.T > MAX_T)
        return false;
    ra__shard_positions(&s->q, s->q_position);
    ra__shard_positions(&s->k, s->k_position);
    make_rule(s, kind, Sq, Skv);
    s->tight = kind <= BLOCKS;
    s->view = (struct ra__mask_view){.k_position = s->k_position, .Tq = s->q.T, .Tk = s->k.T};
    make_spans(s);
    if (segments) {
        const int64_t ids = below(3), document = 1 + below(60);
        make_segments(s->q_segment, s->q_position, s->q.T, document, ids);
        make_segments(s->k_segment, s->k_position, s->k.T, document, below(8) ? ids : 2);
        s->view.q_segment = s->q_segment;
        s->view.k_segment = s->k_segment;
    }
    for (int64_t b = 0; b < MAX_B && lens; b++) {
        s->kv_lens[b] = below(Skv + 2);
        s->view.kv_lens = s->kv_lens;
    }
    if (bias)
        make_bias(s, Skv);
    for (int64_t h = 0; h < MAX_H && alibi; h++) {
        s->slopes[h] = (float)(normal() * 2);
        s->view.alibi = s->slopes;
        s->view.q_aligned = s->q_aligned;
    }
    return true;
}

static void free_scene(struct scene *s) {
    free(s->bias_data);
}

/* By position, length and segments: what shrinking may use. */
static bool in_reach(const struct scene *s, int64_t b, int64_t q, int64_t k) {
    bool seen = false;
    for (int64_t i = s->view.q.first[q]; i < s->view.q.first[q + 1]; i++)
        seen |= s->k_position[k] >= s->view.q.span[i].begin && s->k_position[k] < s->view.q.span[i].end;
    return seen && (!s->view.kv_lens || s->k_position[k] < s->view.kv_lens[b]) &&
           (!s->view.q_segment || s->q_segment[b * s->view.Tq + q] == s->k_segment[b * s->view.Tk + k]);
}

/* The additive value in units of log2, or -inf. */
static double value_of(const struct scene *s, int64_t b, int64_t h, int64_t q, int64_t k) {
    if (!in_reach(s, b, q, k))
        return -INFINITY;
    double x = s->view.bias ? oracle_load(&s->bias, b, q, h, s->k_position[k]) : 0;
    if (s->view.alibi)
        x -= (double)s->slopes[h] * fabs((double)(s->q_aligned[q] - s->k_position[k]));
    return x * 1.4426950408889634;
}

/* A tile inside one stretch of queries and one of keys. */
static struct ra__mask_tile random_tile(const struct scene *s, int64_t max_q, int64_t max_k) {
    const struct ra__stretch q = s->q.stretches.part[below(s->q.stretches.count)], k = s->k.stretches.part[below(s->k.stretches.count)];
    struct ra__mask_tile t = {.b = below(MAX_B)};
    t.nq = 1 + below(q.n < max_q ? q.n : max_q);
    t.nk = 1 + below(k.n < max_k ? k.n : max_k);
    t.q0 = q.t0 + below(q.n - t.nq + 1);
    t.k0 = k.t0 + below(k.n - t.nk + 1);
    return t;
}

static int64_t claims_full, claims_empty, claims_shrunk; /* so that the test can see that it tests */

/* Nothing visible lies outside of `now`, which lies inside of `before`; full means all. */
static void check_shrunk(const struct scene *s, const struct ra__mask_tile *before, const struct ra__mask_tile *now, bool full,
                         bool by_keys) {
    const int64_t low = by_keys ? before->k0 : before->q0, high = low + (by_keys ? before->nk : before->nq);
    const int64_t first = by_keys ? now->k0 : now->q0, end = first + (by_keys ? now->nk : now->nq);
    CHECK(now->b == before->b &&
          (by_keys ? now->q0 == before->q0 && now->nq == before->nq : now->k0 == before->k0 && now->nk == before->nk));
    CHECK(first == end || (first >= low && end <= high));
    int64_t visible = 0, outside = 0, hidden = 0;
    for (int64_t q = before->q0; q < before->q0 + before->nq; q++)
        for (int64_t k = before->k0; k < before->k0 + before->nk; k++) {
            const int64_t i = by_keys ? k : q;
            const bool inside = i >= first && i < end, reach = in_reach(s, before->b, q, k);
            visible += reach;
            outside += reach && !inside;
            hidden += !reach && inside;
        }
    CHECK_MSG(outside == 0, "%lld visible pairs lie outside the shrunken tile", (long long)outside);
    CHECK_MSG(!full || (hidden == 0 && (first == end || !(s->view.bias || s->view.alibi))),
              "a tile with %lld hidden pairs is said to be full", (long long)hidden);
    if (s->tight && !s->view.q_segment && !s->view.bias && !s->view.alibi) { /* as small and as full as can be */
        CHECK(visible > 0 || first == end);
        CHECK(full == (hidden == 0));
    }
    claims_full += full && first < end;
    claims_empty += first == end;
    claims_shrunk += end - first < high - low && first < end;
}

/* A finite bias stays finite, even where its multiple does not fit, or it would hide its key. */
static bool agrees(float x, double expected) {
    if (isinf(expected))
        return x == expected;
    return isfinite(x) && (fabs(x - expected) <= 6e-8 * fabs(expected) + 1e-44 || fabs(expected) > 3.4028234e38);
}

static void check_fill_by_key(const struct scene *s, const struct ra__mask_tile *t, int64_t h) {
    float out[LANES * MAX_T + 8];
    memset(out, 0xa5, sizeof out);
    int64_t visible = 0;
    const int64_t got = ra__mask_fill_by_key(&s->view, t, h, LANES, out);
    for (int64_t k = 0; k < t->nk; k++)
        for (int64_t lane = 0; lane < LANES; lane++) {
            const double expected = lane < t->nq ? value_of(s, t->b, h, t->q0 + lane, t->k0 + k) : 0;
            const float x = out[k * LANES + lane];
            visible += lane < t->nq && expected != -INFINITY;
            CHECK_MSG(agrees(x, expected), "mask [key %lld][lane %lld] is %g, expected %g", (long long)k, (long long)lane, x, expected);
        }
    CHECK_EQ_INT(got, visible);
    CHECK(ra__bits(out[t->nk * LANES]) == 0xa5a5a5a5u);
}

static void check_fill_by_query(const struct scene *s, const struct ra__mask_tile *t, int64_t h) {
    float out[LANES * MAX_T + 8];
    memset(out, 0xa5, sizeof out);
    int64_t visible = 0;
    const int64_t got = ra__mask_fill_by_query(&s->view, t, h, LANES, out);
    for (int64_t q = 0; q < t->nq; q++)
        for (int64_t lane = 0; lane < LANES; lane++) {
            const double expected = lane < t->nk ? value_of(s, t->b, h, t->q0 + q, t->k0 + lane) : -INFINITY;
            const float x = out[q * LANES + lane];
            visible += expected != -INFINITY;
            CHECK_MSG(agrees(x, expected), "mask [query %lld][lane %lld] is %g, expected %g", (long long)q, (long long)lane, x, expected);
        }
    CHECK_EQ_INT(got, visible);
    CHECK(ra__bits(out[t->nq * LANES]) == 0xa5a5a5a5u);
}

/* Tiles that are told at once to be empty are; first keys and last queries that are said to be clear are. */
static void check_sums(const struct scene *s, const struct ra__mask_tile *t, const struct ra__mask_queries *q,
                       const struct ra__mask_keys *k) {
    int64_t visible = 0, blind_key = t->nk, blind_query = t->nq;
    for (int64_t i = 0; i < t->nq; i++)
        for (int64_t j = 0; j < t->nk; j++) {
            const bool reach = in_reach(s, t->b, t->q0 + i, t->k0 + j);
            visible += reach;
            blind_key = !reach && j < blind_key ? j : blind_key;
            blind_query = !reach ? t->nq - 1 - i : blind_query; /* the last row that hides something */
        }
    CHECK(visible == 0 || ra__mask_meets(q, k));
    const int64_t keys = ra__mask_clear_keys(&s->view, q, t), queries = ra__mask_clear_queries(&s->view, t);
    CHECK(keys >= 0 && keys <= blind_key && queries >= 0 && queries <= blind_query);
    CHECK(!s->tight || s->view.q_segment || s->view.bias || s->view.alibi || (keys == blind_key && queries == blind_query));
}

static void check_by_keys(const struct scene *s, const struct ra__mask_tile *before, int64_t h) {
    struct ra__mask_tile t = *before;
    const struct ra__mask_queries q = ra__mask_sum_queries(&s->view, t.b, t.q0, t.nq);
    const struct ra__mask_keys k = ra__mask_sum_keys(&s->view, t.b, t.k0, t.nk);
    const bool full = ra__mask_shrink_keys(&s->view, &q, &k, &t);
    check_shrunk(s, before, &t, full, true);
    check_sums(s, before, &q, &k);
    check_fill_by_key(s, before, h);
    if (t.nk)
        check_fill_by_key(s, &t, h);
}

static void check_by_queries(const struct scene *s, const struct ra__mask_tile *before, int64_t h) {
    struct ra__mask_tile t = *before;
    const int64_t half = t.nq / 2; /* in two runs, joined */
    const struct ra__mask_queries a = ra__mask_sum_queries(&s->view, t.b, t.q0, half);
    const struct ra__mask_queries b = ra__mask_sum_queries(&s->view, t.b, t.q0 + half, t.nq - half);
    const struct ra__mask_queries q = ra__mask_join_queries(&a, &b);
    const struct ra__mask_keys k = ra__mask_sum_keys(&s->view, t.b, t.k0, t.nk);
    const bool full = ra__mask_shrink_queries(&s->view, &q, &k, &t);
    check_shrunk(s, before, &t, full, false);
    check_sums(s, before, &q, &k);
    check_fill_by_query(s, before, h);
    if (t.nq)
        check_fill_by_query(s, &t, h);
}

/* An edge parts what has nothing in common. */
static void check_edges(const struct scene *s) {
    for (int64_t b = 0; b < MAX_B; b++) {
        for (int64_t t = 1; t < s->q.T; t++)
            for (int64_t k = 0; k < s->k.T && ra__mask_edge_of_queries(&s->view, b, t); k++)
                CHECK(!in_reach(s, b, t, k) || !in_reach(s, b, t - 1, k));
        for (int64_t t = 1; t < s->k.T; t++)
            for (int64_t q = 0; q < s->q.T && ra__mask_edge_of_keys(&s->view, b, t); q++)
                CHECK(!in_reach(s, b, q, t) || !in_reach(s, b, q, t - 1) || s->k_position[t] - s->k_position[t - 1] > 1);
    }
}

static void check_tiles(const struct scene *s) {
    for (int i = 0; i < 12; i++) {
        const int64_t h = below(MAX_H);
        struct ra__mask_tile before = random_tile(s, LANES, MAX_T);
        check_by_keys(s, &before, h);
        before = random_tile(s, MAX_T, LANES);
        check_by_queries(s, &before, h);
    }
}

static void random_tiles(void) {
    static struct scene s;
    const int trials = small() ? 15 : 150;
    for (int kind = 0; kind < KINDS; kind++)
        for (int with = 0; with < 16; with++)
            for (int trial = 0; trial < trials; trial++) {
                if (make_scene(&s, (enum kind)kind, with & 1, with & 2, with & 4, with & 8)) {
                    check_tiles(&s);
                    check_edges(&s);
                }
                free_scene(&s);
            }
    CHECK(claims_full > 10 * trials && claims_empty > 10 * trials && claims_shrunk > 10 * trials);
}

static void empty_tiles(void) {
    static struct scene s;
    while (!make_scene(&s, CAUSAL, true, false, true, false))
        free_scene(&s);
    const struct ra__mask_queries q = ra__mask_sum_queries(&s.view, 0, 0, s.q.T), no_queries = ra__mask_sum_queries(&s.view, 0, 0, 0);
    const struct ra__mask_keys k = ra__mask_sum_keys(&s.view, 0, 0, s.k.T);
    struct ra__mask_tile t = {0, 0, 0, 0, s.k.T};
    CHECK(ra__mask_shrink_keys(&s.view, &no_queries, &k, &t) && t.nk == 0);
    t = (struct ra__mask_tile){0, 0, s.q.T, 0, 0};
    CHECK(ra__mask_shrink_queries(&s.view, &q, &k, &t) && t.nq == 0);
    CHECK(!ra__mask_meets(&no_queries, &k));
    free_scene(&s);
}

/* Positions beyond 32 bits, and a stride that spans nearly all of them inside one tile. */
static void far_positions(void) {
    static struct scene s;
    const int64_t base = (int64_t)1 << 40;
    memset(&s, 0, sizeof s);
    for (int i = 0; i < 20; i++) {
        s.k_position[i] = base + i * (int64_t)100000000;
        s.q_position[i] = base + i * (int64_t)300000000 - 900000000;
        s.first[i] = i ? i - 1 : 0; /* the first sees nothing */
        if (i)
            s.span[i - 1] = (struct ra__span){i > 9 ? 0 : base + i * (int64_t)50000000, i == 19 ? INT64_MAX : s.q_position[i] + 1};
    }
    s.first[20] = 19;
    s.q.T = s.k.T = 20;
    s.view = (struct ra__mask_view){.q = {.first = s.first, .span = s.span}, .k_position = s.k_position, .Tq = 20, .Tk = 20};
    for (int64_t q0 = 0; q0 < 20; q0++)
        for (int64_t k0 = 0; k0 < 20; k0++) {
            const struct ra__mask_tile before = {0, q0, 20 - q0, k0, 20 - k0};
            check_by_keys(&s, &before, 0);
            check_by_queries(&s, &before, 0);
        }
}

int main(void) {
    RUN(last_keys);
    RUN(last_keys_far_out);
    RUN(random_tiles);
    RUN(empty_tiles);
    RUN(far_positions);
    return check_result();
}
