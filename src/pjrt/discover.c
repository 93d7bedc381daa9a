/* Which plugins there are, and whether each can be used. */
#define _XOPEN_SOURCE 700 /* realpath */
#include <glob.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "base/status.h"
#include "pjrt/internal.h"

#define DEFAULT_TIMEOUT_S 30.0
#define PYTHON_TIMEOUT_S  20.0

enum { MOST_PLUGINS = 64 };

struct found {
    char path[4096], found_by[4096], platform[64], version[256], why[512];
    ra_pjrt_device *devices;
    ra_pjrt_plugin plugin; /* the public view of it */
};

struct ra_pjrt_list {
    ra_allocator allocator;
    double timeout_s;
    int count;
    struct found *found[MOST_PLUGINS];
};

/* ---- candidates */

static bool is_known(const ra_pjrt_list *list, const char *path) {
    for (int i = 0; i < list->count; i++)
        if (strcmp(list->found[i]->path, path) == 0)
            return true;
    return false;
}

/* A file under two names, links followed, is one plugin. What is beyond the list's room is left out. */
static ra_status add(ra_pjrt_list *list, const char *name, const char *found_by) {
    char real[PATH_MAX];
    const char *path = strchr(name, '/') && realpath(name, real) ? real : name;
    if (is_known(list, path) || list->count == MOST_PLUGINS || strlen(path) >= sizeof list->found[0]->path)
        return RA_OK;
    struct found *f = ra__alloc_zero(&list->allocator, sizeof *f);
    if (!f)
        return ra__fail(RA_ERR_MEMORY, "no memory for a plugin's description (%zu bytes)", sizeof *f);
    strcpy(f->path, path);
    ra__pjrt_copy_text(f->found_by, sizeof f->found_by, found_by, strlen(found_by));
    list->found[list->count++] = f;
    return RA_OK;
}

static ra_status add_package_folder(ra_pjrt_list *list, const char *folder) {
    static const char *const patterns[] = {"libtpu/libtpu.so", "jax_plugins/*/*.so", "xla_plugins/*/*.so", "*/pjrt_c_api*.so"};
    ra_status s = RA_OK;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns && s == RA_OK; i++) {
        char pattern[4200];
        glob_t matches;
        /* A folder with characters that glob knows has none of our packages. */
        if (strpbrk(folder, "*?[\\") || snprintf(pattern, sizeof pattern, "%s/%s", folder, patterns[i]) >= (int)sizeof pattern ||
            glob(pattern, 0, NULL, &matches) != 0)
            continue;
        for (size_t m = 0; m < matches.gl_pathc && s == RA_OK; m++)
            s = add(list, matches.gl_pathv[m], folder);
        globfree(&matches);
    }
    return s;
}

/* The interpreter knows best where its packages are: virtual environments, user folders, PYTHONPATH. */
static ra_status add_python(ra_pjrt_list *list) {
    static const char *const ask[] = {"python3", "-c", "import sys; print('\\n'.join(sys.path))", NULL};
    char *paths = ra__alloc(&list->allocator, 65536);
    if (!paths)
        return ra__fail(RA_ERR_MEMORY, "no memory for Python's folders (65536 bytes)");
    ra_status s = RA_OK;
    if (ra__pjrt_output_of(ask, PYTHON_TIMEOUT_S, paths, 65536))
        for (char *line = paths, *next; line && s == RA_OK; line = next) {
            next = strchr(line, '\n');
            if (next)
                *next++ = 0;
            if (*line == '/')
                s = add_package_folder(list, line);
        }
    ra__free(&list->allocator, paths);
    return s;
}

static ra_status find_all(ra_pjrt_list *list, const ra_pjrt_list_options *o) {
    const char *named = ra__environment("RA_PJRT_PLUGIN");
    if (named)
        RA__TRY(add(list, named, "RA_PJRT_PLUGIN"));
    RA__TRY(add(list, "libtpu.so", "dynamic linker"));
    if (!o->folders)
        return add_python(list);
    for (int i = 0; i < o->folder_count; i++)
        RA__TRY(add_package_folder(list, o->folders[i]));
    return RA_OK;
}

/* ---- probing */

static ra_status probe(const ra_pjrt_list *list, struct found *f, struct ra__pjrt_request *request, struct ra__pjrt_reply *reply) {
    *request = (struct ra__pjrt_request){.work = RA__PJRT_PROBE};
    strcpy(request->path, f->path);
    ra_status s = ra__pjrt_ask_child(request, NULL, NULL, list->timeout_s, reply, &list->allocator, &f->devices);
    if (s == RA_ERR_MEMORY)
        return s;
    if (s == RA_OK && reply->status != RA_OK)
        s = ra__fail((ra_status)reply->status, "%s", reply->why);
    if (s != RA_OK)
        ra__pjrt_copy_text(f->why, sizeof f->why, ra_last_error(), strlen(ra_last_error()));
    strcpy(f->platform, reply->platform);
    strcpy(f->version, reply->version);
    const bool knows_version = reply->major || reply->minor;
    f->plugin = (ra_pjrt_plugin){.path = f->path,
                                 .found_by = f->found_by,
                                 .status = s,
                                 .why = f->why,
                                 .api_major = knows_version ? reply->major : -1,
                                 .api_minor = knows_version ? reply->minor : -1,
                                 .platform = f->platform,
                                 .platform_version = f->version,
                                 .device_count = reply->device_count,
                                 .devices = f->devices};
    return RA_OK;
}

static ra_status probe_all(ra_pjrt_list *list) {
    struct ra__pjrt_request *request = ra__alloc(&list->allocator, sizeof *request);
    struct ra__pjrt_reply *reply = ra__alloc(&list->allocator, sizeof *reply);
    ra_status s = request && reply ? RA_OK : ra__fail(RA_ERR_MEMORY, "no memory for a request (%zu bytes)", sizeof *request);
    for (int i = 0; i < list->count && s == RA_OK; i++)
        s = probe(list, list->found[i], request, reply);
    ra__free(&list->allocator, request);
    ra__free(&list->allocator, reply);
    return s;
}

/* ---- the public list */

static ra_status check_options(const ra_pjrt_list_options *o) {
    if (!(o->timeout_s >= 0 && isfinite(o->timeout_s)))
        return ra__fail(RA_ERR_INVALID, "timeout_s: %g: must be a number of seconds, 0 or more", o->timeout_s);
    if (o->folder_count < 0 || (o->folder_count > 0 && !o->folders))
        return ra__fail(RA_ERR_INVALID, "folders: %d of them at %s", o->folder_count, o->folders ? "an address" : "NULL");
    for (int i = 0; i < o->folder_count; i++)
        if (!o->folders[i])
            return ra__fail(RA_ERR_INVALID, "folders: number %d is NULL", i);
    if (o->allocator && (!o->allocator->alloc || !o->allocator->free))
        return ra__fail(RA_ERR_INVALID, "allocator: alloc and free must be set");
    return RA_OK;
}

ra_status ra_pjrt_list_create(const ra_pjrt_list_options *options, ra_pjrt_list **list) {
    const ra_pjrt_list_options none = {0}, *o = options ? options : &none;
    if (!list)
        return ra__fail(RA_ERR_INVALID, "list: NULL");
    RA__TRY(check_options(o));
    ra_allocator allocator = ra__allocator_or_default(o->allocator);
    ra_pjrt_list *made = ra__alloc_zero(&allocator, sizeof *made);
    if (!made)
        return ra__fail(RA_ERR_MEMORY, "no memory for a list of plugins (%zu bytes)", sizeof *made);
    made->allocator = allocator;
    made->timeout_s = o->timeout_s > 0 ? o->timeout_s : DEFAULT_TIMEOUT_S;
    ra_status s = find_all(made, o);
    if (s == RA_OK)
        s = probe_all(made);
    if (s == RA_OK)
        *list = made;
    else
        ra_pjrt_list_destroy(made);
    return s;
}

void ra_pjrt_list_destroy(ra_pjrt_list *list) {
    if (!list)
        return;
    ra_allocator allocator = list->allocator;
    for (int i = 0; i < list->count; i++) {
        ra__free(&allocator, list->found[i]->devices);
        ra__free(&allocator, list->found[i]);
    }
    ra__free(&allocator, list);
}

int ra_pjrt_list_size(const ra_pjrt_list *list) {
    return list ? list->count : 0;
}

const ra_pjrt_plugin *ra_pjrt_list_get(const ra_pjrt_list *list, int i) {
    return list && i >= 0 && i < list->count ? &list->found[i]->plugin : NULL;
}
