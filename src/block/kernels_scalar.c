/* The scalar kernel set. */
#include "block/vec_scalar.h"

#include "block/vec_fp32.h"

#include "block/kernels_body.h"
#include "block/kernels_products.h"

const struct ra__kernels ra__kernels_scalar = RA__KERNEL_TABLE;
