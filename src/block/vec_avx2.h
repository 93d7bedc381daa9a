/* The vector type of the AVX2+FMA+F16C kernels. 4x24 register tile: 12 accumulators, 3 of B, 1 of A fill the 16 registers. */
#ifndef RA_BLOCK_VEC_AVX2_H
#define RA_BLOCK_VEC_AVX2_H

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>

#include "base/half.h"

typedef __m256 vec;
enum { W = 8, NV = 3, MR = 4, ROW_TILE = 6, COL_VECS = 2, PEAK_CHAINS = 12 };
#define VEC_ISA "avx2"

static inline vec vec_set1(float x) {
    return _mm256_set1_ps(x);
}
static inline vec vec_load(const float *p) {
    return _mm256_load_ps(p);
}
static inline vec vec_loadu(const float *p) {
    return _mm256_loadu_ps(p);
}
static inline void vec_store(float *p, vec a) {
    _mm256_store_ps(p, a);
}
static inline void vec_storeu(float *p, vec a) {
    _mm256_storeu_ps(p, a);
}
static inline vec vec_add(vec a, vec b) {
    return _mm256_add_ps(a, b);
}
static inline vec vec_sub(vec a, vec b) {
    return _mm256_sub_ps(a, b);
}
static inline vec vec_div(vec a, vec b) {
    return _mm256_div_ps(a, b);
}
static inline vec vec_mul(vec a, vec b) {
    return _mm256_mul_ps(a, b);
}
static inline vec vec_fma(vec a, vec b, vec c) {
    return _mm256_fmadd_ps(a, b, c);
}
static inline vec vec_max(vec a, vec b) {
    return _mm256_max_ps(a, b);
}
static inline vec vec_min(vec a, vec b) {
    return _mm256_min_ps(a, b);
}
static inline vec vec_exponent(vec t) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23));
}
static inline vec vec_is_minus_inf(vec a) {
    return _mm256_cmp_ps(a, _mm256_set1_ps(-INFINITY), _CMP_EQ_OQ);
}
static inline vec vec_hide(vec s, vec mask) {
    return _mm256_blendv_ps(_mm256_add_ps(s, mask), mask, vec_is_minus_inf(mask));
}
static inline vec vec_zero_hidden(vec a, vec mask) {
    return _mm256_andnot_ps(vec_is_minus_inf(mask), a);
}
static inline vec vec_finite_or_zero(vec a) {
    return _mm256_andnot_ps(vec_is_minus_inf(a), a);
}
static inline bool vec_any_differs(vec a, vec b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NEQ_UQ)) != 0;
}
static inline vec vec_load_bf16(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
static inline vec vec_load_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
static inline void vec_store_bf16(uint16_t *p, vec a) {
    __m256i u = _mm256_castps_si256(a), high = _mm256_srli_epi32(u, 16);
    __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(_mm256_set1_epi32(0x7fff), _mm256_and_si256(high, _mm256_set1_epi32(1))));
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    __m256i r = _mm256_blendv_epi8(_mm256_srli_epi32(rounded, 16), _mm256_or_si256(high, _mm256_set1_epi32(0x40)), is_nan);
    _mm_storeu_si128((__m128i *)p, _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1)));
}
static inline void vec_store_f16(uint16_t *p, vec a) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
static inline void vec_store_halves(float *low, float *high, vec a) {
    _mm_storeu_ps(low, _mm256_castps256_ps128(a));
    _mm_storeu_ps(high, _mm256_extractf128_ps(a, 1));
}
static inline void vec_transpose(vec *r) {
    vec t[8], u[8];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            u[4 * i + 2 * j] = _mm256_shuffle_ps(t[4 * i + j], t[4 * i + j + 2], 0x44);
            u[4 * i + 2 * j + 1] = _mm256_shuffle_ps(t[4 * i + j], t[4 * i + j + 2], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}
/* Lane i: the sum of the lanes of r[i]. */
static inline vec vec_sums(const vec *r) {
    vec t[4], u[2];
    for (int i = 0; i < 4; i++)
        t[i] = _mm256_add_ps(_mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]), _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]));
    for (int i = 0; i < 2; i++)
        u[i] = _mm256_add_ps(_mm256_shuffle_ps(t[2 * i], t[2 * i + 1], 0x44), _mm256_shuffle_ps(t[2 * i], t[2 * i + 1], 0xee));
    return _mm256_add_ps(_mm256_permute2f128_ps(u[0], u[1], 0x20), _mm256_permute2f128_ps(u[0], u[1], 0x31));
}

#endif
