/* Dropout's bits for tiles, and what a sink does to the softmax. The bits are those of dropout.h, found many at a time. */
#ifndef RA_BLOCK_MODIFY_H
#define RA_BLOCK_MODIFY_H

#include "block/block.h"

/* A rectangle of pairs of one query head: bh = b H + h, positions of queries and of ascending keys. */
struct ra__drop_tile {
    int64_t bh;
    const int64_t *q, *k;
    int64_t nq, nk;
};

/* -inf where the pair is dropped, else 0: out[key][lane] for `lanes` <= 64 queries, out[query][lane] for `lanes` <= 64 keys. Lanes beyond
 * the tile are kept. */
void ra__drop_by_key(const struct ra__attn *a, const struct ra__drop_tile *t, int lanes, float *out);
void ra__drop_by_query(const struct ra__attn *a, const struct ra__drop_tile *t, int lanes, float *out);
bool ra__dropped(const struct ra__attn *a, int64_t bh, int64_t q, int64_t k); /* one pair; false without dropout */

/* The end of a row's softmax: maximum m in units of log2 (-inf: nothing seen), sum l of 2^(s - m), and the sink's logit (NULL: none). */
struct ra__row_end {
    float inverse; /* what the row's output is multiplied with */
    float lse;     /* natural logarithm, sink included */
    float max;     /* natural units, without the sink */
};
struct ra__row_end ra__end_row(float m, float l, const float *sink);

#endif
