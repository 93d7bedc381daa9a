/* Forward driver for short queries: a few new tokens against a long cache, bound by reading keys and values once.
 *
 * With so few queries a lane panel of queries would be nearly empty. Here nothing is packed: all queries of all heads of a group are the
 * rows, which are multiplied with keys and values as they come from memory, and memory is read in the order in which it lies, all heads of
 * a token together where they are stored so. The keys are cut into chunks of fixed length that threads take as they like; each leaves a
 * partial (m, l, o) per row, and the partials are merged in the order of the keys, so that the bits do not depend on the number of threads.
 *
 *   merge: m = max m_c, l = sum l_c 2^(m_c - m), o = sum o_c 2^(m_c - m)
 *
 * Workspace:  | state | partials of all chunks | q | scratch of thread 0 | thread 1 | ... */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/threads.h"
#include "block/block.h"
#include "block/modify.h"
#include "block/tiles.h"

enum {
    CHUNK = 512,         /* keys: long enough that partials are small change, short enough to share out */
    STRIP = 16,          /* keys at a time where masks or strides make a detour necessary */
    DROP = 64,           /* keys at a time for which dropout is asked */
    MOST_SCORES = 32768, /* of a task: they must stay in the second level of cache */
};

struct map {
    int64_t state, partials, q, scratch, scratch_bytes;
    int64_t s, mask, drop, rows; /* from a thread's scratch */
    int64_t n_rows;              /* rows of one kv head */
    int64_t q_width, o_width;    /* D and Dv rounded up to a cache line */
    int64_t partial;             /* floats of one partial: o [n_rows][o_width], m, l */
    int64_t chunks;              /* most chunks of a block */
    int64_t heads;               /* kv heads of a task, at most */
};

bool ra__decode_suits(const struct ra__attn *a, int64_t Tq) {
    return Tq > 0 && Tq <= RA__DECODE_ROWS && Tq * (a->H / a->G) <= RA__DECODE_ROWS;
}

static int64_t at_most(int64_t n, int64_t limit) {
    return n < limit ? n : limit;
}

static struct map layout(const struct ra__attn *a, int64_t Tq, int64_t Tk, struct ra__layout *w) {
    const int64_t f = sizeof(float), line = RA__ALIGN / f, widest = a->D > a->Dv ? a->D : a->Dv;
    const int64_t kv_heads = ra__mul(a->B, a->G, &w->overflow);
    struct map p = {
        .n_rows = Tq * (a->H / a->G), .q_width = ra__round_up(a->D, line), .o_width = ra__round_up(a->Dv, line), .chunks = Tk / CHUNK + 3};
    p.heads = at_most(a->G, MOST_SCORES / CHUNK / p.n_rows);
    p.partial = ra__round_up(p.n_rows * (p.o_width + 2), line);
    p.state = ra__reserve(w, ra__mul(kv_heads, p.partial, &w->overflow), f);
    p.partials = ra__reserve(w, ra__mul(ra__mul(kv_heads, p.chunks, &w->overflow), p.partial, &w->overflow), f);
    p.q = ra__reserve(w, ra__mul(kv_heads, p.n_rows * p.q_width, &w->overflow), f);

    struct ra__layout t = {0, false};
    p.s = ra__reserve(&t, p.heads * p.n_rows * CHUNK, f);
    p.mask = ra__reserve(&t, Tq * STRIP, f);
    p.drop = ra__reserve(&t, a->drops ? DROP : 0, f);
    p.rows = ra__reserve(&t, ra__mul(STRIP, ra__row_scratch(widest), &t.overflow), f);
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
    int64_t heads, groups; /* kv heads of a task; how many such groups there are */
};

static float *at(const struct call *c, int64_t offset) {
    return (float *)(c->f->workspace + offset);
}

static float *mine(const struct call *c, int64_t offset) {
    return (float *)(c->f->workspace + c->map.scratch + ra__thread_index() * c->map.scratch_bytes + offset);
}

/* o [n_rows][o_width], m [n_rows], l [n_rows]. */
struct partial {
    float *o, *m, *l;
};

static struct partial partial_at(const struct call *c, int64_t offset, int64_t index) {
    float *o = at(c, offset) + index * c->map.partial, *m = o + c->map.n_rows * c->map.o_width;
    return (struct partial){o, m, m + c->map.n_rows};
}

static void clear(const struct call *c, struct partial p) {
    memset(p.o, 0, sizeof(float) * (size_t)(c->map.n_rows * c->map.o_width));
    for (int64_t i = 0; i < c->map.n_rows; i++) {
        p.m[i] = -INFINITY;
        p.l[i] = 0;
    }
}

static float *queries_of(const struct call *c, int64_t kv_head) {
    return at(c, c->map.q) + kv_head * c->map.n_rows * c->map.q_width;
}

/* Row i of a kv head is query i mod Tq of head i / Tq of its group. Scaled to logits in units of log2. */
static void load_queries(const struct call *c, int64_t kv_head) {
    const struct ra__attn *a = c->f->a;
    const int64_t group = a->H / a->G, Tq = c->f->q_shard.T, b = kv_head / a->G, g = kv_head % a->G;
    const float *temperature = c->f->q_shard.temperature;
    float *to = queries_of(c, kv_head);
    memset(to, 0, sizeof(float) * (size_t)(c->map.n_rows * c->map.q_width));
    for (int64_t i = 0; i < c->map.n_rows; i++, to += c->map.q_width) {
        int64_t ld;
        const float *q = ra__rows(a->k_decode, &c->f->q, b, i % Tq, 1, g * group + i / Tq, a->D, mine(c, c->map.rows), &ld);
        for (int64_t d = 0; d < a->D; d++)
            to[d] = q[d] * (a->q_scale * a->s_scale) * (temperature ? temperature[i % Tq] : 1);
    }
}

/* A task: a chunk of keys of some kv heads. */
struct task {
    int64_t b, g0, heads, t0, n, index; /* index: of the chunk */
};

static struct task task_at(const struct call *c, int64_t i) {
    const int64_t index = i % c->chunks, group = i / c->chunks % c->groups, b = i / c->chunks / c->groups, g0 = group * c->heads;
    const struct ra__tile chunk = ra__tile_at(&c->block->stretches, CHUNK, 1, index);
    return (struct task){b, g0, at_most(c->heads, c->f->a->G - g0), chunk.t0, chunk.n, index};
}

static float *scores_of(const struct call *c, int64_t head) {
    return mine(c, c->map.s) + head * c->map.n_rows * CHUNK;
}

static const char *address(const ra_tensor *x, int64_t b, int64_t t, int64_t g) {
    return (const char *)x->data + (b * x->stride[0] + t * x->stride[1] + g * x->stride[2]) * (int64_t)ra_dtype_size(x->dtype);
}

/* n rows of one head as the kernels take them: straight from storage where their values are neighbours, else as fp32 in scratch. */
static struct ra__rows_of_heads strip_at(const struct call *c, const ra_tensor *x, const struct task *now, int64_t t, int64_t head,
                                         int64_t k) {
    const int64_t n = at_most(now->n - t, STRIP), g = now->g0 + head;
    int64_t ld;
    const float *from = ra__rows(c->f->a->k_decode, x, now->b, now->t0 + t, n, g, k, mine(c, c->map.rows), &ld);
    return (struct ra__rows_of_heads){from, RA_F32, ld, 0, n, 1};
}

/* All rows of the task, where their values are neighbours. */
static struct ra__rows_of_heads all_at(const ra_tensor *x, const struct task *now) {
    return (struct ra__rows_of_heads){address(x, now->b, now->t0, now->g0), x->dtype, x->stride[1], x->stride[2], now->n, now->heads};
}

static void multiply_keys(const struct call *c, const struct task *now) {
    const struct ra__attn *a = c->f->a;
    const ra_tensor *k = &c->block->k;
    const float *q = queries_of(c, now->b * a->G + now->g0);
    const struct ra__rows_of_heads all = all_at(k, now);
    if (k->stride[3] == 1) {
        a->k_decode->dot_rows(q, c->map.q_width, c->map.n_rows, &all, a->D, scores_of(c, 0), CHUNK);
        return;
    }
    for (int64_t head = 0; head < now->heads; head++)
        for (int64_t t = 0; t < now->n; t += STRIP) {
            const struct ra__rows_of_heads strip = strip_at(c, k, now, t, head, a->D);
            a->k_decode->dot_rows(q + head * c->map.n_rows * c->map.q_width, c->map.q_width, c->map.n_rows, &strip, a->D,
                                  scores_of(c, head) + t, CHUNK);
        }
}

/* The mask of a strip for query head h, [Tq][STRIP]. Returns the number of visible pairs. */
static int64_t mask_strip(const struct call *c, const struct task *now, int64_t t, int64_t h, float *mask) {
    const struct ra__mask_tile tile = {now->b, 0, c->f->q_shard.T, now->t0 + t, at_most(now->n - t, STRIP)};
    return ra__mask_fill_by_query(&c->view, &tile, h, STRIP, mask);
}

/* Hidden scores become -inf, whatever they were. Returns the number of visible pairs. */
static int64_t mask_scores(const struct call *c, const struct task *now) {
    const struct ra__attn *a = c->f->a;
    const int64_t group = a->H / a->G, Tq = c->f->q_shard.T;
    float *mask = mine(c, c->map.mask);
    int64_t visible = 0;
    for (int64_t head = 0; head < now->heads; head++)
        for (int64_t i = 0; i < group; i++)
            for (int64_t t = 0; t < now->n; t += STRIP) {
                visible += mask_strip(c, now, t, (now->g0 + head) * group + i, mask);
                for (int64_t query = 0; query < Tq; query++) {
                    float *s = scores_of(c, head) + (i * Tq + query) * CHUNK + t;
                    for (int64_t key = 0; key < at_most(now->n - t, STRIP); key++)
                        s[key] = mask[query * STRIP + key] == -INFINITY ? -INFINITY : s[key] + mask[query * STRIP + key];
                }
            }
    return visible;
}

static bool is_dropped(const struct call *c, const struct task *now, int64_t t, int64_t h, int64_t query) {
    const struct ra__attn *a = c->f->a;
    return a->drops && ra__dropped(a, now->b * a->H + h, c->f->q_shard.position[query], c->block->position[now->t0 + t]);
}

/* Probabilities without what dropout drops. */
static void drop(const struct call *c, const struct task *now) {
    const struct ra__attn *a = c->f->a;
    const int64_t group = a->H / a->G, Tq = c->f->q_shard.T;
    float *mask = mine(c, c->map.drop);
    for (int64_t head = 0; head < now->heads; head++)
        for (int64_t row = 0; row < c->map.n_rows; row++)
            for (int64_t t = 0; t < now->n; t += DROP) {
                const struct ra__drop_tile tile = {now->b * a->H + (now->g0 + head) * group + row / Tq, c->f->q_shard.position + row % Tq,
                                                   c->block->position + now->t0 + t, 1, at_most(now->n - t, DROP)};
                ra__drop_by_query(a, &tile, DROP, mask);
                a->k_decode->drop(scores_of(c, head) + row * CHUNK + t, mask, a->keep_scale, DROP);
            }
}

/* o += visible p times the NaN and infinite values of a strip that were replaced by 0. */
static void add_non_finite(const struct call *c, const struct task *now, int64_t t, int64_t head, float *o) {
    const struct ra__attn *a = c->f->a;
    const int64_t group = a->H / a->G, Tq = c->f->q_shard.T, g = now->g0 + head;
    float *mask = mine(c, c->map.mask);
    for (int64_t i = 0; i < group; i++) {
        mask_strip(c, now, t, g * group + i, mask);
        for (int64_t key = 0; key < at_most(now->n - t, STRIP); key++) {
            int64_t ld;
            const float *v = ra__rows(a->k_decode, &c->block->v, now->b, now->t0 + t + key, 1, g, a->Dv, mine(c, c->map.rows), &ld);
            for (int64_t d = 0; d < a->Dv; d++)
                for (int64_t query = 0; !isfinite(v[d]) && query < Tq; query++)
                    if (mask[query * STRIP + key] != -INFINITY && !is_dropped(c, now, t + key, g * group + i, query))
                        o[(i * Tq + query) * c->map.o_width + d] += scores_of(c, head)[(i * Tq + query) * CHUNK + t + key] * v[d];
        }
    }
}

/* o += p v. Without a mask every row sees every key, and a NaN in v is theirs; else non-finite values are left out and added by themselves.
 */
static void add_values(const struct call *c, const struct task *now, bool masked) {
    const struct ra__attn *a = c->f->a;
    const ra_tensor *v = &c->block->v;
    const int64_t o_head = c->map.chunks * c->map.partial;
    float *o = partial_at(c, c->map.partials, (now->b * a->G + now->g0) * c->map.chunks + now->index).o;
    const struct ra__rows_of_heads all = all_at(v, now);
    if (!masked && v->stride[3] == 1) {
        a->k_decode->add_rows(scores_of(c, 0), CHUNK, c->map.n_rows, &all, a->Dv, o, c->map.o_width, o_head);
        return;
    }
    for (int64_t head = 0; head < now->heads; head++, o += o_head)
        for (int64_t t = 0; t < now->n; t += STRIP) {
            struct ra__rows_of_heads strip = strip_at(c, v, now, t, head, a->Dv);
            bool clean = true;
            if (masked)
                strip.data =
                    ra__finite_rows(a->k_decode, strip.data, &strip.token_stride, strip.tokens, a->Dv, mine(c, c->map.rows), &clean);
            a->k_decode->add_rows(scores_of(c, head) + t, CHUNK, c->map.n_rows, &strip, a->Dv, o, c->map.o_width, 0);
            if (!clean)
                add_non_finite(c, now, t, head, o);
        }
}

/* Returns the number of visible pairs. */
static int64_t run_task(const struct call *c, const struct task *now) {
    const struct ra__attn *a = c->f->a;
    struct ra__mask_tile seen = {now->b, 0, c->f->q_shard.T, now->t0, now->n};
    const struct ra__mask_queries queries = ra__mask_sum_queries(&c->view, now->b, 0, c->f->q_shard.T);
    const struct ra__mask_keys keys = ra__mask_sum_keys(&c->view, now->b, now->t0, now->n);
    const bool full = ra__mask_shrink_keys(&c->view, &queries, &keys, &seen) && seen.nk == now->n;
    int64_t visible = now->n * now->heads * c->map.n_rows;
    for (int64_t head = 0; head < now->heads; head++)
        clear(c, partial_at(c, c->map.partials, (now->b * a->G + now->g0 + head) * c->map.chunks + now->index));
    if (seen.nk == 0)
        return 0;
    multiply_keys(c, now);
    if (a->softcap > 0)
        a->k_decode->softcap(scores_of(c, 0), NULL, now->heads * c->map.n_rows * CHUNK, a->softcap);
    if (!full)
        visible = mask_scores(c, now);
    if (visible == 0)
        return 0;
    for (int64_t head = 0; head < now->heads; head++) {
        const struct partial p = partial_at(c, c->map.partials, (now->b * a->G + now->g0 + head) * c->map.chunks + now->index);
        a->k_decode->softmax_rows(scores_of(c, head), CHUNK, c->map.n_rows, now->n, p.m, p.l);
    }
    if (a->drops)
        drop(c, now);
    add_values(c, now, !full || a->drops);
    return visible;
}

/* into = into and from, as if they had been one. */
static void merge(const struct map *map, struct partial into, struct partial from) {
    for (int64_t i = 0; i < map->n_rows; i++) {
        if (from.m[i] == -INFINITY && from.l[i] == 0)
            continue; /* saw nothing */
        const float m = from.m[i] > into.m[i] ? from.m[i] : into.m[i], reference = m == -INFINITY ? 0 : m;
        const float old = exp2f(into.m[i] - reference), new = exp2f(from.m[i] - reference);
        float *o = into.o + i * map->o_width;
        const float *add = from.o + i * map->o_width;
        for (int64_t d = 0; d < map->o_width; d++)
            o[d] = o[d] * old + add[d] * new;
        into.l[i] = into.l[i] * old + from.l[i] * new;
        into.m[i] = m;
    }
}

static void write_rows(const struct call *c, int64_t kv_head, struct partial p) {
    const struct ra__forward *f = c->f;
    const struct ra__attn *a = f->a;
    const int64_t group = a->H / a->G, Tq = f->q_shard.T, b = kv_head / a->G, g = kv_head % a->G;
    for (int64_t i = 0; i < c->map.n_rows; i++) {
        const int64_t h = g * group + i / Tq, t = i % Tq;
        const struct ra__row_end end = ra__end_row(p.m[i], p.l[i], f->q_shard.sinks ? f->q_shard.sinks + h : NULL);
        float *o = p.o + i * c->map.o_width;
        for (int64_t d = 0; d < a->Dv; d++)
            o[d] *= end.inverse;
        if (f->lse)
            f->lse[(b * a->H + h) * Tq + t] = end.lse;
        if (f->row_max)
            f->row_max[(b * a->H + h) * Tq + t] = end.max;
        ra__store_rows(a->k_decode, &f->out, b, t, 1, h, a->Dv, o, a->Dv);
    }
}

/* How many kv heads a task takes: all that lie together and whose scores fit, but not so many that threads go without work. */
static void share_out(struct call *c) {
    const struct ra__attn *a = c->f->a;
    const ra_tensor *k = &c->block->k;
    c->chunks = ra__tile_count(&c->block->stretches, CHUNK);
    c->heads = k->stride[2] < k->stride[1] ? c->map.heads : 1;
    while (c->heads > 1 && a->B * c->chunks * ((a->G + c->heads - 1) / c->heads) < 4 * a->threads)
        c->heads = (c->heads + 1) / 2;
    c->groups = (a->G + c->heads - 1) / c->heads;
}

void ra__decode_block(struct ra__forward *f, const struct ra__kv_block *block, bool first, bool last, struct ra__poll poll) {
    const struct ra__attn *a = f->a;
    const struct ra__q_shard *q = &f->q_shard;
    struct ra__layout w = {0, false};
    struct call c = {f, block, ra__view_of(q, block), {0}, 0, 0, 0};
    c.map = layout(a, q->T, f->Tk_max, &w);
    share_out(&c);
    const int64_t kv_heads = a->B * a->G, tasks = a->B * c.groups * c.chunks;
    _Atomic int64_t next_head = 0, next_task = 0, next_merge = 0;
    int64_t pairs = 0;
#pragma omp parallel num_threads(a->threads) reduction(+ : pairs)
    {
        const bool polls = poll.fn && ra__thread_index() == 0;
        for (int64_t i; first && (i = atomic_fetch_add(&next_head, 1)) < kv_heads;) {
            clear(&c, partial_at(&c, c.map.state, i));
            load_queries(&c, i);
        }
#pragma omp barrier
        for (int64_t i; (i = atomic_fetch_add(&next_task, 1)) < tasks;) {
            const struct task now = task_at(&c, i);
            pairs += run_task(&c, &now);
            if (polls)
                poll.fn(poll.arg);
        }
#pragma omp barrier
        for (int64_t head; (head = atomic_fetch_add(&next_merge, 1)) < kv_heads;) {
            const struct partial state = partial_at(&c, c.map.state, head);
            for (int64_t chunk = 0; chunk < c.chunks; chunk++)
                merge(&c.map, state, partial_at(&c, c.map.partials, head * c.map.chunks + chunk));
            if (last)
                write_rows(&c, head, state);
        }
    }
    f->pairs += pairs;
}
