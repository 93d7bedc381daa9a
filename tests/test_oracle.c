/* The reference itself: what it lets a query see, against pictures drawn by hand; closed forms; and its gradients against central
 * differences of its own forward, for every kind of mask with every score modifier (cases 22 to 24, 55, 62 to 64, 66, 67, 70, 71). */
#include "../src/cli/oracle.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "block/dropout.h"
#include "check.h"

enum { MOST = 16, HEADS = 2, WIDTH = 2 };

static bool near(double a, double b, double bound) {
    return a == b || fabs(a - b) <= bound * (1 + fabs(b));
}

static ra_problem plain(int64_t Sq, int64_t Skv) {
    ra_problem p;
    ra_problem_init(&p);
    p.Sq = Sq;
    p.Skv = Skv;
    p.D = p.Dv = 1;
    return p;
}

/* ---- what is visible ---- */

/* picture[i][j]: 'x' if query i sees key j. With q = 0 and v_j = j, out is the mean of the visible j and lse the logarithm of their count.
 */
static void check_picture(const ra_problem *p, const char *const *picture, int line) {
    static const float zero[MOST] = {0};
    float v[MOST];
    for (int j = 0; j < MOST; j++)
        v[j] = (float)j;
    const oracle_inputs in = {.q = ra_tensor_bshd(zero, RA_F32, p->Sq, 1, 1),
                              .k = ra_tensor_bshd(zero, RA_F32, p->Skv, 1, 1),
                              .v = ra_tensor_bshd(v, RA_F32, p->Skv, 1, 1)};
    char reason[256];
    const ra_status valid = ra_supports(p, NULL, reason, sizeof reason);
    check_report(valid == RA_OK || valid == RA_ERR_UNSUPPORTED, __FILE__, line, "not a valid problem: %s", reason);
    oracle_result r;
    if (!CHECK_OK(oracle_attention(p, &in, &r)))
        return;
    for (int64_t i = 0; i < p->Sq; i++) {
        double count = 0, sum = 0;
        for (int64_t j = 0; j < p->Skv; j++) {
            const int seen = picture[i][j] == 'x';
            check_report(oracle_sees(p, NULL, 0, 0, i, j) == seen, __FILE__, line, "query %lld, key %lld: expected %d", (long long)i,
                         (long long)j, seen);
            count += seen;
            sum += seen ? (double)j : 0;
        }
        check_report(strlen(picture[i]) == (size_t)p->Skv, __FILE__, line, "row %lld of the picture", (long long)i);
        check_report(near(r.out[i], count > 0 ? sum / count : 0, 1e-14) && near(r.lse[i], log(count), 1e-14) &&
                         r.row_max[i] == (count > 0 ? 0 : -INFINITY),
                     __FILE__, line, "query %lld: out %g, lse %g, largest logit %g", (long long)i, r.out[i], r.lse[i], r.row_max[i]);
    }
    oracle_result_free(&r);
}

#define PICTURE(Sq, Skv, set, ...)                            \
    do {                                                      \
        ra_problem p = plain(Sq, Skv);                        \
        ra_mask *m = &p.mask;                                 \
        set;                                                  \
        const char *const picture_[] = {__VA_ARGS__};         \
        CHECK_EQ_INT(sizeof picture_ / sizeof *picture_, Sq); \
        (void)m;                                              \
        check_picture(&p, picture_, __LINE__);                \
    } while (0)

static void case_22_corners(void) {
    PICTURE(2, 5, m->causal = 1; m->align = RA_ALIGN_BOTTOM_RIGHT, "xxxx.", "xxxxx");
    PICTURE(2, 5, m->causal = 1; m->align = RA_ALIGN_TOP_LEFT, "x....", "xx...");
    PICTURE(5, 2, m->causal = 1; m->align = RA_ALIGN_BOTTOM_RIGHT, "..", "..", "..", "x.", "xx");
    PICTURE(5, 2, m->causal = 1; m->align = RA_ALIGN_TOP_LEFT, "x.", "xx", "xx", "xx", "xx");
    PICTURE(3, 3, m->causal = 1, "x..", "xx.", "xxx");
    PICTURE(2, 3, , "xxx", "xxx");
}

static void causal_blocks(void) {
    PICTURE(5, 5, m->causal_block = 2, "xx...", "xx...", "xxxx.", "xxxx.", "xxxxx");
    PICTURE(5, 5, m->causal_block = 1, "x....", "xx...", "xxx..", "xxxx.", "xxxxx");
    PICTURE(2, 5, m->causal_block = 2; m->align = RA_ALIGN_BOTTOM_RIGHT, "xxxx.", "xxxxx");
    PICTURE(5, 2, m->causal_block = 2; m->align = RA_ALIGN_BOTTOM_RIGHT, "..", "..", "..", "xx", "xx"); /* blocks begin at key 0 */
    PICTURE(5, 5, m->causal_block = 2; m->prefix = 3, "xxx..", "xxx..", "xxxx.", "xxxx.", "xxxxx");
}

static void case_23_windows(void) {
    PICTURE(5, 5, m->causal = 1; m->window_left = 2, "x....", "xx...", "xxx..", ".xxx.", "..xxx");
    PICTURE(4, 4, m->causal = 1; m->window_left = 0, "x...", ".x..", "..x.", "...x");
    PICTURE(4, 4, m->causal = 1; m->window_left = 99, "x...", "xx..", "xxx.", "xxxx");
    PICTURE(4, 4, m->window_left = 1, "xxxx", "xxxx", ".xxx", "..xx");
    PICTURE(4, 4, m->window_right = 1, "xx..", "xxx.", "xxxx", "xxxx");
    PICTURE(4, 4, m->window_right = 0, "x...", "xx..", "xxx.", "xxxx");
    PICTURE(5, 5, m->window_left = 1; m->window_right = 2, "xxx..", "xxxx.", ".xxxx", "..xxx", "...xx");
    PICTURE(2, 5, m->window_left = 1; m->window_right = 0; m->align = RA_ALIGN_BOTTOM_RIGHT, "..xx.", "...xx");
    PICTURE(2, 5, m->window_left = 1; m->window_right = 0; m->align = RA_ALIGN_TOP_LEFT, "x....", "xx...");
    PICTURE(5, 2, m->window_left = 1; m->align = RA_ALIGN_TOP_LEFT, "xx", "xx", ".x", "..", "..");
    PICTURE(3, 3, m->window_left = m->window_right = INT64_MAX, "xxx", "xxx", "xxx");
    ra_problem p = plain(10, 10); /* the numbers of the report */
    p.mask.causal = 1;
    p.mask.window_left = 3;
    double sum = 0;
    for (int64_t j = 0; j < 10; j++)
        sum += oracle_sees(&p, NULL, 0, 0, 9, j) ? (double)j : 0;
    CHECK(sum / 4 == 7.5);
}

static void prefixes_and_kept_keys(void) {
    PICTURE(5, 5, m->causal = 1; m->prefix = 2, "xx...", "xx...", "xxx..", "xxxx.", "xxxxx");
    PICTURE(3, 3, m->causal = 1; m->prefix = 50, "xxx", "xxx", "xxx");
    PICTURE(3, 3, m->prefix = 1, "xxx", "xxx", "xxx"); /* nothing to be exempt from */
    PICTURE(5, 2, m->causal = 1; m->prefix = 1; m->align = RA_ALIGN_BOTTOM_RIGHT, "x.", "x.", "x.", "x.", "xx");
    PICTURE(5, 5, m->causal = 1; m->window_left = 1; m->keep_first = 1, "x....", "xx...", "xxx..", "x.xx.", "x..xx");
    PICTURE(5, 5, m->causal = 1; m->window_left = 1; m->prefix = 2, "xx...", "xx...", ".xx..", "..xx.", "...xx");
    PICTURE(4, 4, m->window_left = 0; m->window_right = 0; m->keep_first = 2, "x...", "xx..", "xxx.", "xx.x");
    PICTURE(3, 3, m->keep_first = 2, "xxx", "xxx", "xxx");
}

static void segments_and_lengths(void) {
    static const int32_t q[4] = {0, 0, 5, 1}, kv[4] = {0, 5, 5, 2}, three[1] = {3}, none[1] = {0};
    PICTURE(4, 4, m->q_segment_ids = q; m->kv_segment_ids = kv, "x...", "x...", ".xx.", "....");
    PICTURE(4, 4, m->q_segment_ids = q; m->kv_segment_ids = kv; m->causal = 1, "x...", "x...", ".xx.", "....");
    PICTURE(3, 4, m->kv_lens = three, "xxx.", "xxx.", "xxx.");
    PICTURE(4, 4, m->kv_lens = three; m->causal = 1, "x...", "xx..", "xxx.", "xxx.");
    PICTURE(2, 3, m->kv_lens = none, "...", "...");
}

static void case_24_packed(void) {
    static const int32_t q[4] = {0, 3, 3, 8}, kv[4] = {0, 3, 7, 7}, two[3] = {0, 2, 5}, other[3] = {0, 3, 5}, lens[1] = {4};
#define PACK(a, b, n) m->cu_seqlens_q = (a), m->cu_seqlens_kv = (b), m->sequences = (n)
    PICTURE(8, 7, PACK(q, kv, 3), "xxx....", "xxx....", "xxx....", ".......", ".......", ".......", ".......", ".......");
    PICTURE(6, 6, PACK(two, two, 2), "xx....", "xx....", "..xxx.", "..xxx.", "..xxx.", "......"); /* the tail sees nothing */
    PICTURE(5, 5, PACK(two, two, 2); m->causal = 1, "x....", "xx...", "..x..", "..xx.", "..xxx");
    PICTURE(5, 5, PACK(two, two, 2); m->causal = 1; m->prefix = 2, "xx...", "xx...", "..xx.", "..xx.", "..xxx");
    PICTURE(5, 5, PACK(two, two, 2); m->causal_block = 2, "xx...", "xx...", "..xx.", "..xx.", "..xxx");
    PICTURE(5, 5, PACK(two, two, 2); m->causal = 1; m->window_left = 1; m->keep_first = 1, "x....", "xx...", "..x..", "..xx.", "..xxx");
    PICTURE(5, 5, PACK(two, two, 2); m->window_left = 0, "xx...", ".x...", "..xxx", "...xx", "....x");
    /* 2 queries on 3 keys, 3 queries on 2 keys */
    PICTURE(5, 5, PACK(two, other, 2); m->causal = 1; m->align = RA_ALIGN_TOP_LEFT, "x....", "xx...", "...x.", "...xx", "...xx");
    PICTURE(5, 5, PACK(two, other, 2); m->causal = 1; m->align = RA_ALIGN_BOTTOM_RIGHT, "xx...", "xxx..", ".....", "...x.", "...xx");
    PICTURE(5, 5, PACK(two, two, 2); m->kv_lens = lens, "xx...", "xx...", "..xx.", "..xx.", "..xx."); /* by position in the whole */
#undef PACK
}

static void slices(void) {
#define SLICES(...)                            \
    static const int64_t s_[] = {__VA_ARGS__}; \
    m->slices = s_;                            \
    m->slice_count = sizeof s_ / (5 * sizeof *s_)
    PICTURE(4, 5, SLICES(1, 3, 2, 4, 0), ".....", "..xx.", "..xx.", ".....");
    PICTURE(4, 5, SLICES(1, 4, 0, 5, 1), ".....", "xxx..", "xxxx.", "xxxxx"); /* the last query sees the last key */
    PICTURE(4, 5, SLICES(0, 3, 1, 5, 2), ".xxxx", "..xxx", "...xx", ".....");
    PICTURE(3, 5, SLICES(0, 3, 0, 5, 3), "xxx..", ".xxx.", "..xxx");
    PICTURE(5, 3, SLICES(0, 5, 0, 3, 1), "...", "...", "x..", "xx.", "xxx"); /* more queries than keys */
    PICTURE(5, 3, SLICES(0, 5, 0, 3, 3), "...", "...", "...", "...", "...");
    PICTURE(5, 3, SLICES(0, 5, 0, 3, 2), "xxx", ".xx", "..x", "...", "...");
    PICTURE(4, 4, SLICES(0, 4, 0, 1, 0, 2, 4, 2, 4, 1, 0, 2, 0, 2, 1), "x...", "xx..", "x.x.", "x.xx"); /* a shared prefix, two branches */
    PICTURE(4, 4, SLICES(0, 3, 0, 4, 0); m->causal = 1, "x...", "xx..", "xxx.", "....");
#undef SLICES
}

static void everything_at_once(void) {
    static const int32_t offsets[3] = {0, 4, 9}, ids[10] = {0, 0, 0, 0, 0, 0, 1, 1, 1, 0}, lens[1] = {8};
    static const int64_t s[10] = {0, 6, 0, 10, 0, 7, 10, 0, 10, 0};
    PICTURE(10, 10, m->cu_seqlens_q = m->cu_seqlens_kv = offsets; m->sequences = 2; m->q_segment_ids = m->kv_segment_ids = ids;
            m->kv_lens = lens; m->slices = s; m->slice_count = 2; m->causal = 1; m->window_left = 1; m->window_right = 0; m->keep_first = 1;
            m->prefix = 2, "x.........", "xx........", "xxx.......", "x.xx......", "....x.....", "....xx....", "..........", "......xx..",
            ".......x..", "..........");
}

/* ---- closed forms ---- */

static void case_63_sink(void) {
    static const float zero[7] = {0}, one[7] = {1, 1, 1, 1, 1, 1, 1};
    const float s = (float)log(3);
    ra_problem p = plain(1, 7);
    p.backward = 1;
    const oracle_inputs in = {.q = ra_tensor_bshd(zero, RA_F32, 1, 1, 1),
                              .k = ra_tensor_bshd(zero, RA_F32, 7, 1, 1),
                              .v = ra_tensor_bshd(one, RA_F32, 7, 1, 1),
                              .dout = ra_tensor_bshd(one, RA_F32, 1, 1, 1),
                              .sinks = &s};
    oracle_result r;
    if (!CHECK_OK(oracle_attention(&p, &in, &r)))
        return;
    CHECK(near(r.out[0], 0.7, 1e-7) && near(r.lse[0], log(10), 1e-7) && near(r.dsinks[0], -0.3 * 0.7, 1e-7) && r.row_max[0] == 0);
    oracle_result_free(&r);
    static const int32_t nothing[1] = {0};
    p.mask.kv_lens = nothing; /* a row that sees no key has the sink alone */
    const float dlse = 2;
    oracle_inputs more = in;
    more.dlse = &dlse;
    if (!CHECK_OK(oracle_attention(&p, &more, &r)))
        return;
    CHECK(r.out[0] == 0 && r.lse[0] == s && r.row_max[0] == -INFINITY && r.dq[0] == 0 && r.dk[0] == 0 && r.dv[6] == 0 && r.dsinks[0] == 2);
    oracle_result_free(&r);
}

static void case_64_softcap(void) {
    static const float q = 1, k[2] = {-1e4f, 1e4f}, v[2] = {0, 1};
    ra_problem p = plain(1, 2);
    const oracle_inputs in = {
        .q = ra_tensor_bshd(&q, RA_F32, 1, 1, 1), .k = ra_tensor_bshd(k, RA_F32, 2, 1, 1), .v = ra_tensor_bshd(v, RA_F32, 2, 1, 1)};
    oracle_result r;
    p.softcap = 2;
    if (!CHECK_OK(oracle_attention(&p, &in, &r)))
        return;
    CHECK(near(r.out[0], 1 / (1 + exp(-4)), 1e-14) && near(r.row_max[0], 2, 1e-14));
    oracle_result_free(&r);
    p.softcap = 0; /* off (case 66) */
    if (!CHECK_OK(oracle_attention(&p, &in, &r)))
        return;
    CHECK(r.out[0] == 1 && r.row_max[0] == 1e4);
    oracle_result_free(&r);
}

static void case_62_alibi(void) {
    static const float zero[5] = {0}, v[5] = {1, 0, 0, 0, 0}, slope = 0.5f;
    ra_problem p = plain(2, 5);
    p.alibi_slopes = &slope;
    for (int align = RA_ALIGN_TOP_LEFT; align <= RA_ALIGN_BOTTOM_RIGHT; align++) {
        p.mask.align = (ra_align)align;
        const oracle_inputs in = {.q = ra_tensor_bshd(zero, RA_F32, 2, 1, 1),
                                  .k = ra_tensor_bshd(zero, RA_F32, 5, 1, 1),
                                  .v = ra_tensor_bshd(v, RA_F32, 5, 1, 1)};
        oracle_result r;
        if (!CHECK_OK(oracle_attention(&p, &in, &r)))
            return;
        for (int i = 0; i < 2; i++) { /* distances: 0 1 2 3 4 and 1 0 1 2 3, or 3 2 1 0 1 and 4 3 2 1 0 */
            double sum = 0, first = exp(-0.5 * (align == RA_ALIGN_TOP_LEFT ? i : 3 + i));
            for (int j = 0; j < 5; j++)
                sum += exp(-0.5 * abs((align == RA_ALIGN_TOP_LEFT ? i : 3 + i) - j));
            CHECK(near(r.out[i], first / sum, 1e-14) && near(r.lse[i], log(sum), 1e-14));
        }
        oracle_result_free(&r);
    }
}

/* Positions of packed sequences are ALiBi's, too. */
static void alibi_of_packed_sequences(void) {
    static const float zero[5] = {0}, v[5] = {1, 0, 0, 1, 0}, slope = 1;
    static const int32_t q[3] = {0, 1, 2}, kv[3] = {0, 3, 5};
    ra_problem p = plain(2, 5);
    p.alibi_slopes = &slope;
    p.mask.align = RA_ALIGN_BOTTOM_RIGHT;
    p.mask.cu_seqlens_q = q;
    p.mask.cu_seqlens_kv = kv;
    p.mask.sequences = 2;
    const oracle_inputs in = {
        .q = ra_tensor_bshd(zero, RA_F32, 2, 1, 1), .k = ra_tensor_bshd(zero, RA_F32, 5, 1, 1), .v = ra_tensor_bshd(v, RA_F32, 5, 1, 1)};
    oracle_result r;
    if (!CHECK_OK(oracle_attention(&p, &in, &r)))
        return;
    CHECK(near(r.out[0], exp(-2) / (exp(-2) + exp(-1) + 1), 1e-14)); /* distances 2 1 0 */
    CHECK(near(r.out[1], exp(-1) / (exp(-1) + 1), 1e-14));           /* 1 0 */
    oracle_result_free(&r);
}

static void case_71_dropout(void) {
    enum { ROWS = 200, KEYS = 50 };
    static const float zero[ROWS] = {0};
    static float one[KEYS];
    for (int j = 0; j < KEYS; j++)
        one[j] = 1;
    ra_problem p = plain(ROWS, KEYS);
    p.seed = 7;
    const oracle_inputs in = {.q = ra_tensor_bshd(zero, RA_F32, ROWS, 1, 1),
                              .k = ra_tensor_bshd(zero, RA_F32, KEYS, 1, 1),
                              .v = ra_tensor_bshd(one, RA_F32, KEYS, 1, 1)};
    static const double probability[] = {0, 0.3, 1 - 0x1p-53, 1}; /* and case 72 */
    for (int n = 0; n < 4; n++) {
        oracle_result r;
        p.dropout = probability[n];
        if (!CHECK_OK(oracle_attention(&p, &in, &r)))
            return;
        double mean = 0;
        for (int i = 0; i < ROWS; i++) {
            int kept = 0;
            for (int j = 0; j < KEYS; j++)
                kept += ra__dropout_keeps(7, 0, i, j, ra__dropout_threshold(p.dropout));
            CHECK(near(r.out[i], kept ? kept / (KEYS * (1 - p.dropout)) : 0, 1e-13) && near(r.lse[i], log(KEYS), 1e-14));
            mean += r.out[i] / ROWS;
        }
        if (n < 2) /* within 4 sigma */
            CHECK(fabs(mean - 1) <= 1e-12 + 4 * sqrt(p.dropout / (1 - p.dropout) / (ROWS * KEYS)));
        CHECK(n != 3 || mean == 0);
        oracle_result_free(&r);
    }
}

/* ---- gradients ---- */

/* A small problem whose numbers are multiples of 2^-9, so that steps of that size are exact in fp32. */
struct small {
    ra_problem p;
    float q[128], k[128], v[128], dout[128], bias[512], dlse[64], sinks[HEADS], temperature[MOST], slopes[HEADS];
    oracle_inputs in;
};

static uint64_t state;
static float grid_value(double size) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(ldexp(floor(((double)(state >> 40) / (1 << 24) - 0.5) * 2 * size * 512), -9));
}

static void fill(float *x, int64_t n, double size) {
    for (int64_t i = 0; i < n; i++)
        x[i] = grid_value(size);
}

enum modifier { BIAS = 1, SOFTCAP = 2, ALIBI = 4, SINKS = 8, DROPOUT = 16, TEMPERATURE = 32, MODIFIERS = 64 };

static void make(struct small *x, ra_problem p, int modifiers, int bias_shape) {
    memset(x, 0, sizeof *x);
    p.H = HEADS;
    p.D = p.Dv = WIDTH;
    p.backward = 1;
    const int64_t Tq = p.Sq, Tk = p.Skv, B = p.B;
    fill(x->q, B * Tq * p.H * WIDTH, 1.5);
    fill(x->k, B * Tk * p.G * WIDTH, 1.5);
    fill(x->v, B * Tk * p.G * WIDTH, 1.5);
    fill(x->dout, B * Tq * p.H * WIDTH, 1);
    fill(x->dlse, B * Tq * p.H, 1);
    x->in = (oracle_inputs){.q = ra_tensor_bshd(x->q, RA_F32, Tq, p.H, WIDTH),
                            .k = ra_tensor_bshd(x->k, RA_F32, Tk, p.G, WIDTH),
                            .v = ra_tensor_bshd(x->v, RA_F32, Tk, p.G, WIDTH),
                            .dout = ra_tensor_bshd(x->dout, RA_F32, Tq, p.H, WIDTH),
                            .dlse = x->dlse};
    if (modifiers & BIAS) {
        fill(x->bias, 512, 1);
        x->bias[5] = -INFINITY;
        x->in.bias = ra_tensor_bias(x->bias, RA_F32, bias_shape & 1 ? B : 1, bias_shape & 2 ? p.H : 1, bias_shape & 4 ? Tq : 1, Tk);
        p.has_bias = 1;
    }
    if (modifiers & SOFTCAP)
        p.softcap = 1.25;
    if (modifiers & ALIBI) {
        fill(x->slopes, HEADS, 0.5);
        p.alibi_slopes = x->slopes;
    }
    if (modifiers & SINKS) {
        fill(x->sinks, HEADS, 1);
        x->in.sinks = x->sinks;
    }
    if (modifiers & DROPOUT) {
        p.dropout = 0.3;
        p.seed = 7;
    }
    if (modifiers & TEMPERATURE) {
        fill(x->temperature, Tq, 2);
        x->in.temperature = x->temperature;
    }
    x->p = p;
}

/* dout.out + dlse.lse. */
static double loss(const struct small *x) {
    oracle_result r;
    ra_problem p = x->p;
    double sum = 0;
    p.backward = 0;
    if (oracle_attention(&p, &x->in, &r) != RA_OK)
        return NAN;
    for (int64_t i = 0; i < p.B * p.Sq * p.H * p.Dv; i++)
        sum += x->dout[i] * r.out[i];
    for (int64_t i = 0; i < p.B * p.Sq * p.H; i++)
        if (r.lse[i] != -INFINITY)
            sum += x->dlse[i] * r.lse[i];
    oracle_result_free(&r);
    return sum;
}

/* The derivative by differences of fourth order. */
static double slope_at(struct small *x, float *at) {
    const float step = 0x1p-9f, kept = *at;
    double f[5];
    for (int i = -2; i <= 2; i++) {
        *at = kept + (float)i * step;
        f[i + 2] = i ? loss(x) : 0;
    }
    *at = kept;
    return (8 * (f[3] - f[1]) - (f[4] - f[0])) / (12 * step);
}

static void check_gradient(struct small *x, const char *name, float *at, const double *gradient, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++) {
        if (isinf(at[i])) {
            CHECK_MSG(gradient[i] == 0, "%s: %s[%lld] of a hidden key is %g", what, name, (long long)i, gradient[i]);
            continue;
        }
        const double expected = slope_at(x, &at[i]);
        CHECK_MSG(near(gradient[i], expected, 2e-8), "%s: %s[%lld] is %.12g, by differences %.12g", what, name, (long long)i, gradient[i],
                  expected);
    }
}

static void check_gradients(ra_problem p, int modifiers, int bias_shape, const char *mask) {
    static struct small x;
    char what[80];
    make(&x, p, modifiers, bias_shape);
    snprintf(what, sizeof what, "%s, modifiers %d, bias shape %d", mask, modifiers, bias_shape);
    oracle_result r;
    if (!CHECK_OK(oracle_attention(&x.p, &x.in, &r)))
        return;
    check_gradient(&x, "dq", x.q, r.dq, p.B * p.Sq * HEADS * WIDTH, what);
    check_gradient(&x, "dk", x.k, r.dk, p.B * p.Skv * p.G * WIDTH, what);
    check_gradient(&x, "dv", x.v, r.dv, p.B * p.Skv * p.G * WIDTH, what);
    if (modifiers & BIAS) {
        int64_t n[4];
        oracle_bias_shape(&x.p, &x.in.bias, n);
        check_gradient(&x, "dbias", x.bias, r.dbias, n[0] * n[1] * n[2] * n[3], what);
    }
    if (modifiers & SINKS)
        check_gradient(&x, "dsinks", x.sinks, r.dsinks, HEADS, what);
    oracle_result_free(&r);
}

/* With no modifier, each one alone, and all of them. */
static void with_modifiers(ra_problem p, const char *mask) {
    static int shape;
    check_gradients(p, 0, 0, mask);
    for (int m = 1; m < MODIFIERS; m *= 2)
        check_gradients(p, m, shape++ % 8, mask);
    check_gradients(p, MODIFIERS - 1, shape++ % 8, mask);
}

#define GRADIENTS(Sq, Skv, set)           \
    do {                                  \
        ra_problem p = plain(Sq, Skv);    \
        ra_mask *m = &p.mask;             \
        m->align = RA_ALIGN_BOTTOM_RIGHT; \
        set;                              \
        (void)m;                          \
        with_modifiers(p, #set);          \
    } while (0)

static void gradients(void) {
    static const int32_t offsets[5] = {0, 2, 2, 4, 5}, kv_offsets[5] = {0, 1, 3, 5, 5}, lens[2] = {4, 0}, ids[6] = {1, 1, 2, 2, 2, 3};
    static const int64_t s[15] = {0, 3, 0, 2, 0, 1, 5, 1, 6, 1, 2, 5, 0, 5, 3};
    GRADIENTS(4, 5, );
    GRADIENTS(3, 4, p.B = 2; p.G = 2);
    GRADIENTS(4, 4, m->causal = 1);
    GRADIENTS(3, 5, m->causal = 1; m->align = RA_ALIGN_TOP_LEFT);
    GRADIENTS(5, 3, m->causal = 1);
    GRADIENTS(5, 5, m->causal_block = 2; m->prefix = 3);
    GRADIENTS(5, 5, m->causal = 1; m->window_left = 1; m->keep_first = 1);
    GRADIENTS(5, 6, m->window_left = 2; m->window_right = 0);
    GRADIENTS(5, 6, m->causal = 1; m->prefix = 2);
    GRADIENTS(6, 6, m->q_segment_ids = m->kv_segment_ids = ids);
    GRADIENTS(3, 5, p.B = 2; m->kv_lens = lens);
    GRADIENTS(6, 6, m->cu_seqlens_q = offsets; m->cu_seqlens_kv = kv_offsets; m->sequences = 4; m->causal = 1);
    GRADIENTS(5, 6, m->slices = s; m->slice_count = 3);
}

/* Axes of the bias in every combination, and grouped heads: what is broadcast is summed. */
static void gradients_of_broadcast_biases(void) {
    ra_problem p = plain(3, 4);
    p.B = 2;
    p.mask.causal = 1;
    p.mask.align = RA_ALIGN_BOTTOM_RIGHT;
    for (int shape = 0; shape < 8; shape++)
        for (p.G = 1; p.G <= 2; p.G++)
            check_gradients(p, BIAS | SINKS, shape, "causal");
}

static void case_55_groups(void) {
    static const float zero[8] = {0}, v[4] = {1, 2, 1, 2}, dout[8] = {1, 2, 3, 4, 1, 2, 3, 4};
    ra_problem p = plain(2, 2);
    p.H = 4;
    p.G = 2;
    p.backward = 1;
    const oracle_inputs in = {.q = ra_tensor_bshd(zero, RA_F32, 2, 4, 1),
                              .k = ra_tensor_bshd(zero, RA_F32, 2, 2, 1),
                              .v = ra_tensor_bshd(v, RA_F32, 2, 2, 1),
                              .dout = ra_tensor_bshd(dout, RA_F32, 2, 4, 1)};
    oracle_result r;
    if (!CHECK_OK(oracle_attention(&p, &in, &r)))
        return;
    for (int h = 0; h < 4; h++)
        CHECK(r.out[h] == h / 2 + 1);
    CHECK(r.dv[0] == 3 && r.dv[1] == 7 && r.dv[2] == 3 && r.dv[3] == 7 && !r.dbias && !r.dsinks);
    oracle_result_free(&r);
}

int main(void) {
    RUN(case_22_corners);
    RUN(causal_blocks);
    RUN(case_23_windows);
    RUN(prefixes_and_kept_keys);
    RUN(segments_and_lengths);
    RUN(case_24_packed);
    RUN(slices);
    RUN(everything_at_once);
    RUN(case_63_sink);
    RUN(case_64_softcap);
    RUN(case_62_alibi);
    RUN(alibi_of_packed_sequences);
    RUN(case_71_dropout);
    RUN(gradients);
    RUN(gradients_of_broadcast_biases);
    RUN(case_55_groups);
    return check_result();
}
