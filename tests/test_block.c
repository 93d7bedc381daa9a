/* Every kernel of the table, at the level that RA_ISA allows, against plain code: bit for bit where kernels.h fixes the order of
 * operations, else within a bound. Operands lie against pages that must not be touched: once with their end, once with their beginning.
 * And base/half.h, which the kernels are compared with, against arithmetic in double. */
#define _DEFAULT_SOURCE
#include "guard.h"

#include <Random123/philox.h>

#include "base/cpu.h"
#include "block/kernels.h"
#include "harness.h"

static const struct ra__kernels *K;

static bool small(void) {
    return getenv("RA_TEST_SMALL") != NULL;
}

/* ---- operands ---- */

static void randomize(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)normal();
}

static float *random_packed(int64_t n) {
    float *x = take_packed(n);
    randomize(x, n);
    return x;
}

static float *random_floats(int64_t n) {
    float *x = take_floats(n);
    randomize(x, n);
    return x;
}

static bool same_bits(float a, float b) {
    return ra__bits(a) == ra__bits(b);
}

/* ---- products ---- */

/* One step of the chain that kernels.h promises. */
static float step(float a, float b, float c) {
    if (strcmp(K->isa, "scalar") != 0)
        return fmaf(a, b, c);
    volatile float product = a * b;
    return product + c;
}

static void check_gemm(int64_t k, int64_t panels, int64_t extra, bool accumulate) {
    const int64_t rows = K->rows, lanes = K->lanes, stride = k * rows + extra;
    const float *a = random_floats(panels ? (panels - 1) * stride + k * rows : 0), *b = random_packed(k * lanes);
    float *c = random_packed(panels * rows * lanes), *before = random_packed(panels * rows * lanes);
    memcpy(before, c, (size_t)(panels * rows * lanes) * sizeof *c);
    if (!accumulate && panels) /* must not be read */
        c[0] = NAN;
    K->prepare();
    K->gemm(a, stride, panels, b, k, c, accumulate);
    for (int64_t i = 0; i < panels * rows; i++)
        for (int64_t lane = 0; lane < lanes; lane++) {
            float chain = 0;
            double sum = 0, size = 0;
            for (int64_t s = 0; s < k; s++) {
                float x = a[i / rows * stride + s * rows + i % rows], y = b[s * lanes + lane];
                chain = step(x, y, chain);
                sum += (double)x * y;
                size += fabs((double)x * y);
            }
            if (accumulate) {
                chain = before[i * lanes + lane] + chain;
                sum += before[i * lanes + lane];
                size += fabs(before[i * lanes + lane]);
            }
            float got = c[i * lanes + lane];
            if (!CHECK_MSG(got == chain && fabs(got - sum) <= (double)(k + 1) * 0x1p-24 * size,
                           "gemm k %lld, panels %lld, row %lld, lane %lld: %.9g, chain %.9g, fp64 %.9g", (long long)k, (long long)panels,
                           (long long)i, (long long)lane, got, chain, sum))
                break;
        }
    clean_up("gemm");
}

static void gemm_is_a_chain(void) {
    static const int64_t depths[] = {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 64, 129};
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++)
        for (int64_t panels = 0; panels <= 3; panels++)
            for (int variant = 0; variant < 8; variant++) {
                at_end = variant & 1;
                check_gemm(depths[i], panels, variant & 2 ? 13 : 0, variant & 4);
            }
}

static void check_gemm_rows(int n, int64_t panels, int64_t extra, int64_t ldc) {
    const int64_t rows = K->row_tile, cols = K->col_tile, lanes = K->lanes, stride = rows * lanes + extra;
    const float *s = random_floats((panels - 1) * stride + rows * lanes), *b = random_packed(panels * lanes * cols);
    float *c = take_packed((n - 1) * ldc + cols), *before = take_packed((n - 1) * ldc + cols);
    for (int64_t i = 0; i < n; i++)
        randomize(c + i * ldc, cols);
    memcpy(before, c, (size_t)((n - 1) * ldc + cols) * sizeof *c);
    K->prepare();
    K->gemm_rows(s, stride, panels, b, c, ldc, n);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < cols; j++) {
            float chain = 0;
            double sum = before[i * ldc + j], size = fabs(sum);
            for (int64_t l = 0; l < panels * lanes; l++) {
                float x = s[l / lanes * stride + i * lanes + l % lanes], y = b[l * cols + j];
                chain = step(x, y, chain);
                sum += (double)x * y;
                size += fabs((double)x * y);
            }
            chain = before[i * ldc + j] + chain;
            CHECK_MSG(c[i * ldc + j] == chain && fabs(chain - sum) <= (double)(panels * lanes) * 0x1p-23 * size,
                      "gemm_rows n %d, panels %lld, [%lld][%lld]: %.9g, chain %.9g, fp64 %.9g", n, (long long)panels, (long long)i,
                      (long long)j, c[i * ldc + j], chain, sum);
        }
    for (int64_t i = 0; i < (n - 1) * ldc + cols; i++)
        CHECK(i % ldc < cols || is_gap(c + i));
    clean_up("gemm_rows");
}

static void gemm_rows_is_a_chain(void) {
    for (int n = 1; n <= K->row_tile; n++)
        for (int64_t panels = 1; panels <= 4; panels++)
            for (int variant = 0; variant < 4; variant++) {
                at_end = variant & 1;
                check_gemm_rows(n, panels, variant & 2 ? 16 : 0, (variant & 2 ? 2 : 1) * K->col_tile);
            }
}

/* ---- softmax ---- */

/* State and one block of scores. */
struct online {
    float *m, *l, *alpha, *s, *mask, *kept; /* kept: the scores as they were */
};

static struct online online_new(int64_t n) {
    struct online o = {take_packed(K->lanes),     take_packed(K->lanes),     take_packed(K->lanes),
                       take_packed(n * K->lanes), take_packed(n * K->lanes), take_packed(n * K->lanes)};
    for (int i = 0; i < K->lanes; i++) {
        o.m[i] = -INFINITY;
        o.l[i] = 0;
    }
    for (int64_t i = 0; i < n * K->lanes; i++)
        o.mask[i] = 0;
    return o;
}

/* One block of n rows: P, alpha, m and l from the scores in o->s, checked element by element against exp2 in double. */
static void fold_and_check(struct online *o, int64_t n, bool masked) {
    const int lanes = K->lanes;
    float m[64], l[64];
    memcpy(m, o->m, (size_t)lanes * sizeof *m);
    memcpy(l, o->l, (size_t)lanes * sizeof *l);
    memcpy(o->kept, o->s, (size_t)(n * lanes) * sizeof *o->kept);
    const bool rescale = K->softmax(o->s, n, masked ? o->mask : NULL, 0, 1, o->m, o->l, o->alpha);
    bool moved = false;
    for (int lane = 0; lane < lanes; lane++) {
        float max = m[lane];
        for (int64_t i = 0; i < n; i++) {
            float x = o->kept[i * lanes + lane] + (masked ? o->mask[i * lanes + lane] : 0);
            max = x > max ? x : max;
        }
        CHECK_MSG(o->m[lane] == max, "m %g, expected %g", o->m[lane], max);
        const float reference = max == -INFINITY ? 0 : max;
        double alpha = exp2((double)(m[lane] - reference)), sum = l[lane] * alpha;
        for (int64_t i = 0; i < n; i++) {
            float x = o->kept[i * lanes + lane] + (masked ? o->mask[i * lanes + lane] : 0);
            double p = exp2((double)(x - reference)), got = o->s[i * lanes + lane];
            sum += p;
            CHECK_MSG(fabs(got - p) <= 2.5e-7 * p + 1e-37, "p %.9g, expected %.9g", got, p);
            CHECK(x != -INFINITY || got == 0);
        }
        CHECK_MSG(fabs(o->l[lane] - sum) <= (double)(n + 4) * 0x1p-23 * sum, "l %.9g, expected %.9g", o->l[lane], sum);
        CHECK_MSG(fabs(o->alpha[lane] - alpha) <= 2.5e-7 * alpha + 1e-37, "alpha %.9g, expected %.9g", o->alpha[lane], alpha);
        moved |= max != m[lane];
        CHECK(rescale || o->alpha[lane] == 1 || max == -INFINITY); /* false: the caller may leave out the multiplication */
    }
    CHECK_EQ_INT(rescale, moved);
}

/* Several blocks in sequence are the two-pass softmax of all their scores. */
static void blocks_are_one_softmax(double offset, double spread) {
    static const int64_t sizes[] = {1, 2, 3, 17, 8, 5};
    enum { BLOCKS = 6, ALL = 36 };
    const int lanes = K->lanes;
    static float all[ALL * 64];
    struct online o = online_new(17);
    int64_t rows = 0;
    for (int block = 0; block < BLOCKS; block++) {
        for (int64_t i = 0; i < sizes[block] * lanes; i++)
            all[rows * lanes + i] = o.s[i] = (float)(offset + spread * normal());
        rows += sizes[block];
        fold_and_check(&o, sizes[block], false);
    }
    for (int lane = 0; lane < lanes; lane++) {
        double max = -INFINITY, sum = 0;
        for (int64_t i = 0; i < rows; i++)
            max = fmax(max, all[i * lanes + lane]);
        for (int64_t i = 0; i < rows; i++)
            sum += exp2(all[i * lanes + lane] - max);
        CHECK_MSG(o.m[lane] == max && fabs(o.l[lane] - sum) <= 4e-6 * sum, "offset %g: m %g l %.9g, two passes %g %.9g", offset, o.m[lane],
                  o.l[lane], max, sum);
    }
    clean_up("softmax");
}

static void softmax_of_any_size(void) {
    static const double offsets[] = {0, 1e4, -1e4, 3e6, -60000 * 1.4427, 200, -200}; /* 2^200 and 2^-200 are not fp32 */
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++)
        for (int end = 0; end < 2; end++) {
            at_end = end;
            blocks_are_one_softmax(offsets[i], 3);
            blocks_are_one_softmax(offsets[i], 1e4);
            blocks_are_one_softmax(offsets[i], 0);
        }
}

static void nothing_seen(void) {
    struct online o = online_new(5);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 5 * K->lanes; i++)
            o.s[i] = -INFINITY;
        fold_and_check(&o, 5, round);
        for (int lane = 0; lane < K->lanes; lane++)
            CHECK(o.m[lane] == -INFINITY && same_bits(o.l[lane], 0));
    }
    for (int i = 0; i < 5 * K->lanes; i++) /* then something, in every second lane */
        o.s[i] = i % K->lanes % 2 ? (float)normal() : -INFINITY;
    fold_and_check(&o, 5, false);
    CHECK(o.m[0] == -INFINITY && o.m[1] > -10);
    clean_up("softmax");
}

/* Whatever hidden scores are, the bits are those of any other hidden scores. */
static void hidden_scores(void) {
    static const float garbage[] = {NAN, INFINITY, -INFINITY, 1e30f, -1e30f, 0};
    const int lanes = K->lanes;
    const int64_t n = 7;
    struct online o = online_new(n);
    float *first = malloc((size_t)(n + 3) * 64 * sizeof *first);
    for (size_t g = 0; g < sizeof garbage / sizeof *garbage; g++) {
        random_state = 12345;
        for (int lane = 0; lane < lanes; lane++) {
            o.m[lane] = lane % 3 ? -INFINITY : 0.25f;
            o.l[lane] = lane % 3 ? 0 : 1.5f;
        }
        for (int64_t i = 0; i < n * lanes; i++) {
            o.s[i] = (float)normal();
            o.mask[i] = uniform() < 0.4 || i % lanes == 1 ? -INFINITY : (float)normal(); /* lane 1 sees nothing */
            if (o.mask[i] == -INFINITY)
                o.s[i] = garbage[g];
        }
        K->softmax(o.s, n, o.mask, 0, 1, o.m, o.l, o.alpha);
        for (int64_t i = 0; i < n * lanes; i++)
            CHECK(o.mask[i] == -INFINITY ? same_bits(o.s[i], 0) : o.s[i] > 0);
        CHECK(o.m[1] == -INFINITY && o.l[1] == 0);
        float *now = first + n * lanes;
        memcpy(now, o.m, (size_t)lanes * sizeof *now);
        memcpy(now + lanes, o.l, (size_t)lanes * sizeof *now);
        if (g == 0)
            memcpy(first, o.s, (size_t)(n * lanes) * sizeof *first);
        CHECK(memcmp(first, o.s, (size_t)(n * lanes) * sizeof *first) == 0);
        K->softmax(o.s, 0, NULL, 0, 1, o.m, o.l, o.alpha); /* no rows: nothing moves */
        CHECK(memcmp(now, o.m, (size_t)lanes * sizeof *now) == 0 && memcmp(now + lanes, o.l, (size_t)lanes * sizeof *now) == 0);
    }
    free(first);
    clean_up("softmax");
}

/* A visible NaN makes its own lane NaN, for good, and no other. */
static void nan_scores_stay_in_their_lane(void) {
    const int lanes = K->lanes;
    const int64_t n = 6;
    for (int bad = 0; bad < lanes; bad++)
        for (int64_t row = 0; row < n; row++) {
            struct online clean = online_new(n);
            randomize(clean.s, n * lanes);
            float *s = clean.kept, m[64], l[64];
            memcpy(s, clean.s, (size_t)(n * lanes) * sizeof *s);
            s[row * lanes + bad] = NAN;
            K->softmax(clean.s, n, NULL, 0, 1, clean.m, clean.l, clean.alpha);
            memcpy(m, clean.m, sizeof *m * (size_t)lanes);
            memcpy(l, clean.l, sizeof *l * (size_t)lanes);
            for (int lane = 0; lane < lanes; lane++) {
                clean.m[lane] = -INFINITY;
                clean.l[lane] = 0;
            }
            K->softmax(s, n, NULL, 0, 1, clean.m, clean.l, clean.alpha);
            for (int lane = 0; lane < lanes; lane++) {
                CHECK(lane == bad ? isnan(clean.l[lane]) : same_bits(clean.l[lane], l[lane]) && same_bits(clean.m[lane], m[lane]));
                for (int64_t i = 0; i < n && lane != bad; i++)
                    CHECK(same_bits(s[i * lanes + lane], clean.s[i * lanes + lane]));
            }
            CHECK(isnan(s[row * lanes + bad]));
            randomize(s, n * lanes);
            K->softmax(s, n, NULL, 0, 1, clean.m, clean.l, clean.alpha);
            for (int lane = 0; lane < lanes; lane++)
                CHECK(isnan(clean.l[lane]) == (lane == bad));
            clean_up("softmax");
        }
}

/* One row per query, as many keys as there are; row 1 sees nothing. */
static void check_softmax_rows(int64_t n, int64_t keys, double offset) {
    const int64_t lds = (keys + 15) / 16 * 16;
    float *s = take_packed(n * lds), *kept = take_packed(n * lds), *m = take_floats(n), *l = take_floats(n);
    for (int64_t i = 0; i < n * lds; i++) /* what is beyond the keys has no meaning */
        kept[i] = s[i] = i % lds >= keys ? NAN : uniform() < 0.3 || i / lds == 1 ? -INFINITY : (float)(offset + 4 * normal());
    K->softmax_rows(s, lds, n, keys, m, l);
    for (int64_t i = 0; i < n; i++) {
        double max = -INFINITY, sum = 0;
        for (int64_t key = 0; key < keys; key++)
            max = fmax(max, kept[i * lds + key]);
        CHECK_MSG(m[i] == max, "m %g, expected %g", m[i], max);
        for (int64_t key = 0; key < keys; key++) {
            const double x = kept[i * lds + key], p = x == -INFINITY ? 0 : exp2(x - max), got = s[i * lds + key];
            sum += p;
            CHECK_MSG(p == 0 ? got == 0 : fabs(got - p) <= p * 2e-7 * (2 + fabs(x) + fabs(max)) + 1e-37, "p %.9g, expected %.9g", got, p);
        }
        CHECK_MSG(fabs(l[i] - sum) <= (2e-5 + 2e-7 * fabs(offset)) * sum, "l %.9g, expected %.9g", l[i], sum);
    }
    clean_up("softmax_rows");
}

static void softmax_rows(void) {
    for (int64_t n = 1; n <= 16; n += 3)
        for (int64_t keys = 1; keys <= 130; keys += 1 + keys / 8)
            for (int variant = 0; variant < 4; variant++) {
                at_end = variant & 1;
                check_softmax_rows(n, keys, variant & 2 ? -200 : 0);
            }
}

static void check_softmax_backward(int64_t n, bool masked) {
    const int lanes = K->lanes;
    float *s = random_packed(n * lanes), *dp = random_packed(n * lanes), *mask = random_packed(n * lanes), *kept = take_packed(n * lanes),
          *kept_dp = take_packed(n * lanes), *lse = random_floats(n), *delta = random_floats(n);
    for (int64_t i = 0; i < n * lanes; i++)
        if (uniform() < 0.3) {
            mask[i] = -INFINITY;
            if (masked)
                s[i] = uniform() < 0.5 ? NAN : INFINITY, dp[i] = uniform() < 0.5 ? NAN : 1e30f;
        }
    lse[n / 2] = INFINITY; /* a row that saw nothing */
    memcpy(kept, s, (size_t)(n * lanes) * sizeof *s);
    memcpy(kept_dp, dp, (size_t)(n * lanes) * sizeof *dp);
    K->softmax_backward(s, dp, dp, n, masked ? mask : NULL, n, 1, lse, delta);
    for (int64_t i = 0; i < n * lanes; i++) {
        if (masked && mask[i] == -INFINITY) {
            CHECK(same_bits(s[i], 0) && same_bits(dp[i], 0));
            continue;
        }
        float x = kept[i] + (masked ? mask[i] : 0), y = kept_dp[i] - delta[i / lanes];
        double p = exp2((double)(x - lse[i / lanes])), ds = p * y;
        CHECK_MSG(fabs(s[i] - p) <= 2.5e-7 * p && fabs(dp[i] - ds) <= 4e-7 * fabs(ds), "p %.9g ds %.9g, expected %.9g %.9g", s[i], dp[i], p,
                  ds);
    }
    clean_up("softmax_backward");
}

static void softmax_backward(void) {
    for (int64_t n = 1; n <= 13; n++)
        for (int variant = 0; variant < 4; variant++) {
            at_end = variant & 1;
            check_softmax_backward(n, variant & 2);
        }
}

/* ---- packing ---- */

static void check_pack(int64_t n, int64_t k, int64_t ld, float scale) {
    const int64_t extra = k % 3; /* zero rows after the n of pack_cols */
    const int64_t rows = K->rows, lanes = K->lanes, rows_n = (n + rows - 1) / rows * rows, rows_k = (k + rows - 1) / rows * rows;
    const float *x = random_floats((n - 1) * ld + k);
    float *by_lane = take_packed(n <= lanes ? k * lanes : 0), *by_row = take_packed(rows_n * k),
          *by_col = take_packed(rows_k * (n + extra)), *turned = take_packed(rows_k * n);
    if (n <= lanes)
        K->pack_lanes(by_lane, x, ld, n, k, scale);
    K->pack_rows(by_row, x, ld, n, k, scale);
    K->pack_cols(by_col, x, ld, n, n + extra, k, rows);
    K->pack_transposed(turned, x, ld, n, k);
    bool ok = true;
    for (int64_t i = 0; i < lanes && n <= lanes; i++)
        for (int64_t d = 0; d < k; d++)
            ok &= same_bits(by_lane[d * lanes + i], i < n ? x[i * ld + d] * scale : 0);
    CHECK_MSG(ok, "pack_lanes n %lld k %lld", (long long)n, (long long)k);
    for (int64_t i = 0; i < rows_n; i++)
        for (int64_t d = 0; d < k; d++)
            ok &= same_bits(by_row[i / rows * rows * k + d * rows + i % rows], i < n ? x[i * ld + d] * scale : 0);
    CHECK_MSG(ok, "pack_rows n %lld k %lld", (long long)n, (long long)k);
    for (int64_t i = 0; i < n + extra; i++)
        for (int64_t d = 0; d < rows_k; d++)
            ok &= same_bits(by_col[d / rows * rows * (n + extra) + i * rows + d % rows], i < n && d < k ? x[i * ld + d] : 0);
    CHECK_MSG(ok, "pack_cols n %lld k %lld", (long long)n, (long long)k);
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < rows_k; d++)
            ok &= same_bits(turned[d / rows * rows * n + i * rows + d % rows], d < k ? x[i * ld + d] : 0);
    CHECK_MSG(ok, "pack_transposed n %lld k %lld", (long long)n, (long long)k);
    clean_up("packing");
}

static void check_unpack(int64_t n, int64_t k, int64_t ld, bool scaled) {
    const int64_t lanes = K->lanes;
    const float *panel = random_packed(k * lanes), *scale = random_packed(lanes);
    float *x = take_floats((n - 1) * ld + k);
    K->unpack_lanes(x, ld, panel, n, k, scaled ? scale : NULL);
    bool ok = true;
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < ld && i * ld + d < (n - 1) * ld + k; d++)
            ok &= d < k ? same_bits(x[i * ld + d], panel[d * lanes + i] * (scaled ? scale[i] : 1)) : is_gap(x + i * ld + d);
    CHECK_MSG(ok, "unpack_lanes n %lld k %lld", (long long)n, (long long)k);
    clean_up("unpack_lanes");
}

static void packing(void) {
    for (int64_t n = 1; n <= K->lanes || n <= 2 * K->rows + 1; n += small() ? 5 : 1)
        for (int64_t k = 1; k <= 2 * 16 + 1; k++)
            for (int variant = 0; variant < 4; variant++) {
                at_end = variant & 1;
                check_pack(n, k, k + (variant & 2 ? 3 : 0), variant & 2 ? 0.37f : 1);
            }
    check_pack(K->lanes, 256, 256, 0.125f);
}

static void unpacking(void) {
    for (int64_t n = 1; n <= K->lanes; n += small() ? 5 : 1)
        for (int64_t k = 1; k <= 2 * 16 + 1; k++)
            for (int variant = 0; variant < 4; variant++) {
                at_end = variant & 1;
                check_unpack(n, k, k + (variant & 2 ? 3 : 0), variant & 2);
            }
}

static void scale_lanes(void) {
    for (int64_t k = 0; k <= 9; k++)
        for (int end = 0; end < 2; end++) {
            at_end = end;
            float *panel = random_packed(k * K->lanes), *kept = take_packed(k * K->lanes), *factor = random_packed(K->lanes);
            memcpy(kept, panel, (size_t)(k * K->lanes) * sizeof *panel);
            K->scale_lanes(panel, k, factor);
            for (int64_t i = 0; i < k * K->lanes; i++)
                CHECK(same_bits(panel[i], kept[i] * factor[i % K->lanes]));
            clean_up("scale_lanes");
        }
}

/* ---- storage ---- */

static float from_half(uint16_t x, ra_dtype t) {
    return t == RA_BF16 ? ra__from_bf16(x) : ra__from_f16(x);
}

static uint16_t to_half(float x, ra_dtype t) {
    return t == RA_BF16 ? ra__to_bf16(x) : ra__to_f16(x);
}

static void check_rows(ra_dtype t, int64_t n, int64_t k, int64_t extra) {
    const int64_t ld = k + extra, stride = k + 2 * extra, size = (int64_t)ra_dtype_size(t);
    const int64_t wide_n = n ? (n - 1) * ld + k : 0, stored_n = n ? (n - 1) * stride + k : 0;
    char *stored = take(stored_n * size, (size_t)size), *again = take(stored_n * size, (size_t)size);
    float *wide = take_floats(wide_n);
    for (int64_t i = 0; i < stored_n; i++)
        put_value(stored, t, i, normal());
    K->load_rows(wide, ld, stored, t, stride, n, k);
    K->store_rows(again, t, stride, wide, ld, n, k);
    bool ok = true;
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < ld && i * ld + d < wide_n; d++)
            ok &= d < k ? wide[i * ld + d] == get_value(stored, t, i * stride + d) : is_gap(wide + i * ld + d);
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < stride && i * stride + d < stored_n; d++) {
            const char *x = again + (i * stride + d) * size;
            ok &= d < k ? memcmp(x, stored + (i * stride + d) * size, (size_t)size) == 0 : x[0] == (char)0xa5 && x[1] == (char)0xa5;
        }
    CHECK_MSG(ok, "dtype %d, %lld rows of %lld", (int)t, (long long)n, (long long)k);
    clean_up("load_rows or store_rows");
}

static void rows_of_all_types(void) {
    for (int t = 0; t < 3; t++)
        for (int64_t n = 0; n <= 3; n++)
            for (int64_t k = 1; k <= 40; k++)
                for (int variant = 0; variant < 4; variant++) {
                    at_end = variant & 1;
                    check_rows((ra_dtype)t, n, k, variant & 2 ? 3 : 0);
                }
}

/* Rows of storage, heads inside tokens or tokens inside heads, with gaps or without. */
static struct ra__rows_of_heads random_rows(ra_dtype t, int64_t tokens, int64_t heads, int64_t k, bool heads_inside, int64_t extra) {
    const int64_t size = (int64_t)ra_dtype_size(t), row = k + extra, outer = heads_inside ? tokens : heads,
                  inner = heads_inside ? heads : tokens, stored = (outer * inner - 1) * row + k;
    char *data = take(stored * size, (size_t)size);
    for (int64_t i = 0; i < stored; i++)
        put_value(data, t, i, normal());
    return (struct ra__rows_of_heads){data, t, heads_inside ? inner * row : row, heads_inside ? row : inner * row, tokens, heads};
}

static double value_of(const struct ra__rows_of_heads *x, int64_t token, int64_t head, int64_t d) {
    return get_value(x->data, x->dtype, token * x->token_stride + head * x->head_stride + d);
}

static void check_dot_rows(int64_t n, const struct ra__rows_of_heads *x, int64_t k) {
    const int64_t ldq = (k + 15) / 16 * 16, lds = x->tokens + 3, rows = x->heads * n, size = (rows - 1) * lds + x->tokens;
    float *q = take_packed(rows * ldq), *s = take_floats(size);
    for (int64_t i = 0; i < rows * ldq; i++)
        q[i] = i % ldq < k ? (float)normal() : 0;
    for (int64_t i = 0; i < size; i++)
        s[i] = 77;
    K->dot_rows(q, ldq, n, x, k, s, lds);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t token = 0; token < lds && row * lds + token < size; token++) {
            double sum = token < x->tokens ? 0 : 77, size_of_terms = 1e-3;
            for (int64_t d = 0; d < k && token < x->tokens; d++) {
                const double term = q[row * ldq + d] * value_of(x, token, row / n, d);
                sum += term;
                size_of_terms += fabs(term);
            }
            CHECK_MSG(fabs(s[row * lds + token] - sum) <= 1e-6 * size_of_terms,
                      "dtype %d, n %lld, %lld tokens, %lld heads, k %lld: [%lld][%lld] %g, expected %g", (int)x->dtype, (long long)n,
                      (long long)x->tokens, (long long)x->heads, (long long)k, (long long)row, (long long)token, s[row * lds + token], sum);
        }
    clean_up("dot_rows");
}

static void check_add_rows(int64_t n, const struct ra__rows_of_heads *x, int64_t k, int64_t extra) {
    const int64_t ldp = x->tokens + 2, ldo = k + extra, o_head = n * ldo + extra, out_n = (x->heads - 1) * o_head + (n - 1) * ldo + k;
    const float *p = random_floats(x->heads * n * ldp);
    float *out = random_floats(out_n), *before = malloc((size_t)out_n * sizeof *before),
          *expected = malloc((size_t)out_n * sizeof *expected);
    memcpy(before, out, (size_t)out_n * sizeof *before);
    memcpy(expected, out, (size_t)out_n * sizeof *expected);
    K->add_rows(p, ldp, n, x, k, out, ldo, o_head);
    for (int64_t head = 0; head < x->heads; head++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t d = 0; d < k; d++) {
                const int64_t at = head * o_head + i * ldo + d;
                double sum = before[at], size_of_terms = fabs(sum);
                for (int64_t token = 0; token < x->tokens; token++) {
                    const double term = p[(head * n + i) * ldp + token] * value_of(x, token, head, d);
                    sum += term;
                    size_of_terms += fabs(term);
                }
                CHECK_MSG(fabs(out[at] - sum) <= 1e-6 * size_of_terms,
                          "dtype %d, n %lld, %lld tokens, %lld heads, k %lld: [%lld][%lld][%lld] %g, expected %g", (int)x->dtype,
                          (long long)n, (long long)x->tokens, (long long)x->heads, (long long)k, (long long)head, (long long)i,
                          (long long)d, out[at], sum);
                expected[at] = out[at];
            }
    CHECK(memcmp(out, expected, (size_t)out_n * sizeof *out) == 0); /* gaps are left alone */
    free(before);
    free(expected);
    clean_up("add_rows");
}

static void rows_of_heads(void) {
    static const int64_t widths[] = {1, 7, 8, 15, 16, 17, 31, 32, 33, 48, 64, 70, 130};
    for (int t = 0; t < 3; t++)
        for (int64_t n = 1; n <= 17; n += n < 5 || n > 7 ? 1 : 3)
            for (size_t w = 0; w < sizeof widths / sizeof *widths; w += small() ? 3 : 1)
                for (int variant = 0; variant < 8; variant++) {
                    const int64_t tokens = variant & 2 ? 21 : 1 + n % 6, heads = variant & 4 ? 3 : 1, extra = variant & 2 ? 5 : 0;
                    at_end = variant & 1;
                    const struct ra__rows_of_heads x = random_rows((ra_dtype)t, tokens, heads, widths[w], n & 1, extra);
                    check_dot_rows(n, &x, widths[w]);
                    const struct ra__rows_of_heads y = random_rows((ra_dtype)t, tokens, heads, widths[w], n & 1, extra);
                    check_add_rows(n, &y, widths[w], extra);
                }
}

/* Score modifiers: of the sets with fp32 products. */
static void modifiers(void) {
    for (int64_t n = 64; n <= 192; n += 64) {
        float *s = take_packed(n), *slope = take_packed(n), *x = random_packed(n), *y = random_packed(n), *mask = take_packed(n);
        float *kept = malloc((size_t)n * sizeof *kept);
        for (int64_t i = 0; i < n; i++) {
            kept[i] = s[i] = i == 3 ? NAN : i == 4 ? INFINITY : i == 5 ? -1e30f : (float)(60 * normal());
            mask[i] = i % 3 ? 0 : -INFINITY;
        }
        K->softcap(s, slope, n, 30);
        for (int64_t i = 0; i < n; i++) {
            const double t = tanh(kept[i] / 30.0);
            CHECK_MSG(i == 3 ? isnan(s[i]) && slope[i] == 0 : fabs(s[i] - 30 * t) <= 4e-7 * 30 * fabs(t), "softcap of %g: %g", kept[i],
                      s[i]);
            CHECK_MSG(i == 3 || fabs(slope[i] - (1 - t * t)) <= 8e-7, "slope of %g: %g, expected %g", kept[i], slope[i], 1 - t * t);
        }
        for (int sign = -1; sign <= 1; sign += 2) /* where tanh is nearly 1, as far as where its slope ends, and beyond */
            for (int64_t first = 0; first < 1280; first += n) {
                for (int64_t i = 0; i < n; i++)
                    kept[i] = s[i] = (float)sign * (7.5f + (float)(first + i) / 1024) * 4;
                K->softcap(s, slope, n, 4);
                for (int64_t i = 0; i < n; i++) {
                    const double e = exp(-2 * fabs(kept[i] / 4.0)), right = 4 * e / ((1 + e) * (1 + e));
                    CHECK_MSG(fabs(slope[i] - right) <= 6e-7 && (slope[i] == 0 || fabs(kept[i] / 4.0) < 8.317767),
                              "slope of %.9g: %g, expected %g", kept[i], slope[i], right);
                }
            }
        for (int64_t i = 0; i < n; i++)
            s[i] = i % 3 == 0 ? INFINITY : i % 3 == 1 ? -3e38f : 34;
        K->softcap(s, slope, n, 4);
        for (int64_t i = 0; i < n; i++)
            CHECK_MSG(slope[i] == 0 && fabs(fabs(s[i]) - 4) <= 2e-6, "far out: %g with slope %g", s[i], slope[i]);
        memcpy(kept, x, (size_t)n * sizeof *kept);
        K->multiply(x, y, n);
        for (int64_t i = 0; i < n; i++)
            CHECK(x[i] == kept[i] * y[i]);
        for (int64_t i = 0; i < n; i++)
            kept[i] = x[i] = i % 6 ? (float)normal() : NAN; /* NaN where it is dropped */
        K->drop(x, mask, 1.25f, n);
        for (int64_t i = 0; i < n; i++)
            CHECK(i % 3 ? x[i] == kept[i] * 1.25f : x[i] == 0);
        free(kept);
        clean_up("modifiers");
    }
}

/* Against Random123 itself. */
static void philox(void) {
    uint32_t counter[4][64], expected[64][4];
    for (int i = 0; i < 64; i++) {
        uint32_t first[4];
        for (int word = 0; word < 4; word++)
            first[word] = counter[word][i] = (uint32_t)(uniform() * 4294967295.0);
        const philox4x32_ctr_t c = {{first[0], first[1], first[2], first[3]}};
        const philox4x32_key_t key = {{0x12345678u, 0xfedcba98u}};
        const philox4x32_ctr_t r = philox4x32_R(10, c, key);
        memcpy(expected[i], r.v, sizeof expected[i]);
    }
    K->philox(counter, 0x12345678u, 0xfedcba98u);
    for (int i = 0; i < 64; i++)
        for (int word = 0; word < 4; word++)
            CHECK(counter[word][i] == expected[i][word]);
}

/* All 65536 patterns, in vectors and one by one (rows of length 1). */
static void every_half_is_loaded(void) {
    uint16_t *all = malloc(65536 * sizeof *all);
    float *wide = malloc(65536 * sizeof *wide);
    for (int i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    for (int t = RA_BF16; t <= RA_F16; t++)
        for (int single = 0; single < 2; single++) {
            K->load_rows(wide, 1, all, (ra_dtype)t, 1, single ? 65536 : 1, single ? 1 : 65536);
            for (int i = 0; i < 65536; i++) {
                float expected = from_half((uint16_t)i, (ra_dtype)t);
                CHECK_MSG(isnan(expected) ? isnan(wide[i]) : same_bits(wide[i], expected), "dtype %d: 0x%04x is loaded as %g", t, i,
                          wide[i]);
            }
        }
    free(all);
    free(wide);
}

/* The value that x has after rounding to `bits` significant bits, exponents low..high: in double, by nearbyint. */
static double rounded(float x, int bits, int low, int high) {
    int exponent;
    frexp(x, &exponent); /* |x| in [2^(e-1), 2^e) */
    exponent = exponent - 1 < low ? low : exponent - 1;
    double r = x == 0 ? 0 : ldexp(nearbyint(ldexp(x, bits - 1 - exponent)), exponent - bits + 1);
    return fabs(r) >= ldexp(1, high + 1) ? copysign(INFINITY, x) : r;
}

static bool check_narrow(float x) {
    bool ok = true;
    for (int t = RA_BF16; t <= RA_F16; t++) {
        float got = from_half(to_half(x, (ra_dtype)t), (ra_dtype)t);
        if (isnan(x))
            ok &= CHECK_MSG(isnan(got), "dtype %d: NaN becomes %g", t, got);
        else
            ok &=
                CHECK_MSG(got == (float)(t == RA_BF16 ? rounded(x, 8, -126, 127) : rounded(x, 11, -14, 15)) && !signbit(x) == !signbit(got),
                          "dtype %d: %.9g is rounded to %.9g", t, x, got);
    }
    return ok;
}

/* Values from the patterns of a half, by its definition. */
static double half_value(int i, int bits, int low) {
    const int fraction_bits = bits - 1, exponent_bits = 16 - bits, exponent = i >> fraction_bits & ((1 << exponent_bits) - 1);
    const double fraction = i & ((1 << fraction_bits) - 1), sign = i >> 15 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1)
        return fraction > 0 ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, low - fraction_bits);
    return sign * ldexp(fraction + (1 << fraction_bits), exponent - 1 + low - fraction_bits);
}

static void half_h(void) {
    for (int i = 0; i < 65536; i++)
        for (int t = RA_BF16; t <= RA_F16; t++) {
            const double expected = t == RA_BF16 ? half_value(i, 8, -126) : half_value(i, 11, -14);
            const float got = from_half((uint16_t)i, (ra_dtype)t);
            CHECK(isnan(expected) ? isnan(got) : got == expected && !signbit(got) == !signbit(expected));
            CHECK(isnan(expected) ? isnan(from_half(to_half(got, (ra_dtype)t), (ra_dtype)t)) : to_half(got, (ra_dtype)t) == i);
        }
    for (int i = -2100; i <= 2100; i++) { /* ties on fp16's denormal grid and beyond, and their neighbours */
        float tie = (float)i * 0x1p-25f;
        CHECK(check_narrow(tie) && check_narrow(nextafterf(tie, 1)) && check_narrow(nextafterf(tie, -1)));
    }
    static const float edges[] = {65504, 65519.996f, 65520, 65535, 65536, 3.4028234e38f, 3.3895314e38f, 3.3961775e38f, 0x1p-25f, 1e-45f, 0};
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
        CHECK(check_narrow(edges[i]) && check_narrow(-edges[i]));
    CHECK(check_narrow(INFINITY) && check_narrow(-INFINITY) && check_narrow(NAN) && check_narrow(ra__float(0x7f800001)) &&
          check_narrow(ra__float(0xffffffff)));
}

/* Floats around every value and every tie of both types, through half.h and, in vectors and one by one, through the kernels. */
static void every_rounding(void) {
    static const uint32_t low_bits[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x1fff};
    enum { LOW = 6, CHUNK = 1 << 12 };
    static float x[CHUNK * LOW];
    static uint16_t narrow[CHUNK * LOW];
    for (uint32_t high = 0; high < 1u << 19; high += CHUNK * (small() ? 5 : 1)) {
        for (int i = 0; i < CHUNK * LOW; i++)
            x[i] = ra__float((high + (uint32_t)i / LOW) << 13 | low_bits[i % LOW]);
        for (int i = 0; i < CHUNK * LOW; i++)
            if (!check_narrow(x[i]))
                return;
        for (int t = RA_BF16; t <= RA_F16; t++)
            for (int single = 0; single < 2; single++) {
                const int64_t n = CHUNK * LOW;
                K->store_rows(narrow, (ra_dtype)t, 1, x, 1, single ? n : 1, single ? 1 : n);
                for (int i = 0; i < n; i++) {
                    const bool ok = isnan(x[i]) ? isnan(from_half(narrow[i], (ra_dtype)t)) : narrow[i] == to_half(x[i], (ra_dtype)t);
                    CHECK_MSG(ok, "dtype %d: %.9g is stored as 0x%04x", t, x[i], narrow[i]);
                }
            }
    }
}

static void all_finite(void) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int64_t k = 1; k <= 35; k++)
        for (int variant = 0; variant < 4; variant++) {
            at_end = variant & 1;
            const int64_t n = 3, ld = k + (variant & 2 ? 2 : 0), size = (n - 1) * ld + k;
            float *x = take_floats(size);
            for (int64_t i = 0; i < size; i++)
                x[i] = i % ld >= k ? NAN : i % 3 ? 3.4028234e38f : -1e-40f; /* gaps are not looked at */
            CHECK(K->all_finite(x, ld, n, k));
            CHECK(K->all_finite(x, ld, 0, k));
            for (int64_t i = 0; i < size; i++) {
                const float kept = x[i];
                x[i] = bad[i % 3];
                CHECK(i % ld >= k || !K->all_finite(x, ld, n, k));
                x[i] = kept;
            }
            clean_up("all_finite");
        }
}

/* ---- exp2 ---- */

static double ulp(double x) {
    int exponent;
    frexp(x, &exponent);
    return ldexp(1, (exponent < -125 ? -125 : exponent) - 24);
}

static double worst_ulp;

static double exp2_bound(void) { /* one more rounding per step of the polynomial where multiply-adds are not fused */
    return strcmp(K->isa, "scalar") == 0 ? 2.25 : 2;
}

static void check_exp2(float x, float got) {
    const double expected = exp2((double)x), error = fabs(got - expected) / ulp(expected);
    if (isnan(x))
        CHECK_MSG(isnan(got), "2^NaN is %g", got);
    else if (x <= -126.5f)
        CHECK_MSG(same_bits(got, 0), "2^%.9g is %g, not 0", x, got);
    else if (x > 127.5f)
        CHECK_MSG(got == INFINITY, "2^%.9g is %g, not inf", x, got);
    else {
        CHECK_MSG(error <= exp2_bound(), "2^%.9g is %.9g: %.3g ulp", x, got, error);
        worst_ulp = error > worst_ulp ? error : worst_ulp;
    }
}

static void exp2_of_array(float *x, int64_t n) {
    float *y = malloc((size_t)n * sizeof *y);
    memcpy(y, x, (size_t)n * sizeof *y);
    K->exp2(y, n);
    for (int64_t i = 0; i < n; i++)
        check_exp2(x[i], y[i]);
    free(y);
}

static void exp2_everywhere(void) {
    enum { MANTISSAS = 600 };
    static float x[MANTISSAS];
    for (uint32_t top = 0; top < 512; top++) { /* sign and exponent */
        for (uint32_t i = 0; i < MANTISSAS; i++)
            x[i] = ra__float(top << 23 | (i < 3 ? i : i < 6 ? 0x7fffff - i + 3 : (uint32_t)(uniform() * 0x800000)));
        exp2_of_array(x, MANTISSAS);
    }
    for (int i = -150 * 8; i <= 150 * 8; i++) { /* integers, halves, eighths and their neighbours */
        float at = (float)i / 8, near[3] = {nextafterf(at, -INFINITY), at, nextafterf(at, INFINITY)};
        exp2_of_array(near, 3);
    }
    for (int i = -126; i <= 127; i++) {
        float y = (float)i;
        K->exp2(&y, 1);
        CHECK_MSG(y == (float)ldexp(1, i), "2^%d is not exact: %.9g", i, y);
    }
    printf("exp2: worst error %.3f ulp\n", worst_ulp);
}

static void exp2_in_place(void) {
    for (int64_t n = 0; n <= 40; n++)
        for (int end = 0; end < 2; end++) {
            at_end = end;
            float *x = random_floats(n), *kept = take_floats(n);
            memcpy(kept, x, (size_t)n * sizeof *x);
            K->exp2(x, n);
            for (int64_t i = 0; i < n; i++)
                check_exp2(kept[i], x[i]);
            clean_up("exp2");
        }
}

/* The kernels that work on fp32 and storage, whatever the operands of products are. */
static void on_fp32(void) {
    softmax_rows();
    unpacking();
    scale_lanes();
    rows_of_all_types();
    rows_of_heads();
    modifiers();
    philox();
    every_half_is_loaded();
    every_rounding();
    all_finite();
    exp2_everywhere();
    exp2_in_place();
}

static void table(void) {
    const char *cap = getenv("RA_ISA");
    if (cap) { /* levels of bf16 products have the fp32 kernels of avx512 */
        const char *fp32 = strcmp(cap, "avx512bf16") && strcmp(cap, "amx") ? cap : "avx512";
        CHECK_MSG(strcmp(K->isa, fp32) == 0, "RA_ISA=%s chooses %s", cap, K->isa);
        CHECK_MSG(strcmp(ra__kernels_bf16()->isa, cap) == 0, "RA_ISA=%s chooses %s for bf16", cap, ra__kernels_bf16()->isa);
    }
    CHECK(strcmp(ra_isa(), K->isa) == 0);
    CHECK(ra__isa_usual(RA__AVX512BF16, "GenuineIntel") == RA__AVX512 && ra__isa_usual(RA__AVX512BF16, "AuthenticAMD") == RA__AVX512BF16);
    CHECK(ra__isa_usual(RA__AMX, "GenuineIntel") == RA__AMX && ra__isa_usual(RA__AVX2, "GenuineIntel") == RA__AVX2);
    CHECK(K->lanes > 0 && K->lanes <= 64 && K->rows > 0 && K->row_tile > 0 && K->col_tile > 0);
    CHECK(K->peak(1e-3) > 0 && ra_measure_peak(2, 1e-3) > 0 && ra_measure_peak(0, 1) == 0 && ra_measure_peak(1, NAN) == 0);
    CHECK(ra_measure_bandwidth(2, 1e-3) > 0 && ra_measure_bandwidth(0, 1) == 0 && ra_measure_bandwidth(1, NAN) == 0);
    printf("%s: gemm %dx%d, gemm_rows %dx%d\n", K->isa, K->rows, K->lanes, K->row_tile, K->col_tile);
}

int main(void) {
    K = ra__kernels();
    make_rooms();
    RUN(table);
    RUN(gemm_is_a_chain);
    RUN(gemm_rows_is_a_chain);
    RUN(softmax_of_any_size);
    RUN(nothing_seen);
    RUN(hidden_scores);
    RUN(nan_scores_stay_in_their_lane);
    RUN(softmax_backward);
    RUN(packing);
    RUN(half_h);
    RUN(on_fp32);
    if (ra__kernels_bf16() != K) { /* the same kernels of the set for bf16 products, see also test_block_bf16.c */
        K = ra__kernels_bf16();
        RUN(on_fp32);
    }
    return check_result();
}
