/* The vector type of the portable kernels: one lane. Loops over NV of them are left to the compiler. */
#ifndef RA_BLOCK_VEC_SCALAR_H
#define RA_BLOCK_VEC_SCALAR_H

#include <math.h>
#include <stdbool.h>

#include "base/half.h"

typedef float vec;
enum { W = 1, NV = 8, MR = 4, ROW_TILE = 4, COL_VECS = 8, PEAK_CHAINS = 16 };
#define VEC_ISA "scalar"

static inline vec vec_set1(float x) {
    return x;
}
static inline vec vec_load(const float *p) {
    return *p;
}
static inline vec vec_loadu(const float *p) {
    return *p;
}
static inline void vec_store(float *p, vec a) {
    *p = a;
}
static inline void vec_storeu(float *p, vec a) {
    *p = a;
}
static inline vec vec_add(vec a, vec b) {
    return a + b;
}
static inline vec vec_sub(vec a, vec b) {
    return a - b;
}
static inline vec vec_div(vec a, vec b) {
    return a / b;
}
static inline vec vec_mul(vec a, vec b) {
    return a * b;
}
/* Not fused: without the instruction fmaf() is a slow library call. */
static inline vec vec_fma(vec a, vec b, vec c) {
    return a * b + c;
}
/* b when either is NaN, as the x86 instruction does. */
static inline vec vec_max(vec a, vec b) {
    return a > b ? a : b;
}
static inline vec vec_min(vec a, vec b) {
    return a < b ? a : b;
}
/* 2^(integer in the low bits of t, t = 1.5*2^23 + integer), -127 gives 0, 128 gives inf. */
static inline vec vec_exponent(vec t) {
    return ra__float(ra__bits(t) << 23);
}
/* -inf where mask is -inf, else s + mask. */
static inline vec vec_hide(vec s, vec mask) {
    return mask == -INFINITY ? -INFINITY : s + mask;
}
/* 0 where mask is -inf, else a. */
static inline vec vec_zero_hidden(vec a, vec mask) {
    return mask == -INFINITY ? 0.0f : a;
}
/* 0 where a is -inf, else a. */
static inline vec vec_finite_or_zero(vec a) {
    return a == -INFINITY ? 0.0f : a;
}
static inline bool vec_any_differs(vec a, vec b) {
    return !(a == b);
}
static inline vec vec_load_bf16(const uint16_t *p) {
    return ra__from_bf16(*p);
}
static inline vec vec_load_f16(const uint16_t *p) {
    return ra__from_f16(*p);
}
static inline void vec_store_bf16(uint16_t *p, vec a) {
    *p = ra__to_bf16(a);
}
static inline void vec_store_f16(uint16_t *p, vec a) {
    *p = ra__to_f16(a);
}
static inline void vec_store_halves(float *low, float *high, vec a) {
    *low = *high = a; /* never used: two halves of one lane */
}
static inline void vec_transpose(vec *r) {
    (void)r;
}
/* Lane i: the sum of the lanes of r[i]. */
static inline vec vec_sums(const vec *r) {
    return r[0];
}

#endif
