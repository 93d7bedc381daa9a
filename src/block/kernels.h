/* The table of kernels: everything the attention of one block does to memory, on packed operands. One source (kernels_body.h) over a
 * small vector type, compiled once per instruction set; drivers above it are portable C.
 *
 * Operands of products consist of 32-bit words. In most sets a word is one fp32 value. In the sets with pair = 2 it is two bf16 values that
 * are neighbours along the summed dimension, the first in the low half, and a product step takes both; sums are fp32 always. Below, k
 * counts values and [k/pair] means rounded up, the missing last value being 0.
 *
 * Packed layouts, all 64-byte aligned. Let `lanes` be the width of a panel and `rows` the height of a register tile:
 *   lane panel  [k/pair][lanes]            the right-hand side B of a product: lanes are queries (forward) or keys (backward)
 *   col panels  [k/width][n/pair][width]   a B summed over its n tokens, k head dimensions in panels of `width` (rounded up, zero-filled)
 *   left panels [m/rows][k/k_step][rows][k_step/pair]   the left-hand side A, m and k rounded up, zero-filled. Its output rows are tokens
 *               summed over head dimensions (pack_rows) or head dimensions summed over tokens (pack_transposed). k_step is `pair`, or what
 *               one instruction of a larger unit takes, and divides `rows`: a panel can be entered at any multiple of `rows` along k.
 *
 * Scores are in units of log2, so that exp is exp2. Sets with pair = 1 have scale * log2(e) folded into q; with pair = 2 q stays exact and
 * the softmax multiplies. */
#ifndef RA_BLOCK_KERNELS_H
#define RA_BLOCK_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "ringattention.h"

/* Keys or values of some heads as they are stored: unit stride inside a row, the others in elements. */
struct ra__rows_of_heads {
    const void *data;
    ra_dtype dtype;
    int64_t token_stride, head_stride;
    int64_t tokens, heads;
};

struct ra__kernels {
    const char *isa;
    int pair;               /* values per word */
    int k_step;             /* values along the sum that lie together in a left panel */
    int lanes;              /* width of a lane panel */
    int rows;               /* height of the register tile of gemm */
    int row_tile, col_tile; /* register tile of gemm_rows: rows of C, columns of C (and width of its B panels) */

    /* Readies the calling thread for the products below: before the first, and again after code from elsewhere may have run on it (AMX: the
     * tiles' configuration, too slow for every call). */
    void (*prepare)(void);

    /* C[panels][rows][lanes] = (or += when accumulate) A[panels] (left panels, a_stride words apart) * B [k][lanes], k >= 0 words. A is
     * read up to a whole k_step, where it must be finite. Each element is one chain of fused multiply-adds, k ascending (plain multiply and
     * add in the scalar set; with k_step > pair the order inside a step is the processor's). */
    void (*gemm)(const float *a, int64_t a_stride, int64_t panels, const float *b, int64_t k, float *c, bool accumulate);

    /* C[n][col_tile] += sum over panels, over lanes of S[panel][row][lane] * B[panel*lanes + lane][col_tile]; n <= row_tile rows of C are
     * written, row_tile rows of S are read. S panels are s_stride words apart, rows `lanes` words apart (lanes/pair of them used), C rows
     * ldc apart. */
    void (*gemm_rows)(const float *s, int64_t s_stride, int64_t panels, const float *b, float *c, int64_t ldc, int n);

    /* One block of online softmax, S [n][lanes] products -> P [n/pair][lanes] words in place, per lane: s = S * scale, m' = max(m, max s),
     * p = 2^(s - m'), alpha = 2^(m - m'), l = l*alpha + sum p. mask [n - clear][lanes] is added to the rows of s from `clear` on first,
     * -inf hides whatever S is; NULL: none. scale > 0; sets with pair = 1 take it as 1. Returns whether any alpha is not 1. A lane that has
     * seen nothing keeps m = -inf, l = 0.
     */
    bool (*softmax)(float *s, int64_t n, const float *mask, int64_t clear, float scale, float *m, float *l, float *alpha);

    /* Rows are queries: S [n][lanes] -> P = 2^(S * scale + mask - lse[row]) as words [n/pair][lanes] in place; dP [n][lanes] -> dS =
     * P (dP - delta[row]) twice: as words [n/pair][lanes] in ds_cols (pair = 1: not written, dp serves), and in place row by row, each row
     * lanes/pair words. Hidden: exactly 0. mask [masked][lanes] is for the
     * first rows, a multiple of pair or all of them; NULL: none. */
    void (*softmax_backward)(float *s, float *dp, float *ds_cols, int64_t n, const float *mask, int64_t masked, float scale,
                             const float *lse, const float *delta);

    /* ---- short queries: fp32 products straight from storage, in the order in which it lies ---- */

    /* S = Q times the keys, per head: s [heads][n][keys], rows lds apart, heads n * lds; q [heads][n][k], rows ldq floats apart, heads
     * n * ldq, aligned, zero from k to a multiple of 16. Each element sums W chains, W being the set's vector width, added as a tree. */
    void (*dot_rows)(const float *q, int64_t ldq, int64_t n, const struct ra__rows_of_heads *keys, int64_t k, float *s, int64_t lds);

    /* Per row of S [n][keys]: m = max s, s = 2^(s - m), l = sum s; of nothing visible m = -inf, l = 0, s = 0. Rows lds apart, aligned, with
     * room up to a multiple of 16, where no values are kept. */
    void (*softmax_rows)(float *s, int64_t lds, int64_t n, int64_t keys, float *m, float *l);

    /* o[head] [n][k] += P [n][keys] times the values, per head, keys ascending; p as s above; o rows ldo apart, heads o_head. */
    void (*add_rows)(const float *p, int64_t ldp, int64_t n, const struct ra__rows_of_heads *values, int64_t k, float *o, int64_t ldo,
                     int64_t o_head);

    /* Packing from n rows of k values, ld words apart: fp32 multiplied by scale, or bf16 pairs multiplied by the sign of scale.
     * pack_lanes: n <= lanes, missing lanes are zero. pack_cols: rows from n to n_all are zero. pack_transposed: a left panel of rows that
     * are head dimensions. */
    void (*pack_lanes)(float *dst, const float *src, int64_t ld, int64_t n, int64_t k, float scale);
    void (*pack_rows)(float *dst, const float *src, int64_t ld, int64_t n, int64_t k, float scale);
    void (*pack_transposed)(float *dst, const float *src, int64_t ld, int64_t n, int64_t k);
    void (*pack_cols)(float *dst, const float *src, int64_t ld, int64_t n, int64_t n_all, int64_t k, int64_t width);
    /* fp32 always, the inverse of pack_lanes: n <= lanes rows of length k, row i multiplied by lane_scale[i] (NULL: 1), lane_scale [lanes].
     */
    void (*unpack_lanes)(float *dst, int64_t ld, const float *src, int64_t n, int64_t k, const float *lane_scale);

    void (*scale_lanes)(float *panel, int64_t k, const float *factor); /* panel[k][lane] *= factor[lane] */

    /* n rows of length k between storage (unit stride inside a row, row_stride elements apart) and fp32, ld apart. */
    void (*load_rows)(float *dst, int64_t ld, const void *src, ra_dtype dtype, int64_t row_stride, int64_t n, int64_t k);
    void (*store_rows)(void *dst, ra_dtype dtype, int64_t row_stride, const float *src, int64_t ld, int64_t n, int64_t k);

    bool (*all_finite)(const float *src, int64_t ld, int64_t n, int64_t k); /* n rows of k fp32 values */

    void (*exp2)(float *x, int64_t n); /* in place, the very function the softmax uses; for its error table */

    /* ---- score modifiers: arrays of fp32, n a multiple of 16 (of W), aligned; the sets with pair = 1 only ---- */

    /* s = cap tanh(s / cap); slope, if not NULL, = the derivative, 1 - tanh^2, of each, 0 where s is NaN. */
    void (*softcap)(float *s, float *slope, int64_t n, float cap);
    void (*multiply)(float *x, const float *y, int64_t n); /* x *= y */
    /* x *= scale; 0, whatever x is, where mask is -inf. */
    void (*drop)(float *x, const float *mask, float scale, int64_t n);
    void (*philox)(uint32_t (*counter)[64], uint32_t key0, uint32_t key1); /* Philox4x32-10 of counter[0..3][i], in place */

    double (*peak)(double seconds); /* GFLOP/s of a register-only fp32 multiply-add loop on the calling thread */
};

extern const struct ra__kernels ra__kernels_scalar;
extern const struct ra__kernels ra__kernels_avx2;
extern const struct ra__kernels ra__kernels_avx512;
extern const struct ra__kernels ra__kernels_avx512bf16;
extern const struct ra__kernels ra__kernels_amx;

/* The best set for fp32 products that processor and RA_ISA allow; the best for bf16 products of bf16 storage: pair = 2, or the same set. */
const struct ra__kernels *ra__kernels(void);
const struct ra__kernels *ra__kernels_bf16(void);
/* Whether this build has the set of a level (enum ra__isa). */
bool ra__kernels_compiled(int level);

/* Sum over `threads` threads running k->peak at the same time. */
double ra__measure_peak(const struct ra__kernels *k, int threads, double seconds);

/* GB/s at which `threads` threads together read memory, the most seen within `seconds`; 0: no memory. */
double ra__measure_bandwidth(int threads, double seconds);

#endif
