/* 16-bit floating point in portable C: round to nearest even, denormals kept, NaN stays NaN. */
#ifndef RA_BASE_HALF_H
#define RA_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t ra__bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float ra__float(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float ra__from_bf16(uint16_t h) {
    return ra__float((uint32_t)h << 16);
}

static inline uint16_t ra__to_bf16(float x) {
    uint32_t u = ra__bits(x);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float ra__from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    if (exponent == 31)
        return ra__float(sign | 0x7f800000 | mantissa << 13);
    if (exponent)
        return ra__float(sign | (exponent + 112) << 23 | mantissa << 13);
    float value = (float)mantissa * 0x1p-24f;
    return sign ? -value : value;
}

static inline uint16_t ra__to_f16(float x) {
    uint32_t u = ra__bits(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x477ff000) /* rounds to 2^16 or more */
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) { /* below 2^-14: the fp32 adder rounds to the fp16 denormal grid */
        float magic = ra__float(a) + 0.5f;
        return (uint16_t)(sign | (ra__bits(magic) - 0x3f000000));
    }
    return (uint16_t)(sign | (a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13);
}

#endif
