/* Forward driver for short queries: a few new tokens against a long cache, bound by reading keys and values once.
 *
 * With so few queries a lane panel of queries would be nearly empty, so lanes are keys here: all queries of all heads of a group are the
 * rows. The keys are cut into chunks of fixed length that threads take as they like; each leaves a partial (m, l, o) per row, and the
 * partials are merged in the order of the keys, so that the bits do not depend on the number of threads.
 *
 *   merge: m = max m_c, l = sum l_c 2^(m_c - m), o = sum o_c 2^(m_c - m)
 *
 * Workspace:  | state | partials of all chunks | packed q | scratch of thread 0 | thread 1 | ... */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/threads.h"
#include "block/block.h"
#include "block/tiles.h"

enum { STEP = 32 };   /* head dimensions at a time: a multiple of the k_step of every set */
enum { CHUNK = 384 }; /* keys: whole panels in every kernel set; long enough that partials are small change, short enough to share out */

struct map {
    int64_t state, partials, q, scratch, scratch_bytes;
    int64_t panel, s, mask, alpha, rows; /* from a thread's scratch */
    int64_t n_rows, padded;              /* rows of one kv head; rounded up to the register tile */
    int64_t width;                       /* Dv rounded up to a cache line */
    int64_t partial;                     /* floats of one partial: o [n_rows][width], m, l */
    int64_t q_head;                      /* words of packed q of one kv head */
    int64_t chunks;                      /* most chunks of a block */
};

bool ra__decode_suits(const struct ra__attn *a, int64_t Tq) {
    return Tq > 0 && Tq <= RA__DECODE_ROWS && Tq * (a->H / a->G) <= RA__DECODE_ROWS;
}

/* The set that multiplies q and k: pairs of bf16 where its panels are those of the fp32 set, which does everything else. */
static const struct ra__kernels *score_kernels(const struct ra__attn *a) {
    return a->k->lanes == a->k_decode->lanes ? a->k : a->k_decode;
}

static struct map layout(const struct ra__attn *a, int64_t Tq, int64_t Tk, struct ra__layout *w) {
    const int64_t lanes = a->k_decode->lanes, f = sizeof(float), widest = a->D > a->Dv ? a->D : a->Dv;
    const int64_t kv_heads = ra__mul(a->B, a->G, &w->overflow);
    struct map p = {
        .n_rows = Tq * (a->H / a->G), .width = ra__round_up(a->Dv, RA__ALIGN / (int64_t)sizeof(float)), .chunks = Tk / CHUNK + 3};
    p.padded = ra__round_up(p.n_rows, score_kernels(a)->rows);
    p.partial = ra__round_up(p.n_rows * (p.width + 2), RA__ALIGN / f);
    p.q_head = ra__mul(ra__round_up(p.n_rows, score_kernels(a)->rows), ra__left_words(score_kernels(a), a->D), &w->overflow);
    p.state = ra__reserve(w, ra__mul(kv_heads, p.partial, &w->overflow), f);
    p.partials = ra__reserve(w, ra__mul(ra__mul(kv_heads, p.chunks, &w->overflow), p.partial, &w->overflow), f);
    p.q = ra__reserve(w, ra__mul(kv_heads, p.q_head, &w->overflow), f);

    struct ra__layout t = {0, false};
    p.panel = ra__reserve(&t, lanes * STEP, f);
    p.s = ra__reserve(&t, p.padded * lanes, f);
    p.mask = ra__reserve(&t, p.padded * lanes, f);
    p.alpha = ra__reserve(&t, p.padded, f);
    p.rows = ra__reserve(&t, ra__mul(lanes > p.padded ? lanes : p.padded, ra__row_scratch(widest), &t.overflow), f);
    w->overflow |= t.overflow;
    p.scratch_bytes = t.total;
    p.scratch = ra__reserve(w, a->threads, t.total);
    return p;
}

int64_t ra__decode_bytes(const struct ra__attn *a, int64_t Tq, int64_t Tk_max) {
    struct ra__layout w = {0, false};
    layout(a, Tq, Tk_max, &w);
    return w.overflow ? -1 : w.total;
}

struct call {
    struct ra__forward *f;
    const struct ra__kv_block *block;
    struct ra__mask_view view;
    struct map map;
    int64_t chunks;
};

static float *at(const struct call *c, int64_t offset) {
    return (float *)(c->f->workspace + offset);
}

static float *mine(const struct call *c, int64_t offset) {
    return (float *)(c->f->workspace + c->map.scratch + ra__thread_index() * c->map.scratch_bytes + offset);
}

/* o [n_rows][width], m [n_rows], l [n_rows]. */
struct partial {
    float *o, *m, *l;
};

static struct partial partial_at(const struct call *c, int64_t offset, int64_t index) {
    float *o = at(c, offset) + index * c->map.partial, *m = o + c->map.n_rows * c->map.width;
    return (struct partial){o, m, m + c->map.n_rows};
}

static void clear(const struct call *c, struct partial p) {
    memset(p.o, 0, sizeof(float) * (size_t)(c->map.n_rows * c->map.width));
    for (int64_t i = 0; i < c->map.n_rows; i++) {
        p.m[i] = -INFINITY;
        p.l[i] = 0;
    }
}

/* Row i of a kv head is query i mod Tq of head i / Tq of its group. */
static void pack_queries(const struct call *c, int64_t kv_head) {
    const struct ra__attn *a = c->f->a;
    const struct ra__kernels *k = score_kernels(a);
    const int64_t group = a->H / a->G, Tq = c->f->q_shard.T, b = kv_head / a->G, g = kv_head % a->G, words = ra__words(k, a->D);
    float *all = mine(c, c->map.rows), *scratch = all + c->map.n_rows * words;
    for (int64_t i = 0; i < c->map.n_rows; i++) {
        int64_t ld;
        const float *q = ra__operand_rows(k, &c->f->q, b, i % Tq, 1, g * group + i / Tq, a->D, scratch, &ld);
        memcpy(all + i * words, q, sizeof(float) * (size_t)words);
    }
    k->pack_rows(at(c, c->map.q) + kv_head * c->map.q_head, all, words, c->map.n_rows, a->D,
                 k->pair == 1 ? a->q_scale * a->s_scale : a->q_scale);
}

/* One lane panel of keys. */
struct keys {
    int64_t b, g, t0, n;
};

/* The mask of a panel for all rows into scratch; *needed: something of the panel is hidden. Returns the number of visible pairs. */
static int64_t mask_panel(const struct call *c, const struct keys *k, bool *needed) {
    const struct ra__attn *a = c->f->a;
    const int64_t group = a->H / a->G, Tq = c->f->q_shard.T, lanes = a->k_decode->lanes;
    const struct ra__mask_tile all = {k->b, 0, Tq, k->t0, k->n};
    struct ra__mask_tile seen = all;
    const struct ra__mask_queries queries = ra__mask_sum_queries(&c->view, k->b, 0, Tq);
    const struct ra__mask_keys keys = ra__mask_sum_keys(&c->view, k->b, k->t0, k->n);
    const bool full = ra__mask_shrink_keys(&c->view, &queries, &keys, &seen) && seen.nk == k->n;
    *needed = !full || k->n < lanes;
    if (seen.nk == 0 || !*needed)
        return seen.nk * c->map.n_rows;
    int64_t visible = 0;
    for (int64_t i = 0; i < group; i++)
        visible += ra__mask_fill_by_query(&c->view, &all, k->g * group + i, (int)lanes, mine(c, c->map.mask) + i * Tq * lanes);
    return visible;
}

/* o += visible p times the NaN and infinite values that packing replaced by 0. */
static void add_non_finite(const struct call *c, const struct keys *k, const float *p, const float *mask, float *o) {
    const struct ra__attn *a = c->f->a;
    const int64_t lanes = a->k_decode->lanes;
    for (int64_t key = 0; key < k->n; key++) {
        int64_t ld;
        const float *v = ra__rows(a->k_decode, &c->block->v, k->b, k->t0 + key, 1, k->g, a->Dv, mine(c, c->map.rows), &ld);
        for (int64_t d = 0; d < a->Dv; d++)
            for (int64_t row = 0; !isfinite(v[d]) && row < c->map.n_rows; row++)
                if (mask[row * lanes + key] != -INFINITY)
                    o[row * c->map.width + d] += ra__row_value(a->k_decode, p, row, key) * v[d];
    }
}

/* The panel after this one, asked for piece by piece between the kernels: the processor cannot foresee short rows in far places, and
 * asking for all of it at once would only wait for it at once. */
struct ahead {
    const struct call *c;
    struct keys k;
    int64_t done;  /* rows of k, then of v, already asked for */
    int64_t piece; /* rows asked for at a time */
};

static void ask(const ra_tensor *x, const struct keys *k, int64_t row, int64_t width) {
    const int64_t element = (int64_t)ra_dtype_size(x->dtype);
    const char *from = (const char *)x->data + (k->b * x->stride[0] + (k->t0 + row) * x->stride[1] + k->g * x->stride[2]) * element;
    for (int64_t line = 0; line < width * element; line += 64)
        __builtin_prefetch(from + line);
}

static void ask_ahead(struct ahead *next) {
    const int64_t n = next->k.n;
    for (int64_t end = next->done + next->piece; next->done < end && next->done < 2 * n; next->done++)
        if (next->done < n)
            ask(&next->c->block->k, &next->k, next->done, next->c->f->a->D);
        else
            ask(&next->c->block->v, &next->k, next->done - n, next->c->f->a->Dv);
}

/* How often fold_panel asks. */
static int64_t pieces_of(const struct ra__attn *a) {
    return 2 * ((a->D + STEP - 1) / STEP) + (a->Dv + STEP - 1) / STEP + 1;
}

static int64_t at_most(int64_t n, int64_t limit) {
    return n < limit ? n : limit;
}

/* s = q k^T, a few head dimensions at a time. */
static void scores(const struct call *c, const struct keys *k, float *s, struct ahead *next) {
    const struct ra__attn *a = c->f->a;
    const struct ra__kernels *kernels = score_kernels(a);
    const int64_t groups = (c->map.n_rows + kernels->rows - 1) / kernels->rows, stride = ra__left_words(kernels, a->D) * kernels->rows;
    const float *q = at(c, c->map.q) + (k->b * a->G + k->g) * c->map.q_head;
    float *panel = mine(c, c->map.panel);
    int64_t ld;
    const float *rows = ra__operand_rows(kernels, &c->block->k, k->b, k->t0, k->n, k->g, a->D, mine(c, c->map.rows), &ld);
    for (int64_t d = 0; d < a->D; d += STEP) {
        const int64_t width = at_most(a->D - d, STEP);
        kernels->pack_lanes(panel, rows + d / kernels->pair, ld, k->n, width, 1);
        ask_ahead(next);
        kernels->gemm(q + d / kernels->pair * kernels->rows, stride, groups, panel, ra__words(kernels, width), s, d > 0);
        ask_ahead(next);
    }
    for (int64_t i = 0; kernels->pair > 1 && i < c->map.n_rows * kernels->lanes; i++)
        s[i] *= a->s_scale;
}

/* o += p v. Without a mask every row sees every key, and a NaN in v is theirs; else non-finite values are left out and added by themselves.
 */
static void add_values(const struct call *c, const struct keys *k, const float *p, const float *mask, float *o, struct ahead *next) {
    const struct ra__attn *a = c->f->a;
    const struct ra__kernels *kernels = a->k_decode;
    const ra_tensor *v = &c->block->v;
    const int64_t at = k->b * v->stride[0] + k->t0 * v->stride[1] + k->g * v->stride[2], element = (int64_t)ra_dtype_size(v->dtype);
    const char *rows = (const char *)v->data + at * element;
    int64_t ld = v->stride[1];
    ra_dtype dtype = v->dtype;
    bool clean = true;
    if (mask || v->stride[3] != 1) {
        float *scratch = mine(c, c->map.rows);
        const float *from = ra__rows(kernels, v, k->b, k->t0, k->n, k->g, a->Dv, scratch, &ld);
        rows = (const char *)(mask ? ra__finite_rows(kernels, from, &ld, k->n, a->Dv, scratch, &clean) : from);
        dtype = RA_F32;
    }
    for (int64_t d = 0; d < a->Dv; d += STEP) {
        kernels->add_rows(p, c->map.n_rows, rows + d * (int64_t)ra_dtype_size(dtype), dtype, ld, k->n, at_most(a->Dv - d, STEP), o + d,
                          c->map.width);
        ask_ahead(next);
    }
    if (!clean)
        add_non_finite(c, k, p, mask, o);
}

static int64_t fold_panel(const struct call *c, const struct keys *k, struct partial out, struct ahead *next) {
    const struct ra__attn *a = c->f->a;
    float *s = mine(c, c->map.s), *alpha = mine(c, c->map.alpha);
    bool needed;
    const int64_t visible = mask_panel(c, k, &needed);
    const float *mask = needed ? mine(c, c->map.mask) : NULL;
    if (visible == 0)
        return 0;
    scores(c, k, s, next);
    if (a->k_decode->softmax_rows(s, c->map.n_rows, mask, 1, out.m, out.l, alpha))
        for (int64_t i = 0; i < c->map.n_rows; i++)
            for (int64_t d = 0; d < c->map.width; d++)
                out.o[i * c->map.width + d] *= alpha[i];
    ask_ahead(next);
    add_values(c, k, s, mask, out.o, next);
    return visible;
}

/* Tasks are chunks of all kv heads of a batch element. Panels are walked as they lie in memory: heads inside tokens or tokens inside
 * heads. */
static int64_t chunk_task(const struct call *c, int64_t task) {
    const struct ra__attn *a = c->f->a;
    const int64_t b = task / c->chunks, index = task % c->chunks, lanes = a->k_decode->lanes;
    const struct ra__tile chunk = ra__tile_at(&c->block->stretches, CHUNK, 1, index);
    const int64_t panels = (chunk.n + lanes - 1) / lanes, count = panels * a->G;
    const bool heads_inside = c->block->k.stride[2] < c->block->k.stride[1];
    int64_t pairs = 0;
    for (int64_t g = 0; g < a->G; g++)
        clear(c, partial_at(c, c->map.partials, (b * a->G + g) * c->map.chunks + index));
    struct ahead next = {.c = c};
    for (int64_t i = -1; i < count; i++) {
        const struct keys k = next.k;
        next.piece = 2 * k.n;
        ask_ahead(&next); /* what is left of it */
        const int64_t panel = heads_inside ? (i + 1) / a->G : (i + 1) % panels, g = heads_inside ? (i + 1) % a->G : (i + 1) / panels;
        const int64_t left = i + 1 < count ? chunk.n - panel * lanes : 0, n = left < lanes ? left : lanes;
        next = (struct ahead){c, {b, g, chunk.t0 + panel * lanes, n}, 0, (2 * n + pieces_of(a) - 1) / pieces_of(a)};
        if (i >= 0)
            pairs += fold_panel(c, &k, partial_at(c, c->map.partials, (b * a->G + k.g) * c->map.chunks + index), &next);
    }
    return pairs;
}

/* into = into and from, as if they had been one. */
static void merge(const struct map *map, struct partial into, struct partial from) {
    for (int64_t i = 0; i < map->n_rows; i++) {
        if (from.m[i] == -INFINITY && from.l[i] == 0)
            continue; /* saw nothing */
        const float m = from.m[i] > into.m[i] ? from.m[i] : into.m[i], reference = m == -INFINITY ? 0 : m;
        const float old = exp2f(into.m[i] - reference), new = exp2f(from.m[i] - reference);
        float *o = into.o + i * map->width;
        const float *add = from.o + i * map->width;
        for (int64_t d = 0; d < map->width; d++)
            o[d] = o[d] * old + add[d] * new;
        into.l[i] = into.l[i] * old + from.l[i] * new;
        into.m[i] = m;
    }
}

static void write_rows(const struct call *c, int64_t kv_head, struct partial p) {
    const struct ra__forward *f = c->f;
    const struct ra__attn *a = f->a;
    const int64_t group = a->H / a->G, Tq = f->q_shard.T, b = kv_head / a->G, g = kv_head % a->G;
    const double ln2 = 0.69314718055994531;
    for (int64_t i = 0; i < c->map.n_rows; i++) {
        const int64_t h = g * group + i / Tq, t = i % Tq;
        float *o = p.o + i * c->map.width, l = p.l[i], inverse = l == 0 ? 0 : 1 / l;
        for (int64_t d = 0; d < a->Dv; d++)
            o[d] *= inverse;
        if (f->lse)
            f->lse[(b * a->H + h) * Tq + t] = l == 0 ? -INFINITY : (float)((p.m[i] + log2(l)) * ln2);
        ra__store_rows(a->k_decode, &f->out, b, t, 1, h, a->Dv, o, a->Dv);
    }
}

void ra__decode_block(struct ra__forward *f, const struct ra__kv_block *block, bool first, bool last, struct ra__poll poll) {
    const struct ra__attn *a = f->a;
    const struct ra__q_shard *q = &f->q_shard;
    struct ra__layout w = {0, false};
    struct call c = {f, block, ra__view_of(q, block), {0}, 0};
    c.map = layout(a, q->T, f->Tk_max, &w);
    c.chunks = ra__tile_count(&block->stretches, CHUNK);
    const int64_t kv_heads = a->B * a->G, tasks = a->B * c.chunks;
    _Atomic int64_t next_head = 0, next = 0, next_merge = 0;
    int64_t pairs = 0;
#pragma omp parallel num_threads(a->threads) reduction(+ : pairs)
    {
        const bool polls = poll.fn && ra__thread_index() == 0;
        for (int64_t i; first && (i = atomic_fetch_add(&next_head, 1)) < kv_heads;) {
            clear(&c, partial_at(&c, c.map.state, i));
            pack_queries(&c, i);
        }
#pragma omp barrier
        for (int64_t i; (i = atomic_fetch_add(&next, 1)) < tasks;) {
            pairs += chunk_task(&c, i);
            if (polls)
                poll.fn(poll.arg);
        }
#pragma omp barrier
        for (int64_t i; (i = atomic_fetch_add(&next_merge, 1)) < kv_heads;) {
            const struct partial state = partial_at(&c, c.map.state, i);
            for (int64_t chunk = 0; chunk < c.chunks; chunk++)
                merge(&c.map, state, partial_at(&c, c.map.partials, i * c.map.chunks + chunk));
            if (last)
                write_rows(&c, i, state);
        }
    }
    f->pairs += pairs;
}
