/* Words of operands in the sets whose products are fp32: one value each. Included after a vector type. What follows the product is for
 * pairs of bf16 and never called where PAIR is 1; the one source of the kernels names it all the same. */
#ifndef RA_BLOCK_VEC_FP32_H
#define RA_BLOCK_VEC_FP32_H

enum { PAIR = 1 };

/* acc + the product of two words. */
static inline vec vec_dot(vec acc, vec a, vec b) {
    return vec_fma(a, b, acc);
}
static inline vec vec_join(vec low, vec high) {
    (void)high;
    return low;
}
static inline vec vec_flip(vec words, vec sign) {
    (void)sign;
    return words;
}
static inline vec vec_interleave(const uint16_t *low, const uint16_t *high) {
    (void)high;
    return vec_load_bf16(low);
}
static inline void vec_store_half(float *p, vec a) {
    (void)p;
    (void)a;
}

#endif
