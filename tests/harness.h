/* A ring on local threads, set against the oracle: whole tensors in, sharded over P ranks, gathered again. Used by the tests of ring,
 * API and MPI. */
#ifndef RA_TESTS_HARNESS_H
#define RA_TESTS_HARNESS_H

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "../src/cli/oracle.h"
#include "base/half.h"
#include "block/kernels.h"
#include "check.h"

/* One problem, its whole tensors and its results. */
struct whole {
    ra_problem p; /* mask ids point to the whole sequences' ids below */
    int P;
    bool bhsd;                      /* order of the ranks' tensors */
    bool half_out;                  /* out in p.dtype, else fp32 */
    int64_t bias_b, bias_h, bias_q; /* stored lengths; 0: no bias */
    ra_local_options link;
    double timeout_s;

    void *q, *k, *v, *dout; /* p.dtype, order b, t, h, d */
    float *dlse, *bias;
    int32_t *q_ids, *kv_ids;
    float *sinks, *temperature;      /* [H], [Sq]; NULL: none. whole_extras makes them */
    float *out, *lse, *dq, *dk, *dv; /* gathered */
    float *row_max, *dsinks, *dbias; /* [B,H,Sq], [H], the bias's shape; NULL: not wanted */
    ra_stats forward, backward;      /* of rank 0 */
    ra_plan_info info;               /* of rank 0 */
};

static uint64_t random_state = 88172645463325252u;
__attribute__((unused)) static double uniform(void) { /* [0, 1) */
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (double)(random_state >> 11) * 0x1p-53;
}
__attribute__((unused)) static double normal(void) {
    return sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform());
}

static void put_value(void *x, ra_dtype t, int64_t i, double value) {
    if (t == RA_F32)
        ((float *)x)[i] = (float)value;
    else
        ((uint16_t *)x)[i] = t == RA_BF16 ? ra__to_bf16((float)value) : ra__to_f16((float)value);
}

__attribute__((unused)) static double get_value(const void *x, ra_dtype t, int64_t i) {
    if (t == RA_F32)
        return ((const float *)x)[i];
    return t == RA_BF16 ? ra__from_bf16(((const uint16_t *)x)[i]) : ra__from_f16(((const uint16_t *)x)[i]);
}

static void *filled(int64_t n, ra_dtype t, double scale) {
    void *x = malloc((size_t)(n ? n : 1) * ra_dtype_size(t));
    for (int64_t i = 0; i < n; i++)
        put_value(x, t, i, scale * normal());
    return x;
}

static float *poisoned(int64_t n) { /* whoever reads what was never written will notice */
    float *x = malloc((size_t)(n ? n : 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = NAN;
    return x;
}

static int64_t q_numel(const ra_problem *p, int64_t width) {
    return p->B * p->Sq * p->H * width;
}
static int64_t kv_numel(const ra_problem *p, int64_t width) {
    return p->B * p->Skv * p->G * width;
}

/* Fills in tensors for w->p (and bias lengths, when set); random values, documents of about `document` tokens when > 0. */
__attribute__((unused)) static void whole_make(struct whole *w, int document) {
    ra_problem *p = &w->p;
    p->backward = 1;
    w->q = filled(q_numel(p, p->D), p->dtype, 1);
    w->k = filled(kv_numel(p, p->D), p->dtype, 1);
    w->v = filled(kv_numel(p, p->Dv), p->dtype, 1);
    w->dout = filled(q_numel(p, p->Dv), p->dtype, 1);
    w->dlse = filled(q_numel(p, 1), RA_F32, 0.5);
    if (w->bias_b) {
        p->has_bias = 1;
        w->bias = filled(w->bias_b * w->bias_h * w->bias_q * p->Skv, RA_F32, 1);
        for (int64_t i = 0; i < w->bias_b * w->bias_h * w->bias_q * p->Skv; i++)
            if (uniform() < 0.2)
                w->bias[i] = -INFINITY;
    }
    if (document > 0) {
        w->q_ids = malloc((size_t)(p->B * p->Sq + 1) * sizeof *w->q_ids);
        w->kv_ids = malloc((size_t)(p->B * p->Skv + 1) * sizeof *w->kv_ids);
        for (int64_t b = 0; b < p->B; b++)
            for (int64_t t = 0; t < p->Sq || t < p->Skv; t++) {
                int32_t id = (int32_t)((t + 3 * b) / document);
                if (t < p->Sq)
                    w->q_ids[b * p->Sq + t] = id;
                if (t < p->Skv)
                    w->kv_ids[b * p->Skv + t] = id;
            }
        p->mask.q_segment_ids = w->q_ids;
        p->mask.kv_segment_ids = w->kv_ids;
    }
    w->out = poisoned(q_numel(p, p->Dv));
    w->lse = poisoned(q_numel(p, 1));
    w->dq = poisoned(q_numel(p, p->D));
    w->dk = poisoned(kv_numel(p, p->D));
    w->dv = poisoned(kv_numel(p, p->Dv));
}

static int64_t bias_numel(const struct whole *w) {
    return w->bias_b * w->bias_h * w->bias_q * w->p.Skv;
}

enum { SINKS = 1, TEMPERATURE = 2, ROW_MAX = 4, DBIAS = 8, DSINKS = 16 };

/* After whole_make: random inputs, and room for outputs, that most runs do without. */
__attribute__((unused)) static void whole_extras(struct whole *w, unsigned what) {
    const ra_problem *p = &w->p;
    if (what & SINKS)
        w->sinks = filled(p->H, RA_F32, 1);
    if (what & TEMPERATURE) {
        w->temperature = filled(p->Sq, RA_F32, 1);
        for (int64_t i = 0; i < p->Sq; i++)
            w->temperature[i] = (float)(0.5 + uniform());
    }
    w->p.has_sinks = w->sinks != NULL;
    w->p.has_temperature = w->temperature != NULL;
    if (what & ROW_MAX)
        w->row_max = poisoned(q_numel(p, 1));
    if (what & DBIAS && w->bias)
        w->dbias = poisoned(bias_numel(w));
    if (what & DSINKS && w->sinks)
        w->dsinks = poisoned(p->H);
}

__attribute__((unused)) static void whole_free(struct whole *w) {
    void *all[] = {w->q,           w->k,   w->v,   w->dout, w->dlse, w->bias, w->q_ids,   w->kv_ids, w->sinks,
                   w->temperature, w->out, w->lse, w->dq,   w->dk,   w->dv,   w->row_max, w->dsinks, w->dbias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* One rank's part of a whole tensor [B,S,heads,width], copied out or back. */
struct part {
    void *data;
    ra_tensor tensor;
    int64_t T;
};

static void part_copy(const struct whole *w, int r, int64_t S, int64_t heads, int64_t width, void *whole, const ra_tensor *x, bool out) {
    const int64_t T = ra_shard_size(w->p.layout, S, w->P, r), bytes = (int64_t)ra_dtype_size(x->dtype);
    for (int64_t b = 0; b < w->p.B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t h = 0; h < heads; h++) {
                int64_t s = ra_shard_position(w->p.layout, S, w->P, r, t);
                char *there = (char *)whole + ((b * S + s) * heads + h) * width * bytes;
                char *here = (char *)x->data + (b * x->stride[0] + t * x->stride[1] + h * x->stride[2]) * bytes;
                memcpy(out ? there : here, out ? here : there, (size_t)(width * bytes));
            }
}

static struct part part_new(const struct whole *w, int r, int64_t S, int64_t heads, int64_t width, ra_dtype t, void *whole) {
    struct part p = {.T = ra_shard_size(w->p.layout, S, w->P, r)};
    const size_t bytes = (size_t)(w->p.B * p.T * heads * width) * ra_dtype_size(t);
    p.data = malloc(bytes + 1);
    memset(p.data, 0xff, bytes + 1); /* NaN in every type */
    p.tensor = w->bhsd ? ra_tensor_bhsd(p.data, t, p.T, heads, width) : ra_tensor_bshd(p.data, t, p.T, heads, width);
    if (whole)
        part_copy(w, r, S, heads, width, whole, &p.tensor, false);
    return p;
}

static float *rows_of(const struct whole *w, int r, const float *whole) { /* [B,H,Sq] -> [B,H,T] */
    const int64_t T = ra_shard_size(w->p.layout, w->p.Sq, w->P, r), heads = w->p.B * w->p.H;
    float *x = malloc((size_t)(heads * T + 1) * sizeof *x);
    for (int64_t h = 0; whole && h < heads; h++)
        for (int64_t t = 0; t < T; t++)
            x[h * T + t] = whole[h * w->p.Sq + ra_shard_position(w->p.layout, w->p.Sq, w->P, r, t)];
    return x;
}

static int32_t *ids_of(const struct whole *w, int r, int64_t S, const int32_t *whole) {
    const int64_t T = ra_shard_size(w->p.layout, S, w->P, r);
    int32_t *x = malloc((size_t)(w->p.B * T + 1) * sizeof *x);
    for (int64_t b = 0; b < w->p.B; b++)
        for (int64_t t = 0; t < T; t++)
            x[b * T + t] = whole[b * S + ra_shard_position(w->p.layout, S, w->P, r, t)];
    return x;
}

static uint64_t checksum(const void *data, size_t bytes) {
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ ((const unsigned char *)data)[i]) * 1099511628211u;
    return h;
}

/* Everything that a run may only read. */
static uint64_t inputs_checksum(const struct whole *w, const ra_problem *p, const struct part in[4], const float *dlse, const float *bias,
                                int64_t bias_count, const float *temperature) {
    const int64_t n[4] = {in[0].T * p->H * p->D, in[1].T * p->G * p->D, in[2].T * p->G * p->Dv, in[3].T * p->H * p->Dv};
    uint64_t h = checksum(dlse, (size_t)(p->B * p->H * in[0].T) * sizeof *dlse) + checksum(bias, (size_t)bias_count * sizeof *bias);
    for (int i = 0; i < 4; i++)
        h = 31 * h + checksum(in[i].data, (size_t)(p->B * n[i]) * ra_dtype_size(p->dtype));
    if (p->mask.q_segment_ids)
        h = 31 * h + checksum(p->mask.q_segment_ids, (size_t)(p->B * in[0].T) * 4) +
            7 * checksum(p->mask.kv_segment_ids, (size_t)(p->B * in[1].T) * 4);
    if (p->mask.kv_lens)
        h = 31 * h + checksum(p->mask.kv_lens, (size_t)p->B * 4);
    if (p->mask.slices)
        h = 31 * h + checksum(p->mask.slices, (size_t)p->mask.slice_count * 40);
    if (p->mask.cu_seqlens_q)
        h = 31 * h + checksum(p->mask.cu_seqlens_q, (size_t)(p->mask.sequences + 1) * 4) +
            7 * checksum(p->mask.cu_seqlens_kv, (size_t)(p->mask.sequences + 1) * 4);
    if (w->sinks)
        h = 31 * h + checksum(w->sinks, (size_t)p->H * 4);
    return temperature ? 31 * h + checksum(temperature, (size_t)in[0].T * 4) : h;
}

/* The bias's gradient of rank r's query rows, or, with a bias for all queries, the sum over all ranks that each rank must have. */
static void gather_dbias(struct whole *w, int r, const float *mine, int64_t nt) {
    const int64_t row = w->p.Skv;
    for (int64_t o = 0; o < w->bias_b * w->bias_h; o++)
        for (int64_t t = 0; t < nt; t++) {
            const int64_t s = w->bias_q == 1 ? 0 : ra_shard_position(w->p.layout, w->p.Sq, w->P, r, t);
            if (r == 0 || w->bias_q > 1)
                memcpy(w->dbias + (o * w->bias_q + s) * row, mine + (o * nt + t) * row, (size_t)row * sizeof *mine);
        }
}

/* The rank's share of a run; usable over any comm. Results are written into w's whole arrays. */
__attribute__((unused)) static ra_status whole_rank(ra_comm *comm, int r, void *user) {
    struct whole *w = user;
    ra_problem p = w->p;
    const ra_dtype out_type = w->half_out ? p.dtype : RA_F32;
    struct part q = part_new(w, r, p.Sq, p.H, p.D, p.dtype, w->q), k = part_new(w, r, p.Skv, p.G, p.D, p.dtype, w->k),
                v = part_new(w, r, p.Skv, p.G, p.Dv, p.dtype, w->v), dout = part_new(w, r, p.Sq, p.H, p.Dv, p.dtype, w->dout),
                out = part_new(w, r, p.Sq, p.H, p.Dv, out_type, NULL), dq = part_new(w, r, p.Sq, p.H, p.D, RA_F32, NULL),
                dk = part_new(w, r, p.Skv, p.G, p.D, RA_F32, NULL), dv = part_new(w, r, p.Skv, p.G, p.Dv, RA_F32, NULL);
    float *lse = rows_of(w, r, NULL), *dlse = rows_of(w, r, w->dlse), *bias = NULL, *dbias = NULL, *temperature = NULL;
    float *row_max = w->row_max ? poisoned(p.B * p.H * q.T) : NULL, *dsinks = w->dsinks ? poisoned(p.H) : NULL;
    int32_t *q_ids = w->q_ids ? ids_of(w, r, p.Sq, w->q_ids) : NULL, *kv_ids = w->kv_ids ? ids_of(w, r, p.Skv, w->kv_ids) : NULL;
    p.mask.q_segment_ids = q_ids;
    p.mask.kv_segment_ids = kv_ids;
    ra_attention_args a = {.q = q.tensor,
                           .k = k.tensor,
                           .v = v.tensor,
                           .out = out.tensor,
                           .lse = lse,
                           .dout = dout.tensor,
                           .dlse = dlse,
                           .dq = dq.tensor,
                           .dk = dk.tensor,
                           .dv = dv.tensor,
                           .sinks = w->sinks,
                           .row_max = row_max,
                           .dsinks = dsinks};
    if (w->temperature) {
        temperature = poisoned(q.T);
        for (int64_t t = 0; t < q.T; t++)
            temperature[t] = w->temperature[ra_shard_position(p.layout, p.Sq, w->P, r, t)];
        a.temperature = temperature;
    }
    int64_t bias_count = 0, bias_rows = 0;
    if (w->bias) { /* this rank's query rows */
        const int64_t nt = w->bias_q == 1 ? 1 : q.T, outer = w->bias_b * w->bias_h;
        bias_rows = nt;
        bias_count = outer * nt * p.Skv;
        bias = malloc((size_t)(bias_count + 1) * sizeof *bias);
        for (int64_t o = 0; o < outer; o++)
            for (int64_t t = 0; t < nt; t++) {
                int64_t s = w->bias_q == 1 ? 0 : ra_shard_position(p.layout, p.Sq, w->P, r, t);
                memcpy(bias + (o * nt + t) * p.Skv, w->bias + (o * w->bias_q + s) * p.Skv, (size_t)p.Skv * sizeof *bias);
            }
        a.bias = ra_tensor_bias(bias, RA_F32, w->bias_b, w->bias_h, nt, p.Skv);
        if (w->dbias) {
            dbias = poisoned(bias_count);
            a.dbias = ra_tensor_bias(dbias, RA_F32, w->bias_b, w->bias_h, nt, p.Skv);
            if (w->bias_q > 1) /* a rank with one query or none, but not a broadcast, over which dbias would be summed */
                a.bias.stride[1] = a.dbias.stride[1] = p.Skv;
        } else if (w->bias_q > 1 && nt == 1) { /* any stride will do */
            a.bias.stride[1] = 0;
        }
    }
    const struct part inputs[4] = {q, k, v, dout};
    const uint64_t before = inputs_checksum(w, &p, inputs, dlse, bias, bias_count, temperature);
    ra_plan *plan = NULL;
    ra_stats forward = {0}, backward = {0};
    ra_status s = ra_plan_create(comm, &p, &plan);
    if (s == RA_OK) {
        ra_plan_info info;
        ra_plan_query(plan, &info);
        a.stats = &forward;
        s = ra_attention_forward(plan, &a, NULL);
        const uint64_t results = checksum(lse, (size_t)(p.B * p.H * q.T) * sizeof *lse) +
                                 checksum(out.data, (size_t)(p.B * q.T * p.H * p.Dv) * ra_dtype_size(out_type));
        a.stats = &backward;
        if (s == RA_OK && w->p.backward)
            s = ra_attention_backward(plan, &a, NULL);
        CHECK(s != RA_OK || forward.bytes_sent == info.bytes_sent_forward);
        CHECK(s != RA_OK || !w->p.backward || backward.bytes_sent == info.bytes_sent_backward);
        CHECK(results == checksum(lse, (size_t)(p.B * p.H * q.T) * sizeof *lse) +
                             checksum(out.data, (size_t)(p.B * q.T * p.H * p.Dv) * ra_dtype_size(out_type)));
        CHECK(before == inputs_checksum(w, &p, inputs, dlse, bias, bias_count, temperature)); /* case 33 */
        if (s == RA_OK && r == 0) {
            w->forward = forward;
            w->backward = backward;
            w->info = info;
        }
    }
    ra_plan_destroy(plan);
    if (s == RA_OK) {
        if (w->half_out) { /* to fp32 on the way */
            struct part wide = part_new(w, r, p.Sq, p.H, p.Dv, RA_F32, NULL);
            for (int64_t i = 0; i < p.B * q.T * p.H * p.Dv; i++)
                ((float *)wide.data)[i] = (float)get_value(out.data, p.dtype, i);
            part_copy(w, r, p.Sq, p.H, p.Dv, w->out, &wide.tensor, true);
            free(wide.data);
        } else {
            part_copy(w, r, p.Sq, p.H, p.Dv, w->out, &out.tensor, true);
        }
        part_copy(w, r, p.Sq, p.H, p.D, w->dq, &dq.tensor, true);
        part_copy(w, r, p.Skv, p.G, p.D, w->dk, &dk.tensor, true);
        part_copy(w, r, p.Skv, p.G, p.Dv, w->dv, &dv.tensor, true);
        for (int64_t h = 0; h < p.B * p.H; h++)
            for (int64_t t = 0; t < q.T; t++)
                w->lse[h * p.Sq + ra_shard_position(p.layout, p.Sq, w->P, r, t)] = lse[h * q.T + t];
        for (int64_t h = 0; w->row_max && h < p.B * p.H; h++)
            for (int64_t t = 0; t < q.T; t++)
                w->row_max[h * p.Sq + ra_shard_position(p.layout, p.Sq, w->P, r, t)] = row_max[h * q.T + t];
        if (w->dbias && w->p.backward)
            gather_dbias(w, r, dbias, bias_rows);
        if (w->dsinks && r == w->P - 1) /* the sum over all ranks is on each of them */
            memcpy(w->dsinks, dsinks, (size_t)p.H * sizeof *dsinks);
    }
    void *all[] = {q.data, k.data, v.data, dout.data, out.data, dq.data,     dk.data, dv.data, lse,
                   dlse,   bias,   q_ids,  kv_ids,    dbias,    temperature, row_max, dsinks};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    return s;
}

/* Are queries so few that a plan without a backward computes them by kernels of its own? Then both kinds of plan are to be tested. */
__attribute__((unused)) static bool whole_is_short(const struct whole *w) {
    return ra_shard_size(w->p.layout, w->p.Sq, w->P, 0) * (w->p.H / w->p.G) <= 16;
}

__attribute__((unused)) static ra_status whole_run(struct whole *w) {
    ra_comm_options options = {.timeout_s = w->timeout_s > 0 ? w->timeout_s : 30};
    return ra_local_run(w->P, &options, &w->link, whole_rank, w);
}

/* The oracle on the same tensors. */
__attribute__((unused)) static oracle_result whole_oracle(const struct whole *w) {
    const ra_problem *p = &w->p;
    oracle_inputs in = {.q = ra_tensor_bshd(w->q, p->dtype, p->Sq, p->H, p->D),
                        .k = ra_tensor_bshd(w->k, p->dtype, p->Skv, p->G, p->D),
                        .v = ra_tensor_bshd(w->v, p->dtype, p->Skv, p->G, p->Dv),
                        .dout = ra_tensor_bshd(w->dout, p->dtype, p->Sq, p->H, p->Dv),
                        .dlse = w->dlse,
                        .sinks = w->sinks,
                        .temperature = w->temperature};
    if (w->bias)
        in.bias = ra_tensor_bias(w->bias, RA_F32, w->bias_b, w->bias_h, w->bias_q, p->Skv);
    oracle_result o = {0};
    CHECK_OK(oracle_attention(p, &in, &o));
    return o;
}

/* Largest |x - reference| over largest |reference| (at least `floor`); infinite for a NaN or a wrong infinity. */
__attribute__((unused)) static double relative_error(const float *x, const double *reference, int64_t n, double floor) {
    double error = 0, largest = floor;
    for (int64_t i = 0; i < n; i++) {
        if (isinf(reference[i])) {
            if (x[i] != reference[i])
                return INFINITY;
            continue;
        }
        double e = fabs((double)x[i] - reference[i]);
        if (!(e <= 1e30))
            return INFINITY;
        error = e > error ? e : error;
        largest = fabs(reference[i]) > largest ? fabs(reference[i]) : largest;
    }
    return error / largest;
}

struct errors {
    double out, lse, dq, dk, dv;
    double row_max, dbias, dsinks; /* 0 if not wanted */
};

__attribute__((unused)) static struct errors whole_errors(const struct whole *w, const oracle_result *o) {
    const ra_problem *p = &w->p;
    struct errors e = {.out = relative_error(w->out, o->out, q_numel(p, p->Dv), 0.1),
                       .lse = relative_error(w->lse, o->lse, q_numel(p, 1), 1)};
    if (p->backward) {
        e.dq = relative_error(w->dq, o->dq, q_numel(p, p->D), 0.1);
        e.dk = relative_error(w->dk, o->dk, kv_numel(p, p->D), 0.1);
        e.dv = relative_error(w->dv, o->dv, kv_numel(p, p->Dv), 0.1);
    }
    if (w->row_max)
        e.row_max = relative_error(w->row_max, o->row_max, q_numel(p, 1), 1);
    if (w->dbias && p->backward)
        e.dbias = relative_error(w->dbias, o->dbias, bias_numel(w), 0.1);
    if (w->dsinks && p->backward)
        e.dsinks = relative_error(w->dsinks, o->dsinks, p->H, 0.1);
    return e;
}

/* The bound for a type: kernels that multiply bf16 pairs round the probabilities to bf16 (2^-9), the others compute in fp32 throughout. */
__attribute__((unused)) static double bound_for(ra_dtype t, double bound) {
    const double rounded = 1e-2;
    return t == RA_BF16 && ra__kernels_bf16()->pair == 2 && bound < rounded ? rounded : bound;
}

__attribute__((unused)) static bool whole_check(const struct whole *w, double bound, const char *name) {
    bound = bound_for(w->p.dtype, bound);
    oracle_result o = whole_oracle(w);
    struct errors e = whole_errors(w, &o);
    oracle_result_free(&o);
    const ra_problem *p = &w->p;
    return CHECK_MSG(
        e.out <= bound && e.lse <= bound && e.dq <= bound && e.dk <= bound && e.dv <= bound && e.row_max <= bound && e.dbias <= bound &&
            e.dsinks <= bound,
        "%s: P %d layout %d B %lld Sq %lld Skv %lld H %lld G %lld D %lld Dv %lld dtype %d causal %d block %lld align %d bias %d "
        "segments %d bhsd %d: errors out %.2g lse %.2g dq %.2g dk %.2g dv %.2g row_max %.2g dbias %.2g dsinks %.2g, bound %.2g",
        name, w->P, (int)p->layout, (long long)p->B, (long long)p->Sq, (long long)p->Skv, (long long)p->H, (long long)p->G, (long long)p->D,
        (long long)p->Dv, (int)p->dtype, p->mask.causal, (long long)p->mask.causal_block, (int)p->mask.align, w->bias != NULL,
        w->q_ids != NULL, w->bhsd, e.out, e.lse, e.dq, e.dk, e.dv, e.row_max, e.dbias, e.dsinks, bound);
}

#endif
