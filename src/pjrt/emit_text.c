/* StableHLO as text: the syntax, and the types of results. */
#include "pjrt/emit_text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/half.h"
#include "base/memory.h"
#include "base/status.h"

/* No program of this engine comes near it, so a longer text is a fault, not a wish. */
static const size_t longest_text = (size_t)1 << 30;

/* ---- text ---- */

void ra__hlo_start(struct ra__hlo *h, const ra_allocator *memory) {
    *h = (struct ra__hlo){.memory = memory};
}

void ra__hlo_fail(struct ra__hlo *h, ra_status status, const char *fault) {
    if (h->status != RA_OK)
        return;
    h->status = status;
    h->fault = fault;
}

ra_status ra__hlo_finish(struct ra__hlo *h, char **text, size_t *length) {
    if (h->status != RA_OK) {
        ra__free(h->memory, h->text);
        h->text = NULL;
        return ra__fail(h->status, "StableHLO: %s", h->fault);
    }
    *text = h->text;
    *length = h->length;
    return RA_OK;
}

/* Room for `more` characters and a final 0. */
static bool make_room(struct ra__hlo *h, size_t more) {
    if (more < h->room - h->length)
        return true;
    if (more >= longest_text - h->length) {
        ra__hlo_fail(h, RA_ERR_OVERFLOW, "the program is longer than 1 GiB");
        return false;
    }
    const size_t room = 2 * (h->length + more) + 4096;
    char *text = ra__alloc(h->memory, room);
    if (!text) {
        ra__hlo_fail(h, RA_ERR_MEMORY, "no memory for the program");
        return false;
    }
    if (h->length)
        memcpy(text, h->text, h->length);
    ra__free(h->memory, h->text);
    h->text = text;
    h->room = room;
    return true;
}

static void append_list(struct ra__hlo *h, const char *format, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    const int n = h->status == RA_OK ? vsnprintf(NULL, 0, format, arguments) : -1;
    if (n >= 0 && make_room(h, (size_t)n)) {
        vsnprintf(h->text + h->length, (size_t)n + 1, format, again);
        h->length += (size_t)n;
    }
    va_end(again);
}

__attribute__((format(printf, 2, 3))) static void append(struct ra__hlo *h, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    append_list(h, format, arguments);
    va_end(arguments);
}

static void indent(struct ra__hlo *h) {
    append(h, "%*s", 2 * h->depth, "");
}

void ra__hlo_line(struct ra__hlo *h, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    indent(h);
    append_list(h, format, arguments);
    append(h, "\n");
    va_end(arguments);
}

/* ---- names and types ---- */

struct spelled {
    char s[160];
};

static const char *const element_name[] = {"f32", "bf16", "f16", "i32", "ui32", "ui64", "i1"};
static const size_t element_bytes[] = {4, 2, 2, 4, 4, 8, 1};

size_t ra__hlo_element_bytes(enum ra__hlo_element element) {
    return element_bytes[element];
}

static struct spelled name(struct ra__hlo_value v) {
    struct spelled t;
    if (v.part >= 0)
        snprintf(t.s, sizeof t.s, "%%%d#%d", v.id, v.part);
    else
        snprintf(t.s, sizeof t.s, "%%%d", v.id);
    return t;
}

static struct spelled spell(struct ra__hlo_type type) {
    struct spelled t;
    int n = snprintf(t.s, sizeof t.s, "tensor<");
    for (int i = 0; i < type.rank; i++)
        n += snprintf(t.s + n, sizeof t.s - (size_t)n, "%" PRId64 "x", type.dim[i]);
    snprintf(t.s + n, sizeof t.s - (size_t)n, "%s>", element_name[type.element]);
    return t;
}

static struct spelled list(int n, const int *x) {
    struct spelled t = {"["};
    int at = 1;
    for (int i = 0; i < n; i++)
        at += snprintf(t.s + at, sizeof t.s - (size_t)at, "%s%d", i ? ", " : "", x[i]);
    snprintf(t.s + at, sizeof t.s - (size_t)at, "]");
    return t;
}

static void append_names(struct ra__hlo *h, int n, const struct ra__hlo_value *value) {
    for (int i = 0; i < n; i++)
        append(h, "%s%s", i ? ", " : "", name(value[i]).s);
}

static void append_types(struct ra__hlo *h, int n, const struct ra__hlo_type *type) {
    for (int i = 0; i < n; i++)
        append(h, "%s%s", i ? ", " : "", spell(type[i]).s);
}

static void append_types_of(struct ra__hlo *h, int n, const struct ra__hlo_value *value) {
    for (int i = 0; i < n; i++)
        append(h, "%s%s", i ? ", " : "", spell(value[i].type).s);
}

struct ra__hlo_type ra__hlo_scalar(enum ra__hlo_element element) {
    return (struct ra__hlo_type){.element = element};
}

struct ra__hlo_type ra__hlo_vector(enum ra__hlo_element element, int64_t n) {
    return (struct ra__hlo_type){element, 1, {n}};
}

struct ra__hlo_type ra__hlo_with(struct ra__hlo_type type, enum ra__hlo_element element) {
    type.element = element;
    return type;
}

int64_t ra__hlo_elements(struct ra__hlo_type type) {
    bool overflow = false;
    int64_t n = 1;
    for (int i = 0; i < type.rank; i++)
        n = ra__mul(n, type.dim[i], &overflow);
    return overflow ? -1 : n;
}

struct ra__hlo_value ra__hlo_new(struct ra__hlo *h, struct ra__hlo_type type) {
    return (struct ra__hlo_value){++h->last, -1, type};
}

/* The results of one operation with several. */
static void results_of(int id, int n, const struct ra__hlo_type *type, struct ra__hlo_value *result) {
    for (int i = 0; i < n; i++)
        result[i] = (struct ra__hlo_value){id, i, type[i]};
}

/* ---- functions ---- */

void ra__hlo_function_begin(struct ra__hlo *h, bool public, const char *function, int n, const struct ra__hlo_value *parameter, int results,
                            const struct ra__hlo_type *result) {
    indent(h);
    append(h, "func.func %s @%s(", public ? "public" : "private", function);
    for (int i = 0; i < n; i++)
        append(h, "%s%s: %s", i ? ", " : "", name(parameter[i]).s, spell(parameter[i].type).s);
    append(h, ") -> (");
    append_types(h, results, result);
    append(h, ") {\n");
    h->depth++;
}

static void give_back(struct ra__hlo *h, const char *operation, int n, const struct ra__hlo_value *value) {
    indent(h);
    append(h, "%s ", operation);
    append_names(h, n, value);
    append(h, " : ");
    append_types_of(h, n, value);
    append(h, "\n");
    h->depth--;
}

void ra__hlo_function_end(struct ra__hlo *h, int n, const struct ra__hlo_value *value) {
    give_back(h, "return", n, value);
    ra__hlo_line(h, "}");
}

void ra__hlo_call(struct ra__hlo *h, const char *function, int n, const struct ra__hlo_value *argument, int results,
                  const struct ra__hlo_type *type, struct ra__hlo_value *result) {
    const int id = ++h->last;
    indent(h);
    append(h, "%%%d:%d = func.call @%s(", id, results, function);
    append_names(h, n, argument);
    append(h, ") : (");
    append_types_of(h, n, argument);
    append(h, ") -> (");
    append_types(h, results, type);
    append(h, ")\n");
    results_of(id, results, type, result);
}

/* ---- constants, element by element ---- */

struct ra__hlo_value ra__hlo_float(struct ra__hlo *h, struct ra__hlo_type type, double x) {
    const struct ra__hlo_value r = ra__hlo_new(h, type);
    const float rounded = (float)x;
    char bits[16];
    if (type.element == RA__HLO_F32)
        snprintf(bits, sizeof bits, "0x%08" PRIX32, ra__bits(rounded));
    else
        snprintf(bits, sizeof bits, "0x%04X", (unsigned)(type.element == RA__HLO_BF16 ? ra__to_bf16(rounded) : ra__to_f16(rounded)));
    ra__hlo_line(h, "%s = stablehlo.constant dense<%s> : %s", name(r).s, bits, spell(type).s);
    return r;
}

struct ra__hlo_value ra__hlo_int(struct ra__hlo *h, struct ra__hlo_type type, int64_t x) {
    const struct ra__hlo_value r = ra__hlo_new(h, type);
    if (x < INT32_MIN || x > (type.element == RA__HLO_S32 ? INT32_MAX : UINT32_MAX))
        ra__hlo_fail(h, RA_ERR_OVERFLOW, "an index does not fit in 32 bits");
    if (type.element == RA__HLO_BOOL)
        ra__hlo_line(h, "%s = stablehlo.constant dense<%s> : %s", name(r).s, x ? "true" : "false", spell(type).s);
    else
        ra__hlo_line(h, "%s = stablehlo.constant dense<%" PRId64 "> : %s", name(r).s, x, spell(type).s);
    return r;
}

struct ra__hlo_value ra__hlo_unary(struct ra__hlo *h, const char *operation, struct ra__hlo_value a) {
    const struct ra__hlo_value r = ra__hlo_new(h, a.type);
    ra__hlo_line(h, "%s = stablehlo.%s %s : %s", name(r).s, operation, name(a).s, spell(a.type).s);
    return r;
}

struct ra__hlo_value ra__hlo_binary(struct ra__hlo *h, const char *operation, struct ra__hlo_value a, struct ra__hlo_value b) {
    const struct ra__hlo_value r = ra__hlo_new(h, a.type);
    ra__hlo_line(h, "%s = stablehlo.%s %s, %s : %s", name(r).s, operation, name(a).s, name(b).s, spell(a.type).s);
    return r;
}

struct ra__hlo_value ra__hlo_compare(struct ra__hlo *h, const char *relation, struct ra__hlo_value a, struct ra__hlo_value b) {
    const struct ra__hlo_value r = ra__hlo_new(h, ra__hlo_with(a.type, RA__HLO_BOOL));
    ra__hlo_line(h, "%s = stablehlo.compare %s, %s, %s : (%s, %s) -> %s", name(r).s, relation, name(a).s, name(b).s, spell(a.type).s,
                 spell(b.type).s, spell(r.type).s);
    return r;
}

struct ra__hlo_value ra__hlo_select(struct ra__hlo *h, struct ra__hlo_value which, struct ra__hlo_value yes, struct ra__hlo_value no) {
    const struct ra__hlo_value r = ra__hlo_new(h, yes.type);
    ra__hlo_line(h, "%s = stablehlo.select %s, %s, %s : %s, %s", name(r).s, name(which).s, name(yes).s, name(no).s, spell(which.type).s,
                 spell(yes.type).s);
    return r;
}

struct ra__hlo_value ra__hlo_iota(struct ra__hlo *h, struct ra__hlo_type type, int axis) {
    const struct ra__hlo_value r = ra__hlo_new(h, type);
    ra__hlo_line(h, "%s = stablehlo.iota dim = %d : %s", name(r).s, axis, spell(type).s);
    return r;
}

static struct ra__hlo_value retyped(struct ra__hlo *h, const char *operation, struct ra__hlo_value a, struct ra__hlo_type type) {
    const struct ra__hlo_value r = ra__hlo_new(h, type);
    ra__hlo_line(h, "%s = stablehlo.%s %s : (%s) -> %s", name(r).s, operation, name(a).s, spell(a.type).s, spell(type).s);
    return r;
}

struct ra__hlo_value ra__hlo_is_finite(struct ra__hlo *h, struct ra__hlo_value a) {
    return retyped(h, "is_finite", a, ra__hlo_with(a.type, RA__HLO_BOOL));
}

struct ra__hlo_value ra__hlo_convert(struct ra__hlo *h, struct ra__hlo_value a, enum ra__hlo_element element) {
    return a.type.element == element ? a : retyped(h, "convert", a, ra__hlo_with(a.type, element));
}

/* ---- shapes ---- */

struct ra__hlo_value ra__hlo_broadcast(struct ra__hlo *h, struct ra__hlo_value a, const int *axis, struct ra__hlo_type like) {
    const struct ra__hlo_value r = ra__hlo_new(h, ra__hlo_with(like, a.type.element));
    ra__hlo_line(h, "%s = stablehlo.broadcast_in_dim %s, dims = %s : (%s) -> %s", name(r).s, name(a).s, list(a.type.rank, axis).s,
                 spell(a.type).s, spell(r.type).s);
    return r;
}

struct ra__hlo_value ra__hlo_spread(struct ra__hlo *h, struct ra__hlo_value scalar, struct ra__hlo_type like) {
    return ra__hlo_broadcast(h, scalar, NULL, like);
}

/* ", 0, at, 0", for each dimension where a box begins. */
static void append_start(struct ra__hlo *h, int rank, int axes, const struct ra__hlo_span *box, struct ra__hlo_value zero) {
    for (int i = 0; i < rank; i++) {
        struct ra__hlo_value at = zero;
        for (int n = 0; n < axes; n++)
            at = box[n].axis == i ? box[n].at : at;
        append(h, ", %s", name(at).s);
    }
}

static void append_start_types(struct ra__hlo *h, int rank) {
    for (int i = 0; i < rank; i++)
        append(h, ", %s", spell(ra__hlo_scalar(RA__HLO_S32)).s);
}

struct ra__hlo_value ra__hlo_box(struct ra__hlo *h, struct ra__hlo_value a, int axes, const struct ra__hlo_span *box) {
    struct ra__hlo_type type = a.type;
    for (int i = 0; i < axes; i++)
        type.dim[box[i].axis] = box[i].n;
    const struct ra__hlo_value zero = ra__hlo_int(h, ra__hlo_scalar(RA__HLO_S32), 0), r = ra__hlo_new(h, type);
    indent(h);
    append(h, "%s = stablehlo.dynamic_slice %s", name(r).s, name(a).s);
    append_start(h, type.rank, axes, box, zero);
    append(h, ", sizes = [");
    for (int i = 0; i < type.rank; i++)
        append(h, "%s%" PRId64, i ? ", " : "", type.dim[i]);
    append(h, "] : (%s", spell(a.type).s);
    append_start_types(h, type.rank);
    append(h, ") -> %s\n", spell(type).s);
    return r;
}

struct ra__hlo_value ra__hlo_put_box(struct ra__hlo *h, struct ra__hlo_value a, struct ra__hlo_value part, int axes,
                                     const struct ra__hlo_span *box) {
    const struct ra__hlo_value zero = ra__hlo_int(h, ra__hlo_scalar(RA__HLO_S32), 0), r = ra__hlo_new(h, a.type);
    indent(h);
    append(h, "%s = stablehlo.dynamic_update_slice %s, %s", name(r).s, name(a).s, name(part).s);
    append_start(h, a.type.rank, axes, box, zero);
    append(h, " : (%s, %s", spell(a.type).s, spell(part.type).s);
    append_start_types(h, a.type.rank);
    append(h, ") -> %s\n", spell(a.type).s);
    return r;
}

struct ra__hlo_value ra__hlo_slice(struct ra__hlo *h, struct ra__hlo_value a, int axis, struct ra__hlo_value at, int64_t n) {
    const struct ra__hlo_span box = {axis, at, n};
    return ra__hlo_box(h, a, 1, &box);
}

struct ra__hlo_value ra__hlo_update(struct ra__hlo *h, struct ra__hlo_value a, struct ra__hlo_value part, int axis,
                                    struct ra__hlo_value at) {
    const struct ra__hlo_span box = {axis, at, part.type.dim[axis]};
    return ra__hlo_put_box(h, a, part, 1, &box);
}

struct ra__hlo_value ra__hlo_reshape(struct ra__hlo *h, struct ra__hlo_value a, struct ra__hlo_type like) {
    return retyped(h, "reshape", a, ra__hlo_with(like, a.type.element));
}

struct ra__hlo_value ra__hlo_rows(struct ra__hlo *h, struct ra__hlo_value a, int64_t first, int64_t n, bool vector) {
    struct ra__hlo_type type = a.type;
    type.dim[0] = n;
    const struct ra__hlo_value r = ra__hlo_new(h, type);
    ra__hlo_line(h, "%s = stablehlo.slice %s [%" PRId64 ":%" PRId64 ", 0:%" PRId64 "] : (%s) -> %s", name(r).s, name(a).s, first, first + n,
                 type.dim[1], spell(a.type).s, spell(type).s);
    return vector ? ra__hlo_reshape(h, r, ra__hlo_vector(type.element, n * type.dim[1])) : r;
}

/* What a reduction begins with. */
static struct ra__hlo_value neutral(struct ra__hlo *h, const char *operation, enum ra__hlo_element element) {
    const struct ra__hlo_type type = ra__hlo_scalar(element);
    const bool sum = strcmp(operation, "add") == 0, least = strcmp(operation, "minimum") == 0;
    if (element == RA__HLO_BOOL)
        return ra__hlo_int(h, type, strcmp(operation, "and") == 0);
    if (element == RA__HLO_S32)
        return ra__hlo_int(h, type, sum ? 0 : least ? INT32_MAX : INT32_MIN);
    return ra__hlo_float(h, type, sum ? 0 : ra__float(least ? 0x7f800000 : 0xff800000));
}

struct ra__hlo_value ra__hlo_reduce(struct ra__hlo *h, const char *operation, struct ra__hlo_value a, int axes, const int *axis) {
    struct ra__hlo_type type = {.element = a.type.element};
    for (int i = 0; i < a.type.rank; i++) {
        bool goes = false;
        for (int n = 0; n < axes; n++)
            goes = goes || axis[n] == i;
        if (!goes)
            type.dim[type.rank++] = a.type.dim[i];
    }
    const struct ra__hlo_value first = neutral(h, operation, type.element), r = ra__hlo_new(h, type);
    ra__hlo_line(h, "%s = stablehlo.reduce(%s init: %s) applies stablehlo.%s across dimensions = %s : (%s, %s) -> %s", name(r).s, name(a).s,
                 name(first).s, operation, list(axes, axis).s, spell(a.type).s, spell(first.type).s, spell(type).s);
    return r;
}

/* ---- products ---- */

/* Adds the dimensions of x that are neither run along nor summed over. */
static void add_others(struct ra__hlo_type *to, struct ra__hlo_type x, int batch, int axes, const int *axis) {
    for (int i = batch; i < x.rank; i++) {
        bool summed = false;
        for (int n = 0; n < axes; n++)
            summed = summed || axis[n] == i;
        if (!summed && to->rank < RA__HLO_RANK)
            to->dim[to->rank++] = x.dim[i];
    }
}

struct ra__hlo_value ra__hlo_dot(struct ra__hlo *h, struct ra__hlo_value a, struct ra__hlo_value b, int batch, int axes, const int *axis_a,
                                 const int *axis_b) {
    static const int along[] = {0, 1, 2, 3, 4};
    if (a.type.element != b.type.element) {
        a = ra__hlo_convert(h, a, RA__HLO_F32);
        b = ra__hlo_convert(h, b, RA__HLO_F32);
    }
    struct ra__hlo_type type = {.element = RA__HLO_F32, .rank = batch};
    memcpy(type.dim, a.type.dim, (size_t)batch * sizeof *type.dim);
    add_others(&type, a.type, batch, axes, axis_a);
    add_others(&type, b.type, batch, axes, axis_b);
    const struct ra__hlo_value r = ra__hlo_new(h, type);
    ra__hlo_line(h, "%s = stablehlo.dot_general %s, %s, batching_dims = %s x %s, contracting_dims = %s x %s%s : (%s, %s) -> %s", name(r).s,
                 name(a).s, name(b).s, list(batch, along).s, list(batch, along).s, list(axes, axis_a).s, list(axes, axis_b).s,
                 a.type.element == RA__HLO_F32 ? ", precision = [HIGHEST, HIGHEST]" : "", spell(a.type).s, spell(b.type).s, spell(type).s);
    return r;
}

/* ---- control ---- */

void ra__hlo_loop_begin(struct ra__hlo *h, struct ra__hlo_loop *loop, int64_t limit, int n, const struct ra__hlo_value *initial) {
    const struct ra__hlo_type index = ra__hlo_scalar(RA__HLO_S32);
    const struct ra__hlo_value zero = ra__hlo_int(h, index, 0), end = ra__hlo_int(h, index, limit);
    *loop = (struct ra__hlo_loop){.n = n, .id = ++h->last, .at = ra__hlo_new(h, index)};
    indent(h);
    append(h, "%%%d:%d = stablehlo.while(%s = %s", loop->id, n + 1, name(loop->at).s, name(zero).s);
    for (int i = 0; i < n; i++) {
        loop->carried[i] = ra__hlo_new(h, initial[i].type);
        append(h, ", %s = %s", name(loop->carried[i]).s, name(initial[i]).s);
    }
    append(h, ") : %s%s", spell(index).s, n ? ", " : "");
    append_types_of(h, n, initial);
    append(h, " cond {\n");
    h->depth++;
    const struct ra__hlo_value more = ra__hlo_compare(h, "LT", loop->at, end);
    give_back(h, "stablehlo.return", 1, &more);
    ra__hlo_line(h, "} do {");
    h->depth++;
}

void ra__hlo_loop_end(struct ra__hlo *h, struct ra__hlo_loop *loop, int64_t step, const struct ra__hlo_value *next) {
    struct ra__hlo_value value[RA__HLO_CARRIED] = {ra__hlo_binary(h, "add", loop->at, ra__hlo_int(h, ra__hlo_scalar(RA__HLO_S32), step))};
    memcpy(value + 1, next, (size_t)loop->n * sizeof *value);
    give_back(h, "stablehlo.return", loop->n + 1, value);
    ra__hlo_line(h, "}");
    for (int i = 0; i < loop->n; i++)
        loop->carried[i] = (struct ra__hlo_value){loop->id, i + 1, loop->carried[i].type};
}

void ra__hlo_if_begin(struct ra__hlo *h, struct ra__hlo_if *branch, struct ra__hlo_value condition, int n,
                      const struct ra__hlo_type *type) {
    *branch = (struct ra__hlo_if){.n = n, .id = ++h->last};
    memcpy(branch->type, type, (size_t)n * sizeof *type);
    ra__hlo_line(h, "%%%d:%d = \"stablehlo.if\"(%s) ({", branch->id, n, name(condition).s);
    h->depth++;
}

void ra__hlo_otherwise(struct ra__hlo *h, const struct ra__hlo_if *branch, const struct ra__hlo_value *value) {
    give_back(h, "stablehlo.return", branch->n, value);
    ra__hlo_line(h, "}, {");
    h->depth++;
}

void ra__hlo_if_end(struct ra__hlo *h, const struct ra__hlo_if *branch, const struct ra__hlo_value *value, struct ra__hlo_value *result) {
    give_back(h, "stablehlo.return", branch->n, value);
    indent(h);
    append(h, "}) : (%s) -> (", spell(ra__hlo_scalar(RA__HLO_BOOL)).s);
    append_types(h, branch->n, branch->type);
    append(h, ")\n");
    results_of(branch->id, branch->n, branch->type, result);
}

/* ---- replicas ---- */

struct ra__hlo_value ra__hlo_replica(struct ra__hlo *h) {
    const struct ra__hlo_value r = ra__hlo_new(h, ra__hlo_scalar(RA__HLO_U32));
    ra__hlo_line(h, "%s = stablehlo.replica_id : %s", name(r).s, spell(r.type).s);
    return ra__hlo_convert(h, r, RA__HLO_S32);
}

struct ra__hlo_value ra__hlo_permute(struct ra__hlo *h, struct ra__hlo_value a, int P, int distance) {
    const struct ra__hlo_value r = ra__hlo_new(h, a.type);
    indent(h);
    append(h, "%s = \"stablehlo.collective_permute\"(%s) <{source_target_pairs = dense<[", name(r).s, name(a).s);
    for (int i = 0; i < P; i++)
        append(h, "%s[%d, %d]", i ? ", " : "", i, (i + distance) % P);
    append(h, "]> : tensor<%dx2xi64>}> : (%s) -> %s\n", P, spell(a.type).s, spell(a.type).s);
    return r;
}

void ra__hlo_barrier(struct ra__hlo *h, int n, struct ra__hlo_value *value) {
    const int id = ++h->last;
    indent(h);
    append(h, "%%%d:%d = stablehlo.optimization_barrier ", id, n);
    append_names(h, n, value);
    append(h, " : ");
    append_types_of(h, n, value);
    append(h, "\n");
    for (int i = 0; i < n; i++)
        value[i] = (struct ra__hlo_value){id, i, value[i].type};
}
