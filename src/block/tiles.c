/* Rows of tensors as fp32. */
#include "block/tiles.h"

#include <math.h>
#include <string.h>

#include "base/half.h"

static int64_t offset(const ra_tensor *x, int64_t b, int64_t t, int64_t h) {
    return b * x->stride[0] + t * x->stride[1] + h * x->stride[2];
}

static float load_element(const ra_tensor *x, int64_t at) {
    switch (x->dtype) {
    case RA_F32:
        return ((const float *)x->data)[at];
    case RA_BF16:
        return ra__from_bf16(((const uint16_t *)x->data)[at]);
    case RA_F16:
        return ra__from_f16(((const uint16_t *)x->data)[at]);
    }
    return 0;
}

static void store_element(const ra_tensor *x, int64_t at, float value) {
    switch (x->dtype) {
    case RA_F32:
        ((float *)x->data)[at] = value;
        break;
    case RA_BF16:
        ((uint16_t *)x->data)[at] = ra__to_bf16(value);
        break;
    case RA_F16:
        ((uint16_t *)x->data)[at] = ra__to_f16(value);
        break;
    }
}

static char *address(const ra_tensor *x, int64_t at) {
    return (char *)x->data + at * (int64_t)ra_dtype_size(x->dtype);
}

const float *ra__rows(const struct ra__kernels *kernels, const ra_tensor *x, int64_t b, int64_t t0, int64_t n, int64_t h, int64_t k,
                      float *scratch, int64_t *ld) {
    int64_t first = offset(x, b, t0, h);
    if (x->stride[3] == 1 && x->dtype == RA_F32) {
        *ld = x->stride[1];
        return (const float *)x->data + first;
    }
    *ld = k;
    if (x->stride[3] == 1) {
        kernels->load_rows(scratch, k, address(x, first), x->dtype, x->stride[1], n, k);
    } else {
        for (int64_t i = 0; i < n; i++)
            for (int64_t d = 0; d < k; d++)
                scratch[i * k + d] = load_element(x, first + i * x->stride[1] + d * x->stride[3]);
    }
    return scratch;
}

void ra__store_rows(const struct ra__kernels *kernels, const ra_tensor *x, int64_t b, int64_t t0, int64_t n, int64_t h, int64_t k,
                    const float *rows, int64_t ld) {
    int64_t first = offset(x, b, t0, h);
    if (x->stride[3] == 1) {
        kernels->store_rows(address(x, first), x->dtype, x->stride[1], rows, ld, n, k);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < k; d++)
            store_element(x, first + i * x->stride[1] + d * x->stride[3], rows[i * ld + d]);
}

const float *ra__finite_rows(const struct ra__kernels *kernels, const float *rows, int64_t *ld, int64_t n, int64_t k, float *scratch,
                             bool *clean) {
    *clean = kernels->all_finite(rows, *ld, n, k);
    if (*clean)
        return rows;
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < k; d++) {
            float value = rows[i * *ld + d];
            scratch[i * k + d] = isfinite(value) ? value : 0;
        }
    *ld = k;
    return scratch;
}
