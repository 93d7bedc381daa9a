/* A plugin as a loaded library: entry point, version, table, and calls of it that turn its errors into ours. */
#define _GNU_SOURCE /* dladdr */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "pjrt/internal.h"

void ra__pjrt_copy_text(char *to, size_t n, const char *text, size_t length) {
    size_t count = length < n - 1 ? length : n - 1;
    if (count)
        memcpy(to, text, count);
    to[count] = 0;
}

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static ra_status map_library(const char *path, struct ra__pjrt_plugin *plugin, void **entry) {
    if (strchr(path, '/')) {
        if (access(path, R_OK) != 0)
            return ra__fail(RA_ERR_UNSUPPORTED, "%s: load: there is no such file, or it may not be read", plugin->name);
        RA__TRY(ra__pjrt_check_elf(path, plugin->name));
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library)
        return ra__fail(RA_ERR_UNSUPPORTED, "%s: load: %s", plugin->name, dlerror());
    *entry = dlsym(library, RA__PJ_ENTRY_POINT);
    dlclose(library); /* NODELETE: it stays */
    if (!*entry)
        return ra__fail(RA_ERR_UNSUPPORTED, "%s: load: not a PJRT plugin, it has no " RA__PJ_ENTRY_POINT, plugin->name);
    return RA_OK;
}

static size_t slot_end(int slot) {
    return offsetof(struct ra__pj_api, slot) + ((size_t)slot + 1) * sizeof(void (*)(void));
}

static ra_status check_table(const struct ra__pjrt_plugin *plugin) {
    const struct ra__pj_api *api = plugin->api;
    if (!api)
        return ra__fail(RA_ERR_UNSUPPORTED, "%s: load: " RA__PJ_ENTRY_POINT " returned nothing", plugin->name);
    if (api->head.size < offsetof(struct ra__pj_api, slot))
        return ra__fail(RA_ERR_UNSUPPORTED, "%s: load: a table of %zu bytes does not tell its version", plugin->name, api->head.size);
    if (api->version.major != RA__PJ_MAJOR)
        return ra__fail(RA_ERR_UNSUPPORTED, "%s: load: it speaks PJRT %d.%d, this library major version %d", plugin->name,
                        api->version.major, api->version.minor, RA__PJ_MAJOR);
    if (api->head.size < slot_end(RA__PJ_REQUIRED - 1))
        return ra__fail(RA_ERR_UNSUPPORTED, "%s: load: its table has %zu bytes, running a program takes %zu (PJRT %d.%d)", plugin->name,
                        api->head.size, slot_end(RA__PJ_REQUIRED - 1), api->version.major, api->version.minor);
    return RA_OK;
}

ra_status ra__pjrt_load(const char *path, struct ra__pjrt_plugin *plugin) {
    *plugin = (struct ra__pjrt_plugin){0};
    ra__pjrt_copy_text(plugin->path, sizeof plugin->path, path, strlen(path));
    ra__pjrt_copy_text(plugin->name, sizeof plugin->name, last_part(path), strlen(last_part(path)));
    void *entry = NULL;
    RA__TRY(map_library(path, plugin, &entry));
    Dl_info where;
    if (dladdr(entry, &where) && where.dli_fname)
        ra__pjrt_copy_text(plugin->path, sizeof plugin->path, where.dli_fname, strlen(where.dli_fname));
    const struct ra__pj_api *(*get)(void);
    *(void **)&get = entry;
    plugin->api = get();
    return check_table(plugin);
}

bool ra__pjrt_has(const struct ra__pjrt_plugin *plugin, enum ra__pj_slot slot) {
    return plugin->api->head.size >= slot_end((int)slot) && plugin->api->slot[slot];
}

static ra__pj_function *function_of(const struct ra__pjrt_plugin *plugin, enum ra__pj_slot slot) {
    return ra__pjrt_has(plugin, slot) ? (ra__pj_function *)plugin->api->slot[slot] : NULL;
}

static ra_status status_of_code(int code) {
    switch (code) {
    case RA__PJ_INVALID_ARGUMENT:
        return RA_ERR_INVALID;
    case RA__PJ_DEADLINE_EXCEEDED:
        return RA_ERR_TIMEOUT;
    case RA__PJ_RESOURCE_EXHAUSTED:
        return RA_ERR_MEMORY;
    case RA__PJ_INTERNAL:
        return RA_ERR_INTERNAL;
    default: /* not found, unavailable, not implemented, a precondition: it cannot be done here */
        return RA_ERR_UNSUPPORTED;
    }
}

/* Records the plugin's error and destroys it. Error_Message and Error_Destroy return nothing, so they are called as what they are. */
static ra_status take_error(const struct ra__pjrt_plugin *plugin, ra__pj_object *error, const char *doing) {
    struct ra__pj_text_args message = {.head = RA__PJ_HEAD(ra__pj_text_args), .object = error};
    struct ra__pj_number_args code = {.head = RA__PJ_HEAD(ra__pj_number_args), .object = error};
    if (ra__pjrt_has(plugin, RA__PJ_ERROR_MESSAGE))
        ((void (*)(void *))plugin->api->slot[RA__PJ_ERROR_MESSAGE])(&message);
    ra__pj_function *get_code = function_of(plugin, RA__PJ_ERROR_CODE);
    ra__pj_object *second = get_code ? get_code(&code) : NULL;
    int length = message.length < 400 ? (int)message.length : 400;
    ra_status s = ra__fail(status_of_code(code.number), "%s: %s: %.*s", plugin->name, doing, message.text ? length : 0,
                           message.text ? message.text : "");
    ra__pjrt_destroy(plugin, RA__PJ_ERROR_DESTROY, error);
    ra__pjrt_destroy(plugin, RA__PJ_ERROR_DESTROY, second);
    return s;
}

ra_status ra__pjrt_call(const struct ra__pjrt_plugin *plugin, enum ra__pj_slot slot, void *args, const char *doing) {
    ra__pj_function *function = function_of(plugin, slot);
    if (!function)
        return ra__fail(RA_ERR_UNSUPPORTED, "%s: %s: the plugin (PJRT %d.%d) has no function for it", plugin->name, doing,
                        plugin->api->version.major, plugin->api->version.minor);
    ra__pj_object *error = function(args);
    return error ? take_error(plugin, error, doing) : RA_OK;
}

void ra__pjrt_destroy(const struct ra__pjrt_plugin *plugin, enum ra__pj_slot slot, ra__pj_object *object) {
    struct ra__pj_object_args args = {.head = RA__PJ_HEAD(ra__pj_object_args), .object = object};
    if (!object || !ra__pjrt_has(plugin, slot))
        return;
    if (slot == RA__PJ_ERROR_DESTROY) {
        ((void (*)(void *))plugin->api->slot[slot])(&args);
        return;
    }
    ra__pj_object *error = function_of(plugin, slot)(&args);
    ra__pjrt_destroy(plugin, RA__PJ_ERROR_DESTROY, error);
}

ra_status ra__pjrt_await(const struct ra__pjrt_plugin *plugin, ra__pj_object *event, const char *doing) {
    struct ra__pj_object_args args = {.head = RA__PJ_HEAD(ra__pj_object_args), .object = event};
    if (!event)
        return RA_OK;
    ra_status s = ra__pjrt_call(plugin, RA__PJ_EVENT_AWAIT, &args, doing);
    ra__pjrt_destroy(plugin, RA__PJ_EVENT_DESTROY, event);
    return s;
}

void ra__pjrt_await_quietly(const struct ra__pjrt_plugin *plugin, ra__pj_object *event) {
    struct ra__pj_object_args args = {.head = RA__PJ_HEAD(ra__pj_object_args), .object = event};
    ra__pj_function *await = function_of(plugin, RA__PJ_EVENT_AWAIT);
    ra__pj_object *error = await ? await(&args) : NULL;
    ra__pjrt_destroy(plugin, RA__PJ_ERROR_DESTROY, error);
    ra__pjrt_destroy(plugin, RA__PJ_EVENT_DESTROY, event);
}

ra_status ra__pjrt_initialize(const struct ra__pjrt_plugin *plugin) {
    struct ra__pj_object_args nothing = {.head = {sizeof(struct ra__pj_head), NULL}};
    return ra__pjrt_call(plugin, RA__PJ_PLUGIN_INITIALIZE, &nothing, "initialise");
}
