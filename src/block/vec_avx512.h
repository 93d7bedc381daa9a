/* The vector type of the AVX-512 (F, BW, VL, DQ) kernels. Three sets use it, each with register tiles of its own. */
#ifndef RA_BLOCK_VEC_AVX512_H
#define RA_BLOCK_VEC_AVX512_H

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>

#include "base/half.h"

typedef __m512 vec;
enum { W = 16, PEAK_CHAINS = 24 };

static inline vec vec_set1(float x) {
    return _mm512_set1_ps(x);
}
static inline vec vec_load(const float *p) {
    return _mm512_load_ps(p);
}
static inline vec vec_loadu(const float *p) {
    return _mm512_loadu_ps(p);
}
static inline void vec_store(float *p, vec a) {
    _mm512_store_ps(p, a);
}
static inline void vec_storeu(float *p, vec a) {
    _mm512_storeu_ps(p, a);
}
static inline vec vec_add(vec a, vec b) {
    return _mm512_add_ps(a, b);
}
static inline vec vec_sub(vec a, vec b) {
    return _mm512_sub_ps(a, b);
}
static inline vec vec_div(vec a, vec b) {
    return _mm512_div_ps(a, b);
}
static inline vec vec_mul(vec a, vec b) {
    return _mm512_mul_ps(a, b);
}
static inline vec vec_fma(vec a, vec b, vec c) {
    return _mm512_fmadd_ps(a, b, c);
}
static inline vec vec_max(vec a, vec b) {
    return _mm512_max_ps(a, b);
}
static inline vec vec_min(vec a, vec b) {
    return _mm512_min_ps(a, b);
}
static inline vec vec_exponent(vec t) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(t), 23));
}
static inline __mmask16 vec_is_minus_inf(vec a) {
    return _mm512_cmp_ps_mask(a, _mm512_set1_ps(-INFINITY), _CMP_EQ_OQ);
}
static inline vec vec_hide(vec s, vec mask) {
    return _mm512_mask_mov_ps(_mm512_add_ps(s, mask), vec_is_minus_inf(mask), mask);
}
static inline vec vec_zero_hidden(vec a, vec mask) {
    return _mm512_mask_mov_ps(a, vec_is_minus_inf(mask), _mm512_setzero_ps());
}
static inline vec vec_finite_or_zero(vec a) {
    return _mm512_mask_mov_ps(a, vec_is_minus_inf(a), _mm512_setzero_ps());
}
static inline bool vec_any_differs(vec a, vec b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ) != 0;
}
static inline vec vec_load_bf16(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
static inline vec vec_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline void vec_store_bf16(uint16_t *p, vec a) {
    __m512i u = _mm512_castps_si512(a), high = _mm512_srli_epi32(u, 16);
    __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(_mm512_set1_epi32(0x7fff), _mm512_and_si512(high, _mm512_set1_epi32(1))));
    __mmask16 is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    __m512i r = _mm512_mask_or_epi32(_mm512_srli_epi32(rounded, 16), is_nan, high, _mm512_set1_epi32(0x40));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(r));
}
static inline void vec_store_f16(uint16_t *p, vec a) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
static inline void vec_store_halves(float *low, float *high, vec a) {
    _mm256_storeu_ps(low, _mm512_castps512_ps256(a));
    _mm256_storeu_ps(high, _mm512_extractf32x8_ps(a, 1));
}
/* Four rounds: pairs, quads inside 128-bit lanes, then the lanes themselves as a 4x4 transposition. */
static inline void vec_transpose(vec *r) {
    vec t[16], u[16];
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 2; j++) {
            u[4 * i + 2 * j] = _mm512_shuffle_ps(t[4 * i + j], t[4 * i + j + 2], 0x44);
            u[4 * i + 2 * j + 1] = _mm512_shuffle_ps(t[4 * i + j], t[4 * i + j + 2], 0xee);
        }
    for (int i = 0; i < 4; i++) { /* u[4q+i]: column i of each lane, rows 4q..4q+3 */
        vec a = _mm512_shuffle_f32x4(u[i], u[4 + i], 0x88), b = _mm512_shuffle_f32x4(u[i], u[4 + i], 0xdd);
        vec c = _mm512_shuffle_f32x4(u[8 + i], u[12 + i], 0x88), d = _mm512_shuffle_f32x4(u[8 + i], u[12 + i], 0xdd);
        r[i] = _mm512_shuffle_f32x4(a, c, 0x88);
        r[8 + i] = _mm512_shuffle_f32x4(a, c, 0xdd);
        r[4 + i] = _mm512_shuffle_f32x4(b, d, 0x88);
        r[12 + i] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
}
/* Lane i: the sum of the lanes of r[i]. Four rounds that halve the number of vectors: pairs, quads, then 128-bit lanes. */
static inline vec vec_sums(const vec *r) {
    vec t[8], u[4];
    for (int i = 0; i < 8; i++)
        t[i] = _mm512_add_ps(_mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]), _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]));
    for (int i = 0; i < 4; i++)
        u[i] = _mm512_add_ps(_mm512_shuffle_ps(t[2 * i], t[2 * i + 1], 0x44), _mm512_shuffle_ps(t[2 * i], t[2 * i + 1], 0xee));
    for (int i = 0; i < 2; i++)
        t[i] = _mm512_add_ps(_mm512_shuffle_f32x4(u[2 * i], u[2 * i + 1], 0x88), _mm512_shuffle_f32x4(u[2 * i], u[2 * i + 1], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(t[0], t[1], 0x88), _mm512_shuffle_f32x4(t[0], t[1], 0xdd));
}

#endif
