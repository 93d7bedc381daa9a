/* What the feed-forward does to one row of numbers between GEMMs. One table per instruction set, of one source, ffn_rows_body.h; table.c
 * chooses. Rows do not overlap except where said; n >= 0. */
#ifndef RA_BLOCK_FFN_ROWS_H
#define RA_BLOCK_FFN_ROWS_H

#include "ringattention.h"

struct ra__ffn_rows {
    void (*widen)(ra_dtype dtype, int64_t n, const void *src, float *dst);
    /* dst = src + bias, rounded to dtype. In fp32 dst may be src. */
    void (*narrow)(ra_dtype dtype, int64_t n, const float *src, const float *bias, void *dst);
    void (*to_bf16)(int64_t n, const float *src, uint16_t *dst);
    /* u = h; u comes before its bias bu, g is read with SWIGLU only */
    void (*activate)(ra_activation activation, int64_t n, const float *g, float *u, const float *bu);
    /* h = h, u = du, g = dg; h holds dh before */
    void (*differentiate)(ra_activation activation, int64_t n, float *g, float *u, const float *bu, float *h);
};

extern const struct ra__ffn_rows ra__ffn_rows_scalar, ra__ffn_rows_avx2, ra__ffn_rows_avx512;

const struct ra__ffn_rows *ra__ffn_rows(void); /* the best that the processor and RA_ISA allow */

#endif
