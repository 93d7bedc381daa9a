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

static int is_positional(const options *o) {
    return o->causal || o->causal_block || o->window[0] >= 0 || o->window[1] >= 0 || o->alibi;
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
    p->has_sinks = o->sinks;
    p->has_temperature = o->temperature;
    p->mask.sequences = o->packed;
    p->mask.slice_count = o->slices;
    t->bias_axes[0] = o->bias == BIAS_FULL ? p->B : 1;
    t->bias_axes[1] = o->bias == BIAS_FULL ? p->H : 1;
    t->bias_axes[2] = o->bias == BIAS_FULL ? p->Sq : 1;
    t->bias_axes[3] = p->Skv;
    if (p->H % p->G)
        return fail(f, EXIT_USAGE, "--H %lld is not a multiple of --G %lld", (long long)p->H, (long long)p->G);
    int causal = o->causal || o->causal_block, window = o->window[0] >= 0 || o->window[1] >= 0;
    if (is_positional(o) && p->Sq != p->Skv && !p->mask.align)
        return fail(f, EXIT_USAGE, "Sq and Skv differ: name the %s corner, --align top-left or --align bottom-right",
                    causal   ? "causal mask's"
                    : window ? "window's"
                             : "ALiBi's");
    if (o->slices && (p->Sq == 0 || p->Skv == 0))
        return fail(f, EXIT_USAGE, "--slices: there is nothing to cover");
    if (o->dbias && !p->has_bias)
        return fail(f, EXIT_USAGE, "--dbias needs --bias");
    if (o->dsinks && !p->has_sinks)
        return fail(f, EXIT_USAGE, "--dsinks needs --sinks");
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

/* 0 .. n - 1 */
static int64_t below(uint64_t *state, int64_t n) {
    return (int64_t)(splitmix(state) % (uint64_t)n);
}

static int by_offset(const void *a, const void *b) {
    const int32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Cuts at random places: now and then two at the same one, and sometimes the last before the end. */
static void fill_offsets(int32_t *offsets, int64_t sequences, int64_t S, uint64_t seed) {
    for (int64_t i = 0; i <= sequences; i++)
        offsets[i] = i == 0 ? 0 : i == sequences && splitmix(&seed) % 4 ? (int32_t)S : (int32_t)below(&seed, S + 1);
    for (int64_t i = 1; i < sequences; i++)
        if (splitmix(&seed) % 6 == 0)
            offsets[i] = offsets[i - 1];
    qsort(offsets, (size_t)sequences + 1, sizeof *offsets, by_offset);
}

/* The keys' sequences have lengths of their own; where positions count and no corner is named, those of the queries. */
static void fill_packed(tensors *t, int positional, uint64_t seed) {
    const ra_problem *p = &t->problem;
    const int own = p->mask.align || !positional;
    const int64_t n = p->mask.sequences, shorter = p->Sq < p->Skv ? p->Sq : p->Skv;
    fill_offsets(t->data[CU_Q], n, own ? p->Sq : shorter, seed);
    fill_offsets(t->data[CU_KV], n, own ? p->Skv : shorter, own ? seed + 1 : seed);
}

static void fill_slices(int64_t *slices, const ra_problem *p, uint64_t seed) {
    for (int64_t i = 0; i < p->mask.slice_count; i++) {
        int64_t *s = slices + 5 * i;
        s[0] = below(&seed, p->Sq);
        s[1] = s[0] + 1 + below(&seed, p->Sq - s[0]);
        s[2] = below(&seed, p->Skv);
        s[3] = s[2] + 1 + below(&seed, p->Skv - s[2]);
        s[4] = below(&seed, 4);
    }
}

/* What is not plain numbers of about normal distribution. */
static void fill_special(const options *o, tensors *t, slot s, uint64_t seed) {
    const ra_problem *p = &t->problem;
    float *x = t->data[s];
    int32_t *n = t->data[s];
    if (s == BIAS)
        fill_bias(x, tensors_elements(t, s), seed);
    if (s == SLICES)
        fill_slices(t->data[s], p, seed);
    if (s == CU_KV) /* after CU_Q */
        fill_packed(t, is_positional(o), seed);
    for (int64_t b = 0; s == KV_LENS && b < p->B; b++)
        n[b] = (int32_t)below(&seed, p->Skv + 1);
    for (int64_t h = 0; s == SINKS && h < p->H; h++)
        x[h] = splitmix(&seed) % 8 ? normal(&seed) : -INFINITY;
    for (int64_t i = 0; s == TEMPERATURE && i < p->Sq; i++)
        x[i] = 0.5f + (float)below(&seed, 1024) / 1024;
}

int sample_problem(const options *o, int with_gradients, tensors *t, failure *f) {
    if (sample_shape(o, t, f))
        return -1;
    const ra_problem *p = &t->problem;
    uint64_t seed = (uint64_t)o->seed * 1000003;
    const int wanted[OUT] = {[Q] = 1,
                             [K] = 1,
                             [V] = 1,
                             [DOUT] = with_gradients,
                             [DLSE] = with_gradients,
                             [BIAS] = p->has_bias,
                             [KV_LENS] = o->kv_lens,
                             [CU_Q] = o->packed > 0,
                             [CU_KV] = o->packed > 0,
                             [SLICES] = o->slices > 0,
                             [SINKS] = o->sinks,
                             [TEMPERATURE] = o->temperature};
    for (slot s = Q; s < OUT; s++) {
        if (!wanted[s])
            continue;
        if (tensors_allocate(t, s, s <= DOUT ? p->dtype : RA_F32, f))
            return -1;
        if (s <= DLSE)
            sample_fill(t->data[s], tensors_elements(t, s), t->dtype[s], seed + s);
        else
            fill_special(o, t, s, seed + s);
    }
    if (o->alibi && tensors_usual_slopes(t, f))
        return -1;
    if (!o->segments)
        return 0;
    if (tensors_allocate(t, Q_IDS, RA_F32, f) || tensors_allocate(t, KV_IDS, RA_F32, f))
        return -1;
    fill_ids(t->data[Q_IDS], p->B, p->Sq, o->segments);
    fill_ids(t->data[KV_IDS], p->B, p->Skv, o->segments);
    return 0;
}
