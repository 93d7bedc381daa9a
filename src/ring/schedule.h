/* The ring schedule as data: what one rank computes, sends and receives at each step. No input or output happens here.
 *
 * At step s rank r computes on the key/value block of rank b = (r - s) mod P, the one that began s ranks behind it (arXiv 2310.01889,
 * section 3). While it does, it passes on to r + 1 what that one needs of it, and receives what it needs itself for step s + 1: from r - 1
 * the rows that r - 1 had, and from the block's owner those that it had not. So where every rank needs every row all messages go round the
 * ring; rows that only some ranks need, of a window or a document, visit nobody else; and each row is sent exactly as often as it has
 * readers.
 *
 * In the backward the sums of gradients dk, dv follow the rows: that of the ranks before arrives while this rank computes its own part, is
 * added, and during the next step goes on to r + 1, or home if r + 1 does not need the row. */
#ifndef RA_RING_SCHEDULE_H
#define RA_RING_SCHEDULE_H

#include "ring/rows.h"

/* The rows of the block of rank b that rank r needs: fills in at most `most` ranges, as ra__rows_append makes them; returns their number.
 */
typedef int64_t ra__needs_fn(const void *context, int r, int b, struct ra__stretch *range, int64_t most);

/* Step s. */
struct ra__step {
    int block;              /* whose keys and values are here */
    bool computes;          /* on some of them */
    struct ra__rows here;   /* all of this rank's own, and of others what it needs: */
    struct ra__rows passed; /* these came from r - 1 during the step before; their sum of gradients comes from there during this step */
    struct ra__rows served; /* these came from their owner during the step before */
    struct ra__rows pass;   /* of `here`, goes to r + 1 during this step; the sum of its gradients, during the next step */
    struct ra__rows home;   /* the rest: the sum of its gradients goes to its owner during the next step */
    struct ra__rows serve;  /* of this rank's own block, goes to r + s + 1 during this step */
};

struct ra__schedule {
    int P, r;
    int steps;                  /* at least 1: step 0 is this rank's own block */
    int returns;                /* entries of `returning` that are not empty */
    struct ra__step *step;      /* [P] */
    struct ra__rows *returning; /* [P]: of which rows of this rank's own block sums of gradients come home from rank r + i */
    const ra_allocator *memory;
};

/* T: rows of rank r's own block. most: ranges of a list of needs, at most RA__ROWS_MOST. false: no memory. Either way free it in the end.
 */
bool ra__schedule_make(struct ra__schedule *s, const ra_allocator *memory, int P, int r, int64_t T, int64_t most, ra__needs_fn *needs,
                       const void *context);
void ra__schedule_free(struct ra__schedule *s);
int64_t ra__schedule_bytes(const struct ra__schedule *s); /* of memory that it holds */

#endif
