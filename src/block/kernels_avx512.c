/* The AVX-512 kernel set, fp32 products. */
#include "block/vec_avx512.h"

enum { NV = 3, MR = 8, ROW_TILE = 12, COL_VECS = 2 }; /* 8x48: 24 accumulators of the 32 registers */
#define VEC_ISA "avx512"

#include "block/vec_fp32.h"

#include "block/kernels_body.h"
#include "block/kernels_products.h"

const struct ra__kernels ra__kernels_avx512 = RA__KERNEL_TABLE;
