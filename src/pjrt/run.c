/* One run of a program: host arrays to the devices, all replicas, results back. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "pjrt/internal.h"

_Static_assert((int)RA__PJRT_S32 == RA__PJ_S32 && (int)RA__PJRT_U32 == RA__PJ_U32 && (int)RA__PJRT_F16 == RA__PJ_F16, "types");
_Static_assert((int)RA__PJRT_F32 == RA__PJ_F32 && (int)RA__PJRT_BF16 == RA__PJ_BF16, "types");

/* Tables of one run. Every object in them is destroyed at its end, whatever happened. */
struct run {
    struct ra__pjrt_executable *program;
    const struct ra__pjrt_plugin *plugin;
    int input_count, output_count;
    ra__pj_object **inputs, **outputs;             /* [replicas][count] */
    ra__pj_object **input_events;                  /* as inputs */
    ra__pj_object **done;                          /* [replicas] */
    ra__pj_object ***input_lists, ***output_lists; /* [replicas], into the above */
};

static size_t element_bytes(enum ra__pjrt_type type) {
    return type == RA__PJRT_F16 || type == RA__PJRT_BF16 ? 2 : 4;
}

static ra_status check_array(const struct run *run, const struct ra__pjrt_host_array *x, const char *what, int replica, int i) {
    bool known = x->type == RA__PJRT_F32 || x->type == RA__PJRT_S32 || x->type == RA__PJRT_U32 || x->type == RA__PJRT_F16 ||
                 x->type == RA__PJRT_BF16;
    bool over = false;
    int64_t bytes = (int64_t)element_bytes(x->type);
    if (!known || x->dim_count < 0 || x->dim_count > RA__PJRT_MAX_DIMS)
        return ra__fail(RA_ERR_INVALID, "%s: run: %s %d of replica %d: type %d, %d dimensions", run->plugin->name, what, i, replica,
                        (int)x->type, x->dim_count);
    for (int d = 0; d < x->dim_count; d++) {
        if (x->dims[d] < 0)
            return ra__fail(RA_ERR_INVALID, "%s: run: %s %d of replica %d: dimension %d is %lld", run->plugin->name, what, i, replica, d,
                            (long long)x->dims[d]);
        bytes = ra__mul(bytes, x->dims[d], &over);
    }
    if (over)
        return ra__fail(RA_ERR_OVERFLOW, "%s: run: %s %d of replica %d does not fit in 64 bits", run->plugin->name, what, i, replica);
    if (bytes && !x->data)
        return ra__fail(RA_ERR_INVALID, "%s: run: %s %d of replica %d: NULL", run->plugin->name, what, i, replica);
    return RA_OK;
}

static ra_status check(const struct run *run, const struct ra__pjrt_host_array *inputs, const struct ra__pjrt_host_array *outputs) {
    if (run->input_count < 0 || run->output_count != run->program->outputs)
        return ra__fail(RA_ERR_INVALID, "%s: run: %d inputs and %d outputs; the program has %d outputs", run->plugin->name,
                        run->input_count, run->output_count, run->program->outputs);
    for (int r = 0; r < run->program->replicas; r++) {
        for (int i = 0; i < run->input_count; i++)
            RA__TRY(check_array(run, &inputs[r * run->input_count + i], "input", r, i));
        for (int i = 0; i < run->output_count; i++)
            RA__TRY(check_array(run, &outputs[r * run->output_count + i], "output", r, i));
    }
    return RA_OK;
}

/* ---- tables */

static ra_status make_tables(struct run *run) {
    const size_t replicas = (size_t)run->program->replicas, in = replicas * (size_t)run->input_count,
                 out = replicas * (size_t)run->output_count, count = 2 * in + out + 3 * replicas;
    ra__pj_object **table = ra__alloc_zero(&run->program->client->allocator, count * sizeof *table);
    if (!table)
        return ra__fail(RA_ERR_MEMORY, "%s: run: no memory for tables of %zu buffers", run->plugin->name, count);
    run->inputs = table;
    run->input_events = run->inputs + in;
    run->outputs = run->input_events + in;
    run->done = run->outputs + out;
    run->input_lists = (ra__pj_object ***)(run->done + replicas);
    run->output_lists = run->input_lists + replicas;
    for (size_t r = 0; r < replicas; r++) {
        run->input_lists[r] = run->inputs + r * (size_t)run->input_count;
        run->output_lists[r] = run->outputs + r * (size_t)run->output_count;
    }
    return RA_OK;
}

static void destroy_tables(struct run *run) {
    const int replicas = run->program->replicas;
    if (!run->inputs)
        return;
    for (int i = 0; i < replicas * run->output_count; i++)
        ra__pjrt_destroy(run->plugin, RA__PJ_BUFFER_DESTROY, run->outputs[i]);
    for (int i = 0; i < replicas * run->input_count; i++)
        ra__pjrt_destroy(run->plugin, RA__PJ_BUFFER_DESTROY, run->inputs[i]);
    ra__free(&run->program->client->allocator, run->inputs);
}

/* Waits for all, so that nothing of the run is under way any more; the first failure counts. */
static ra_status await_all(struct run *run, ra__pj_object **events, int count, const char *doing) {
    ra_status first = RA_OK;
    for (int i = 0; i < count; i++) {
        ra__pj_object *event = events[i];
        events[i] = NULL;
        if (first == RA_OK)
            first = ra__pjrt_await(run->plugin, event, doing);
        else if (event)
            ra__pjrt_await_quietly(run->plugin, event);
    }
    return first;
}

/* ---- in */

static ra_status send_one(struct run *run, const struct ra__pjrt_host_array *x, int replica, int i) {
    struct ra__pj_from_host_args args = {.head = RA__PJ_HEAD(ra__pj_from_host_args),
                                         .client = run->program->client->client,
                                         .data = x->data,
                                         .type = (int)x->type,
                                         .dims = x->dims,
                                         .dim_count = (size_t)x->dim_count,
                                         .semantics = RA__PJ_UNTIL_TRANSFERRED,
                                         .device = run->program->devices[replica]};
    RA__TRY(ra__pjrt_call(run->plugin, RA__PJ_CLIENT_BUFFER_FROM_HOST, &args, "copy to a device"));
    run->inputs[replica * run->input_count + i] = args.buffer;
    run->input_events[replica * run->input_count + i] = args.done;
    return RA_OK;
}

static ra_status send_all(struct run *run, const struct ra__pjrt_host_array *inputs) {
    ra_status s = RA_OK;
    for (int r = 0; r < run->program->replicas && s == RA_OK; r++)
        for (int i = 0; i < run->input_count && s == RA_OK; i++)
            s = send_one(run, &inputs[r * run->input_count + i], r, i);
    if (s == RA_OK)
        return await_all(run, run->input_events, run->program->replicas * run->input_count, "copy to a device");
    for (int i = 0; i < run->program->replicas * run->input_count; i++)
        if (run->input_events[i])
            ra__pjrt_await_quietly(run->plugin, run->input_events[i]);
    return s;
}

/* ---- run */

static ra_status execute(struct run *run) {
    struct ra__pjrt_executable *program = run->program;
    struct ra__pj_execute_options options = {.head = RA__PJ_HEAD(ra__pj_execute_options), .launch = ++program->launches};
    struct ra__pj_execute_args args = {.head = RA__PJ_HEAD(ra__pj_execute_args),
                                       .executable = program->loaded,
                                       .options = &options,
                                       .inputs = (ra__pj_object *const *const *)run->input_lists,
                                       .devices = (size_t)program->replicas,
                                       .input_count = (size_t)run->input_count,
                                       .outputs = (ra__pj_object * *const *)run->output_lists,
                                       .done = run->done};
    RA__TRY(ra__pjrt_call(run->plugin, RA__PJ_LOADED_EXECUTE, &args, "run"));
    return await_all(run, run->done, program->replicas, "run");
}

/* ---- out */

static ra_status check_result(const struct run *run, ra__pj_object *buffer, const struct ra__pjrt_host_array *x, int replica, int i) {
    struct ra__pj_number_args type = {.head = RA__PJ_HEAD(ra__pj_number_args), .object = buffer};
    struct ra__pj_dims_args dims = {.head = RA__PJ_HEAD(ra__pj_dims_args), .buffer = buffer};
    RA__TRY(ra__pjrt_call(run->plugin, RA__PJ_BUFFER_TYPE, &type, "type of an output"));
    RA__TRY(ra__pjrt_call(run->plugin, RA__PJ_BUFFER_DIMS, &dims, "shape of an output"));
    if (type.number != (int)x->type)
        return ra__fail(RA_ERR_INVALID, "%s: run: output %d of replica %d has type %d, expected was %d", run->plugin->name, i, replica,
                        type.number, (int)x->type);
    bool equal = dims.count == (size_t)x->dim_count;
    for (size_t d = 0; equal && d < dims.count; d++)
        equal = dims.dims[d] == x->dims[d];
    if (!equal)
        return ra__fail(RA_ERR_INVALID, "%s: run: output %d of replica %d has another shape (%zu dimensions, expected were %d)",
                        run->plugin->name, i, replica, dims.count, x->dim_count);
    return RA_OK;
}

static ra_status fetch_one(struct run *run, const struct ra__pjrt_host_array *x, int replica, int i) {
    ra__pj_object *buffer = run->output_lists[replica][i];
    RA__TRY(check_result(run, buffer, x, replica, i));
    int64_t minor_to_major[RA__PJRT_MAX_DIMS], bytes = (int64_t)element_bytes(x->type);
    for (int d = 0; d < x->dim_count; d++) {
        minor_to_major[d] = x->dim_count - 1 - d;
        bytes *= x->dims[d]; /* has been checked */
    }
    if (bytes == 0)
        return RA_OK;
    struct ra__pj_layout row_major = {.head = RA__PJ_HEAD(ra__pj_layout), .type = RA__PJ_TILED};
    row_major.tiled.head = (struct ra__pj_head){sizeof row_major.tiled, NULL};
    row_major.tiled.minor_to_major = minor_to_major;
    row_major.tiled.count = (size_t)x->dim_count;
    struct ra__pj_to_host_args args = {
        .head = RA__PJ_HEAD(ra__pj_to_host_args), .buffer = buffer, .layout = &row_major, .data = x->data, .bytes = (size_t)bytes};
    RA__TRY(ra__pjrt_call(run->plugin, RA__PJ_BUFFER_TO_HOST, &args, "copy from a device"));
    return ra__pjrt_await(run->plugin, args.done, "copy from a device");
}

static ra_status fetch_all(struct run *run, const struct ra__pjrt_host_array *outputs) {
    for (int r = 0; r < run->program->replicas; r++)
        for (int i = 0; i < run->output_count; i++)
            RA__TRY(fetch_one(run, &outputs[r * run->output_count + i], r, i));
    return RA_OK;
}

ra_status ra__pjrt_run(struct ra__pjrt_executable *program, const struct ra__pjrt_host_array *inputs, int input_count,
                       const struct ra__pjrt_host_array *outputs, int output_count) {
    struct run run = {.program = program, .plugin = &program->client->plugin, .input_count = input_count, .output_count = output_count};
    RA__TRY(check(&run, inputs, outputs));
    RA__TRY(make_tables(&run));
    ra_status s = send_all(&run, inputs);
    if (s == RA_OK)
        s = execute(&run);
    if (s == RA_OK)
        s = fetch_all(&run, outputs);
    destroy_tables(&run);
    return s;
}
