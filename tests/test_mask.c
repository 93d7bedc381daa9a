/* The mask language against brute force: last visible keys, shrunken tiles, "full" claims, fills with bias, for tiles cut from every layout
 * with every kind of mask (cases 22, 2, 50). */
#include "block/mask.h"

#include "harness.h"
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

enum { MAX_T = 96, MAX_B = 2, MAX_H = 2, MAX_S = 400, LANES = 24 };

/* Queries of one rank, keys of another, and what every pair's answer is. */
struct scene {
    struct ra__mask_view view;
    struct ra__shard q, k;
    int64_t q_last[MAX_T], q_position[MAX_T], k_position[MAX_T];
    int32_t q_segment[MAX_B * MAX_T], k_segment[MAX_B * MAX_T];
    ra_tensor bias;
    void *bias_data;
    const char *kind;
};

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

/* causal: 0 none, else the block of the positional mask. */
static bool make_scene(struct scene *s, int64_t causal, bool segments, bool bias) {
    const int P = 1 + (int)below(4);
    const int64_t Sq = 1 + below(MAX_T * P - 1), Skv = 1 + below(MAX_T * P - 1), offset = below(5) ? below(Skv + Sq) - Sq : 0;
    const ra_layout layout = (ra_layout)below(3);
    memset(s, 0, sizeof *s);
    s->q = ra__layout_shard(layout, Sq, P, (int)below(P));
    s->k = ra__layout_shard(layout, Skv, P, (int)below(P));
    if (s->q.T == 0 || s->k.T == 0 || s->q.T > MAX_T || s->k.T > MAX_T)
        return false;
    ra__shard_positions(&s->q, s->q_position);
    ra__shard_positions(&s->k, s->k_position);
    for (int64_t t = 0; t < s->q.T; t++)
        s->q_last[t] = causal ? ra__mask_last_key(s->q_position[t], offset, causal) : INT64_MAX;
    s->view = (struct ra__mask_view){.q_last = s->q_last, .k_position = s->k_position, .Tq = s->q.T, .Tk = s->k.T};
    if (segments) {
        const int64_t kind = below(3), document = 1 + below(60);
        make_segments(s->q_segment, s->q_position, s->q.T, document, kind);
        make_segments(s->k_segment, s->k_position, s->k.T, document, below(8) ? kind : 2);
        s->view.q_segment = s->q_segment;
        s->view.k_segment = s->k_segment;
    }
    if (bias)
        make_bias(s, Skv);
    return true;
}

static void free_scene(struct scene *s) {
    free(s->bias_data);
}

/* By position and segments: what shrinking may use. */
static bool in_reach(const struct scene *s, int64_t b, int64_t q, int64_t k) {
    return s->k_position[k] <= s->q_last[q] && (!s->view.q_segment || s->q_segment[b * s->view.Tq + q] == s->k_segment[b * s->view.Tk + k]);
}

/* The additive value in units of log2, or -inf. */
static double value_of(const struct scene *s, int64_t b, int64_t h, int64_t q, int64_t k) {
    if (!in_reach(s, b, q, k))
        return -INFINITY;
    return s->view.bias ? oracle_load(&s->bias, b, q, h, s->k_position[k]) * 1.4426950408889634 : 0;
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
    CHECK_MSG(!full || (hidden == 0 && (first == end || !s->view.bias)), "a tile with %lld hidden pairs is said to be full",
              (long long)hidden);
    if (!s->view.q_segment && !s->view.bias) { /* positions alone: as small and as full as can be */
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

static void check_tiles(const struct scene *s) {
    for (int i = 0; i < 12; i++) {
        const int64_t h = below(MAX_H);
        struct ra__mask_tile before = random_tile(s, LANES, MAX_T), t = before;
        bool full = ra__mask_shrink_keys(&s->view, &t);
        check_shrunk(s, &before, &t, full, true);
        check_fill_by_key(s, &before, h);
        if (t.nk)
            check_fill_by_key(s, &t, h);
        t = before = random_tile(s, MAX_T, LANES);
        full = ra__mask_shrink_queries(&s->view, &t);
        check_shrunk(s, &before, &t, full, false);
        check_fill_by_query(s, &before, h);
        if (t.nq)
            check_fill_by_query(s, &t, h);
    }
}

static void random_tiles(void) {
    static struct scene s;
    const int trials = small() ? 100 : 1000;
    for (int kind = 0; kind < 16; kind++)
        for (int trial = 0; trial < trials; trial++) {
            const int64_t causal = (kind & 3) == 0 ? 0 : (kind & 3) == 1 ? 1 : 1 + below((kind & 3) == 2 ? 9 : 200);
            if (make_scene(&s, causal, kind & 4, kind & 8))
                check_tiles(&s);
            free_scene(&s);
        }
    CHECK(claims_full > trials && claims_empty > trials && claims_shrunk > trials);
}

static void empty_tiles(void) {
    static struct scene s;
    while (!make_scene(&s, 1, true, true))
        free_scene(&s);
    struct ra__mask_tile t = {0, 0, 0, 0, s.k.T};
    CHECK(ra__mask_shrink_keys(&s.view, &t) && t.nk == 0);
    t = (struct ra__mask_tile){0, 0, s.q.T, 0, 0};
    CHECK(ra__mask_shrink_queries(&s.view, &t) && t.nq == 0);
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
        s.q_last[i] = i == 19 ? INT64_MAX : i == 0 ? -5 : s.q_position[i];
    }
    s.q.T = s.k.T = 20;
    s.view = (struct ra__mask_view){.q_last = s.q_last, .k_position = s.k_position, .Tq = 20, .Tk = 20};
    for (int64_t q0 = 0; q0 < 20; q0++)
        for (int64_t k0 = 0; k0 < 20; k0++) {
            const struct ra__mask_tile before = {0, q0, 20 - q0, k0, 20 - k0};
            struct ra__mask_tile t = before;
            check_fill_by_key(&s, &t, 0);
            check_fill_by_query(&s, &t, 0);
            bool full = ra__mask_shrink_keys(&s.view, &t);
            check_shrunk(&s, &before, &t, full, true);
            t = before;
            full = ra__mask_shrink_queries(&s.view, &t);
            check_shrunk(&s, &before, &t, full, false);
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
