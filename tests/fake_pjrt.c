/* A PJRT plugin for tests: two devices, whose only program gives back its input. What it does wrong is in its file's name: fake_major.so
 * speaks another major version, and so on (`fault`). It counts what it has made and not yet destroyed. */
#define _GNU_SOURCE /* dladdr */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pjrt/abi.h"

#define EXPORT __attribute__((visibility("default")))

struct error {
    int code;
    const char *text;
};

struct buffer {
    int type;
    int64_t dims[8];
    size_t dim_count, bytes;
    char *data;
};

EXPORT int fake_live(void);
EXPORT const struct ra__pj_api *GetPjrtApi(void);

static int live, transfers;

int fake_live(void) { /* errors, events, clients, executables, buffers */
    return live;
}

static int fault(const char *name) {
    Dl_info here;
    return dladdr((void *)&fake_live, &here) && strstr(here.dli_fname, name) != NULL;
}

static void *made(size_t bytes) {
    live++;
    return calloc(1, bytes);
}

static ra__pj_object *error(int code, const char *text) {
    struct error *e = made(sizeof *e);
    *e = (struct error){code, text};
    return e;
}

static void error_destroy(struct ra__pj_object_args *a) {
    live--;
    free(a->object);
}

static void error_message(struct ra__pj_text_args *a) {
    a->text = ((const struct error *)a->object)->text;
    a->length = strlen(a->text);
}

static ra__pj_object *error_code(struct ra__pj_number_args *a) {
    a->number = ((const struct error *)a->object)->code;
    return NULL;
}

static ra__pj_object *destroy(struct ra__pj_object_args *a) {
    live--;
    free(a->object);
    return NULL;
}

static ra__pj_object *initialize(struct ra__pj_object_args *a) {
    (void)a;
    return fault("_init") ? error(9, "not today") : NULL;
}

/* An event that ends in an error begins with 1. */
static ra__pj_object *event_await(struct ra__pj_object_args *a) {
    return *(char *)a->object ? error(RA__PJ_INTERNAL, "replica 1 fell over") : NULL;
}

static ra__pj_object *client_create(struct ra__pj_client_create_args *a) {
    if (fault("_hang"))
        sleep(1000);
    if (fault("_refuse"))
        return error(9, "no such device on this machine");
    if (a->option_count)
        return error(RA__PJ_INVALID_ARGUMENT, "cpu_device_count is not an option");
    a->client = made(1);
    return NULL;
}

static ra__pj_object *platform_name(struct ra__pj_text_args *a) {
    a->text = fault("_abort") || fault("_leave") ? "cpu" : "fake"; /* only programs for "cpu" are compiled in a child first */
    a->length = strlen(a->text);
    return NULL;
}

static ra__pj_object *platform_version(struct ra__pj_text_args *a) {
    a->text = "fake 1\nsecond line";
    a->length = strlen(a->text);
    return NULL;
}

static const int device_numbers[2] = {7, 300};
static ra__pj_object *const devices[2] = {(void *)&device_numbers[0], (void *)&device_numbers[1]};

static ra__pj_object *list_devices(struct ra__pj_list_args *a) {
    a->items = devices;
    a->count = fault("_empty") ? 0 : 2;
    return NULL;
}

static ra__pj_object *description(struct ra__pj_get_args *a) {
    a->got = a->object;
    return NULL;
}

static ra__pj_object *id(struct ra__pj_number_args *a) {
    a->number = *(const int *)a->object;
    return NULL;
}

static ra__pj_object *kind(struct ra__pj_text_args *a) {
    a->text = "imagined, and with a name that is longer than the field which is to hold it";
    a->length = strlen(a->text);
    return NULL;
}

static ra__pj_object *attributes(struct ra__pj_attributes_args *a) {
    static const int64_t coords[3] = {1, 2, 3};
    static struct longer { /* as a newer version may have it */
        struct ra__pj_value value;
        int64_t more[2];
    } values[2];
    values[0] = (struct longer){.value = {.head.size = sizeof values[0], .name = "core", .name_length = 4, .type = RA__PJ_INT}};
    values[1] = (struct longer){.value = {.head.size = sizeof values[1],
                                          .name = "coords",
                                          .name_length = 6,
                                          .type = RA__PJ_INT_LIST,
                                          .is.integers = coords,
                                          .length = 3}};
    a->values = &values[0].value;
    a->count = 2;
    return NULL;
}

static ra__pj_object *memory_stats(struct ra__pj_memory_stats_args *a) {
    a->in_use = 5;
    a->limit = (int64_t)16 << 30;
    a->limit_known = true;
    return NULL;
}

static ra__pj_object *compile(struct ra__pj_compile_args *a) {
    static const char words[] = "F0000 fake.cc:1] Check failed: text != nullptr\n*** trace:\n    @ 0x1234\n";
    if (fault("_abort")) {
        ssize_t written = write(STDERR_FILENO, words, sizeof words - 1);
        (void)written;
        abort();
    }
    if (fault("_leave"))
        _exit(3);
    if (memmem(a->program->code, a->program->code_bytes, "nonsense", 8))
        return error(RA__PJ_INVALID_ARGUMENT, "this is nonsense");
    a->executable = made(1);
    *(char *)a->executable = a->options[14]; /* the number of replicas, see test_pjrt_client.c */
    return NULL;
}

static ra__pj_object *loaded_devices(struct ra__pj_list_args *a) {
    a->items = devices;
    a->count = (size_t) * (char *)a->object;
    return NULL;
}

static ra__pj_object *executable(struct ra__pj_get_args *a) {
    a->got = made(1);
    return NULL;
}

static ra__pj_object *outputs(struct ra__pj_size_args *a) {
    a->number = 1;
    return NULL;
}

static ra__pj_object *from_host(struct ra__pj_from_host_args *a) {
    if (fault("_send") && ++transfers == 3)
        return error(RA__PJ_RESOURCE_EXHAUSTED, "the device is full");
    struct buffer *b = made(sizeof *b);
    b->type = a->type;
    b->dim_count = a->dim_count;
    b->bytes = a->type == RA__PJ_F32 || a->type == RA__PJ_S32 ? 4 : 2;
    for (size_t d = 0; d < a->dim_count; d++)
        b->bytes *= (size_t)(b->dims[d] = a->dims[d]);
    b->data = malloc(b->bytes + 1);
    memcpy(b->data, a->data, b->bytes);
    a->buffer = b;
    a->done = made(1);
    return NULL;
}

static struct buffer *copy(const struct buffer *from) {
    struct buffer *b = made(sizeof *b);
    *b = *from;
    b->data = malloc(b->bytes + 1);
    memcpy(b->data, from->data, b->bytes);
    return b;
}

static ra__pj_object *execute(struct ra__pj_execute_args *a) {
    if (fault("_execute"))
        return error(RA__PJ_INTERNAL, "no execution today");
    for (size_t r = 0; r < a->devices; r++) {
        a->outputs[r][0] = copy(a->inputs[r][0]);
        a->done[r] = made(1);
        *(char *)a->done[r] = fault("_await") && r == 1;
    }
    return NULL;
}

static ra__pj_object *buffer_type(struct ra__pj_number_args *a) {
    a->number = ((const struct buffer *)a->object)->type;
    return NULL;
}

static ra__pj_object *buffer_dims(struct ra__pj_dims_args *a) {
    a->dims = ((struct buffer *)a->buffer)->dims;
    a->count = ((struct buffer *)a->buffer)->dim_count;
    return NULL;
}

static ra__pj_object *buffer_destroy(struct ra__pj_object_args *a) {
    free(((struct buffer *)a->object)->data);
    return destroy(a);
}

static ra__pj_object *to_host(struct ra__pj_to_host_args *a) {
    const struct buffer *b = a->buffer;
    if (a->bytes < b->bytes)
        return error(RA__PJ_INVALID_ARGUMENT, "too short");
    memcpy(a->data, b->data, b->bytes);
    a->done = made(1);
    return NULL;
}

typedef void slot_function(void);

const struct ra__pj_api *GetPjrtApi(void) {
    static struct {
        struct ra__pj_head head;
        struct ra__pj_version version;
        slot_function *slot[RA__PJ_REQUIRED];
    } api;
    api.head.size = sizeof api;
    api.version = (struct ra__pj_version){{sizeof api.version, NULL}, fault("_major") ? 1 : 0, 77};
    slot_function **s = api.slot;
    s[RA__PJ_ERROR_DESTROY] = (slot_function *)error_destroy;
    s[RA__PJ_ERROR_MESSAGE] = (slot_function *)error_message;
    s[RA__PJ_ERROR_CODE] = (slot_function *)error_code;
    s[RA__PJ_PLUGIN_INITIALIZE] = (slot_function *)initialize;
    s[RA__PJ_EVENT_DESTROY] = s[RA__PJ_CLIENT_DESTROY] = s[RA__PJ_EXECUTABLE_DESTROY] = s[RA__PJ_LOADED_DESTROY] = (slot_function *)destroy;
    s[RA__PJ_EVENT_AWAIT] = (slot_function *)event_await;
    s[RA__PJ_CLIENT_CREATE] = (slot_function *)client_create;
    s[RA__PJ_CLIENT_PLATFORM_NAME] = (slot_function *)platform_name;
    s[RA__PJ_CLIENT_PLATFORM_VERSION] = (slot_function *)platform_version;
    s[RA__PJ_CLIENT_ADDRESSABLE_DEVICES] = (slot_function *)list_devices;
    s[RA__PJ_LOADED_DEVICES] = (slot_function *)loaded_devices;
    s[RA__PJ_CLIENT_COMPILE] = fault("_without") ? NULL : (slot_function *)compile;
    s[RA__PJ_CLIENT_BUFFER_FROM_HOST] = (slot_function *)from_host;
    s[RA__PJ_DESCRIPTION_ID] = (slot_function *)id;
    s[RA__PJ_DESCRIPTION_ATTRIBUTES] = (slot_function *)attributes;
    s[RA__PJ_DESCRIPTION_KIND] = (slot_function *)kind;
    s[RA__PJ_DEVICE_DESCRIPTION] = (slot_function *)description;
    s[RA__PJ_DEVICE_MEMORY_STATS] = (slot_function *)memory_stats;
    s[RA__PJ_EXECUTABLE_OUTPUTS] = (slot_function *)outputs;
    s[RA__PJ_LOADED_EXECUTABLE] = (slot_function *)executable;
    s[RA__PJ_LOADED_EXECUTE] = (slot_function *)execute;
    s[RA__PJ_BUFFER_DESTROY] = (slot_function *)buffer_destroy;
    s[RA__PJ_BUFFER_TYPE] = (slot_function *)buffer_type;
    s[RA__PJ_BUFFER_DIMS] = (slot_function *)buffer_dims;
    s[RA__PJ_BUFFER_TO_HOST] = (slot_function *)to_host;
    if (fault("_short"))
        api.head.size = offsetof(struct ra__pj_api, slot) + 20 * sizeof(slot_function *);
    if (fault("_tiny"))
        api.head.size = 16;
    return fault("_null") ? NULL : (const struct ra__pj_api *)&api;
}
