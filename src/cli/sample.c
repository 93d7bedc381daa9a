/* Random tensors by splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014). */
#include "sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "input.h"
#include "narrow.h"

static uint64_t splitmix(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* The sum of four 16-bit uniform numbers, scaled to variance 1: near enough to normal, and exact on every machine. */
static float normal(uint64_t *state) {
    uint64_t z = splitmix(state);
    int sum = (int)(z & 0xffff) + (int)(z >> 16 & 0xffff) + (int)(z >> 32 & 0xffff) + (int)(z >> 48) - 2 * 0xffff;
    return (float)sum * 2.6428e-5f;
}

static void store(void *data, int64_t i, ra_dtype dtype, float x) {
    uint16_t narrow = dtype == RA_BF16 ? narrow_bf16(x) : narrow_f16(x);
    if (dtype == RA_F32)
        memcpy((char *)data + 4 * i, &x, 4);
    else
        memcpy((char *)data + 2 * i, &narrow, 2);
}

void sample_fill(void *data, int64_t n, ra_dtype dtype, uint64_t seed) {
    for (int64_t i = 0; i < n; i++)
        store(data, i, dtype, normal(&seed));
}

static int64_t given(int64_t n, int64_t otherwise) {
    return n >= 0 ? n : otherwise;
}

int sample_shape(const options *o, tensors *t, failure *f) {
    ra_problem *p = &t->problem;
    memset(t, 0, sizeof *t);
    ra_problem_init(p);
    options_problem(o, p);
    t->order = (enum order)o->order;
    t->P = 1;
    p->B = given(o->B, 1);
    p->Sq = given(o->Sq, given(o->S, given(o->Skv, 1)));
    p->Skv = given(o->Skv, given(o->S, p->Sq));
    p->H = given(o->H, 1);
    p->G = given(o->G, p->H);
    p->D = given(o->D, 64);
    p->Dv = given(o->Dv, p->D);
    p->dtype = (ra_dtype)o->dtype;
    p->backward = 1;
    p->has_bias = o->bias != BIAS_NONE;
    t->bias_axes[0] = o->bias == BIAS_FULL ? p->B : 1;
    t->bias_axes[1] = o->bias == BIAS_FULL ? p->H : 1;
    t->bias_axes[2] = o->bias == BIAS_FULL ? p->Sq : 1;
    if (p->H % p->G)
        return fail(f, EXIT_USAGE, "--H %lld is not a multiple of --G %lld", (long long)p->H, (long long)p->G);
    if ((p->mask.causal || p->mask.causal_block) && p->Sq != p->Skv && !p->mask.align)
        return fail(f, EXIT_USAGE, "Sq and Skv differ: name the causal mask's corner, --align top-left or --align bottom-right");
    return 0;
}

/* The mask of segments: token i of S is in segment i N / S. */
static void fill_ids(int32_t *ids, int64_t B, int64_t S, int64_t segments) {
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = 0; i < S; i++)
            ids[b * S + i] = (int32_t)(i * segments / S);
}

/* One bias in eight hides its key. */
static void fill_bias(float *bias, int64_t n, uint64_t seed) {
    for (int64_t i = 0; i < n; i++)
        bias[i] = splitmix(&seed) % 8 ? normal(&seed) : -INFINITY;
}

int sample_problem(const options *o, int with_gradients, tensors *t, failure *f) {
    if (sample_shape(o, t, f))
        return -1;
    const ra_problem *p = &t->problem;
    uint64_t seed = (uint64_t)o->seed * 1000003;
    for (slot s = Q; s <= BIAS; s++) {
        if ((s == BIAS && !p->has_bias) || ((s == DOUT || s == DLSE) && !with_gradients))
            continue;
        if (tensors_allocate(t, s, s <= DOUT ? p->dtype : RA_F32, f))
            return -1;
        if (s == BIAS)
            fill_bias(t->data[s], tensors_elements(t, s), seed + s);
        else
            sample_fill(t->data[s], tensors_elements(t, s), t->dtype[s], seed + s);
    }
    if (!o->segments)
        return 0;
    if (tensors_allocate(t, Q_IDS, RA_F32, f) || tensors_allocate(t, KV_IDS, RA_F32, f))
        return -1;
    fill_ids(t->data[Q_IDS], p->B, p->Sq, o->segments);
    fill_ids(t->data[KV_IDS], p->B, p->Skv, o->segments);
    return 0;
}
