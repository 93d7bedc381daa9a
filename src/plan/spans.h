/* The mask by position, as spans: what one query sees is a sorted list of disjoint, non-touching intervals of key positions. The same mask
 * given in several ways (causal, a window, slices, one packed sequence ...) gives the same spans, and from there on the same bits.
 * Everything global about a mask is in one struct, so that any rank can say what the queries of any other see. */
#ifndef RA_PLAN_SPANS_H
#define RA_PLAN_SPANS_H

#include "block/mask.h"

/* A rectangle of visible pairs, or what is left of it under its diagonals. */
struct ra__slice {
    int64_t q0, q1, k0, k1;
    int64_t type; /* 1: causal, k - k1 <= q - q1; 2: inverse causal, k - k0 >= q - q0; 3: both; 0: the whole rectangle */
};

/* Query i of Sq sees key j of Skv when all that is given holds (position = i + offset; packed sequences count from their own starts):
 *   both are in the same packed sequence
 *   block          floor(j / block) <= floor(position / block), or j < prefix
 *   left           j >= position - left, or j < keep_first
 *   right          j <= position + right
 *   slices         some slice covers (i, j), in positions of the whole */
struct ra__mask_rule {
    int64_t Sq, Skv;
    int64_t block;                 /* 0: not causal, 1: causal, else block-causal */
    bool bottom_right;             /* offset: keys - queries of the sequence, else 0 */
    int64_t left, right;           /* < 0: unlimited */
    int64_t prefix, keep_first;    /* 0: none */
    const int32_t *cu_q, *cu_k;    /* [sequences + 1], or NULL: one sequence of everything */
    int64_t sequences;             /* of cu_q */
    const struct ra__slice *slice; /* sorted by ra__slices_sort; NULL: not given */
    const int64_t *slice_reach;    /* [slices] */
    int64_t slices;
    int64_t most; /* room that ra__mask_row needs, in spans (ra__mask_rule_finish) */
};

/* Sorts slices for the rule; reach [n] is written. A given list without slices hides everything: slice must not be NULL then. */
void ra__slices_sort(struct ra__slice *slice, int64_t *reach, int64_t n);

/* Does anything depend on where the diagonal is? */
static inline bool ra__mask_rule_positional(const struct ra__mask_rule *rule) {
    return rule->block > 0 || rule->left >= 0 || rule->right >= 0;
}

/* Sets `most`, when all else is set. */
void ra__mask_rule_finish(struct ra__mask_rule *rule);

/* The spans of query i, clipped to [0, Skv). out: room for rule->most. */
int64_t ra__mask_row(const struct ra__mask_rule *rule, int64_t i, struct ra__span *out);

/* The key position that query i is aligned with, i + offset in positions of the whole: ALiBi's origin. 0 outside of all sequences. */
int64_t ra__mask_aligned(const struct ra__mask_rule *rule, int64_t i);

/* A growing union of spans, for what many queries see together. Spans that touch without overlapping stay apart: no query sees both sides
 * of where they meet. */
struct ra__span_set {
    const ra_allocator *memory;
    struct ra__span *span;
    int64_t count, room;
    int64_t previous; /* where the spans of the row before begin */
};

/* Adds one row of n spans. Rows that overlap the row before cost no memory. false: no memory. */
bool ra__span_set_add(struct ra__span_set *set, const struct ra__span *row, int64_t n);
/* Sorts and joins, after the last row. */
void ra__span_set_finish(struct ra__span_set *set);
void ra__span_set_free(struct ra__span_set *set);

#endif
