/* Forward walker. Two message buffers: the block at hand is computed on and sent from one while the next arrives in the other. */
#include <string.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "ring/ring.h"

/* Workspace: | positions | kv buffer 0 | kv buffer 1 | block workspace |, byte offsets. */
struct map {
    int64_t positions, buffer[2], block;
};

static int steps_computed(const struct ra__schedule *s) {
    int count = 0;
    for (int i = 0; i < s->steps; i++)
        count += s->step[i].computes;
    return count;
}

static int last_computed(const struct ra__schedule *s) {
    int last = 0;
    for (int i = 0; i < s->steps; i++)
        last = s->step[i].computes ? i : last;
    return last;
}

static int64_t layout(const struct ra__ring *ring, struct map *m) {
    struct ra__layout w = {0, false};
    const int64_t message = ra__kv_bytes(ring, ring->Tkv_max);
    const int64_t block = ra__decode_suits(&ring->attn, ring->q.T)
                              ? ra__decode_bytes(&ring->attn, ring->q.T, ring->Tkv_max)
                              : ra__forward_bytes(&ring->attn, &ring->q.stretches, ring->Tkv_max, steps_computed(&ring->schedule) > 1);
    if (message < 0 || block < 0)
        return -1;
    m->positions = ra__reserve(&w, ring->Tkv_max, sizeof(int64_t));
    for (int i = 0; i < 2; i++)
        m->buffer[i] = ra__reserve(&w, ring->schedule.P > 1 ? message : 0, 1);
    m->block = ra__reserve(&w, block, 1);
    return w.overflow ? -1 : w.total;
}

int64_t ra__ring_forward_bytes(const struct ra__ring *ring) {
    struct map m;
    return layout(ring, &m);
}

ra_status ra__ring_forward(const struct ra__ring *ring, const ra_attention_args *args, char *workspace) {
    const struct ra__schedule *s = &ring->schedule;
    const int next = (s->r + 1) % s->P, previous = (s->r - 1 + s->P) % s->P, computed = steps_computed(s), last = last_computed(s);
    const double start = ra__now();
    struct map m;
    layout(ring, &m);
    int64_t *positions = (int64_t *)(workspace + m.positions);
    struct ra__exchange x = {.comm = ring->comm};
    struct ra__forward f = {.a = &ring->attn,
                            .q_shard = ra__own_q(ring, args),
                            .q = args->q,
                            .out = args->out,
                            .lse = args->lse,
                            .workspace = workspace + m.block,
                            .Tk_max = ring->Tkv_max,
                            .keep_state = computed > 1};
    void (*fold)(struct ra__forward *, const struct ra__kv_block *, bool, bool, struct ra__poll) =
        ra__decode_suits(&ring->attn, ring->q.T) ? ra__decode_block : ra__forward_block;
    RA__TRY(ra__comm_check(ring->comm));
    if (s->step[0].sends_kv)
        ra__pack_kv(ring, args, workspace + m.buffer[0]);
    if (computed == 0) /* nothing is visible to this rank: the result is still written */
        fold(&f, &(struct ra__kv_block){0}, true, true, (struct ra__poll){NULL, NULL});

    bool first = true;
    for (int i = 0; i < s->steps; i++) {
        const struct ra__step *step = &s->step[i];
        char *here = workspace + m.buffer[i % 2], *arriving = workspace + m.buffer[(i + 1) % 2];
        if (step->receives_kv) {
            const struct ra__shard coming = ra__layout_shard(ring->layout, ring->Skv, s->P, (step->block - 1 + s->P) % s->P);
            RA__TRY(ra__exchange_recv(&x, previous, RA__TAG_KV, arriving, ra__kv_bytes(ring, coming.T)));
        }
        const struct ra__kv_block block = i == 0 ? ra__own_kv(ring, args, positions) : ra__unpack_kv(ring, step->block, here, positions);
        if (step->sends_kv)
            RA__TRY(ra__exchange_send(&x, next, RA__TAG_KV, here, ra__kv_bytes(ring, block.T)));
        if (step->computes) {
            fold(&f, &block, first, i == last, ra__exchange_poll(&x));
            first = false;
        }
        RA__TRY(ra__exchange_finish(&x, "K,V", i));
    }
    if (args->stats)
        *args->stats = (ra_stats){ra__now() - start, x.seconds_transfer, x.seconds_exposed, x.bytes_sent, (double)f.pairs};
    return RA_OK;
}
