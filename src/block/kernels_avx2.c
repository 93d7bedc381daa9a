/* The avx2 kernel set. */
#include "block/vec_avx2.h"

#include "block/vec_fp32.h"

#include "block/kernels_body.h"
#include "block/kernels_products.h"

const struct ra__kernels ra__kernels_avx2 = RA__KERNEL_TABLE;
