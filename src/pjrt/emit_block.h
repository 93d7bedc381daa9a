/* Inside the emitter: the functions of one ring step, and what they share. */
#ifndef RA_PJRT_EMIT_BLOCK_H
#define RA_PJRT_EMIT_BLOCK_H

#include "pjrt/emit.h"

/* Every value that a program can begin with. What the problem does not have has id 0. */
enum ra__pjrt_operand {
    RA__PJRT_Q,
    RA__PJRT_K,
    RA__PJRT_V,
    RA__PJRT_Q_SPANS,
    RA__PJRT_K_INDEX,
    RA__PJRT_Q_SEGMENTS,
    RA__PJRT_KV_LENS,
    RA__PJRT_ALIBI,
    RA__PJRT_Q_ALIGNED,
    RA__PJRT_TEMPERATURE,
    RA__PJRT_BIAS,
    RA__PJRT_Q_POSITION,
    RA__PJRT_SEED,
    RA__PJRT_STEP_OPERANDS, /* so far: a ring step of either pass has these */
    RA__PJRT_SINKS = RA__PJRT_STEP_OPERANDS,
    RA__PJRT_OUT,
    RA__PJRT_LSE,
    RA__PJRT_DOUT,
    RA__PJRT_DLSE,
    RA__PJRT_OPERANDS
};

/* The emitter at work on one function. */
struct ra__pjrt_emitter {
    struct ra__hlo *h;
    const struct ra__pjrt_program *p;
    struct ra__hlo_value in[RA__PJRT_OPERANDS];
    struct ra__hlo_value column; /* with bias: where the visiting block's keys begin in it */
};

/* A ring step is a function of the operands, the column where there is a bias, and a state; its results are the next state.
 * Forward: acc [B,G,R,Tq,Dv], the unnormalised output, m [B,G,R,Tq], the largest logit, l [B,G,R,Tq], the sum of exp(logit - m).
 * Backward: in front of the state lse, dout, delta = rowsum(dout out) - dlse; state dq, dbias (when wanted); results: the block's dk, dv,
 * next dq, dbias. */
void ra__pjrt_forward_function(struct ra__hlo *h, const struct ra__pjrt_program *p);
void ra__pjrt_backward_function(struct ra__hlo *h, const struct ra__pjrt_program *p);

/* Makes a value for each operand that the problem has, first .. end - 1. */
void ra__pjrt_operands(struct ra__pjrt_emitter *e, int first, int end);
/* Appends those operands, and the column after them, to a list of n values; returns its length. */
int ra__pjrt_list_operands(const struct ra__pjrt_emitter *e, int first, int end, bool column, struct ra__hlo_value *list, int n);

struct ra__hlo_type ra__pjrt_bias_type(const struct ra__pjrt_program *p);
struct ra__hlo_type ra__pjrt_rows_type(const struct ra__pjrt_program *p);                 /* [B,G,R,Tq] f32 */
struct ra__hlo_type ra__pjrt_query_type(const struct ra__pjrt_program *p, int64_t width); /* [B,G,R,Tq,width] f32 */
struct ra__hlo_type ra__pjrt_key_type(const struct ra__pjrt_program *p, int64_t width);   /* [B,G,Tkv,width] f32 */

/* ---- tiles (emit_tile.c): shapes of scores are [B,G,R,bq,bk] ---- */

struct ra__pjrt_queries {
    struct ra__hlo_value at, q, spans, first, end; /* the tile's beginning, rows, spans, what they reach from and to */
};
struct ra__pjrt_keys {
    struct ra__hlo_value at, k, v, index, position, first, last; /* positions [bk], and the smallest and largest of them */
};
struct ra__pjrt_scores {
    struct ra__hlo_value s, visible;
    struct ra__hlo_value factor; /* of ds on its way to dq and dk, but for scale; id 0: 1 */
};

struct ra__pjrt_queries ra__pjrt_load_queries(struct ra__pjrt_emitter *e, struct ra__hlo_value at);
struct ra__pjrt_keys ra__pjrt_load_keys(struct ra__pjrt_emitter *e, struct ra__hlo_value at);
/* Rows of a tile as operands of a product: fp16 as fp32, since no 16-bit fp16 product keeps ds of every size. */
struct ra__hlo_value ra__pjrt_load_rows(struct ra__hlo *h, struct ra__hlo_value a, struct ra__hlo_value at, int64_t n);

/* A scalar: false when no query of the tile can see any key of it. */
struct ra__hlo_value ra__pjrt_near(struct ra__pjrt_emitter *e, const struct ra__pjrt_queries *q, const struct ra__pjrt_keys *k);
/* The logits, and which of them are visible. Hidden ones are any number, NaN included. */
struct ra__pjrt_scores ra__pjrt_score(struct ra__pjrt_emitter *e, const struct ra__pjrt_queries *q, const struct ra__pjrt_keys *k,
                                      bool backward);

/* Where the bias, and its gradient, has a tile. */
int ra__pjrt_bias_box(struct ra__pjrt_emitter *e, struct ra__hlo_value q_at, struct ra__hlo_value k_at, struct ra__hlo_span box[2]);

/* With dropout: which probabilities of the tile are kept. Not to be asked without. */
double ra__pjrt_kept_scale(const struct ra__pjrt_program *p); /* what kept ones are multiplied with */
struct ra__hlo_value ra__pjrt_kept(struct ra__pjrt_emitter *e, const struct ra__pjrt_queries *q, const struct ra__pjrt_keys *k);

/* x summed with rows over axis_x of x and axis_rows of rows (batch, head in front), where x is 0 at what is hidden. Rows that are hidden
 * from all change nothing, not even by NaN or infinity; those that x sees reach it as they would one by one. signless: x may be negative,
 * and then an infinity becomes NaN. */
struct ra__hlo_value ra__pjrt_product(struct ra__hlo *h, struct ra__hlo_value x, struct ra__hlo_value visible, struct ra__hlo_value rows,
                                      int axes, const int *axis_x, const int *axis_rows, bool signless);

/* A value of few dimensions over all scores: axis says which. */
struct ra__hlo_value ra__pjrt_over_scores(struct ra__pjrt_emitter *e, struct ra__hlo_value a, const int *axis);

#endif
