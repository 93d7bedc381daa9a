/* What the files of this room share. */
#ifndef RA_PJRT_INTERNAL_H
#define RA_PJRT_INTERNAL_H

#include "pjrt/abi.h"
#include "pjrt/client.h"

/* ---- plugin.c: a loaded library, calls of it */

struct ra__pjrt_plugin {
    const struct ra__pj_api *api;
    char path[4096]; /* as the dynamic linker found it */
    char name[128];  /* its last part, for messages */
};

#define RA__PJ_HEAD(type) \
    { sizeof(struct type), NULL }

/* Maps the library and checks entry point, version and length of the table; does not initialise it. */
ra_status ra__pjrt_load(const char *path, struct ra__pjrt_plugin *plugin);
ra_status ra__pjrt_initialize(const struct ra__pjrt_plugin *plugin);

bool ra__pjrt_has(const struct ra__pjrt_plugin *plugin, enum ra__pj_slot slot);

/* Calls a slot. An error of the plugin's is recorded as "name: doing: its text". */
ra_status ra__pjrt_call(const struct ra__pjrt_plugin *plugin, enum ra__pj_slot slot, void *args, const char *doing);

/* Calls a slot of which the object is the only argument; errors are of no use any more. */
void ra__pjrt_destroy(const struct ra__pjrt_plugin *plugin, enum ra__pj_slot slot, ra__pj_object *object);

/* Waits for an event and destroys it; NULL is an event that has been. */
ra_status ra__pjrt_await(const struct ra__pjrt_plugin *plugin, ra__pj_object *event, const char *doing);

/* The same after a failure, whose text is to stay. */
void ra__pjrt_await_quietly(const struct ra__pjrt_plugin *plugin, ra__pj_object *event);

/* Copies a text that has a length to one that ends with 0; what does not fit is cut off. */
void ra__pjrt_copy_text(char *to, size_t n, const char *text, size_t length);

/* ---- elf.c */

/* Whether the file is an ELF library of this machine with all of its bytes: the dynamic linker would map a shorter one and die of it. */
ra_status ra__pjrt_check_elf(const char *path, const char *name);

/* ---- client.c */

struct ra__pjrt {
    struct ra__pjrt_plugin plugin;
    ra_allocator allocator;
    struct ra__pjrt_options options; /* allocator and cache: see the fields */
    char cache[4096];                /* "": none */
    ra__pj_object *client;
    char platform[64], version[256];
    int device_count;
    ra_pjrt_device *devices;
};

/* ---- options.c: xla.CompileOptionsProto, by hand */

struct ra__pjrt_bytes {
    unsigned char *data;
    size_t count, room;
};

/* Upper bound of what ra__pjrt_encode_options writes. */
size_t ra__pjrt_options_room(int replicas);
/* num_replicas and num_partitions = 1 must be there, or the plugin aborts; order may be NULL. */
void ra__pjrt_encode_options(struct ra__pjrt_bytes *out, int replicas, const int *order);

/* ---- cache.c: compiled programs on disk */

struct ra__pjrt_key {
    uint64_t half[2];
};

void ra__pjrt_key_begin(struct ra__pjrt_key *key);
void ra__pjrt_key_add(struct ra__pjrt_key *key, const void *data, size_t bytes);

/* The default folder; "" if there is no home to put it into. */
void ra__pjrt_cache_folder(char *path, size_t n);
/* Contents of the entry, to be freed with the allocator; NULL if there is none or it is damaged. */
void *ra__pjrt_cache_read(const ra_allocator *a, const char *folder, struct ra__pjrt_key key, size_t *bytes);
/* The entry appears whole or not at all. That it could not be written is not an error: it is only a cache. */
void ra__pjrt_cache_write(const char *folder, struct ra__pjrt_key key, const void *data, size_t bytes);

/* ---- process.c: work that a plugin may not survive, in a process of its own: the program pjrt_child */

enum ra__pjrt_work { RA__PJRT_PROBE = 1, RA__PJRT_COMPILE = 2 };
enum { RA__PJRT_REPLY_FD = 3, RA__PJRT_MOST_DEVICES = 4096 };

/* The request, on standard input of the child; the program's text follows. */
struct ra__pjrt_request {
    uint32_t size;
    int32_t work, devices, replicas, has_order;
    uint64_t text_bytes; /* order[replicas] and then the text follow */
    char path[4096], cache[4096];
};

/* The answer, on RA__PJRT_REPLY_FD. It is written at each step, so that of a child that dies it says what it was doing. device_count
 * devices follow. */
struct ra__pjrt_reply {
    uint32_t size;
    int32_t done, status, major, minor, device_count;
    char doing[64], why[512], path[4096], platform[64], version[256];
};

/* Runs the child until it ends or for timeout_s. *devices is allocated; NULL: not wanted. RA_OK if it gave an answer, which may well be an
 * error (reply->status, reply->why). ERR_UNSUPPORTED if it died, ERR_TIMEOUT; reply then holds what was known by then. */
ra_status ra__pjrt_ask_child(const struct ra__pjrt_request *request, const int *order, const char *text, double timeout_s,
                             struct ra__pjrt_reply *reply, const ra_allocator *a, ra_pjrt_device **devices);

/* What another program prints within timeout_s, cut off to n; false if it failed. */
bool ra__pjrt_output_of(const char *const *argv, double timeout_s, char *text, size_t n);

/* What pjrt_child does: reads a request from `in`, answers on `out`. */
void ra__pjrt_serve(int in, int out);

/* ---- program.c */

struct ra__pjrt_executable {
    struct ra__pjrt *client;
    ra__pj_object *loaded;
    int replicas, outputs, launches;
    bool was_cached;
    ra__pj_object *const *devices; /* [replicas], the plugin's */
};

#endif
