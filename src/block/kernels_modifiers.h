/* What score modifiers do to tiles of fp32 scores and probabilities; part of kernels_body.h. None of it runs where no modifier is set. */

/* x P(x^2) / Q(x^2), the rational function of Eigen's generic_fast_tanh_float: within 2.9e-7 of |tanh x|. NaN stays NaN. */
static inline vec tanh_vec(vec x) {
    const vec end = vec_set1(7.90531110763549805f); /* from here on it is 1 - 2^-22 */
    x = vec_min(end, vec_max(vec_sub(vec_set1(0), end), x));
    const vec y = vec_mul(x, x);
    vec p = vec_fma(vec_set1(-2.76076847742355e-16f), y, vec_set1(2.00018790482477e-13f));
    p = vec_fma(p, y, vec_set1(-8.60467152213735e-11f));
    p = vec_fma(p, y, vec_set1(5.12229709037114e-08f));
    p = vec_fma(p, y, vec_set1(1.48572235717979e-05f));
    p = vec_fma(p, y, vec_set1(6.37261928875436e-04f));
    p = vec_fma(p, y, vec_set1(4.89352455891786e-03f));
    vec q = vec_fma(vec_set1(1.19825839466702e-06f), y, vec_set1(1.18534705686654e-04f));
    q = vec_fma(q, y, vec_set1(2.26843463243900e-03f));
    q = vec_fma(q, y, vec_set1(4.89352518554385e-03f));
    return vec_div(vec_mul(x, p), q);
}

/* The slope 1 - tanh^2 = 4 / (e^x + e^-x)^2 falls to half of what tanh_vec's last value leaves where products are fused, 2^-21, at x = 12
 * ln 2: from there on it is 0, so that a logit that is far out has no gradient at all. */
static inline vec slope_of(vec x, vec tanh_x) {
    const float steep = 1 << 30, end = 8.31776617f;
    const vec zero = vec_set1(0), size = vec_max(x, vec_sub(zero, x));
    const vec room = vec_fma(vec_set1(-steep), size, vec_set1(steep * end)); /* above 1, or not above 0 */
    /* 0 for NaN: a hidden pair's gradient is 0 and must remain so */
    return vec_max(vec_min(room, vec_sub(vec_set1(1), vec_mul(tanh_x, tanh_x))), zero);
}

static void softcap(float *s, float *slope, int64_t n, float cap) {
    const vec c = vec_set1(cap), inverse = vec_set1(1 / cap);
    for (int64_t i = 0; i < n; i += W) {
        const vec x = vec_mul(vec_load(s + i), inverse), t = tanh_vec(x);
        vec_store(s + i, vec_mul(t, c));
        if (slope)
            vec_store(slope + i, slope_of(x, t));
    }
}

static void multiply_values(float *x, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; i += W)
        vec_store(x + i, vec_mul(vec_load(x + i), vec_load(y + i)));
}

static void drop(float *x, const float *mask, float scale, int64_t n) {
    const vec factor = vec_set1(scale);
    for (int64_t i = 0; i < n; i += W)
        vec_store(x + i, vec_zero_hidden(vec_mul(vec_load(x + i), factor), vec_load(mask + i)));
}

/* Ten rounds on 64 counters at once: integers, so every set finds the same bits. */
static void philox(uint32_t (*counter)[64], uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; round++, key0 += 0x9e3779b9u, key1 += 0xbb67ae85u)
        for (int i = 0; i < 64; i++) {
            const uint64_t a = (uint64_t)0xd2511f53u * counter[0][i], b = (uint64_t)0xcd9e8d57u * counter[2][i];
            counter[0][i] = (uint32_t)(b >> 32) ^ counter[1][i] ^ key0;
            counter[1][i] = (uint32_t)b;
            counter[2][i] = (uint32_t)(a >> 32) ^ counter[3][i] ^ key1;
            counter[3][i] = (uint32_t)a;
        }
}
