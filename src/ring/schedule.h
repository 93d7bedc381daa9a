/* The ring schedule as data: what one rank computes, sends and receives at each step. No input or output happens here.
 *
 * At step s rank r has the key/value block of rank b = (r - s) mod P, the one that began s ranks behind it. While it computes on it, it
 * passes it to r + 1 and receives the block of step s + 1 from r - 1 (arXiv 2310.01889, section 3). A block travels only as far as its last
 * rank that sees any of it: reach[b] steps. In the backward the gradients dk, dv of a block follow it: the partial sum that the ranks
 * before have made arrives while this rank computes its own part, is added, and goes on during the next step; from the last stop it goes
 * straight home. */
#ifndef RA_RING_SCHEDULE_H
#define RA_RING_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* Does rank r see anything of the block of rank b? */
typedef bool ra__needs_fn(const void *context, int r, int b);

struct ra__step {
    int block;         /* whose keys and values are here */
    bool computes;     /* some of them are visible to this rank */
    bool sends_kv;     /* to r + 1, during this step */
    bool receives_kv;  /* the block of the next step, from r - 1 */
    bool receives_dkv; /* the partial sum for this block, from r - 1, during this step */
    int dkv_to;        /* where the sum goes after this step: r + 1, or block (home) at its last stop; -1: nowhere */
};

struct ra__schedule {
    int P, r;
    int steps;             /* at least 1: step 0 is this rank's own block */
    struct ra__step *step; /* [P] */
    int home_from;         /* the rank from which this rank's own dk, dv come home; -1: no other rank computes on its block */
};

/* step: storage for P entries, the caller's. */
void ra__schedule_make(struct ra__schedule *s, struct ra__step *step, int P, int r, ra__needs_fn *needs, const void *context);

/* Distance of the last (first != 0) rank that needs block b: 0 when only b itself, or none, does. */
int ra__schedule_reach(int P, int b, ra__needs_fn *needs, const void *context);

#endif
