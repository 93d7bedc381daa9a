/* What the forward and the backward driver share: tiles that never cross the end of a stretch, rows as fp32, non-finite rows. */
#ifndef RA_BLOCK_TILES_H
#define RA_BLOCK_TILES_H

#include "base/memory.h"
#include "block/block.h"

struct ra__tile {
    int64_t t0, n;
    int64_t padded; /* rows before this tile when every tile is rounded up to `multiple`: where its packed rows begin */
};

static inline int64_t ra__round_up(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

static inline int64_t ra__tile_count(const struct ra__stretches *s, int64_t size) {
    int64_t count = 0;
    for (int i = 0; i < s->count; i++)
        count += (s->part[i].n + size - 1) / size;
    return count;
}

/* Tile i of the stretches cut into pieces of `size`. */
static inline struct ra__tile ra__tile_at(const struct ra__stretches *s, int64_t size, int64_t multiple, int64_t i) {
    int64_t padded = 0;
    for (int part = 0; part < s->count; part++) {
        int64_t n = s->part[part].n, count = (n + size - 1) / size;
        if (i < count)
            return (struct ra__tile){s->part[part].t0 + i * size, n - i * size < size ? n - i * size : size, padded + i * size};
        i -= count;
        padded += ra__round_up(n, multiple);
    }
    return (struct ra__tile){0, 0, padded};
}

/* Upper bound of `padded` + n over all tiles of T tokens in at most two stretches; a multiple of `multiple`. */
static inline int64_t ra__padded_rows(int64_t T, int64_t multiple) {
    return ra__round_up(T, multiple) + multiple;
}

static inline struct ra__mask_view ra__view_of(const struct ra__q_shard *q, const struct ra__kv_block *block) {
    return (struct ra__mask_view){.q = q->spans,
                                  .k_position = block->position,
                                  .q_segment = q->segment,
                                  .k_segment = block->segment,
                                  .Tq = q->T,
                                  .Tk = block->T,
                                  .bias = q->bias,
                                  .kv_lens = q->kv_lens,
                                  .alibi = q->alibi,
                                  .q_aligned = q->aligned};
}

/* Panel i of batch element b. */
static inline struct ra__stretch ra__panel_at(const struct ra__panels *p, int64_t b, int64_t i) {
    return p->panel[(p->shared ? 0 : b * p->count) + i];
}

/* ra__mask_edge_of_queries or of keys. */
typedef bool ra__edge_fn(const struct ra__mask_view *v, int64_t b, int64_t t);

/* Cuts stretches into panels of `lanes` tokens, beginning anew at edges, but never after fewer than `lanes` tokens: a panel across an edge
 * computes on the keys of both sides for all its lanes. edge NULL: there are none. out NULL: only counts. */
int64_t ra__cut_panels(const struct ra__stretches *s, int64_t lanes, ra__edge_fn *edge, const struct ra__mask_view *v, int64_t b,
                       struct ra__stretch *out);

/* The most panels that T tokens can be cut into. */
static inline int64_t ra__most_panels(int64_t T, int64_t lanes) {
    return 2 * (T / lanes) + 4;
}

/* Words that k values take in an operand. */
static inline int64_t ra__words(const struct ra__kernels *kernels, int64_t k) {
    return (k + kernels->pair - 1) / kernels->pair;
}

/* Words that k values along the sum take in a row of a left panel: A is padded where B is not. */
static inline int64_t ra__left_words(const struct ra__kernels *kernels, int64_t k) {
    return ra__round_up(k, kernels->k_step) / kernels->pair;
}

/* n rows t0.. of head h as fp32: in place when they are stored so, else converted into scratch [n][k]. *ld: distance of rows. */
const float *ra__rows(const struct ra__kernels *kernels, const ra_tensor *x, int64_t b, int64_t t0, int64_t n, int64_t h, int64_t k,
                      float *scratch, int64_t *ld);
/* The inverse, from fp32 rows ld apart. */
void ra__store_rows(const struct ra__kernels *kernels, const ra_tensor *x, int64_t b, int64_t t0, int64_t n, int64_t h, int64_t k,
                    const float *rows, int64_t ld);

/* n rows as operands of products, for the pack functions: fp32, or pairs of bf16 (any type is rounded to it). In place when they are stored
 * so, else in scratch [n][ra__row_scratch(k)]. *ld: distance of rows in words. */
const float *ra__operand_rows(const struct ra__kernels *kernels, const ra_tensor *x, int64_t b, int64_t t0, int64_t n, int64_t h, int64_t k,
                              float *scratch, int64_t *ld);

/* The same of queries, each multiplied by its temperature (indexed by t; NULL: 1). */
const float *ra__query_rows(const struct ra__kernels *kernels, const ra_tensor *q, int64_t b, int64_t t0, int64_t n, int64_t h, int64_t k,
                            const float *temperature, float *scratch, int64_t *ld);

/* Floats of scratch for one row of k values. */
static inline int64_t ra__row_scratch(int64_t k) {
    return k + (k + 1) / 2;
}

/* Hidden keys and queries must not leak: 0 * NaN is NaN. So operands that are multiplied by probabilities are packed with every NaN and
 * infinity replaced by 0, and where a tile had any, its visible products are added afterwards, one by one.
 * Returns operand rows that are finite: `rows` itself, or a cleaned copy in scratch with *clean = false. */
const float *ra__finite_rows(const struct ra__kernels *kernels, const float *rows, int64_t *ld, int64_t n, int64_t k, float *scratch,
                             bool *clean);

/* What the softmax kernels left: value (row, lane) of words [n/pair][lanes], and of rows of lanes/pair words. */
float ra__col_value(const struct ra__kernels *kernels, const float *words, int64_t row, int64_t lane);
float ra__row_value(const struct ra__kernels *kernels, const float *words, int64_t row, int64_t lane);

#endif
