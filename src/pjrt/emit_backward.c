/* One ring step of the backward: this device's queries against the keys and values at hand, tile by tile (arXiv 2205.14135, algorithm 4).
 *
 *   p = exp(s - lse)   dv += p^T dout   ds = p (dout v^T - delta)   dz = ds scale temperature (1 - tanh^2)   dq += dz k   dk += dz^T q
 *
 * With dropout, the p of dv and dout v^T have its zeros and its 1 / (1 - dropout). */
#include "pjrt/emit_block.h"

typedef struct ra__hlo_value value;

enum { LSE, DOUT, DELTA, FIXED };  /* behind the operands, the same in all steps */
enum { DK, DV, DQ, DBIAS, STATE }; /* DBIAS: when wanted */

struct backward {
    struct ra__pjrt_emitter e;
    value fixed[FIXED];
};

static int states_of(const struct ra__pjrt_program *p) {
    return p->bias && p->dbias ? STATE : DBIAS;
}

static struct ra__hlo_type state_type(const struct ra__pjrt_program *p, int which) {
    if (which == DBIAS)
        return ra__pjrt_bias_type(p);
    return which == DQ ? ra__pjrt_query_type(p, p->D) : ra__pjrt_key_type(p, which == DK ? p->D : p->Dv);
}

/* ds summed over the axes that the bias does not have, in the shape of its tile. */
static value bias_gradient(struct ra__pjrt_emitter *e, value ds, struct ra__hlo_type tile) {
    const bool *full = e->p->bias_axis;
    int axis[RA__HLO_RANK], n = 0;
    for (int i = 0; i < RA__HLO_RANK; i++)
        if (!full[i < 2 ? i : i - 1]) /* heads are two axes */
            axis[n++] = i;
    return ra__hlo_reshape(e->h, n ? ra__hlo_reduce(e->h, "add", ds, n, axis) : ds, tile);
}

/* dk and dv of these keys, dq of these queries, dbias of both, each with what the tile adds. */
static void backward_tile(struct backward *b, const struct ra__pjrt_queries *q, const struct ra__pjrt_keys *k, const value *state,
                          value *next) {
    static const int rows[] = {0, 1, 2, 3}, width_dout[] = {4}, width_v[] = {3}, keys[] = {4}, key_rows[] = {2}, queries[] = {2, 3};
    struct ra__pjrt_emitter *e = &b->e;
    struct ra__hlo *h = e->h;
    const value lse = ra__hlo_slice(h, b->fixed[LSE], 3, q->at, e->p->bq), delta = ra__hlo_slice(h, b->fixed[DELTA], 3, q->at, e->p->bq);
    const value dout = ra__pjrt_load_rows(h, b->fixed[DOUT], q->at, e->p->bq);
    const struct ra__pjrt_scores scores = ra__pjrt_score(e, q, k, true);
    const value zero = ra__hlo_float(h, scores.s.type, 0), scale = ra__hlo_float(h, scores.s.type, e->p->scale);

    const value shifted = ra__hlo_binary(h, "subtract", scores.s, ra__pjrt_over_scores(e, lse, rows));
    const value p = ra__hlo_select(h, scores.visible, ra__hlo_unary(h, "exponential", shifted), zero);
    value dp = ra__hlo_dot(h, dout, k->v, 2, 1, width_dout, width_v), counted = p, reached = scores.visible;
    if (e->p->dropout > 0) {
        const value kept = ra__pjrt_kept(e, q, k), weight = ra__hlo_float(h, p.type, ra__pjrt_kept_scale(e->p));
        dp = ra__hlo_select(h, kept, ra__hlo_binary(h, "multiply", dp, weight), zero);
        counted = ra__hlo_select(h, kept, ra__hlo_binary(h, "multiply", p, weight), zero);
        reached = ra__hlo_binary(h, "and", reached, kept);
    }
    const value ds = ra__hlo_binary(h, "multiply", p, ra__hlo_binary(h, "subtract", dp, ra__pjrt_over_scores(e, delta, rows)));
    if (states_of(e->p) > DBIAS) {
        const value seen = ra__hlo_select(h, scores.visible, ds, zero);
        next[DBIAS] = ra__hlo_binary(h, "add", state[DBIAS], bias_gradient(e, seen, state[DBIAS].type));
    }
    value dz = ra__hlo_binary(h, "multiply", ds, scale);
    if (scores.factor.id)
        dz = ra__hlo_binary(h, "multiply", dz, scores.factor);
    dz = ra__hlo_select(h, scores.visible, dz, zero); /* what is hidden may be NaN up to here */

    next[DQ] = ra__hlo_binary(h, "add", state[DQ], ra__pjrt_product(h, dz, scores.visible, k->k, 1, keys, key_rows, true));
    next[DK] = ra__hlo_binary(h, "add", state[DK], ra__pjrt_product(h, dz, scores.visible, q->q, 2, queries, queries, true));
    next[DV] = ra__hlo_binary(h, "add", state[DV], ra__pjrt_product(h, counted, reached, dout, 2, queries, queries, false));
}

/* All queries for one tile of keys. state: dk and dv of the tile, dq of all queries, dbias of everything. */
static void backward_keys(struct backward *b, value at, value *state) {
    struct ra__pjrt_emitter *e = &b->e;
    struct ra__hlo *h = e->h;
    const struct ra__pjrt_keys k = ra__pjrt_load_keys(e, at);
    const int states = states_of(e->p);
    struct ra__hlo_loop loop;
    ra__hlo_loop_begin(h, &loop, e->p->Tq, states, state);
    const struct ra__pjrt_queries q = ra__pjrt_load_queries(e, loop.at);
    value before[STATE] = {loop.carried[DK], loop.carried[DV], ra__hlo_slice(h, loop.carried[DQ], 3, loop.at, e->p->bq)}, next[STATE];
    struct ra__hlo_span box[2];
    const int axes = states > DBIAS ? ra__pjrt_bias_box(e, loop.at, at, box) : 0;
    if (states > DBIAS)
        before[DBIAS] = ra__hlo_box(h, loop.carried[DBIAS], axes, box);
    struct ra__hlo_type types[STATE];
    for (int i = 0; i < states; i++)
        types[i] = before[i].type;
    struct ra__hlo_if branch;
    ra__hlo_if_begin(h, &branch, ra__pjrt_near(e, &q, &k), states, types);
    backward_tile(b, &q, &k, before, next);
    ra__hlo_otherwise(h, &branch, next);
    ra__hlo_if_end(h, &branch, before, next);
    next[DQ] = ra__hlo_update(h, loop.carried[DQ], next[DQ], 3, loop.at);
    if (states > DBIAS)
        next[DBIAS] = ra__hlo_put_box(h, loop.carried[DBIAS], next[DBIAS], axes, box);
    ra__hlo_loop_end(h, &loop, e->p->bq, next);
    for (int i = 0; i < states; i++)
        state[i] = loop.carried[i];
}

/* A zero of a state's type, n rows of it. */
static value zero_rows(struct ra__hlo *h, struct ra__hlo_type type, int64_t n) {
    type.dim[type.rank - 2] = n;
    return ra__hlo_float(h, type, 0);
}

void ra__pjrt_backward_function(struct ra__hlo *h, const struct ra__pjrt_program *p) {
    struct backward b = {.e = {.h = h, .p = p}};
    const int states = states_of(p);
    value parameter[RA__PJRT_OPERANDS + 1 + FIXED + 2], initial[STATE];
    struct ra__hlo_type types[STATE];
    for (int i = 0; i < states; i++)
        types[i] = state_type(p, i);
    ra__pjrt_operands(&b.e, 0, RA__PJRT_STEP_OPERANDS);
    if (p->bias)
        b.e.column = ra__hlo_new(h, ra__hlo_scalar(RA__HLO_S32));
    int n = ra__pjrt_list_operands(&b.e, 0, RA__PJRT_STEP_OPERANDS, true, parameter, 0);
    ra__pjrt_operands(&b.e, RA__PJRT_LSE, RA__PJRT_DOUT + 1);
    b.fixed[LSE] = b.e.in[RA__PJRT_LSE];
    b.fixed[DOUT] = b.e.in[RA__PJRT_DOUT];
    b.fixed[DELTA] = ra__hlo_new(h, ra__pjrt_rows_type(p));
    for (int i = 0; i < FIXED; i++)
        parameter[n++] = b.fixed[i];
    for (int i = DQ; i < states; i++)
        parameter[n++] = initial[i] = ra__hlo_new(h, types[i]);
    ra__hlo_function_begin(h, false, "step", n, parameter, states, types);
    for (int i = DK; i <= DV; i++)
        initial[i] = ra__hlo_float(h, types[i], 0);

    struct ra__hlo_loop loop;
    ra__hlo_loop_begin(h, &loop, p->Tkv, states, initial);
    value state[STATE] = {zero_rows(h, types[DK], p->bk), zero_rows(h, types[DV], p->bk)};
    for (int i = DQ; i < states; i++)
        state[i] = loop.carried[i];
    backward_keys(&b, loop.at, state);
    for (int i = DK; i <= DV; i++)
        state[i] = ra__hlo_update(h, loop.carried[i], state[i], 2, loop.at);
    ra__hlo_loop_end(h, &loop, p->bk, state);
    ra__hlo_function_end(h, states, loop.carried);
}
