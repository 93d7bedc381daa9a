/* The ring schedule as data: what one rank computes, sends and receives at each step. No input or output happens here.
 *
 * At step s rank r has the key/value block of rank b = (r - s) mod P, the one that began s ranks behind it. While it computes on it, it
 * passes it to r + 1 and receives the block of step s + 1 from r - 1 (arXiv 2310.01889, section 3). Only the rows travel that some rank
 * further on needs, so a block becomes smaller on its way, and ends at its last rank that sees any of it.
 *
 * In the backward the gradients dk, dv of a block follow it: the partial sum that the ranks before have made arrives while this rank
 * computes its own part, is added, and goes on during the next step. Rows without gradients so far are not in it, and those that no rank
 * further on adds to go straight home: each row goes home once, from its last reader. */
#ifndef RA_RING_SCHEDULE_H
#define RA_RING_SCHEDULE_H

#include "ring/rows.h"

/* The rows of the block of rank b that rank r needs: fills in at most `most` ranges, as ra__rows_append makes them; returns their number.
 */
typedef int64_t ra__needs_fn(const void *context, int r, int b, struct ra__stretch *range, int64_t most);

struct ra__step {
    int block;                /* whose keys and values are here */
    bool computes;            /* on some of them */
    struct ra__rows here;     /* this rank's own: all of them; others arrive from r - 1 during the step before */
    struct ra__rows seen;     /* of them, what this rank needs */
    struct ra__rows send;     /* what goes to r + 1, during this step */
    struct ra__rows sum_in;   /* of which rows the partial sum arrives from r - 1, during this step */
    struct ra__rows sum_on;   /* of which rows the sum goes to r + 1 after this step ... */
    struct ra__rows sum_home; /* ... and to `block` */
};

struct ra__schedule {
    int P, r;
    int steps;                  /* at least 1: step 0 is this rank's own block */
    int returns;                /* entries of `returning` that are not empty */
    struct ra__step *step;      /* [P] */
    struct ra__rows *returning; /* [P]: of which rows of this rank's own block dk, dv come home from rank r + i */
    const ra_allocator *memory;
};

/* T: rows of rank r's own block. most: ranges of a list, at most RA__ROWS_MOST. false: no memory. Either way free it in the end. */
bool ra__schedule_make(struct ra__schedule *s, const ra_allocator *memory, int P, int r, int64_t T, int64_t most, ra__needs_fn *needs,
                       const void *context);
void ra__schedule_free(struct ra__schedule *s);

#endif
