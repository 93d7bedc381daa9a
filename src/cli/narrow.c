/* Rounding to 16 bits. */
#include "narrow.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

uint16_t narrow_bf16(float x) {
    uint32_t bits = bits_of(x);
    if (isnan(x))
        return (uint16_t)(bits >> 16 | 0x40); /* rounding could turn it into infinity */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

uint16_t narrow_f16(float x) {
    uint16_t sign = (uint16_t)(bits_of(x) >> 16 & 0x8000);
    float a = fabsf(x);
    if (a == 0)
        return sign;
    if (isnan(x))
        return sign | 0x7e00;
    if (a >= 65520)
        return sign | 0x7c00;
    int exponent;
    frexpf(a, &exponent);                                    /* a = m 2^exponent, m in [1/2, 1) */
    if (exponent < -13)                                      /* below the normal numbers the grid stays at 2^-24 */
        exponent = -13;                                      /* a = n 2^(exponent-11), n to be rounded to a whole number */
    long n = lrintf(ldexpf(a, 11 - exponent));               /* the rounding mode is to nearest even */
    return (uint16_t)(sign | (((exponent + 13) << 10) + n)); /* n's leading bit, if set, carries into the exponent */
}

void narrow_in_place(void *data, int64_t n, ra_dtype dtype) {
    char *from = data, *to = data;
    for (int64_t i = 0; i < n && dtype != RA_F32; i++, from += sizeof(float), to += sizeof(uint16_t)) {
        float x;
        memcpy(&x, from, sizeof x);
        uint16_t y = dtype == RA_BF16 ? narrow_bf16(x) : narrow_f16(x);
        memcpy(to, &y, sizeof y);
    }
}
