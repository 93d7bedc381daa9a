/* The activations of the feed-forward, value and derivative, one element at a time.
 *
 * With calls of expf and erff they would take as long as the GEMMs, so they are written here without calls and branches: a loop over them
 * vectorises with whatever instructions the compiler is given (and fuses multiply-adds where there are any). All are within a few units in
 * the last place, keep NaN, and stay finite for any finite argument.
 *
 *   silu(a) = a s(a), s(a) = 1/(1 + exp(-a))
 *   gelu(a) = a Phi(a), Phi(a) = (1 + erf(a/sqrt 2))/2                     arXiv 1606.08415, section 2
 *   gelu_tanh(a) = a (1 + tanh z)/2 = a s(2z), z = sqrt(2/pi) (a + 0.044715 a^3)
 */
#ifndef RA_BLOCK_FFN_ACTIVATIONS_H
#define RA_BLOCK_FFN_ACTIVATIONS_H

#include "base/half.h"

struct ra__slope {
    float value, slope; /* f(a), f'(a) */
};

/* exp(x) for x <= 0: 2^n exp(r), |r| <= ln(2)/2, ln(2) in two parts and the polynomial as in Cephes' expf. */
static inline float ra__exp_falling(float x) {
    x = x < -104.0f ? -104.0f : x; /* exp(-104) rounds to 0; so written, NaN passes */
    float shifted = x * 1.44269504f + 0x1.8p23f, n = shifted - 0x1.8p23f;
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    /* n >= -151 is below the normal exponents: scale by 2^(n+64) and then by 2^-64. */
    return p * ra__float((ra__bits(shifted) - 0x4b400000u + 127 + 64) << 23) * 0x1p-64f;
}

/* s(a), and 1 - s(a) without cancellation in *complement. */
static inline float ra__sigmoid(float a, float *complement) {
    float t = ra__exp_falling(a < 0.0f ? a : -a), r = 1.0f / (1.0f + t), p = t * r;
    *complement = a < 0.0f ? r : p;
    return a < 0.0f ? p : r;
}

static inline struct ra__slope ra__silu(float a) {
    float c, s = ra__sigmoid(a, &c), value = a * s;
    return (struct ra__slope){value, s + value * c};
}

static inline struct ra__slope ra__gelu_tanh(float a) {
    const float k = 1.595769122f, cubic = 0.044715f; /* 2 sqrt(2/pi) */
    float b = a < -16.0f ? -16.0f : a;               /* s is 0 or 1 beyond, and b^3 does not overflow */
    b = b > 16.0f ? 16.0f : b;
    float b2 = b * b, c, s = ra__sigmoid(k * (b + cubic * b2 * b), &c);
    return (struct ra__slope){a * s, s + b * s * c * (k * (1.0f + 3.0f * cubic * b2))};
}

/* Phi(a) by a polynomial in a^2 for |a| < 1. Beyond, its tail 1 - Phi(b) = exp(-b^2/2) w(b), b = |a|, with (1 + b/2) w(b) a polynomial in
 * (b-3)/(b+3) (the scheme of Shepherd and Laframboise, Math. Comp. 36 (1981)). Both are Chebyshev fits, errors 2e-8 and 3e-8. */
static inline struct ra__slope ra__gelu(float a) {
    float b = a < 0.0f ? -a : a;
    b = b > 16.0f ? 16.0f : b; /* the tail is 0 beyond */
    float b2 = b * b, bell = ra__exp_falling(-0.5f * b2);

    float inner = 9.435096e-05f;
    inner = inner * b2 - 1.1695866e-3f;
    inner = inner * b2 + 9.967344e-3f;
    inner = inner * b2 - 6.6489615e-2f;
    inner = inner * b2 + 3.9894226e-1f;
    inner = a * inner + 0.5f;

    float q = 1.0f / ((b + 3.0f) * (1.0f + 0.5f * b)), t = (b - 3.0f) * (q * (1.0f + 0.5f * b));
    float w = -1.5739577e-4f;
    w = w * t - 3.0304585e-4f;
    w = w * t + 9.983453e-4f;
    w = w * t + 2.0154756e-3f;
    w = w * t - 8.296645e-3f;
    w = w * t - 5.221736e-4f;
    w = w * t + 5.3396277e-2f;
    w = w * t - 1.5146479e-1f;
    w = w * t + 3.0378488e-1f;
    float tail = bell * (w * (q * (b + 3.0f)));

    float outer = a < 0.0f ? tail : 1.0f - tail, phi = b < 1.0f ? inner : outer;
    float signed_b = a < 0.0f ? -b : b;
    return (struct ra__slope){a * phi, phi + signed_b * (0.39894228f * bell)};
}

#endif
