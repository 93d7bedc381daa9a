/* The walkers: follow a schedule, overlapping one exchange with one block of attention per step. */
#ifndef RA_RING_RING_H
#define RA_RING_RING_H

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

/* Bytes of the message that carries the block of T tokens: k, v, segment ids; and of its gradients. -1: overflow. */
int64_t ra__kv_bytes(const struct ra__ring *ring, int64_t T);
int64_t ra__dkv_bytes(const struct ra__ring *ring, int64_t T);

int64_t ra__ring_forward_bytes(const struct ra__ring *ring); /* workspace; -1: overflow */
int64_t ra__ring_backward_bytes(const struct ra__ring *ring);

ra_status ra__ring_forward(const struct ra__ring *ring, const ra_attention_args *args, char *workspace);
ra_status ra__ring_backward(const struct ra__ring *ring, const ra_attention_args *args, char *workspace);

/* ---- shared by the two walkers (exchange.c) ---- */

/* The transfers of one step, and what they cost. */
struct ra__exchange {
    ra_comm *comm;
    struct ra__transfer transfer[4];
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

/* The block at hand and the one that arrives. Over a link the block lies in one of two message buffers and the next arrives in the other;
 * where the ranks share memory only a reference travels and the block stays in its owner's tensors. */
struct ra__traveller {
    const struct ra__ring *ring;
    bool by_reference;
    char *buffer[2];
    int64_t *positions;        /* [Tkv_max], of the block at hand */
    struct ra__kv_block block; /* at hand; positions are this rank's own copy, stretches what this rank sees of it */
    struct ra__kv_block coming;
};

/* At step 0: this rank's own block, straight from the caller's tensors, copied into a message buffer if it is to be sent as bytes. */
struct ra__traveller ra__traveller_begin(const struct ra__ring *ring, const ra_attention_args *args, char *buffer[2], int64_t *positions);
/* This rank's own block again, in place of the one at hand. */
struct ra__kv_block ra__traveller_own(const struct ra__traveller *t, const ra_attention_args *args);
/* Posts what step i receives and sends of keys and values. */
ra_status ra__traveller_post(struct ra__traveller *t, struct ra__exchange *x, int i);
/* After step i: what arrived is at hand. */
void ra__traveller_advance(struct ra__traveller *t, int i);
/* By reference, no rank returns, and so gives its tensors back to the caller, before all have finished with them: neither after success nor
 * after a failure (then at most the comm's deadline later). Returns status, or the failure of waiting. */
ra_status ra__traveller_end(const struct ra__traveller *t, ra_status status, char *all_ranks);
/* Bytes of each of the two buffers, and of all_ranks. -1: overflow. */
int64_t ra__traveller_bytes(const struct ra__ring *ring);

/* Gradients that belong to no key (shared_gradients.c): where this rank's part of dsinks [H] goes, and the sums over all ranks, after the
 * walk. Collective. */
int64_t ra__shared_gradients_bytes(const struct ra__ring *ring);
double *ra__shared_gradients_sinks(const struct ra__ring *ring, char *workspace);
ra_status ra__shared_gradients_finish(const struct ra__ring *ring, const ra_attention_args *args, char *workspace);

struct ra__q_shard ra__own_q(const struct ra__ring *ring, const ra_attention_args *args);

#endif
