/* PJRT plugins as JSON, and that as text. */
#include "plugins.h"

#include <stdio.h>
#include <string.h>

static json_t *number_or_null(int64_t x) {
    return x < 0 ? json_null() : json_integer(x);
}

static json_t *device_json(const ra_pjrt_device *d) {
    json_t *coords = json_array();
    for (int i = 0; i < d->coord_count; i++)
        json_array_append_new(coords, json_integer(d->coords[i]));
    return json_pack("{s:i, s:s, s:o, s:o, s:o}", "id", d->id, "kind", d->kind, "coords", coords, "memory_bytes",
                     number_or_null(d->memory_bytes), "memory_used", number_or_null(d->memory_used));
}

static json_t *plugin_json(const ra_pjrt_plugin *p) {
    json_t *devices = json_array(), *api = p->api_major < 0 ? json_null() : json_sprintf("%d.%d", p->api_major, p->api_minor);
    for (int i = 0; i < p->device_count; i++)
        json_array_append_new(devices, device_json(&p->devices[i]));
    /* Texts are a plugin's, and a path is anything: what is not UTF-8 is null. */
    return json_pack("{s:o?, s:o?, s:b, s:s, s:o?, s:o?, s:o?, s:o?, s:o?}", "path", json_string(p->path), "found_by",
                     json_string(p->found_by), "usable", p->status == RA_OK, "status", ra_status_name(p->status), "why",
                     json_string(p->why), "api", api, "platform", json_string(p->platform), "platform_version",
                     json_string(p->platform_version), "devices", devices);
}

json_t *plugins_json(failure *f) {
    ra_pjrt_list *list = NULL;
    ra_status s = ra_pjrt_list_create(NULL, &list);
    if (s != RA_OK) {
        fail_library(f, s, "looking for PJRT plugins");
        return NULL;
    }
    json_t *plugins = json_array();
    for (int i = 0; i < ra_pjrt_list_size(list); i++)
        json_array_append_new(plugins, plugin_json(ra_pjrt_list_get(list, i)));
    ra_pjrt_list_destroy(list);
    if (!plugins)
        fail_memory(f, 0, "the list of plugins");
    return plugins;
}

static const char *text(const json_t *object, const char *key) {
    const char *x = json_string_value(json_object_get(object, key));
    return x ? x : "?";
}

/* Of a text of the plugin's only the first line, without control characters. */
static void print_line(const char *x) {
    for (; *x && *x != '\n'; x++)
        putchar((unsigned char)*x < 32 || *x == 127 ? '?' : *x);
}

static void print_devices(const json_t *devices) {
    const json_t *first = json_array_get(devices, 0), *memory = json_object_get(first, "memory_bytes");
    printf(", %zu devices (", json_array_size(devices));
    print_line(text(first, "kind"));
    if (json_is_integer(memory))
        printf(", %.1f GiB each", (double)json_integer_value(memory) / (double)(1 << 30));
    printf(")");
}

void plugins_print(const json_t *plugins) {
    size_t i;
    const json_t *p;
    json_array_foreach(plugins, i, p) {
        printf("pjrt: ");
        print_line(text(p, "path"));
        if (json_is_true(json_object_get(p, "usable"))) {
            printf(": PJRT %s, ", text(p, "api"));
            print_line(text(p, "platform"));
            print_devices(json_object_get(p, "devices"));
        } else {
            printf(": cannot be used: ");
            print_line(text(p, "why"));
        }
        putchar('\n');
    }
}
