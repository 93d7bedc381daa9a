/* The mask of a plan: spans of this rank's queries, and for every rank what its queries see together, from which follow the schedule, the
 * rows that travel, pairs and balance. One pass over the rows of all ranks, each row once. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "block/tiles.h"
#include "plan/plan.h"

struct ra__mask_rule ra__mask_rule_of(const ra_problem *p) {
    const ra_mask *m = &p->mask;
    return (struct ra__mask_rule){.Sq = p->Sq,
                                  .Skv = p->Skv,
                                  .block = m->causal ? 1 : m->causal_block,
                                  .bottom_right = m->align == RA_ALIGN_BOTTOM_RIGHT,
                                  .left = m->window_left,
                                  .right = m->window_right,
                                  .prefix = m->prefix,
                                  .keep_first = m->keep_first};
}

/* Packed offsets and slices into the rule. */
static bool copy_rule(ra_plan *plan, const ra_mask *m) {
    const ra_allocator *memory = &plan->comm->allocator;
    struct ra__mask_rule *rule = &plan->rule;
    const size_t offsets = (size_t)(m->sequences + 1), slices = (size_t)m->slice_count;
    if (m->sequences) {
        plan->cu = ra__alloc(memory, 2 * offsets * sizeof *plan->cu);
        if (!plan->cu)
            return false;
        rule->cu_q = memcpy(plan->cu, m->cu_seqlens_q, offsets * sizeof *plan->cu);
        rule->cu_k = memcpy(plan->cu + offsets, m->cu_seqlens_kv, offsets * sizeof *plan->cu);
        rule->sequences = m->sequences;
    }
    if (m->slice_count) {
        plan->slices = ra__alloc(memory, slices * sizeof *plan->slices);
        plan->slice_reach = ra__alloc(memory, slices * sizeof *plan->slice_reach);
        if (!plan->slices || !plan->slice_reach)
            return false;
        for (int64_t i = 0; i < m->slice_count; i++) {
            const int64_t *s = m->slices + 5 * i;
            plan->slices[i] = (struct ra__slice){s[0], s[1], s[2], s[3], s[4]};
        }
        ra__slices_sort(plan->slices, plan->slice_reach, m->slice_count);
        rule->slice = plan->slices;
        rule->slice_reach = plan->slice_reach;
        rule->slices = m->slice_count;
    }
    return true;
}

ra_status ra__masks_copy(ra_plan *plan, const ra_problem *p) {
    const ra_allocator *memory = &plan->comm->allocator;
    struct ra__ring *ring = &plan->ring;
    bool made = copy_rule(plan, &p->mask);
    if (p->mask.kv_lens) {
        ring->kv_lens = ra__alloc(memory, (size_t)p->B * sizeof *ring->kv_lens);
        for (int64_t b = 0; b < p->B && ring->kv_lens; b++)
            ring->kv_lens[b] = p->mask.kv_lens[b];
        made &= ring->kv_lens != NULL;
    }
    if (p->alibi_slopes) {
        ring->alibi = ra__alloc(memory, (size_t)p->H * sizeof *ring->alibi);
        if (ring->alibi)
            memcpy(ring->alibi, p->alibi_slopes, (size_t)p->H * sizeof *ring->alibi);
        made &= ring->alibi != NULL;
    }
    return made ? RA_OK
                : ra__fail(RA_ERR_MEMORY, "no memory for the mask's %lld sequences, %lld slices", (long long)p->mask.sequences,
                           (long long)p->mask.slice_count);
}

static struct ra__shard q_shard(const ra_plan *plan, int r) {
    return ra__layout_shard(plan->problem.layout, plan->problem.Sq, plan->ring.schedule.P, r);
}

static struct ra__shard kv_shard(const ra_plan *plan, int r) {
    return ra__layout_shard(plan->problem.layout, plan->problem.Skv, plan->ring.schedule.P, r);
}

/* ---- lengths ---- */

/* kv_lens sorted, and their sums: how many keys lie before a position, over all batch elements, without asking each of them. */
struct lengths {
    int64_t *sorted; /* [B], NULL: no lengths */
    double *sum;     /* [B + 1]: of the first i */
    int64_t B;
};

static int by_value(const void *x, const void *y) {
    const int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return (a > b) - (a < b);
}

static bool lengths_make(const ra_plan *plan, struct lengths *l) {
    const ra_allocator *memory = &plan->comm->allocator;
    *l = (struct lengths){.B = plan->problem.B};
    if (!plan->ring.kv_lens)
        return true;
    l->sorted = ra__alloc(memory, (size_t)l->B * sizeof *l->sorted);
    l->sum = ra__alloc(memory, (size_t)(l->B + 1) * sizeof *l->sum);
    if (!l->sorted || !l->sum)
        return false;
    memcpy(l->sorted, plan->ring.kv_lens, (size_t)l->B * sizeof *l->sorted);
    qsort(l->sorted, (size_t)l->B, sizeof *l->sorted, by_value);
    l->sum[0] = 0;
    for (int64_t b = 0; b < l->B; b++)
        l->sum[b + 1] = l->sum[b] + (double)l->sorted[b];
    return true;
}

static void lengths_free(const ra_plan *plan, struct lengths *l) {
    ra__free(&plan->comm->allocator, l->sorted);
    ra__free(&plan->comm->allocator, l->sum);
}

/* Keys before position x, over all batch elements. */
static double keys_before(const struct lengths *l, int64_t x) {
    int64_t low = 0;
    if (!l->sorted)
        return (double)l->B * (double)x;
    for (int64_t n = l->B; n > 0;) {
        const int64_t half = n / 2;
        if (l->sorted[low + half] <= x) {
            low += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return l->sum[low] + (double)(l->B - low) * (double)x;
}

static int64_t longest(const struct lengths *l) {
    return l->sorted ? l->sorted[l->B - 1] : INT64_MAX;
}

/* ---- what every rank sees ---- */

/* Drops what lies behind all lengths. */
static int64_t clip(struct ra__span *row, int64_t n, int64_t limit) {
    while (n > 0 && row[n - 1].begin >= limit)
        n--;
    if (n > 0 && row[n - 1].end > limit)
        row[n - 1].end = limit;
    return n;
}

/* One rank's rows; *spans counts them all. */
static bool see(const ra_plan *plan, int r, const struct lengths *l, struct ra__span *row, int64_t *spans) {
    const struct ra__shard q = q_shard(plan, r);
    struct ra__rank_mask *rank = &plan->ranks[r];
    rank->seen.memory = &plan->comm->allocator;
    *spans = 0;
    for (int64_t t = 0; t < q.T; t++) {
        const int64_t n = clip(row, ra__mask_row(&plan->rule, ra__shard_position(&q, t), row), longest(l));
        *spans += n;
        for (int64_t i = 0; i < n; i++)
            rank->pairs += keys_before(l, row[i].end) - keys_before(l, row[i].begin);
        if (!ra__span_set_add(&rank->seen, row, n))
            return false;
    }
    ra__span_set_finish(&rank->seen);
    return true;
}

/* This rank's own spans, `total` of them, and the edges between what its queries see. */
static bool keep_own(ra_plan *plan, const struct lengths *l, struct ra__span *row, int64_t total) {
    struct ra__ring *ring = &plan->ring;
    const ra_allocator *memory = &plan->comm->allocator;
    const struct ra__span_set *seen = &plan->ranks[ring->schedule.r].seen;
    plan->span_first = ra__alloc(memory, (size_t)(ring->q.T + 1) * sizeof *plan->span_first);
    plan->spans = ra__alloc(memory, (size_t)total * sizeof *plan->spans);
    plan->edges = ra__alloc(memory, (size_t)seen->count * sizeof *plan->edges);
    ring->q_aligned = ring->alibi ? ra__alloc(memory, (size_t)ring->q.T * sizeof *ring->q_aligned) : NULL;
    if (!plan->span_first || !plan->spans || !plan->edges || (ring->alibi && !ring->q_aligned))
        return false;
    int64_t at = 0;
    for (int64_t t = 0; t < ring->q.T; t++) {
        const int64_t n = clip(row, ra__mask_row(&plan->rule, ra__shard_position(&ring->q, t), row), longest(l));
        plan->span_first[t] = at;
        memcpy(plan->spans + at, row, (size_t)n * sizeof *row);
        at += n;
    }
    plan->span_first[ring->q.T] = at;
    for (int64_t t = 0; t < ring->q.T && ring->alibi; t++)
        ring->q_aligned[t] = ra__mask_aligned(&plan->rule, ra__shard_position(&ring->q, t));
    for (int64_t i = 1; i < seen->count; i++) /* in front of all keys there is nothing to part */
        plan->edges[i - 1] = seen->span[i].begin;
    ring->q_spans = (struct ra__spans){plan->span_first, plan->spans, plan->edges, seen->count > 1 ? seen->count - 1 : 0};
    return true;
}

/* Panels of the forward's queries, anew at the edges of documents. */
static bool cut_queries(ra_plan *plan) {
    struct ra__ring *ring = &plan->ring;
    struct ra__panels *p = &ring->q_panels;
    const struct ra__mask_view view = {.q = ring->q_spans, .q_segment = ring->q_segment, .Tq = ring->q.T};
    ra__edge_fn *edge = view.q_segment || view.q.edges ? ra__mask_edge_of_queries : NULL;
    const int64_t lanes = ring->attn.k->lanes;
    p->shared = !view.q_segment;
    const int64_t lists = p->shared ? 1 : ring->attn.B;
    for (int64_t b = 0; b < lists; b++) {
        const int64_t n = ra__cut_panels(&ring->q.stretches, lanes, edge, &view, b, NULL);
        p->count = n > p->count ? n : p->count;
    }
    plan->panel_count = lists * p->count;
    plan->panels = ra__alloc_zero(&plan->comm->allocator, (size_t)plan->panel_count * sizeof *plan->panels);
    p->panel = plan->panels;
    for (int64_t b = 0; plan->panels && b < lists; b++)
        ra__cut_panels(&ring->q.stretches, lanes, edge, &view, b, plan->panels + b * p->count);
    return plan->panels;
}

ra_status ra__masks_build(ra_plan *plan) {
    const int P = plan->ring.schedule.P;
    const ra_allocator *memory = &plan->comm->allocator;
    struct lengths l;
    ra__mask_rule_finish(&plan->rule);
    struct ra__span *row = ra__alloc(memory, (size_t)plan->rule.most * sizeof *row);
    plan->ranks = ra__alloc_zero(memory, (size_t)P * sizeof *plan->ranks);
    bool made = lengths_make(plan, &l) && row && plan->ranks;
    int64_t own = 0;
    for (int r = 0; r < P && made; r++) {
        int64_t spans;
        made = see(plan, r, &l, row, &spans);
        own = r == plan->ring.schedule.r ? spans : own;
    }
    made = made && keep_own(plan, &l, row, own) && cut_queries(plan);
    lengths_free(plan, &l);
    ra__free(memory, row);
    return made ? RA_OK : ra__fail(RA_ERR_MEMORY, "no memory for the mask of %lld queries", (long long)plan->ring.q.T);
}

void ra__masks_free(ra_plan *plan) {
    const ra_allocator memory = plan->comm->allocator;
    void *copies[] = {plan->cu, plan->slices, plan->slice_reach};
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++)
        ra__free(&memory, copies[i]);
    for (int r = 0; plan->ranks && r < plan->ring.schedule.P; r++)
        if (plan->ranks[r].seen.memory)
            ra__span_set_free(&plan->ranks[r].seen);
    ra__free(&memory, plan->ranks);
    ra__free(&memory, plan->span_first);
    ra__free(&memory, plan->spans);
    ra__free(&memory, plan->edges);
    ra__free(&memory, plan->panels);
    ra__free(&memory, plan->ring.q_aligned);
}

static int64_t taken(const void *array, int64_t count, size_t element_bytes) {
    return array ? ra__alloc_bytes(count, element_bytes) : 0;
}

int64_t ra__masks_bytes(const ra_plan *plan) {
    const struct ra__ring *ring = &plan->ring;
    const struct ra__mask_rule *rule = &plan->rule;
    int64_t bytes = taken(plan->cu, 2 * (rule->sequences + 1), sizeof *plan->cu);
    bytes += taken(plan->slices, rule->slices, sizeof *plan->slices) + taken(plan->slice_reach, rule->slices, sizeof *plan->slice_reach);
    bytes += taken(ring->kv_lens, plan->problem.B, sizeof *ring->kv_lens) + taken(ring->alibi, plan->problem.H, sizeof *ring->alibi);
    bytes += taken(plan->ranks, ring->schedule.P, sizeof *plan->ranks);
    for (int r = 0; r < ring->schedule.P; r++)
        bytes += taken(plan->ranks[r].seen.span, plan->ranks[r].seen.room, sizeof *plan->ranks[r].seen.span);
    bytes += taken(plan->span_first, ring->q.T + 1, sizeof *plan->span_first);
    bytes += taken(plan->spans, plan->span_first[ring->q.T], sizeof *plan->spans);
    bytes += taken(plan->edges, plan->ranks[ring->schedule.r].seen.count, sizeof *plan->edges);
    bytes += taken(plan->panels, plan->panel_count, sizeof *plan->panels);
    return bytes + taken(ring->q_aligned, ring->q.T, sizeof *ring->q_aligned);
}

/* ---- answers ---- */

static bool segments_meet(const ra_plan *plan, int r, int b) {
    const int64_t B = plan->problem.B;
    for (int64_t i = 0; i < B; i++) {
        const struct ra__segment_range *q = &plan->ranges[r * B + i], *k = &plan->ranges[b * B + i];
        if (q->q_min <= k->k_max && k->k_min <= q->q_max)
            return true;
    }
    return false;
}

/* The smallest x with first + x * stride >= position. */
static int64_t row_from(int64_t first, int64_t stride, int64_t position) {
    return position <= first ? 0 : (position - first + stride - 1) / stride;
}

/* The first span that ends behind a position. */
static int64_t seen_behind(const struct ra__span_set *seen, int64_t position) {
    int64_t low = 0;
    for (int64_t n = seen->count; n > 0;) {
        const int64_t half = n / 2;
        if (seen->span[low + half].end <= position) {
            low += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return low;
}

int64_t ra__plan_rows(const void *context, int r, int b, struct ra__stretch *ranges, int64_t max) {
    const ra_plan *plan = context;
    const struct ra__span_set *seen = &plan->ranks[r].seen;
    const struct ra__shard kv = kv_shard(plan, b);
    int64_t count = 0;
    if (plan->has_segments && !segments_meet(plan, r, b))
        return 0;
    for (int part = 0; part < kv.stretches.count; part++) {
        const struct ra__stretch s = kv.stretches.part[part];
        const int64_t first = kv.position[part], last = first + (s.n - 1) * kv.stride;
        for (int64_t i = seen_behind(seen, first); i < seen->count && seen->span[i].begin <= last; i++) {
            const int64_t begin = row_from(first, kv.stride, seen->span[i].begin), end = row_from(first, kv.stride, seen->span[i].end);
            if (begin < end && begin < s.n)
                count = ra__rows_append(ranges, count, max, s.t0 + begin, s.t0 + (end < s.n ? end : s.n));
        }
    }
    return count;
}

bool ra__plan_needs(const ra_plan *plan, int r, int b) {
    const struct ra__span_set *seen = &plan->ranks[r].seen;
    const struct ra__shard kv = kv_shard(plan, b);
    if (plan->has_segments && !segments_meet(plan, r, b))
        return false;
    for (int part = 0; part < kv.stretches.count; part++) {
        const int64_t first = kv.position[part], last = first + (kv.stretches.part[part].n - 1) * kv.stride;
        for (int64_t i = seen_behind(seen, first); i < seen->count && seen->span[i].begin <= last; i++) {
            const int64_t row = row_from(first, kv.stride, seen->span[i].begin);
            if (row < kv.stretches.part[part].n && first + row * kv.stride < seen->span[i].end)
                return true;
        }
    }
    return false;
}

double ra__plan_pairs(const ra_plan *plan, int r) {
    return plan->ranks[r].pairs;
}
