/* The fp64 reference; oracle.h has the formulas. Written to be checked by eye, not to be fast: about 8 million pairs a second and core,
 * both passes, D = 64. */
#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double bf16_value(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static double f16_value(uint16_t bits) {
    int exponent = bits >> 10 & 31;
    double fraction = bits & 1023;
    double sign = bits & 0x8000 ? -1.0 : 1.0;
    if (exponent == 31)
        return fraction > 0 ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, -24);
    return sign * ldexp(1024 + fraction, exponent - 25);
}

double oracle_load(const ra_tensor *x, int64_t b, int64_t t, int64_t h, int64_t d) {
    int64_t at = b * x->stride[0] + t * x->stride[1] + h * x->stride[2] + d * x->stride[3];
    switch (x->dtype) {
    case RA_BF16:
        return bf16_value(((const uint16_t *)x->data)[at]);
    case RA_F16:
        return f16_value(((const uint16_t *)x->data)[at]);
    case RA_F32:
        break;
    }
    return ((const float *)x->data)[at];
}

static int64_t floor_div(int64_t a, int64_t n) {
    return a / n - (a % n < 0);
}

int oracle_sees(const ra_problem *p, const ra_tensor *bias, int64_t b, int64_t h, int64_t i, int64_t j) {
    const ra_mask *mask = &p->mask;
    int64_t seen_from = i + (mask->align == RA_ALIGN_BOTTOM_RIGHT ? p->Skv - p->Sq : 0);
    if (mask->causal && j > seen_from)
        return 0;
    if (mask->causal_block > 0 && floor_div(j, mask->causal_block) > floor_div(seen_from, mask->causal_block))
        return 0;
    if (mask->q_segment_ids && mask->q_segment_ids[b * p->Sq + i] != mask->kv_segment_ids[b * p->Skv + j])
        return 0;
    return !(bias && bias->data && oracle_load(bias, b, i, h, j) == -INFINITY);
}

/* The tensor as a dense [B,T,H,D] array of double; NULL without memory. */
static double *widen(const ra_tensor *x, int64_t B, int64_t T, int64_t H, int64_t D) {
    double *wide = malloc((size_t)(B * T * H * D + 1) * sizeof *wide);
    if (!wide)
        return NULL;
    double *at = wide;
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t h = 0; h < H; h++)
                for (int64_t d = 0; d < D; d++)
                    *at++ = x->data ? oracle_load(x, b, t, h, d) : 0.0;
    return wide;
}

static double *zeros(int64_t n) {
    return calloc((size_t)n + 1, sizeof(double));
}

static double dot(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t d = 0; d < n; d++)
        sum += a[d] * b[d];
    return sum;
}

static void add_scaled(double *y, double a, const double *x, int64_t n) {
    for (int64_t d = 0; d < n; d++)
        y[d] += a * x[d];
}

/* Everything widened, and room for one row. */
typedef struct work {
    const ra_problem *p;
    const oracle_inputs *in;
    double scale;
    double *q, *k, *v, *dout;
    double *prob;  /* [Skv] logits, then probabilities of the row at hand */
    int64_t *seen; /* [Skv] the keys it sees */
} work;

static const double *key_row(const work *w, const double *x, int64_t b, int64_t g, int64_t j, int64_t width) {
    return x + ((b * w->p->Skv + j) * w->p->G + g) * width;
}

static double *query_row(const work *w, double *x, int64_t b, int64_t h, int64_t i, int64_t width) {
    return x + ((b * w->p->Sq + i) * w->p->H + h) * width;
}

/* Fills w->seen and w->prob for one query, returns the number of keys it sees and their log-sum-exp. */
static int64_t softmax_row(work *w, int64_t b, int64_t h, int64_t i, double *lse) {
    const ra_problem *p = w->p;
    int64_t g = h / (p->H / p->G), n = 0;
    const double *q = query_row(w, w->q, b, h, i, p->D);
    for (int64_t j = 0; j < p->Skv; j++) {
        if (!oracle_sees(p, &w->in->bias, b, h, i, j))
            continue;
        double s = w->scale * dot(q, key_row(w, w->k, b, g, j, p->D), p->D);
        if (w->in->bias.data)
            s += oracle_load(&w->in->bias, b, i, h, j);
        w->prob[n] = s;
        w->seen[n++] = j;
    }
    double max = -INFINITY, sum = 0;
    for (int64_t c = 0; c < n; c++)
        max = w->prob[c] > max ? w->prob[c] : max;
    for (int64_t c = 0; c < n; c++)
        sum += exp(w->prob[c] - max);
    *lse = n ? max + log(sum) : -INFINITY;
    for (int64_t c = 0; c < n; c++)
        w->prob[c] = exp(w->prob[c] - max) / sum;
    return n;
}

static void attend_row(work *w, oracle_result *r, int64_t b, int64_t h, int64_t i) {
    const ra_problem *p = w->p;
    int64_t g = h / (p->H / p->G), at = (b * p->H + h) * p->Sq + i;
    int64_t n = softmax_row(w, b, h, i, &r->lse[at]);
    double *out = query_row(w, r->out, b, h, i, p->Dv);
    for (int64_t c = 0; c < n; c++)
        add_scaled(out, w->prob[c], key_row(w, w->v, b, g, w->seen[c], p->Dv), p->Dv);
    if (!p->backward)
        return;
    const double *q = query_row(w, w->q, b, h, i, p->D), *dout = query_row(w, w->dout, b, h, i, p->Dv);
    double *dq = query_row(w, r->dq, b, h, i, p->D);
    double shift = (w->in->dlse ? w->in->dlse[at] : 0.0) - dot(dout, out, p->Dv);
    for (int64_t c = 0; c < n; c++) {
        int64_t row = (b * p->Skv + w->seen[c]) * p->G + g;
        double ds = w->prob[c] * (dot(dout, w->v + row * p->Dv, p->Dv) + shift);
        add_scaled(r->dv + row * p->Dv, w->prob[c], dout, p->Dv);
        add_scaled(dq, w->scale * ds, w->k + row * p->D, p->D);
        add_scaled(r->dk + row * p->D, w->scale * ds, q, p->D);
    }
}

void oracle_result_free(oracle_result *r) {
    free(r->out);
    free(r->lse);
    free(r->dq);
    free(r->dk);
    free(r->dv);
    memset(r, 0, sizeof *r);
}

static int prepare(work *w, oracle_result *r) {
    const ra_problem *p = w->p;
    w->scale = isnan(p->scale) ? 1 / sqrt((double)p->D) : p->scale;
    w->q = widen(&w->in->q, p->B, p->Sq, p->H, p->D);
    w->k = widen(&w->in->k, p->B, p->Skv, p->G, p->D);
    w->v = widen(&w->in->v, p->B, p->Skv, p->G, p->Dv);
    w->prob = zeros(p->Skv);
    w->seen = malloc((size_t)(p->Skv + 1) * sizeof *w->seen);
    r->out = zeros(p->B * p->Sq * p->H * p->Dv);
    r->lse = zeros(p->B * p->H * p->Sq);
    int complete = w->q && w->k && w->v && w->prob && w->seen && r->out && r->lse;
    if (!p->backward)
        return complete;
    w->dout = widen(&w->in->dout, p->B, p->Sq, p->H, p->Dv);
    r->dq = zeros(p->B * p->Sq * p->H * p->D);
    r->dk = zeros(p->B * p->Skv * p->G * p->D);
    r->dv = zeros(p->B * p->Skv * p->G * p->Dv);
    return complete && w->dout && r->dq && r->dk && r->dv;
}

ra_status oracle_attention(const ra_problem *p, const oracle_inputs *in, oracle_result *result) {
    work w = {.p = p, .in = in};
    memset(result, 0, sizeof *result);
    int complete = prepare(&w, result);
    for (int64_t b = 0; complete && b < p->B; b++)
        for (int64_t h = 0; h < p->H; h++)
            for (int64_t i = 0; i < p->Sq; i++)
                attend_row(&w, result, b, h, i);
    free(w.q);
    free(w.k);
    free(w.v);
    free(w.dout);
    free(w.prob);
    free(w.seen);
    if (!complete)
        oracle_result_free(result);
    return complete ? RA_OK : RA_ERR_MEMORY;
}
