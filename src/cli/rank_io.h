/* Files, a rank's rows at a time. Runs of neighbouring tokens become one pread or pwrite.
 *
 * The output is written to a temporary beside it, which takes its name only when every rank has written and synced. Whatever ends the
 * program before, a signal too, removes the temporary and leaves an earlier output as it was. */
#ifndef RINGATTN_RANK_IO_H
#define RINGATTN_RANK_IO_H

#include "safetensors.h"
#include "tensors.h"

/* Fills t->data[s] with this rank's rows of the tensor x of an open file. */
int rank_read(const tensors *t, slot s, int fd, const st_tensor *x, const char *path, failure *f);

/* Writes this rank's rows to where x says. */
int rank_write(const tensors *t, slot s, int fd, const st_tensor *x, const char *path, failure *f);

typedef struct output {
    char path[4096]; /* where the result goes: links resolved */
    char temporary[4096];
    int64_t tag[2]; /* process and number: with these every rank knows the temporary's name */
    int mode;       /* of the file that is replaced; -1: there is none */
    int fd;
} output;

/* Checks that path can be replaced, makes the temporary with file_bytes bytes reserved and the prefix written. On one rank. */
int output_create(output *out, const char *path, const char *prefix, int64_t prefix_bytes, int64_t file_bytes, failure *f);

/* The other ranks: opens the temporary that output_create made, given its tag. */
int output_join(output *out, const char *path, const int64_t tag[2], failure *f);

int output_sync(output *out, failure *f);   /* every rank */
int output_commit(output *out, failure *f); /* one rank, after all have synced */
void output_close(output *out);

/* From here on SIGINT, SIGTERM and SIGHUP remove the temporary before they end the process. Once per process. */
void output_guard(const output *out);
void output_discard(void); /* removes the guarded temporary, if it is there still */

#endif
