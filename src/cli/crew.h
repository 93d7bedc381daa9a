/* The ranks of one run: threads of this process, or the processes of an MPI job, working in phases that all leave together.
 *
 * A phase is a function that may fail on some ranks. After it all ranks exchange how they fared, so that none goes on alone and none is
 * left waiting; the failures of all are then printed once. */
#ifndef RINGATTN_CREW_H
#define RINGATTN_CREW_H

#include "failure.h"
#include "options.h"

typedef struct crew {
    const options *o;
    ra_comm *launched;
    int size, rank;               /* of the launched comm */
    const ra_local_options *link; /* of local ranks; NULL: as fast as it is */
} crew;

typedef struct worker {
    const options *o;
    ra_comm *comm;
    int rank, size;
    int guards;       /* this rank acts for its process: rank 0 of local ranks, every MPI rank */
    int threads;      /* for this rank to use */
    int peak_threads; /* with which to measure the FMA peak: all ranks' together are no more than there are cores */
    failure failure;
    int agreed;   /* all ranks know of the failure */
    failure *all; /* then: of every rank */
} worker;

/* Finds out who the ranks are. -1 with f: no MPI link, or --ring is not the number of processes. */
int crew_open(crew *c, const options *o, failure *f);
void crew_close(crew *c);
int crew_ranks(const crew *c);  /* that crew_run will use */
int crew_speaks(const crew *c); /* 1 on the process that prints */

/* Runs body on every rank of this process and prints what failed. Returns the exit status. */
int crew_run(crew *c, void (*body)(worker *w, void *user), void *user);

/* The end of a phase: 0 if no rank failed. Otherwise, or if the link is broken, -1 on every rank, and the body shall return. Collective. */
int worker_agree(worker *w);

/* all[i*bytes] = rank i's mine, for small things between phases; a failure is recorded. */
int worker_gather(worker *w, const void *mine, void *all, size_t bytes, const char *doing);

/* With -v, from rank 0: one line on stderr. */
void worker_note(const worker *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
