/* problem -> plan: validation, agreement of the ranks, layout, tiles, kernels, memory. */
#ifndef RA_PLAN_PLAN_H
#define RA_PLAN_PLAN_H

#include "ring/ring.h"

/* Smallest and largest segment id of one rank's queries and keys in one batch element; min > max: no tokens. */
struct ra__segment_range {
    int32_t q_min, q_max, k_min, k_max;
};

struct ra_plan {
    ra_comm *comm;
    ra_problem problem; /* without pointers; scale and threads filled in */
    struct ra__ring ring;
    bool positional;       /* causal or block-causal */
    int64_t offset, block; /* of the positional mask: last visible key = ra__mask_last_key(i, offset, block) */
    bool has_segments;
    struct ra__segment_range *ranges; /* [P][B], or NULL */
    struct ra__step *steps;           /* [P], storage of ring.schedule */
};

/* ra__needs_fn over a plan. */
bool ra__plan_needs(const void *plan, int r, int b);

/* Pairs that rank r computes by position alone, of one batch element and head. */
double ra__plan_pairs(const ra_plan *plan, int r);

/* Checks of one rank's own arguments (validate.c). */
ra_status ra__validate_problem(const ra_problem *p, int P, int r);

/* Offsets [sequences+1] of packed sequences in S tokens; `what` is S's name. */
ra_status ra__validate_offsets(const char *name, const int32_t *offsets, int64_t sequences, const char *what, int64_t S);

/* Refuses what the engine does not do yet (supports.c): of a valid problem, and of the outputs that a run asks for. */
ra_status ra__unsupported(const ra_problem *p);
ra_status ra__unsupported_run(const ra_attention_args *args, bool backward);

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
