/* The ring around the steps: what each device holds, sends and gives back.
 *
 * In step n a device computes on the block that began step[n] devices behind it, while the block moves on to the device that has it next.
 * In the backward the sum of a block's dk, dv follows one step behind: it arrives while this device computes its own part, is added, and
 * leaves during the next step; after the last one it goes home straight. Where a barrier stands, no exchange of a later step begins, so
 * that each has one step of computing to hide behind. */
#include "pjrt/emit.h"

#include <math.h>
#include <string.h>

#include "base/status.h"
#include "pjrt/emit_block.h"

typedef struct ra__hlo_value value;

enum { VISITOR = 3 }; /* k, v, k_index: what travels */

/* ---- arrays ---- */

static enum ra__hlo_element element_of(ra_dtype type) {
    return type == RA_BF16 ? RA__HLO_BF16 : type == RA_F16 ? RA__HLO_F16 : RA__HLO_F32;
}

struct ra__hlo_type ra__pjrt_rows_type(const struct ra__pjrt_program *p) {
    return (struct ra__hlo_type){RA__HLO_F32, 4, {p->B, p->G, p->R, p->Tq}};
}

struct ra__hlo_type ra__pjrt_query_type(const struct ra__pjrt_program *p, int64_t width) {
    return (struct ra__hlo_type){RA__HLO_F32, 5, {p->B, p->G, p->R, p->Tq, width}};
}

struct ra__hlo_type ra__pjrt_key_type(const struct ra__pjrt_program *p, int64_t width) {
    return (struct ra__hlo_type){RA__HLO_F32, 4, {p->B, p->G, p->Tkv, width}};
}

struct ra__hlo_type ra__pjrt_bias_type(const struct ra__pjrt_program *p) {
    const bool *full = p->bias_axis;
    return (struct ra__hlo_type){
        RA__HLO_F32, 5, {full[0] ? p->B : 1, full[1] ? p->G : 1, full[1] ? p->R : 1, full[2] ? p->Tq : 1, full[3] ? p->P * p->Tkv : 1}};
}

static bool has_dbias(const struct ra__pjrt_program *p) {
    return p->bias && p->dbias;
}

/* name NULL: the problem has none. */
static struct ra__pjrt_array operand(const struct ra__pjrt_program *p, int which) {
    const enum ra__hlo_element type = element_of(p->dtype);
    const struct ra__hlo_type matrix = {RA__HLO_S32, 2, {2 * p->spans, p->Tq}},
                              index = {RA__HLO_S32, 2, {p->segments ? 1 + p->B : 1, p->Tkv}}, ids = {RA__HLO_S32, 2, {p->B, p->Tq}},
                              heads = {RA__HLO_F32, 2, {p->G, p->R}};
    const struct {
        bool given;
        struct ra__pjrt_array array;
    } table[RA__PJRT_OPERANDS] = {
        [RA__PJRT_Q] = {true, {"q", ra__hlo_with(ra__pjrt_query_type(p, p->D), type)}},
        [RA__PJRT_K] = {true, {"k", ra__hlo_with(ra__pjrt_key_type(p, p->D), type)}},
        [RA__PJRT_V] = {true, {"v", ra__hlo_with(ra__pjrt_key_type(p, p->Dv), type)}},
        [RA__PJRT_Q_SPANS] = {true, {"q_spans", matrix}},
        [RA__PJRT_K_INDEX] = {true, {"k_index", index}},
        [RA__PJRT_Q_SEGMENTS] = {p->segments, {"q_segments", ids}},
        [RA__PJRT_KV_LENS] = {p->kv_lens, {"kv_lens", ra__hlo_vector(RA__HLO_S32, p->B)}},
        [RA__PJRT_ALIBI] = {p->alibi, {"alibi_slopes", heads}},
        [RA__PJRT_Q_ALIGNED] = {p->alibi, {"q_aligned", ra__hlo_vector(RA__HLO_S32, p->Tq)}},
        [RA__PJRT_TEMPERATURE] = {p->temperature, {"temperature", ra__hlo_vector(RA__HLO_F32, p->Tq)}},
        [RA__PJRT_BIAS] = {p->bias, {"bias", ra__pjrt_bias_type(p)}},
        [RA__PJRT_Q_POSITION] = {p->dropout > 0, {"q_position", ra__hlo_vector(RA__HLO_S32, p->Tq)}},
        [RA__PJRT_SEED] = {p->dropout > 0, {"seed", ra__hlo_vector(RA__HLO_U32, 2)}},
        [RA__PJRT_SINKS] = {p->sinks, {"sinks", heads}},
        [RA__PJRT_OUT] = {p->backward, {"out", ra__pjrt_query_type(p, p->Dv)}},
        [RA__PJRT_LSE] = {p->backward, {"lse", ra__pjrt_rows_type(p)}},
        [RA__PJRT_DOUT] = {p->backward, {"dout", ra__hlo_with(ra__pjrt_query_type(p, p->Dv), element_of(p->dout_dtype))}},
        [RA__PJRT_DLSE] = {p->backward && p->dlse, {"dlse", ra__pjrt_rows_type(p)}},
    };
    return table[which].given ? table[which].array : (struct ra__pjrt_array){0};
}

_Static_assert((int)RA__PJRT_OPERANDS <= (int)RA__PJRT_ARRAYS, "every operand may be an input");

int ra__pjrt_inputs(const struct ra__pjrt_program *p, struct ra__pjrt_array *array) {
    int n = 0;
    for (int i = 0; i < RA__PJRT_OPERANDS; i++) {
        const struct ra__pjrt_array a = operand(p, i);
        if (a.name)
            array[n++] = a;
    }
    return n;
}

int ra__pjrt_outputs(const struct ra__pjrt_program *p, struct ra__pjrt_array *array) {
    int n = 0;
    if (!p->backward) {
        array[n++] = (struct ra__pjrt_array){"out", ra__pjrt_query_type(p, p->Dv)};
        array[n++] = (struct ra__pjrt_array){"lse", ra__pjrt_rows_type(p)};
        if (p->row_max)
            array[n++] = (struct ra__pjrt_array){"row_max", ra__pjrt_rows_type(p)};
        return n;
    }
    array[n++] = (struct ra__pjrt_array){"dq", ra__pjrt_query_type(p, p->D)};
    array[n++] = (struct ra__pjrt_array){"dk", ra__pjrt_key_type(p, p->D)};
    array[n++] = (struct ra__pjrt_array){"dv", ra__pjrt_key_type(p, p->Dv)};
    if (p->sinks)
        array[n++] = (struct ra__pjrt_array){"dsinks", {RA__HLO_F32, 2, {p->G, p->R}}};
    if (has_dbias(p))
        array[n++] = (struct ra__pjrt_array){"dbias", ra__pjrt_bias_type(p)};
    return n;
}

void ra__pjrt_operands(struct ra__pjrt_emitter *e, int first, int end) {
    for (int i = first; i < end; i++) {
        const struct ra__pjrt_array a = operand(e->p, i);
        if (a.name)
            e->in[i] = ra__hlo_new(e->h, a.type);
    }
}

int ra__pjrt_list_operands(const struct ra__pjrt_emitter *e, int first, int end, bool column, value *list, int n) {
    for (int i = first; i < end; i++)
        if (e->in[i].id)
            list[n++] = e->in[i];
    if (column && e->column.id)
        list[n++] = e->column;
    return n;
}

/* ---- the ring ---- */

/* How far a block moves during step n, and during the step before. */
static int hop(const struct ra__pjrt_program *p, int n) {
    return p->step[n + 1] - p->step[n];
}

static void send(struct ra__pjrt_emitter *e, int distance, int n, const value *from, value *to) {
    for (int i = 0; i < n; i++)
        to[i] = ra__hlo_permute(e->h, from[i], e->p->P, distance);
}

static void set_visitor(struct ra__pjrt_emitter *e, const value *visitor) {
    e->in[RA__PJRT_K] = visitor[0];
    e->in[RA__PJRT_V] = visitor[1];
    e->in[RA__PJRT_K_INDEX] = visitor[2];
}

/* Where the bias has the keys of the block that began `behind`, a scalar, devices behind this one. */
static void find_column(struct ra__pjrt_emitter *e, value behind) {
    if (!e->p->bias)
        return;
    struct ra__hlo *h = e->h;
    const struct ra__hlo_type index = ra__hlo_scalar(RA__HLO_S32);
    const value P = ra__hlo_int(h, index, e->p->P), ahead = ra__hlo_binary(h, "add", ra__hlo_replica(h), P);
    const value block = ra__hlo_binary(h, "remainder", ra__hlo_binary(h, "subtract", ahead, behind), P);
    e->column = ra__hlo_binary(h, "multiply", block, ra__hlo_int(h, index, e->p->Tkv));
}

static value step_number(struct ra__pjrt_emitter *e, int n) {
    return ra__hlo_int(e->h, ra__hlo_scalar(RA__HLO_S32), e->p->step[n]);
}

/* One call of the function of a ring step. */
static void compute(struct ra__pjrt_emitter *e, value behind, int fixed, const value *first, int states, const value *state, int results,
                    const struct ra__hlo_type *types, value *result) {
    value argument[RA__PJRT_OPERANDS + RA__HLO_CARRIED];
    find_column(e, behind);
    int n = ra__pjrt_list_operands(e, 0, RA__PJRT_STEP_OPERANDS, true, argument, 0);
    for (int i = 0; i < fixed; i++)
        argument[n++] = first[i];
    for (int i = 0; i < states; i++)
        argument[n++] = state[i];
    ra__hlo_call(e->h, "step", n, argument, results, types, result);
}

/* A ring as a loop: its steps are all of equal length and there are too many to be written out. */
static bool is_loop(const struct ra__pjrt_program *p) {
    return p->steps > p->unrolled && p->step[p->steps - 1] == p->steps - 1;
}

static void copy(value *to, const value *from, int n) {
    memcpy(to, from, (size_t)n * sizeof *to);
}

/* ---- forward ---- */

enum { ACC, M, L, FORWARD };

static void forward_ring(struct ra__pjrt_emitter *e, const struct ra__hlo_type *types, value *state) {
    const struct ra__pjrt_program *p = e->p;
    value now[VISITOR + FORWARD] = {e->in[RA__PJRT_K], e->in[RA__PJRT_V], e->in[RA__PJRT_K_INDEX], state[ACC], state[M], state[L]};
    value next[VISITOR + FORWARD];
    if (is_loop(p)) {
        struct ra__hlo_loop loop;
        ra__hlo_loop_begin(e->h, &loop, p->steps - 1, VISITOR + FORWARD, now);
        set_visitor(e, loop.carried);
        send(e, 1, VISITOR, loop.carried, next);
        compute(e, loop.at, 0, NULL, FORWARD, loop.carried + VISITOR, FORWARD, types, next + VISITOR);
        ra__hlo_loop_end(e->h, &loop, 1, next);
        copy(now, loop.carried, VISITOR + FORWARD);
    } else {
        for (int n = 0; n + 1 < p->steps; n++) {
            set_visitor(e, now);
            send(e, hop(p, n), VISITOR, now, next);
            compute(e, step_number(e, n), 0, NULL, FORWARD, now + VISITOR, FORWARD, types, next + VISITOR);
            ra__hlo_barrier(e->h, VISITOR + FORWARD, next);
            copy(now, next, VISITOR + FORWARD);
        }
    }
    set_visitor(e, now);
    compute(e, step_number(e, p->steps - 1), 0, NULL, FORWARD, now + VISITOR, FORWARD, types, state);
}

/* out = acc / l, lse = m + ln l, with the sink as one more logit; 0 and -infinity where nothing was seen. */
static void finish_forward(struct ra__pjrt_emitter *e, const value *state, value *result) {
    static const int rows[] = {0, 1, 2, 3}, heads[] = {1, 2};
    struct ra__hlo *h = e->h;
    const struct ra__hlo_type type = state[M].type;
    const value zero = ra__hlo_float(h, type, 0), least = ra__hlo_float(h, type, -INFINITY);
    value m = state[M], l = state[L], acc = state[ACC];
    if (e->p->dropout > 0)
        acc = ra__hlo_binary(h, "multiply", acc, ra__hlo_float(h, acc.type, ra__pjrt_kept_scale(e->p)));
    if (e->p->sinks) {
        const value sink = ra__hlo_broadcast(h, e->in[RA__PJRT_SINKS], heads, type);
        m = ra__hlo_binary(h, "maximum", m, sink);
        const value shift = ra__hlo_select(h, ra__hlo_compare(h, "EQ", m, least), zero, m);
        const value factor = ra__hlo_unary(h, "exponential", ra__hlo_binary(h, "subtract", state[M], shift));
        const value weight = ra__hlo_unary(h, "exponential", ra__hlo_binary(h, "subtract", sink, shift));
        l = ra__hlo_binary(h, "add", ra__hlo_binary(h, "multiply", l, factor), weight);
        acc = ra__hlo_binary(h, "multiply", acc, ra__hlo_broadcast(h, factor, rows, acc.type));
    }
    const value none = ra__hlo_compare(h, "EQ", l, zero);
    const value out = ra__hlo_binary(h, "divide", acc, ra__hlo_broadcast(h, l, rows, acc.type));
    result[0] = ra__hlo_select(h, ra__hlo_broadcast(h, none, rows, acc.type), ra__hlo_float(h, acc.type, 0), out);
    result[1] = ra__hlo_select(h, none, least, ra__hlo_binary(h, "add", m, ra__hlo_unary(h, "log", l)));
    result[2] = state[M];
}

static void emit_forward(struct ra__pjrt_emitter *e, value *result) {
    const struct ra__pjrt_program *p = e->p;
    const struct ra__hlo_type rows = ra__pjrt_rows_type(p), types[FORWARD] = {ra__pjrt_query_type(p, p->Dv), rows, rows};
    value state[FORWARD] = {ra__hlo_float(e->h, types[ACC], 0), ra__hlo_float(e->h, rows, -INFINITY), ra__hlo_float(e->h, rows, 0)};
    forward_ring(e, types, state);
    finish_forward(e, state, result);
}

/* ---- backward ---- */

enum { DK, DV, DQ, DBIAS, BACKWARD }; /* dk, dv travel, dq, dbias stay */
enum { LSE, DOUT, DELTA, FIXED };

/* rowsum(dout out) - dlse, once. */
static value row_sums(struct ra__pjrt_emitter *e) {
    static const int width[] = {4};
    const value dout = ra__hlo_convert(e->h, e->in[RA__PJRT_DOUT], RA__HLO_F32);
    const value sums = ra__hlo_reduce(e->h, "add", ra__hlo_binary(e->h, "multiply", dout, e->in[RA__PJRT_OUT]), 1, width);
    return e->p->dlse ? ra__hlo_binary(e->h, "subtract", sums, e->in[RA__PJRT_DLSE]) : sums;
}

/* Adds what arrived of a block's gradients to this device's part. */
static void add_arrived(struct ra__pjrt_emitter *e, const value *arrived, value *part) {
    for (int i = DK; i <= DV; i++)
        part[i] = ra__hlo_binary(e->h, "add", arrived[i], part[i]);
}

static void backward_ring(struct ra__pjrt_emitter *e, const value *fixed, const struct ra__hlo_type *types, value *state) {
    const struct ra__pjrt_program *p = e->p;
    const int states = has_dbias(p) ? BACKWARD : DBIAS, stay = states - DQ;
    value now[VISITOR + BACKWARD] = {e->in[RA__PJRT_K], e->in[RA__PJRT_V], e->in[RA__PJRT_K_INDEX]};
    value next[VISITOR + BACKWARD], arrived[2];
    int first = 0;
    copy(now + VISITOR, state, states);
    if (is_loop(p)) {
        struct ra__hlo_loop loop;
        ra__hlo_loop_begin(e->h, &loop, p->steps - 1, VISITOR + states, now);
        set_visitor(e, loop.carried);
        send(e, 1, VISITOR, loop.carried, next);
        send(e, 1, 2, loop.carried + VISITOR, arrived); /* zeros in step 0 */
        compute(e, loop.at, FIXED, fixed, stay, loop.carried + VISITOR + DQ, states, types, next + VISITOR);
        add_arrived(e, arrived, next + VISITOR);
        ra__hlo_loop_end(e->h, &loop, 1, next);
        copy(now, loop.carried, VISITOR + states);
        first = p->steps - 1;
    }
    for (int n = first; n < p->steps; n++) {
        const bool last = n + 1 == p->steps;
        set_visitor(e, now);
        if (!last)
            send(e, hop(p, n), VISITOR, now, next);
        if (n > 0)
            send(e, hop(p, n - 1), 2, now + VISITOR, arrived);
        compute(e, step_number(e, n), FIXED, fixed, stay, now + VISITOR + DQ, states, types, next + VISITOR);
        if (n > 0)
            add_arrived(e, arrived, next + VISITOR);
        if (!last)
            ra__hlo_barrier(e->h, VISITOR + states, next);
        copy(now, next, VISITOR + states);
    }
    copy(state, now + VISITOR, states);
    if (p->step[p->steps - 1] > 0)
        send(e, p->P - p->step[p->steps - 1], 2, now + VISITOR, state);
}

/* exp(sink - lse) (dlse - rowsum(dout out)), summed over this device's queries. */
static value sink_gradient(struct ra__pjrt_emitter *e, value delta) {
    static const int heads[] = {1, 2}, rows[] = {0, 3};
    struct ra__hlo *h = e->h;
    const value sink = ra__hlo_broadcast(h, e->in[RA__PJRT_SINKS], heads, delta.type), zero = ra__hlo_float(h, delta.type, 0);
    const value p = ra__hlo_unary(h, "exponential", ra__hlo_binary(h, "subtract", sink, e->in[RA__PJRT_LSE]));
    const value none = ra__hlo_compare(h, "EQ", sink, ra__hlo_float(h, delta.type, -INFINITY));
    const value part = ra__hlo_binary(h, "multiply", p, ra__hlo_unary(h, "negate", delta));
    return ra__hlo_reduce(h, "add", ra__hlo_select(h, none, zero, part), 2, rows);
}

static void emit_backward(struct ra__pjrt_emitter *e, value *result) {
    const struct ra__pjrt_program *p = e->p;
    const struct ra__hlo_type types[BACKWARD] = {ra__pjrt_key_type(p, p->D), ra__pjrt_key_type(p, p->Dv), ra__pjrt_query_type(p, p->D),
                                                 ra__pjrt_bias_type(p)};
    value state[BACKWARD];
    int n = 0;
    const value fixed[FIXED] = {e->in[RA__PJRT_LSE], e->in[RA__PJRT_DOUT], row_sums(e)};
    for (int i = 0; i < (has_dbias(p) ? BACKWARD : DBIAS); i++)
        state[i] = ra__hlo_float(e->h, types[i], 0);
    backward_ring(e, fixed, types, state);
    result[n++] = state[DQ];
    result[n++] = state[DK];
    result[n++] = state[DV];
    if (p->sinks)
        result[n++] = sink_gradient(e, fixed[DELTA]);
    if (has_dbias(p))
        result[n++] = state[DBIAS];
}

/* ---- the program ---- */

static ra_status check_steps(const struct ra__pjrt_program *p) {
    if (p->P < 1 || p->P > RA__PJRT_DEVICES || p->steps < 1 || p->steps > p->P || p->step[0] != 0)
        return ra__fail(RA_ERR_INVALID, "StableHLO: %d devices, %d steps: wanted are 1 to %d devices and steps of them from 0 on", p->P,
                        p->steps, RA__PJRT_DEVICES);
    for (int n = 1; n < p->steps; n++)
        if (p->step[n] <= p->step[n - 1] || p->step[n] >= p->P)
            return ra__fail(RA_ERR_INVALID, "StableHLO: step %d of %d devices: steps must ascend", p->step[n], p->P);
    return RA_OK;
}

static ra_status check(const struct ra__pjrt_program *p) {
    struct ra__pjrt_array array[2 * RA__PJRT_ARRAYS];
    RA__TRY(check_steps(p));
    const int64_t sizes[] = {p->B, p->G, p->R, p->Tq, p->Tkv, p->bq, p->bk, p->D, p->Dv, p->spans};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] < 1)
            return ra__fail(RA_ERR_INVALID, "StableHLO: a size of %lld: all must be positive", (long long)sizes[i]);
    if (p->Tq % p->bq || p->Tkv % p->bk || p->spans > RA__PJRT_SPANS || isnan(p->scale) || !(p->dropout >= 0 && p->dropout <= 1))
        return ra__fail(RA_ERR_INVALID,
                        "StableHLO: %lld queries in tiles of %lld, %lld keys in tiles of %lld, %d spans, scale %g, dropout %g",
                        (long long)p->Tq, (long long)p->bq, (long long)p->Tkv, (long long)p->bk, p->spans, p->scale, p->dropout);
    if (p->Tq > INT32_MAX / p->P - p->bq || p->Tkv > INT32_MAX / p->P - p->bk)
        return ra__fail(RA_ERR_OVERFLOW, "StableHLO: %lld queries and %lld keys on each of %d devices: indices have 32 bits",
                        (long long)p->Tq, (long long)p->Tkv, p->P);
    const int inputs = ra__pjrt_inputs(p, array), arrays = inputs + ra__pjrt_outputs(p, array + inputs);
    for (int i = 0; i < arrays; i++) {
        const int64_t n = ra__hlo_elements(array[i].type);
        if (n < 0 || n > INT64_MAX / (int64_t)ra__hlo_element_bytes(array[i].type.element))
            return ra__fail(RA_ERR_OVERFLOW, "StableHLO: %s does not fit in 64 bits", array[i].name);
    }
    return RA_OK;
}

static void emit_main(struct ra__hlo *h, const struct ra__pjrt_program *p) {
    struct ra__pjrt_emitter e = {.h = h, .p = p};
    struct ra__pjrt_array array[RA__PJRT_ARRAYS] = {{0}};
    struct ra__hlo_type types[RA__PJRT_ARRAYS];
    value parameter[RA__PJRT_OPERANDS], result[RA__PJRT_ARRAYS];
    const int results = ra__pjrt_outputs(p, array);
    for (int i = 0; i < results; i++)
        types[i] = array[i].type;
    ra__pjrt_operands(&e, 0, RA__PJRT_OPERANDS);
    const int n = ra__pjrt_list_operands(&e, 0, RA__PJRT_OPERANDS, false, parameter, 0);
    ra__hlo_function_begin(h, true, "main", n, parameter, results, types);
    if (p->backward)
        emit_backward(&e, result);
    else
        emit_forward(&e, result);
    ra__hlo_function_end(h, results, result);
}

ra_status ra__pjrt_emit(const struct ra__pjrt_program *p, const ra_allocator *memory, char **text, size_t *length) {
    RA__TRY(check(p));
    struct ra__hlo h;
    ra__hlo_start(&h, memory);
    ra__hlo_line(&h, "module @ring_%s attributes {mhlo.num_replicas = %d : i32, mhlo.num_partitions = 1 : i32} {",
                 p->backward ? "backward" : "forward", p->P);
    h.depth++;
    if (p->backward)
        ra__pjrt_backward_function(&h, p);
    else
        ra__pjrt_forward_function(&h, p);
    emit_main(&h, p);
    h.depth--;
    ra__hlo_line(&h, "}");
    return ra__hlo_finish(&h, text, length);
}
