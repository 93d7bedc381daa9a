/* Backward walker. Keys and values travel as in the forward. Gradients of a visiting block: the sum made by the ranks before (`arriving`)
 * comes in while this rank computes its own part (`part`); the two are added and leave during the next step (`leaving`). Gradients of this
 * rank's own block are what it has made itself (`home`) and the sum of all others, which comes straight from the block's last stop.
 *
 * A visiting block cannot be computed before its keys arrive, and its gradients cannot leave before it is computed. So that neither the
 * first message nor the last is waited for, this rank computes half of its own block, for which it needs nobody, in step 0 and the other
 * half at the end. */
#include <string.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "block/tiles.h"
#include "ring/ring.h"

/* Workspace, byte offsets; dkv buffers exist only where other ranks do. */
struct map {
    int64_t positions, kv[2], home, returning, part, arriving, leaving, shared, block;
};

static int64_t layout(const struct ra__ring *ring, struct map *m) {
    struct ra__layout w = {0, false};
    const bool alone = ring->schedule.P == 1;
    const int64_t message = ra__traveller_bytes(ring), gradients = ra__dkv_bytes(ring, ring->Tkv_max);
    const int64_t own = ra__dkv_bytes(ring, ring->kv.T), block = ra__backward_bytes(&ring->attn, &ring->q.stretches, ring->Tkv_max);
    const int64_t shared = ra__shared_gradients_bytes(ring);
    if (message < 0 || shared < 0 || gradients < 0 || own < 0 || block < 0)
        return -1;
    m->positions = ra__reserve(&w, ring->Tkv_max, sizeof(int64_t));
    for (int i = 0; i < 2; i++)
        m->kv[i] = ra__reserve(&w, message, 1);
    m->home = ra__reserve(&w, own, 1);
    m->returning = ra__reserve(&w, ring->schedule.home_from < 0 ? 0 : own, 1);
    m->part = ra__reserve(&w, alone ? 0 : gradients, 1);
    m->arriving = ra__reserve(&w, alone ? 0 : gradients, 1);
    m->leaving = ra__reserve(&w, alone ? 0 : gradients, 1);
    m->shared = ra__reserve(&w, shared, 1);
    m->block = ra__reserve(&w, block, 1);
    return w.overflow ? -1 : w.total;
}

int64_t ra__ring_backward_bytes(const struct ra__ring *ring) {
    struct map m;
    return layout(ring, &m);
}

/* One run. */
struct walk {
    const struct ra__ring *ring;
    const ra_attention_args *args;
    char *workspace;
    struct map map;
    struct ra__exchange x;
    struct ra__traveller traveller;
    struct ra__transfer returning; /* posted before step 0 and advanced all the time, so that no rank waits for this one to be ready */
    struct ra__backward block;
    float *part, *arriving, *leaving;
    int64_t leaving_bytes; /* of the sum made in the step before; leaving_to < 0: none */
    int leaving_to, leaving_tag;
};

static void add(float *sum, const float *part, int64_t bytes) {
    for (int64_t i = 0; i < bytes / (int64_t)sizeof *sum; i++)
        sum[i] += part[i];
}

static void swap(float **a, float **b) {
    float *t = *a;
    *a = *b;
    *b = t;
}

static struct walk begin(const struct ra__ring *ring, const ra_attention_args *args, char *workspace) {
    struct walk k = {.ring = ring, .args = args, .workspace = workspace, .x = {.comm = ring->comm}, .leaving_to = -1};
    layout(ring, &k.map);
    k.part = (float *)(workspace + k.map.part);
    k.arriving = (float *)(workspace + k.map.arriving);
    k.leaving = (float *)(workspace + k.map.leaving);
    k.block = (struct ra__backward){.a = &ring->attn,
                                    .q_shard = ra__own_q(ring, args),
                                    .q = args->q,
                                    .out = args->out,
                                    .dout = args->dout,
                                    .dq = args->dq,
                                    .lse = args->lse,
                                    .dlse = args->dlse,
                                    .dsinks = args->sinks ? ra__shared_gradients_sinks(ring, workspace + k.map.shared) : NULL,
                                    .dbias = args->dbias,
                                    .Sq = ring->Sq,
                                    .Skv = ring->Skv,
                                    .workspace = workspace + k.map.block,
                                    .Tk_max = ring->Tkv_max};
    return k;
}

static int64_t tokens_of(const struct ra__ring *ring, int b) {
    return ra__layout_shard(ring->layout, ring->Skv, ring->schedule.P, b).T;
}

static ra_status send_leaving(struct walk *k) {
    if (k->leaving_to < 0)
        return RA_OK;
    int to = k->leaving_to;
    k->leaving_to = -1;
    return ra__exchange_send(&k->x, to, k->leaving_tag, k->leaving, k->leaving_bytes);
}

/* Posts everything that travels during step i. */
static ra_status post(struct walk *k, int i) {
    const struct ra__ring *ring = k->ring;
    const struct ra__schedule *s = &ring->schedule;
    const struct ra__step *step = &s->step[i];
    RA__TRY(ra__traveller_post(&k->traveller, &k->x, i));
    if (step->receives_dkv)
        RA__TRY(ra__exchange_recv(&k->x, (s->r - 1 + s->P) % s->P, RA__TAG_DKV, k->arriving,
                                  ra__dkv_bytes(ring, tokens_of(ring, step->block))));
    return send_leaving(k);
}

/* This rank's part of its own block's gradients, one half of it after the other; all of it at once where nothing travels. */
static void compute_own(struct walk *k, const struct ra__kv_block *block, int half) {
    const struct ra__attn *a = &k->ring->attn;
    const struct ra__schedule *s = &k->ring->schedule;
    const int halves = s->steps > 1 || s->home_from >= 0 ? 2 : 1;
    float *dk = (float *)(k->workspace + k->map.home), *dv = dk + a->B * a->G * block->T * a->D;
    if (!s->step[0].computes)
        memset(dk, 0, (size_t)ra__dkv_bytes(k->ring, block->T));
    else if (half < halves)
        ra__backward_part(&k->block, block, half, halves, dk, dv, ra__exchange_poll(&k->x));
}

/* Zeroes rows of x [B,G,T,width] that belong to none of the block's stretches. */
static void zero_unseen(const struct ra__attn *a, const struct ra__kv_block *block, int64_t width, float *x) {
    for (int64_t head = 0; head < a->B * a->G; head++, x += block->T * width) {
        int64_t t = 0;
        for (int i = 0; i <= block->stretches.count; i++) {
            const struct ra__stretch s = i < block->stretches.count ? block->stretches.part[i] : (struct ra__stretch){block->T, 0};
            memset(x + t * width, 0, sizeof *x * (size_t)((s.t0 - t) * width));
            t = s.t0 + s.n;
        }
    }
}

/* What step i computes of the block at hand. */
static void compute(struct walk *k, int i) {
    const struct ra__attn *a = &k->ring->attn;
    const struct ra__kv_block *block = &k->traveller.block;
    if (i == 0)
        compute_own(k, block, 0);
    if (i == 0 || !k->ring->schedule.step[i].computes)
        return;
    float *dk = k->part, *dv = dk + a->B * a->G * block->T * a->D;
    ra__backward_block(&k->block, block, dk, dv, ra__exchange_poll(&k->x));
    zero_unseen(a, block, a->D, dk);
    zero_unseen(a, block, a->Dv, dv);
}

/* Adds the part to the sum that arrived, and makes the result ready to leave. */
static void pass_on(struct walk *k, const struct ra__step *step) {
    if (step->dkv_to < 0)
        return;
    k->leaving_bytes = ra__dkv_bytes(k->ring, tokens_of(k->ring, step->block));
    k->leaving_to = step->dkv_to;
    k->leaving_tag = step->dkv_to == step->block ? RA__TAG_HOME : RA__TAG_DKV;
    if (step->receives_dkv && step->computes)
        add(k->arriving, k->part, k->leaving_bytes);
    swap(step->receives_dkv ? &k->arriving : &k->part, &k->leaving); /* what was in `leaving` has been sent */
}

static void store(const struct ra__ring *ring, const ra_tensor *to, const float *from, int64_t width) {
    const struct ra__attn *a = &ring->attn;
    const int64_t T = ring->kv.T;
    for (int64_t b = 0; to->data && b < a->B; b++)
        for (int64_t g = 0; g < a->G; g++)
            ra__store_rows(a->k, to, b, 0, T, g, width, from + (b * a->G + g) * T * width, width);
}

/* The last sum leaves and this rank's own comes home while the second half of its own block is computed. */
static ra_status finish(struct walk *k) {
    const struct ra__ring *ring = k->ring;
    const struct ra__attn *a = &ring->attn;
    const int64_t own = ra__dkv_bytes(ring, ring->kv.T);
    float *home = (float *)(k->workspace + k->map.home);
    RA__TRY(send_leaving(k));
    const struct ra__kv_block block = ra__traveller_own(&k->traveller, k->args);
    compute_own(k, &block, 1);
    ra__backward_end(&k->block);
    RA__TRY(ra__exchange_finish(&k->x, "dK,dV", ring->schedule.steps));
    if (ring->schedule.home_from >= 0) {
        double start = ra__now();
        RA__TRY(ra__wait(&(struct ra__transfer *){&k->returning}, 1, "dK,dV coming home"));
        k->x.seconds_exposed += ra__now() - start;
        k->x.seconds_transfer += ra__now() - start;
        add(home, (const float *)(k->workspace + k->map.returning), own);
    }
    store(ring, &k->args->dk, home, a->D);
    store(ring, &k->args->dv, home + a->B * a->G * ring->kv.T * a->D, a->Dv);
    return RA_OK;
}

static ra_status walk(struct walk *k) {
    const struct ra__ring *ring = k->ring;
    const struct ra__schedule *s = &ring->schedule;
    if (s->home_from >= 0) {
        RA__TRY(ra__recv(ring->comm, &k->returning, s->home_from, RA__TAG_HOME, k->workspace + k->map.returning,
                         (size_t)ra__dkv_bytes(ring, ring->kv.T)));
        ring->comm->background = &k->returning;
    }
    ra__backward_begin(&k->block);
    for (int i = 0; i < s->steps; i++) {
        RA__TRY(post(k, i));
        compute(k, i);
        RA__TRY(ra__exchange_finish(&k->x, "K,V and dK,dV", i));
        pass_on(k, &s->step[i]);
        ra__traveller_advance(&k->traveller, i);
    }
    RA__TRY(finish(k));
    return ra__shared_gradients_finish(ring, k->args, k->workspace + k->map.shared);
}

ra_status ra__ring_backward(const struct ra__ring *ring, const ra_attention_args *args, char *workspace) {
    const double start = ra__now();
    RA__TRY(ra__comm_check(ring->comm));
    struct walk k = begin(ring, args, workspace);
    k.traveller = ra__traveller_begin(ring, args, (char *[2]){workspace + k.map.kv[0], workspace + k.map.kv[1]},
                                      (int64_t *)(workspace + k.map.positions));
    ra_status status = ra__traveller_end(&k.traveller, walk(&k), workspace + k.map.kv[0]);
    ring->comm->background = NULL;
    if (status == RA_OK && args->stats)
        *args->stats = (ra_stats){ra__now() - start, k.x.seconds_transfer, k.x.seconds_exposed, k.x.bytes_sent, (double)k.block.pairs};
    return status;
}
