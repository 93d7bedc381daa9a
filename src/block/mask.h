/* The mask language, evaluated on global positions. A mask never reaches a kernel: for a tile of queries and keys it is classified as
 * empty, full or partial before anything is computed, and only a partial tile gets a tile of additive values (-inf: hidden). A new kind of
 * mask is one more condition here; kernels stay as they are. */
#ifndef RA_BLOCK_MASK_H
#define RA_BLOCK_MASK_H

#include <stdbool.h>

#include "ringattention.h"

/* The queries of one rank against one visiting key block. Positions ascend inside a tile. */
struct ra__mask_view {
    const int64_t *q_last;     /* [Tq] the largest key position that a query sees by position; INT64_MAX without a positional mask */
    const int64_t *k_position; /* [Tk] */
    const int32_t *q_segment;  /* [B,Tq], or NULL */
    const int32_t *k_segment;  /* [B,Tk], or NULL */
    int64_t Tq, Tk;
    const ra_tensor *bias; /* indexed by local query and global key position; NULL: none */
};

/* A rectangle of a view: batch b, queries q0..q0+nq, keys k0..k0+nk. */
struct ra__mask_tile {
    int64_t b, q0, nq, k0, nk;
};

/* Shrinks t to the smallest range of keys (queries) outside of which nothing is visible; nk (nq) = 0 when nothing is.
 * Returns true when everything in the shrunken tile is visible and no bias applies: the tile needs no mask. */
bool ra__mask_shrink_keys(const struct ra__mask_view *v, struct ra__mask_tile *t);
bool ra__mask_shrink_queries(const struct ra__mask_view *v, struct ra__mask_tile *t);

/* Of a shrunken tile that is not full: how many of its first keys are seen by all of its queries, how many of its last queries see all of
 * its keys. 0 when more than positions decides inside the tile: a bias, or several segments. */
int64_t ra__mask_clear_keys(const struct ra__mask_view *v, const struct ra__mask_tile *t);
int64_t ra__mask_clear_queries(const struct ra__mask_view *v, const struct ra__mask_tile *t);

/* Writes the additive tile in units of log2 and returns the number of visible pairs.
 * by_key:   out[key][lane] for lanes queries; lanes from nq on are visible zeros (their results are never used).
 * by_query: out[query][lane] for lanes keys; lanes from nk on are hidden. */
int64_t ra__mask_fill_by_key(const struct ra__mask_view *v, const struct ra__mask_tile *t, int64_t h, int lanes, float *out);
int64_t ra__mask_fill_by_query(const struct ra__mask_view *v, const struct ra__mask_tile *t, int64_t h, int lanes, float *out);

/* The largest key position that the query at global position i sees. N: causal_block, 1 for causal. */
int64_t ra__mask_last_key(int64_t i, int64_t offset, int64_t N);

#endif
