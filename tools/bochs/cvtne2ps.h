/* Bochs 3.0 and 3.1 compute the high half of the 512-bit vcvtne2ps2bf16 from the wrong operand. Built for Bochs, the kernels convert the
 * two halves one by one. */
#ifdef __AVX512BF16__
#include <immintrin.h>

static inline __m512bh two_conversions(__m512 high, __m512 low) {
    const __m512i half = _mm512_castsi256_si512((__m256i)_mm512_cvtneps_pbh(low));
    return (__m512bh)_mm512_inserti64x4(half, (__m256i)_mm512_cvtneps_pbh(high), 1);
}

#define _mm512_cvtne2ps_pbh two_conversions
#endif
