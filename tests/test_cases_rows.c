/* Cases of group A: rows that see nothing, sets that are empty, NaN, infinities, logits far out. Numbers as in docs/cases.md. */
#include "cases.h"

/* ---- case 1: a row that sees no key ---- */

static bool all_but_row_2(const ra_problem *p, int64_t b, int64_t i, int64_t j) {
    (void)p, (void)b, (void)j;
    return i != 2;
}

/* By segments, by a bias of -inf, by slices; whatever the empty row's own tensors hold. */
static void case_001_empty_row(void) {
    static const int64_t slices[] = {0, 2, 0, 4, RA_SLICE_FULL, 3, 4, 0, 4, RA_SLICE_FULL};
    for (int way = 0; way < 3; way++)
        for (int t = 0; t < 3; t++)
            for (int garbage = 0; garbage < 2; garbage++) {
                struct whole w = problem(4, 4, 2, 1, 3, 2);
                w.p.dtype = (ra_dtype)t;
                if (way == 1)
                    w.bias_b = w.bias_h = 1, w.bias_q = 4;
                if (way == 2)
                    w.p.mask.slices = slices, w.p.mask.slice_count = 2;
                whole_make(&w, way == 0 ? 4 : 0);
                family_u(&w);
                if (way == 0)
                    w.q_ids[2] = 9;
                for (int n = 0; way == 1 && n < 16; n++)
                    w.bias[n] = n / 4 == 2 ? -INFINITY : 0;
                for (int n = 0; garbage && n < 6; n++)
                    put_value(w.q, w.p.dtype, 2 * 6 + n, NAN);
                for (int n = 0; garbage && n < 4; n++)
                    put_value(w.dout, w.p.dtype, 2 * 4 + n, INFINITY);
                for (int h = 0; garbage && h < 2; h++)
                    w.dlse[h * 4 + 2] = NAN;
                EVERYWHERE(&w) {
                    CHECK_OK(whole_run(&w));
                    if (garbage) /* the closed form reads q */
                        for (int n = 0; n < 6; n++)
                            put_value(w.q, w.p.dtype, 2 * 6 + n, 0);
                    check_uniform(&w, all_but_row_2, "empty row");
                    for (int n = 0; garbage && n < 6; n++)
                        put_value(w.q, w.p.dtype, 2 * 6 + n, NAN);
                }
                whole_free(&w);
            }
}

/* ---- case 2: left padding in every way in which it can be said ---- */

static bool after_16(const ra_problem *p, int64_t b, int64_t i, int64_t j) {
    (void)p, (void)b;
    return j >= 16 && j <= i;
}

static void case_002_left_padding(void) {
    static const int64_t slices[] = {0, 64, 16, 64, RA_SLICE_CAUSAL};
    static const int32_t cu_q[] = {0, 16, 16, 64}, cu_k[] = {0, 0, 16, 64}; /* queries without keys, keys without queries, the rest */
    enum { SEGMENTS, BIAS, SLICES, CAUSAL_SLICE, PACKED, WAYS };
    for (int place = 0; place < 12; place++) {
        struct results first = {.n = {0}};
        for (int way = 0; way < WAYS; way++) {
            struct whole w = problem(64, 64, 1, 1, 8, 2);
            w.p.mask.causal = way != CAUSAL_SLICE;
            if (way == BIAS)
                w.bias_b = w.bias_h = w.bias_q = 1;
            if (way == SLICES || way == CAUSAL_SLICE)
                w.p.mask.slices = slices, w.p.mask.slice_count = 1;
            if (way == PACKED) {
                w.p.mask.cu_seqlens_q = cu_q, w.p.mask.cu_seqlens_kv = cu_k, w.p.mask.sequences = 3;
                w.p.mask.align = RA_ALIGN_TOP_LEFT;
            }
            random_state = 7;
            whole_make(&w, way == SEGMENTS ? 64 : 0);
            random_state = 11;
            for (int n = 0; n < 64 * 8; n++) /* the same q, whatever else was drawn */
                put_value(w.q, RA_F32, n, normal());
            family_u(&w);
            for (int i = 0; i < 64; i++) {
                if (way == SEGMENTS)
                    w.kv_ids[i] = i < 16;
                if (way == BIAS)
                    w.bias[i] = i < 16 ? -INFINITY : 0;
            }
            next_place(&w, place);
            CHECK_OK(whole_run(&w));
            check_uniform(&w, after_16, "left padding");
            if (way == 0)
                first = results_of(&w);
            else /* dq is 0; dk may be summed over other tiles where documents cut them */
                same_bits(&first, &w, OUT | LSE | DQ | DV | (way == PACKED ? 0 : DK), "left padding");
            whole_free(&w);
        }
        results_free(&first);
    }
}

/* ---- masks by position, for the cases about what is seen and what is not ---- */

enum { N = 32, MASKS = 8 };
static const int32_t lens[] = {20}, offsets[] = {0, 9, 9, 23, 30};
static const int64_t slices[] = {0, 32, 0, 5, RA_SLICE_FULL, 10, 25, 3, 20, RA_SLICE_BOTH, 20, 32, 18, 30, RA_SLICE_CAUSAL};

static const char *use_mask(ra_mask *m, int kind) {
    static const char *const names[MASKS] = {"causal", "window", "prefix", "keep-first", "kv-lens", "packed", "slices", "right window"};
    m->causal = kind <= 3 || kind == 5;
    if (kind == 1 || kind == 3)
        m->window_left = 4;
    if (kind == 2)
        m->prefix = 7;
    if (kind == 3)
        m->keep_first = 2;
    if (kind == 4)
        m->kv_lens = lens;
    if (kind == 5)
        m->cu_seqlens_q = m->cu_seqlens_kv = offsets, m->sequences = 4;
    if (kind == 6)
        m->slices = slices, m->slice_count = 3;
    if (kind == 7)
        m->window_left = 2, m->window_right = 3;
    return names[kind];
}

/* Case 4: what is seen and is NaN shows in exactly the rows that see it; the others keep their bits. */
static void case_004_visible_nan(void) {
    for (int kind = 0; kind < MASKS; kind++)
        for (int64_t token = 0; token < N; token += 5) {
            struct whole w = problem(N, N, 2, 1, 6, 5);
            const char *name = use_mask(&w.p.mask, kind);
            whole_make(&w, 0);
            family_f(&w);
            for (int place = (int)token % 2; next_place(&w, place); place += 2) {
                CHECK_OK(whole_run(&w));
                struct results clean = results_of(&w);
                for (int which = 0; which < 3; which++) { /* an element of v, of k, of q */
                    float *x = which == 0   ? (float *)w.v + token * 5 + 3
                               : which == 1 ? (float *)w.k + token * 6 + 1
                                            : (float *)w.q + (token * 2 + 1) * 6 + 4;
                    const float kept = *x;
                    int64_t wrong = 0, reached = 0;
                    *x = NAN;
                    CHECK_OK(whole_run(&w));
                    for (int64_t i = 0; i < N; i++)
                        for (int64_t h = 0; h < 2; h++)
                            for (int64_t d = 0; d < 5; d++) {
                                const int64_t n = (i * 2 + h) * 5 + d;
                                bool hit = false;
                                for (int64_t j = 0; j < N; j++)
                                    hit |= oracle_sees(&w.p, NULL, 0, h, i, j) && (which == 2 ? i == token && h == 1 : j == token);
                                hit &= which != 0 || d == 3;
                                reached += hit;
                                wrong += hit ? !isnan(w.out[n]) : memcmp(&w.out[n], &clean.x[0][n], sizeof(float)) != 0;
                            }
                    *x = kept;
                    CHECK_MSG(wrong == 0, "%s: P %d layout %d: NaN in %c of token %lld: %lld elements are wrong, %lld should be NaN", name,
                              w.P, (int)w.p.layout, "vkq"[which], (long long)token, (long long)wrong, (long long)reached);
                }
                results_free(&clean);
            }
            whole_free(&w);
        }
}

/* Case 5: garbage where nobody looks changes no bit of anybody's results; its own gradients are 0. */
static void case_005_hidden_garbage(void) {
    static const float garbage[] = {NAN, INFINITY, -INFINITY, 1e30f};
    for (int kind = 0; kind < MASKS; kind++)
        for (int t = 0; t < 3; t++) {
            struct whole w = problem(N, N, 2, 1, 8, 8);
            const char *name = use_mask(&w.p.mask, kind);
            bool dead[N];
            w.p.dtype = (ra_dtype)t;
            if (kind < 4 || kind == 7) /* these hide no key from everybody: an upper bound on keys in addition */
                w.p.mask.kv_lens = lens;
            whole_make(&w, 0);
            family_u(&w);
            for (int64_t j = 0; j < N; j++) {
                dead[j] = true;
                for (int64_t i = 0; i < N; i++)
                    dead[j] &= !oracle_sees(&w.p, NULL, 0, 0, i, j);
            }
            for (int place = t; next_place(&w, place); place += 2) {
                CHECK_OK(whole_run(&w));
                struct results clean = results_of(&w);
                for (int g = 0; g < COUNT(garbage); g++) {
                    int64_t dirty = 0, alive = 0;
                    for (int64_t n = 0; n < N * 8; n++)
                        if (dead[n / 8]) {
                            put_value(w.k, w.p.dtype, n, garbage[g]);
                            put_value(w.v, w.p.dtype, n, garbage[g]);
                            dirty++;
                        }
                    poison_results(&w);
                    CHECK_OK(whole_run(&w));
                    CHECK(dirty > 0);
                    same_bits(&clean, &w, FIVE, name);
                    for (int64_t n = 0; n < N * 8; n++)
                        alive += dead[n / 8] && (w.dk[n] != 0 || w.dv[n] != 0);
                    CHECK_MSG(alive == 0, "%s: hidden keys have %lld gradients", name, (long long)alive);
                }
                family_u(&w);
                results_free(&clean);
            }
            whole_free(&w);
        }
}

/* Case 6: three parts of which one, two or none is empty for a row, in every order of arrival, garbage in the empty ones. */
static void case_006_empty_parts(void) {
    for (int visible = 0; visible < 8; visible++)
        for (int order = 0; order < 3; order++) {
            struct whole w = problem(9, 9, 1, 1, 4, 4);
            whole_make(&w, 3);
            family_u(&w);
            w.P = 3; /* every rank has a part of three keys; the three ranks meet them in three orders */
            for (int j = 0; j < 9; j++)
                w.kv_ids[j] = visible >> (j / 3) & 1;
            for (int i = 0; i < 9; i++)
                w.q_ids[i] = i / 3 == order ? 1 : 2; /* rank `order` asks */
            for (int n = 0; n < 9 * 4; n++)
                if (!(visible >> (n / 12) & 1)) {
                    put_value(w.k, RA_F32, n, NAN);
                    put_value(w.v, RA_F32, n, -INFINITY);
                }
            CHECK_OK(whole_run(&w));
            double sum = 0, count = 0;
            for (int j = 0; j < 9; j++)
                if (visible >> (j / 3) & 1)
                    sum += j, count++;
            for (int i = 0; i < 9; i++) {
                const bool asks = i / 3 == order && count > 0;
                CHECK(asks ? near(w.out[i * 4 + 1], sum / count, 1e-6, 1) && near(w.lse[i], log(count), 1e-6, 1)
                           : w.out[i * 4 + 1] == 0 && w.lse[i] == -INFINITY);
                CHECK(w.dq[i * 4] == 0 && w.dq[i * 4 + 3] == 0);
            }
            for (int n = 0; n < 9 * 4; n++)
                CHECK(visible >> (n / 12) & 1 ? near(w.dv[n], 3 / count, 1e-6, 1) : w.dv[n] == 0 && w.dk[n] == 0);
            whole_free(&w);
        }
}

/* Case 7: logits below any finite stand-in for -inf; masked rows are -inf exactly. */
static void case_007_very_low_logits(void) {
    static const double depth[] = {60000, 1e10, 3e37};
    for (int n = 0; n < 3; n++) {
        struct whole w = problem(4, 3, 1, 1, 1, 1);
        w.p.scale = 1;
        whole_make(&w, 1);
        for (int i = 0; i < 4; i++) {
            put_value(w.q, RA_F32, i, 1);
            w.q_ids[i] = i == 3; /* the last one sees nothing */
        }
        for (int j = 0; j < 3; j++) {
            put_value(w.k, RA_F32, j, -depth[n]);
            put_value(w.v, RA_F32, j, j + 1);
            w.kv_ids[j] = 0;
        }
        EVERYWHERE(&w) {
            CHECK_OK(whole_run(&w));
            for (int i = 0; i < 3; i++)
                CHECK_MSG(near(w.out[i], 2, 1e-5, 1) && near(w.lse[i], -depth[n] + log(3), 2e-7, 1), "P %d layout %d: out %g, lse %.9g",
                          w.P, (int)w.p.layout, w.out[i], w.lse[i]);
            CHECK(w.out[3] == 0 && w.lse[3] == -INFINITY && w.dq[3] == 0);
        }
        whole_free(&w);
    }
}

/* Case 8: visible keys at -20000, hidden ones at 0: the hidden ones stay hidden. */
static bool window_of_2(const ra_problem *p, int64_t b, int64_t i, int64_t j) {
    (void)p, (void)b;
    return j <= i && j >= i - 1;
}

static void case_008_hidden_keys_score_higher(void) {
    enum { S = 16 };
    struct whole w = problem(S, S, 1, 1, S, 2);
    w.p.scale = 1;
    w.p.mask.causal = 1;
    w.p.mask.window_left = 1;
    whole_make(&w, 0);
    family_u(&w);
    for (int i = 0; i < S; i++)
        for (int d = 0; d < S; d++) {
            put_value(w.q, RA_F32, i * S + d, i == d);
            put_value(w.k, RA_F32, i * S + d, window_of_2(&w.p, 0, d, i) ? -20000 : 0);
        }
    EVERYWHERE(&w) {
        CHECK_OK(whole_run(&w));
        for (int i = 0; i < S; i++)
            CHECK_MSG(near(w.out[2 * i], i ? i - 0.5 : 0, 1e-6, 1) && near(w.lse[i], -20000 + (i ? log(2) : 0), 1e-6, 1),
                      "P %d layout %d row %d: out %g, lse %g", w.P, (int)w.p.layout, i, w.out[2 * i], w.lse[i]);
        for (int j = 0; j < S; j++)
            CHECK(near(w.dv[2 * j], (j == 0 ? 1.5 : j == S - 1 ? 0.5 : 1), 1e-6, 1));
    }
    whole_free(&w);
}

/* Case 10: lse is the natural logarithm of n, -inf of none; halves joined by it are the whole. */
static void case_010_lse_of_n_keys(void) {
    static const int32_t counts[] = {0, 1, 2, 1000};
    for (int n = 0; n < 4; n++) {
        struct whole w = problem(3, 1000, 1, 1, 4, 1);
        w.p.mask.kv_lens = &counts[n];
        whole_make(&w, 0);
        family_u(&w);
        EVERYWHERE(&w) {
            CHECK_OK(whole_run(&w));
            for (int i = 0; i < 3; i++)
                CHECK_MSG(n ? near(w.lse[i], log(counts[n]), 1e-6, 1) && near(w.out[i], (counts[n] - 1) / 2.0, 1e-5, 1)
                            : w.lse[i] == -INFINITY && w.out[i] == 0,
                          "%d keys: lse %g, out %g", counts[n], w.lse[i], w.out[i]);
        }
        whole_free(&w);
    }
    static const int32_t first[] = {500};
    static const int64_t second[] = {0, 3, 500, 1000, RA_SLICE_FULL};
    struct results part[2];
    struct whole w = problem(3, 1000, 1, 1, 4, 1);
    whole_make(&w, 0);
    family_f(&w);
    w.P = 4;
    for (int half = 0; half < 2; half++) {
        w.p.mask.kv_lens = half ? NULL : first;
        w.p.mask.slices = half ? second : NULL;
        w.p.mask.slice_count = half;
        CHECK_OK(whole_run(&w));
        part[half] = results_of(&w);
    }
    w.p.mask.slices = NULL;
    w.p.mask.slice_count = 0;
    CHECK_OK(whole_run(&w));
    for (int i = 0; i < 3; i++) {
        const double a = part[0].x[1][i], b = part[1].x[1][i], lse = a + log1p(exp(b - a));
        CHECK(near(w.lse[i], lse, 1e-6, 1));
        CHECK(near(w.out[i], exp(a - lse) * part[0].x[0][i] + exp(b - lse) * part[1].x[0][i], 1e-6, 1));
    }
    results_free(&part[0]);
    results_free(&part[1]);
    whole_free(&w);
}

/* Case 11: one part's logits far above or below the other's. */
static void case_011_parts_far_apart(void) {
    static const double gaps[] = {200, -200, 1e4, -1e4};
    for (int n = 0; n < 4; n++) {
        struct whole w = problem(8, 8, 1, 1, 1, 2);
        w.p.scale = 1;
        whole_make(&w, 0);
        memset(w.dlse, 0, 8 * sizeof(float));
        for (int j = 0; j < 8; j++) {
            put_value(w.q, RA_F32, j, 1);
            put_value(w.k, RA_F32, j, j < 4 ? gaps[n] : 0);
        }
        EVERYWHERE(&w) {
            if (!CHECK_OK(whole_run(&w)))
                break;
            oracle_result o = whole_oracle(&w);
            const struct errors e = whole_errors(&w, &o);
            const double known = 4e-7 * fabs(gaps[n]); /* lse is fp32, so p is known to lse's rounding; dq cancels to it times k */
            CHECK_MSG(e.out < 1e-6 && e.lse < 1e-6 && e.dk < 1e-6 + known && e.dv < 1e-6 + known && e.dq < 1e-5 * fabs(gaps[n]),
                      "P %d layout %d gap %g: out %.2g lse %.2g dq %.2g dk %.2g dv %.2g", w.P, (int)w.p.layout, gaps[n], e.out, e.lse, e.dq,
                      e.dk, e.dv);
            oracle_result_free(&o);
            const int strong = gaps[n] > 0 ? 0 : 4;
            for (int d = 0; d < 2; d++) {
                double mean = 0;
                for (int j = strong; j < strong + 4; j++)
                    mean += ((float *)w.v)[2 * j + d] / 4.0;
                for (int i = 0; i < 8; i++)
                    CHECK(near(w.out[2 * i + d], mean, 1e-5, 0.1));
            }
            CHECK(near(w.lse[7], (gaps[n] > 0 ? gaps[n] : 0) + log(4), 1e-6, 1));
        }
        whole_free(&w);
    }
}

/* Case 13: q.k is beyond fp16, scale * q.k is not. Logits of 4096 are rounded to 2^-12, and so are logarithms of
 * probabilities: no more than that is lost, as both passes add along the head size in the same order, also for few queries. */
static void case_013_scale_before_overflow(void) {
    for (int variant = 0; variant < 6; variant++) {
        const int64_t S = variant < 3 ? 40 : 8;
        struct whole w = problem(S, S, 1, 1, 256, 1);
        w.p.dtype = (ra_dtype)(variant % 3);
        w.p.scale = 1.0 / 16;
        whole_make(&w, 0);
        family_u(&w);
        for (int64_t n = 0; n < S * 256; n++) {
            put_value(w.q, w.p.dtype, n, 16);
            put_value(w.k, w.p.dtype, n, 16);
        }
        EVERYWHERE(&w) {
            CHECK_OK(whole_run(&w));
            for (int i = 0; i < S; i++)
                CHECK_MSG(near(w.out[i], ((double)S - 1) / 2, 1e-3, 1) && near(w.lse[i], 4096 + log((double)S), 1e-5, 1) &&
                              near(w.dv[i], 1, 2e-3, 1) && fabs(w.dq[i * 256]) < 1e-2 * (double)S,
                          "P %d layout %d dtype %d: out %g lse %.9g dv %g dq %g", w.P, (int)w.p.layout, variant % 3, w.out[i], w.lse[i],
                          w.dv[i], w.dq[i * 256]);
        }
        whole_free(&w);
    }
}

/* Case 15's kind: one rank's tokens are all masked, as queries and as keys; the others do not notice. */
static void case_015_rank_without_tokens(void) {
    for (int layout = 0; layout < 3; layout++) {
        struct whole w = problem(32, 32, 2, 1, 6, 4);
        w.p.layout = (ra_layout)layout;
        w.p.mask.causal = 1;
        whole_make(&w, 32);
        for (int i = 0; i < 32; i++)
            for (int64_t t = 0; t < ra_shard_size(w.p.layout, 32, 4, 2); t++)
                if (ra_shard_position(w.p.layout, 32, 4, 2, t) == i)
                    w.q_ids[i] = -1, w.kv_ids[i] = -2;
        struct results one = {.n = {0}};
        for (w.P = 1; w.P <= 4; w.P += 3) {
            poison_results(&w);
            CHECK_OK(whole_run(&w));
            whole_check(&w, 1e-5, "rank without tokens");
            if (w.P == 1)
                one = results_of(&w);
            else
                same_values(&one, &w, 1e-5, "rank without tokens");
        }
        results_free(&one);
        whole_free(&w);
    }
}

int main(void) {
    RUN(case_001_empty_row);
    RUN(case_002_left_padding);
    RUN(case_004_visible_nan);
    RUN(case_005_hidden_garbage);
    RUN(case_006_empty_parts);
    RUN(case_007_very_low_logits);
    RUN(case_008_hidden_keys_score_higher);
    RUN(case_010_lse_of_n_keys);
    RUN(case_011_parts_far_apart);
    RUN(case_013_scale_before_overflow);
    RUN(case_015_rank_without_tokens);
    return check_result();
}
