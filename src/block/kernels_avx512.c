/* The AVX-512 kernel set, fp32 products. */
#include "block/vec_avx512.h"

enum { PAIR = 1, NV = 3, MR = 8, ROW_TILE = 12, COL_VECS = 2 }; /* 8x48: 24 accumulators of the 32 registers */
#define VEC_ISA "avx512"

static inline vec vec_dot(vec acc, vec a, vec b) {
    return vec_fma(a, b, acc);
}
static inline vec vec_join(vec low, vec high) {
    (void)high;
    return low;
}
static inline vec vec_flip(vec words, vec sign) {
    (void)sign;
    return words;
}
static inline vec vec_interleave(const uint16_t *low, const uint16_t *high) {
    (void)high;
    return vec_load_bf16(low);
}
static inline void vec_store_half(float *p, vec a) {
    (void)p;
    (void)a;
}

#include "block/kernels_body.h"
#include "block/kernels_products.h"

const struct ra__kernels ra__kernels_avx512 = RA__KERNEL_TABLE;
