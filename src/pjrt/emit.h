/* One attention program for a ring of P devices as StableHLO text: every device runs the same text (num_replicas = P), keeps its queries
 * and passes its keys and values on, as the schedule of ring/schedule.h says.
 *
 * A problem becomes a description (ra__pjrt_describe), the description a list of input and output arrays (ra__pjrt_inputs,
 * ra__pjrt_outputs) and a text (ra__pjrt_emit). The text depends on nothing else, so it may be compiled once and kept.
 *
 * What a query sees by position is data, the spans of plan/spans.h: causality, windows, prefixes, packed sequences, slices, layouts and
 * padding do not change the text. Lengths of a device are those of its longest shard, rounded up to tiles; what is filled up
 * sees nothing and is not seen. */
#ifndef RA_PJRT_EMIT_H
#define RA_PJRT_EMIT_H

#include "pjrt/emit_text.h"
#include "plan/spans.h"
#include "ring/layout.h"
#include "ring/schedule.h"

enum { RA__PJRT_SPANS = 16 };    /* most intervals of keys that a query may see */
enum { RA__PJRT_DEVICES = 512 }; /* longest ring */
enum { RA__PJRT_ARRAYS = 18 };   /* most inputs, or outputs, of a program: those of a backward with everything */
enum { RA__PJRT_UNROLLED = 8 };  /* usual `unrolled`; docs/engines.md has the figures */

struct ra__pjrt_program {
    int P, steps;
    int step[RA__PJRT_DEVICES]; /* [steps]: ring steps in which any device computes, ascending from 0 (ra__pjrt_steps) */
    int unrolled;               /* a ring of more steps, all of them, is a loop instead of one copy of the step after the other */
    bool backward;
    int64_t B, G, R; /* R = H / G query heads share a key/value head */
    int64_t Tq, Tkv; /* of every device, multiples of bq and bk */
    int64_t bq, bk;  /* a tile */
    int64_t D, Dv;
    ra_dtype dtype;      /* of q, k, v */
    ra_dtype dout_dtype; /* of dout */
    double scale;        /* a number */
    double softcap;      /* 0: none */
    double dropout;      /* 0: none. Its seed is an input */
    int spans;           /* 1..RA__PJRT_SPANS */
    bool segments, kv_lens, alibi, temperature, sinks;
    bool row_max;      /* forward: wanted */
    bool dlse;         /* backward: given */
    bool bias, dbias;  /* dbias: backward: wanted */
    bool bias_axis[4]; /* b, h, query, key: of full length; else the axis has length 1 */
};

/* One input or output of each device: dense, last dimension fastest. */
struct ra__pjrt_array {
    const char *name;
    struct ra__hlo_type type;
};

/* ---- from problem to program ---- */

/* Refuses what the engine does not do of what a valid problem asks for. Not collective; segment ids are not read. */
ra_status ra__pjrt_unsupported(const ra_problem *p, int P);

/* Everything but `step`, `steps` (all P of them), `spans` (1), `row_max`, `dlse`, `dbias`, `dout_dtype` (that of q) and `bias_axis` (all
 * full), for the caller to change. A problem that ra__pjrt_unsupported accepts. */
void ra__pjrt_describe(const ra_problem *p, int P, struct ra__pjrt_program *program);

/* Takes the steps in which any of the P ranks computes from their schedules. */
void ra__pjrt_steps(struct ra__pjrt_program *program, const struct ra__schedule *schedule);

/* The most spans that any query has, for `spans`; room: rule->most spans. At least 1. */
int64_t ra__pjrt_most_spans(const struct ra__mask_rule *rule, struct ra__span *room);

/* A rank's queries and keys as the program wants them: spans [2 spans,Tq] (row 2n: where the n-th span of each query begins, row 2n + 1:
 * where it ends), aligned [Tq] (ALiBi's origin; NULL: not wanted), position [Tq] (with dropout; NULL: not wanted). room: rule->most
 * spans. */
void ra__pjrt_fill_queries(const struct ra__pjrt_program *program, const struct ra__mask_rule *rule, const struct ra__shard *q,
                           struct ra__span *room, int32_t *spans, int32_t *aligned, int32_t *position);
/* index [1 + B,Tkv] with segments, [1,Tkv] without: the keys' positions, and each batch element's ids. segment: [B,kv->T], or NULL. */
void ra__pjrt_fill_keys(const struct ra__pjrt_program *program, const struct ra__shard *kv, const int32_t *segment, int32_t *index);

/* ---- the program ---- */

/* In the order of the function's parameters and results; array: RA__PJRT_ARRAYS of them. Returns their number.
 *
 * Inputs, of both passes (query rows and keys in the local order of the rank, filled up with zeros):
 *   q [B,G,R,Tq,D]  k [B,G,Tkv,D]  v [B,G,Tkv,Dv]  q_spans [2 spans,Tq] s32  k_index [1 or 1 + B,Tkv] s32
 *   q_segments [B,Tq] s32       with segments
 *   kv_lens [B] s32             with kv_lens
 *   alibi_slopes [G,R] f32  q_aligned [Tq] s32      with alibi
 *   temperature [Tq] f32        with temperature
 *   bias [B|1,G|1,R|1,Tq|1,P Tkv|1] f32             with bias: keys rank after rank, each filled up to Tkv
 *   q_position [Tq] s32  seed [2] u32 (low, high)   with dropout
 *   sinks [G,R] f32             with sinks
 * and of the backward
 *   out [B,G,R,Tq,Dv] f32  lse [B,G,R,Tq] f32  dout [B,G,R,Tq,Dv]  dlse [B,G,R,Tq] f32 with dlse
 * lse of rows that fill up: +infinity.
 *
 * Outputs forward: out [B,G,R,Tq,Dv] f32, lse [B,G,R,Tq] f32, row_max [B,G,R,Tq] f32 when wanted.
 * Outputs backward: dq [B,G,R,Tq,D], dk [B,G,Tkv,D], dv [B,G,Tkv,Dv], all f32, dsinks [G,R] f32 with sinks: this device's part,
 * dbias, the bias's shape, when wanted: this device's part; where the bias is shared by all queries, the sum of all devices' is meant. */
int ra__pjrt_inputs(const struct ra__pjrt_program *program, struct ra__pjrt_array *array);
int ra__pjrt_outputs(const struct ra__pjrt_program *program, struct ra__pjrt_array *array);

/* The text, `length` characters and a final 0, to be freed by ra__free. Errors: ERR_INVALID (a description that contradicts itself),
 * ERR_OVERFLOW (an array or an index too large), ERR_MEMORY. */
ra_status ra__pjrt_emit(const struct ra__pjrt_program *program, const ra_allocator *memory, char **text, size_t *length);

#endif
