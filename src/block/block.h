/* The attention of one rank's queries with one visiting key/value block: the threaded drivers above the kernels.
 *
 * Forward (arXiv 2205.14135 algorithm 1, over blocks that arrive one ring step at a time): state m (row maximum), l (row sum) and the
 * unnormalised output o, all fp32, kept as lane panels; ra__forward_block folds one block into them, the last one also writes the result.
 * Backward (ibid. algorithm 4): begin packs q and dout once, every block yields its dk, dv and adds to dq, end writes dq.
 *
 * Work is cut into tasks which threads take in ascending order. Every sum has one owner and one order, so that the bits do not depend on
 * the number of threads. All memory is the caller's; nothing is allocated here. */
#ifndef RA_BLOCK_BLOCK_H
#define RA_BLOCK_BLOCK_H

#include "block/kernels.h"
#include "block/mask.h"

enum { RA__MAX_KEY_PANELS = 64 }; /* k_tile_b is at most this many lane panels */

/* What never changes between runs. */
struct ra__attn {
    const struct ra__kernels *k;
    const struct ra__kernels *k_decode; /* of short queries: fp32 products, as they wait for memory anyway */
    int64_t B, H, G, D, Dv;
    float scale;   /* of the logits */
    float q_scale; /* what q is multiplied with when packed, and ... */
    float s_scale; /* ... what the products are multiplied with: together scale * log2(e), rounded once (ra__attn_scale) */
    int threads;
    int64_t q_tile, k_tile;     /* forward: rows per query tile (multiple of lanes), keys per block (multiple of rows) */
    int64_t q_tile_b, k_tile_b; /* backward: multiple of rows; multiple of lanes */
    float softcap;              /* in units of log2, 0: none. Like dropout for sets with pair = 1 */
    bool drops;                 /* dropout (dropout.h): */
    uint64_t seed, threshold;
    float keep_scale; /* 1 / (1 - p) */
};

/* Sets the three scales. */
void ra__attn_scale(struct ra__attn *a, double scale);

/* A maximal stretch of local tokens with ascending global positions; tiles never cross its ends. */
struct ra__stretch {
    int64_t t0, n;
};
struct ra__stretches {
    struct ra__stretch part[2];
    int count;
};

/* A visiting block: views of k and v, tokens, and its own mask data. */
struct ra__kv_block {
    ra_tensor k, v; /* [B,T,G,D], [B,T,G,Dv] */
    int64_t T;
    struct ra__stretches stretches;
    const int64_t *position; /* [T] */
    const int32_t *segment;  /* [B,T] or NULL */
};

/* Lane panels of tokens: runs of at most `lanes` that cross neither the end of a stretch nor, where that pays, the edge of a document. */
struct ra__panels {
    const struct ra__stretch *panel; /* [count] of batch element 0, then those of element 1 ...; n = 0: not used by this one */
    int64_t count;
    bool shared; /* all batch elements have the same */
};

/* The resident queries of this rank. For the last four and the spans see mask.h. */
struct ra__q_shard {
    int64_t T;
    struct ra__stretches stretches;
    struct ra__panels panels; /* of the forward's lanes */
    struct ra__spans spans;
    const int32_t *segment;   /* [B,T] or NULL */
    const ra_tensor *bias;    /* or NULL */
    const int64_t *kv_lens;   /* [B] or NULL */
    const float *alibi;       /* [H] or NULL */
    const int64_t *aligned;   /* [T], with alibi */
    const int64_t *position;  /* [T], with dropout */
    const float *temperature; /* [T] factors of q, or NULL; for sets with pair = 1 */
    const float *sinks;       /* [H] or NULL */
};

/* Called by the thread that called the driver, between tiles: progress the exchange. A failure is the callee's to remember. */
struct ra__poll {
    void (*fn)(void *arg);
    void *arg;
};

/* Workspace of the forward: bytes for `panels` panels of queries and at most Tk_max keys a block. keep_state: more than one block will be
 * folded in. */
int64_t ra__forward_bytes(const struct ra__attn *a, int64_t panels, int64_t Tk_max, bool keep_state);

struct ra__forward {
    const struct ra__attn *a;
    struct ra__q_shard q_shard;
    ra_tensor q, out;
    float *lse, *row_max; /* [B,H,T] or NULL */
    char *workspace;
    int64_t Tk_max;
    bool keep_state;
    int64_t pairs; /* visible pairs computed so far */
};

/* Folds one block in. first: the state is initialised; last: out and lse are written. block->T may be 0 (still initialises, writes). */
void ra__forward_block(struct ra__forward *f, const struct ra__kv_block *block, bool first, bool last, struct ra__poll poll);

/* The same for few queries against many keys (attn_decode.c). All blocks of a run go through one of the two. */
enum { RA__DECODE_ROWS = 16 }; /* query heads of a group times queries, at most */
bool ra__decode_suits(const struct ra__attn *a, int64_t Tq);
int64_t ra__decode_bytes(const struct ra__attn *a, int64_t Tq, int64_t Tk_max);
void ra__decode_block(struct ra__forward *f, const struct ra__kv_block *block, bool first, bool last, struct ra__poll poll);

int64_t ra__backward_bytes(const struct ra__attn *a, const struct ra__stretches *q, int64_t Tk_max);

struct ra__backward {
    const struct ra__attn *a;
    struct ra__q_shard q_shard;
    ra_tensor q, out, dout, dq; /* dout.data NULL: zero; dq.data NULL: not wanted */
    const float *lse, *dlse;    /* [B,H,T]; dlse may be NULL */
    double *dsinks;             /* [H], this rank's part; NULL: not wanted */
    ra_tensor dbias;            /* this rank's part, by local query and global key; data NULL: not wanted */
    int64_t Sq, Skv;            /* with dbias */
    char *workspace;
    int64_t Tk_max;
    int64_t pairs;
};

void ra__backward_begin(struct ra__backward *w);
/* dk [B,G,T,D] and dv [B,G,T,Dv], fp32 without gaps, are overwritten with this block's gradients from this rank's queries. */
void ra__backward_block(struct ra__backward *w, const struct ra__kv_block *block, float *dk, float *dv, struct ra__poll poll);
/* One of `parts` shares of that work, 0 to parts - 1, which together make the same dk and dv: every parts-th tile of keys, from another one
 * on in the next head, so that whatever the mask the shares cost about the same. Other blocks may be computed between them. */
void ra__backward_part(struct ra__backward *w, const struct ra__kv_block *block, int part, int parts, float *dk, float *dv,
                       struct ra__poll poll);
void ra__backward_end(struct ra__backward *w);

#endif
