/* libringattention: exact attention over sequences too long for one device.
 *
 * The queries, keys and values of one long sequence are dealt out to a ring of ranks. Each rank keeps its queries; the key/value
 * blocks travel round the ring, one neighbour per step, while the block at hand is computed. The result is that of ordinary
 * softmax attention, forward and backward, up to rounding.
 *
 * Sources: Liu, Zaharia, Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context", arXiv 2310.01889;
 * Liu, Abbeel, "Blockwise Parallel Transformer for Large Context Models", arXiv 2305.19370.
 *
 * Use: make a comm (who are the ranks), describe a problem, plan it (collective), run it as often as you like.
 *
 * Dimensions, the same letters everywhere:
 *   B   batch                        D   head size of q and k        P   ranks
 *   Sq  queries of the whole sequence  Dv  head size of v and out      r   rank, 0..P-1
 *   Skv keys of the whole sequence     H   query heads                 T   tokens on this rank (Tq queries, Tkv keys)
 *   E   model width (feed-forward)     G   key/value heads, divides H  F   feed-forward width
 *
 * Errors: every function that can fail returns ra_status, 0 or a negative code; ra_last_error() adds the detail for the calling
 * thread. The library never prints, exits or aborts. Out-parameters come last and are set only on success.
 * Threads: objects are immutable after creation except comms and workspaces; one comm and one workspace serve one run at a time.
 */
#ifndef RINGATTENTION_H
#define RINGATTENTION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RA_VERSION_MAJOR 0
#define RA_VERSION_MINOR 1
#define RA_VERSION_PATCH 0

#if defined(__GNUC__)
#define RA_API __attribute__((visibility("default")))
#else
#define RA_API
#endif

/* ---- status ------------------------------------------------------------------------------------------------------------------ */

/* One list gives code, name and text. X(name, code, text) */
#define RA_STATUS_LIST(X)                                           \
    X(OK, 0, "success")                                             \
    X(ERR_INVALID, -1, "invalid argument")                          \
    X(ERR_UNSUPPORTED, -2, "not supported")                         \
    X(ERR_MISMATCH, -3, "the ranks disagree")                       \
    X(ERR_MEMORY, -4, "out of memory")                              \
    X(ERR_PEER_LOST, -5, "a rank was lost")                         \
    X(ERR_TIMEOUT, -6, "a rank did not answer within the deadline") \
    X(ERR_LINK, -7, "the link between ranks failed")                \
    X(ERR_OVERFLOW, -8, "a size does not fit in 64 bits")           \
    X(ERR_INTERNAL, -9, "internal error")

typedef enum ra_status {
#define RA_X(name, code, text) RA_##name = (code),
    RA_STATUS_LIST(RA_X)
#undef RA_X
} ra_status;

RA_API const char *ra_status_name(ra_status s); /* "ERR_INVALID" */
RA_API const char *ra_status_text(ra_status s); /* "invalid argument" */

/* The detail of the calling thread's last failure, e.g. "k: 3 heads, q: 8 heads: q heads must be a multiple of k heads".
 * Valid until the thread's next call into the library; "" if there was none. */
RA_API const char *ra_last_error(void);

RA_API const char *ra_version(void); /* "0.1.0" */

/* ---- memory ------------------------------------------------------------------------------------------------------------------ */

/* Where the library gets its memory. alloc returns at least `bytes` aligned to `align` (a power of two), or NULL. */
typedef struct ra_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*free)(void *user, void *ptr);
    void *user;
} ra_allocator;

/* ---- comm: who the ranks are --------------------------------------------------------------------------------------------------- */

typedef struct ra_comm ra_comm;

typedef struct ra_comm_options {
    double timeout_s;              /* deadline of every wait for a peer, in seconds; 0: 300. It must exceed one step's compute time */
    const ra_allocator *allocator; /* NULL: malloc. Copied; its user pointer must outlive the comm and its plans */
} ra_comm_options;

/* Faults and slowness to inject into the local link, for tests and demonstrations. All zero: none. */
typedef struct ra_local_options {
    double delay_s;     /* added to every message */
    double bytes_per_s; /* wire speed; 0: memory speed */
    size_t max_message; /* longest single message in bytes, longer ones are split; 0: no limit */
    int fail_rank;      /* this rank's link fails ... */
    int64_t fail_after; /* ... at its fail_after-th message, sent or received (1 = first); 0: never */
    int fail_silently;  /* 0: the failing rank reports ERR_LINK and the others learn of it at once;
                           1: it stops answering, so that the others find out by their deadline */
} ra_local_options;

/* One rank, no communication. Not collective. Errors: ERR_MEMORY. */
RA_API ra_status ra_comm_create_self(const ra_comm_options *options, ra_comm **comm);

/* P ranks as threads of this process: comms[0..P-1] are filled, each to be used by one thread.
 * Errors: ERR_INVALID (P < 1), ERR_MEMORY. Every comm is destroyed by its own user, in any order; destroying one while others still
 * wait for it fails them with ERR_PEER_LOST. */
RA_API ra_status ra_comm_create_local(int P, const ra_comm_options *options, const ra_local_options *local, ra_comm **comms);

/* Runs body(comm, rank, user) on P threads over a local comm and waits for all. Returns RA_OK, or the status of the first rank that
 * failed on its own (rather than because another one did), with ra_last_error() "rank 2: ...". */
RA_API ra_status ra_local_run(int P, const ra_comm_options *options, const ra_local_options *local,
                              ra_status (*body)(ra_comm *comm, int rank, void *user), void *user);

/* The comm of the launcher that started this process: under Open MPI's or MPICH's mpirun one rank per process, loaded at run time from
 * libringattention_openmpi.so or libringattention_mpich.so; otherwise the same as ra_comm_create_self. MPI is initialised
 * (FUNNELED) if it is not, and finalised with the comm if it was initialised here.
 * Errors: ERR_UNSUPPORTED (launched by an MPI that this installation was built without), ERR_LINK. Collective. */
RA_API ra_status ra_comm_create_launched(const ra_comm_options *options, ra_comm **comm);

RA_API void ra_comm_destroy(ra_comm *comm); /* NULL is allowed. Plans of the comm must be destroyed before */
RA_API int ra_comm_rank(const ra_comm *comm);
RA_API int ra_comm_size(const ra_comm *comm);
RA_API const char *ra_comm_kind(const ra_comm *comm); /* "self", "local", "openmpi", "mpich", or a custom link's name */

/* all[i*bytes ..] = rank i's mine. Collective. Errors: ERR_PEER_LOST, ERR_TIMEOUT, ERR_LINK. */
RA_API ra_status ra_comm_allgather(ra_comm *comm, const void *mine, void *all, size_t bytes);

/* Tells every other rank that this one gives up: their pending and later calls on the comm fail with ERR_PEER_LOST and `why`. */
RA_API void ra_comm_fail(ra_comm *comm, ra_status status, const char *why);

/* The seam for other transports. A link moves bytes between ranks; all calls come from one thread at a time. Nothing may block except
 * allgather. Messages between two ranks with the same tag arrive in the order in which they were sent. */
typedef struct ra_link_request {
    void *p[4];
    int64_t i[4];
} ra_link_request; /* storage for one message in flight; its meaning is the link's own */

typedef struct ra_link {
    const char *name;
    int rank, size;
    size_t max_message; /* longest message in bytes; 0: no limit. Longer transfers are split by the caller */
    /* Not NULL: all ranks share one address space, so that a pointer may be sent instead of what it points to. Adds `change` to a counter
     * that all ranks have in common, and returns its new value; works on failed links too. */
    int (*count)(void *self, int change);
    ra_status (*send)(void *self, int to, int tag, const void *buf, size_t bytes, ra_link_request *req);
    ra_status (*recv)(void *self, int from, int tag, void *buf, size_t bytes, ra_link_request *req);
    ra_status (*test)(void *self, ra_link_request *req, int *done); /* progresses; sets *done when buf is free or filled */
    ra_status (*allgather)(void *self, const void *mine, void *all, size_t bytes, double timeout_s);
    /* Tell the others, and leave the buffers of unfinished messages alone from now on. Called at most once; then only destroy is. */
    void (*fail)(void *self, ra_status status, const char *why);
    void (*destroy)(void *self);
    void *self;
} ra_link;

/* Wraps a link; on success the comm owns it and calls destroy. Errors: ERR_INVALID, ERR_MEMORY. */
RA_API ra_status ra_comm_create_link(const ra_link *link, const ra_comm_options *options, ra_comm **comm);

/* To be used by links for their failures: records the detail for ra_last_error() and returns s. */
RA_API ra_status ra_link_error(ra_status s, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/* ---- layout: which tokens a rank holds ------------------------------------------------------------------------------------------ */

typedef enum ra_layout {
    RA_CONTIGUOUS = 0, /* rank r holds the r-th of P equal parts */
    RA_ZIGZAG = 1,     /* 2P equal parts, rank r holds parts r and 2P-1-r: equal work under a causal mask */
    RA_STRIPED = 2     /* rank r holds tokens r, r+P, r+2P, ... (arXiv 2311.09431) */
} ra_layout;
/* "Equal" parts of n tokens: part i of N begins at i*(n/N) + min(i, n mod N). Any S and P are allowed; parts may be empty. */

RA_API int64_t ra_shard_size(ra_layout layout, int64_t S, int P, int r);                /* T; -1 for invalid arguments */
RA_API int64_t ra_shard_position(ra_layout layout, int64_t S, int P, int r, int64_t t); /* global position of local token t; -1 likewise */

/* The global positions of rank r's tokens: positions[t] for t < T. Errors: ERR_INVALID. */
RA_API ra_status ra_shard_positions(ra_layout layout, int64_t S, int P, int r, int64_t *positions);

/* The same counted from the beginning of each packed sequence, as rotary position embeddings of packed data want them. cu_seqlens
 * [sequences+1] as in ra_mask; tokens beyond the last offset count from there. Errors: ERR_INVALID. */
RA_API ra_status ra_packed_positions(ra_layout layout, int64_t S, int P, int r, const int32_t *cu_seqlens, int64_t sequences,
                                     int64_t *positions);

/* Labels of next-token prediction: shifted[b][t] is the label of the token that follows local token t in the whole sequence, whichever rank
 * holds it, and `ignore` for the last token of the sequence. labels, shifted: [B,T], this rank's tokens, not overlapping. With packed
 * sequences (cu_seqlens [sequences+1] as in ra_mask; NULL, 0: none), `ignore` also for the last token of each and for those beyond the
 * last offset. Collective: all ranks succeed, or all fail with the reason of the first that did.
 * Errors: ERR_INVALID, ERR_MISMATCH, ERR_MEMORY, ERR_PEER_LOST, ERR_TIMEOUT, ERR_LINK. */
RA_API ra_status ra_shift_labels(ra_comm *comm, ra_layout layout, int64_t B, int64_t S, const int32_t *cu_seqlens, int64_t sequences,
                                 const int64_t *labels, int64_t *shifted, int64_t ignore);

/* Reorders one axis of S tokens between sequence order and rank order (rank 0's tokens, rank 1's, ...).
 * src and dst: [outer][S][inner_bytes], not overlapping. Errors: ERR_INVALID. */
RA_API ra_status ra_permute(ra_layout layout, int64_t S, int P, const void *src, void *dst, int64_t outer, int64_t inner_bytes);
RA_API ra_status ra_unpermute(ra_layout layout, int64_t S, int P, const void *src, void *dst, int64_t outer, int64_t inner_bytes);

/* ---- tensors ------------------------------------------------------------------------------------------------------------------- */

typedef enum ra_dtype { RA_F32 = 0, RA_BF16 = 1, RA_F16 = 2 } ra_dtype;
RA_API size_t ra_dtype_size(ra_dtype t); /* bytes; 0 for an unknown type */

/* Element (b, t, h, d) is at data[b*stride[0] + t*stride[1] + h*stride[2] + d*stride[3]], strides in elements.
 * Inputs may overlap themselves (stride 0 broadcasts); outputs may not. data NULL: not given, not wanted. */
typedef struct ra_tensor {
    void *data;
    int64_t stride[4];
    ra_dtype dtype;
} ra_tensor;

RA_API ra_tensor ra_tensor_bshd(const void *data, ra_dtype dtype, int64_t T, int64_t H, int64_t D); /* [B,T,H,D] without gaps */
RA_API ra_tensor ra_tensor_bhsd(const void *data, ra_dtype dtype, int64_t T, int64_t H, int64_t D); /* [B,H,T,D] without gaps */
/* A bias [B|1,H|1,Tq|1,Skv] without gaps; axes of length 1 are broadcast. nb, nh, nt: their lengths as stored. */
RA_API ra_tensor ra_tensor_bias(const void *data, ra_dtype dtype, int64_t nb, int64_t nh, int64_t nt, int64_t Skv);

/* The customary ALiBi slopes of H heads: 2^(-8/H), 2^(-16/H), ... when H is a power of two, otherwise those of the power of two below,
 * followed by every other one of the power of two above. slopes: [H]. Errors: ERR_INVALID. */
RA_API ra_status ra_alibi_slopes(int64_t H, float *slopes);

/* ---- mask ---------------------------------------------------------------------------------------------------------------------- */

/* Which corner of the Sq x Skv matrix (of each packed sequence's own rectangle) a positional mask and ALiBi are aligned to. It must be
 * named when the two lengths differ and `causal`, `causal_block`, a window or ALiBi is used. */
typedef enum ra_align {
    RA_ALIGN_NONE = 0,
    RA_ALIGN_TOP_LEFT = 1,    /* offset 0 */
    RA_ALIGN_BOTTOM_RIGHT = 2 /* offset Skv - Sq: the last query sees the last key */
} ra_align;

/* One row of ra_mask.slices: queries q0..q1-1 see keys k0..k1-1 as far as `type` allows. */
typedef enum ra_slice_type {
    RA_SLICE_FULL = 0,
    RA_SLICE_CAUSAL = 1,         /* k - k1 <= q - q1: the rectangle's last query sees its last key */
    RA_SLICE_INVERSE_CAUSAL = 2, /* k - k0 >= q - q0: the rectangle's first query sees its first key */
    RA_SLICE_BOTH = 3            /* both conditions: a diagonal band */
} ra_slice_type;

/* A query at global position i sees the key at global position j when every condition that is given holds:
 *   causal         j <= i + offset, or j < prefix
 *   causal_block   floor(j / N) <= floor((i + offset) / N), N = causal_block > 0, or j < prefix (N = 1 is causal; not together with
 *                  `causal`)
 *   window_left    j >= i + offset - window_left, or j < keep_first
 *   window_right   j <= i + offset + window_right
 *   segments       q_segment_ids[i] == kv_segment_ids[j]
 *   kv_lens        j < kv_lens[b]
 *   cu_seqlens     i and j are in the same packed sequence: cu_seqlens_q[s] <= i < cu_seqlens_q[s+1], the same s for j and cu_seqlens_kv.
 *                  In the four conditions above, i and j then count from the beginning of the sequence, and offset is that of the sequence
 *   slices         some slice covers (i, j)
 *   bias           bias[i][j] is not -inf
 * kv_lens, slices and bias go by positions in the whole tensors, packed or not. prefix has no effect without a causal mask, keep_first none
 * without window_left. A query that sees no key has out = 0, lse = -inf (the sink, where there are sinks) and no part in the gradients of
 * q, k, v and bias. Keys and values that a query does not see never influence it, not even by NaN or infinity. */
typedef struct ra_mask {
    int causal;
    int64_t causal_block;
    ra_align align;
    const int32_t *q_segment_ids;  /* [B,Tq], this rank's tokens; copied by the plan. Both or neither */
    const int32_t *kv_segment_ids; /* [B,Tkv] */
    int64_t window_left;           /* sliding window: keys before and after the query's own that it sees; -1: all of them */
    int64_t window_right;
    int64_t prefix;     /* prefix-LM: the first keys, which every query sees as far as causality goes */
    int64_t keep_first; /* "sink tokens": the first keys, which window_left does not hide */
    /* The arrays below are the same on all ranks, by position in the whole sequence, and copied by the plan. */
    const int32_t *kv_lens; /* [B], 0..Skv: padding; NULL: none */
    /* Packed sequences of various lengths: their offsets [sequences+1], ascending from 0; equal neighbours make an empty sequence. The last
     * is at most Sq and Skv: what is beyond it sees nothing and is not seen. For every batch element alike. Both or neither. */
    const int32_t *cu_seqlens_q, *cu_seqlens_kv;
    int64_t sequences;
    const int64_t *slices; /* [slice_count,5]: q0, q1, k0, k1 (0 <= q0 < q1 <= Sq, 0 <= k0 < k1 <= Skv), ra_slice_type; NULL: none */
    int64_t slice_count;
} ra_mask;

/* ---- problem and plan ------------------------------------------------------------------------------------------------------------ */

typedef struct ra_problem {
    size_t size; /* set by ra_problem_init */
    int64_t B, Sq, Skv, H, G, D, Dv;
    ra_dtype dtype; /* of q, k, v, on all ranks */
    ra_layout layout;
    double scale; /* logits are scale * q.k; NaN: 1/sqrt(D) */
    ra_mask mask;
    int has_bias;    /* a bias will be given at each run */
    int backward;    /* the plan is for both passes (0: forward only, smaller workspace, and few queries are faster) */
    int64_t q_chunk; /* query rows and key rows per tile; 0: chosen. Rounded up to what the kernels need; */
    int64_t k_chunk; /* the result does not depend on them beyond rounding */
    int threads;     /* OpenMP threads of this rank; 0: OpenMP's default. Never changes the result's bits */
    double softcap;  /* C: logits are C tanh(scale * q.k / C), before anything is added to them; 0: none */
    /* ALiBi (arXiv 2108.12409): adds -slope |i + offset - j| with the mask's offset and its positions, those of packed sequences too.
     * [H], finite, the same on all ranks, copied by the plan; NULL: none. ra_alibi_slopes has the customary ones. */
    const float *alibi_slopes;
    int has_sinks;       /* sinks will be given at each run */
    int has_temperature; /* a temperature will be given at each run */
    double dropout;      /* 0 <= p <= 1: each probability is dropped with probability p, the others are divided by 1 - p; 0: none */
    uint64_t seed;       /* of dropout: with batch, query head and the positions of query and key in the whole sequence it decides what is
                            dropped, so that P, layout, chunks, threads and pass do not matter (Philox4x32-10, SC 2011) */
} ra_problem;

/* Defaults: B = H = G = 1, windows -1, everything else zero, scale NaN, backward 0. Set at least Sq, Skv, D, Dv. */
RA_API void ra_problem_init(ra_problem *p);

typedef struct ra_plan ra_plan;

/* Whether an engine ("cpu", or NULL, which means it) can do what the problem asks for: RA_OK; ERR_INVALID for a problem that none can, or
 * ERR_UNSUPPORTED. Writes the reason, "" for RA_OK, to `reason` (at most n bytes including the final 0; NULL is allowed). Segment ids, if
 * given, are those of the whole sequence. Plans are made or refused accordingly: there is no option that is accepted and not applied. A run
 * refuses outputs that the engine does not compute likewise. Not collective. */
RA_API ra_status ra_supports(const ra_problem *problem, const char *engine, char *reason, size_t n);

/* Checks the problem and fixes schedule, tiles, kernels and workspace. Collective: all ranks succeed, or all fail with the reason of the
 * first rank that failed; ranks whose problems differ fail with ERR_MISMATCH, naming the field. The comm must outlive the plan.
 * Errors: ERR_INVALID (also where the environment variable RA_ISA names no instruction set, or one that is missing here),
 * ERR_UNSUPPORTED, ERR_MISMATCH, ERR_MEMORY, ERR_OVERFLOW, ERR_PEER_LOST, ERR_TIMEOUT, ERR_LINK. */
RA_API ra_status ra_plan_create(ra_comm *comm, const ra_problem *problem, ra_plan **plan);
RA_API void ra_plan_destroy(ra_plan *plan); /* NULL is allowed */

typedef struct ra_plan_info {
    int ranks, rank, threads;
    const char *isa;        /* instruction set of the kernels: a name that RA_ISA takes */
    int64_t Tq, Tkv;        /* tokens on this rank */
    int64_t q_tile, k_tile; /* forward tile, rows */
    int64_t q_tile_backward, k_tile_backward;
    int64_t steps;              /* ring steps of this rank */
    int64_t workspace_bytes;    /* of this rank */
    int64_t plan_bytes;         /* that the plan itself holds: with the workspace all that a run takes, but for the comm's own */
    int64_t bytes_sent_forward; /* by this rank, a run */
    int64_t bytes_sent_backward;
    double pairs;          /* (query, key) pairs this rank computes, by position alone (segments and bias hide more),
                              summed over batch and query heads */
    double flops_forward;  /* pairs * (2 D + 2 Dv) */
    double flops_backward; /* pairs * (6 D + 4 Dv) */
} ra_plan_info;

RA_API void ra_plan_query(const ra_plan *plan, ra_plan_info *info);

/* The plan as text: problem, kernels, tiles, memory and a picture of the schedule of all ranks. Writes at most n bytes including the
 * final 0 and returns the length the whole text has, like snprintf. Not collective. */
RA_API size_t ra_plan_print(const ra_plan *plan, char *buf, size_t n);

/* 1 if rank `rank` computes on the key/value block of rank `block` at ring step `step`; the block is (rank - step) mod P. */
RA_API int ra_plan_computes(const ra_plan *plan, int rank, int step);

/* Bytes of workspace a run needs on this rank, alignment 64. */
RA_API size_t ra_plan_workspace_bytes(const ra_plan *plan);

/* ---- run ------------------------------------------------------------------------------------------------------------------------ */

/* What a run measured on this rank. */
typedef struct ra_stats {
    double seconds;          /* wall time of the call */
    double seconds_transfer; /* time during which this rank had transfers in flight */
    double seconds_exposed;  /* the part of it during which it had nothing to compute */
    int64_t bytes_sent;
    double pairs; /* (query, key) pairs computed and visible, summed over batch and query heads */
} ra_stats;

/* The tensors of one run on this rank. Shapes by this rank's T:
 *   q [B,Tq,H,D]  k [B,Tkv,G,D]  v [B,Tkv,G,Dv]   of the plan's dtype
 *   bias [B|1,Tq|1,H|1,Skv|1]: this rank's query rows (local order), all keys in global order; any dtype; stride order b, t, h, key
 *   out [B,Tq,H,Dv], dout alike: any dtype. Pass out as F32 to the backward for gradients of full accuracy with 16-bit q, k, v
 *   lse [B,H,Tq] natural logarithm of the sum of exp(logits); dlse alike
 *   dq, dk, dv: shapes of q, k, v, any dtype
 *   sinks, dsinks [H], the same on all ranks
 *   temperature [Tq]
 *   dbias [B|1,Tq|1,H|1,Skv|1] fp32, stride order b, t, h, key: stride 0 on the axes on which bias has stride 0, over which it is summed.
 * On the query axis stride 0 means so on every rank, including one of no or one query, and the sum is that over all ranks row_max [B,H,Tq]
 * No output may overlap an input or another output. */
typedef struct ra_attention_args {
    ra_tensor q, k, v;        /* in */
    ra_tensor bias;           /* in, when the plan has has_bias */
    ra_tensor out;            /* forward: written. backward: read */
    float *lse;               /* forward: written, NULL if not wanted. backward: read, required */
    ra_tensor dout;           /* backward, in. data NULL: zero (a gradient through lse only) */
    const float *dlse;        /* backward, in, NULL: zero */
    ra_tensor dq, dk, dv;     /* backward: written; data NULL if not wanted */
    ra_stats *stats;          /* written if not NULL */
    const float *sinks;       /* in, when has_sinks: a logit per query head of a key that only takes weight away; -inf: none */
    const float *temperature; /* in, when has_temperature: the factor of each local query's logits, e.g. log-n scaling */
    float *row_max;  /* forward: written, NULL if not wanted: the largest logit that a query sees, bias and ALiBi included, sink not;
                        -inf when it sees no key */
    float *dsinks;   /* backward: written, NULL if not wanted: the sum over all ranks, on each of them */
    ra_tensor dbias; /* backward: written; data NULL if not wanted */
} ra_attention_args;

/* out_i = sum_j p_ij v_j over the keys j that query i sees, in this order:
 *   s = scale * temperature_i * q_i.k_j;  s = softcap tanh(s / softcap);  s += bias_ij - slope_h |i + offset - j|
 *   lse_i = ln(exp(sink_h) + sum_j exp(s_ij));  p_ij = exp(s_ij - lse_i);  p_ij = 0 where dropped, else p_ij / (1 - dropout)
 * Collective.
 * workspace: ra_plan_workspace_bytes(plan) bytes aligned to 64, or NULL to allocate it for this call.
 * Cost: pairs * (2 D + 2 Dv) multiply-adds counted as two operations; nothing is allocated between the first and the last ring step.
 * The bits of the result do not depend on the number of threads.
 * Errors: ERR_INVALID, ERR_MEMORY, ERR_PEER_LOST, ERR_TIMEOUT, ERR_LINK; after a link error the comm is unusable. */
RA_API ra_status ra_attention_forward(const ra_plan *plan, const ra_attention_args *args, void *workspace);

/* Gradients of a scalar L with dout = dL/dout and dlse = dL/dlse, by recomputation from lse (arXiv 2205.14135, algorithm 4):
 *   p = exp(s - lse), dv = p^T dout, ds = p (dout v^T - rowsum(dout*out) + dlse), dq = scale ds k, dk = scale ds^T q,
 *   dbias = ds, dsink = exp(sink - lse) (dlse - rowsum(dout*out)), summed over queries.
 * With dropout, p and dout v^T have its zeros and its 1 / (1 - dropout); with softcap and temperature ds gets their factors on its way to
 * dq and dk.
 * Collective. The plan must have been made with backward = 1. Otherwise as ra_attention_forward. */
RA_API ra_status ra_attention_backward(const ra_plan *plan, const ra_attention_args *args, void *workspace);

/* The simple form: plan, forward, and the backward if any rank wants any of dq, dk, dv, dbias, dsinks, in one collective call. lse may be
 * NULL. With 16-bit tensors the backward then starts from an fp32 copy of out. */
RA_API ra_status ra_attention(ra_comm *comm, const ra_problem *problem, const ra_attention_args *args);

/* ---- blockwise feed-forward -------------------------------------------------------------------------------------------------------- */

typedef enum ra_activation {
    RA_SWIGLU = 0,   /* y = (silu(x wg) * (x wu)) wd */
    RA_GELU = 1,     /* y = gelu(x wu) wd, gelu(a) = a/2 (1 + erf(a/sqrt 2)) */
    RA_GELU_TANH = 2 /* the tanh approximation of it */
} ra_activation;

/* Tokens are independent, so a rank runs its own shard without communication, `chunk` tokens at a time: the F-wide intermediate never
 * exists for more than a chunk (arXiv 2305.19370, section 3). Row-major without gaps, all of `dtype`.
 * Arithmetic is fp32. Where bf16 pairs are multiplied (oneDNN on AVX512-BF16; RA_ISA=avx512 prevents it), h and its gradients are rounded
 * to bf16 as operands. The bits do not depend on which gradients are wanted, but with oneDNN they may on the number of threads. */
typedef struct ra_ffn {
    size_t size; /* set by ra_ffn_init */
    ra_activation activation;
    ra_dtype dtype;
    int64_t T, E, F;
    int64_t chunk;                 /* tokens; 0: chosen */
    int threads;                   /* 0: OpenMP's default. A BLAS whose threads are not OpenMP's keeps its own setting */
    const ra_allocator *allocator; /* NULL: malloc */
} ra_ffn;

RA_API void ra_ffn_init(ra_ffn *f);

typedef struct ra_ffn_args {
    const void *x;                      /* [T,E] */
    const void *wg;                     /* [E,F], SWIGLU only */
    const void *wu;                     /* [E,F] */
    const void *wd;                     /* [F,E] */
    const void *bu;                     /* [F] added to x wu, or NULL */
    const void *bd;                     /* [E] added to y, or NULL */
    void *y;                            /* forward, out: [T,E] */
    const void *dy;                     /* backward, in: [T,E] */
    float *dx;                          /* backward, out: [T,E], or NULL */
    float *dwg, *dwu, *dwd, *dbu, *dbd; /* backward, out, fp32, or NULL. This rank's tokens only: sum them over ranks for the gradient */
} ra_ffn_args;

RA_API size_t ra_ffn_workspace_bytes(const ra_ffn *f); /* O(chunk * F); for either pass. 0 if f is invalid */
/* workspace: as given by ra_ffn_workspace_bytes, aligned to 64, or NULL to allocate it. y may equal x.
 * oneDNN allocates its primitives and packing buffers by malloc, whatever the allocator; a cache of them stays with the process.
 * Several threads may be in these functions at once, each with its own arguments and workspace.
 * Errors: ERR_INVALID (RA_ISA included, as for plans), ERR_MEMORY, ERR_OVERFLOW, ERR_UNSUPPORTED (built without oneDNN and CBLAS). */
RA_API ra_status ra_ffn_forward(const ra_ffn *f, const ra_ffn_args *args, void *workspace);
RA_API ra_status ra_ffn_backward(const ra_ffn *f, const ra_ffn_args *args, void *workspace);

/* ---- what this machine and this build can do ----------------------------------------------------------------------------------------- */

/* One line per fact, "name: value\n": version, compiler, isa levels compiled and usable, openmp, blas, onednn, mpi links. Like snprintf. */
RA_API size_t ra_features(char *buf, size_t n);

/* The kernel set in use: the best that processor and RA_ISA (scalar|avx2|avx512|avx512bf16|amx) allow. Plans and the feed-forward refuse a
 * value of RA_ISA that is none of these, or names what this build or processor lacks. */
RA_API const char *ra_isa(void);

/* Fused multiply-add peak of `threads` threads in GFLOP/s, measured by a register-only loop of about `seconds` in the instruction set of
 * ra_isa(). 0 if it could not be measured. */
RA_API double ra_measure_peak(int threads, double seconds);

/* Speed in GB/s (1e9 bytes) at which `threads` threads together read memory: the fastest of the loops over a buffer of 256 MiB or more,
 * taken from malloc for the call, that fit into about `seconds`. 0 if it could not be measured. */
RA_API double ra_measure_bandwidth(int threads, double seconds);

/* ---- accelerators: PJRT plugins ---------------------------------------------------------------------------------------------------- */

/* A device that a plugin offers. */
typedef struct ra_pjrt_device {
    int id;
    int coord_count; /* place in the network of a TPU: coords[0 .. coord_count-1]; 0: none is given */
    int coords[3];
    char kind[64];        /* e.g. "cpu", "TPU v5 lite" */
    int64_t memory_bytes; /* -1: not given */
    int64_t memory_used;  /* -1: not given */
} ra_pjrt_device;

/* A plugin that was found, and what came of it. */
typedef struct ra_pjrt_plugin {
    const char *path;     /* as found, absolute unless the variable says otherwise */
    const char *found_by; /* "RA_PJRT_PLUGIN", "dynamic linker", or the folder of packages */
    ra_status
        status; /* RA_OK: it has devices that can be used. ERR_TIMEOUT: it gave no answer; ERR_UNSUPPORTED: it cannot be used or died */
    const char *why; /* "" for RA_OK */
    int api_major;   /* version of the interface; -1, -1 if it was not learnt */
    int api_minor;
    const char *platform;         /* "cpu", "cuda", "tpu"; "" if it was not learnt */
    const char *platform_version; /* likewise; may have several lines */
    int device_count;             /* of this process */
    const ra_pjrt_device *devices;
} ra_pjrt_plugin;

typedef struct ra_pjrt_list ra_pjrt_list;

typedef struct ra_pjrt_list_options {
    const char *const *folders; /* folders of Python packages to look into; NULL: those of the python3 on PATH */
    int folder_count;
    double timeout_s;              /* deadline of each plugin, in seconds; 0: 30 */
    const ra_allocator *allocator; /* NULL: malloc. Copied; its user pointer must outlive the list */
} ra_pjrt_list_options;

/* Looks for PJRT plugins, in this order: the environment variable RA_PJRT_PLUGIN (a path, or a name for the dynamic linker), libtpu.so as
 * the dynamic linker finds it, and in folders of Python packages libtpu/, jax_plugins/, xla_plugins/ and packages that hold a
 * pjrt_c_api*.so. Each one found is loaded in a process of its own, so that one that is broken, aborts or hangs costs no more than its
 * deadline; it stays in the list with the reason why it cannot be used. options: NULL for all zero. Not collective. Errors: ERR_INVALID,
 * ERR_MEMORY. That nothing was found is none. */
RA_API ra_status ra_pjrt_list_create(const ra_pjrt_list_options *options, ra_pjrt_list **list);
RA_API void ra_pjrt_list_destroy(ra_pjrt_list *list); /* NULL is allowed */
RA_API int ra_pjrt_list_size(const ra_pjrt_list *list);
RA_API const ra_pjrt_plugin *ra_pjrt_list_get(const ra_pjrt_list *list, int i); /* lives as long as the list; NULL outside of it */

#ifdef __cplusplus
}
#endif
#endif
