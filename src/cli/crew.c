/* Starting ranks, sharing out cores, and agreeing on failures. */
#define _GNU_SOURCE
#include "crew.h"

#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ra_comm_options comm_options(const options *o) {
    ra_comm_options x = {.timeout_s = isnan(o->timeout) ? 0 : o->timeout};
    return x;
}

/* Started by Slurm's srun but with no MPI to join: each of its tasks would do the whole work on its own. */
static void warn_lone_task(const options *o) {
    char path[64], name[32] = "";
    snprintf(path, sizeof path, "/proc/%ld/comm", (long)getppid());
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    if (!fgets(name, sizeof name, file))
        name[0] = 0;
    fclose(file);
    if (strncmp(name, "slurmstepd", 10) == 0 && !o->quiet)
        fprintf(stderr,
                "ringattn: note: srun started this process as rank 0 of 1; to have it join the other tasks use mpirun, or srun --mpi\n");
}

int crew_open(crew *c, const options *o, failure *f) {
    memset(c, 0, sizeof *c);
    c->o = o;
    ra_comm_options x = comm_options(o);
    if (fail_library(f, ra_comm_create_launched(&x, &c->launched), "joining the other ranks"))
        return -1;
    c->size = ra_comm_size(c->launched);
    c->rank = ra_comm_rank(c->launched);
    if (c->size > 1 && o->ring && o->ring != c->size)
        return fail(f, EXIT_USAGE, "--ring %lld, but there are %d processes, each of which is a rank", (long long)o->ring, c->size);
    if (c->size == 1)
        warn_lone_task(o);
    return 0;
}

void crew_close(crew *c) {
    ra_comm_destroy(c->launched);
    c->launched = NULL;
}

int crew_ranks(const crew *c) {
    if (c->size > 1)
        return c->size;
    return c->o->ring ? (int)c->o->ring : 1;
}

int crew_speaks(const crew *c) {
    return c->rank == 0;
}

/* What a rank may compute on. */
typedef struct place {
    char host[64];
    cpu_set_t cores;
} place;

static int same_place(const place *a, const place *b) {
    return strcmp(a->host, b->host) == 0 && CPU_EQUAL(&a->cores, &b->cores);
}

/* How many ranks have the same cores as this one, and how many of these come before it; -1 after a failure. */
static int count_sharing(worker *w, const place *mine, int *before) {
    place *all = calloc((size_t)w->size, sizeof *all);
    if (!all)
        fail_memory(&w->failure, w->size * (int64_t)sizeof *all, "the list of ranks");
    int sharing = 0;
    if (worker_agree(w) || worker_gather(w, mine, all, sizeof *mine, "sharing out the cores"))
        sharing = -1;
    *before = 0;
    for (int r = 0; r < w->size && sharing >= 0; r++) {
        sharing += same_place(&all[r], mine);
        *before += r < w->rank && same_place(&all[r], mine);
    }
    free(all);
    return sharing;
}

/* Shares the cores out among the ranks that have the same ones, and warns if a launcher has crowded ranks together. */
static void share_cores(worker *w) {
    place mine;
    memset(&mine, 0, sizeof mine);
    gethostname(mine.host, sizeof mine.host - 1);
    if (sched_getaffinity(0, sizeof mine.cores, &mine.cores))
        CPU_SET(0, &mine.cores);
    int cores = CPU_COUNT(&mine.cores), before = w->rank, sharing = w->size;
    int threads_of_one_process = strcmp(ra_comm_kind(w->comm), "local") == 0;
    if (!threads_of_one_process && (sharing = count_sharing(w, &mine, &before)) < 0)
        return;
    if (w->threads == 0)
        w->threads = sharing < cores ? cores / sharing : 1;
    int left = cores - before * w->threads;
    w->peak_threads = left < 0 ? 0 : left < w->threads ? left : w->threads;
    if (w->rank == 0 && !w->o->quiet && !threads_of_one_process && sharing > cores && cores < sysconf(_SC_NPROCESSORS_ONLN))
        fprintf(stderr, "ringattn: note: %d ranks are bound to the same %d core(s) of %s; see the launcher's binding options\n", sharing,
                cores, mine.host);
}

int worker_gather(worker *w, const void *mine, void *all, size_t bytes, const char *doing) {
    return fail_library(&w->failure, ra_comm_allgather(w->comm, mine, all, bytes), doing);
}

int worker_agree(worker *w) {
    int *statuses = calloc((size_t)w->size, sizeof *statuses);
    if (!statuses) {
        ra_comm_fail(w->comm, RA_ERR_MEMORY, "out of memory");
        return fail_memory(&w->failure, w->size, "the list of ranks");
    }
    int failed = 0;
    int broken = worker_gather(w, &w->failure.status, statuses, sizeof *statuses, "waiting for the other ranks");
    for (int r = 0; r < w->size; r++)
        failed |= statuses[r];
    free(statuses);
    if (!broken && failed) {
        w->all = calloc((size_t)w->size, sizeof *w->all);
        w->agreed = w->all && ra_comm_allgather(w->comm, &w->failure, w->all, sizeof *w->all) == RA_OK;
    }
    return broken || failed ? -1 : 0;
}

void worker_note(const worker *w, const char *format, ...) {
    if (w->rank != 0 || !w->o->verbose)
        return;
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "ringattn: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
}

typedef struct team {
    worker *workers;
    int first; /* rank of workers[0] */
    void (*body)(worker *w, void *user);
    void *user;
} team;

static ra_status work(ra_comm *comm, int rank, void *user) {
    team *t = user;
    worker *w = &t->workers[rank - t->first];
    w->comm = comm;
    share_cores(w);
    if (worker_agree(w) == 0)
        t->body(w, t->user);
    /* Ranks that did not agree are still to be told; those that did have nothing to tell the library. */
    if (w->failure.status && !w->agreed) {
        ra_comm_fail(comm, RA_ERR_PEER_LOST, w->failure.text);
        return RA_ERR_PEER_LOST;
    }
    return RA_OK;
}

/* The ranks of this process are done: who failed, and who says so? */
static int conclude(const crew *c, const worker *workers, size_t here) {
    int processes = c->size > 1;
    for (size_t i = 0; i < here; i++)
        if (workers[i].agreed)
            return failures_print(workers[i].all, workers[i].size, 0, workers[i].size > 1, processes && c->rank != 0);
    failure *own = calloc(here, sizeof *own);
    for (size_t i = 0; own && i < here; i++)
        own[i] = workers[i].failure;
    /* With the link broken nobody can speak for the others. */
    int status = own ? failures_print(own, (int)here, processes ? c->rank : 0, processes || here > 1, 0) : EXIT_MEMORY;
    free(own);
    return status;
}

int crew_run(crew *c, void (*body)(worker *w, void *user), void *user) {
    int ranks = crew_ranks(c);
    size_t here = c->size > 1 ? 1 : (size_t)ranks;
    worker *workers = calloc(here, sizeof *workers);
    failure f = {0};
    if (!workers)
        fail_memory(&f, (int64_t)(here * sizeof *workers), "the list of ranks");
    for (size_t i = 0; workers && i < here; i++)
        workers[i] = (worker){.o = c->o, .rank = c->size > 1 ? c->rank : (int)i, .size = ranks, .threads = (int)c->o->threads};
    team t = {.workers = workers, .first = c->rank, .body = body, .user = user};
    int status = 0;
    if (workers && c->size > 1) {
        workers[0].guards = 1;
        work(c->launched, c->rank, &t);
        status = conclude(c, workers, here);
    } else if (workers) {
        workers[0].guards = 1;
        ra_comm_options x = comm_options(c->o);
        ra_status s = ra_local_run(ranks, &x, c->link, work, &t);
        status = conclude(c, workers, here);
        if (status == 0)
            fail_library(&f, s, "starting the ranks");
    }
    for (size_t i = 0; workers && i < here; i++)
        free(workers[i].all);
    free(workers);
    return status ? status : failures_print(&f, 1, 0, 0, 0);
}
