/* Sets of local rows of a block, as sorted lists of ranges: which rows travel, and whose gradients. Lists are bounded: ranges with short
 * gaps between them become one, and what lies behind the most ranges is in the last one, so that a set may be a little larger than asked
 * for, never smaller. */
#ifndef RA_RING_ROWS_H
#define RA_RING_ROWS_H

#include "block/block.h"

struct ra__rows {
    struct ra__stretch *range; /* sorted, neither empty nor touching */
    int64_t count;
    int64_t n; /* rows of all ranges */
};

enum { RA__ROWS_GAP = 16 };   /* rows: nearer ranges become one */
enum { RA__ROWS_MOST = 256 }; /* ranges of a list */

/* Appends begin..end, which begins no earlier than the last range, to at most `most` ranges. Returns their number. */
int64_t ra__rows_append(struct ra__stretch *range, int64_t count, int64_t most, int64_t begin, int64_t end);
/* Sets n. */
void ra__rows_count(struct ra__rows *rows);

/* out: other storage than a and b. */
void ra__rows_unite(struct ra__rows *out, const struct ra__rows *a, const struct ra__rows *b, int64_t most); /* at most `most` ranges */
void ra__rows_intersect(struct ra__rows *out, const struct ra__rows *a,
                        const struct ra__rows *b); /* a->count + b->count, as exactly as ... */
void ra__rows_subtract(struct ra__rows *out, const struct ra__rows *a, const struct ra__rows *b); /* ... this */

/* Where rows lie in a buffer that holds the rows of a set one after the other, asked for in ascending order. */
struct ra__rows_cursor {
    const struct ra__rows *rows; /* NULL: all rows, each at its own place */
    int64_t i, before;           /* ranges passed, rows in them */
};

/* The place of a row, -1: not there. The *run rows from it on, at least 1, lie there one after the other, or are missing alike; *run is
 * only ever made shorter. */
int64_t ra__rows_find(struct ra__rows_cursor *c, int64_t row, int64_t *run);

#endif
