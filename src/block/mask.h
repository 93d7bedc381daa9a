/* The mask language, evaluated on global positions. A mask never reaches a kernel: for a tile of queries and keys it is classified as
 * empty, full or partial before anything is computed, and only a partial tile gets a tile of additive values (-inf: hidden). What a query
 * sees by position is a list of spans of keys, made by the plan (plan/spans.h), so that a new kind of mask by position is nothing new here;
 * kernels stay as they are.
 *
 * Most tiles of a window are empty and most of a causal mask full, so a run of queries and a run of keys are summed up once each; the
 * two sums tell an empty or a full tile at once. */
#ifndef RA_BLOCK_MASK_H
#define RA_BLOCK_MASK_H

#include <stdbool.h>

#include "ringattention.h"

/* Half-open: begin <= position < end. Nothing when begin >= end. */
struct ra__span {
    int64_t begin, end;
};

/* Query t sees the keys at the positions inside span[first[t]] .. span[first[t + 1] - 1]: sorted, disjoint, not touching. */
struct ra__spans {
    const int64_t *first; /* [Tq + 1] */
    const struct ra__span *span;
    const int64_t *edge; /* [edges], sorted key positions in front of which a document begins: no span reaches across */
    int64_t edges;
};

/* The queries of one rank against one visiting key block. Positions of keys ascend inside a tile. */
struct ra__mask_view {
    struct ra__spans q;
    const int64_t *k_position; /* [Tk] */
    const int32_t *q_segment;  /* [B,Tq], or NULL */
    const int32_t *k_segment;  /* [B,Tk], or NULL */
    int64_t Tq, Tk;
    const ra_tensor *bias;    /* indexed by local query and global key position; NULL: none */
    const int64_t *kv_lens;   /* [B]: keys from this position on are hidden; NULL: none */
    const float *alibi;       /* [H] slopes, or NULL: -slope |q_aligned - key position| is added */
    const int64_t *q_aligned; /* [Tq], with alibi */
};

/* A rectangle of a view: batch b, queries q0..q0+nq, keys k0..k0+nk. */
struct ra__mask_tile {
    int64_t b, q0, nq, k0, nk;
};

/* A run of queries in short. */
struct ra__mask_queries {
    struct ra__span first, rest;         /* around the first spans of all queries, and around all their other spans */
    struct ra__span all_first, all_last; /* inside the first spans of all queries, and inside their last spans */
    bool many;                           /* some have more than two spans: much of `rest` may be hidden */
    int32_t min, max;                    /* segment ids; 0 without */
};

/* A run of keys in short. */
struct ra__mask_keys {
    int64_t first, last; /* positions */
    int32_t min, max;
};

struct ra__mask_queries ra__mask_sum_queries(const struct ra__mask_view *v, int64_t b, int64_t q0, int64_t nq);
struct ra__mask_keys ra__mask_sum_keys(const struct ra__mask_view *v, int64_t b, int64_t k0, int64_t nk); /* nk > 0 */
/* The sum of two runs of queries, of keys. */
struct ra__mask_queries ra__mask_join_queries(const struct ra__mask_queries *a, const struct ra__mask_queries *b);

static inline struct ra__mask_keys ra__mask_join_keys(const struct ra__mask_keys *a, const struct ra__mask_keys *b) {
    return (struct ra__mask_keys){a->first < b->first ? a->first : b->first, a->last > b->last ? a->last : b->last,
                                  a->min < b->min ? a->min : b->min, a->max > b->max ? a->max : b->max};
}

static inline bool ra__span_meets(const struct ra__span *s, const struct ra__mask_keys *k) {
    return s->begin < s->end && k->last >= s->begin && k->first < s->end;
}

/* false: none of the queries sees any of the keys. */
static inline bool ra__mask_meets(const struct ra__mask_queries *q, const struct ra__mask_keys *k) {
    return (ra__span_meets(&q->first, k) || ra__span_meets(&q->rest, k)) && q->min <= k->max && k->min <= q->max;
}

/* Shrinks t to a range of keys (queries) outside of which nothing is visible; nk (nq) = 0 when nothing is. The smallest such range where
 * queries have one span each and no ids. q and k: the sums of at least the tile's queries and keys.
 * Returns true when everything in the shrunken tile is visible and nothing is added: the tile needs no mask. */
bool ra__mask_shrink_keys(const struct ra__mask_view *v, const struct ra__mask_queries *q, const struct ra__mask_keys *k,
                          struct ra__mask_tile *t);
bool ra__mask_shrink_queries(const struct ra__mask_view *v, const struct ra__mask_queries *q, const struct ra__mask_keys *k,
                             struct ra__mask_tile *t);

/* Of a shrunken tile that is not full: how many of its first keys are seen by all of its queries, how many of its last queries see all of
 * its keys. 0 when more than positions decides inside the tile: something added, or several segments. */
int64_t ra__mask_clear_keys(const struct ra__mask_view *v, const struct ra__mask_queries *q, const struct ra__mask_tile *t);
int64_t ra__mask_clear_queries(const struct ra__mask_view *v, const struct ra__mask_tile *t);

/* Writes the additive tile in units of log2 and returns the number of visible pairs.
 * by_key:   out[key][lane] for lanes queries; lanes from nq on are visible zeros (their results are never used).
 * by_query: out[query][lane] for lanes keys; lanes from nk on are hidden. */
int64_t ra__mask_fill_by_key(const struct ra__mask_view *v, const struct ra__mask_tile *t, int64_t h, int lanes, float *out);
int64_t ra__mask_fill_by_query(const struct ra__mask_view *v, const struct ra__mask_tile *t, int64_t h, int lanes, float *out);

/* Is there an edge of documents in front of query (key) t > 0, so that a tile across it would be half empty? The two queries see nothing in
 * common; no query of the view sees both keys, as far as ids tell. */
bool ra__mask_edge_of_queries(const struct ra__mask_view *v, int64_t b, int64_t t);
bool ra__mask_edge_of_keys(const struct ra__mask_view *v, int64_t b, int64_t t);

/* The largest key position that the query at global position i sees. N: causal_block, 1 for causal. */
int64_t ra__mask_last_key(int64_t i, int64_t offset, int64_t N);

#endif
