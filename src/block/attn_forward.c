/* Forward driver: one visiting block against all query tiles of this rank.
 *
 * Workspace:  | packed K | packed V | flags | state o, m, l (only if several blocks are folded in) | scratch of thread 0 | thread 1 | ...
 * Packed K and V are shared by all query tiles and by all query heads of a group. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/threads.h"
#include "block/block.h"
#include "block/modify.h"
#include "block/tiles.h"

void ra__attn_scale(struct ra__attn *a, double scale) {
    const double log2e = 1.4426950408889634;
    a->scale = (float)scale;
    a->q_scale = a->k->pair == 1 ? (float)(scale * log2e) : scale < 0 ? -1 : 1;
    a->s_scale = a->k->pair == 1 ? 1 : (float)(fabs(scale) * log2e);
}

/* Offsets in bytes from the workspace, and what they are computed from. */
struct map {
    int64_t k, v, flags, keys, o, m, l, scratch, scratch_bytes;
    int64_t q, tile_o, tile_m, tile_l, s, mask, drop, alpha, rows, sums; /* from a thread's scratch */
    int64_t k_head, v_head;                                              /* floats of packed K, V of one (batch, kv head) */
    int64_t d, d_left;                                                   /* words of D values in q; in k, which is a left-hand side */
    int64_t dv;                                                          /* Dv rounded up to the register tile */
    int64_t k_tile, flags_head;
};

static struct map layout(const struct ra__attn *a, int64_t panels, int64_t Tk, bool keep_state, struct ra__layout *w) {
    const int64_t lanes = a->k->lanes, heads = ra__mul(a->B, a->H, &w->overflow), kv_heads = ra__mul(a->B, a->G, &w->overflow);
    const int64_t f = sizeof(float), widest = a->D > a->Dv ? a->D : a->Dv;
    struct map p = {
        .d = ra__words(a->k, a->D), .d_left = ra__left_words(a->k, a->D), .dv = ra__round_up(a->Dv, a->k->rows), .k_tile = a->k_tile};
    p.k_head = ra__mul(ra__padded_rows(Tk, a->k->rows), p.d_left, &w->overflow);
    p.v_head = ra__mul(ra__padded_rows(Tk, a->k->rows) / a->k->pair, p.dv, &w->overflow);
    p.flags_head = Tk / p.k_tile + 3;
    p.k = ra__reserve(w, ra__mul(kv_heads, p.k_head, &w->overflow), f);
    p.v = ra__reserve(w, ra__mul(kv_heads, p.v_head, &w->overflow), f);
    p.flags = ra__reserve(w, kv_heads, p.flags_head);
    p.keys = ra__reserve(w, ra__mul(kv_heads, p.flags_head, &w->overflow), sizeof(struct ra__mask_keys));
    const int64_t state = keep_state ? ra__mul(heads, ra__mul(panels, lanes, &w->overflow), &w->overflow) : 0;
    p.o = ra__reserve(w, ra__mul(state, p.dv, &w->overflow), f);
    p.m = ra__reserve(w, state, f);
    p.l = ra__reserve(w, state, f);

    struct ra__layout t = {0, false};
    p.q = ra__reserve(&t, ra__mul(a->q_tile, p.d, &t.overflow), f);
    p.tile_o = ra__reserve(&t, keep_state ? 0 : ra__mul(a->q_tile, p.dv, &t.overflow), f);
    p.tile_m = ra__reserve(&t, a->q_tile, f);
    p.tile_l = ra__reserve(&t, a->q_tile, f);
    p.s = ra__reserve(&t, ra__mul(p.k_tile + a->k->rows, lanes, &t.overflow), f);
    p.mask = ra__reserve(&t, ra__mul(p.k_tile + a->k->rows, lanes, &t.overflow), f);
    p.drop = ra__reserve(&t, a->drops ? ra__mul(p.k_tile + a->k->rows, lanes, &t.overflow) : 0, f);
    p.alpha = ra__reserve(&t, lanes, f);
    p.rows = ra__reserve(&t, ra__mul(p.k_tile > lanes ? p.k_tile : lanes, ra__row_scratch(widest), &t.overflow), f);
    p.sums = ra__reserve(&t, a->q_tile / lanes, sizeof(struct ra__mask_queries));
    w->overflow |= t.overflow;
    p.scratch_bytes = t.total;
    p.scratch = ra__reserve(w, a->threads, t.total);
    return p;
}

int64_t ra__forward_bytes(const struct ra__attn *a, int64_t panels, int64_t Tk_max, bool keep_state) {
    struct ra__layout w = {0, false};
    layout(a, panels, Tk_max, keep_state, &w);
    return w.overflow ? -1 : w.total;
}

/* One call, shared by its threads. */
struct call {
    struct ra__forward *f;
    const struct ra__kv_block *block;
    struct ra__mask_view view;
    struct map map;
    bool first, last;
    int64_t k_tiles;
};

static float *at(const struct call *c, int64_t offset) {
    return (float *)(c->f->workspace + offset);
}

static char *scratch(const struct call *c) {
    return c->f->workspace + c->map.scratch + ra__thread_index() * c->map.scratch_bytes;
}

static uint8_t *flag(const struct call *c, int64_t kv_head, int64_t tile) {
    return (uint8_t *)c->f->workspace + c->map.flags + kv_head * c->map.flags_head + tile;
}

static struct ra__mask_keys *keys_in_short(const struct call *c, int64_t kv_head, int64_t tile) {
    return (struct ra__mask_keys *)(c->f->workspace + c->map.keys) + kv_head * c->map.flags_head + tile;
}

static void pack_key_tile(const struct call *c, int64_t task) {
    const struct ra__attn *a = c->f->a;
    const int64_t kv_head = task / c->k_tiles, index = task % c->k_tiles, b = kv_head / a->G, g = kv_head % a->G;
    const struct ra__tile tile = ra__tile_at(&c->block->stretches, a->k_tile, a->k->rows, index);
    float *rows = (float *)(scratch(c) + c->map.rows);
    int64_t ld;
    bool clean;
    const float *k = ra__operand_rows(a->k, &c->block->k, b, tile.t0, tile.n, g, a->D, rows, &ld);
    a->k->pack_rows(at(c, c->map.k) + kv_head * c->map.k_head + tile.padded * c->map.d_left, k, ld, tile.n, a->D, 1);
    const float *v = ra__operand_rows(a->k, &c->block->v, b, tile.t0, tile.n, g, a->Dv, rows, &ld);
    v = ra__finite_rows(a->k, v, &ld, tile.n, a->Dv, rows, &clean);
    a->k->pack_transposed(at(c, c->map.v) + kv_head * c->map.v_head + tile.padded / a->k->pair * c->map.dv, v, ld, tile.n, a->Dv);
    *flag(c, kv_head, index) = !clean;
    *keys_in_short(c, kv_head, index) = ra__mask_sum_keys(&c->view, b, tile.t0, tile.n);
}

/* The state of one query tile, which begins with panel `first`: in the workspace across blocks, or in scratch. */
struct tile_state {
    float *o, *m, *l;
};

static struct tile_state state_of(const struct call *c, int64_t head, int64_t first) {
    const struct map *p = &c->map;
    if (!c->f->keep_state) {
        char *s = scratch(c);
        return (struct tile_state){(float *)(s + p->tile_o), (float *)(s + p->tile_m), (float *)(s + p->tile_l)};
    }
    int64_t row = (head * c->f->q_shard.panels.count + first) * c->f->a->k->lanes;
    return (struct tile_state){at(c, p->o) + row * p->dv, at(c, p->m) + row, at(c, p->l) + row};
}

/* Adds the products of visible probabilities with the NaN and infinite values that packing left out. */
static void add_non_finite(const struct call *c, const struct ra__mask_tile *t, int64_t g, const float *p, const float *mask, int64_t clear,
                           float *o) {
    const struct ra__attn *a = c->f->a;
    const int64_t lanes = a->k->lanes;
    float *row = (float *)(scratch(c) + c->map.rows);
    const float *drop = a->drops ? (float *)(scratch(c) + c->map.drop) : NULL;
    for (int64_t key = 0; key < t->nk; key++) {
        int64_t ld;
        const float *v = ra__rows(a->k, &c->block->v, t->b, t->k0 + key, 1, g, a->Dv, row, &ld);
        for (int64_t d = 0; d < a->Dv; d++)
            for (int64_t lane = 0; !isfinite(v[d]) && lane < t->nq; lane++) {
                const bool hidden = mask && key >= clear && mask[(key - clear) * lanes + lane] == -INFINITY;
                if (!hidden && !(drop && drop[key * lanes + lane] != 0))
                    o[d * lanes + lane] += ra__col_value(a->k, p, key, lane) * v[d];
            }
    }
}

/* P of a tile without what dropout drops. */
static void drop(const struct call *c, int64_t head, const struct ra__mask_tile *t, float *p) {
    const struct ra__attn *a = c->f->a;
    const struct ra__drop_tile tile = {head, c->f->q_shard.position + t->q0, c->block->position + t->k0, t->nq, t->nk};
    float *mask = (float *)(scratch(c) + c->map.drop);
    ra__drop_by_key(a, &tile, a->k->lanes, mask);
    a->k->drop(p, mask, a->keep_scale, t->nk * a->k->lanes);
}

/* One query panel against one key tile. */
static int64_t fold_panel(const struct call *c, int64_t head, const struct ra__tile *keys, int64_t key_tile,
                          const struct ra__stretch *panel, const struct ra__mask_queries *sum, const float *q, struct tile_state state) {
    const struct ra__attn *a = c->f->a;
    const int64_t b = head / a->H, h = head % a->H, g = h / (a->H / a->G), kv_head = b * a->G + g, rows = a->k->rows;
    struct ra__mask_tile t = {b, panel->t0, panel->n, keys->t0, keys->n};
    bool full = ra__mask_shrink_keys(&c->view, sum, keys_in_short(c, kv_head, key_tile), &t);
    if (t.nk == 0)
        return 0;
    int64_t low = t.k0 - keys->t0, aligned = low / rows * rows; /* packed keys come in groups of `rows` */
    full &= low == aligned;
    t.k0 -= low - aligned;
    t.nk += low - aligned;

    float *s = (float *)(scratch(c) + c->map.s), *mask = (float *)(scratch(c) + c->map.mask);
    float *alpha = (float *)(scratch(c) + c->map.alpha);
    const int64_t clear = full ? t.nk : ra__mask_clear_keys(&c->view, sum, &t) / a->k->pair * a->k->pair;
    int64_t visible = t.nq * clear;
    if (clear < t.nk) {
        const struct ra__mask_tile rest = {b, t.q0, t.nq, t.k0 + clear, t.nk - clear};
        visible += ra__mask_fill_by_key(&c->view, &rest, h, a->k->lanes, mask);
    }
    full = clear == t.nk;
    if (visible == 0)
        return 0;
    const float *k = at(c, c->map.k) + kv_head * c->map.k_head + (keys->padded + aligned) * c->map.d_left;
    const float *v = at(c, c->map.v) + kv_head * c->map.v_head + keys->padded / a->k->pair * c->map.dv + aligned / a->k->pair * rows;
    a->k->gemm(k, c->map.d_left * rows, (t.nk + rows - 1) / rows, q, c->map.d, s, false);
    if (a->softcap > 0)
        a->k->softcap(s, NULL, t.nk * a->k->lanes, a->softcap);
    if (a->k->softmax(s, t.nk, full ? NULL : mask, clear, a->s_scale, state.m, state.l, alpha))
        a->k->scale_lanes(state.o, c->map.dv, alpha);
    if (a->drops)
        drop(c, head, &t, s);
    a->k->gemm(v, ra__left_words(a->k, keys->n) * rows, c->map.dv / rows, s, ra__words(a->k, t.nk), state.o, true);
    if (*flag(c, kv_head, key_tile))
        add_non_finite(c, &t, g, s, full ? NULL : mask, clear, state.o);
    return visible;
}

static void write_panel(const struct call *c, int64_t head, int64_t q0, int64_t nq, struct tile_state state) {
    const struct ra__forward *f = c->f;
    const struct ra__attn *a = f->a;
    const int64_t b = head / a->H, h = head % a->H;
    float *inverse = (float *)(scratch(c) + c->map.alpha), *rows = (float *)(scratch(c) + c->map.rows);
    for (int64_t i = 0; i < nq; i++) {
        const struct ra__row_end end = ra__end_row(state.m[i], state.l[i], f->q_shard.sinks ? f->q_shard.sinks + h : NULL);
        const int64_t row = head * f->q_shard.T + q0 + i;
        inverse[i] = end.inverse;
        if (f->lse)
            f->lse[row] = end.lse;
        if (f->row_max)
            f->row_max[row] = end.max;
    }
    for (int64_t i = nq; i < a->k->lanes; i++)
        inverse[i] = 0;
    a->k->unpack_lanes(rows, a->Dv, state.o, nq, a->Dv, inverse);
    ra__store_rows(a->k, &f->out, b, q0, nq, h, a->Dv, rows, a->Dv);
}

/* The panels of one query tile, in sum and as packed operands. */
struct query_tile {
    int64_t head, first, panels; /* first: of the head's panels */
    struct ra__mask_queries *sum, all;
    struct tile_state state;
    float *q;
};

static struct ra__stretch panel_at(const struct call *c, const struct query_tile *t, int64_t p) {
    return ra__panel_at(&c->f->q_shard.panels, t->head / c->f->a->H, t->first + p);
}

static struct tile_state panel_state(const struct call *c, const struct query_tile *t, int64_t p) {
    const int64_t row = p * c->f->a->k->lanes;
    return (struct tile_state){t->state.o + row * c->map.dv, t->state.m + row, t->state.l + row};
}

static struct query_tile begin_tile(const struct call *c, int64_t head, int64_t index) {
    const struct ra__attn *a = c->f->a;
    const int64_t lanes = a->k->lanes, b = head / a->H, h = head % a->H, most = a->q_tile / lanes;
    const int64_t left = c->f->q_shard.panels.count - index * most;
    struct query_tile t = {.head = head, .first = index * most, .panels = left < most ? left : most};
    t.sum = (struct ra__mask_queries *)(scratch(c) + c->map.sums);
    t.state = state_of(c, head, t.first);
    t.q = (float *)(scratch(c) + c->map.q);
    if (c->first) {
        memset(t.state.o, 0, sizeof(float) * (size_t)(t.panels * lanes * c->map.dv));
        for (int64_t i = 0; i < t.panels * lanes; i++) {
            t.state.m[i] = -INFINITY;
            t.state.l[i] = 0;
        }
    }
    for (int64_t p = 0; p < t.panels && c->k_tiles; p++) {
        int64_t ld;
        const struct ra__stretch panel = panel_at(c, &t, p);
        const float *from = ra__query_rows(a->k, &c->f->q, b, panel.t0, panel.n, h, a->D, c->f->q_shard.temperature,
                                           (float *)(scratch(c) + c->map.rows), &ld);
        a->k->pack_lanes(t.q + p * lanes * c->map.d, from, ld, panel.n, a->D, a->q_scale);
        t.sum[p] = ra__mask_sum_queries(&c->view, b, panel.t0, panel.n);
        t.all = p ? ra__mask_join_queries(&t.all, &t.sum[p]) : t.sum[p];
    }
    return t;
}

static int64_t query_tile(const struct call *c, int64_t head, int64_t index, const struct ra__poll *poll) {
    const struct ra__attn *a = c->f->a;
    const int64_t lanes = a->k->lanes, kv_head = head / a->H * a->G + head % a->H / (a->H / a->G);
    const struct query_tile t = begin_tile(c, head, index);
    int64_t visible = 0;
    a->k->prepare();
    for (int64_t i = 0; i < c->k_tiles; i++) {
        if (!ra__mask_meets(&t.all, keys_in_short(c, kv_head, i)))
            continue;
        struct ra__tile keys = ra__tile_at(&c->block->stretches, a->k_tile, a->k->rows, i);
        for (int64_t p = 0; p < t.panels; p++) {
            const struct ra__stretch panel = panel_at(c, &t, p);
            visible += fold_panel(c, head, &keys, i, &panel, &t.sum[p], t.q + p * lanes * c->map.d, panel_state(c, &t, p));
        }
        if (poll) {
            poll->fn(poll->arg);
            a->k->prepare();
        }
    }
    if (poll) /* also where there was nothing to compute */
        poll->fn(poll->arg);
    for (int64_t p = 0; p < t.panels && c->last; p++) {
        const struct ra__stretch panel = panel_at(c, &t, p);
        write_panel(c, head, panel.t0, panel.n, panel_state(c, &t, p));
    }
    return visible;
}

void ra__forward_block(struct ra__forward *f, const struct ra__kv_block *block, bool first, bool last, struct ra__poll poll) {
    const struct ra__attn *a = f->a;
    const int64_t panels = f->q_shard.panels.count, most = a->q_tile / a->k->lanes;
    struct ra__layout w = {0, false};
    struct call c = {f, block, ra__view_of(&f->q_shard, block), {0}, first, last, 0};
    c.map = layout(a, panels, f->Tk_max, f->keep_state, &w);
    c.k_tiles = ra__tile_count(&block->stretches, a->k_tile);
    const int64_t pack_tasks = a->B * a->G * c.k_tiles, q_tiles = (panels + most - 1) / most, tasks = a->B * a->H * q_tiles;
    _Atomic int64_t next_pack = 0, next_tile = 0;
    int64_t pairs = 0;
#pragma omp parallel num_threads(a->threads) reduction(+ : pairs)
    {
        const struct ra__poll *mine = poll.fn && ra__thread_index() == 0 ? &poll : NULL;
        for (int64_t i; (i = atomic_fetch_add(&next_pack, 1)) < pack_tasks;)
            pack_key_tile(&c, i);
#pragma omp barrier
        /* The longest tiles of a causal mask first, so that the last ones to finish are short. */
        for (int64_t i; (i = atomic_fetch_add(&next_tile, 1)) < tasks;)
            pairs += query_tile(&c, i / q_tiles, q_tiles - 1 - i % q_tiles, mine);
    }
    f->pairs += pairs;
}
