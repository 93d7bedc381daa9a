/* The walkers: follow a schedule, overlapping one exchange with one block of attention per step. */
#ifndef RA_RING_RING_H
#define RA_RING_RING_H

#include "base/memory.h"
#include "base/status.h"
#include "block/block.h"
#include "link/link.h"
#include "ring/layout.h"
#include "ring/schedule.h"

/* Everything about a plan that the walkers need; immutable, made by the plan room. */
struct ra__ring {
    ra_comm *comm;
    struct ra__attn attn;
    struct ra__schedule schedule;
    ra_dtype dtype; /* of q, k, v */
    ra_layout layout;
    int64_t Sq, Skv, Tkv_max;        /* Tkv_max: the longest shard of keys of any rank */
    struct ra__shard q, kv;          /* this rank's */
    struct ra__spans q_spans;        /* by query, see block/mask.h */
    struct ra__panels q_panels;      /* of the forward */
    int32_t *q_segment, *kv_segment; /* [B,Tq], [B,Tkv], or NULL */
    int64_t *kv_lens;                /* [B], or NULL */
    float *alibi;                    /* [H], or NULL; with it ... */
    int64_t *q_aligned;              /* ... [Tq] */
    int64_t *q_position;             /* [Tq], with dropout */
    bool has_bias, backward;
    int64_t workspace_bytes; /* of the larger pass */
};

/* Bytes of the message that carries T rows of a block: k, v, segment ids; and of their gradients. -1: overflow. */
int64_t ra__kv_bytes(const struct ra__ring *ring, int64_t T);
int64_t ra__dkv_bytes(const struct ra__ring *ring, int64_t T);

int64_t ra__ring_forward_bytes(const struct ra__ring *ring); /* workspace; -1: overflow */
int64_t ra__ring_backward_bytes(const struct ra__ring *ring);

ra_status ra__ring_forward(const struct ra__ring *ring, const ra_attention_args *args, char *workspace);
ra_status ra__ring_backward(const struct ra__ring *ring, const ra_attention_args *args, char *workspace);

/* ---- shared by the two walkers (exchange.c) ---- */

enum { RA__TRANSFERS = 7 }; /* keys and values: two in, two out; sums of gradients: one in, one on, one home */

/* The transfers of one step, and what they cost. */
struct ra__exchange {
    ra_comm *comm;
    struct ra__transfer transfer[RA__TRANSFERS];
    int count;
    ra_status failure; /* of a poll between tiles; reported when the step ends */
    int64_t bytes_sent;
    double seconds_transfer, seconds_exposed;
};

enum { RA__TAG_KV = 1, RA__TAG_DKV = 2, RA__TAG_HOME = 3 };

ra_status ra__exchange_send(struct ra__exchange *x, int to, int tag, const void *data, int64_t bytes);
ra_status ra__exchange_recv(struct ra__exchange *x, int from, int tag, void *data, int64_t bytes);
struct ra__poll ra__exchange_poll(struct ra__exchange *x);
/* Waits for the step's transfers and clears them. */
ra_status ra__exchange_finish(struct ra__exchange *x, const char *operation, int step);

/* Do references travel instead of rows? Where all ranks share memory the block stays in its owner's tensors. */
bool ra__by_reference(const struct ra__ring *ring);

/* How step i > 0, if it computes, finds the block: all rows of its owner in place, or those that came, one after the other. Both ways it
 * computes on the same rows in the same tiles: a range of rows is a stretch while there are at most two, else what lies between the jumps
 * of the shard's positions is one. */
struct ra__visit {
    bool in_place;
    int64_t T; /* rows */
    struct ra__stretches stretches;
};
struct ra__visit ra__visit_of(const struct ra__ring *ring, int i);

/* Message buffers: the blocks at hand and arriving, in turns (of step 0, which needs none, the message to serve); two messages that make
 * one block; what is passed on where that is not all that came; rows of this rank's own block. By reference only the first is used, for
 * blocks of which little is needed: these are copied from their owner's tensors, so that what is computed needs no more memory than over a
 * link. */
enum { RA__HAND = 0, RA__PASSED = 2, RA__SERVED, RA__PASS, RA__SERVE, RA__BUFFERS };

/* The block at hand and the one that arrives. */
struct ra__traveller {
    const struct ra__ring *ring;
    const ra_attention_args *args;
    bool by_reference;
    char *buffer[RA__BUFFERS];
    int64_t *positions;
    struct ra__kv_block own;              /* this rank's */
    struct ra__kv_block block;            /* at hand, when the step computes; positions are this rank's own copy */
    struct ra__kv_block whole, coming[2]; /* by reference: at hand and arriving, as the owner has it */
};

/* Where it lies in the workspace. */
struct ra__traveller_map {
    int64_t positions, buffer[RA__BUFFERS]; /* offsets */
    int64_t T;                              /* the most rows of a block that is computed on */
};
struct ra__traveller_map ra__traveller_reserve(const struct ra__ring *ring, struct ra__layout *w);

/* At step 0: this rank's own block, straight from the caller's tensors. */
struct ra__traveller ra__traveller_begin(const struct ra__ring *ring, const ra_attention_args *args, const struct ra__traveller_map *m,
                                         char *workspace);
/* This rank's own block again, in place of the one at hand. */
struct ra__kv_block ra__traveller_own(const struct ra__traveller *t);
/* Posts what step i receives and sends of keys and values. */
ra_status ra__traveller_post(struct ra__traveller *t, struct ra__exchange *x, int i);
/* After step i: what arrived is at hand. */
void ra__traveller_advance(struct ra__traveller *t, int i);
/* By reference, no rank returns, and so gives its tensors back to the caller, before all have finished with them: neither after success nor
 * after a failure (then at most the comm's deadline later). Returns status, or the failure of waiting. */
ra_status ra__traveller_end(const struct ra__traveller *t, ra_status status);

/* Gradients that belong to no key (shared_gradients.c): where this rank's part of dsinks [H] goes, and the sums over all ranks, after the
 * walk. Collective. */
int64_t ra__shared_gradients_bytes(const struct ra__ring *ring);
double *ra__shared_gradients_sinks(const struct ra__ring *ring, char *workspace);
ra_status ra__shared_gradients_finish(const struct ra__ring *ring, const ra_attention_args *args, char *workspace);

struct ra__q_shard ra__own_q(const struct ra__ring *ring, const ra_attention_args *args);

#endif
