/* One ring step of the forward: this device's queries against the keys and values at hand, tile by tile (arXiv 2307.08691, algorithm 1).
 *
 *   m' = max(m, rowmax(s))   p = exp(s - m')   l' = exp(m - m') l + rowsum(p)   acc' = exp(m - m') acc + p v
 *
 * m is -infinity until a query has seen a key; 0 takes its place where it is subtracted. */
#include <math.h>

#include "pjrt/emit_block.h"

typedef struct ra__hlo_value value;

enum { ACC, M, L, STATE };

/* The state of one tile of queries. */
static struct ra__hlo_type tile_type(const struct ra__pjrt_program *p, int which) {
    struct ra__hlo_type type = which == ACC ? ra__pjrt_query_type(p, p->Dv) : ra__pjrt_rows_type(p);
    type.dim[3] = p->bq;
    return type;
}

/* x, 0 where it is -infinity. */
static value subtrahend(struct ra__hlo *h, value x) {
    const value least = ra__hlo_float(h, x.type, -INFINITY);
    return ra__hlo_select(h, ra__hlo_compare(h, "EQ", x, least), ra__hlo_float(h, x.type, 0), x);
}

/* a exp(m - m') + b: a sum before, and what is new. */
static value rescaled(struct ra__hlo *h, value a, value factor, value b) {
    static const int rows[] = {0, 1, 2, 3};
    return ra__hlo_binary(h, "add", ra__hlo_binary(h, "multiply", a, ra__hlo_broadcast(h, factor, rows, a.type)), b);
}

static void forward_tile(struct ra__pjrt_emitter *e, const struct ra__pjrt_queries *q, const struct ra__pjrt_keys *k, const value *state,
                         value *next) {
    static const int rows[] = {0, 1, 2, 3}, keys[] = {4}, values[] = {2};
    struct ra__hlo *h = e->h;
    const struct ra__pjrt_scores scores = ra__pjrt_score(e, q, k, false);
    const value s = ra__hlo_select(h, scores.visible, scores.s, ra__hlo_float(h, scores.s.type, -INFINITY));
    next[M] = ra__hlo_binary(h, "maximum", state[M], ra__hlo_reduce(h, "maximum", s, 1, keys));
    const value shift = subtrahend(h, next[M]);
    const value p = ra__hlo_unary(h, "exponential", ra__hlo_binary(h, "subtract", s, ra__pjrt_over_scores(e, shift, rows)));
    const value factor = ra__hlo_unary(h, "exponential", ra__hlo_binary(h, "subtract", state[M], shift));
    next[L] = rescaled(h, state[L], factor, ra__hlo_reduce(h, "add", p, 1, keys));
    value counted = p, reached = scores.visible;
    if (e->p->dropout > 0) { /* l has all of them; finish_forward divides by 1 - dropout */
        const value kept = ra__pjrt_kept(e, q, k);
        reached = ra__hlo_binary(h, "and", reached, kept);
        counted = ra__hlo_select(h, kept, p, ra__hlo_float(h, p.type, 0));
    }
    next[ACC] = rescaled(h, state[ACC], factor, ra__pjrt_product(h, counted, reached, k->v, 1, keys, values, false));
}

/* All keys of the block for one tile of queries. */
static void forward_queries(struct ra__pjrt_emitter *e, value at, value *state) {
    struct ra__hlo *h = e->h;
    const struct ra__pjrt_queries q = ra__pjrt_load_queries(e, at);
    struct ra__hlo_loop loop;
    ra__hlo_loop_begin(h, &loop, e->p->Tkv, STATE, state);
    const struct ra__pjrt_keys k = ra__pjrt_load_keys(e, loop.at);
    struct ra__hlo_type types[STATE];
    value next[STATE];
    for (int i = 0; i < STATE; i++)
        types[i] = tile_type(e->p, i);
    struct ra__hlo_if branch;
    ra__hlo_if_begin(h, &branch, ra__pjrt_near(e, &q, &k), STATE, types);
    forward_tile(e, &q, &k, loop.carried, next);
    ra__hlo_otherwise(h, &branch, next);
    ra__hlo_if_end(h, &branch, loop.carried, next);
    ra__hlo_loop_end(h, &loop, e->p->bk, next);
    for (int i = 0; i < STATE; i++)
        state[i] = loop.carried[i];
}

void ra__pjrt_forward_function(struct ra__hlo *h, const struct ra__pjrt_program *p) {
    struct ra__pjrt_emitter e = {.h = h, .p = p};
    const struct ra__hlo_type rows = ra__pjrt_rows_type(p), types[STATE] = {ra__pjrt_query_type(p, p->Dv), rows, rows};
    value parameter[RA__PJRT_OPERANDS + 1 + STATE], state[STATE];
    ra__pjrt_operands(&e, 0, RA__PJRT_STEP_OPERANDS);
    if (p->bias)
        e.column = ra__hlo_new(h, ra__hlo_scalar(RA__HLO_S32));
    int n = ra__pjrt_list_operands(&e, 0, RA__PJRT_STEP_OPERANDS, true, parameter, 0);
    for (int i = 0; i < STATE; i++)
        parameter[n++] = state[i] = ra__hlo_new(h, types[i]);
    ra__hlo_function_begin(h, false, "step", n, parameter, STATE, types);
    struct ra__hlo_loop loop;
    ra__hlo_loop_begin(h, &loop, p->Tq, STATE, state);
    value tile[STATE], next[STATE];
    for (int i = 0; i < STATE; i++)
        tile[i] = ra__hlo_slice(h, loop.carried[i], 3, loop.at, p->bq);
    forward_queries(&e, loop.at, tile);
    for (int i = 0; i < STATE; i++)
        next[i] = ra__hlo_update(h, loop.carried[i], tile[i], 3, loop.at);
    ra__hlo_loop_end(h, &loop, p->bq, next);
    ra__hlo_function_end(h, STATE, loop.carried);
}
