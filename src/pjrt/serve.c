/* The other side of process.c: what pjrt_child does with a request. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"
#include "pjrt/internal.h"

static void answer(int out, const struct ra__pjrt_reply *reply) {
    ssize_t written = pwrite(out, reply, sizeof *reply, 0); /* one that is cut off counts as none */
    (void)written;
}

/* What will have been going on should this process not come back. */
static void begin(int out, struct ra__pjrt_reply *reply, const char *doing) {
    ra__pjrt_copy_text(reply->doing, sizeof reply->doing, doing, strlen(doing));
    answer(out, reply);
}

static void end(int out, struct ra__pjrt_reply *reply, ra_status s) {
    reply->done = 1;
    reply->status = (int32_t)s;
    if (s != RA_OK)
        ra__pjrt_copy_text(reply->why, sizeof reply->why, ra_last_error(), strlen(ra_last_error()));
    answer(out, reply);
}

static ra_status open_plugin(int out, const struct ra__pjrt_request *request, struct ra__pjrt_reply *reply, struct ra__pjrt **p) {
    static const char stages[][8] = {"load", "open"};
    struct ra__pjrt_plugin plugin;
    begin(out, reply, stages[0]);
    ra_status s = ra__pjrt_load(request->path, &plugin);
    if (plugin.api && plugin.api->head.size >= offsetof(struct ra__pj_api, slot)) {
        reply->major = plugin.api->version.major;
        reply->minor = plugin.api->version.minor;
    }
    strcpy(reply->path, plugin.path);
    if (s != RA_OK)
        return s;
    begin(out, reply, stages[1]);
    const struct ra__pjrt_options options = {.devices = request->devices, .cache = request->cache, .unchecked = true};
    return ra__pjrt_open(request->path, &options, p);
}

static ra_status probe(int out, const struct ra__pjrt *p, struct ra__pjrt_reply *reply) {
    const size_t bytes = (size_t)p->device_count * sizeof *p->devices;
    strcpy(reply->platform, p->platform);
    strcpy(reply->version, p->version);
    if (pwrite(out, p->devices, bytes, sizeof *reply) != (ssize_t)bytes)
        return ra__fail(RA_ERR_INTERNAL, "the list of devices could not be passed on");
    reply->device_count = p->device_count;
    return RA_OK;
}

static ra_status compile(int out, struct ra__pjrt *p, const struct ra__pjrt_request *request, const int *order, const char *text,
                         struct ra__pjrt_reply *reply) {
    struct ra__pjrt_executable *program;
    begin(out, reply, "compile");
    RA__TRY(ra__pjrt_compile(p, text, (size_t)request->text_bytes, request->replicas, request->has_order ? order : NULL, &program));
    ra__pjrt_executable_destroy(program);
    return RA_OK;
}

/* Objects are left to the end of the process, which is near: destroying them is one more chance to die. */
static ra_status serve(FILE *in, int out, const struct ra__pjrt_request *request, struct ra__pjrt_reply *reply) {
    static const size_t most_text = (size_t)1 << 32;
    if (request->replicas < 0 || request->replicas > RA__PJRT_MOST_DEVICES || request->text_bytes > most_text)
        return ra__fail(RA_ERR_INVALID, "a request of %d replicas and %llu bytes", request->replicas,
                        (unsigned long long)request->text_bytes);
    ra_allocator a = ra__allocator_or_default(NULL);
    const size_t ids = request->has_order ? (size_t)request->replicas : 0, bytes = (size_t)request->text_bytes;
    int *order = ra__alloc(&a, ids * sizeof *order);
    char *text = ra__alloc(&a, bytes);
    if (!order || !text || fread(order, sizeof *order, ids, in) != ids || fread(text, 1, bytes, in) != bytes)
        return ra__fail(RA_ERR_MEMORY, "no memory for a request of %zu bytes", bytes);
    struct ra__pjrt *p = NULL;
    RA__TRY(open_plugin(out, request, reply, &p));
    return request->work == RA__PJRT_COMPILE ? compile(out, p, request, order, text, reply) : probe(out, p, reply);
}

void ra__pjrt_serve(int in, int out) {
    FILE *file = fdopen(in, "rb");
    struct ra__pjrt_request request;
    struct ra__pjrt_reply reply = {.size = sizeof reply};
    if (!file || fread(&request, sizeof request, 1, file) != 1 || request.size != sizeof request)
        end(out, &reply, ra__fail(RA_ERR_INTERNAL, "pjrt_child is of another version than the library"));
    else
        end(out, &reply, serve(file, out, &request, &reply));
}
