/* From the tensors of a file to a problem, with every doubt told in terms of the file. */
#define _POSIX_C_SOURCE 200809L
#include "input.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int is_float(const st_tensor *t, ra_dtype *dtype) {
    static const char *const types[] = {"F32", "BF16", "F16"};
    for (int i = 0; i < 3; i++)
        if (strcmp(t->dtype, types[i]) == 0) {
            *dtype = (ra_dtype)i;
            return 1;
        }
    return 0;
}

static int check_types(input *in, failure *f) {
    for (slot s = 0; s < SLOTS; s++) {
        const st_tensor *t = in->tensor[s];
        int ids = s == Q_IDS || s == KV_IDS;
        if (!t || s >= OUT)
            continue;
        if (ids && strcmp(t->dtype, "I32") != 0)
            return fail(f, EXIT_BAD_INPUT, "%s: tensor %s is %s, must be I32", in->path, t->name, t->dtype);
        if (!ids && !is_float(t, &in->dtype[s]))
            return fail(f, EXIT_BAD_INPUT, "%s: tensor %s is %s, must be F32, BF16 or F16", in->path, t->name, t->dtype);
        if (s == DLSE && in->dtype[s] != RA_F32)
            return fail(f, EXIT_BAD_INPUT, "%s: tensor dlse is %s, must be F32", in->path, t->dtype);
    }
    if (in->dtype[K] != in->dtype[Q] || in->dtype[V] != in->dtype[Q])
        return fail(f, EXIT_BAD_INPUT, "%s: q is %s, k %s, v %s: the types must be the same", in->path, in->tensor[Q]->dtype,
                    in->tensor[K]->dtype, in->tensor[V]->dtype);
    return 0;
}

static int find_ids(input *in, failure *f) {
    const st_tensor *both = st_find(&in->header, "segment_ids");
    if (both && (in->tensor[Q_IDS] || in->tensor[KV_IDS]))
        return fail(f, EXIT_BAD_INPUT, "%s: segment_ids and %s exclude each other", in->path,
                    in->tensor[Q_IDS] ? "q_segment_ids" : "kv_segment_ids");
    if (both)
        in->tensor[Q_IDS] = in->tensor[KV_IDS] = both;
    if (!in->tensor[Q_IDS] != !in->tensor[KV_IDS])
        return fail(f, EXIT_BAD_INPUT, "%s: %s is there without %s", in->path, slot_name(in->tensor[Q_IDS] ? Q_IDS : KV_IDS),
                    slot_name(in->tensor[Q_IDS] ? KV_IDS : Q_IDS));
    return 0;
}

int input_open(input *in, const char *path, failure *f) {
    memset(in, 0, sizeof *in);
    in->path = path;
    in->fd = -1;
    if (st_open(path, &in->fd, &in->header, f))
        return -1;
    for (slot s = 0; s < SLOTS; s++)
        in->tensor[s] = st_find(&in->header, slot_name(s));
    for (slot s = Q; s <= V; s++)
        if (!in->tensor[s])
            return fail(f, EXIT_BAD_INPUT, "%s: there is no tensor %s (q, k and v are needed)", path, slot_name(s));
    return find_ids(in, f) ? -1 : check_types(in, f);
}

void input_close(input *in) {
    if (in->fd >= 0)
        close(in->fd);
    in->fd = -1;
    st_free(&in->header);
}

static const char *shape_text(const int64_t *shape, int axes, char text[160]) {
    int n = snprintf(text, 160, "[");
    for (int i = 0; i < axes && n < 130; i++)
        n += snprintf(text + n, 160 - (size_t)n, "%s%" PRId64, i ? ", " : "", shape[i]);
    snprintf(text + n, 160 - (size_t)n, "]");
    return text;
}

static int check_qkv(const input *in, const tensors *t, failure *f) {
    const ra_problem *p = &t->problem;
    const int64_t *k = in->tensor[K]->shape, *v = in->tensor[V]->shape;
    int token = t->order == ORDER_BSHD ? 1 : 2, head = 3 - token;
    if (k[0] != p->B || v[0] != p->B)
        return fail(f, EXIT_BAD_INPUT, "%s: batch sizes differ: q %" PRId64 ", k %" PRId64 ", v %" PRId64, in->path, p->B, k[0], v[0]);
    if (v[token] != p->Skv)
        return fail(f, EXIT_BAD_INPUT, "%s: tensor v has %" PRId64 " tokens, k has %" PRId64, in->path, v[token], p->Skv);
    if (v[head] != p->G)
        return fail(f, EXIT_BAD_INPUT, "%s: tensor v has %" PRId64 " heads, k has %" PRId64, in->path, v[head], p->G);
    if (k[3] != p->D)
        return fail(f, EXIT_BAD_INPUT, "%s: tensor k has head size %" PRId64 ", q has %" PRId64, in->path, k[3], p->D);
    if (p->B < 1 || p->H < 1 || p->G < 1 || p->D < 1 || p->Dv < 1)
        return fail(f, EXIT_BAD_INPUT,
                    "%s: batch, heads and head sizes must be at least 1, found B %" PRId64 ", heads of q %" PRId64 ", of k %" PRId64
                    ", head size of q %" PRId64 ", of v %" PRId64,
                    in->path, p->B, p->H, p->G, p->D, p->Dv);
    if (p->H % p->G)
        return fail(f, EXIT_BAD_INPUT,
                    "%s: tensor k has %" PRId64 " heads, q has %" PRId64
                    ": q heads must be a multiple of k heads (axes read as %s, see --order)",
                    in->path, p->G, p->H, t->order == ORDER_BSHD ? "B,S,H,D" : "B,H,S,D");
    return 0;
}

/* Tensor s must have the shape that q, k and v imply. */
static int check_shape(const input *in, const tensors *t, slot s, failure *f) {
    int64_t shape[4];
    char want[160], found[160];
    int axes = tensors_shape(t, s, shape);
    const st_tensor *x = in->tensor[s];
    if (x->axes == axes && memcmp(x->shape, shape, (size_t)axes * sizeof shape[0]) == 0)
        return 0;
    return fail(f, EXIT_BAD_INPUT, "%s: tensor %s is %s, must be %s to fit q, k and v", in->path, x->name,
                shape_text(x->shape, x->axes, found), shape_text(shape, axes, want));
}

static int take_bias(const input *in, tensors *t, failure *f) {
    const st_tensor *x = in->tensor[BIAS];
    const ra_problem *p = &t->problem;
    const int64_t full[4] = {p->B, p->H, p->Sq, p->Skv};
    char found[160];
    for (int i = 0; i < 4; i++)
        if (x->axes != 4 || (x->shape[i] != full[i] && (i == 3 || x->shape[i] != 1)))
            return fail(f, EXIT_BAD_INPUT,
                        "%s: tensor bias is %s, must be [%" PRId64 " or 1, %" PRId64 " or 1, %" PRId64 " or 1, %" PRId64 "]", in->path,
                        shape_text(x->shape, x->axes, found), full[0], full[1], full[2], full[3]);
    memcpy(t->bias_axes, x->shape, sizeof t->bias_axes);
    return 0;
}

void options_problem(const options *o, ra_problem *p) {
    p->layout = (ra_layout)o->layout;
    p->scale = o->scale; /* NaN means the same to both */
    p->mask.causal = o->causal;
    p->mask.causal_block = o->causal_block;
    p->mask.align = (ra_align)o->align;
    p->q_chunk = o->q_chunk;
    p->k_chunk = o->k_chunk;
}

int input_problem(const input *in, const options *o, tensors *t, failure *f) {
    ra_problem *p = &t->problem;
    char found[160];
    for (slot s = Q; s <= V; s++)
        if (in->tensor[s]->axes != 4)
            return fail(f, EXIT_BAD_INPUT, "%s: tensor %s is %s, must have 4 axes", in->path, slot_name(s),
                        shape_text(in->tensor[s]->shape, in->tensor[s]->axes, found));
    int token = o->order == ORDER_BSHD ? 1 : 2, head = 3 - token;
    const int64_t *q = in->tensor[Q]->shape, *k = in->tensor[K]->shape;
    ra_problem_init(p);
    options_problem(o, p);
    t->order = (enum order)o->order;
    p->B = q[0];
    p->Sq = q[token];
    p->H = q[head];
    p->D = q[3];
    p->Skv = k[token];
    p->G = k[head];
    p->Dv = in->tensor[V]->shape[3];
    p->dtype = in->dtype[Q];
    p->backward = o->backward;
    p->has_bias = in->tensor[BIAS] != NULL;
    if (check_qkv(in, t, f) || (p->has_bias && take_bias(in, t, f)))
        return -1;
    for (slot s = 0; s < OUT; s++)
        if (s != BIAS && in->tensor[s] && check_shape(in, t, s, f))
            return -1;
    if (o->backward && !in->tensor[DOUT] && !in->tensor[DLSE])
        return fail(f, EXIT_BAD_INPUT, "%s: --backward needs tensor dout or dlse, there is neither", in->path);
    if ((o->causal || o->causal_block) && p->Sq != p->Skv && !o->align)
        return fail(f, EXIT_USAGE,
                    "%s: %" PRId64 " queries and %" PRId64 " keys: name the causal mask's corner, --align top-left or --align bottom-right",
                    in->path, p->Sq, p->Skv);
    return 0;
}
