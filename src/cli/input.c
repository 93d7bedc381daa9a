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

/* The types that a tensor may have, in words. */
static const char *type_of(slot s) {
    if (s == Q_IDS || s == KV_IDS || s == KV_LENS || s == CU_Q || s == CU_KV)
        return "I32";
    if (s == SLICES)
        return "I64";
    return s == DLSE || s == ALIBI || s == SINKS || s == TEMPERATURE ? "F32" : "F32, BF16 or F16";
}

static int check_types(input *in, failure *f) {
    for (slot s = 0; s < OUT; s++) {
        const st_tensor *t = in->tensor[s];
        if (!t)
            continue;
        const char *type = type_of(s);
        int any_float = strlen(type) > 3;
        if (any_float ? !is_float(t, &in->dtype[s]) : strcmp(t->dtype, type) != 0)
            return fail(f, EXIT_BAD_INPUT, "%s: tensor %s is %s, must be %s", in->path, t->name, t->dtype, type);
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
    static const slot pairs[][2] = {{Q_IDS, KV_IDS}, {CU_Q, CU_KV}};
    for (int i = 0; i < 2; i++) {
        slot a = pairs[i][0], b = pairs[i][1];
        if (!in->tensor[a] != !in->tensor[b])
            return fail(f, EXIT_BAD_INPUT, "%s: %s is there without %s", in->path, slot_name(in->tensor[a] ? a : b),
                        slot_name(in->tensor[a] ? b : a));
    }
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
        if (x->axes != 4 || (x->shape[i] != full[i] && x->shape[i] != 1))
            return fail(f, EXIT_BAD_INPUT,
                        "%s: tensor bias is %s, must be [%" PRId64 " or 1, %" PRId64 " or 1, %" PRId64 " or 1, %" PRId64 " or 1]", in->path,
                        shape_text(x->shape, x->axes, found), full[0], full[1], full[2], full[3]);
    memcpy(t->bias_axes, x->shape, sizeof t->bias_axes);
    return 0;
}

/* How many packed sequences and slices there are. */
static int take_counts(const input *in, ra_problem *p, failure *f) {
    char found[160];
    const st_tensor *q = in->tensor[CU_Q], *kv = in->tensor[CU_KV], *slices = in->tensor[SLICES];
    for (int i = 0; q && i < 2; i++) {
        const st_tensor *x = i ? kv : q;
        if (x->axes != 1 || x->shape[0] < 2)
            return fail(f, EXIT_BAD_INPUT, "%s: tensor %s is %s, must be [sequences + 1]", in->path, x->name,
                        shape_text(x->shape, x->axes, found));
    }
    if (q && q->shape[0] != kv->shape[0])
        return fail(f, EXIT_BAD_INPUT, "%s: cu_seqlens_q is of %" PRId64 " sequences, cu_seqlens_kv of %" PRId64, in->path, q->shape[0] - 1,
                    kv->shape[0] - 1);
    if (slices && (slices->axes != 2 || slices->shape[0] < 1 || slices->shape[1] != 5))
        return fail(f, EXIT_BAD_INPUT, "%s: tensor slices is %s, must be [1 or more, 5]", in->path,
                    shape_text(slices->shape, slices->axes, found));
    p->mask.sequences = q ? q->shape[0] - 1 : 0;
    p->mask.slice_count = slices ? slices->shape[0] : 0;
    return 0;
}

/* The wishes of the options that the file must allow. */
static int check_wishes(const input *in, const options *o, const ra_problem *p, failure *f) {
    int causal = o->causal || o->causal_block, window = o->window[0] >= 0 || o->window[1] >= 0, alibi = o->alibi || in->tensor[ALIBI];
    if (o->backward && !in->tensor[DOUT] && !in->tensor[DLSE])
        return fail(f, EXIT_BAD_INPUT, "%s: --backward needs tensor dout or dlse, there is neither", in->path);
    if (o->dbias && !in->tensor[BIAS])
        return fail(f, EXIT_BAD_INPUT, "%s: --dbias needs tensor bias", in->path);
    if (o->dsinks && !in->tensor[SINKS])
        return fail(f, EXIT_BAD_INPUT, "%s: --dsinks needs tensor sinks", in->path);
    if (o->alibi && in->tensor[ALIBI])
        return fail(f, EXIT_USAGE, "%s: --alibi and tensor alibi_slopes exclude each other", in->path);
    if (o->align && !causal && !window && !alibi)
        return fail(f, EXIT_USAGE, "--align needs --causal, --causal-block, --window or ALiBi");
    if ((causal || window || alibi) && p->Sq != p->Skv && !p->mask.sequences && !o->align)
        return fail(f, EXIT_USAGE,
                    "%s: %" PRId64 " queries and %" PRId64 " keys: name the %s corner, --align top-left or --align bottom-right", in->path,
                    p->Sq, p->Skv,
                    causal   ? "causal mask's"
                    : window ? "window's"
                             : "ALiBi's");
    return 0;
}

int input_finish(const input *in, const options *o, tensors *t, failure *f) {
    char reason[256];
    if (o->alibi && tensors_usual_slopes(t, f))
        return -1;
    /* The file's arrays alone, so that what is wrong is the file's. */
    tensors_plan_arrays(t);
    ra_problem p = t->problem, alone;
    ra_problem_init(&alone);
    alone.B = p.B;
    alone.Sq = p.Sq;
    alone.Skv = p.Skv;
    alone.H = alone.G = p.H;
    alone.D = p.D;
    alone.Dv = p.Dv;
    alone.alibi_slopes = p.alibi_slopes;
    alone.mask.kv_lens = p.mask.kv_lens;
    alone.mask.cu_seqlens_q = p.mask.cu_seqlens_q;
    alone.mask.cu_seqlens_kv = p.mask.cu_seqlens_kv;
    alone.mask.sequences = p.mask.sequences;
    alone.mask.slices = p.mask.slices;
    alone.mask.slice_count = p.mask.slice_count;
    alone.mask.align = RA_ALIGN_TOP_LEFT;
    if (ra_supports(&alone, NULL, reason, sizeof reason) == RA_ERR_INVALID)
        return fail(f, EXIT_BAD_INPUT, "%s: %s", in->path, reason);
    return 0;
}

void options_problem(const options *o, ra_problem *p) {
    p->layout = (ra_layout)o->layout;
    p->scale = o->scale; /* NaN means the same to both */
    p->mask.causal = o->causal;
    p->mask.causal_block = o->causal_block;
    p->mask.align = (ra_align)o->align;
    p->mask.window_left = o->window[0];
    p->mask.window_right = o->window[1];
    p->mask.prefix = o->prefix;
    p->mask.keep_first = o->keep_first;
    p->softcap = isnan(o->softcap) ? 0 : o->softcap;
    p->dropout = isnan(o->dropout) ? 0 : o->dropout;
    p->seed = (uint64_t)o->seed;
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
    p->has_sinks = in->tensor[SINKS] != NULL;
    p->has_temperature = in->tensor[TEMPERATURE] != NULL;
    if (check_qkv(in, t, f) || (p->has_bias && take_bias(in, t, f)) || take_counts(in, p, f))
        return -1;
    for (slot s = 0; s < OUT; s++)
        if (s != BIAS && in->tensor[s] && check_shape(in, t, s, f))
            return -1;
    return check_wishes(in, o, p, f);
}
