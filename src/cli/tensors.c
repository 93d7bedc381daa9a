/* Shapes and rows of the tensors of a problem. */
#define _POSIX_C_SOURCE 200809L
#include "tensors.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[SLOTS] = {"q",
                                         "k",
                                         "v",
                                         "dout",
                                         "dlse",
                                         "bias",
                                         "q_segment_ids",
                                         "kv_segment_ids",
                                         "kv_lens",
                                         "cu_seqlens_q",
                                         "cu_seqlens_kv",
                                         "slices",
                                         "alibi_slopes",
                                         "sinks",
                                         "temperature",
                                         "out",
                                         "lse",
                                         "dq",
                                         "dk",
                                         "dv",
                                         "row_max",
                                         "dbias",
                                         "dsinks"};

const char *slot_name(slot s) {
    return names[s];
}

int tensors_is_bias(slot s) {
    return s == BIAS || s == DBIAS;
}

int tensors_is_row(slot s) {
    return s == LSE || s == DLSE || s == ROW_MAX;
}

int tensors_is_fixed(slot s) {
    return s == KV_LENS || s == CU_Q || s == CU_KV || s == SLICES || s == ALIBI || s == SINKS || s == DSINKS;
}

static int is_keyed(slot s) {
    return s == K || s == V || s == DK || s == DV || s == KV_IDS;
}

static int64_t tokens_of(const tensors *t, slot s) {
    if (tensors_is_bias(s))
        return t->bias_axes[2];
    return is_keyed(s) ? t->problem.Skv : t->problem.Sq;
}

/* Of the tensors without axes for tokens and heads both. */
static int shape_of_vector(const ra_problem *p, slot s, int64_t shape[4]) {
    shape[0] = s == KV_LENS ? p->B : s == CU_Q || s == CU_KV ? p->mask.sequences + 1 : s == SLICES ? p->mask.slice_count : p->H;
    shape[1] = 5;
    if (s == TEMPERATURE)
        shape[0] = p->Sq;
    return s == SLICES ? 2 : 1;
}

int tensors_shape(const tensors *t, slot s, int64_t shape[4]) {
    const ra_problem *p = &t->problem;
    int64_t tokens = tokens_of(t, s), heads = is_keyed(s) ? p->G : p->H;
    int axes = s == Q_IDS || s == KV_IDS ? 2 : tensors_is_row(s) ? 3 : 4;
    if (tensors_is_fixed(s) || s == TEMPERATURE)
        return shape_of_vector(p, s, shape);
    shape[0] = p->B;
    shape[1] = axes == 2 ? tokens : heads;
    shape[2] = tokens;
    shape[3] = s == Q || s == K || s == DQ || s == DK ? p->D : p->Dv;
    if (tensors_is_bias(s)) {
        memcpy(shape, t->bias_axes, sizeof t->bias_axes);
    } else if (axes == 4 && t->order == ORDER_BSHD) {
        shape[1] = tokens;
        shape[2] = heads;
    }
    return axes;
}

static int64_t element_size(const tensors *t, slot s) {
    if (s == SLICES)
        return 8;
    return s == Q_IDS || s == KV_IDS || s == KV_LENS || s == CU_Q || s == CU_KV ? 4 : (int64_t)ra_dtype_size(t->dtype[s]);
}

rows tensors_rows(const tensors *t, slot s) {
    int64_t shape[4];
    int axes = tensors_shape(t, s, shape);
    int token_axis = axes == 2 || (axes == 4 && !tensors_is_bias(s) && t->order == ORDER_BSHD) ? 1 : 2;
    rows x = {.outer = 1, .tokens = 1, .bytes = element_size(t, s)};
    if (tensors_is_fixed(s) || s == TEMPERATURE)
        token_axis = s == TEMPERATURE ? 0 : -1;
    if (token_axis >= 0)
        x.tokens = shape[token_axis];
    for (int i = 0; i < token_axis; i++)
        x.outer *= shape[i];
    for (int i = token_axis + 1; i < axes; i++)
        x.bytes *= shape[i];
    x.whole = token_axis < 0 || (tensors_is_bias(s) && t->bias_axes[2] == 1 && t->problem.Sq != 1);
    return x;
}

int64_t tensors_local_tokens(const tensors *t, slot s) {
    if (tensors_rows(t, s).whole)
        return 1;
    return ra_shard_size(t->problem.layout, tokens_of(t, s), t->P, t->r);
}

int64_t tensors_elements(const tensors *t, slot s) {
    rows x = tensors_rows(t, s);
    return x.outer * tensors_local_tokens(t, s) * (x.bytes / element_size(t, s));
}

int64_t tensors_run(const tensors *t, slot s, int64_t from, int64_t *position) {
    int64_t S = tokens_of(t, s), n = tensors_local_tokens(t, s), length = 1;
    if (tensors_rows(t, s).whole) {
        *position = 0;
        return 1;
    }
    *position = ra_shard_position(t->problem.layout, S, t->P, t->r, from);
    while (from + length < n && ra_shard_position(t->problem.layout, S, t->P, t->r, from + length) == *position + length)
        length++;
    return length;
}

int tensors_allocate(tensors *t, slot s, ra_dtype dtype, failure *f) {
    t->dtype[s] = dtype;
    rows x = tensors_rows(t, s);
    int64_t bytes;
    if (__builtin_mul_overflow(x.outer * x.bytes, tensors_local_tokens(t, s), &bytes))
        return fail(f, EXIT_UNSUPPORTED, "tensor %s does not fit in 64 bits", names[s]);
    if (posix_memalign(&t->data[s], 64, (size_t)bytes + 64)) {
        t->data[s] = NULL;
        return fail_memory(f, bytes, names[s]);
    }
    return 0;
}

void tensors_free(tensors *t) {
    for (int s = 0; s < SLOTS; s++) {
        free(t->data[s]);
        t->data[s] = NULL;
    }
}

void tensors_gather(const tensors *whole, tensors *mine, slot s) {
    rows x = tensors_rows(whole, s);
    int64_t n = tensors_local_tokens(mine, s);
    const char *from = whole->data[s];
    char *to = mine->data[s];
    for (int64_t t = 0, position; t < n;) {
        int64_t run = tensors_run(mine, s, t, &position);
        for (int64_t o = 0; o < x.outer; o++)
            memcpy(to + (o * n + t) * x.bytes, from + (o * x.tokens + position) * x.bytes, (size_t)(run * x.bytes));
        t += run;
    }
}

ra_tensor tensors_view(const tensors *t, slot s) {
    int64_t shape[4], T = tensors_local_tokens(t, s);
    tensors_shape(t, s, shape);
    if (tensors_is_bias(s)) {
        ra_tensor x = ra_tensor_bias(t->data[s], t->dtype[s], shape[0], shape[1], T, shape[3]);
        x.stride[1] = t->bias_axes[2] > 1 ? shape[3] : 0; /* on a rank of one query, too */
        x.stride[3] = shape[3] > 1;
        return x;
    }
    if (t->order == ORDER_BSHD)
        return ra_tensor_bshd(t->data[s], t->dtype[s], T, shape[2], shape[3]);
    return ra_tensor_bhsd(t->data[s], t->dtype[s], T, shape[1], shape[3]);
}

ra_attention_args tensors_args(const tensors *t) {
    ra_attention_args args = {0};
    args.q = tensors_view(t, Q);
    args.k = tensors_view(t, K);
    args.v = tensors_view(t, V);
    if (t->data[BIAS])
        args.bias = tensors_view(t, BIAS);
    args.out = tensors_view(t, OUT);
    args.lse = t->data[LSE];
    if (t->data[DOUT])
        args.dout = tensors_view(t, DOUT);
    args.dlse = t->data[DLSE];
    args.dq = tensors_view(t, DQ);
    args.dk = tensors_view(t, DK);
    args.dv = tensors_view(t, DV);
    args.sinks = t->data[SINKS];
    args.temperature = t->data[TEMPERATURE];
    args.row_max = t->data[ROW_MAX];
    args.dsinks = t->data[DSINKS];
    if (t->data[DBIAS])
        args.dbias = tensors_view(t, DBIAS);
    return args;
}

void tensors_plan_arrays(tensors *t) {
    ra_mask *m = &t->problem.mask;
    m->q_segment_ids = t->data[Q_IDS];
    m->kv_segment_ids = t->data[KV_IDS];
    m->kv_lens = t->data[KV_LENS];
    m->cu_seqlens_q = t->data[CU_Q];
    m->cu_seqlens_kv = t->data[CU_KV];
    m->slices = t->data[SLICES];
    t->problem.alibi_slopes = t->data[ALIBI];
}

int tensors_usual_slopes(tensors *t, failure *f) {
    if (tensors_allocate(t, ALIBI, RA_F32, f))
        return -1;
    return fail_library(f, ra_alibi_slopes(t->problem.H, t->data[ALIBI]), "--alibi");
}
