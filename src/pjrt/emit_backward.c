/* One ring step of the backward: this device's queries against the keys and values at hand, tile by tile (arXiv 2205.14135, algorithm 4).
 *
 *   p = exp(s - lse)   dv += p^T dout   ds = p (dout v^T - delta)   dz = ds scale temperature (1 - tanh^2)   dq += dz k   dk += dz^T q
 *
 * With dropout, the p of dv and dout v^T have its zeros and its 1 / (1 - dropout). */
#include "pjrt/emit_block.h"

typedef struct ra__hlo_value value;

enum { LSE, DOUT, DELTA, FIXED }; /* behind the operands, the same in all steps */
enum { DQ, DK, DV, STATE };

struct backward {
    struct ra__pjrt_emitter e;
    value fixed[FIXED];
};

static struct ra__hlo_type state_type(const struct ra__pjrt_program *p, int which) {
    return which == DQ ? ra__pjrt_query_type(p, p->D) : ra__pjrt_key_type(p, which == DK ? p->D : p->Dv);
}

/* dq of these queries, dk and dv of these keys, each with what the tile adds. */
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
    value dz = ra__hlo_binary(h, "multiply", ds, scale);
    if (scores.factor.id)
        dz = ra__hlo_binary(h, "multiply", dz, scores.factor);
    dz = ra__hlo_select(h, scores.visible, dz, zero); /* what is hidden may be NaN up to here */

    next[DQ] = ra__hlo_binary(h, "add", state[DQ], ra__pjrt_product(h, dz, scores.visible, k->k, 1, keys, key_rows, true));
    next[DK] = ra__hlo_binary(h, "add", state[DK], ra__pjrt_product(h, dz, scores.visible, q->q, 2, queries, queries, true));
    next[DV] = ra__hlo_binary(h, "add", state[DV], ra__pjrt_product(h, counted, reached, dout, 2, queries, queries, false));
}

/* All queries for one tile of keys. state: dq of all queries, dk and dv of the tile. */
static void backward_keys(struct backward *b, value at, value *state) {
    struct ra__pjrt_emitter *e = &b->e;
    struct ra__hlo *h = e->h;
    const struct ra__pjrt_keys k = ra__pjrt_load_keys(e, at);
    struct ra__hlo_loop loop;
    ra__hlo_loop_begin(h, &loop, e->p->Tq, STATE, state);
    const struct ra__pjrt_queries q = ra__pjrt_load_queries(e, loop.at);
    value before[STATE] = {ra__hlo_slice(h, loop.carried[DQ], 3, loop.at, e->p->bq), loop.carried[DK], loop.carried[DV]}, next[STATE];
    const struct ra__hlo_type types[STATE] = {before[DQ].type, before[DK].type, before[DV].type};
    struct ra__hlo_if branch;
    ra__hlo_if_begin(h, &branch, ra__pjrt_near(e, &q, &k), STATE, types);
    backward_tile(b, &q, &k, before, next);
    ra__hlo_otherwise(h, &branch, next);
    ra__hlo_if_end(h, &branch, before, next);
    next[DQ] = ra__hlo_update(h, loop.carried[DQ], next[DQ], 3, loop.at);
    ra__hlo_loop_end(h, &loop, e->p->bq, next);
    for (int i = 0; i < STATE; i++)
        state[i] = loop.carried[i];
}

/* A zero of a state's type, n rows of it. */
static value zero_rows(struct ra__hlo *h, struct ra__hlo_type type, int64_t n) {
    type.dim[type.rank - 2] = n;
    return ra__hlo_float(h, type, 0);
}

void ra__pjrt_backward_function(struct ra__hlo *h, const struct ra__pjrt_program *p) {
    struct backward b = {.e = {.h = h, .p = p}};
    value parameter[RA__PJRT_OPERANDS + 1 + FIXED + 1];
    struct ra__hlo_type types[STATE];
    for (int i = 0; i < STATE; i++)
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
    const value dq = parameter[n++] = ra__hlo_new(h, types[DQ]);
    ra__hlo_function_begin(h, false, "step", n, parameter, STATE, types);

    const value initial[STATE] = {dq, ra__hlo_float(h, types[DK], 0), ra__hlo_float(h, types[DV], 0)};
    struct ra__hlo_loop loop;
    ra__hlo_loop_begin(h, &loop, p->Tkv, STATE, initial);
    value state[STATE] = {loop.carried[DQ], zero_rows(h, types[DK], p->bk), zero_rows(h, types[DV], p->bk)};
    backward_keys(&b, loop.at, state);
    for (int i = DK; i < STATE; i++)
        state[i] = ra__hlo_update(h, loop.carried[i], state[i], 2, loop.at);
    ra__hlo_loop_end(h, &loop, p->bk, state);
    ra__hlo_function_end(h, STATE, loop.carried);
}
