/* What a tile of queries and a tile of keys have in common in both passes: the logits, the mask, and products that hidden NaN cannot
 * reach. */
#include <math.h>

#include "pjrt/emit_block.h"

typedef struct ra__hlo_value value;

static struct ra__hlo_type scores_type(const struct ra__pjrt_program *p, enum ra__hlo_element element) {
    return (struct ra__hlo_type){element, 5, {p->B, p->G, p->R, p->bq, p->bk}};
}

value ra__pjrt_over_scores(struct ra__pjrt_emitter *e, value a, const int *axis) {
    return ra__hlo_broadcast(e->h, a, axis, scores_type(e->p, a.type.element));
}

static value number(struct ra__pjrt_emitter *e, double x) {
    return ra__hlo_float(e->h, scores_type(e->p, RA__HLO_F32), x);
}

/* ---- loading ---- */

value ra__pjrt_load_rows(struct ra__hlo *h, value a, value at, int64_t n) {
    const value rows = ra__hlo_slice(h, a, a.type.rank - 2, at, n);
    return rows.type.element == RA__HLO_F16 ? ra__hlo_convert(h, rows, RA__HLO_F32) : rows;
}

static value over_all(struct ra__hlo *h, const char *operation, value vector) {
    static const int all[] = {0};
    return ra__hlo_reduce(h, operation, vector, 1, all);
}

struct ra__pjrt_queries ra__pjrt_load_queries(struct ra__pjrt_emitter *e, value at) {
    struct ra__hlo *h = e->h;
    struct ra__pjrt_queries q = {.at = at,
                                 .q = ra__pjrt_load_rows(h, e->in[RA__PJRT_Q], at, e->p->bq),
                                 .spans = ra__hlo_slice(h, e->in[RA__PJRT_Q_SPANS], 1, at, e->p->bq)};
    for (int n = 0; n < e->p->spans; n++) {
        const value first = over_all(h, "minimum", ra__hlo_rows(h, q.spans, 2 * n, 1, true));
        const value end = over_all(h, "maximum", ra__hlo_rows(h, q.spans, 2 * n + 1, 1, true));
        q.first = n ? ra__hlo_binary(h, "minimum", q.first, first) : first;
        q.end = n ? ra__hlo_binary(h, "maximum", q.end, end) : end;
    }
    return q;
}

struct ra__pjrt_keys ra__pjrt_load_keys(struct ra__pjrt_emitter *e, value at) {
    struct ra__hlo *h = e->h;
    struct ra__pjrt_keys k = {.at = at,
                              .k = ra__pjrt_load_rows(h, e->in[RA__PJRT_K], at, e->p->bk),
                              .v = ra__pjrt_load_rows(h, e->in[RA__PJRT_V], at, e->p->bk),
                              .index = ra__hlo_slice(h, e->in[RA__PJRT_K_INDEX], 1, at, e->p->bk)};
    k.position = ra__hlo_rows(h, k.index, 0, 1, true);
    k.first = over_all(h, "minimum", k.position);
    k.last = over_all(h, "maximum", k.position);
    return k;
}

/* ---- the mask ---- */

value ra__pjrt_near(struct ra__pjrt_emitter *e, const struct ra__pjrt_queries *q, const struct ra__pjrt_keys *k) {
    const value begun = ra__hlo_compare(e->h, "GE", k->last, q->first), open = ra__hlo_compare(e->h, "LT", k->first, q->end);
    return ra__hlo_binary(e->h, "and", begun, open);
}

/* [bq,bk]: the key is in one of the query's spans. */
static value inside_spans(struct ra__pjrt_emitter *e, const struct ra__pjrt_queries *q, const struct ra__pjrt_keys *k) {
    static const int queries[] = {0}, keys[] = {1};
    struct ra__hlo *h = e->h;
    const struct ra__hlo_type pairs = {RA__HLO_S32, 2, {e->p->bq, e->p->bk}};
    const value position = ra__hlo_broadcast(h, k->position, keys, pairs);
    value inside = {0};
    for (int n = 0; n < e->p->spans; n++) {
        const value begin = ra__hlo_broadcast(h, ra__hlo_rows(h, q->spans, 2 * n, 1, true), queries, pairs);
        const value end = ra__hlo_broadcast(h, ra__hlo_rows(h, q->spans, 2 * n + 1, 1, true), queries, pairs);
        const value from = ra__hlo_compare(h, "GE", position, begin), to = ra__hlo_compare(h, "LT", position, end);
        const value here = ra__hlo_binary(h, "and", from, to);
        inside = n ? ra__hlo_binary(h, "or", inside, here) : here;
    }
    return inside;
}

/* [B,bq,bk]: the query's segment is the key's. */
static value same_segment(struct ra__pjrt_emitter *e, const struct ra__pjrt_queries *q, const struct ra__pjrt_keys *k) {
    static const int queries[] = {0, 1}, keys[] = {0, 2};
    const struct ra__hlo_type pairs = {RA__HLO_S32, 3, {e->p->B, e->p->bq, e->p->bk}};
    const value ids = ra__hlo_slice(e->h, e->in[RA__PJRT_Q_SEGMENTS], 1, q->at, e->p->bq);
    const value mine = ra__hlo_broadcast(e->h, ids, queries, pairs);
    const value theirs = ra__hlo_broadcast(e->h, ra__hlo_rows(e->h, k->index, 1, e->p->B, false), keys, pairs);
    return ra__hlo_compare(e->h, "EQ", mine, theirs);
}

/* [B,bq,bk]: the key is not beyond its batch element's length. */
static value within_length(struct ra__pjrt_emitter *e, const struct ra__pjrt_keys *k) {
    static const int batch[] = {0}, keys[] = {2};
    const struct ra__hlo_type pairs = {RA__HLO_S32, 3, {e->p->B, e->p->bq, e->p->bk}};
    const value position = ra__hlo_broadcast(e->h, k->position, keys, pairs);
    return ra__hlo_compare(e->h, "LT", position, ra__hlo_broadcast(e->h, e->in[RA__PJRT_KV_LENS], batch, pairs));
}

static value visible_pairs(struct ra__pjrt_emitter *e, const struct ra__pjrt_queries *q, const struct ra__pjrt_keys *k) {
    static const int pairs[] = {3, 4}, batch_pairs[] = {0, 3, 4}, whole[] = {1, 2};
    const struct ra__hlo_type each = {RA__HLO_BOOL, 3, {e->p->B, e->p->bq, e->p->bk}};
    value visible = inside_spans(e, q, k);
    if (!e->p->segments && !e->p->kv_lens)
        return ra__pjrt_over_scores(e, visible, pairs);
    visible = ra__hlo_broadcast(e->h, visible, whole, each);
    if (e->p->segments)
        visible = ra__hlo_binary(e->h, "and", visible, same_segment(e, q, k));
    if (e->p->kv_lens)
        visible = ra__hlo_binary(e->h, "and", visible, within_length(e, k));
    return ra__pjrt_over_scores(e, visible, batch_pairs);
}

/* ---- the logits ---- */

int ra__pjrt_bias_box(struct ra__pjrt_emitter *e, value q_at, value k_at, struct ra__hlo_span box[2]) {
    int n = 0;
    if (e->p->bias_axis[2])
        box[n++] = (struct ra__hlo_span){3, q_at, e->p->bq};
    if (e->p->bias_axis[3])
        box[n++] = (struct ra__hlo_span){4, ra__hlo_binary(e->h, "add", e->column, k_at), e->p->bk};
    return n;
}

/* The tile's part of the bias over all scores. */
static value bias_tile(struct ra__pjrt_emitter *e, const struct ra__pjrt_queries *q, const struct ra__pjrt_keys *k) {
    static const int all[] = {0, 1, 2, 3, 4};
    struct ra__hlo_span box[2];
    const int axes = ra__pjrt_bias_box(e, q->at, k->at, box);
    return ra__pjrt_over_scores(e, ra__hlo_box(e->h, e->in[RA__PJRT_BIAS], axes, box), all);
}

/* slope |i + offset - j| over all scores. */
static value alibi_tile(struct ra__pjrt_emitter *e, const struct ra__pjrt_queries *q, const struct ra__pjrt_keys *k) {
    static const int queries[] = {0}, keys[] = {1}, pairs[] = {3, 4}, heads[] = {1, 2};
    const struct ra__hlo_type tile = {RA__HLO_S32, 2, {e->p->bq, e->p->bk}};
    const value aligned = ra__hlo_slice(e->h, e->in[RA__PJRT_Q_ALIGNED], 0, q->at, e->p->bq);
    const value away =
        ra__hlo_binary(e->h, "subtract", ra__hlo_broadcast(e->h, aligned, queries, tile), ra__hlo_broadcast(e->h, k->position, keys, tile));
    const value distance = ra__hlo_convert(e->h, ra__hlo_unary(e->h, "abs", away), RA__HLO_F32);
    return ra__hlo_binary(e->h, "multiply", ra__pjrt_over_scores(e, e->in[RA__PJRT_ALIBI], heads),
                          ra__pjrt_over_scores(e, distance, pairs));
}

/* s = softcap tanh(s / softcap); *slope = ds/ds before, 1 - tanh^2. */
static value capped(struct ra__pjrt_emitter *e, value s, bool backward, value *slope) {
    const value cap = number(e, e->p->softcap);
    const value t = ra__hlo_unary(e->h, "tanh", ra__hlo_binary(e->h, "divide", s, cap));
    if (backward)
        *slope = ra__hlo_binary(e->h, "subtract", number(e, 1), ra__hlo_binary(e->h, "multiply", t, t));
    return ra__hlo_binary(e->h, "multiply", cap, t);
}

struct ra__pjrt_scores ra__pjrt_score(struct ra__pjrt_emitter *e, const struct ra__pjrt_queries *q, const struct ra__pjrt_keys *k,
                                      bool backward) {
    static const int width_q[] = {4}, width_k[] = {3}, queries[] = {3};
    struct ra__hlo *h = e->h;
    struct ra__pjrt_scores r = {.visible = visible_pairs(e, q, k)};
    r.s = ra__hlo_dot(h, q->q, k->k, 2, 1, width_q, width_k);
    r.s = ra__hlo_binary(h, "multiply", r.s, number(e, e->p->scale));
    value temperature = {0};
    if (e->p->temperature) {
        const value rows = ra__hlo_slice(h, e->in[RA__PJRT_TEMPERATURE], 0, q->at, e->p->bq);
        temperature = ra__pjrt_over_scores(e, rows, queries);
        r.s = ra__hlo_binary(h, "multiply", r.s, temperature);
    }
    if (e->p->softcap > 0)
        r.s = capped(e, r.s, backward, &r.factor);
    if (backward && temperature.id)
        r.factor = r.factor.id ? ra__hlo_binary(h, "multiply", r.factor, temperature) : temperature;
    if (e->p->bias) {
        const value bias = bias_tile(e, q, k), hidden = number(e, -INFINITY);
        r.s = ra__hlo_binary(h, "add", r.s, bias);
        r.visible = ra__hlo_binary(h, "and", r.visible, ra__hlo_compare(h, "NE", bias, hidden));
    }
    if (e->p->alibi)
        r.s = ra__hlo_binary(h, "subtract", r.s, alibi_tile(e, q, k));
    return r;
}

/* ---- products ---- */

/* Where x sees an element of `rows` that is not finite, `extreme` of that sign: NaN counts as both, and the sum of both is NaN. */
static value reached(struct ra__hlo *h, value x, value rows, value mark, double extreme, int axes, const int *axis_x,
                     const int *axis_rows) {
    const value count = ra__hlo_dot(h, x, ra__hlo_convert(h, mark, rows.type.element), 2, axes, axis_x, axis_rows);
    const value none = ra__hlo_float(h, count.type, 0);
    return ra__hlo_select(h, ra__hlo_compare(h, "GT", count, none), ra__hlo_float(h, count.type, extreme), none);
}

/* Which elements are +infinity (-infinity) or NaN; signless: not finite. */
static value marked(struct ra__hlo *h, value rows, value finite, double extreme, bool signless) {
    const value not_finite = ra__hlo_unary(h, "not", finite);
    if (signless)
        return not_finite;
    const value other = ra__hlo_compare(h, "NE", rows, ra__hlo_float(h, rows.type, -extreme));
    return ra__hlo_binary(h, "and", not_finite, other);
}

value ra__pjrt_product(struct ra__hlo *h, value x, value visible, value rows, int axes, const int *axis_x, const int *axis_rows,
                       bool signless) {
    static const int all[] = {0, 1, 2, 3, 4};
    const value finite = ra__hlo_is_finite(h, rows);
    const value clean = ra__hlo_select(h, finite, rows, ra__hlo_float(h, rows.type, 0));
    const value sum = ra__hlo_dot(h, ra__hlo_convert(h, x, rows.type.element), clean, 2, axes, axis_x, axis_rows);
    const value nothing_to_do = ra__hlo_reduce(h, "and", finite, rows.type.rank, all);
    struct ra__hlo_if branch;
    ra__hlo_if_begin(h, &branch, nothing_to_do, 1, &sum.type);
    ra__hlo_otherwise(h, &branch, &sum);
    const value sees = ra__hlo_convert(h, visible, rows.type.element);
    const value up = reached(h, sees, rows, marked(h, rows, finite, INFINITY, signless), INFINITY, axes, axis_x, axis_rows);
    const value down = reached(h, sees, rows, marked(h, rows, finite, -INFINITY, signless), -INFINITY, axes, axis_x, axis_rows);
    const value result = ra__hlo_binary(h, "add", sum, ra__hlo_binary(h, "add", up, down));
    value out;
    ra__hlo_if_end(h, &branch, &result, &out);
    return out;
}
