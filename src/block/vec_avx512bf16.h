/* The vector type of the kernels that multiply pairs of bf16: AVX-512 and the conversions of AVX512-BF16. */
#ifndef RA_BLOCK_VEC_AVX512BF16_H
#define RA_BLOCK_VEC_AVX512BF16_H

#include "block/vec_avx512.h"

enum { PAIR = 2 };

/* Words of (low, high) lane by lane: convert (to nearest even, NaN kept), then interleave the two halves of the result. */
static inline vec vec_join(vec low, vec high) {
    const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4,
                                                19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(interleave, (__m512i)_mm512_cvtne2ps_pbh(high, low)));
}

/* Both halves negated where sign is negative. */
static inline vec vec_flip(vec words, vec sign) {
    const __m512i flip = _mm512_and_si512(_mm512_srai_epi32(_mm512_castps_si512(sign), 31), _mm512_set1_epi32((int)0x80008000));
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(words), flip));
}

/* Words of W values each of two rows, high NULL: zeros. */
static inline vec vec_interleave(const uint16_t *low, const uint16_t *high) {
    __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)low));
    if (high)
        words = _mm512_or_si512(words, _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)high)), 16));
    return _mm512_castsi512_ps(words);
}

/* W values as W/2 words, neighbouring lanes paired. */
static inline void vec_store_half(float *p, vec a) {
    _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(a));
}

#endif
