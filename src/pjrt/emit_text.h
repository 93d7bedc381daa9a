/* Writes StableHLO as text, one operation per call. A value knows its type, so that result types are derived and never spelled twice, and
 * the emitters above read like the formulas that they print.
 *
 * A fault (no memory, a text or tensor too large) sticks: what follows is not written, and ra__hlo_finish says what happened. Numbers are
 * written as bit patterns, which no locale and no rounding changes. */
#ifndef RA_PJRT_EMIT_TEXT_H
#define RA_PJRT_EMIT_TEXT_H

#include <stdbool.h>

#include "ringattention.h"

enum { RA__HLO_RANK = 5 };    /* most dimensions of a tensor */
enum { RA__HLO_CARRIED = 8 }; /* most values that a loop carries, its counter included */

enum ra__hlo_element { RA__HLO_F32, RA__HLO_BF16, RA__HLO_F16, RA__HLO_S32, RA__HLO_U32, RA__HLO_U64, RA__HLO_BOOL };

struct ra__hlo_type {
    enum ra__hlo_element element;
    int rank;
    int64_t dim[RA__HLO_RANK];
};

/* %id, or %id#part of an operation with several results. id 0: no value. */
struct ra__hlo_value {
    int id, part;
    struct ra__hlo_type type;
};

struct ra__hlo {
    const ra_allocator *memory;
    char *text;
    size_t length, room;
    int last, depth;  /* last value's id; indentation */
    ra_status status; /* of the first fault */
    const char *fault;
};

/* ---- text ---- */

void ra__hlo_start(struct ra__hlo *h, const ra_allocator *memory);
/* The text and its length without the final 0, to be freed by ra__free; or the fault, and nothing to free. */
ra_status ra__hlo_finish(struct ra__hlo *h, char **text, size_t *length);
void ra__hlo_fail(struct ra__hlo *h, ra_status status, const char *fault); /* fault: lives on */
void ra__hlo_line(struct ra__hlo *h, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- types ---- */

struct ra__hlo_type ra__hlo_scalar(enum ra__hlo_element element);
struct ra__hlo_type ra__hlo_vector(enum ra__hlo_element element, int64_t n);
struct ra__hlo_type ra__hlo_with(struct ra__hlo_type type, enum ra__hlo_element element); /* same shape */
int64_t ra__hlo_elements(struct ra__hlo_type type);                                       /* -1: not in 63 bits */
size_t ra__hlo_element_bytes(enum ra__hlo_element element);

/* ---- functions: parameters are values made by ra__hlo_new ---- */

struct ra__hlo_value ra__hlo_new(struct ra__hlo *h, struct ra__hlo_type type);
void ra__hlo_function_begin(struct ra__hlo *h, bool public, const char *name, int n, const struct ra__hlo_value *parameter, int results,
                            const struct ra__hlo_type *result);
void ra__hlo_function_end(struct ra__hlo *h, int n, const struct ra__hlo_value *value);
void ra__hlo_call(struct ra__hlo *h, const char *name, int n, const struct ra__hlo_value *argument, int results,
                  const struct ra__hlo_type *type, struct ra__hlo_value *result);

/* ---- constants, element by element ---- */

struct ra__hlo_value ra__hlo_float(struct ra__hlo *h, struct ra__hlo_type type, double x); /* rounded to the element */
struct ra__hlo_value ra__hlo_int(struct ra__hlo *h, struct ra__hlo_type type, int64_t x);  /* that fits in 32 bits, signed or not */
struct ra__hlo_value ra__hlo_iota(struct ra__hlo *h, struct ra__hlo_type type, int axis);
struct ra__hlo_value ra__hlo_unary(struct ra__hlo *h, const char *operation, struct ra__hlo_value a);
struct ra__hlo_value ra__hlo_binary(struct ra__hlo *h, const char *operation, struct ra__hlo_value a, struct ra__hlo_value b);
struct ra__hlo_value ra__hlo_compare(struct ra__hlo *h, const char *relation, struct ra__hlo_value a, struct ra__hlo_value b);
struct ra__hlo_value ra__hlo_select(struct ra__hlo *h, struct ra__hlo_value which, struct ra__hlo_value yes, struct ra__hlo_value no);
struct ra__hlo_value ra__hlo_is_finite(struct ra__hlo *h, struct ra__hlo_value a);
struct ra__hlo_value ra__hlo_convert(struct ra__hlo *h, struct ra__hlo_value a, enum ra__hlo_element element);

/* ---- shapes ---- */

/* Dimension i of a becomes dimension axis[i] of the result, whose shape is that of `like`. */
struct ra__hlo_value ra__hlo_broadcast(struct ra__hlo *h, struct ra__hlo_value a, const int *axis, struct ra__hlo_type like);
struct ra__hlo_value ra__hlo_spread(struct ra__hlo *h, struct ra__hlo_value scalar, struct ra__hlo_type like);
/* n entries of an axis from `at`, a scalar s32, on. */
struct ra__hlo_span {
    int axis;
    struct ra__hlo_value at;
    int64_t n;
};
/* A part of a, of as many dimensions, and a with a part replaced: of some axes a span, of the others all. */
struct ra__hlo_value ra__hlo_box(struct ra__hlo *h, struct ra__hlo_value a, int axes, const struct ra__hlo_span *box);
struct ra__hlo_value ra__hlo_put_box(struct ra__hlo *h, struct ra__hlo_value a, struct ra__hlo_value part, int axes,
                                     const struct ra__hlo_span *box);
/* The same of one axis. */
struct ra__hlo_value ra__hlo_slice(struct ra__hlo *h, struct ra__hlo_value a, int axis, struct ra__hlo_value at, int64_t n);
struct ra__hlo_value ra__hlo_update(struct ra__hlo *h, struct ra__hlo_value a, struct ra__hlo_value part, int axis,
                                    struct ra__hlo_value at);
struct ra__hlo_value ra__hlo_reshape(struct ra__hlo *h, struct ra__hlo_value a, struct ra__hlo_type like);
/* Rows first .. first + n - 1 of a matrix; one row: as a vector when `vector`. */
struct ra__hlo_value ra__hlo_rows(struct ra__hlo *h, struct ra__hlo_value a, int64_t first, int64_t n, bool vector);
/* operation: add, maximum, minimum, and. The axes go away. */
struct ra__hlo_value ra__hlo_reduce(struct ra__hlo *h, const char *operation, struct ra__hlo_value a, int axes, const int *axis);

/* ---- products: a's and b's first `batch` dimensions run along, `axes` dimensions are summed over, in fp32. Dimensions of the result:
 * batch, the others of a, the others of b. Two types: both are widened to fp32. fp32 is multiplied as exactly as the device can ---- */

struct ra__hlo_value ra__hlo_dot(struct ra__hlo *h, struct ra__hlo_value a, struct ra__hlo_value b, int batch, int axes, const int *axis_a,
                                 const int *axis_b);

/* ---- control ---- */

struct ra__hlo_loop {
    int n, id;
    struct ra__hlo_value at;                       /* the counter, s32 */
    struct ra__hlo_value carried[RA__HLO_CARRIED]; /* inside the loop: values at its head; after its end: the last ones */
};

/* at = 0, step, ... while at < limit. */
void ra__hlo_loop_begin(struct ra__hlo *h, struct ra__hlo_loop *loop, int64_t limit, int n, const struct ra__hlo_value *initial);
void ra__hlo_loop_end(struct ra__hlo *h, struct ra__hlo_loop *loop, int64_t step, const struct ra__hlo_value *next);

struct ra__hlo_if {
    int n, id;
    struct ra__hlo_type type[RA__HLO_CARRIED];
};

/* begin, what happens if so, otherwise(the results then), what happens if not, end(the results then): result [n] is written. */
void ra__hlo_if_begin(struct ra__hlo *h, struct ra__hlo_if *branch, struct ra__hlo_value condition, int n, const struct ra__hlo_type *type);
void ra__hlo_otherwise(struct ra__hlo *h, const struct ra__hlo_if *branch, const struct ra__hlo_value *value);
void ra__hlo_if_end(struct ra__hlo *h, const struct ra__hlo_if *branch, const struct ra__hlo_value *value, struct ra__hlo_value *result);

/* ---- replicas ---- */

struct ra__hlo_value ra__hlo_replica(struct ra__hlo *h); /* s32 */
/* Replica r's value goes to replica (r + distance) mod P. */
struct ra__hlo_value ra__hlo_permute(struct ra__hlo *h, struct ra__hlo_value a, int P, int distance);
/* Nothing behind it begins before everything in front of it is done: each value is replaced. */
void ra__hlo_barrier(struct ra__hlo *h, int n, struct ra__hlo_value *value);

#endif
