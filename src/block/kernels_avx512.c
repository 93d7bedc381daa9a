/* The avx512 kernel set. */
#include "block/vec_avx512.h"

#include "block/kernels_body.h"

const struct ra__kernels ra__kernels_avx512 = RA__KERNEL_TABLE;
