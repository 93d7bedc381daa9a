/* Cases of groups E and F: ALiBi, sinks, softcap, bias, temperature, dropout, and that a run can be repeated. Numbers as in docs/cases.md.
 * What the engine does not do yet is skipped, with the reason that it gives. */
#include <pthread.h>

#include "cases.h"

/* ---- closed forms with weights: k = 0, so logits are what is added to them ---- */

typedef double logit_fn(const ra_problem *p, int64_t h, int64_t i, int64_t j); /* -inf: hidden */

/* v[j] = j, dout = 1, with a sink per head (NULL: none). */
static void check_weights(const struct whole *w, logit_fn *logit, const float *sinks, const char *name) {
    const ra_problem *p = &w->p;
    double *dv = malloc((size_t)p->Skv * sizeof *dv), *dsinks = calloc((size_t)p->H, sizeof *dsinks);
    int64_t wrong_out = 0, wrong_lse = 0, wrong_dq = 0, wrong_dv = 0, wrong_dsinks = 0;
    for (int64_t g = 0; g < p->G; g++) {
        memset(dv, 0, (size_t)p->Skv * sizeof *dv);
        for (int64_t h = g * p->H / p->G; h < (g + 1) * p->H / p->G; h++)
            for (int64_t i = 0; i < p->Sq; i++) {
                double sum = sinks ? exp(sinks[h]) : 0, out = 0;
                for (int64_t j = 0; j < p->Skv; j++) {
                    sum += exp(logit(p, h, i, j));
                    out += exp(logit(p, h, i, j)) * (double)j;
                }
                out = sum > 0 ? out / sum : 0;
                for (int64_t j = 0; j < p->Skv && sum > 0; j++)
                    dv[j] += exp(logit(p, h, i, j)) / sum;
                if (sinks && sum > 0)
                    dsinks[h] -= exp(sinks[h]) / sum * out * (double)p->Dv;
                wrong_lse += sum > 0 ? !near(w->lse[h * p->Sq + i], log(sum), 1e-5, 1) : w->lse[h * p->Sq + i] != -INFINITY;
                for (int64_t d = 0; d < p->Dv; d++)
                    wrong_out += !near(w->out[(i * p->H + h) * p->Dv + d], out, 1e-5, 1);
                for (int64_t d = 0; d < p->D; d++)
                    wrong_dq += w->dq[(i * p->H + h) * p->D + d] != 0;
            }
        for (int64_t j = 0; j < p->Skv; j++)
            for (int64_t d = 0; d < p->Dv; d++)
                wrong_dv += !near(w->dv[(j * p->G + g) * p->Dv + d], dv[j], 1e-5, 1);
    }
    for (int64_t h = 0; w->dsinks && h < p->H; h++)
        wrong_dsinks += !near(w->dsinks[h], dsinks[h], 1e-5, 1);
    free(dv);
    free(dsinks);
    CHECK_MSG(wrong_out + wrong_lse + wrong_dq + wrong_dv + wrong_dsinks == 0,
              "%s: P %d layout %d: wrong are %lld of out, %lld of lse, %lld of dq, %lld of dv, %lld of dsinks", name, w->P,
              (int)w->p.layout, (long long)wrong_out, (long long)wrong_lse, (long long)wrong_dq, (long long)wrong_dv,
              (long long)wrong_dsinks);
}

/* ---- ALiBi (case 62) ---- */

static double alibi(const ra_problem *p, int64_t h, int64_t i, int64_t j) {
    const int64_t behind = i + (p->mask.align == RA_ALIGN_BOTTOM_RIGHT ? p->Skv - p->Sq : 0) - j;
    return p->mask.causal && behind < 0 ? -INFINITY : -(double)p->alibi_slopes[h] * fabs((double)behind);
}

static double alibi_packed(const ra_problem *p, int64_t h, int64_t i, int64_t j) {
    const int32_t *cu = p->mask.cu_seqlens_q;
    int64_t s = 0, t = 0;
    while (cu[s + 1] <= i)
        s++;
    while (cu[t + 1] <= j)
        t++;
    return s == t && j <= i ? -(double)p->alibi_slopes[h] * (double)(i - j) : -INFINITY;
}

/* Distances are those in the whole sequence, or in the packed one, never in the shard. */
static void case_062_alibi(void) {
    static const int32_t offsets[] = {0, 5, 6, 30, 41};
    float slopes[4];
    CHECK_OK(ra_alibi_slopes(4, slopes));
    for (int kind = 0; kind < 6; kind++) { /* causal, not; square, wide from both corners; packed */
        struct whole w = problem(kind == 2 || kind == 3 ? 9 : 41, 41, 4, 2, 4, 2);
        w.p.mask.causal = kind != 1;
        w.p.mask.align = kind == 2 ? RA_ALIGN_BOTTOM_RIGHT : RA_ALIGN_TOP_LEFT;
        w.p.alibi_slopes = slopes;
        if (kind == 4)
            w.p.mask.cu_seqlens_q = w.p.mask.cu_seqlens_kv = offsets, w.p.mask.sequences = 4;
        whole_make(&w, 0);
        if (kind == 5) { /* and with everything random */
            exact_everywhere(&w, 1e-5, "ALiBi, random");
        } else {
            family_u(&w);
            EVERYWHERE(&w) {
                if (!run_or_refused(&w, "ALiBi"))
                    break;
                check_weights(&w, kind == 4 ? alibi_packed : alibi, NULL, "ALiBi");
            }
        }
        whole_free(&w);
    }
}

/* ---- sinks (case 63) ---- */

static double plain_causal(const ra_problem *p, int64_t h, int64_t i, int64_t j) {
    (void)h;
    return (p->mask.causal && j > i) || (p->mask.kv_lens && j >= p->mask.kv_lens[0]) ? -INFINITY : 0;
}

static void case_063_sinks(void) {
    /* the case itself: 7 keys and a sink that weighs 3 */
    struct whole w = problem(5, 7, 1, 1, 3, 2);
    whole_make(&w, 0);
    family_u(&w);
    for (int n = 0; n < 7 * 2; n++)
        put_value(w.v, RA_F32, n, 1);
    w.sinks = filled(1, RA_F32, 0);
    w.sinks[0] = logf(3);
    whole_extras(&w, DSINKS);
    EVERYWHERE(&w) {
        if (!run_or_refused(&w, "sinks"))
            break;
        for (int i = 0; i < 5; i++)
            CHECK_MSG(near(w.out[2 * i], 0.7, 1e-6, 0.1) && near(w.lse[i], log(10), 1e-6, 1), "P %d layout %d: out %g lse %g", w.P,
                      (int)w.p.layout, w.out[2 * i], w.lse[i]);
        CHECK_MSG(near(w.dsinks[0], 5 * -0.3 * 0.7 * 2, 1e-5, 1), "P %d layout %d: dsink %g", w.P, (int)w.p.layout, w.dsinks[0]);
    }
    whole_free(&w);
    /* several heads; a sink that weighs nothing, one that weighs almost everything; rows that see nothing but it */
    static const float sinks[] = {0.5f, -INFINITY, 30, -80};
    static const int32_t none[] = {0};
    for (int kind = 0; kind < 3; kind++) {
        struct whole x = problem(23, 23, 4, 2, 4, 3);
        x.p.mask.causal = kind == 1;
        x.p.mask.kv_lens = kind == 2 ? none : NULL;
        whole_make(&x, 0);
        family_u(&x);
        x.sinks = memcpy(malloc(sizeof sinks), sinks, sizeof sinks);
        whole_extras(&x, DSINKS);
        EVERYWHERE(&x) {
            if (!run_or_refused(&x, "sinks"))
                break;
            check_weights(&x, plain_causal, sinks, "sinks");
            for (int64_t h = 0; h < 4 && kind == 2; h++)
                CHECK(x.lse[h * 23 + 5] == sinks[h] && x.out[(5 * 4 + h) * 3] == 0 && x.dsinks[h] == 0);
        }
        whole_free(&x);
    }
}

/* ---- softcap (cases 64, 66) ---- */

static bool causal(const ra_problem *p, int64_t b, int64_t i, int64_t j) {
    (void)p, (void)b;
    return j <= i;
}

static void case_064_softcap(void) {
    for (int t = 0; t < 3; t++)
        for (int way = 0; way < 2; way++) { /* with way 1 a bias, which is added after the cap */
            struct whole w = problem(3, 2, 1, 1, 1, 1);
            w.p.dtype = (ra_dtype)t;
            w.p.scale = 1;
            w.p.softcap = 2;
            if (way)
                w.bias_b = w.bias_h = w.bias_q = 1;
            whole_make(&w, 0);
            for (int n = 0; n < 3; n++)
                put_value(w.q, w.p.dtype, n, 100);
            for (int n = 0; n < 2; n++) {
                put_value(w.k, w.p.dtype, n, n || way ? 100 : -100);
                put_value(w.v, w.p.dtype, n, n);
                if (way)
                    w.bias[n] = n ? 3 : 0;
            }
            EVERYWHERE(&w) {
                if (!run_or_refused(&w, "softcap"))
                    break;
                for (int i = 0; i < 3; i++)
                    CHECK_MSG(near(w.out[i], 1 / (1 + exp(way ? -3 : -4)), bound_for(w.p.dtype, 1e-5), 1) &&
                                  near(w.lse[i], way ? 2 + log(1 + exp(3)) : log(exp(2) + exp(-2)), 1e-5, 1) &&
                                  w.dq[i] == 0, /* the curve is flat here */
                              "P %d layout %d dtype %d: out %g lse %g dq %g", w.P, (int)w.p.layout, t, w.out[i], w.lse[i], w.dq[i]);
            }
            whole_free(&w);
        }
    /* the cap comes before the mask: what is hidden is not brought back to -cap */
    struct whole u = problem(40, 40, 2, 1, 4, 2);
    u.p.mask.causal = 1;
    u.p.softcap = 1.5;
    uniform_everywhere(&u, 0, causal, "softcap under a mask");
    whole_free(&u);
    for (int t = 0; t < 3; t++) { /* where the tangent bends most, and where it hardly does */
        struct whole w = problem(70, 70, 4, 2, 16, 8);
        w.p.dtype = (ra_dtype)t;
        w.p.mask.causal = 1;
        w.p.softcap = t == 1 ? 50 : 1;
        w.p.scale = 0.7;
        whole_make(&w, 0);
        exact_everywhere(&w, t ? 1e-4 : 2e-5, "softcap, random");
        whole_free(&w);
    }
}

static void case_066_softcap_off(void) {
    struct whole w = problem(20, 20, 1, 1, 4, 4);
    char reason[256];
    whole_make(&w, 0);
    w.P = 2;
    CHECK_OK(whole_run(&w));
    struct results plain = results_of(&w);
    w.p.softcap = -0.0;
    poison_results(&w);
    CHECK_OK(whole_run(&w));
    same_bits(&plain, &w, FIVE, "softcap 0");
    static const double bad[] = {-1, -1e-30, NAN, INFINITY};
    for (int n = 0; n < COUNT(bad); n++) {
        w.p.softcap = bad[n];
        CHECK_STATUS(ra_supports(&w.p, NULL, reason, sizeof reason), RA_ERR_INVALID);
        CHECK(strstr(reason, "softcap"));
        CHECK_STATUS(whole_run(&w), RA_ERR_INVALID);
    }
    results_free(&plain);
    whole_free(&w);
}

/* ---- bias, its gradient, what else comes out ---- */

static void case_067_bias_of_query_and_key(void) {
    struct whole w = problem(64, 64, 2, 1, 8, 6);
    w.bias_b = w.bias_h = 1;
    w.bias_q = 64;
    w.p.k_chunk = w.p.q_chunk = 8;
    w.p.mask.causal = 1;
    whole_make(&w, 0);
    family_f(&w);
    for (int n = 0; n < 64 * 64; n++)
        w.bias[n] = (float)(0.1 * (n / 64 - n % 64) + 0.01 * (n % 64));
    exact_everywhere(&w, 1e-5, "bias");
    whole_extras(&w, DBIAS);
    exact_everywhere(&w, 1e-5, "dbias");
    whole_free(&w);
    for (int shape = 0; shape < 8; shape++) { /* every axis shared or not, -inf among it, queries of no key */
        struct whole x = problem(21, 34, 4, 2, 5, 7);
        x.p.B = 3;
        x.bias_b = shape & 1 ? 3 : 1;
        x.bias_h = shape & 2 ? 4 : 1;
        x.bias_q = shape & 4 ? 21 : 1;
        whole_make(&x, 0);
        for (int64_t n = 0; n < 34 && x.bias_q > 1; n++)
            x.bias[4 * 34 + n] = -INFINITY;
        whole_extras(&x, DBIAS | ROW_MAX);
        exact_everywhere(&x, 1e-5, "shared bias");
        whole_free(&x);
    }
}

/* The largest logit a query sees: after cap, bias and mask, without the sink; -inf of none. */
static void row_maximum(void) {
    for (int kind = 0; kind < 4; kind++) {
        struct whole w = problem(30, 30, 4, 2, 6, 3);
        w.p.mask.causal = kind & 1;
        w.bias_b = w.bias_h = 1;
        w.bias_q = kind & 2 ? 30 : 0;
        w.bias_b = w.bias_h = kind & 2 ? 1 : 0;
        whole_make(&w, kind == 3 ? 7 : 0);
        if (kind == 3)
            w.q_ids[9] = 77;
        whole_extras(&w, ROW_MAX);
        EVERYWHERE(&w) {
            if (!run_or_refused(&w, "row_max") || !whole_check(&w, 1e-5, "row_max"))
                break;
            CHECK(kind != 3 || w.row_max[9] == -INFINITY);
        }
        whole_free(&w);
    }
}

/* A factor per query, by its position in the whole sequence: 0 makes it the mean, negative turns it round. */
static void temperature_per_query(void) {
    struct whole w = problem(33, 33, 2, 1, 6, 4);
    w.p.mask.causal = 1;
    whole_make(&w, 0);
    whole_extras(&w, TEMPERATURE);
    w.temperature[7] = 0;
    w.temperature[8] = -2;
    exact_everywhere(&w, 1e-5, "temperature");
    whole_free(&w);
}

/* All of them at once, under every mask at once. */
static void everything_at_once(void) {
    static const int32_t lens[] = {60, 31}, offsets[] = {0, 20, 20, 64};
    static const float slopes[] = {0.5f, 0.1f, 0.02f, 0.004f};
    for (int t = 0; t < 3; t++) {
        struct whole w = problem(70, 70, 4, 2, 8, 6);
        w.p.B = 2;
        w.p.dtype = (ra_dtype)t;
        w.p.mask = (ra_mask){.causal = 1, .window_left = 25, .window_right = -1, .prefix = 3, .keep_first = 2};
        w.p.mask.kv_lens = lens;
        w.p.mask.cu_seqlens_q = w.p.mask.cu_seqlens_kv = offsets;
        w.p.mask.sequences = 3;
        w.p.softcap = 3;
        w.p.alibi_slopes = slopes;
        w.p.dropout = 0.2;
        w.p.seed = 11;
        w.bias_b = 1, w.bias_h = 4, w.bias_q = 70;
        whole_make(&w, 33);
        whole_extras(&w, SINKS | TEMPERATURE | ROW_MAX | DBIAS | DSINKS);
        exact_everywhere(&w, t ? 2e-4 : 2e-5, "everything at once");
        whole_free(&w);
    }
}

/* ---- dropout ---- */

static struct whole dropped(int64_t Sq, int64_t Skv, double p) {
    struct whole w = problem(Sq, Skv, 1, 1, 4, 4);
    w.p.dropout = p;
    w.p.seed = 7;
    return w;
}

/* sum(dout * out) + sum(dlse * lse) of the run just made. */
static double objective(const struct whole *w) {
    double sum = 0;
    for (int64_t n = 0; n < q_numel(&w->p, w->p.Dv); n++)
        sum += get_value(w->dout, RA_F32, n) * w->out[n];
    for (int64_t n = 0; n < q_numel(&w->p, 1); n++)
        sum += w->dlse[n] * w->lse[n];
    return sum;
}

/* Case 70: gradients against differences of the forward with the same seed, each input along a random direction. */
static void case_070_dropout_gradient(void) {
    struct whole w = dropped(96, 96, 0.3);
    w.p.mask.causal = 1;
    whole_make(&w, 0);
    family_f(&w);
    for (int64_t n = 0; n < 96; n++)
        w.dlse[n] = (float)cos(0.2 * (double)n);
    EVERYWHERE(&w) {
        if (w.P != 1 && w.P != 4)
            continue;
        if (!run_or_refused(&w, "dropout"))
            break;
        if (!whole_check(&w, 1e-5, "dropout"))
            break;
        struct results r = results_of(&w);
        float *const input[3] = {w.q, w.k, w.v};
        static const char *const names[] = {"dq", "dk", "dv"};
        for (int which = 0; which < 3; which++) {
            const double h = 1e-2;
            double slope[2], expected = 0, size = 0;
            float *kept = memcpy(malloc(96 * 4 * 4), input[which], 96 * 4 * 4), *direction = filled(96 * 4, RA_F32, 1);
            for (int sign = 0; sign < 2; sign++) {
                for (int n = 0; n < 96 * 4; n++)
                    input[which][n] = kept[n] + (float)((sign ? -h : h) * direction[n]);
                CHECK_OK(whole_run(&w));
                slope[sign] = objective(&w);
            }
            for (int n = 0; n < 96 * 4; n++) {
                expected += (double)r.x[2 + which][n] * direction[n];
                size += fabs((double)r.x[2 + which][n] * direction[n]);
            }
            const double difference = (slope[0] - slope[1]) / (2 * h);
            CHECK_MSG(fabs(difference - expected) < 1e-3 * (size > 1 ? size : 1), "%s: P %d layout %d: %g by differences, %g", names[which],
                      w.P, (int)w.p.layout, difference, expected);
            memcpy(input[which], kept, 96 * 4 * 4);
            free(kept);
            free(direction);
        }
        results_free(&r);
    }
    whole_free(&w);
}

/* With k = 0, v = 1 and dout = 1 (unit matrices) out is the mask itself, row by row, and dv its transpose. */
static struct whole mask_shown(int64_t n, double p) {
    struct whole w = problem(n, n, 2, 2, 4, n);
    w.p.B = 2;
    w.p.dropout = p;
    w.p.seed = 12345678901;
    whole_make(&w, 0);
    family_u(&w);
    for (int64_t e = 0; e < q_numel(&w.p, n); e++) {
        put_value(w.v, RA_F32, e, e / (2 * n) % n == e % n);
        put_value(w.dout, RA_F32, e, e / (2 * n) % n == e % n);
    }
    return w;
}

/* Case 71: the same bits everywhere and in both passes; as many as there should be; no likeness between heads or shards. */
static void case_071_dropout_mask(void) {
    enum { N = 64 };
    const double p = 0.3, kept_value = 1 / (N * (1 - p));
    static bool first[2][N][2][N];
    struct whole w = mask_shown(N, p);
    bool done = false;
    for (int variant = 0; variant < 4; variant++) {
        static const int64_t chunks[] = {0, 1, 8, 100};
        w.p.q_chunk = chunks[variant];
        w.p.k_chunk = chunks[3 - variant];
        w.p.threads = 1 + variant % 2;
        EVERYWHERE(&w) {
            if (!run_or_refused(&w, "dropout"))
                goto refused;
            int64_t strange = 0, other = 0, other_backward = 0, kept = 0;
            for (int64_t n = 0; n < 2 * N * 2 * N; n++) {
                const int64_t b = n / (N * 2 * N), i = n / (2 * N) % N, h = n / N % 2, j = n % N;
                bool *bit = &first[b][i][h][j];
                const bool now = w.out[n] != 0;
                strange += now && !near(w.out[n], kept_value, 1e-6, 0);
                if (!done)
                    *bit = now;
                other += now != *bit;
                other_backward += (w.dv[((b * N + j) * 2 + h) * N + i] != 0) != *bit;
                kept += now;
            }
            done = true;
            CHECK_MSG(strange + other + other_backward == 0,
                      "P %d layout %d chunks %d: %lld values are neither 0 nor 1/(n (1 - p)), %lld bits differ forward, %lld backward", w.P,
                      (int)w.p.layout, variant, (long long)strange, (long long)other, (long long)other_backward);
            CHECK_MSG(fabs((double)kept - 4 * N * N * (1 - p)) < 4 * sqrt(4 * N * N * p * (1 - p)), "%lld are kept", (long long)kept);
        }
    }
    for (int other = 1; other < 8; other++) { /* halves of the queries, heads, batch elements, and of the keys against each other */
        int64_t same = 0, n = 0;
        for (int64_t i = 0; i < N / 2; i++)
            for (int64_t j = 0; j < N / 2; j++) {
                n++;
                same += first[0][i][0][j] == first[other >> 2 & 1][i + (other & 1 ? N / 2 : 0)][other >> 1 & 1][j];
            }
        const double expected = p * p + (1 - p) * (1 - p);
        CHECK_MSG(fabs((double)same - expected * (double)n) < 4.5 * sqrt(expected * (1 - expected) * (double)n), "%lld of %lld bits agree",
                  (long long)same, (long long)n);
    }
    { /* the mean of what is kept, over 10^4 rows */
        struct whole m = problem(10000, N, 1, 1, 1, 1);
        m.p.dropout = p;
        m.p.seed = 3;
        whole_make(&m, 0);
        m.p.backward = 0;
        family_u(&m);
        for (int j = 0; j < N; j++)
            put_value(m.v, RA_F32, j, 1);
        m.P = 4;
        if (run_or_refused(&m, "dropout")) {
            double sum = 0;
            for (int64_t i = 0; i < 10000; i++) {
                sum += m.out[i];
                CHECK(near(m.lse[i], log(N), 1e-6, 1)); /* the denominator is that of all keys */
            }
            CHECK_MSG(fabs(sum / 10000 - 1) < 4 * sqrt(p / (1 - p) / N / 10000), "mean %g", sum / 10000);
        }
        whole_free(&m);
    }
refused:
    whole_free(&w);
}

static void case_072_dropout_extremes(void) {
    struct whole w = dropped(40, 40, 0);
    char reason[256];
    w.p.mask.causal = 1;
    whole_make(&w, 0);
    w.P = 2;
    CHECK_OK(whole_run(&w));
    struct results plain = results_of(&w);
    w.p.seed = 99; /* without dropout it means nothing */
    poison_results(&w);
    CHECK_OK(whole_run(&w));
    same_bits(&plain, &w, FIVE, "dropout 0");
    w.p.dropout = 1 - 0x1p-24;
    EVERYWHERE(&w) {
        if (!run_or_refused(&w, "dropout near 1"))
            break;
        whole_check(&w, 1e-5, "dropout near 1");
    }
    w.p.dropout = 1;
    memset(w.dlse, 0, 40 * 4);
    EVERYWHERE(&w) {
        if (!run_or_refused(&w, "dropout 1"))
            break;
        for (int n = 0; n < 160; n++)
            CHECK(w.out[n] == 0 && w.dq[n] == 0 && w.dk[n] == 0 && w.dv[n] == 0);
        for (int i = 0; i < 40; i++)
            CHECK(near(w.lse[i], plain.x[1][i], 1e-6, 1));
    }
    static const double bad[] = {-1e-9, 1.0000001, NAN, -INFINITY};
    for (int n = 0; n < COUNT(bad); n++) {
        w.p.dropout = bad[n];
        CHECK_STATUS(ra_supports(&w.p, NULL, reason, sizeof reason), RA_ERR_INVALID);
        CHECK(strstr(reason, "dropout"));
    }
    results_free(&plain);
    whole_free(&w);
}

/* ---- repeated (case 73) ---- */

static atomic_bool stop;

static void *load(void *user) {
    volatile double x = 1;
    (void)user;
    while (!atomic_load(&stop))
        x = x * 1.0000001;
    return NULL;
}

/* Twenty times, on 1, 4 and 16 threads, while something else wants the processor. */
static void case_073_the_same_bits_again(void) {
    static const int threads[] = {1, 4, 16};
    pthread_t other[2];
    atomic_store(&stop, false);
    for (int n = 0; n < 2; n++)
        CHECK(pthread_create(&other[n], NULL, load, NULL) == 0);
    for (int kind = 0; kind < 3; kind++) {
        struct whole w = problem(200, 200, 4, 2, 16, 8);
        struct results first = {.n = {0}};
        bool done = false;
        w.p.mask.causal = 1;
        w.p.dtype = (ra_dtype)kind;
        w.p.layout = (ra_layout)kind;
        w.p.mask.window_left = kind == 1 ? 60 : -1;
        w.p.dropout = kind == 2 ? 0.1 : 0;
        w.P = 1 + kind % 2;
        whole_make(&w, 0);
        for (int n = 0; n < 20; n++) {
            w.p.threads = threads[n % 3];
            poison_results(&w);
            if (!run_or_refused(&w, "dropout"))
                break;
            if (!done)
                first = results_of(&w);
            else
                same_bits(&first, &w, FIVE, "again");
            done = true;
        }
        if (done)
            results_free(&first);
        whole_free(&w);
    }
    atomic_store(&stop, true);
    for (int n = 0; n < 2; n++)
        pthread_join(other[n], NULL);
}

int main(void) {
    RUN(case_062_alibi);
    RUN(case_063_sinks);
    RUN(case_064_softcap);
    RUN(case_066_softcap_off);
    RUN(case_067_bias_of_query_and_key);
    RUN(row_maximum);
    RUN(temperature_per_query);
    RUN(everything_at_once);
    RUN(case_070_dropout_gradient);
    RUN(case_071_dropout_mask);
    RUN(case_072_dropout_extremes);
    RUN(case_073_the_same_bits_again);
    return check_result();
}
