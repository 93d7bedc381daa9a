/* The AVX512-BF16 kernel set: products of bf16 pairs (vdpbf16ps), everything else as in AVX-512. */
#include "block/vec_avx512bf16.h"

enum { NV = 3, MR = 8, ROW_TILE = 12, COL_VECS = 2 }; /* as in AVX-512 */
#define VEC_ISA "avx512bf16"

static inline vec vec_dot(vec acc, vec a, vec b) {
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b));
}

#include "block/kernels_body.h"
#include "block/kernels_products.h"

const struct ra__kernels ra__kernels_avx512bf16 = RA__KERNEL_TABLE;
