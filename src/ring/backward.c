/* Backward walker. Keys and values travel as in the forward. Gradients of a visiting block: the sum made by the ranks before (`arriving`)
 * comes in while this rank computes its own part (`part`); both together leave during the next step (`leaving`), to the next rank or, rows
 * that it does not need, home. Gradients of this rank's own block are what it has made itself (`home`) and the sums of the others,
 * straight from the last of a row of readers (`returning`).
 *
 * A visiting block cannot be computed before its keys arrive, and its gradients cannot leave before it is computed. So that neither the
 * first message nor the last is waited for, this rank computes half of its own block, for which it needs nobody, in step 0 and the other
 * half at the end. */
#include <string.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "block/tiles.h"
#include "ring/ring.h"

/* Workspace, byte offsets. */
struct map {
    struct ra__traveller_map traveller;
    int64_t home, returning, transfers, part, arriving, leaving, shared, block;
};

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t layout(const struct ra__ring *ring, struct map *m) {
    const struct ra__schedule *s = &ring->schedule;
    struct ra__layout w = {0, false};
    int64_t part = 0, arriving = 0, leaving = 0, returning = 0;
    m->traveller = ra__traveller_reserve(ring, &w);
    for (int i = 1; i < s->steps; i++) {
        part = larger(part, s->step[i].computes ? ra__visit_of(ring, i).T : 0);
        arriving = larger(arriving, s->step[i].passed.n);
        leaving = larger(leaving, s->step[i].here.n);
    }
    for (int i = 0; i < s->P; i++)
        returning += s->returning[i].n;
    const int64_t own = ra__dkv_bytes(ring, ring->kv.T), block = ra__backward_bytes(&ring->attn, &ring->q.stretches, m->traveller.T);
    const int64_t shared = ra__shared_gradients_bytes(ring);
    if (own < 0 || shared < 0 || block < 0 || ra__dkv_bytes(ring, larger(larger(part, leaving), returning)) < 0)
        return -1;
    m->home = ra__reserve(&w, own, 1);
    m->returning = ra__reserve(&w, ra__dkv_bytes(ring, returning), 1);
    m->transfers = ra__reserve(&w, s->returns, sizeof(struct ra__transfer));
    m->part = ra__reserve(&w, ra__dkv_bytes(ring, part), 1);
    m->arriving = ra__reserve(&w, ra__dkv_bytes(ring, arriving), 1);
    m->leaving = ra__reserve(&w, ra__dkv_bytes(ring, leaving), 1);
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
    struct ra__transfer *returning; /* posted before step 0 and advanced all the time, so that no rank waits for this one to be ready */
    struct ra__backward block;
    float *part, *arriving, *leaving;
    const struct ra__step *left; /* the step whose sums are in `leaving`; NULL: none */
};

static struct walk begin(const struct ra__ring *ring, const ra_attention_args *args, char *workspace) {
    struct walk k = {.ring = ring, .args = args, .workspace = workspace, .x = {.comm = ring->comm}};
    layout(ring, &k.map);
    k.returning = (struct ra__transfer *)(workspace + k.map.transfers);
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
                                    .Tk_max = k.map.traveller.T};
    return k;
}

static ra_status send_leaving(struct walk *k) {
    const struct ra__ring *ring = k->ring;
    const struct ra__step *step = k->left;
    const int64_t on = step ? ra__dkv_bytes(ring, step->pass.n) : 0, home = step ? ra__dkv_bytes(ring, step->home.n) : 0;
    k->left = NULL;
    if (on)
        RA__TRY(ra__exchange_send(&k->x, (ring->schedule.r + 1) % ring->schedule.P, RA__TAG_DKV, k->leaving, on));
    return home ? ra__exchange_send(&k->x, step->block, RA__TAG_HOME, (char *)k->leaving + on, home) : RA_OK;
}

/* Posts everything that travels during step i. */
static ra_status post(struct walk *k, int i) {
    const struct ra__schedule *s = &k->ring->schedule;
    const int64_t rows = s->step[i].passed.n;
    RA__TRY(ra__traveller_post(&k->traveller, &k->x, i));
    if (rows)
        RA__TRY(ra__exchange_recv(&k->x, (s->r - 1 + s->P) % s->P, RA__TAG_DKV, k->arriving, ra__dkv_bytes(k->ring, rows)));
    return send_leaving(k);
}

/* This rank's part of its own block's gradients, one half of it after the other; all of it at once where nothing travels. */
static void compute_own(struct walk *k, const struct ra__kv_block *block, int half) {
    const struct ra__attn *a = &k->ring->attn;
    const struct ra__schedule *s = &k->ring->schedule;
    const int halves = s->steps > 1 || s->returns > 0 ? 2 : 1;
    float *dk = (float *)(k->workspace + k->map.home), *dv = dk + a->B * a->G * block->T * a->D;
    if (!s->step[0].computes)
        memset(dk, 0, (size_t)ra__dkv_bytes(k->ring, block->T));
    else if (half < halves)
        ra__backward_part(&k->block, block, half, halves, dk, dv, ra__exchange_poll(&k->x));
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
}

/* Gradients of some rows of a block: dk [B,G,T,D] and behind it dv [B,G,T,Dv]. */
struct gradients {
    float *dk;
    int64_t T;
};

/* Rows of one head of dk, heads 0.., or dv, heads B*G.. ; a place < 0: NULL. */
static float *rows_at(const struct ra__attn *a, struct gradients x, int64_t head, int64_t at) {
    const int64_t heads = a->B * a->G;
    if (at < 0)
        return NULL;
    return head < heads ? x.dk + (head * x.T + at) * a->D : x.dk + heads * x.T * a->D + ((head - heads) * x.T + at) * a->Dv;
}

/* sum = x + y; NULL: zero. */
static void add(float *sum, const float *x, const float *y, int64_t n) {
    if (x && y)
        for (int64_t i = 0; i < n; i++)
            sum[i] = x[i] + y[i];
    else if (x || y)
        memcpy(sum, x ? x : y, sizeof *sum * (size_t)n);
    else
        memset(sum, 0, sizeof *sum * (size_t)n);
}

/* to = what arrived of `rows` plus this rank's part of them, after step i. */
static void sum_up(const struct walk *k, int i, const struct ra__rows *rows, float *to) {
    const struct ra__attn *a = &k->ring->attn;
    const struct ra__step *step = &k->ring->schedule.step[i];
    const struct ra__visit visit = ra__visit_of(k->ring, i);
    const struct gradients sum = {to, rows->n}, in = {k->arriving, step->passed.n}, part = {k->part, visit.T};
    struct ra__rows_cursor arrived = {.rows = &step->passed}, computed = {.rows = visit.in_place ? NULL : &step->here};
    int64_t at = 0, n;
    for (int64_t range = 0; range < rows->count; range++)
        for (int64_t t = rows->range[range].t0, end = t + rows->range[range].n; t < end; t += n, at += n) {
            n = end - t;
            const int64_t in_at = ra__rows_find(&arrived, t, &n);
            const int64_t part_at = step->computes ? ra__rows_find(&computed, t, &n) : -1;
            for (int64_t head = 0; head < 2 * a->B * a->G; head++)
                add(rows_at(a, sum, head, at), rows_at(a, in, head, in_at), rows_at(a, part, head, part_at),
                    n * (head < a->B * a->G ? a->D : a->Dv));
        }
}

/* Makes the sums after step i ready to leave; what was in `leaving` has been sent. */
static void pass_on(struct walk *k, int i) {
    const struct ra__step *step = &k->ring->schedule.step[i];
    if (i == 0 || step->here.n == 0)
        return;
    sum_up(k, i, &step->pass, k->leaving);
    sum_up(k, i, &step->home, k->leaving + ra__dkv_bytes(k->ring, step->pass.n) / (int64_t)sizeof *k->leaving);
    k->left = step;
}

/* Posts the receives of all that comes home. */
static ra_status expect_returns(struct walk *k) {
    const struct ra__schedule *s = &k->ring->schedule;
    char *to = k->workspace + k->map.returning;
    int count = 0;
    for (int i = 1; i < s->P; i++) {
        const int64_t bytes = ra__dkv_bytes(k->ring, s->returning[i].n);
        if (bytes == 0)
            continue;
        RA__TRY(ra__recv(k->ring->comm, &k->returning[count++], (s->r + i) % s->P, RA__TAG_HOME, to, (size_t)bytes));
        to += bytes;
    }
    k->ring->comm->background = k->returning;
    k->ring->comm->backgrounds = count;
    return RA_OK;
}

/* Waits for it and adds it to what this rank has made itself. */
static ra_status add_returns(struct walk *k, float *home) {
    const struct ra__attn *a = &k->ring->attn;
    const struct ra__schedule *s = &k->ring->schedule;
    const double start = ra__now();
    for (int i = 0; i < s->returns; i++)
        RA__TRY(ra__wait(&(struct ra__transfer *){&k->returning[i]}, 1, "dK,dV coming home"));
    k->x.seconds_exposed += s->returns ? ra__now() - start : 0;
    k->x.seconds_transfer += s->returns ? ra__now() - start : 0;
    struct gradients own = {home, k->ring->kv.T}, from = {(float *)(k->workspace + k->map.returning), 0};
    for (int i = 1; i < s->P; i++) {
        const struct ra__rows *rows = &s->returning[i];
        int64_t at = 0;
        from.T = rows->n;
        for (int64_t range = 0; range < rows->count; at += rows->range[range++].n)
            for (int64_t head = 0; head < 2 * a->B * a->G; head++) {
                float *sum = rows_at(a, own, head, rows->range[range].t0);
                add(sum, sum, rows_at(a, from, head, at), rows->range[range].n * (head < a->B * a->G ? a->D : a->Dv));
            }
        from.dk += ra__dkv_bytes(k->ring, rows->n) / (int64_t)sizeof *from.dk;
    }
    return RA_OK;
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
    float *home = (float *)(k->workspace + k->map.home);
    RA__TRY(send_leaving(k));
    const struct ra__kv_block block = ra__traveller_own(&k->traveller);
    compute_own(k, &block, 1);
    ra__backward_end(&k->block);
    RA__TRY(ra__exchange_finish(&k->x, "dK,dV", ring->schedule.steps));
    RA__TRY(add_returns(k, home));
    store(ring, &k->args->dk, home, a->D);
    store(ring, &k->args->dv, home + a->B * a->G * ring->kv.T * a->D, a->Dv);
    return RA_OK;
}

static ra_status walk(struct walk *k) {
    RA__TRY(expect_returns(k));
    ra__backward_begin(&k->block);
    for (int i = 0; i < k->ring->schedule.steps; i++) {
        RA__TRY(post(k, i));
        compute(k, i);
        RA__TRY(ra__exchange_finish(&k->x, "K,V and dK,dV", i));
        pass_on(k, i);
        ra__traveller_advance(&k->traveller, i);
    }
    RA__TRY(finish(k));
    return ra__shared_gradients_finish(k->ring, k->args, k->workspace + k->map.shared);
}

ra_status ra__ring_backward(const struct ra__ring *ring, const ra_attention_args *args, char *workspace) {
    const double start = ra__now();
    RA__TRY(ra__comm_check(ring->comm));
    struct walk k = begin(ring, args, workspace);
    k.traveller = ra__traveller_begin(ring, args, &k.map.traveller, workspace);
    ra_status status = ra__traveller_end(&k.traveller, walk(&k));
    ring->comm->background = NULL;
    ring->comm->backgrounds = 0;
    if (status == RA_OK && args->stats)
        *args->stats = (ra_stats){ra__now() - start, k.x.seconds_transfer, k.x.seconds_exposed, k.x.bytes_sent, (double)k.block.pairs};
    return status;
}
