/* The table of kernels: everything the attention of one block does to memory, in fp32, on packed operands. One source
 * (kernels_body.h) over a small vector type, compiled once per instruction set; drivers above it are portable C.
 *
 * Packed layouts, all 64-byte aligned. Let `lanes` be the width of a panel and `rows` the height of a register tile:
 *   lane panel  [K][lanes]            the right-hand side B of a product: lanes are queries (forward) or keys (backward)
 *   row panels  [n/rows][K][rows]     a left-hand side A whose output rows are tokens (n rounded up, zero-filled)
 *   col panels  [K/rows][n][rows]     a left-hand side A whose output rows are head dimensions (K rounded up, zero-filled)
 * Scores are in units of log2: scale * log2(e) is folded into q, so that exp is exp2. */
#ifndef RA_BLOCK_KERNELS_H
#define RA_BLOCK_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "ringattention.h"

struct ra__kernels {
    const char *isa;
    int lanes;              /* width of a lane panel */
    int rows;               /* height of the register tile of gemm */
    int row_tile, col_tile; /* register tile of gemm_rows: rows of C, columns of C (and width of its B panels) */

    /* C[panels][rows][lanes] = (or += when accumulate) A[panels] (k steps of `rows` values, panels a_stride apart) * B [k][lanes].
     * Each element is one chain of fused multiply-adds, k ascending (plain multiply and add in the scalar set). k >= 0. */
    void (*gemm)(const float *a, int64_t a_stride, int64_t panels, const float *b, int64_t k, float *c, bool accumulate);

    /* C[n][col_tile] += sum over panels, over lanes of S[panel][row][lane] * B[panel*lanes + lane][col_tile]; n <= row_tile rows of C are
     * written, row_tile rows of S are read. S panels are s_stride apart, C rows ldc apart. */
    void (*gemm_rows)(const float *s, int64_t s_stride, int64_t panels, const float *b, float *c, int64_t ldc, int n);

    /* One block of online softmax, S [n][lanes] scores -> P in place, per lane: m' = max(m, max S), p = 2^(S - m'), alpha = 2^(m - m'),
     * l = l*alpha + sum p. mask [n][lanes] is added first, -inf hides whatever S is; NULL: none. Returns whether any alpha is not 1.
     * A lane that has seen nothing keeps m = -inf, l = 0. */
    bool (*softmax)(float *s, int64_t n, const float *mask, float *m, float *l, float *alpha);

    /* S [n][lanes] -> P = 2^(S + mask - lse[row]), dP [n][lanes] -> dS = P (dP - delta[row]), both in place; hidden: exactly 0. */
    void (*softmax_backward)(float *s, float *dp, int64_t n, const float *mask, const float *lse, const float *delta);

    /* Packing from n fp32 rows of length k, ld apart, multiplied by scale. pack_lanes: n <= lanes, missing lanes are zero. */
    void (*pack_lanes)(float *dst, const float *src, int64_t ld, int64_t n, int64_t k, float scale);
    void (*pack_rows)(float *dst, const float *src, int64_t ld, int64_t n, int64_t k, float scale);
    void (*pack_cols)(float *dst, const float *src, int64_t ld, int64_t n, int64_t k, float scale);
    /* The inverse of pack_lanes: n <= lanes rows of length k, row i multiplied by lane_scale[i] (NULL: 1), lane_scale [lanes]. */
    void (*unpack_lanes)(float *dst, int64_t ld, const float *src, int64_t n, int64_t k, const float *lane_scale);

    void (*scale_lanes)(float *panel, int64_t k, const float *factor); /* panel[k][lane] *= factor[lane] */

    /* n rows of length k between storage (unit stride inside a row, row_stride elements apart) and fp32, ld apart. */
    void (*load_rows)(float *dst, int64_t ld, const void *src, ra_dtype dtype, int64_t row_stride, int64_t n, int64_t k);
    void (*store_rows)(void *dst, ra_dtype dtype, int64_t row_stride, const float *src, int64_t ld, int64_t n, int64_t k);

    bool (*all_finite)(const float *src, int64_t ld, int64_t n, int64_t k);

    void (*exp2)(float *x, int64_t n); /* in place, the very function the softmax uses; for its error table */

    double (*peak)(double seconds); /* GFLOP/s of a register-only multiply-add loop on the calling thread */
};

extern const struct ra__kernels ra__kernels_scalar;
extern const struct ra__kernels ra__kernels_avx2;
extern const struct ra__kernels ra__kernels_avx512;

/* The set in use: chosen once per process by processor and RA_ISA. */
const struct ra__kernels *ra__kernels(void);
/* "scalar avx2 avx512": compiled in, and of those the processor can run. */
bool ra__kernels_compiled(int level);

/* Sum over `threads` threads running k->peak at the same time. */
double ra__measure_peak(const struct ra__kernels *k, int threads, double seconds);

#endif
