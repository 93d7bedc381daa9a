/* One step's transfers, and the message format of a key/value block: | k [B,T,G,D] | v [B,T,G,Dv] | segment ids [B,T] |, each part rounded
 * up to 64 bytes so that a block in a message buffer can be computed on in place. */
#include "ring/ring.h"

#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/memory.h"

ra_status ra__exchange_send(struct ra__exchange *x, int to, int tag, const void *data, int64_t bytes) {
    x->bytes_sent += bytes;
    return ra__send(x->comm, &x->transfer[x->count++], to, tag, data, (size_t)bytes);
}

ra_status ra__exchange_recv(struct ra__exchange *x, int from, int tag, void *data, int64_t bytes) {
    return ra__recv(x->comm, &x->transfer[x->count++], from, tag, data, (size_t)bytes);
}

static int pointers(struct ra__exchange *x, struct ra__transfer *list[4]) {
    for (int i = 0; i < x->count; i++)
        list[i] = &x->transfer[i];
    return x->count;
}

static void poll_between_tiles(void *arg) {
    struct ra__exchange *x = arg;
    struct ra__transfer *list[4];
    bool complete;
    int n = pointers(x, list);
    if (n == 0)
        list[n++] = x->comm->background;
    if (x->failure == RA_OK)
        x->failure = ra__progress(list, n, &complete);
}

struct ra__poll ra__exchange_poll(struct ra__exchange *x) {
    return x->count || x->comm->background ? (struct ra__poll){poll_between_tiles, x} : (struct ra__poll){NULL, NULL};
}

ra_status ra__exchange_finish(struct ra__exchange *x, const char *operation, int step) {
    struct ra__transfer *list[4];
    char what[64];
    int n = pointers(x, list);
    if (n == 0)
        return RA_OK;
    snprintf(what, sizeof what, "%s of ring step %d", operation, step);
    const double start = ra__now();
    double first = start, last = 0;
    RA__TRY(x->failure);
    RA__TRY(ra__wait(list, n, what));
    for (int i = 0; i < n; i++) {
        first = list[i]->t_posted < first ? list[i]->t_posted : first;
        last = list[i]->t_done > last ? list[i]->t_done : last;
    }
    x->seconds_transfer += last - first;
    x->seconds_exposed += last > start ? last - start : 0;
    x->count = 0;
    return RA_OK;
}

/* Byte offsets of the parts of a message. */
struct message {
    int64_t k, v, segment, bytes;
};

static struct message message_of(const struct ra__ring *ring, int64_t T) {
    const struct ra__attn *a = &ring->attn;
    const int64_t element = (int64_t)ra_dtype_size(ring->dtype);
    struct ra__layout w = {0, false};
    int64_t tokens = ra__mul(a->B, T, &w.overflow), heads = ra__mul(tokens, a->G, &w.overflow);
    struct message m;
    m.k = ra__reserve(&w, ra__mul(heads, a->D, &w.overflow), element);
    m.v = ra__reserve(&w, ra__mul(heads, a->Dv, &w.overflow), element);
    m.segment = ra__reserve(&w, ring->kv_segment ? tokens : 0, sizeof(int32_t));
    m.bytes = w.overflow ? -1 : w.total;
    return m;
}

int64_t ra__kv_bytes(const struct ra__ring *ring, int64_t T) {
    return message_of(ring, T).bytes;
}

int64_t ra__dkv_bytes(const struct ra__ring *ring, int64_t T) {
    const struct ra__attn *a = &ring->attn;
    bool overflow = false;
    int64_t heads = ra__mul(ra__mul(a->B, a->G, &overflow), T, &overflow);
    int64_t bytes = ra__mul(ra__mul(heads, a->D + a->Dv, &overflow), sizeof(float), &overflow);
    return overflow ? -1 : bytes;
}

/* x [B,T,G,width] without gaps <- tensor with any strides. */
static void gather(const struct ra__ring *ring, const ra_tensor *from, int64_t T, int64_t width, char *to) {
    const struct ra__attn *a = &ring->attn;
    const int64_t element = (int64_t)ra_dtype_size(ring->dtype);
    for (int64_t b = 0; b < a->B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t g = 0; g < a->G; g++, to += width * element) {
                const char *row = (const char *)from->data + (b * from->stride[0] + t * from->stride[1] + g * from->stride[2]) * element;
                if (from->stride[3] == 1)
                    memcpy(to, row, (size_t)(width * element));
                else
                    for (int64_t d = 0; d < width; d++)
                        memcpy(to + d * element, row + d * from->stride[3] * element, (size_t)element);
            }
}

static void pack(const struct ra__ring *ring, const ra_attention_args *args, char *buffer) {
    const struct message m = message_of(ring, ring->kv.T);
    gather(ring, &args->k, ring->kv.T, ring->attn.D, buffer + m.k);
    gather(ring, &args->v, ring->kv.T, ring->attn.Dv, buffer + m.v);
    if (ring->kv_segment)
        memcpy(buffer + m.segment, ring->kv_segment, (size_t)(ring->attn.B * ring->kv.T) * sizeof(int32_t));
}

/* The block of rank b as it lies in a message buffer. */
static struct ra__kv_block unpack(const struct ra__ring *ring, int b, char *buffer) {
    const struct ra__attn *a = &ring->attn;
    const struct ra__shard shard = ra__layout_shard(ring->layout, ring->Skv, ring->schedule.P, b);
    const struct message m = message_of(ring, shard.T);
    return (struct ra__kv_block){.k = ra_tensor_bshd(buffer + m.k, ring->dtype, shard.T, a->G, a->D),
                                 .v = ra_tensor_bshd(buffer + m.v, ring->dtype, shard.T, a->G, a->Dv),
                                 .T = shard.T,
                                 .stretches = shard.stretches,
                                 .segment = ring->kv_segment ? (const int32_t *)(buffer + m.segment) : NULL};
}

struct ra__kv_block ra__traveller_own(const struct ra__traveller *t, const ra_attention_args *args) {
    const struct ra__shard *shard = &t->ring->kv;
    ra__shard_positions(shard, t->positions);
    return (struct ra__kv_block){args->k, args->v, shard->T, shard->stretches, t->positions, t->ring->kv_segment};
}

struct ra__traveller ra__traveller_begin(const struct ra__ring *ring, const ra_attention_args *args, char *buffer[2], int64_t *positions) {
    struct ra__traveller t = {.ring = ring,
                              .by_reference = ring->schedule.P > 1 && ring->comm->link.count,
                              .buffer = {buffer[0], buffer[1]},
                              .positions = positions};
    t.block = ra__traveller_own(&t, args);
    if (t.by_reference)
        ring->comm->link.count(ring->comm->link.self, 1);
    if (ring->schedule.step[0].sends_kv && !t.by_reference)
        pack(ring, args, buffer[0]);
    return t;
}

ra_status ra__traveller_post(struct ra__traveller *t, struct ra__exchange *x, int i) {
    const struct ra__ring *ring = t->ring;
    const struct ra__schedule *s = &ring->schedule;
    const struct ra__step *step = &s->step[i];
    const int next = (s->r + 1) % s->P, previous = (s->r - 1 + s->P) % s->P;
    const int64_t bytes = ra__kv_bytes(ring, t->block.T), reference = sizeof t->block;
    if (step->receives_kv) {
        const struct ra__shard coming = ra__layout_shard(ring->layout, ring->Skv, s->P, (step->block - 1 + s->P) % s->P);
        RA__TRY(t->by_reference ? ra__exchange_recv(x, previous, RA__TAG_KV, &t->coming, reference)
                                : ra__exchange_recv(x, previous, RA__TAG_KV, t->buffer[(i + 1) % 2], ra__kv_bytes(ring, coming.T)));
    }
    if (!step->sends_kv)
        return RA_OK;
    if (!t->by_reference)
        return ra__exchange_send(x, next, RA__TAG_KV, t->buffer[i % 2], bytes);
    x->bytes_sent += bytes - reference;
    return ra__exchange_send(x, next, RA__TAG_KV, &t->block, reference);
}

/* The last key that any query of this rank sees by position. */
static int64_t last_key_seen(const struct ra__ring *ring) {
    const struct ra__spans *q = &ring->q_spans;
    int64_t end = 0;
    for (int64_t i = 0; i < q->first[ring->q.T]; i++)
        end = q->span[i].end > end ? q->span[i].end : end;
    return end - 1;
}

/* The stretches of a visiting block without the keys behind all of this rank's queries, such as the second half of every zigzag block
 * that starts before this rank's own. */
static struct ra__stretches seen_stretches(const struct ra__ring *ring, const struct ra__shard *shard) {
    const int64_t last = last_key_seen(ring);
    struct ra__stretches seen = {.count = 0};
    for (int i = 0; i < shard->stretches.count; i++) {
        struct ra__stretch s = shard->stretches.part[i];
        if (last < shard->position[i])
            continue;
        const int64_t index = (last - shard->position[i]) / shard->stride; /* of the last key seen, were the stretch that long */
        s.n = s.n <= index ? s.n : index + 1;
        seen.part[seen.count++] = s;
    }
    return seen;
}

void ra__traveller_advance(struct ra__traveller *t, int i) {
    const struct ra__ring *ring = t->ring;
    if (i + 1 >= ring->schedule.steps)
        return;
    const int b = ring->schedule.step[i + 1].block;
    const struct ra__shard shard = ra__layout_shard(ring->layout, ring->Skv, ring->schedule.P, b);
    if (ring->schedule.step[i].receives_kv)
        t->block = t->by_reference ? t->coming : unpack(ring, b, t->buffer[(i + 1) % 2]);
    t->block.position = t->positions;
    t->block.stretches = seen_stretches(ring, &shard);
    ra__shard_positions(&shard, t->positions);
}

ra_status ra__traveller_end(const struct ra__traveller *t, ra_status status, char *all_ranks) {
    ra_comm *comm = t->ring->comm;
    if (!t->by_reference)
        return status;
    if (status == RA_OK)
        status = ra_comm_allgather(comm, "", all_ranks, 1);
    int walking = comm->link.count(comm->link.self, -1);
    for (double start = ra__now(); status != RA_OK && walking > 0 && ra__now() - start < comm->timeout_s; ra__yield())
        walking = comm->link.count(comm->link.self, 0);
    return status;
}

int64_t ra__traveller_bytes(const struct ra__ring *ring) {
    const int P = ring->schedule.P;
    return P == 1 ? 0 : ring->comm->link.count ? P : ra__kv_bytes(ring, ring->Tkv_max);
}

struct ra__q_shard ra__own_q(const struct ra__ring *ring, const ra_attention_args *args) {
    return (struct ra__q_shard){.T = ring->q.T,
                                .stretches = ring->q.stretches,
                                .panels = ring->q_panels,
                                .spans = ring->q_spans,
                                .segment = ring->q_segment,
                                .bias = ring->has_bias ? &args->bias : NULL,
                                .kv_lens = ring->kv_lens,
                                .alibi = ring->alibi,
                                .aligned = ring->q_aligned,
                                .position = ring->q_position,
                                .temperature = args->temperature,
                                .sinks = args->sinks};
}
