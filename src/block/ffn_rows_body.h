/* The rows of ffn_rows.h, for whatever instruction set a file that includes this is compiled for. The loops are left to the compiler's
 * vectoriser: the build says -fno-trapping-math for these files, without which gcc keeps the branches of a < 0 ? b : c. */
#include <string.h>

#include "block/ffn_activations.h"
#include "block/ffn_rows.h"

static void widen_row(ra_dtype dtype, int64_t n, const void *restrict src, float *restrict dst) {
    const uint16_t *restrict half = src;
    if (dtype == RA_F32)
        memcpy(dst, src, (size_t)n * sizeof *dst);
    else if (dtype == RA_BF16)
        for (int64_t i = 0; i < n; i++)
            dst[i] = ra__from_bf16(half[i]);
    else
        for (int64_t i = 0; i < n; i++)
            dst[i] = ra__from_f16(half[i]);
}

static void narrow_row(ra_dtype dtype, int64_t n, const float *src, const float *restrict bias, void *dst) {
    float *single = dst;
    uint16_t *half = dst;
    if (dtype == RA_F32)
        for (int64_t i = 0; i < n; i++)
            single[i] += bias[i];
    else if (dtype == RA_BF16)
        for (int64_t i = 0; i < n; i++)
            half[i] = ra__to_bf16(src[i] + bias[i]);
    else
        for (int64_t i = 0; i < n; i++)
            half[i] = ra__to_f16(src[i] + bias[i]);
}

static void to_bf16_row(int64_t n, const float *restrict src, uint16_t *restrict dst) {
    for (int64_t i = 0; i < n; i++)
        dst[i] = ra__to_bf16(src[i]);
}

static void activate_row(ra_activation activation, int64_t n, const float *restrict g, float *restrict u, const float *restrict bu) {
    if (activation == RA_SWIGLU)
        for (int64_t i = 0; i < n; i++)
            u[i] = ra__silu(g[i]).value * (u[i] + bu[i]);
    else if (activation == RA_GELU)
        for (int64_t i = 0; i < n; i++)
            u[i] = ra__gelu(u[i] + bu[i]).value;
    else
        for (int64_t i = 0; i < n; i++)
            u[i] = ra__gelu_tanh(u[i] + bu[i]).value;
}

static void differentiate_row(ra_activation activation, int64_t n, float *restrict g, float *restrict u, const float *restrict bu,
                              float *restrict h) {
    if (activation == RA_SWIGLU) {
        for (int64_t i = 0; i < n; i++) {
            const struct ra__slope gate = ra__silu(g[i]);
            const float up = u[i] + bu[i], dh = h[i];
            h[i] = gate.value * up;
            u[i] = dh * gate.value;
            g[i] = dh * up * gate.slope;
        }
        return;
    }
    if (activation == RA_GELU) {
        for (int64_t i = 0; i < n; i++) {
            const struct ra__slope s = ra__gelu(u[i] + bu[i]);
            u[i] = h[i] * s.slope;
            h[i] = s.value;
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const struct ra__slope s = ra__gelu_tanh(u[i] + bu[i]);
        u[i] = h[i] * s.slope;
        h[i] = s.value;
    }
}

#define RA__FFN_ROWS \
    { widen_row, narrow_row, to_bf16_row, activate_row, differentiate_row }
