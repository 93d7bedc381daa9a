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
    if (n && x->failure == RA_OK)
        x->failure = ra__progress(list, n, &complete);
}

struct ra__poll ra__exchange_poll(struct ra__exchange *x) {
    return x->count ? (struct ra__poll){poll_between_tiles, x} : (struct ra__poll){NULL, NULL};
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

void ra__pack_kv(const struct ra__ring *ring, const ra_attention_args *args, char *buffer) {
    const struct message m = message_of(ring, ring->kv.T);
    gather(ring, &args->k, ring->kv.T, ring->attn.D, buffer + m.k);
    gather(ring, &args->v, ring->kv.T, ring->attn.Dv, buffer + m.v);
    if (ring->kv_segment)
        memcpy(buffer + m.segment, ring->kv_segment, (size_t)(ring->attn.B * ring->kv.T) * sizeof(int32_t));
}

struct ra__kv_block ra__unpack_kv(const struct ra__ring *ring, int b, char *buffer, int64_t *positions) {
    const struct ra__attn *a = &ring->attn;
    const struct ra__shard shard = ra__layout_shard(ring->layout, ring->Skv, ring->schedule.P, b);
    const struct message m = message_of(ring, shard.T);
    ra__shard_positions(&shard, positions);
    return (struct ra__kv_block){.k = ra_tensor_bshd(buffer + m.k, ring->dtype, shard.T, a->G, a->D),
                                 .v = ra_tensor_bshd(buffer + m.v, ring->dtype, shard.T, a->G, a->Dv),
                                 .T = shard.T,
                                 .stretches = shard.stretches,
                                 .position = positions,
                                 .segment = ring->kv_segment ? (const int32_t *)(buffer + m.segment) : NULL};
}

struct ra__kv_block ra__own_kv(const struct ra__ring *ring, const ra_attention_args *args, int64_t *positions) {
    ra__shard_positions(&ring->kv, positions);
    return (struct ra__kv_block){args->k, args->v, ring->kv.T, ring->kv.stretches, positions, ring->kv_segment};
}

struct ra__q_shard ra__own_q(const struct ra__ring *ring, const ra_attention_args *args) {
    return (struct ra__q_shard){ring->q.T, ring->q.stretches, ring->q_last, ring->q_segment, ring->has_bias ? &args->bias : NULL};
}
