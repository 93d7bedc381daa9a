/* Forward walker: at each step the block at hand is passed on, the next one arrives, and the block at hand is computed on. */
#include <string.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "ring/ring.h"

/* Workspace: | positions and message buffers | block workspace |, byte offsets. */
struct map {
    struct ra__traveller_map traveller;
    int64_t block;
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

/* Not where a backward follows: it recomputes scores in tiles, and p = exp(s - lse) would be off by what a large logit loses when the
 * products along the head size are added in another order. */
static bool decodes(const struct ra__ring *ring) {
    return !ring->backward && ra__decode_suits(&ring->attn, ring->q.T);
}

static int64_t layout(const struct ra__ring *ring, struct map *m) {
    struct ra__layout w = {0, false};
    m->traveller = ra__traveller_reserve(ring, &w);
    const int64_t T = m->traveller.T;
    const int64_t block = decodes(ring) ? ra__decode_bytes(&ring->attn, ring->q.T, T)
                                        : ra__forward_bytes(&ring->attn, ring->q_panels.count, T, steps_computed(&ring->schedule) > 1);
    if (block < 0)
        return -1;
    m->block = ra__reserve(&w, block, 1);
    return w.overflow ? -1 : w.total;
}

int64_t ra__ring_forward_bytes(const struct ra__ring *ring) {
    struct map m;
    return layout(ring, &m);
}

static ra_status walk(struct ra__traveller *t, struct ra__exchange *x, struct ra__forward *f) {
    const struct ra__ring *ring = t->ring;
    const struct ra__schedule *s = &ring->schedule;
    const int last = last_computed(s);
    void (*fold)(struct ra__forward *, const struct ra__kv_block *, bool, bool, struct ra__poll) =
        decodes(ring) ? ra__decode_block : ra__forward_block;
    if (steps_computed(s) == 0) /* nothing is visible to this rank: the result is still written */
        fold(f, &(struct ra__kv_block){0}, true, true, (struct ra__poll){NULL, NULL});

    bool first = true;
    for (int i = 0; i < s->steps; i++) {
        RA__TRY(ra__traveller_post(t, x, i));
        if (s->step[i].computes) {
            fold(f, &t->block, first, i == last, ra__exchange_poll(x));
            first = false;
        }
        RA__TRY(ra__exchange_finish(x, "K,V", i));
        ra__traveller_advance(t, i);
    }
    return RA_OK;
}

ra_status ra__ring_forward(const struct ra__ring *ring, const ra_attention_args *args, char *workspace) {
    const double start = ra__now();
    struct map m;
    layout(ring, &m);
    struct ra__exchange x = {.comm = ring->comm};
    struct ra__forward f = {.a = &ring->attn,
                            .q_shard = ra__own_q(ring, args),
                            .q = args->q,
                            .out = args->out,
                            .lse = args->lse,
                            .row_max = args->row_max,
                            .workspace = workspace + m.block,
                            .Tk_max = m.traveller.T,
                            .keep_state = steps_computed(&ring->schedule) > 1};
    RA__TRY(ra__comm_check(ring->comm));
    struct ra__traveller t = ra__traveller_begin(ring, args, &m.traveller, workspace);
    RA__TRY(ra__traveller_end(&t, walk(&t, &x, &f)));
    if (args->stats)
        *args->stats = (ra_stats){ra__now() - start, x.seconds_transfer, x.seconds_exposed, x.bytes_sent, (double)f.pairs};
    return RA_OK;
}
