/* problem -> plan: validation, agreement of the ranks, layout, tiles, kernels, memory. */
#ifndef RA_PLAN_PLAN_H
#define RA_PLAN_PLAN_H

#include "plan/spans.h"
#include "ring/ring.h"

/* Smallest and largest segment id of one rank's queries and keys in one batch element; min > max: no tokens. */
struct ra__segment_range {
    int32_t q_min, q_max, k_min, k_max;
};

struct ra_plan {
    ra_comm *comm;
    ra_problem problem; /* without pointers; scale and threads filled in */
    struct ra__ring ring;
    struct ra__mask_rule rule; /* the mask by position */
    bool has_segments;
    struct ra__segment_range *ranges; /* [P][B], or NULL */
    struct ra__rank_mask *ranks;      /* [P] */
    int64_t *span_first, *edges;      /* storage of ring.q_spans and ring.q_panels */
    struct ra__span *spans;
    struct ra__stretch *panels;
    int64_t panel_count;
    int32_t *cu; /* storage of rule */
    struct ra__slice *slices;
    int64_t *slice_reach;
};

/* Does rank r see anything of the block of rank b? */
bool ra__plan_needs(const ra_plan *plan, int r, int b);

/* ra__needs_fn over a plan: which local rows of it. Segments hide whole blocks at most. */
int64_t ra__plan_rows(const void *plan, int r, int b, struct ra__stretch *ranges, int64_t max);

/* Pairs that rank r computes by position and length alone, of one head, over all batch elements. */
double ra__plan_pairs(const ra_plan *plan, int r);

/* ---- the mask as a plan keeps it (masks.c) ---- */

/* What the queries of one rank see by position and length. */
struct ra__rank_mask {
    struct ra__span_set seen; /* of any batch element */
    double pairs;
};

/* The rule of a problem, without the parts that are copied. */
struct ra__mask_rule ra__mask_rule_of(const ra_problem *p);
/* Copies those parts into plan->rule, ring->kv_lens and ring->alibi. */
ra_status ra__masks_copy(ra_plan *plan, const ra_problem *p);
/* Works plan->rule and ring->kv_lens into plan->ranks, ring->q_spans and ring->q_panels, and ring->q_aligned where there is ring->alibi.
 * Segments are there already. */
ra_status ra__masks_build(ra_plan *plan);
void ra__masks_free(ra_plan *plan);
int64_t ra__masks_bytes(const ra_plan *plan); /* of memory that these hold */

/* Checks of one rank's own arguments (validate.c). */
ra_status ra__validate_problem(const ra_problem *p, int P, int r);

/* Offsets [sequences+1] of packed sequences in S tokens; `what` is S's name. */
ra_status ra__validate_offsets(const char *name, const int32_t *offsets, int64_t sequences, const char *what, int64_t S);

/* Refuses what the engine does not do of what a valid problem asks for (supports.c). */
ra_status ra__unsupported(const ra_problem *p);

/* Of n elements (FNV-1a); 0 for NULL alone. */
uint64_t ra__hash(const void *data, int64_t n, size_t bytes);

/* What a rank may learn from the others: whether there are segments, for ranks without tokens; whether there is a backward, for ranks
 * that follow. */
struct ra__agreed {
    bool segments, backward;
};

/* All ranks fail if one has, with its reason; all fail if their problems differ, naming the field (agree.c). */
ra_status ra__agree(ra_comm *comm, const ra_problem *p, ra_status own, bool follows, struct ra__agreed *agreed);

/* ra_plan_create. follows: this rank wants no backward itself, and plans for one if another rank wants it. */
ra_status ra__plan_create(ra_comm *comm, const ra_problem *problem, bool follows, ra_plan **plan);

/* Sets the tile sizes of ring->attn (tiles.c). */
void ra__choose_tiles(struct ra__ring *ring, const ra_problem *p);

#endif
