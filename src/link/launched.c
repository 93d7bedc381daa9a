/* The comm of the launcher: which MPI started this process is read from its environment, and the link to it is loaded at run time, so that
 * the library neither needs an MPI nor is tied to one. The links lie beside the library, as libringattention_<kind>.so. */
#define _GNU_SOURCE /* dladdr */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/status.h"
#include "link/link.h"

/* What a launcher sets for its processes. Slurm and others that speak PMI or PMIx set the second names. */
static const struct launcher {
    const char *kind, *name, *size, *rank;
} launchers[] = {
    {"openmpi", "Open MPI", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK"},
    {"mpich", "MPICH", "PMI_SIZE", "PMI_RANK"},
};

/* NULL if no launcher, or if it started this process alone: a ring of one needs no MPI. */
static const struct launcher *find_launcher(void) {
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const char *size = ra__environment(launchers[i].size);
        if (size)
            return strcmp(size, "1") == 0 ? NULL : &launchers[i];
        if (ra__environment(launchers[i].rank))
            return &launchers[i];
    }
    return NULL;
}

/* The link's file beside whatever holds this code, the shared library or a program linked to the static one; false if it is not there. */
static bool find_beside(const char *kind, char *path, size_t n) {
    Dl_info here;
    if (!dladdr((void *)&find_launcher, &here) || !here.dli_fname)
        return false;
    const char *slash = strrchr(here.dli_fname, '/');
    int length = slash ? (int)(slash - here.dli_fname) : 1;
    int written = snprintf(path, n, "%.*s/libringattention_%s.so", length, slash ? here.dli_fname : ".", kind);
    return written > 0 && (size_t)written < n && access(path, R_OK) == 0;
}

bool ra__launched_available(const char *kind) {
    char path[PATH_MAX];
    return find_beside(kind, path, sizeof path);
}

/* Open MPI's own plugins look for the symbols of libmpi in the global scope. The link stays loaded: no MPI survives being unloaded. */
static void *open_link(const char *kind) {
    char path[PATH_MAX];
    if (!find_beside(kind, path, sizeof path))
        snprintf(path, sizeof path, "libringattention_%s.so", kind); /* as the dynamic linker finds it */
    return dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
}

ra_status ra_comm_create_launched(const ra_comm_options *options, ra_comm **comm) {
    if (!comm)
        return ra__fail(RA_ERR_INVALID, "comm: NULL");
    const struct launcher *launcher = find_launcher();
    if (!launcher)
        return ra_comm_create_self(options, comm);
    void *link = open_link(launcher->kind);
    if (!link)
        return ra__fail(RA_ERR_UNSUPPORTED, "started by %s, but the link to it is not installed (%s)", launcher->name, dlerror());
    ra_status (*create)(const ra_comm_options *, ra_comm **);
    *(void **)&create = dlsym(link, "ra_mpi_create_launched");
    if (!create)
        return ra__fail(RA_ERR_UNSUPPORTED, "libringattention_%s.so: not a link of this library (%s)", launcher->kind, dlerror());
    return create(options, comm);
}
