/* A program: out of the cache, or compiled, in a child process first where a plugin allows two. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "base/status.h"
#include "pjrt/internal.h"

/* ---- what plugins are known to abort on is refused before they see it */

static bool has_device(const struct ra__pjrt *p, int id) {
    for (int i = 0; i < p->device_count; i++)
        if (p->devices[i].id == id)
            return true;
    return false;
}

static ra_status check_order(const struct ra__pjrt *p, int replicas, const int *order) {
    for (int r = 0; r < replicas; r++) {
        if (!has_device(p, order[r]))
            return ra__fail(RA_ERR_INVALID, "%s: compile: replica %d is to run on device %d, which does not exist", p->plugin.name, r,
                            order[r]);
        for (int earlier = 0; earlier < r; earlier++)
            if (order[earlier] == order[r])
                return ra__fail(RA_ERR_INVALID, "%s: compile: replicas %d and %d are both to run on device %d", p->plugin.name, earlier, r,
                                order[r]);
    }
    return RA_OK;
}

static ra_status check(const struct ra__pjrt *p, const char *text, size_t bytes, int replicas, const int *order) {
    if (!text || bytes == 0)
        return ra__fail(RA_ERR_INVALID, "%s: compile: the program is empty", p->plugin.name);
    if (replicas < 1 || replicas > p->device_count)
        return ra__fail(RA_ERR_INVALID, "%s: compile: %d replicas on %d devices", p->plugin.name, replicas, p->device_count);
    return order ? check_order(p, replicas, order) : RA_OK;
}

/* ---- key */

/* Code for one processor may not run on another that shares the folder: what this one can do is part of the key. */
static void add_processor(struct ra__pjrt_key *key) {
    char line[8192];
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "flags", 5) == 0 || strncmp(line, "Features", 8) == 0) {
            ra__pjrt_key_add(key, line, strlen(line));
            break;
        }
    if (file)
        fclose(file);
}

static void add_text(struct ra__pjrt_key *key, const char *text) {
    ra__pjrt_key_add(key, text, strlen(text));
}

/* Not every plugin gives a version that changes with its code, so the file itself counts, too. */
static void add_plugin(struct ra__pjrt_key *key, const struct ra__pjrt *p) {
    struct stat status;
    int64_t numbers[5] = {p->plugin.api->version.major, p->plugin.api->version.minor};
    if (stat(p->plugin.path, &status) == 0) {
        numbers[2] = status.st_size;
        numbers[3] = status.st_mtim.tv_sec;
        numbers[4] = status.st_mtim.tv_nsec;
    }
    ra__pjrt_key_add(key, numbers, sizeof numbers);
    add_text(key, p->plugin.path);
    add_text(key, p->platform);
    add_text(key, p->version);
    for (int i = 0; i < p->device_count; i++) {
        int place[5] = {p->devices[i].id, p->devices[i].coord_count, p->devices[i].coords[0], p->devices[i].coords[1],
                        p->devices[i].coords[2]};
        add_text(key, p->devices[i].kind);
        ra__pjrt_key_add(key, place, sizeof place);
    }
}

static struct ra__pjrt_key key_of(const struct ra__pjrt *p, const char *text, size_t bytes, const struct ra__pjrt_bytes *options) {
    struct ra__pjrt_key key;
    ra__pjrt_key_begin(&key);
    add_plugin(&key, p);
    add_processor(&key);
    ra__pjrt_key_add(&key, options->data, options->count);
    ra__pjrt_key_add(&key, text, bytes);
    return key;
}

/* ---- a loaded executable becomes a program */

static ra_status count_outputs(struct ra__pjrt_executable *program) {
    const struct ra__pjrt_plugin *plugin = &program->client->plugin;
    struct ra__pj_get_args get = {.head = RA__PJ_HEAD(ra__pj_get_args), .object = program->loaded};
    RA__TRY(ra__pjrt_call(plugin, RA__PJ_LOADED_EXECUTABLE, &get, "program"));
    struct ra__pj_size_args outputs = {.head = RA__PJ_HEAD(ra__pj_size_args), .object = get.got};
    ra_status s = ra__pjrt_call(plugin, RA__PJ_EXECUTABLE_OUTPUTS, &outputs, "outputs of the program");
    ra__pjrt_destroy(plugin, RA__PJ_EXECUTABLE_DESTROY, get.got);
    program->outputs = (int)outputs.number;
    return s;
}

static ra_status find_devices(struct ra__pjrt_executable *program) {
    struct ra__pj_list_args list = {.head = RA__PJ_HEAD(ra__pj_list_args), .object = program->loaded};
    RA__TRY(ra__pjrt_call(&program->client->plugin, RA__PJ_LOADED_DEVICES, &list, "devices of the program"));
    if (list.count != (size_t)program->replicas)
        return ra__fail(RA_ERR_INTERNAL, "%s: compile: a program for %d devices came out for %zu", program->client->plugin.name,
                        program->replicas, list.count);
    program->devices = list.items;
    return RA_OK;
}

/* Takes over `loaded`. */
static ra_status adopt(struct ra__pjrt *p, ra__pj_object *loaded, int replicas, struct ra__pjrt_executable **program) {
    struct ra__pjrt_executable *made = ra__alloc_zero(&p->allocator, sizeof *made);
    if (!made) {
        ra__pjrt_destroy(&p->plugin, RA__PJ_LOADED_DESTROY, loaded);
        return ra__fail(RA_ERR_MEMORY, "no memory for a program (%zu bytes)", sizeof *made);
    }
    *made = (struct ra__pjrt_executable){.client = p, .loaded = loaded, .replicas = replicas};
    ra_status s = count_outputs(made);
    if (s == RA_OK)
        s = find_devices(made);
    if (s == RA_OK)
        *program = made;
    else
        ra__pjrt_executable_destroy(made);
    return s;
}

void ra__pjrt_executable_destroy(struct ra__pjrt_executable *program) {
    if (!program)
        return;
    ra__pjrt_destroy(&program->client->plugin, RA__PJ_LOADED_DESTROY, program->loaded);
    ra__free(&program->client->allocator, program);
}

int ra__pjrt_executable_outputs(const struct ra__pjrt_executable *program) {
    return program->outputs;
}

bool ra__pjrt_executable_was_cached(const struct ra__pjrt_executable *program) {
    return program->was_cached;
}

/* ---- from and to the cache */

/* An entry that the plugin refuses counts as none. */
static bool load(struct ra__pjrt *p, struct ra__pjrt_key key, int replicas, struct ra__pjrt_executable **program) {
    struct ra__pj_deserialize_args args = {.head = RA__PJ_HEAD(ra__pj_deserialize_args), .client = p->client};
    void *data = ra__pjrt_cache_read(&p->allocator, p->cache, key, &args.count);
    if (!data)
        return false;
    args.bytes = data;
    ra_status s = ra__pjrt_call(&p->plugin, RA__PJ_DESERIALIZE, &args, "load a compiled program");
    if (s == RA_OK)
        s = adopt(p, args.executable, replicas, program);
    ra__free(&p->allocator, data);
    return s == RA_OK;
}

/* Plugins that cannot serialise have no cache. */
static void save(struct ra__pjrt_executable *program, struct ra__pjrt_key key) {
    const struct ra__pjrt_plugin *plugin = &program->client->plugin;
    struct ra__pj_get_args get = {.head = RA__PJ_HEAD(ra__pj_get_args), .object = program->loaded};
    if (!*program->client->cache || ra__pjrt_call(plugin, RA__PJ_LOADED_EXECUTABLE, &get, "program") != RA_OK)
        return;
    struct ra__pj_serialize_args args = {.head = RA__PJ_HEAD(ra__pj_serialize_args), .executable = get.got};
    if (ra__pjrt_call(plugin, RA__PJ_EXECUTABLE_SERIALIZE, &args, "serialise") == RA_OK) {
        ra__pjrt_cache_write(program->client->cache, key, args.bytes, args.count);
        if (args.release)
            args.release(args.owner);
    }
    ra__pjrt_destroy(plugin, RA__PJ_EXECUTABLE_DESTROY, get.got);
}

/* ---- compiling */

static ra_status compile(struct ra__pjrt *p, const char *text, size_t bytes, const struct ra__pjrt_bytes *options, int replicas,
                         struct ra__pjrt_executable **program) {
    struct ra__pj_program source = {
        .head = RA__PJ_HEAD(ra__pj_program), .code = (char *)text, .code_bytes = bytes, .format = "mlir", .format_length = strlen("mlir")};
    struct ra__pj_compile_args args = {.head = RA__PJ_HEAD(ra__pj_compile_args),
                                       .client = p->client,
                                       .program = &source,
                                       .options = (const char *)options->data,
                                       .options_bytes = options->count};
    RA__TRY(ra__pjrt_call(&p->plugin, RA__PJ_CLIENT_COMPILE, &args, "compile"));
    return adopt(p, args.executable, replicas, program);
}

/* A TPU or GPU belongs to the process that opened it, or most of its memory does; the processor does not. */
static bool may_be_opened_twice(const struct ra__pjrt *p) {
    return strcmp(p->platform, "cpu") == 0;
}

/* RA_OK also if nothing can be said because the child did not come as far as compiling. */
static ra_status compile_in_child(const struct ra__pjrt *p, const char *text, size_t bytes, int replicas, const int *order) {
    struct ra__pjrt_reply *reply = ra__alloc_zero(&p->allocator, sizeof *reply);
    struct ra__pjrt_request *request = ra__alloc_zero(&p->allocator, sizeof *request);
    ra_status s = RA_ERR_MEMORY;
    if (reply && request) {
        *request = (struct ra__pjrt_request){
            .work = RA__PJRT_COMPILE, .devices = p->options.devices, .replicas = replicas, .has_order = order != NULL, .text_bytes = bytes};
        strcpy(request->path, p->plugin.path);
        strcpy(request->cache, p->cache);
        s = ra__pjrt_ask_child(request, order, text, p->options.timeout_s, reply, &p->allocator, NULL);
        if (strcmp(reply->doing, "compile") != 0)
            s = RA_OK;
        else if (s == RA_OK && reply->status != RA_OK)
            s = ra__fail((ra_status)reply->status, "%s", reply->why);
    } else {
        ra__fail(s, "no memory for a request (%zu bytes)", sizeof *request + sizeof *reply);
    }
    ra__free(&p->allocator, reply);
    ra__free(&p->allocator, request);
    return s;
}

static ra_status find_or_compile(struct ra__pjrt *p, const char *text, size_t bytes, int replicas, const int *order,
                                 const struct ra__pjrt_bytes *options, struct ra__pjrt_executable **program) {
    const struct ra__pjrt_key key = key_of(p, text, bytes, options);
    if (load(p, key, replicas, program)) {
        (*program)->was_cached = true;
        return RA_OK;
    }
    if (!p->options.unchecked && may_be_opened_twice(p)) {
        RA__TRY(compile_in_child(p, text, bytes, replicas, order));
        if (load(p, key, replicas, program)) /* the child has left it there */
            return RA_OK;
    }
    RA__TRY(compile(p, text, bytes, options, replicas, program));
    save(*program, key);
    return RA_OK;
}

ra_status ra__pjrt_compile(struct ra__pjrt *p, const char *text, size_t bytes, int replicas, const int *order,
                           struct ra__pjrt_executable **program) {
    RA__TRY(check(p, text, bytes, replicas, order));
    struct ra__pjrt_bytes options = {.data = ra__alloc(&p->allocator, ra__pjrt_options_room(replicas))};
    if (!options.data)
        return ra__fail(RA_ERR_MEMORY, "no memory for the options of %d replicas", replicas);
    ra__pjrt_encode_options(&options, replicas, order);
    ra_status s = find_or_compile(p, text, bytes, replicas, order, &options, program);
    ra__free(&p->allocator, options.data);
    return s;
}
