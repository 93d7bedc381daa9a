/* The kernels, written once over the vector type of vec_*.h and compiled once per instruction set (kernels_*.c includes a vec_*.h, this
 * file and the products, then exports the table). Register tiles are NV vectors wide and MR rows high; every loop over them has constant
 * bounds and is unrolled completely, so that the accumulators stay in registers. */
#include <string.h>

#include "base/cpu.h"
#include "block/kernels.h"

#define NR (NV * W)
#define NC (COL_VECS * W)

#if defined(__clang__)
#define UNROLL   _Pragma("unroll")
#define UNROLL_8 _Pragma("unroll 8")
#else
#define UNROLL   _Pragma("GCC unroll 32")
#define UNROLL_8 _Pragma("GCC unroll 8")
#endif

/* 2^x: x = n + f with n the nearest integer, |f| <= 1/2, 2^f by a degree-5 polynomial with constant term 1 whose coefficients were
 * fitted with all roundings: over every float at most 1.99 ulp with fused multiply-adds, 2.25 without; times 2^n. Exactly 0 up to -126.5,
 * +inf above 127.5 (the true value overflows at 128); NaN stays NaN. */
static inline vec exp2_below(vec x) {                 /* x <= 127.5, or NaN */
    const vec magic = vec_set1(12582912.0f + 127.0f); /* adding 1.5 * 2^23 rounds to an integer, 127 makes that the exponent of 2^n */
    x = vec_max(vec_set1(-127.0f), x);
    vec t = vec_add(x, magic), f = vec_sub(x, vec_sub(t, magic));
    vec p = vec_fma(vec_set1(1.326580299e-3f), f, vec_set1(9.671470150e-3f));
    p = vec_fma(p, f, vec_set1(5.550752953e-2f));
    p = vec_fma(p, f, vec_set1(2.402224392e-1f));
    p = vec_fma(p, f, vec_set1(6.931469440e-1f));
    p = vec_fma(p, f, vec_set1(1.0f));
    return vec_mul(p, vec_exponent(t));
}

static inline vec exp2_vec(vec x) {
    return exp2_below(vec_min(vec_set1(128.0f), x));
}

static void exp2_array(float *x, int64_t n) {
    int64_t i = 0;
    for (; i + W <= n; i += W)
        vec_storeu(x + i, exp2_vec(vec_loadu(x + i)));
    float rest[W];
    for (int64_t j = i; j < n; j++) {
        for (int l = 0; l < W; l++)
            rest[l] = x[j];
        vec_storeu(rest, exp2_vec(vec_loadu(rest)));
        x[j] = rest[0];
    }
}

static inline void lane_max(const float *s, int64_t n, vec *max) {
    UNROLL for (int j = 0; j < NV; j++) {
        vec even = max[j], odd = even;
        int64_t row = 0;
        for (; row + 2 <= n; row += 2) { /* the old maximum second: it survives a NaN */
            even = vec_max(vec_load(s + row * NR + j * W), even);
            odd = vec_max(vec_load(s + (row + 1) * NR + j * W), odd);
        }
        if (row < n)
            even = vec_max(vec_load(s + row * NR + j * W), even);
        max[j] = vec_max(even, odd);
    }
}

/* s * scale + mask, or -inf. */
static __attribute__((noinline)) void apply_mask(float *s, const float *mask, float scale, int64_t n) {
    const vec factor = vec_set1(scale);
    for (int64_t i = 0; i < n * NR; i += W) {
        vec x = vec_load(s + i);
        vec_store(s + i, vec_hide(PAIR == 1 ? x : vec_mul(x, factor), vec_load(mask + i)));
    }
}

/* 2^(a - b) where a <= b: what is subtracted is the largest of all. */
static inline vec exp2_of_difference(vec a, vec b) {
    return exp2_below(vec_sub(a, b));
}

/* s * scale - reference; fp32 sets have no scale left to apply. */
static inline vec shifted(vec s, vec scale, vec reference) {
    return PAIR == 1 ? vec_sub(s, reference) : vec_fma(s, scale, vec_sub(vec_set1(0), reference));
}

/* 2^(s * scale - reference) where the reference is the largest s * scale. Rounded apart from that, the product of the bf16 sets can exceed
 * it by more than 127 where scores are of the order of 2^31: +inf then. */
static inline vec below_maximum(vec s, vec scale, vec reference) {
    return PAIR == 1 ? exp2_of_difference(s, reference) : exp2_vec(shifted(s, scale, reference));
}

static bool softmax(float *s, int64_t n, const float *mask, int64_t clear, float scale, float *m, float *l, float *alpha) {
    if (mask) {
        if (PAIR == 2)
            for (int64_t i = 0; i < clear * NR; i += W)
                vec_store(s + i, vec_mul(vec_load(s + i), vec_set1(scale)));
        apply_mask(s + clear * NR, mask, scale, n - clear);
        scale = 1;
    }
    const vec factor = vec_set1(scale);
    vec max[NV], reference[NV], sum[NV], decay[NV];
    UNROLL for (int j = 0; j < NV; j++) max[j] = vec_set1(-INFINITY);
    lane_max(s, n, max);
    bool rescale = false;
    UNROLL for (int j = 0; j < NV; j++) {
        vec old = vec_load(m + j * W);
        max[j] = vec_max(PAIR == 1 ? max[j] : vec_mul(max[j], factor), old);
        reference[j] = vec_finite_or_zero(max[j]); /* nothing seen yet: -inf - (-inf) must not happen */
        decay[j] = exp2_of_difference(old, reference[j]);
        rescale |= vec_any_differs(old, max[j]);
        sum[j] = vec_set1(0); /* of this block alone: added one by one to a large l, small terms would be lost */
        vec_store(alpha + j * W, decay[j]);
        vec_store(m + j * W, max[j]);
    }
    float *p = s;
    int64_t row = 0;
    for (; row + PAIR <= n; row += PAIR, s += PAIR * NR, p += NR)
        UNROLL for (int j = 0; j < NV; j++) {
            vec low = below_maximum(vec_load(s + j * W), factor, reference[j]), high = low;
            sum[j] = vec_add(sum[j], low);
            if (PAIR == 2) {
                high = below_maximum(vec_load(s + NR + j * W), factor, reference[j]);
                sum[j] = vec_add(sum[j], high);
            }
            vec_store(p + j * W, vec_join(low, high));
        }
    if (row < n)
        UNROLL for (int j = 0; j < NV; j++) {
            vec low = below_maximum(vec_load(s + j * W), factor, reference[j]);
            sum[j] = vec_add(sum[j], low);
            vec_store(p + j * W, vec_join(low, vec_set1(0)));
        }
    UNROLL for (int j = 0; j < NV; j++) vec_store(l + j * W, vec_fma(vec_load(l + j * W), decay[j], sum[j]));
    return rescale;
}

static inline float largest(vec a, float other) {
    float lane[W];
    vec_storeu(lane, a);
    for (int i = 0; i < W; i++)
        other = lane[i] > other ? lane[i] : other;
    return other;
}

/* Halves are folded onto each other: the order of additions is fixed by W alone. */
static inline float sum_of(vec a) {
    float lane[W];
    vec_storeu(lane, a);
    for (int half = W / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

static inline __attribute__((always_inline)) vec load_stored(const void *x, ra_dtype dtype, int64_t at) {
    if (dtype == RA_F32)
        return vec_loadu((const float *)x + at);
    return dtype == RA_BF16 ? vec_load_bf16((const uint16_t *)x + at) : vec_load_f16((const uint16_t *)x + at);
}

static inline float load_stored_value(const void *x, ra_dtype dtype, int64_t at) {
    if (dtype == RA_F32)
        return ((const float *)x)[at];
    return dtype == RA_BF16 ? ra__from_bf16(((const uint16_t *)x)[at]) : ra__from_f16(((const uint16_t *)x)[at]);
}

/* The first n < W values of a vector, the others 0. */
static inline vec load_stored_part(const void *x, ra_dtype dtype, int64_t at, int64_t n) {
    float lane[W] = {0};
    for (int64_t i = 0; i < n; i++)
        lane[i] = load_stored_value(x, dtype, at + i);
    return vec_loadu(lane);
}

/* Asks for the cache lines of `vectors` stored vectors. */
static inline __attribute__((always_inline)) void ask(const void *x, ra_dtype dtype, int64_t at, const int vectors) {
    const int64_t element = dtype == RA_F32 ? 4 : 2;
    const int lines = vectors * W * (int)element / 64;
    UNROLL for (int i = 0; i < lines; i++) __builtin_prefetch((const char *)x + at * element + 64 * i);
}

/* How far from what is at work memory is asked for, in elements, on the way on which it is read: some 8 KiB of it lie between. Nearer
 * comes too late, farther is driven out of the first level of cache again. */
static int64_t distance_ahead(const struct ra__rows_of_heads *x, int64_t k, int64_t tokens_at_a_time) {
    const int64_t token = x->heads * k * (x->dtype == RA_F32 ? 4 : 2), ahead = (8192 + token - 1) / token;
    return (ahead > tokens_at_a_time ? ahead : tokens_at_a_time) * x->token_stride;
}

/* Sums of products of `height` rows of q and the rows of storage at at[0], at[1], ..., W partial sums each: sum [height][rows]. */
static inline __attribute__((always_inline)) void dot_some(const float *q, int64_t ldq, const int height, const void *rows, ra_dtype dtype,
                                                           const int64_t *at, const int64_t *ahead, const int count, int64_t k, vec *sum) {
    int64_t d = 0;
    UNROLL for (int i = 0; i < height * count; i++) sum[i] = vec_set1(0);
    for (; d + 2 * W <= k; d += 2 * W) {
        UNROLL for (int j = 0; j < count; j++) ask(rows, dtype, ahead[j] + d, 2);
        UNROLL for (int half = 0; half < 2; half++) {
            vec row[W];
            UNROLL for (int j = 0; j < count; j++) row[j] = load_stored(rows, dtype, at[j] + d + half * W);
            UNROLL for (int i = 0; i < height; i++) {
                const vec left = vec_load(q + i * ldq + d + half * W);
                UNROLL for (int j = 0; j < count; j++) sum[i * count + j] = vec_fma(left, row[j], sum[i * count + j]);
            }
        }
    }
    for (; d < k; d += W)
        UNROLL for (int j = 0; j < count; j++) {
            const vec row = d + W <= k ? load_stored(rows, dtype, at[j] + d) : load_stored_part(rows, dtype, at[j] + d, k - d);
            UNROLL for (int i = 0; i < height; i++) sum[i * count + j] = vec_fma(vec_load(q + i * ldq + d), row, sum[i * count + j]);
        }
}

/* One or two queries of each head: memory is the limit, so rows are read as they lie, all heads of one token after the other. W / height
 * of them make as many sums as a vector has lanes. */
static inline __attribute__((always_inline)) void dot_few(const float *q, int64_t ldq, const int n, const struct ra__rows_of_heads *x,
                                                          ra_dtype dtype, int64_t k, float *s, int64_t lds) {
    const int count = W / n;
    const int64_t ahead = distance_ahead(x, k, 1), all = x->tokens * x->heads;
    int64_t token[W], head[W];
    for (int64_t row = 0; row < all; row += count) {
        vec part[W], arranged[W];
        const int64_t present = all - row < count ? all - row : count;
        for (int64_t j = 0, t = row / x->heads, h = row % x->heads; j < count; j++) {
            token[j] = t;
            head[j] = h;
            if (j + 1 < present && ++h == x->heads)
                h = 0, t++;
        }
        UNROLL for (int j = 0; j < count; j++) {
            const int64_t at = token[j] * x->token_stride + head[j] * x->head_stride, next = at + ahead;
            dot_some(q + head[j] * n * ldq, ldq, n, x->data, dtype, &at, &next, 1, k, part + j * n);
        }
        UNROLL for (int i = 0; i < n; i++) UNROLL for (int j = 0; j < count; j++) arranged[i * count + j] = part[j * n + i];
        float sum[W];
        vec_storeu(sum, vec_sums(arranged));
        for (int64_t j = 0; j < present; j++)
            UNROLL for (int i = 0; i < n; i++) s[(head[j] * n + i) * lds + token[j]] = sum[i * count + j];
    }
}

/* More queries: multiplying is the limit, so some tokens of one head share the loads of q. */
static inline __attribute__((always_inline)) void dot_many(const float *q, int64_t ldq, int64_t n, const struct ra__rows_of_heads *x,
                                                           ra_dtype dtype, int64_t k, float *s, int64_t lds) {
    enum { HEIGHT = W >= 8 ? 4 : 1, COUNT = W / HEIGHT };
    const int64_t ahead = distance_ahead(x, k, COUNT);
    for (int64_t t = 0; t < x->tokens; t += COUNT)
        for (int64_t head = 0; head < x->heads; head++) {
            const int64_t present = x->tokens - t < COUNT ? x->tokens - t : COUNT;
            int64_t at[COUNT];
            for (int j = 0; j < COUNT; j++)
                at[j] = (t + (j < present ? j : present - 1)) * x->token_stride + head * x->head_stride;
            for (int64_t first = 0; first < n; first += HEIGHT) { /* the last rows may be done twice; they come out the same */
                const int64_t from = head * n + (n - first < HEIGHT ? n - HEIGHT : first);
                int64_t next[COUNT]; /* every pass over the rows asks for its share of the next ones, else for what is here */
                vec acc[W];
                float sum[W];
                for (int j = 0; j < COUNT; j++)
                    next[j] = at[j] + (j * HEIGHT % n / HEIGHT == first / HEIGHT ? ahead : 0);
                dot_some(q + from * ldq, ldq, HEIGHT, x->data, dtype, at, next, COUNT, k, acc);
                vec_storeu(sum, vec_sums(acc));
                UNROLL for (int i = 0; i < HEIGHT; i++) for (int j = 0; j < present; j++) s[(from + i) * lds + t + j] = sum[i * COUNT + j];
            }
        }
}

static inline __attribute__((always_inline)) void dot_rows_of(const float *q, int64_t ldq, int64_t n, const struct ra__rows_of_heads *x,
                                                              ra_dtype dtype, int64_t k, float *s, int64_t lds) {
    if (n == 1)
        dot_few(q, ldq, 1, x, dtype, k, s, lds);
    else if (n == 2 && W > 1)
        dot_few(q, ldq, 2, x, dtype, k, s, lds);
    else if (n < 4 && W > 1)
        for (int64_t i = 0; i < n; i++) { /* rows of all heads are n apart */
            for (int64_t head = 0; head < x->heads; head++) {
                struct ra__rows_of_heads one = *x;
                one.data = (const char *)x->data + head * x->head_stride * (dtype == RA_F32 ? 4 : 2);
                one.heads = 1;
                dot_few(q + (head * n + i) * ldq, ldq, 1, &one, dtype, k, s + (head * n + i) * lds, lds);
            }
        }
    else
        dot_many(q, ldq, n, x, dtype, k, s, lds);
}

static void dot_rows(const float *q, int64_t ldq, int64_t n, const struct ra__rows_of_heads *keys, int64_t k, float *s, int64_t lds) {
    if (keys->dtype == RA_F32)
        dot_rows_of(q, ldq, n, keys, RA_F32, k, s, lds);
    else if (keys->dtype == RA_BF16)
        dot_rows_of(q, ldq, n, keys, RA_BF16, k, s, lds);
    else
        dot_rows_of(q, ldq, n, keys, RA_F16, k, s, lds);
}

static void softmax_rows(float *s, int64_t lds, int64_t n, int64_t keys, float *m, float *l) {
    for (int64_t row = 0; row < n; row++, s += lds) {
        const int64_t padded = (keys + W - 1) / W * W;
        for (int64_t j = keys; j < padded; j++)
            s[j] = -INFINITY;
        vec max = vec_set1(-INFINITY), sum = vec_set1(0);
        for (int64_t j = 0; j < padded; j += W) /* the old maximum second: it survives a NaN */
            max = vec_max(vec_load(s + j), max);
        m[row] = largest(max, -INFINITY);
        const vec reference = vec_set1(m[row] == -INFINITY ? 0 : m[row]);
        for (int64_t j = 0; j < padded; j += W) {
            const vec p = exp2_vec(vec_sub(vec_load(s + j), reference));
            vec_store(s + j, p);
            sum = vec_add(sum, p);
        }
        l[row] = sum_of(sum);
    }
}

/* o [height][vecs vectors] += p times a slice of some rows of one head. */
static inline __attribute__((always_inline)) void add_tile(const float *p, int64_t ldp, const int height, const void *rows, ra_dtype dtype,
                                                           int64_t at, int64_t row_stride, int64_t keys, int64_t ahead, const int vecs,
                                                           float *o, int64_t ldo) {
    vec acc[8][8], value[8];
    UNROLL for (int i = 0; i < height; i++) UNROLL for (int j = 0; j < vecs; j++) acc[i][j] = vec_loadu(o + i * ldo + j * W);
    for (int64_t key = 0; key < keys; key++, at += row_stride) {
        ask(rows, dtype, at + ahead, vecs);
        UNROLL for (int j = 0; j < vecs; j++) value[j] = load_stored(rows, dtype, at + j * W);
        UNROLL for (int i = 0; i < height; i++) {
            const vec weight = vec_set1(p[i * ldp + key]);
            UNROLL for (int j = 0; j < vecs; j++) acc[i][j] = vec_fma(weight, value[j], acc[i][j]);
        }
    }
    UNROLL for (int i = 0; i < height; i++) UNROLL for (int j = 0; j < vecs; j++) vec_storeu(o + i * ldo + j * W, acc[i][j]);
}

/* `height` rows of o, all their columns: slices of as many vectors as the registers hold, then of one, then single values. */
static inline __attribute__((always_inline)) void add_band(const float *p, int64_t ldp, const int height, const void *rows, ra_dtype dtype,
                                                           int64_t at, int64_t row_stride, int64_t keys, int64_t ahead, int64_t k, float *o,
                                                           int64_t ldo) {
    enum { REGISTERS = W == 16 ? 16 : 8 };
    const int vecs = REGISTERS / height < 8 ? REGISTERS / height : 8;
    int64_t d = 0;
    for (; d + vecs * W <= k; d += vecs * W)
        add_tile(p, ldp, height, rows, dtype, at + d, row_stride, keys, ahead, vecs, o + d, ldo);
    for (; d + W <= k; d += W)
        add_tile(p, ldp, height, rows, dtype, at + d, row_stride, keys, ahead, 1, o + d, ldo);
    for (; d < k; d++)
        for (int i = 0; i < height; i++)
            for (int64_t key = 0; key < keys; key++)
                o[i * ldo + d] += p[i * ldp + key] * load_stored_value(rows, dtype, at + key * row_stride + d);
}

/* The fewer rows share a value, the fewer tokens at a time: memory is the limit then, and it is fastest when read as it lies. */
static inline __attribute__((always_inline)) void add_rows_of(const float *p, int64_t ldp, int64_t n, const struct ra__rows_of_heads *x,
                                                              ra_dtype dtype, int64_t k, float *o, int64_t ldo, int64_t o_head) {
    enum { TALL = W == 16 ? 8 : 4 };
    const int64_t step = n < 4 ? n : 8, ahead = distance_ahead(x, k, step);
    for (int64_t t = 0; t < x->tokens; t += step)
        for (int64_t head = 0; head < x->heads; head++) {
            const int64_t keys = x->tokens - t < step ? x->tokens - t : step, at = t * x->token_stride + head * x->head_stride;
            for (int64_t i = 0; i < n;) {
                const float *from = p + (head * n + i) * ldp + t;
                float *to = o + head * o_head + i * ldo;
                const int height = n - i >= TALL ? TALL : n - i >= 2 ? 2 : 1;
                if (height == TALL)
                    add_band(from, ldp, TALL, x->data, dtype, at, x->token_stride, keys, ahead, k, to, ldo);
                else if (height == 2)
                    add_band(from, ldp, 2, x->data, dtype, at, x->token_stride, keys, ahead, k, to, ldo);
                else
                    add_band(from, ldp, 1, x->data, dtype, at, x->token_stride, keys, ahead, k, to, ldo);
                i += height;
            }
        }
}

static void add_rows(const float *p, int64_t ldp, int64_t n, const struct ra__rows_of_heads *values, int64_t k, float *o, int64_t ldo,
                     int64_t o_head) {
    if (values->dtype == RA_F32)
        add_rows_of(p, ldp, n, values, RA_F32, k, o, ldo, o_head);
    else if (values->dtype == RA_BF16)
        add_rows_of(p, ldp, n, values, RA_BF16, k, o, ldo, o_head);
    else
        add_rows_of(p, ldp, n, values, RA_F16, k, o, ldo, o_head);
}

/* One row of the backward: p and ds, hidden ones exactly 0. */
static inline void row_gradient(const float *s, const float *dp, const float *mask, vec scale, float lse, float delta, vec *p, vec *ds) {
    const vec row_lse = vec_set1(lse), row_delta = vec_set1(delta);
    UNROLL for (int j = 0; j < NV; j++) {
        p[j] = exp2_vec(shifted(vec_load(s + j * W), scale, row_lse));
        ds[j] = vec_mul(p[j], vec_sub(vec_load(dp + j * W), row_delta));
        if (mask) {
            vec hidden = vec_load(mask + j * W);
            p[j] = vec_zero_hidden(p[j], hidden);
            ds[j] = vec_zero_hidden(ds[j], hidden);
        }
    }
}

static void softmax_backward(float *s, float *dp, float *ds_cols, int64_t n, const float *mask, int64_t masked, float scale,
                             const float *lse, const float *delta) {
    if (mask)
        apply_mask(s, mask, scale, masked);
    else
        masked = 0;
    float *out = s;
    for (int64_t row = 0; row < n; row += PAIR, s += PAIR * NR, dp += PAIR * NR, out += NR) {
        vec p[PAIR][NV], ds[PAIR][NV];
        for (int i = 0; i < PAIR; i++) {
            if (row + i < n) {
                const bool hides = row + i < masked;
                row_gradient(s + i * NR, dp + i * NR, hides ? mask + (row + i) * NR : NULL, vec_set1(hides ? 1 : scale), lse[row + i],
                             delta[row + i], p[i], ds[i]);
            } else {
                UNROLL for (int j = 0; j < NV; j++) p[i][j] = ds[i][j] = vec_set1(0);
            }
        }
        UNROLL for (int j = 0; j < NV; j++) {
            vec_store(out + j * W, vec_join(p[0][j], p[PAIR - 1][j]));
            if (PAIR == 1) {
                vec_store(dp + j * W, ds[0][j]);
                continue;
            }
            vec_store(ds_cols + row / PAIR * NR + j * W, vec_join(ds[0][j], ds[PAIR - 1][j]));
            for (int i = 0; i < PAIR && row + i < n; i++)
                vec_store_half(dp + i * NR + j * W / 2, ds[i][j]);
        }
    }
}

/* The word at `at` of a row of k values: a value times scale, or a pair with scale's sign, its missing half 0. */
static inline float word(const float *row, int64_t at, int64_t k, float scale) {
    if (PAIR == 1)
        return row[at] * scale;
    uint32_t bits;
    memcpy(&bits, row + at, sizeof bits); /* bf16 storage, not floats */
    if (2 * at + 1 >= k)
        bits &= 0xffff;
    return ra__float(scale < 0 ? bits ^ 0x80008000 : bits);
}

static inline vec scaled(vec words, vec scale) {
    return PAIR == 1 ? vec_mul(words, scale) : vec_flip(words, scale);
}

static void pack_lanes(float *dst, const float *src, int64_t ld, int64_t n, int64_t k, float scale) {
    const vec factor = vec_set1(scale);
    const int64_t words = (k + PAIR - 1) / PAIR, whole = k / PAIR;
    for (int j = 0; j < NV; j++) {
        int64_t d = 0;
        for (; d + W <= whole; d += W) {
            vec r[W];
            for (int i = 0; i < W; i++)
                r[i] = j * W + i < n ? scaled(vec_loadu(src + (j * W + i) * ld + d), factor) : vec_set1(0);
            vec_transpose(r);
            for (int i = 0; i < W; i++)
                vec_store(dst + (d + i) * NR + j * W, r[i]);
        }
        for (; d < words; d++)
            for (int i = j * W; i < (j + 1) * W; i++)
                dst[d * NR + i] = i < n ? word(src + i * ld, d, k, scale) : 0;
    }
}

static void unpack_lanes(float *dst, int64_t ld, const float *src, int64_t n, int64_t k, const float *lane_scale) {
    for (int j = 0; j < NV && j * W < n; j++) {
        const vec factor = lane_scale ? vec_loadu(lane_scale + j * W) : vec_set1(1);
        int64_t d = 0;
        for (; d + W <= k; d += W) {
            vec r[W];
            for (int i = 0; i < W; i++)
                r[i] = vec_mul(vec_load(src + (d + i) * NR + j * W), factor);
            vec_transpose(r);
            for (int i = 0; i < W && j * W + i < n; i++)
                vec_storeu(dst + (j * W + i) * ld + d, r[i]);
        }
        for (; d < k; d++)
            for (int i = j * W; i < (j + 1) * W && i < n; i++)
                dst[i * ld + d] = src[d * NR + i] * (lane_scale ? lane_scale[i] : 1);
    }
}

/* W words of a col panel's row: values of `first`, or pairs of it and `second` (NULL: zeros). */
static inline vec cols_vector(const float *first, const float *second, int64_t d) {
    if (PAIR == 1)
        return vec_loadu(first + d);
    return vec_interleave((const uint16_t *)first + d, second ? (const uint16_t *)second + d : NULL);
}

static inline float cols_word(const float *first, const float *second, int64_t d) {
    if (PAIR == 1)
        return first[d];
    const uint16_t *low = (const uint16_t *)first + d, *high = second ? (const uint16_t *)second + d : NULL;
    return ra__float((uint32_t)*low | (high ? (uint32_t)*high << 16 : 0));
}

/* One row of the result; panels of `width` words, `panel` words apart. */
static inline void pack_cols_row(float *dst, const float *first, const float *second, int64_t panel, int64_t k, int64_t width) {
    int64_t d = 0;
    if (width == NC)
        for (; d + W <= k; d += W)
            vec_storeu(dst + d / NC * panel + d % NC, cols_vector(first, second, d));
    else if (width == MR && 2 * MR == W)
        for (; d + W <= k; d += W) {
            float *to = dst + d / MR * panel;
            vec_store_halves(to, to + panel, cols_vector(first, second, d));
        }
    for (; d < k; d++)
        dst[d / width * panel + d % width] = cols_word(first, second, d);
    for (; d % width; d++)
        dst[d / width * panel + d % width] = 0;
}

static void pack_cols(float *dst, const float *src, int64_t ld, int64_t n, int64_t n_all, int64_t k, int64_t width) {
    const int64_t words = (n_all + PAIR - 1) / PAIR, panel = words * width;
    for (int64_t row = 0; row < words; row++) {
        const float *first = src + row * PAIR * ld;
        if (row * PAIR < n)
            pack_cols_row(dst + row * width, first, row * PAIR + 1 < n ? first + ld : NULL, panel, k, width);
        else
            for (int64_t d0 = 0; d0 < k; d0 += width)
                memset(dst + row * width + d0 * words, 0, (size_t)width * sizeof *dst);
    }
}

static void scale_lanes(float *panel, int64_t k, const float *factor) {
    vec f[NV];
    UNROLL for (int j = 0; j < NV; j++) f[j] = vec_load(factor + j * W);
    for (int64_t d = 0; d < k; d++, panel += NR)
        UNROLL for (int j = 0; j < NV; j++) vec_store(panel + j * W, vec_mul(vec_load(panel + j * W), f[j]));
}

static void load_rows(float *dst, int64_t ld, const void *src, ra_dtype dtype, int64_t row_stride, int64_t n, int64_t k) {
    for (int64_t row = 0; row < n; row++, dst += ld) {
        int64_t d = 0;
        if (dtype == RA_F32) {
            memcpy(dst, (const float *)src + row * row_stride, (size_t)k * sizeof *dst);
        } else if (dtype == RA_BF16) {
            const uint16_t *from = (const uint16_t *)src + row * row_stride;
            for (; d + W <= k; d += W)
                vec_storeu(dst + d, vec_load_bf16(from + d));
            for (; d < k; d++)
                dst[d] = ra__from_bf16(from[d]);
        } else {
            const uint16_t *from = (const uint16_t *)src + row * row_stride;
            for (; d + W <= k; d += W)
                vec_storeu(dst + d, vec_load_f16(from + d));
            for (; d < k; d++)
                dst[d] = ra__from_f16(from[d]);
        }
    }
}

static void store_rows(void *dst, ra_dtype dtype, int64_t row_stride, const float *src, int64_t ld, int64_t n, int64_t k) {
    for (int64_t row = 0; row < n; row++, src += ld) {
        int64_t d = 0;
        if (dtype == RA_F32) {
            memcpy((float *)dst + row * row_stride, src, (size_t)k * sizeof *src);
        } else if (dtype == RA_BF16) {
            uint16_t *to = (uint16_t *)dst + row * row_stride;
            for (; d + W <= k; d += W)
                vec_store_bf16(to + d, vec_loadu(src + d));
            for (; d < k; d++)
                to[d] = ra__to_bf16(src[d]);
        } else {
            uint16_t *to = (uint16_t *)dst + row * row_stride;
            for (; d + W <= k; d += W)
                vec_store_f16(to + d, vec_loadu(src + d));
            for (; d < k; d++)
                to[d] = ra__to_f16(src[d]);
        }
    }
}

static bool all_finite(const float *src, int64_t ld, int64_t n, int64_t k) {
    vec bad = vec_set1(0);
    float rest = 0;
    for (int64_t row = 0; row < n; row++, src += ld) {
        int64_t d = 0;
        for (; d + W <= k; d += W) /* x - x is 0, or NaN when x is not finite */
            bad = vec_add(bad, vec_sub(vec_loadu(src + d), vec_loadu(src + d)));
        for (; d < k; d++)
            rest += src[d] - src[d];
    }
    return !vec_any_differs(bad, vec_set1(0)) && rest == 0;
}

/* A chain starts at a value of its own and never meets a fixed point, else a compiler may fold it away. */
static double peak(double seconds) {
    enum { STEPS = 1 << 16 };
    vec chain[PEAK_CHAINS];
    const vec factor = vec_set1(0.999f), term = vec_set1(1e-3f);
    UNROLL for (int i = 0; i < PEAK_CHAINS; i++) chain[i] = vec_set1((float)i + 2);
    double start = ra__now(), elapsed = 0, steps = 0;
    do {
        for (int step = 0; step < STEPS; step++)
            UNROLL for (int i = 0; i < PEAK_CHAINS; i++) chain[i] = vec_fma(chain[i], factor, term);
        steps += STEPS;
        elapsed = ra__now() - start;
    } while (elapsed < seconds);
    float sink[W];
    UNROLL for (int i = 1; i < PEAK_CHAINS; i++) chain[0] = vec_add(chain[0], chain[i]);
    vec_storeu(sink, chain[0]);
    return sink[0] < 0 ? 0 : steps * PEAK_CHAINS * W * 2 / elapsed * 1e-9;
}

#include "block/kernels_modifiers.h"

#define RA__KERNEL_TABLE                                                                                                                   \
    {                                                                                                                                      \
        .isa = VEC_ISA, .pair = PAIR, .k_step = K_STEP, .lanes = NR, .rows = MR, .row_tile = ROW_TILE, .col_tile = NC, .prepare = prepare, \
        .gemm = gemm, .gemm_rows = gemm_rows, .softmax = softmax, .softmax_backward = softmax_backward, .dot_rows = dot_rows,              \
        .softmax_rows = softmax_rows, .add_rows = add_rows, .pack_lanes = pack_lanes, .pack_rows = pack_rows,                              \
        .pack_transposed = pack_transposed, .pack_cols = pack_cols, .unpack_lanes = unpack_lanes, .scale_lanes = scale_lanes,              \
        .load_rows = load_rows, .store_rows = store_rows, .all_finite = all_finite, .exp2 = exp2_array, .softcap = softcap,                \
        .multiply = multiply_values, .drop = drop, .philox = philox, .peak = peak                                                          \
    }
