/* A client of one PJRT plugin: its devices, programs compiled for them, runs.
 *
 * All functions may be called from any thread; a program runs once at a time. Every error's text begins with the plugin's file name and
 * what it was asked to do. A plugin stays mapped until the process ends: none of them survives being unloaded. The abi is in abi.h, what
 * only this room shares in internal.h. */
#ifndef RA_PJRT_CLIENT_H
#define RA_PJRT_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ringattention.h"

struct ra__pjrt;
struct ra__pjrt_executable;

struct ra__pjrt_options {
    int devices;                   /* a CPU plugin makes that many of the processor; 0: as many as it likes. Others have what they have */
    const char *cache;             /* folder of compiled programs; NULL: $XDG_CACHE_HOME/ringattention/programs, "": none */
    const ra_allocator *allocator; /* NULL: malloc; copied */
    bool unchecked;                /* do not compile in a child process first */
    double timeout_s;              /* deadline of what a child process does; 0: 120 */
};

/* path: a file, or a name without a slash that the dynamic linker looks for. options: NULL for all zero. There is no deadline: whether a
 * plugin can be opened at all is to be asked of ra_pjrt_list_create, which does it in another process.
 * Errors: ERR_UNSUPPORTED (no such file, no complete library for this machine, not a plugin, another version of the interface, no device;
 * the plugin's own refusals), ERR_INVALID, ERR_MEMORY, ERR_INTERNAL. */
ra_status ra__pjrt_open(const char *path, const struct ra__pjrt_options *options, struct ra__pjrt **p);
void ra__pjrt_close(struct ra__pjrt *p); /* after its programs are destroyed. NULL is allowed */

int ra__pjrt_device_count(const struct ra__pjrt *p);
const ra_pjrt_device *ra__pjrt_device(const struct ra__pjrt *p, int i);
const char *ra__pjrt_platform(const struct ra__pjrt *p); /* "cpu", "tpu", ... */

/* Compiles `bytes` of StableHLO text for `replicas` devices. order[replicas]: the id of each replica's device, NULL: the first ones in the
 * plugin's order. A program that is in the cache is loaded instead. Otherwise, unless the device can be opened by one process only, a
 * child process compiles it: if that ends by a signal or takes too long, this is an error here and not the end of the caller.
 * Errors: ERR_INVALID (number of replicas, order, an empty text), ERR_UNSUPPORTED (the plugin refuses the program, or dies of it),
 * ERR_TIMEOUT, ERR_MEMORY, ERR_INTERNAL. */
ra_status ra__pjrt_compile(struct ra__pjrt *p, const char *text, size_t bytes, int replicas, const int *order,
                           struct ra__pjrt_executable **program);
void ra__pjrt_executable_destroy(struct ra__pjrt_executable *program); /* NULL is allowed */

int ra__pjrt_executable_outputs(const struct ra__pjrt_executable *program);
bool ra__pjrt_executable_was_cached(const struct ra__pjrt_executable *program);

/* The numbers are the interface's own. */
enum ra__pjrt_type { RA__PJRT_S32 = 4, RA__PJRT_U32 = 8, RA__PJRT_F16 = 10, RA__PJRT_F32 = 11, RA__PJRT_BF16 = 13 };
enum { RA__PJRT_MAX_DIMS = 8 };

/* A host array, row-major without gaps. */
struct ra__pjrt_host_array {
    enum ra__pjrt_type type;
    int dim_count;
    int64_t dims[RA__PJRT_MAX_DIMS];
    void *data;
};

/* Copies inputs[r * input_count + i] to the device of replica r, runs all replicas, and copies outputs[r * output_count + i] back. An
 * output whose type or shape is not the program's is an error. inputs are only read, and outputs undefined after an error. Errors:
 * ERR_INVALID, ERR_MEMORY (also a device's), ERR_UNSUPPORTED, ERR_INTERNAL. */
ra_status ra__pjrt_run(struct ra__pjrt_executable *program, const struct ra__pjrt_host_array *inputs, int input_count,
                       const struct ra__pjrt_host_array *outputs, int output_count);

#endif
