/* Opening a plugin, and its devices. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "pjrt/internal.h"

#define DEFAULT_TIMEOUT_S 120.0

/* ---- devices */

static void find_coords(const struct ra__pjrt_plugin *plugin, ra__pj_object *description, ra_pjrt_device *device) {
    struct ra__pj_attributes_args args = {.head = RA__PJ_HEAD(ra__pj_attributes_args), .object = description};
    if (ra__pjrt_call(plugin, RA__PJ_DESCRIPTION_ATTRIBUTES, &args, "attributes of a device") != RA_OK)
        return;
    const char *at = (const char *)args.values;
    for (size_t i = 0; i < args.count; i++) {
        const struct ra__pj_value *value = (const struct ra__pj_value *)at;
        at += value->head.size ? value->head.size : sizeof *value; /* a newer plugin's may be longer than ours */
        if (value->type != RA__PJ_INT_LIST || value->name_length != 6 || memcmp(value->name, "coords", 6) != 0)
            continue;
        for (size_t c = 0; c < value->length && c < 3; c++)
            device->coords[device->coord_count++] = (int)value->is.integers[c];
    }
}

static void find_memory(const struct ra__pjrt_plugin *plugin, ra__pj_object *object, ra_pjrt_device *device) {
    struct ra__pj_memory_stats_args args = {.head = RA__PJ_HEAD(ra__pj_memory_stats_args), .device = object};
    device->memory_bytes = device->memory_used = -1;
    if (ra__pjrt_call(plugin, RA__PJ_DEVICE_MEMORY_STATS, &args, "memory of a device") != RA_OK)
        return;
    device->memory_used = args.in_use;
    if (args.limit_known)
        device->memory_bytes = args.limit;
}

static ra_status describe(const struct ra__pjrt_plugin *plugin, ra__pj_object *object, ra_pjrt_device *device) {
    struct ra__pj_get_args get = {.head = RA__PJ_HEAD(ra__pj_get_args), .object = object};
    RA__TRY(ra__pjrt_call(plugin, RA__PJ_DEVICE_DESCRIPTION, &get, "describe a device"));
    struct ra__pj_number_args id = {.head = RA__PJ_HEAD(ra__pj_number_args), .object = get.got};
    struct ra__pj_text_args kind = {.head = RA__PJ_HEAD(ra__pj_text_args), .object = get.got};
    RA__TRY(ra__pjrt_call(plugin, RA__PJ_DESCRIPTION_ID, &id, "id of a device"));
    RA__TRY(ra__pjrt_call(plugin, RA__PJ_DESCRIPTION_KIND, &kind, "kind of a device"));
    device->id = id.number;
    ra__pjrt_copy_text(device->kind, sizeof device->kind, kind.text, kind.length);
    find_coords(plugin, get.got, device);
    find_memory(plugin, object, device);
    return RA_OK;
}

static ra_status list_devices(struct ra__pjrt *p) {
    struct ra__pj_list_args list = {.head = RA__PJ_HEAD(ra__pj_list_args), .object = p->client};
    RA__TRY(ra__pjrt_call(&p->plugin, RA__PJ_CLIENT_ADDRESSABLE_DEVICES, &list, "list the devices"));
    if (list.count == 0)
        return ra__fail(RA_ERR_UNSUPPORTED, "%s: open: it has no devices", p->plugin.name);
    if (list.count > RA__PJRT_MOST_DEVICES)
        return ra__fail(RA_ERR_UNSUPPORTED, "%s: open: %zu devices; at most %d are supported", p->plugin.name, list.count,
                        RA__PJRT_MOST_DEVICES);
    p->devices = ra__alloc_zero(&p->allocator, list.count * sizeof *p->devices);
    if (!p->devices)
        return ra__fail(RA_ERR_MEMORY, "%s: open: no memory for %zu devices", p->plugin.name, list.count);
    p->device_count = (int)list.count;
    for (int i = 0; i < p->device_count; i++)
        RA__TRY(describe(&p->plugin, list.items[i], &p->devices[i]));
    return RA_OK;
}

/* ---- client */

static ra_status create(struct ra__pjrt *p, bool with_devices) {
    struct ra__pj_value count = {.head = RA__PJ_HEAD(ra__pj_value),
                                 .name = "cpu_device_count",
                                 .name_length = strlen("cpu_device_count"),
                                 .type = RA__PJ_INT,
                                 .is.integer = p->options.devices,
                                 .length = 1};
    struct ra__pj_client_create_args args = {
        .head = RA__PJ_HEAD(ra__pj_client_create_args), .options = &count, .option_count = with_devices};
    RA__TRY(ra__pjrt_call(&p->plugin, RA__PJ_CLIENT_CREATE, &args, "open"));
    p->client = args.client;
    return RA_OK;
}

static ra_status text_of(struct ra__pjrt *p, enum ra__pj_slot slot, char *text, size_t n, const char *doing) {
    struct ra__pj_text_args args = {.head = RA__PJ_HEAD(ra__pj_text_args), .object = p->client};
    RA__TRY(ra__pjrt_call(&p->plugin, slot, &args, doing));
    ra__pjrt_copy_text(text, n, args.text, args.length);
    return RA_OK;
}

static ra_status open_client(struct ra__pjrt *p) {
    RA__TRY(ra__pjrt_initialize(&p->plugin));
    /* A plugin that is not of a processor may refuse the option, which means nothing to it. */
    ra_status s = create(p, p->options.devices > 0);
    if (s == RA_ERR_INVALID && p->options.devices > 0)
        s = create(p, false);
    if (s != RA_OK)
        return s;
    RA__TRY(text_of(p, RA__PJ_CLIENT_PLATFORM_NAME, p->platform, sizeof p->platform, "name of the platform"));
    RA__TRY(text_of(p, RA__PJ_CLIENT_PLATFORM_VERSION, p->version, sizeof p->version, "version of the platform"));
    return list_devices(p);
}

static ra_status set_cache(struct ra__pjrt *p, const char *folder) {
    if (!folder)
        ra__pjrt_cache_folder(p->cache, sizeof p->cache);
    else if (strlen(folder) >= sizeof p->cache)
        return ra__fail(RA_ERR_INVALID, "cache: a path of %zu bytes", strlen(folder));
    else
        strcpy(p->cache, folder);
    return RA_OK;
}

ra_status ra__pjrt_open(const char *path, const struct ra__pjrt_options *options, struct ra__pjrt **p) {
    const struct ra__pjrt_options none = {0}, *o = options ? options : &none;
    if (!path || !*path || !p)
        return ra__fail(RA_ERR_INVALID, "%s: NULL or empty", p ? "path" : "p");
    if (o->devices < 0 || o->devices > RA__PJRT_MOST_DEVICES || !(o->timeout_s >= 0))
        return ra__fail(RA_ERR_INVALID, "devices: %d, timeout_s: %g", o->devices, o->timeout_s);
    ra_allocator allocator = ra__allocator_or_default(o->allocator);
    struct ra__pjrt *client = ra__alloc_zero(&allocator, sizeof *client);
    if (!client)
        return ra__fail(RA_ERR_MEMORY, "no memory for a client (%zu bytes)", sizeof *client);
    client->allocator = allocator;
    client->options = *o;
    client->options.timeout_s = o->timeout_s > 0 ? o->timeout_s : DEFAULT_TIMEOUT_S;
    ra_status s = set_cache(client, o->cache);
    if (s == RA_OK)
        s = ra__pjrt_load(path, &client->plugin);
    if (s == RA_OK)
        s = open_client(client);
    if (s != RA_OK) {
        ra__pjrt_close(client);
        return s;
    }
    *p = client;
    return RA_OK;
}

void ra__pjrt_close(struct ra__pjrt *p) {
    if (!p)
        return;
    ra_allocator allocator = p->allocator;
    if (p->client)
        ra__pjrt_destroy(&p->plugin, RA__PJ_CLIENT_DESTROY, p->client);
    ra__free(&allocator, p->devices);
    ra__free(&allocator, p);
}

int ra__pjrt_device_count(const struct ra__pjrt *p) {
    return p->device_count;
}

const ra_pjrt_device *ra__pjrt_device(const struct ra__pjrt *p, int i) {
    return i >= 0 && i < p->device_count ? &p->devices[i] : NULL;
}

const char *ra__pjrt_platform(const struct ra__pjrt *p) {
    return p->platform;
}
