/* The kernels that know bf16 pairs, where the machine has them, against plain code in double: products, both softmaxes, packing. Operands
 * lie between guard pages as in test_block.c, which has the other kernels. */
#define _DEFAULT_SOURCE
#include "guard.h"

#include "block/kernels.h"
#include "harness.h"

static const struct ra__kernels *K;

static bool small(void) {
    return getenv("RA_TEST_SMALL") != NULL;
}

static double low_of(const float *word) {
    return ra__from_bf16((uint16_t)(ra__bits(*word) & 0xffff));
}

static double high_of(const float *word) {
    return ra__from_bf16((uint16_t)(ra__bits(*word) >> 16));
}

/* Value (row, lane) of words [n/2][lanes]. */
static double col_value(const float *words, int64_t row, int64_t lane) {
    const float *word = words + row / 2 * K->lanes + lane;
    return row % 2 ? high_of(word) : low_of(word);
}

static void random_words(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const uint32_t low = ra__to_bf16((float)normal()), high = ra__to_bf16((float)normal());
        x[i] = ra__float(high << 16 | low);
    }
}

/* Words whose products and sums are exact: halves are small integers. */
static void random_integers(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const uint32_t low = ra__to_bf16((float)(int)(uniform() * 17 - 8)), high = ra__to_bf16((float)(int)(uniform() * 17 - 8));
        x[i] = ra__float(high << 16 | low);
    }
}

static void fill_words(float *x, int64_t n, bool integers) {
    if (integers)
        random_integers(x, n);
    else
        random_words(x, n);
}

static void randomize(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)normal();
}

/* Words that k values take in a row of a left panel; place of word w of row i among such panels. */
static int64_t left_words(int64_t k) {
    return (k + K->k_step - 1) / K->k_step * K->k_step / 2;
}

static int64_t left_place(int64_t i, int64_t w, int64_t words) {
    const int64_t rows = K->rows, step = K->k_step / 2;
    return i / rows * rows * words + w / step * rows * step + i % rows * step + w % step;
}

/* ---- products ---- */

static bool close_to(float got, double sum, double size, int64_t steps, bool integers) {
    return integers ? got == sum : fabs(got - sum) <= (double)(2 * steps + 2) * 0x1p-23 * size;
}

/* A is filled up with any finite values: B ends at its k-th word, or has NaN there. */
static void check_gemm(int64_t k, int64_t panels, int64_t extra, bool accumulate, bool integers) {
    const int64_t rows = K->rows, lanes = K->lanes, words = left_words(2 * k), stride = words * rows + extra;
    const int64_t n = panels ? (panels - 1) * stride + words * rows : 0;
    float *a = take_packed(n), *b = take_packed((k + 1) * lanes) + (at_end ? lanes : 0), *c = take_packed(panels * rows * lanes),
          *before = take_packed(panels * rows * lanes);
    fill_words(a, n, integers);
    fill_words(b, k * lanes, integers);
    for (int64_t i = 0; i < lanes && !at_end; i++)
        b[k * lanes + i] = NAN;
    for (int64_t i = 0; i < panels * rows * lanes; i++)
        before[i] = (float)(integers ? (int)(100 * normal()) : normal());
    memcpy(c, before, (size_t)(panels * rows * lanes) * sizeof *c);
    if (!accumulate && panels)
        c[0] = NAN;
    K->prepare();
    K->gemm(a, stride, panels, b, k, c, accumulate);
    bool ok = true;
    for (int64_t i = 0; i < panels * rows; i++)
        for (int64_t lane = 0; lane < lanes; lane++) {
            double sum = accumulate ? before[i * lanes + lane] : 0, size = fabs(sum);
            for (int64_t s = 0; s < k; s++) {
                const float *x = a + i / rows * stride + left_place(i % rows, s, words), *y = b + s * lanes + lane;
                sum += low_of(x) * low_of(y) + high_of(x) * high_of(y);
                size += fabs(low_of(x) * low_of(y)) + fabs(high_of(x) * high_of(y));
            }
            const float got = c[i * lanes + lane];
            ok = ok && CHECK_MSG(close_to(got, sum, size, k, integers), "gemm of %lld words, row %lld, lane %lld: %.9g, fp64 %.9g",
                                 (long long)k, (long long)i, (long long)lane, got, sum);
        }
    clean_up("gemm");
}

static void gemm(void) {
    static const int64_t depths[] = {0, 1, 2, 7, 8, 9, 15, 16, 17, 33, 64, 129};
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++)
        for (int64_t panels = 0; panels <= 3; panels++)
            for (int variant = 0; variant < 16; variant++) {
                at_end = variant & 1;
                check_gemm(depths[i], panels, variant & 2 ? 16 : 0, variant & 4, variant & 8);
            }
}

/* Rows of S beyond n and what lies behind the words of its rows are NaN, rows of C lie `gap` apart. */
static void check_gemm_rows(int n, int64_t panels, int64_t extra, int64_t gap, bool integers) {
    const int64_t rows = K->row_tile, cols = K->col_tile, lanes = K->lanes, words = lanes / 2, stride = rows * lanes + extra;
    const int64_t size_s = (panels - 1) * stride + (rows - 1) * lanes + words, ldc = cols + gap, size_c = (n - 1) * ldc + cols;
    float *s = take_packed(size_s), *b = take_packed(panels * words * cols), *c = take_packed(size_c), *before = take_packed(size_c);
    for (int64_t i = 0; i < size_s; i++)
        s[i] = NAN;
    for (int64_t p = 0; p < panels; p++)
        for (int i = 0; i < n; i++)
            fill_words(s + p * stride + i * lanes, words, integers);
    fill_words(b, panels * words * cols, integers);
    for (int64_t i = 0; i < size_c; i++)
        if (i % ldc < cols)
            c[i] = (float)(integers ? (int)(100 * normal()) : normal());
    memcpy(before, c, (size_t)size_c * sizeof *c);
    K->prepare();
    K->gemm_rows(s, stride, panels, b, c, ldc, n);
    bool ok = true;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < cols; j++) {
            double sum = before[i * ldc + j], size = fabs(sum);
            for (int64_t l = 0; l < panels * words; l++) {
                const float *x = s + l / words * stride + i * lanes + l % words, *y = b + l * cols + j;
                sum += low_of(x) * low_of(y) + high_of(x) * high_of(y);
                size += fabs(low_of(x) * low_of(y)) + fabs(high_of(x) * high_of(y));
            }
            const float got = c[i * ldc + j];
            ok = ok &&
                 CHECK_MSG(close_to(got, sum, size, panels * words, integers), "gemm_rows n %d, panels %lld, [%lld][%lld]: %.9g, fp64 %.9g",
                           n, (long long)panels, (long long)i, (long long)j, got, sum);
        }
    for (int64_t i = 0; i < size_c; i++)
        CHECK(i % ldc < cols || is_gap(c + i));
    clean_up("gemm_rows");
}

static void gemm_rows(void) {
    for (int n = 1; n <= K->row_tile; n += small() && n + 5 < K->row_tile ? 5 : 1)
        for (int64_t panels = 1; panels <= 3; panels++)
            for (int variant = 0; variant < 8; variant++) {
                at_end = variant & 1;
                check_gemm_rows(n, panels, variant & 2 ? 16 : 0, variant & 2 ? 32 : 0, variant & 4);
            }
}

/* ---- softmax ---- */

/* p, rounded to bf16, of an argument that was rounded to fp32 up to three times. */
static bool is_probability(double got, double p, double argument) {
    return fabs(got - p) <= p * (0x1p-8 + 2e-7 * (fabs(argument) + 2)) + 1e-37;
}

struct online {
    float *m, *l, *alpha, *s, *mask, *kept;
};

static struct online online_new(int64_t n) {
    struct online o = {take_packed(K->lanes),     take_packed(K->lanes),     take_packed(K->lanes),
                       take_packed(n * K->lanes), take_packed(n * K->lanes), take_packed(n * K->lanes)};
    for (int i = 0; i < K->lanes; i++) {
        o.m[i] = -INFINITY;
        o.l[i] = 0;
    }
    return o;
}

/* Score (row, lane) as the kernel takes it, in double. */
static double score(const struct online *o, int64_t i, bool masked, float scale) {
    if (masked && o->mask[i] == -INFINITY)
        return -INFINITY;
    return (double)o->kept[i] * scale + (masked ? o->mask[i] : 0);
}

static void fold_and_check(struct online *o, int64_t n, bool masked, float scale) {
    const int lanes = K->lanes;
    float m[64], l[64];
    memcpy(m, o->m, (size_t)lanes * sizeof *m);
    memcpy(l, o->l, (size_t)lanes * sizeof *l);
    memcpy(o->kept, o->s, (size_t)(n * lanes) * sizeof *o->kept);
    const bool rescale = K->softmax(o->s, n, masked ? o->mask : NULL, 0, scale, o->m, o->l, o->alpha);
    for (int lane = 0; lane < lanes; lane++) {
        double max = m[lane], sum = 0;
        for (int64_t i = 0; i < n; i++)
            max = fmax(max, score(o, i * lanes + lane, masked, scale));
        CHECK_MSG(max == -INFINITY ? o->m[lane] == max : fabs(o->m[lane] - max) <= 2e-7 * fabs(max) + 1e-7, "m %.9g, expected %.9g",
                  o->m[lane], max);
        const double reference = max == -INFINITY ? 0 : o->m[lane];
        for (int64_t i = 0; i < n; i++) {
            const double x = score(o, i * lanes + lane, masked, scale), p = exp2(x - reference), got = col_value(o->s, i, lane);
            sum += p;
            CHECK_MSG(x == -INFINITY ? got == 0 : is_probability(got, p, fabs(x) + fabs(reference)), "p %.9g, expected %.9g", got, p);
        }
        CHECK(n % 2 == 0 || col_value(o->s, n, lane) == 0); /* the missing row of the last pair */
        const double alpha = exp2((double)(m[lane] - (float)reference));
        sum += l[lane] * alpha;
        CHECK_MSG(fabs(o->l[lane] - sum) <= 2e-5 * sum, "l %.9g, expected %.9g: it sums what is not rounded to bf16", o->l[lane], sum);
        CHECK(fabs(o->alpha[lane] - alpha) <= 2.5e-7 * alpha + 1e-37);
        CHECK(rescale || o->alpha[lane] == 1 || max == -INFINITY);
    }
}

static void softmax(void) {
    static const float scales[] = {1, 0.1803f, 2.5f};
    static const int64_t sizes[] = {1, 2, 3, 8, 17};
    for (int variant = 0; variant < 24; variant++) {
        at_end = variant & 1;
        const bool masked = variant & 2;
        const float scale = scales[variant / 4 % 3];
        const double offset = variant / 12 ? -30 : 0;
        struct online o = online_new(17);
        for (int block = 0; block < 5; block++) {
            const int64_t n = sizes[block] * K->lanes;
            for (int64_t i = 0; i < n; i++) {
                o.mask[i] = uniform() < 0.3 || i % K->lanes == 3 ? -INFINITY : (float)normal(); /* lane 3 sees nothing */
                o.s[i] = masked && o.mask[i] == -INFINITY ? (i % 2 ? NAN : INFINITY) : (float)(offset + 4 * normal());
                if (!masked && i % K->lanes == 3)
                    o.s[i] = -INFINITY;
            }
            for (int64_t i = 0; i < n; i++)
                if (masked && o.mask[i] == -INFINITY && block % 2)
                    o.s[i] = 1e30f;
            fold_and_check(&o, sizes[block], masked, scale);
            CHECK(o.m[3] == -INFINITY && o.l[3] == 0);
        }
        clean_up("softmax");
    }
}

static const uint32_t nans[] = {0x7fc00000, 0xffc00000, 0x7fffffff, 0xffffffff, 0x7f800001, 0xff800001, 0x7f80ffff};

enum { NANS = sizeof nans / sizeof *nans };

/* Whatever its payload. */
static void nan_scores_stay_in_their_lane(void) {
    const int lanes = K->lanes;
    for (int bad = 0; bad < lanes; bad++)
        for (int64_t row = 0; row < 5; row++) {
            struct online o = online_new(5);
            randomize(o.s, 5 * lanes);
            o.s[row * lanes + bad] = ra__float(nans[(bad + row) % NANS]);
            K->softmax(o.s, 5, NULL, 0, 0.5f, o.m, o.l, o.alpha);
            for (int lane = 0; lane < lanes; lane++) {
                CHECK(isnan(o.l[lane]) == (lane == bad));
                for (int64_t i = 0; i < 5; i++)
                    CHECK(isnan(col_value(o.s, i, lane)) == (lane == bad && i == row));
            }
            clean_up("softmax");
        }
}

static void nan_gradients_stay_in_their_place(void) {
    const int64_t lanes = K->lanes;
    for (int64_t bad = 0; bad < 5 * lanes; bad++) {
        float *s = take_packed(5 * lanes), *dp = take_packed(5 * lanes), *ds_cols = take_packed(3 * lanes);
        const float zeros[5] = {0};
        randomize(s, 5 * lanes);
        randomize(dp, 5 * lanes);
        *(bad % 2 ? s + bad : dp + bad) = ra__float(nans[bad % NANS]);
        K->softmax_backward(s, dp, ds_cols, 5, NULL, 0, 0.5f, zeros, zeros);
        bool ok = true;
        for (int64_t i = 0; i < 5 * lanes; i++) {
            const float *row_word = dp + i / lanes * lanes + i % lanes / 2;
            ok &= isnan(i % 2 ? high_of(row_word) : low_of(row_word)) == (i == bad);
            ok &= isnan(col_value(ds_cols, i / lanes, i % lanes)) == (i == bad);
            ok &= isnan(col_value(s, i / lanes, i % lanes)) == (i == bad && bad % 2);
        }
        CHECK_MSG(ok, "a NaN at %lld", (long long)bad);
        clean_up("softmax_backward");
    }
}

static void check_softmax_backward(int64_t n, bool masked, float scale) {
    const int64_t lanes = K->lanes, words = (n + 1) / 2 * lanes;
    float *s = take_packed(n * lanes + lanes), *dp = take_packed(n * lanes), *mask = take_packed(n * lanes), *ds_cols = take_packed(words),
          *kept = take_packed(n * lanes), *kept_dp = take_packed(n * lanes), *lse = take_floats(n), *delta = take_floats(n);
    float *all[] = {s, dp, mask};
    for (int i = 0; i < 3; i++)
        randomize(all[i], n * lanes);
    randomize(lse, n);
    randomize(delta, n);
    for (int64_t i = 0; i < n * lanes; i++)
        if (uniform() < 0.3) {
            mask[i] = -INFINITY;
            if (masked)
                s[i] = uniform() < 0.5 ? NAN : INFINITY, dp[i] = uniform() < 0.5 ? NAN : 1e30f;
        }
    lse[n / 2] = INFINITY; /* a row that saw nothing */
    memcpy(kept, s, (size_t)(n * lanes) * sizeof *s);
    memcpy(kept_dp, dp, (size_t)(n * lanes) * sizeof *dp);
    K->softmax_backward(s, dp, ds_cols, n, masked ? mask : NULL, n, scale, lse, delta);
    for (int64_t i = 0; i < n; i++)
        for (int64_t lane = 0; lane < lanes; lane++) {
            const int64_t at = i * lanes + lane;
            const float *row_word = dp + i * lanes + lane / 2;
            const double p = col_value(s, i, lane), ds = col_value(ds_cols, i, lane),
                         by_row = lane % 2 ? high_of(row_word) : low_of(row_word);
            CHECK(ds == by_row); /* twice the same, in two orders */
            if (masked && mask[at] == -INFINITY) {
                CHECK(p == 0 && ds == 0);
                continue;
            }
            const double x = (double)kept[at] * scale + (masked ? mask[at] : 0) - lse[i], expected = exp2(x);
            const double expected_ds = expected * ((double)kept_dp[at] - delta[i]);
            CHECK_MSG(is_probability(p, expected, x == -INFINITY ? 0 : x), "p %.9g, expected %.9g", p, expected);
            CHECK_MSG(fabs(ds - expected_ds) <= fabs(expected_ds) * 0x1p-8 + expected * 1e-5, "ds %.9g, expected %.9g", ds, expected_ds);
        }
    for (int64_t lane = 0; n % 2 && lane < lanes; lane++)
        CHECK(col_value(s, n, lane) == 0 && col_value(ds_cols, n, lane) == 0);
    clean_up("softmax_backward");
}

static void softmax_backward(void) {
    for (int64_t n = 1; n <= 13; n++)
        for (int variant = 0; variant < 8; variant++) {
            at_end = variant & 1;
            check_softmax_backward(n, variant & 2, variant & 4 ? 0.18f : 1);
        }
}

/* ---- packing ---- */

static void random_patterns(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        x[i] = ra__float((uint32_t)(uniform() * 0x1p32));
}

/* Value d of row i of pairs; beyond the k-th the memory holds other things. */
static uint32_t value_at(const float *x, int64_t ld, int64_t i, int64_t d) {
    return ra__bits(x[i * ld + d / 2]) >> (d % 2 ? 16 : 0) & 0xffff;
}

/* The word of values (i, d) and (i, d + 1), missing ones 0, all multiplied by sign. */
static uint32_t row_word(const float *x, int64_t ld, int64_t n, int64_t k, int64_t i, int64_t d, float sign) {
    if (i >= n)
        return 0;
    const uint32_t flip = sign < 0 ? 0x8000 : 0, low = value_at(x, ld, i, d) ^ flip;
    return low | (d + 1 < k ? (value_at(x, ld, i, d + 1) ^ flip) << 16 : 0);
}

static bool word_is(const float *x, uint32_t expected, int64_t k, int64_t d, float sign) {
    const uint32_t missing = d + 1 >= k && sign < 0 ? 0x80000000u : 0; /* -0 is 0 */
    return ra__bits(*x) == expected || ra__bits(*x) == (expected ^ missing);
}

static void check_pack(int64_t n, int64_t k, int64_t ld, float sign) {
    const int64_t rows = K->rows, lanes = K->lanes, words = (k + 1) / 2, rows_n = (n + rows - 1) / rows * rows;
    float *x = take_floats((n - 1) * ld + words);
    random_patterns(x, (n - 1) * ld + words); /* the last half of an odd row, too */
    const int64_t left = left_words(k);
    float *by_lane = take_packed(n <= lanes ? words * lanes : 0), *by_row = take_packed(rows_n * left);
    if (n <= lanes)
        K->pack_lanes(by_lane, x, ld, n, k, sign);
    K->pack_rows(by_row, x, ld, n, k, sign);
    bool ok = true;
    for (int64_t i = 0; i < lanes && n <= lanes; i++)
        for (int64_t w = 0; w < words; w++)
            ok &= word_is(&by_lane[w * lanes + i], row_word(x, ld, n, k, i, 2 * w, sign), k, 2 * w, sign);
    CHECK_MSG(ok, "pack_lanes n %lld k %lld sign %g", (long long)n, (long long)k, sign);
    for (int64_t i = 0; i < rows_n; i++)
        for (int64_t w = 0; w < left; w++)
            ok &= word_is(&by_row[left_place(i, w, left)], w < words ? row_word(x, ld, n, k, i, 2 * w, sign) : 0, k, 2 * w, sign);
    CHECK_MSG(ok, "pack_rows n %lld k %lld sign %g", (long long)n, (long long)k, sign);
    clean_up("packing");
}

/* The word of values (i, d) and (i + 1, d), 0 beyond n and k. */
static uint32_t column_word(const float *x, int64_t ld, int64_t n, int64_t k, int64_t i, int64_t d) {
    const uint32_t low = d < k && i < n ? value_at(x, ld, i, d) : 0, high = d < k && i + 1 < n ? value_at(x, ld, i + 1, d) : 0;
    return low | high << 16;
}

static void check_pack_cols(int64_t n, int64_t n_all, int64_t k, int64_t ld) {
    const int64_t width = K->col_tile, panels = (k + width - 1) / width, words = (n_all + 1) / 2;
    const int64_t left = left_words(n), rows_k = (k + K->rows - 1) / K->rows * K->rows;
    float *x = take_floats((n - 1) * ld + (k + 1) / 2), *by_col = take_packed(panels * words * width), *turned = take_packed(rows_k * left);
    random_patterns(x, (n - 1) * ld + (k + 1) / 2);
    K->pack_cols(by_col, x, ld, n, n_all, k, width);
    K->pack_transposed(turned, x, ld, n, k);
    bool ok = true;
    for (int64_t d = 0; d < panels * width; d++)
        for (int64_t w = 0; w < words; w++)
            ok &= ra__bits(by_col[d / width * words * width + w * width + d % width]) == column_word(x, ld, n, k, 2 * w, d);
    CHECK_MSG(ok, "pack_cols n %lld of %lld, k %lld", (long long)n, (long long)n_all, (long long)k);
    for (int64_t d = 0; d < rows_k; d++)
        for (int64_t w = 0; w < left; w++)
            ok &= ra__bits(turned[left_place(d, w, left)]) == column_word(x, ld, n, k, 2 * w, d);
    CHECK_MSG(ok, "pack_transposed n %lld, k %lld", (long long)n, (long long)k);
    clean_up("pack_cols or pack_transposed");
}

static void packing(void) {
    for (int64_t n = 1; n <= 2 * K->lanes; n += 1 + n / (small() ? 5 : 20))
        for (int64_t k = 1; k <= 70; k++)
            for (int variant = 0; variant < 4; variant++) {
                const int64_t ld = (k + 1) / 2 + (variant & 2 ? 3 : 0);
                at_end = variant & 1;
                check_pack(n, k, ld, variant & 2 ? -0.37f : 1);
                check_pack_cols(n, n + k % 4, k, ld);
            }
}

int main(void) {
    K = ra__kernels_bf16();
    if (K->pair != 2)
        CHECK_SKIP("no products of bf16 pairs at this level");
    CHECK(K->rows % K->k_step == 0 && K->k_step % 2 == 0 && K->lanes % 2 == 0 && K->lanes <= 64);
    printf("%s: gemm %dx%d, gemm_rows %dx%d, %d values of a sum at a time\n", K->isa, K->rows, K->lanes, K->row_tile, K->col_tile,
           K->k_step);
    make_rooms();
    RUN(gemm);
    RUN(gemm_rows);
    RUN(softmax);
    RUN(nan_scores_stay_in_their_lane);
    RUN(nan_gradients_stay_in_their_place);
    RUN(softmax_backward);
    RUN(packing);
    return check_result();
}
