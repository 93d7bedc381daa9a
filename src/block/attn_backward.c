/* Backward driver: gradients of one visiting block from this rank's queries, by recomputation from lse.
 *
 * Forward line                          differentiated here as
 *   s  = scale q.k + bias                 dq += scale ds k, dk += scale ds^T q
 *   p  = exp(s - lse), out = p v          dv += p^T dout
 *   lse, rowsum(p) = 1                    ds = p (dout.v - delta), delta = rowsum(dout out) - dlse
 *
 * A task is one tile of keys of one kv head against all query tiles of its group of query heads: it owns its dk and dv. dq is added to by
 * one key tile after the other: turn[query tile] says whose turn it is, and as threads take key tiles in ascending order and walk the
 * query tiles in the same order, they follow each other without waiting. Five products for the recomputed block, no atomics on floats.
 *
 * Workspace:  | q and dout packed twice | dq | lse, delta | flags | turns | scratch of thread 0 | thread 1 | ... */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/cpu.h"
#include "base/threads.h"
#include "block/block.h"
#include "block/modify.h"
#include "block/tiles.h"

struct map {
    int64_t q_rows, q_cols, o_rows, o_cols, dq, lse, delta, flags, sinks, turns, sums, key_panels, scratch, scratch_bytes;
    int64_t kt, vt, kc, dkt, dvt, p, ds, ds_cols, mask, drop, slope, lane_scale, rows; /* from a thread's scratch */
    int64_t dw, dvw;                                                                   /* words of D and Dv values in k, v and ... */
    int64_t dw_left, dvw_left;                                                         /* ... in q, dout, which are left-hand sides */
    int64_t padded;                                                                    /* packed query rows of one head */
    int64_t d, dv;                                                                     /* D, Dv rounded up to the register tile */
    int64_t dq_width;                                                                  /* D rounded up to the columns of gemm_rows */
    int64_t q_tiles, k_panels, panel;                                                  /* panel: floats of p (ds) per key panel */
};

static struct map layout(const struct ra__attn *a, const struct ra__stretches *q, int64_t Tk, struct ra__layout *w) {
    const int64_t lanes = a->k->lanes, rows = a->k->rows, f = sizeof(float), widest = a->D > a->Dv ? a->D : a->Dv;
    const int64_t heads = ra__mul(a->B, a->H, &w->overflow);
    struct map p = {.dw = ra__words(a->k, a->D),
                    .dvw = ra__words(a->k, a->Dv),
                    .dw_left = ra__left_words(a->k, a->D),
                    .dvw_left = ra__left_words(a->k, a->Dv),
                    .d = ra__round_up(a->D, rows),
                    .dv = ra__round_up(a->Dv, rows),
                    .dq_width = ra__round_up(a->D, a->k->col_tile)};
    int64_t T = 0;
    for (int i = 0; i < q->count; i++)
        T += q->part[i].n;
    p.padded = ra__padded_rows(T, rows);
    p.q_tiles = ra__tile_count(q, a->q_tile_b);
    p.k_panels = a->k_tile_b / lanes;
    p.panel = (a->q_tile_b + a->k->row_tile + rows) * lanes;
    const int64_t head_rows = ra__mul(heads, p.padded, &w->overflow), tiles = ra__mul(heads, p.q_tiles, &w->overflow);
    p.q_rows = ra__reserve(w, ra__mul(head_rows, p.dw_left, &w->overflow), f);
    p.q_cols = ra__reserve(w, ra__mul(head_rows / a->k->pair, p.d, &w->overflow), f);
    p.o_rows = ra__reserve(w, ra__mul(head_rows, p.dvw_left, &w->overflow), f);
    p.o_cols = ra__reserve(w, ra__mul(head_rows / a->k->pair, p.dv, &w->overflow), f);
    p.dq = ra__reserve(w, ra__mul(head_rows, p.dq_width, &w->overflow), f);
    p.lse = ra__reserve(w, head_rows, f);
    p.delta = ra__reserve(w, head_rows, f);
    p.flags = ra__reserve(w, tiles, 1);
    p.sinks = ra__reserve(w, tiles, sizeof(double));
    p.turns = ra__reserve(w, tiles, sizeof(_Atomic int64_t));
    p.sums = ra__reserve(w, ra__mul(a->B, p.q_tiles, &w->overflow), sizeof(struct ra__mask_queries));
    p.key_panels = ra__reserve(w, ra__mul(a->B, ra__most_panels(Tk, lanes), &w->overflow), sizeof(struct ra__stretch));

    struct ra__layout t = {0, false};
    const int64_t keys = a->k_tile_b;
    p.kt = ra__reserve(&t, ra__mul(keys, p.dw, &t.overflow), f);
    p.vt = ra__reserve(&t, ra__mul(keys, p.dvw, &t.overflow), f);
    p.kc = ra__reserve(&t, ra__mul(keys / a->k->pair, p.dq_width, &t.overflow), f);
    p.dkt = ra__reserve(&t, ra__mul(keys, p.d, &t.overflow), f);
    p.dvt = ra__reserve(&t, ra__mul(keys, p.dv, &t.overflow), f);
    p.p = ra__reserve(&t, p.panel, f);
    p.ds = ra__reserve(&t, ra__mul(p.k_panels, p.panel, &t.overflow), f);
    p.ds_cols = ra__reserve(&t, a->k->pair == 1 ? 0 : p.panel / a->k->pair, f);
    p.mask = ra__reserve(&t, p.panel, f);
    p.drop = ra__reserve(&t, a->drops ? p.panel : 0, f);
    p.slope = ra__reserve(&t, a->softcap > 0 ? p.panel : 0, f);
    p.lane_scale = ra__reserve(&t, lanes, f);
    p.rows = ra__reserve(&t, ra__mul(2 * (a->q_tile_b > lanes ? a->q_tile_b : lanes), ra__row_scratch(widest), &t.overflow), f);
    w->overflow |= t.overflow;
    p.scratch_bytes = t.total;
    p.scratch = ra__reserve(w, a->threads, t.total);
    return p;
}

int64_t ra__backward_bytes(const struct ra__attn *a, const struct ra__stretches *q, int64_t Tk_max) {
    struct ra__layout w = {0, false};
    layout(a, q, Tk_max, &w);
    return w.overflow ? -1 : w.total;
}

/* One call, shared by its threads. */
struct call {
    struct ra__backward *w;
    const struct ra__kv_block *block;
    struct ra__mask_view view;
    struct map map;
    float *dk, *dv;
    struct ra__panels keys; /* of the block */
    int64_t k_tiles;
    int parts; /* every one of so many tiles of keys is computed */
    int threads;
};

static struct call new_call(struct ra__backward *w) {
    struct ra__layout unused = {0, false};
    return (struct call){.w = w, .map = layout(w->a, &w->q_shard.stretches, w->Tk_max, &unused)};
}

static float *at(const struct call *c, int64_t offset) {
    return (float *)(c->w->workspace + offset);
}

static float *mine(const struct call *c, int64_t offset) {
    return (float *)(c->w->workspace + c->map.scratch + ra__thread_index() * c->map.scratch_bytes + offset);
}

static uint8_t *flag(const struct call *c, int64_t head, int64_t tile) {
    return (uint8_t *)c->w->workspace + c->map.flags + head * c->map.q_tiles + tile;
}

/* What a query tile adds to the gradient of its head's sink. */
static double *sink_part(const struct call *c, int64_t head, int64_t tile) {
    return (double *)(c->w->workspace + c->map.sinks) + head * c->map.q_tiles + tile;
}

static _Atomic int64_t *turn(const struct call *c, int64_t head, int64_t tile) {
    return (_Atomic int64_t *)(c->w->workspace + c->map.turns) + head * c->map.q_tiles + tile;
}

static struct ra__mask_queries *sum_of(const struct call *c, int64_t b, int64_t tile) {
    return (struct ra__mask_queries *)(c->w->workspace + c->map.sums) + b * c->map.q_tiles + tile;
}

static struct ra__tile query_tile_at(const struct call *c, int64_t index) {
    return ra__tile_at(&c->w->q_shard.stretches, c->w->a->q_tile_b, c->w->a->k->rows, index);
}

/* In eight sums, which do not wait for each other. */
static double dot(const float *x, const float *y, int64_t n) {
    double sum[8] = {0};
    int64_t d = 0;
    for (; d + 8 <= n; d += 8)
        for (int i = 0; i < 8; i++)
            sum[i] += (double)x[d + i] * y[d + i];
    for (int i = 0; d < n; d++, i++)
        sum[i] += (double)x[d] * y[d];
    return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

/* delta = rowsum(dout * out) - dlse, and lse in units of log2 (+inf for a row that saw nothing, so that its p is 0). */
static void row_terms(const struct call *c, int64_t head, int64_t index, const struct ra__tile *tile) {
    const struct ra__backward *w = c->w;
    const struct ra__attn *a = w->a;
    const double log2e = 1.4426950408889634;
    float *rows = mine(c, c->map.rows) + tile->n * ra__row_scratch(a->D > a->Dv ? a->D : a->Dv); /* the second half */
    float *lse = at(c, c->map.lse) + head * c->map.padded + tile->padded,
          *delta = at(c, c->map.delta) + head * c->map.padded + tile->padded;
    int64_t out_ld = 0, ld = 0;
    double of_sink = 0;
    const bool given = w->dout.data != NULL;
    const float *dout =
        given ? ra__rows(a->k, &w->dout, head / a->H, tile->t0, tile->n, head % a->H, a->Dv, mine(c, c->map.rows), &ld) : NULL;
    const float *out = given ? ra__rows(a->k, &w->out, head / a->H, tile->t0, tile->n, head % a->H, a->Dv, rows, &out_ld) : NULL;
    for (int64_t i = 0; i < tile->n; i++) {
        int64_t row = head * w->q_shard.T + tile->t0 + i;
        const double sum = (given ? dot(dout + i * ld, out + i * out_ld, a->Dv) : 0) - (w->dlse ? (double)w->dlse[row] : 0);
        bool empty = w->lse[row] == -INFINITY;
        delta[i] = empty ? 0 : (float)sum;
        lse[i] = empty ? INFINITY : (float)(w->lse[row] * log2e);
        if (w->dsinks && !empty)
            of_sink -= exp((double)w->q_shard.sinks[head % a->H] - w->lse[row]) * sum;
    }
    *sink_part(c, head, index) = of_sink;
}

/* Packs q, dout of one tile in both orders, zeroes its dq, sums its mask up. */
static void pack_query_tile(const struct call *c, int64_t head, int64_t index) {
    const struct ra__backward *w = c->w;
    const struct ra__attn *a = w->a;
    const struct ra__tile tile = query_tile_at(c, index);
    const int64_t b = head / a->H, h = head % a->H, row = head * c->map.padded + tile.padded, n = tile.n;
    float *rows = mine(c, c->map.rows);
    int64_t ld;
    bool q_clean, o_clean = true;
    const float *q = ra__query_rows(a->k, &w->q, b, tile.t0, n, h, a->D, w->q_shard.temperature, rows, &ld);
    a->k->pack_rows(at(c, c->map.q_rows) + row * c->map.dw_left, q, ld, n, a->D, a->q_scale);
    q = ra__finite_rows(a->k, q, &ld, n, a->D, rows, &q_clean);
    a->k->pack_transposed(at(c, c->map.q_cols) + row / a->k->pair * c->map.d, q, ld, n, a->D);

    float *o_rows = at(c, c->map.o_rows) + row * c->map.dvw_left, *o_cols = at(c, c->map.o_cols) + row / a->k->pair * c->map.dv;
    row_terms(c, head, index, &tile);
    if (w->dout.data) {
        const float *o = ra__operand_rows(a->k, &w->dout, b, tile.t0, n, h, a->Dv, rows, &ld);
        a->k->pack_rows(o_rows, o, ld, n, a->Dv, 1);
        o = ra__finite_rows(a->k, o, &ld, n, a->Dv, rows, &o_clean);
        a->k->pack_transposed(o_cols, o, ld, n, a->Dv);
    } else {
        memset(o_rows, 0, sizeof(float) * (size_t)(ra__round_up(n, a->k->rows) * c->map.dvw_left));
        memset(o_cols, 0, sizeof(float) * (size_t)(ra__left_words(a->k, n) * c->map.dv));
    }
    memset(at(c, c->map.dq) + row * c->map.dq_width, 0, sizeof(float) * (size_t)(n * c->map.dq_width));
    *flag(c, head, index) = !q_clean || !o_clean;
    if (h == 0)
        *sum_of(c, b, index) = ra__mask_sum_queries(&c->view, b, tile.t0, n);
}

/* n: of this rank, all: of all. An axis over which x is summed has one value even where this rank has no part of it. */
static int64_t extent(const ra_tensor *x, int dimension, int64_t n, int64_t all) {
    return x->stride[dimension] == 0 && all > 1 ? 1 : n;
}

static void clear_dbias(const struct ra__backward *w) {
    const ra_tensor *x = &w->dbias;
    const int64_t B = extent(x, 0, w->a->B, w->a->B), T = extent(x, 1, w->q_shard.T, w->Sq), H = extent(x, 2, w->a->H, w->a->H),
                  K = extent(x, 3, w->Skv, w->Skv);
    for (int64_t b = 0; x->data && b < B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t h = 0; h < H; h++)
                for (int64_t key = 0; key < K; key++)
                    ((float *)x->data)[b * x->stride[0] + t * x->stride[1] + h * x->stride[2] + key * x->stride[3]] = 0;
}

/* Where several tasks add to the same value of dbias they must do it in one order: one thread then does them all. */
static bool dbias_is_shared(const struct ra__backward *w) {
    const int64_t n[4] = {w->a->B, w->q_shard.T, w->a->H, w->Skv};
    for (int i = 0; w->dbias.data && i < 4; i++)
        if (i != 1 && w->dbias.stride[i] == 0 && n[i] > 1)
            return true;
    return false;
}

void ra__backward_begin(struct ra__backward *w) {
    const struct ra__attn *a = w->a;
    struct call c = new_call(w);
    for (int64_t h = 0; w->dsinks && h < a->H; h++)
        w->dsinks[h] = 0;
    const struct ra__kv_block none = {.T = 0};
    c.view = ra__view_of(&w->q_shard, &none);
    const int64_t tasks = a->B * a->H * c.map.q_tiles;
    _Atomic int64_t next = 0;
#pragma omp parallel num_threads(a->threads)
    for (int64_t i; (i = atomic_fetch_add(&next, 1)) < tasks;)
        pack_query_tile(&c, i / c.map.q_tiles, i % c.map.q_tiles);
    for (int64_t i = 0; w->dsinks && i < tasks; i++) /* in one order, whoever made the parts */
        w->dsinks[i / c.map.q_tiles % a->H] += *sink_part(&c, i / c.map.q_tiles, i % c.map.q_tiles);
    clear_dbias(w);
    w->pairs = 0;
}

void ra__backward_end(struct ra__backward *w) {
    const struct ra__attn *a = w->a;
    struct call c = new_call(w);
    const int64_t tasks = w->dq.data ? a->B * a->H * c.map.q_tiles : 0;
    const float *temperature = w->q_shard.temperature;
    _Atomic int64_t next = 0;
#pragma omp parallel num_threads(a->threads)
    for (int64_t i; (i = atomic_fetch_add(&next, 1)) < tasks;) {
        const int64_t head = i / c.map.q_tiles;
        const struct ra__tile tile = query_tile_at(&c, i % c.map.q_tiles);
        float *dq = at(&c, c.map.dq) + (head * c.map.padded + tile.padded) * c.map.dq_width;
        for (int64_t j = 0; j < tile.n * c.map.dq_width; j++)
            dq[j] *= a->scale * (temperature ? temperature[tile.t0 + j / c.map.dq_width] : 1);
        ra__store_rows(a->k, &w->dq, head / a->H, tile.t0, tile.n, head % a->H, a->D, dq, c.map.dq_width);
    }
}

/* The tile of keys that a task owns. */
struct key_tile {
    int64_t b, g;
    int64_t index; /* among the tiles of this kv head that are computed: its place in the order of additions to dq */
    int64_t first, panels;
    struct ra__mask_keys sum[RA__MAX_KEY_PANELS], all;
    bool clean; /* no NaN or infinity in k */
};

static struct ra__stretch panel_at(const struct call *c, const struct key_tile *kt, int64_t p) {
    return ra__panel_at(&c->keys, kt->b, kt->first + p);
}

static void pack_key_tile(const struct call *c, struct key_tile *kt) {
    const struct ra__attn *a = c->w->a;
    const int64_t lanes = a->k->lanes, cols = a->k->col_tile, all = kt->panels * lanes;
    float *rows = mine(c, c->map.rows), *kc = mine(c, c->map.kc);
    kt->clean = true;
    for (int64_t p = 0; p < kt->panels; p++) {
        const int64_t t0 = panel_at(c, kt, p).t0, n = panel_at(c, kt, p).n;
        int64_t ld;
        kt->sum[p] = ra__mask_sum_keys(&c->view, kt->b, t0, n);
        kt->all = p ? ra__mask_join_keys(&kt->all, &kt->sum[p]) : kt->sum[p];
        const float *v = ra__operand_rows(a->k, &c->block->v, kt->b, t0, n, kt->g, a->Dv, rows, &ld);
        a->k->pack_lanes(mine(c, c->map.vt) + p * lanes * c->map.dvw, v, ld, n, a->Dv, 1);
        const float *k = ra__operand_rows(a->k, &c->block->k, kt->b, t0, n, kt->g, a->D, rows, &ld);
        a->k->pack_lanes(mine(c, c->map.kt) + p * lanes * c->map.dw, k, ld, n, a->D, 1);
        bool clean;
        k = ra__finite_rows(a->k, k, &ld, n, a->D, rows, &clean);
        kt->clean &= clean;
        const int64_t words = lanes / a->k->pair; /* [D / cols][panels][lanes / pair][cols] */
        for (int64_t d = 0; d < a->D; d += cols)
            a->k->pack_cols(kc + (d * kt->panels + p * cols) * words, k + d / a->k->pair, ld, n, lanes, a->D - d < cols ? a->D - d : cols,
                            cols);
    }
    memset(mine(c, c->map.dkt), 0, sizeof(float) * (size_t)(all * c->map.d));
    memset(mine(c, c->map.dvt), 0, sizeof(float) * (size_t)(all * c->map.dv));
}

static int64_t at_most(int64_t n, int64_t limit) {
    return n < limit ? n : limit;
}

/* C [d][lane] += p [row][lane] * x [row][d] for visible pairs, not those of drop, and the x that packing replaced by 0. */
static void add_non_finite(const struct call *c, const ra_tensor *x, const float *temperature, const struct ra__mask_tile *t, int64_t h,
                           int64_t width, const float *p, const float *mask, int64_t masked, const float *drop, float *out) {
    const struct ra__attn *a = c->w->a;
    const int64_t lanes = a->k->lanes;
    for (int64_t i = 0; i < t->nq; i++) {
        int64_t ld;
        const float *row = ra__rows(a->k, x, t->b, t->q0 + i, 1, h, width, mine(c, c->map.rows), &ld);
        for (int64_t d = 0; d < width; d++)
            for (int64_t lane = 0; !isfinite(row[d]) && lane < t->nk; lane++)
                if ((i >= masked || mask[i * lanes + lane] != -INFINITY) && !(drop && drop[i * lanes + lane] != 0))
                    out[d * lanes + lane] += ra__col_value(a->k, p, i, lane) * (temperature ? row[d] * temperature[t->q0 + i] : row[d]);
    }
}

/* dq [row] += ds [row][lane] * k [lane] likewise. */
static void add_non_finite_keys(const struct call *c, const struct key_tile *kt, const struct ra__mask_tile *t, const float *ds,
                                const float *mask, float *dq) {
    const struct ra__attn *a = c->w->a;
    const int64_t lanes = a->k->lanes;
    for (int64_t lane = 0; lane < t->nk; lane++) {
        int64_t ld;
        const float *k = ra__rows(a->k, &c->block->k, t->b, t->k0 + lane, 1, kt->g, a->D, mine(c, c->map.rows), &ld);
        for (int64_t d = 0; d < a->D; d++)
            for (int64_t i = 0; !isfinite(k[d]) && i < t->nq; i++)
                if (!mask || mask[i * lanes + lane] != -INFINITY)
                    dq[i * c->map.dq_width + d] += ra__row_value(a->k, ds, i, lane) * k[d];
    }
}

/* dP of a tile without what dropout drops; returns what it is. */
static const float *drop_tile(const struct call *c, int64_t head, const struct ra__mask_tile *t, float *dp) {
    const struct ra__attn *a = c->w->a;
    const struct ra__drop_tile tile = {head, c->w->q_shard.position + t->q0, c->block->position + t->k0, t->nq, t->nk};
    float *mask = mine(c, c->map.drop);
    ra__drop_by_query(a, &tile, a->k->lanes, mask);
    a->k->drop(dp, mask, a->keep_scale, t->nq * a->k->lanes);
    return mask;
}

static void add_dbias(const struct call *c, const struct ra__mask_tile *t, int64_t h, const float *ds) {
    const ra_tensor *x = &c->w->dbias;
    for (int64_t i = 0; i < t->nq; i++) {
        float *row = (float *)x->data + t->b * x->stride[0] + (t->q0 + i) * x->stride[1] + h * x->stride[2];
        for (int64_t lane = 0; lane < t->nk; lane++)
            row[c->block->position[t->k0 + lane] * x->stride[3]] += ra__row_value(c->w->a->k, ds, i, lane);
    }
}

/* Rows [first, end) of one key panel that see any of its keys; the rest of its ds is zero. */
struct rows_seen {
    int64_t first, end;
};

/* s, p, dp, ds of one query tile and one key panel; adds to dk and dv. */
static struct rows_seen panel_products(const struct call *c, const struct key_tile *kt, int64_t p, int64_t head, const struct ra__tile *q,
                                       const struct ra__mask_queries *sum, bool q_clean, int64_t *pairs) {
    const struct ra__attn *a = c->w->a;
    const int64_t lanes = a->k->lanes, rows = a->k->rows, h = head % a->H;
    const struct ra__stretch panel = panel_at(c, kt, p);
    struct ra__mask_tile t = {kt->b, q->t0, q->n, panel.t0, panel.n};
    bool full = ra__mask_shrink_queries(&c->view, sum, &kt->sum[p], &t) && t.nk == lanes;
    if (t.nq == 0)
        return (struct rows_seen){0, 0};
    int64_t first = t.q0 - q->t0, aligned = first / rows * rows;
    full &= first == aligned;
    t.q0 -= first - aligned;
    t.nq += first - aligned;
    /* Only the first rows of a positional mask's tile hide anything. */
    const int64_t clear = full ? t.nq : t.nk == lanes && first == aligned ? ra__mask_clear_queries(&c->view, &t) : 0;
    const int64_t masked = at_most(ra__round_up(t.nq - clear, a->k->pair), t.nq);
    float *mask = masked ? mine(c, c->map.mask) : NULL;
    int64_t visible = (t.nq - masked) * t.nk;
    if (masked) {
        const struct ra__mask_tile part = {t.b, t.q0, masked, t.k0, t.nk};
        visible += ra__mask_fill_by_query(&c->view, &part, h, (int)lanes, mask);
    }
    if (visible == 0)
        return (struct rows_seen){0, 0};
    *pairs += visible;

    const int64_t row = head * c->map.padded + q->padded, groups = (t.nq + rows - 1) / rows;
    float *s = mine(c, c->map.p), *ds = mine(c, c->map.ds) + p * c->map.panel + aligned * lanes;
    float *ds_cols = a->k->pair == 1 ? ds : mine(c, c->map.ds_cols);
    float *dk = mine(c, c->map.dkt) + p * lanes * c->map.d, *dv = mine(c, c->map.dvt) + p * lanes * c->map.dv;
    const float *kt_panel = mine(c, c->map.kt) + p * lanes * c->map.dw, *vt_panel = mine(c, c->map.vt) + p * lanes * c->map.dvw;
    const int64_t words = ra__words(a->k, t.nq), tile_words = ra__left_words(a->k, q->n), pair = a->k->pair;
    a->k->gemm(at(c, c->map.q_rows) + (row + aligned) * c->map.dw_left, c->map.dw_left * rows, groups, kt_panel, c->map.dw, s, false);
    a->k->gemm(at(c, c->map.o_rows) + (row + aligned) * c->map.dvw_left, c->map.dvw_left * rows, groups, vt_panel, c->map.dvw, ds, false);
    if (a->softcap > 0)
        a->k->softcap(s, mine(c, c->map.slope), t.nq * lanes, a->softcap);
    const float *drop = a->drops ? drop_tile(c, head, &t, ds) : NULL;
    a->k->softmax_backward(s, ds, ds_cols, t.nq, mask, masked, a->s_scale, at(c, c->map.lse) + row + aligned,
                           at(c, c->map.delta) + row + aligned);
    if (drop)
        a->k->drop(s, drop, a->keep_scale, t.nq * lanes);
    if (c->w->dbias.data)
        add_dbias(c, &t, h, ds);
    if (a->softcap > 0)
        a->k->multiply(ds, mine(c, c->map.slope), t.nq * lanes);
    a->k->gemm(at(c, c->map.o_cols) + row / pair * c->map.dv + aligned / pair * rows, tile_words * rows, c->map.dv / rows, s, words, dv,
               true);
    a->k->gemm(at(c, c->map.q_cols) + row / pair * c->map.d + aligned / pair * rows, tile_words * rows, c->map.d / rows, ds_cols, words, dk,
               true);
    if (!q_clean) {
        if (c->w->dout.data)
            add_non_finite(c, &c->w->dout, NULL, &t, h, a->Dv, s, mask, masked, drop, dv);
        add_non_finite(c, &c->w->q, c->w->q_shard.temperature, &t, h, a->D, ds_cols, mask, masked, NULL, dk);
    }
    return (struct rows_seen){aligned, aligned + t.nq};
}

static void wait_for_turn(_Atomic int64_t *turn_of_tile, int64_t index, const struct ra__poll *poll) {
    for (int spins = 0; atomic_load_explicit(turn_of_tile, memory_order_acquire) != index; spins++)
        if (spins > 1000) {
            if (poll)
                poll->fn(poll->arg);
            ra__yield();
        }
}

/* dq of one query tile += ds k over the key panels. */
static void add_dq(const struct call *c, const struct key_tile *kt, int64_t head, const struct ra__tile *q, const struct rows_seen *seen) {
    const struct ra__attn *a = c->w->a;
    const int64_t lanes = a->k->lanes, cols = a->k->col_tile, words = lanes / a->k->pair, step = a->k->row_tile;
    float *dq = at(c, c->map.dq) + (head * c->map.padded + q->padded) * c->map.dq_width, *ds = mine(c, c->map.ds);
    for (int64_t p = 0; p < kt->panels; p++) {
        memset(ds + p * c->map.panel, 0, sizeof(float) * (size_t)(seen[p].first * lanes));
        memset(ds + p * c->map.panel + seen[p].end * lanes, 0, sizeof(float) * (size_t)((q->n - seen[p].end) * lanes));
    }
    for (int64_t row = 0; row < q->n; row += step) {
        int64_t low = kt->panels, high = 0; /* panels that any of these rows sees */
        for (int64_t p = 0; p < kt->panels; p++)
            if (seen[p].first < row + step && seen[p].end > row) {
                low = p < low ? p : low;
                high = p + 1;
            }
        int n = (int)(q->n - row < step ? q->n - row : step);
        for (int64_t d = 0; d < c->map.dq_width && low < high; d += cols)
            a->k->gemm_rows(ds + low * c->map.panel + row * lanes, c->map.panel, high - low,
                            mine(c, c->map.kc) + (d * kt->panels + low * cols) * words, dq + row * c->map.dq_width + d, c->map.dq_width, n);
    }
}

static void add_dq_non_finite(const struct call *c, const struct key_tile *kt, int64_t head, const struct ra__tile *q,
                              const struct rows_seen *seen) {
    const struct ra__attn *a = c->w->a;
    const int64_t lanes = a->k->lanes;
    float *dq = at(c, c->map.dq) + (head * c->map.padded + q->padded) * c->map.dq_width, *mask = mine(c, c->map.mask);
    for (int64_t p = 0; p < kt->panels; p++) {
        const int64_t first = seen[p].first;
        const struct ra__stretch panel = panel_at(c, kt, p);
        struct ra__mask_tile t = {kt->b, q->t0 + first, seen[p].end - first, panel.t0, panel.n};
        if (t.nq == 0)
            continue;
        ra__mask_fill_by_query(&c->view, &t, head % a->H, (int)lanes, mask);
        add_non_finite_keys(c, kt, &t, mine(c, c->map.ds) + p * c->map.panel + first * lanes, mask, dq + first * c->map.dq_width);
    }
}

/* The owned dk, dv, transposed out of their panels. */
static void write_key_tile(const struct call *c, const struct key_tile *kt) {
    const struct ra__attn *a = c->w->a;
    const int64_t lanes = a->k->lanes, first = (kt->b * a->G + kt->g) * c->block->T;
    float *lane_scale = mine(c, c->map.lane_scale);
    for (int64_t lane = 0; lane < lanes; lane++)
        lane_scale[lane] = a->scale;
    for (int64_t p = 0; p < kt->panels; p++) {
        const int64_t n = panel_at(c, kt, p).n, row = first + panel_at(c, kt, p).t0;
        a->k->unpack_lanes(c->dk + row * a->D, a->D, mine(c, c->map.dkt) + p * lanes * c->map.d, n, a->D, lane_scale);
        a->k->unpack_lanes(c->dv + row * a->Dv, a->Dv, mine(c, c->map.dvt) + p * lanes * c->map.dv, n, a->Dv, NULL);
    }
}

/* One query tile and all panels of a key tile. */
static int64_t tile_products(const struct call *c, const struct key_tile *kt, int64_t head, int64_t index, const struct ra__poll *poll) {
    const struct ra__tile q = query_tile_at(c, index);
    struct rows_seen seen[RA__MAX_KEY_PANELS];
    int64_t pairs = 0;
    c->w->a->k->prepare();
    for (int64_t p = 0; p < kt->panels; p++)
        seen[p] = panel_products(c, kt, p, head, &q, sum_of(c, kt->b, index), !*flag(c, head, index), &pairs);
    wait_for_turn(turn(c, head, index), kt->index, poll);
    if (pairs > 0) {
        if (poll) /* while it waited, too */
            c->w->a->k->prepare();
        add_dq(c, kt, head, &q, seen);
        if (!kt->clean)
            add_dq_non_finite(c, kt, head, &q, seen);
    }
    if (poll)
        poll->fn(poll->arg);
    return pairs;
}

static int64_t key_task(const struct call *c, int64_t task, const struct ra__poll *poll) {
    const struct ra__attn *a = c->w->a;
    const int64_t kv_head = task / c->k_tiles, tile = task % c->k_tiles, group = a->H / a->G;
    struct key_tile kt = {.b = kv_head / a->G, .g = kv_head % a->G, .index = tile / c->parts, .first = tile * c->map.k_panels};
    while (kt.panels < c->map.k_panels && kt.first + kt.panels < c->keys.count && panel_at(c, &kt, kt.panels).n > 0)
        kt.panels++;
    pack_key_tile(c, &kt);
    int64_t pairs = 0;
    for (int64_t head = kt.b * a->H + kt.g * group; head < kt.b * a->H + (kt.g + 1) * group; head++)
        for (int64_t i = 0; i < c->map.q_tiles; i++) {
            if (kt.panels && ra__mask_meets(sum_of(c, kt.b, i), &kt.all))
                pairs += tile_products(c, &kt, head, i, poll);
            else
                wait_for_turn(turn(c, head, i), kt.index, poll);
            atomic_store_explicit(turn(c, head, i), kt.index + 1, memory_order_release);
        }
    if (poll) /* also where there was nothing to compute */
        poll->fn(poll->arg);
    write_key_tile(c, &kt);
    return pairs;
}

/* Panels of the block's keys, anew at the edges of documents. */
static struct ra__panels cut_keys(const struct call *c) {
    const struct ra__attn *a = c->w->a;
    const bool edges = c->view.k_segment || c->view.q.edges;
    struct ra__panels p = {.shared = !c->view.k_segment};
    struct ra__stretch *panel = (struct ra__stretch *)(c->w->workspace + c->map.key_panels);
    p.panel = panel;
    for (int64_t b = 0; b < (p.shared ? 1 : a->B); b++) {
        const int64_t n = ra__cut_panels(&c->block->stretches, a->k->lanes, edges ? ra__mask_edge_of_keys : NULL, &c->view, b, NULL);
        p.count = n > p.count ? n : p.count;
    }
    memset(panel, 0, sizeof *panel * (size_t)(p.count * (p.shared ? 1 : a->B)));
    for (int64_t b = 0; b < (p.shared ? 1 : a->B); b++)
        ra__cut_panels(&c->block->stretches, a->k->lanes, edges ? ra__mask_edge_of_keys : NULL, &c->view, b, panel + b * p.count);
    return p;
}

void ra__backward_block(struct ra__backward *w, const struct ra__kv_block *block, float *dk, float *dv, struct ra__poll poll) {
    ra__backward_part(w, block, 0, 1, dk, dv, poll);
}

void ra__backward_part(struct ra__backward *w, const struct ra__kv_block *block, int part, int parts, float *dk, float *dv,
                       struct ra__poll poll) {
    const struct ra__attn *a = w->a;
    struct call c = new_call(w);
    c.block = block;
    c.view = ra__view_of(&w->q_shard, block);
    c.dk = dk;
    c.dv = dv;
    c.keys = cut_keys(&c);
    c.parts = parts;
    c.k_tiles = (c.keys.count + c.map.k_panels - 1) / c.map.k_panels;
    const int64_t tasks = a->B * a->G * c.k_tiles;
    c.threads = dbias_is_shared(w) ? 1 : a->threads;
    for (int64_t i = 0; i < a->B * a->H * c.map.q_tiles; i++)
        atomic_store_explicit(turn(&c, 0, i), 0, memory_order_relaxed);
    _Atomic int64_t next = 0;
    int64_t pairs = 0;
#pragma omp parallel num_threads(c.threads) reduction(+ : pairs)
    {
        const struct ra__poll *my_poll = poll.fn && ra__thread_index() == 0 ? &poll : NULL;
        for (int64_t i; (i = atomic_fetch_add(&next, 1)) < tasks;)
            if ((i / c.k_tiles + i % c.k_tiles) % parts == part)
                pairs += key_task(&c, i, my_poll);
    }
    w->pairs += pairs;
}
