/* The link seam: how bytes get to another rank. A comm is a public ra_link plus what all links share: deadline, allocator, and the
 * memory of a failure. On top of it, transfers: one logical message of any size, split to the link's limit, progressed by polling. */
#ifndef RA_LINK_LINK_H
#define RA_LINK_LINK_H

#include <stdbool.h>

#include "ringattention.h"

struct ra_comm {
    ra_link link;
    ra_allocator allocator;
    double timeout_s;
    struct ra__transfer *background; /* [backgrounds], advanced by every ra__progress and ra__wait on this comm; NULL: none */
    int backgrounds;
    ra_status failure; /* RA_OK until the first failure; afterwards every call returns it */
    char why[256];
};

enum { RA__WINDOW = 8 };            /* pieces of one transfer in flight */
enum { RA__PIECE_BYTES = 4 << 20 }; /* longest piece: a poll that copies must not stall the compute for long */

/* One logical message. Zero-initialised it is complete. It and its data must stay where they are until it is complete or the comm has
 * failed: whoever gives up in between calls ra__comm_fail first. */
struct ra__transfer {
    ra_comm *comm;
    char *data;
    size_t bytes, posted, done; /* bytes handed to the link, bytes completed */
    size_t piece;               /* longest piece of this transfer */
    int peer, tag;
    bool sending;
    double t_posted, t_done; /* ra__now() at start and completion */
    struct {
        ra_link_request request;
        size_t bytes;
    } window[RA__WINDOW]; /* piece i uses window[i % RA__WINDOW]; both ends post pieces in order, and they are completed in order */
    int next, oldest;     /* piece numbers: next to post, oldest not completed */
};

/* Start a transfer (bytes may be 0: complete at once, on both sides). Neither blocks. On failure the comm is poisoned. */
ra_status ra__send(ra_comm *comm, struct ra__transfer *t, int to, int tag, const void *data, size_t bytes);
ra_status ra__recv(ra_comm *comm, struct ra__transfer *t, int from, int tag, void *data, size_t bytes);

/* Progress n transfers without blocking; *complete is set if all are. */
ra_status ra__progress(struct ra__transfer *const *transfers, int n, bool *complete);

/* Wait for n transfers: poll, yield after a short spin, give up after the comm's deadline without progress (ERR_TIMEOUT, naming rank and
 * operation). `what` names the operation for errors: "K,V of step 3". */
ra_status ra__wait(struct ra__transfer *const *transfers, int n, const char *what);

/* Poison the comm with this failure (keeps the first), tell the peers once, record the error; returns the status kept. */
ra_status ra__comm_fail(ra_comm *comm, ra_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The checks of ra_comm_options shared by all ways to make a comm; NULL is allowed. */
ra_status ra__comm_check_options(const ra_comm_options *options);

/* RA_OK, or the remembered failure (recorded again for ra_last_error). Every entry point that communicates begins with it. */
ra_status ra__comm_check(ra_comm *comm);

/* Whether the link to MPI of this kind ("openmpi", "mpich") is installed where ra_comm_create_launched would find it. */
bool ra__launched_available(const char *kind);

#endif
