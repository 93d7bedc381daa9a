/* The fp64 reference; oracle.h has the formulas. Written to be checked by eye, not to be fast: about 8 million pairs a second and core,
 * both passes, D = 64. */
#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "block/dropout.h"

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

/* Query and key as a positional mask counts them: in the whole, or inside their packed sequence. */
typedef struct pair {
    int64_t i, j;
    int64_t offset;
    int together; /* packed sequences: both are in the same one */
} pair;

static pair locate(const ra_problem *p, int64_t i, int64_t j) {
    const ra_mask *m = &p->mask;
    int bottom_right = m->align == RA_ALIGN_BOTTOM_RIGHT;
    if (m->sequences == 0)
        return (pair){i, j, bottom_right ? p->Skv - p->Sq : 0, 1};
    for (int64_t s = 0; s < m->sequences; s++) {
        int64_t q0 = m->cu_seqlens_q[s], q1 = m->cu_seqlens_q[s + 1], k0 = m->cu_seqlens_kv[s], k1 = m->cu_seqlens_kv[s + 1];
        if (i >= q0 && i < q1 && j >= k0 && j < k1)
            return (pair){i - q0, j - k0, bottom_right ? (k1 - k0) - (q1 - q0) : 0, 1};
    }
    return (pair){0, 0, 0, 0};
}

static int covered(const int64_t slice[5], int64_t q, int64_t k) {
    int64_t q0 = slice[0], q1 = slice[1], k0 = slice[2], k1 = slice[3], type = slice[4];
    if (q < q0 || q >= q1 || k < k0 || k >= k1)
        return 0;
    if ((type == RA_SLICE_CAUSAL || type == RA_SLICE_BOTH) && k - k1 > q - q1)
        return 0;
    if ((type == RA_SLICE_INVERSE_CAUSAL || type == RA_SLICE_BOTH) && k - k0 < q - q0)
        return 0;
    return 1;
}

static int some_slice_covers(const ra_mask *m, int64_t i, int64_t j) {
    for (int64_t n = 0; n < m->slice_count; n++)
        if (covered(m->slices + 5 * n, i, j))
            return 1;
    return m->slice_count == 0;
}

int oracle_sees(const ra_problem *p, const ra_tensor *bias, int64_t b, int64_t h, int64_t i, int64_t j) {
    const ra_mask *m = &p->mask;
    pair x = locate(p, i, j);
    int64_t behind = x.i + x.offset - x.j, block = m->causal_block; /* how far the key is behind the query's own place */
    if (!x.together)
        return 0;
    if (m->causal && !(behind >= 0 || x.j < m->prefix))
        return 0;
    if (block > 0 && !(floor_div(x.j, block) <= floor_div(x.i + x.offset, block) || x.j < m->prefix))
        return 0;
    if (m->window_left >= 0 && !(behind <= m->window_left || x.j < m->keep_first))
        return 0;
    if (m->window_right >= 0 && !(-behind <= m->window_right))
        return 0;
    if (m->q_segment_ids && m->q_segment_ids[b * p->Sq + i] != m->kv_segment_ids[b * p->Skv + j])
        return 0;
    if (m->kv_lens && !(j < m->kv_lens[b]))
        return 0;
    if (!some_slice_covers(m, i, j))
        return 0;
    return !(bias && bias->data && oracle_load(bias, b, i, h, j) == -INFINITY);
}

void oracle_bias_shape(const ra_problem *p, const ra_tensor *bias, int64_t shape[4]) {
    shape[0] = bias->stride[0] ? p->B : 1;
    shape[1] = bias->stride[2] ? p->H : 1;
    shape[2] = bias->stride[1] ? p->Sq : 1;
    shape[3] = bias->stride[3] ? p->Skv : 1;
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

/* What became of one pair on its way from q.k to out. */
typedef struct term {
    int64_t j;    /* the key */
    double s;     /* logit */
    double slope; /* of softcap at z: ds / dz */
    double p;     /* probability */
    double kept;  /* 1 / (1 - dropout), or 0: dropped */
} term;

/* Everything widened, and room for one row. */
typedef struct work {
    const ra_problem *p;
    const oracle_inputs *in;
    double scale;
    double *q, *k, *v, *dout;
    term *row; /* [Skv] the keys that the query at hand sees */
} work;

static const double *key_row(const work *w, const double *x, int64_t b, int64_t g, int64_t j, int64_t width) {
    return x + ((b * w->p->Skv + j) * w->p->G + g) * width;
}

static double *query_row(const work *w, double *x, int64_t b, int64_t h, int64_t i, int64_t width) {
    return x + ((b * w->p->Sq + i) * w->p->H + h) * width;
}

/* The factor of q.k. */
static double factor(const work *w, int64_t i) {
    return w->in->temperature ? w->scale * w->in->temperature[i] : w->scale;
}

static double sink(const work *w, int64_t h) {
    return w->in->sinks ? w->in->sinks[h] : -INFINITY;
}

static term score(const work *w, int64_t b, int64_t h, int64_t i, int64_t j) {
    const ra_problem *p = w->p;
    int64_t g = h / (p->H / p->G);
    term t = {.j = j, .slope = 1, .kept = 1};
    t.s = factor(w, i) * dot(query_row(w, w->q, b, h, i, p->D), key_row(w, w->k, b, g, j, p->D), p->D);
    if (p->softcap > 0) {
        double x = tanh(t.s / p->softcap);
        t.s = p->softcap * x;
        t.slope = 1 - x * x;
    }
    if (w->in->bias.data)
        t.s += oracle_load(&w->in->bias, b, i, h, j);
    if (p->alibi_slopes) {
        pair x = locate(p, i, j);
        t.s -= p->alibi_slopes[h] * fabs((double)(x.i + x.offset - x.j));
    }
    if (p->dropout > 0)
        t.kept = ra__dropout_keeps(p->seed, b * p->H + h, i, j, ra__dropout_threshold(p->dropout)) ? ra__dropout_scale(p->dropout) : 0;
    return t;
}

/* Fills w->row for one query and returns the number of keys it sees. */
static int64_t softmax_row(work *w, int64_t b, int64_t h, int64_t i, double *lse, double *row_max) {
    int64_t n = 0;
    for (int64_t j = 0; j < w->p->Skv; j++)
        if (oracle_sees(w->p, &w->in->bias, b, h, i, j))
            w->row[n++] = score(w, b, h, i, j);
    *row_max = -INFINITY;
    for (int64_t c = 0; c < n; c++)
        *row_max = w->row[c].s > *row_max ? w->row[c].s : *row_max;
    double max = sink(w, h) > *row_max ? sink(w, h) : *row_max, sum = sink(w, h) > -INFINITY ? exp(sink(w, h) - max) : 0;
    for (int64_t c = 0; c < n; c++)
        sum += exp(w->row[c].s - max);
    *lse = n || sum > 0 ? max + log(sum) : -INFINITY;
    for (int64_t c = 0; c < n; c++)
        w->row[c].p = exp(w->row[c].s - max) / sum;
    return n;
}

static double *bias_element(const work *w, double *dbias, int64_t b, int64_t h, int64_t i, int64_t j) {
    int64_t n[4];
    oracle_bias_shape(w->p, &w->in->bias, n);
    return dbias + (((n[0] > 1 ? b : 0) * n[1] + (n[1] > 1 ? h : 0)) * n[2] + (n[2] > 1 ? i : 0)) * n[3] + (n[3] > 1 ? j : 0);
}

static void attend_row(work *w, oracle_result *r, int64_t b, int64_t h, int64_t i) {
    const ra_problem *p = w->p;
    int64_t g = h / (p->H / p->G), at = (b * p->H + h) * p->Sq + i;
    int64_t n = softmax_row(w, b, h, i, &r->lse[at], &r->row_max[at]);
    double *out = query_row(w, r->out, b, h, i, p->Dv);
    for (int64_t c = 0; c < n; c++)
        if (w->row[c].kept > 0)
            add_scaled(out, w->row[c].p * w->row[c].kept, key_row(w, w->v, b, g, w->row[c].j, p->Dv), p->Dv);
    if (!p->backward)
        return;
    const double *q = query_row(w, w->q, b, h, i, p->D), *dout = query_row(w, w->dout, b, h, i, p->Dv);
    double *dq = query_row(w, r->dq, b, h, i, p->D);
    double shift = (w->in->dlse ? w->in->dlse[at] : 0.0) - dot(dout, out, p->Dv);
    for (int64_t c = 0; c < n; c++) {
        const term *t = &w->row[c];
        int64_t row = (b * p->Skv + t->j) * p->G + g;
        double dp = t->kept > 0 ? t->kept * dot(dout, w->v + row * p->Dv, p->Dv) : 0;
        double ds = t->p * (dp + shift), dz = factor(w, i) * t->slope * ds;
        if (t->kept > 0)
            add_scaled(r->dv + row * p->Dv, t->p * t->kept, dout, p->Dv);
        add_scaled(dq, dz, w->k + row * p->D, p->D);
        add_scaled(r->dk + row * p->D, dz, q, p->D);
        if (r->dbias)
            *bias_element(w, r->dbias, b, h, i, t->j) += ds;
    }
    if (r->dsinks && sink(w, h) > -INFINITY)
        r->dsinks[h] += exp(sink(w, h) - r->lse[at]) * shift;
}

void oracle_result_free(oracle_result *r) {
    double *all[] = {r->out, r->lse, r->row_max, r->dq, r->dk, r->dv, r->dbias, r->dsinks};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    memset(r, 0, sizeof *r);
}

static int prepare(work *w, oracle_result *r) {
    const ra_problem *p = w->p;
    const oracle_inputs *in = w->in;
    w->scale = isnan(p->scale) ? 1 / sqrt((double)p->D) : p->scale;
    w->q = widen(&in->q, p->B, p->Sq, p->H, p->D);
    w->k = widen(&in->k, p->B, p->Skv, p->G, p->D);
    w->v = widen(&in->v, p->B, p->Skv, p->G, p->Dv);
    w->row = malloc((size_t)(p->Skv + 1) * sizeof *w->row);
    r->out = zeros(p->B * p->Sq * p->H * p->Dv);
    r->lse = zeros(p->B * p->H * p->Sq);
    r->row_max = zeros(p->B * p->H * p->Sq);
    int complete = w->q && w->k && w->v && w->row && r->out && r->lse && r->row_max;
    if (!p->backward)
        return complete;
    w->dout = widen(&in->dout, p->B, p->Sq, p->H, p->Dv);
    r->dq = zeros(p->B * p->Sq * p->H * p->D);
    r->dk = zeros(p->B * p->Skv * p->G * p->D);
    r->dv = zeros(p->B * p->Skv * p->G * p->Dv);
    if (in->bias.data) {
        int64_t n[4];
        oracle_bias_shape(p, &in->bias, n);
        r->dbias = zeros(n[0] * n[1] * n[2] * n[3]);
    }
    if (in->sinks)
        r->dsinks = zeros(p->H);
    return complete && w->dout && r->dq && r->dk && r->dv && !r->dbias == !in->bias.data && !r->dsinks == !in->sinks;
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
    free(w.row);
    if (!complete)
        oracle_result_free(result);
    return complete ? RA_OK : RA_ERR_MEMORY;
}
