/* problem -> program: what is refused, sizes of a device, and the arrays that hold the mask. */
#include <math.h>

#include "base/memory.h"
#include "base/status.h"
#include "pjrt/emit.h"

/* ---- refused ---- */

static ra_status too_many_slices(const ra_problem *p) {
    const ra_allocator memory = ra__allocator_or_default(NULL);
    const size_t n = (size_t)p->mask.slice_count;
    struct ra__slice *slice = ra__alloc(&memory, n * sizeof *slice);
    int64_t *reach = ra__alloc(&memory, n * sizeof *reach);
    ra_status s = RA_ERR_MEMORY;
    if (slice && reach) {
        for (size_t i = 0; i < n; i++) {
            const int64_t *row = p->mask.slices + 5 * i;
            slice[i] = (struct ra__slice){row[0], row[1], row[2], row[3], row[4]};
        }
        ra__slices_sort(slice, reach, (int64_t)n);
        struct ra__mask_rule rule = {.Sq = p->Sq, .Skv = p->Skv, .slice = slice, .slice_reach = reach, .slices = (int64_t)n};
        ra__mask_rule_finish(&rule);
        const int64_t cover = (rule.most - 2) / 2; /* each may be an interval of its own, and keep_first may cut one in two */
        s = cover < RA__PJRT_SPANS
                ? RA_OK
                : ra__fail(RA_ERR_UNSUPPORTED, "slices: %lld cover one query, and at most %d may", (long long)cover, RA__PJRT_SPANS - 1);
    } else {
        ra__fail(s, "no memory for %lld slices", (long long)n);
    }
    ra__free(&memory, slice);
    ra__free(&memory, reach);
    return s;
}

ra_status ra__pjrt_unsupported(const ra_problem *p, int P) {
    const int64_t longest = INT32_MAX / 4; /* indices have 32 bits, and shards filled up to tiles are up to twice as long */
    if (P > RA__PJRT_DEVICES)
        return ra__fail(RA_ERR_UNSUPPORTED, "%d devices: the longest ring has %d", P, RA__PJRT_DEVICES);
    if (p->Sq > longest || p->Skv > longest)
        return ra__fail(RA_ERR_UNSUPPORTED, "%lld queries and %lld keys: a sequence has at most 2^29 - 1 tokens", (long long)p->Sq,
                        (long long)p->Skv);
    if (p->dropout > 0 && p->B > UINT32_MAX / p->H)
        return ra__fail(RA_ERR_UNSUPPORTED, "dropout: its counters tell 2^32 heads of a batch apart, not %lld x %lld", (long long)p->B,
                        (long long)p->H);
    return p->mask.slice_count > 0 ? too_many_slices(p) : RA_OK;
}

/* ---- sizes ---- */

static int64_t round_up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

/* Rows of a tile for shards of T tokens: as asked for, else `usual`; all of a shorter shard. */
static int64_t tile(int64_t asked, int64_t usual, int64_t T) {
    const int64_t all = round_up(T > 0 ? T : 1, 8);
    const int64_t wanted = asked > 0 ? asked : usual;
    return wanted < all ? wanted : all;
}

static int64_t longest_shard(ra_layout layout, int64_t S, int P) {
    int64_t longest = 0;
    for (int r = 0; r < P; r++) {
        const int64_t T = ra__layout_shard(layout, S, P, r).T;
        longest = T > longest ? T : longest;
    }
    return longest;
}

void ra__pjrt_describe(const ra_problem *p, int P, struct ra__pjrt_program *program) {
    const int64_t Tq = longest_shard(p->layout, p->Sq, P), Tkv = longest_shard(p->layout, p->Skv, P);
    const int64_t bq = tile(p->q_chunk, 128, Tq), bk = tile(p->k_chunk, 256, Tkv); /* the fastest of those tried on a CPU plugin */
    *program = (struct ra__pjrt_program){
        .P = P,
        .steps = P,
        .unrolled = RA__PJRT_UNROLLED,
        .backward = p->backward != 0,
        .B = p->B,
        .G = p->G,
        .R = p->H / p->G,
        .Tq = round_up(Tq > 0 ? Tq : 1, bq),
        .Tkv = round_up(Tkv > 0 ? Tkv : 1, bk),
        .bq = bq,
        .bk = bk,
        .D = p->D,
        .Dv = p->Dv,
        .dtype = p->dtype,
        .dout_dtype = p->dtype,
        .scale = isnan(p->scale) ? 1 / sqrt((double)p->D) : p->scale,
        .softcap = p->softcap,
        .dropout = p->dropout,
        .spans = 1,
        .segments = p->mask.q_segment_ids != NULL,
        .kv_lens = p->mask.kv_lens != NULL,
        .alibi = p->alibi_slopes != NULL,
        .temperature = p->has_temperature != 0,
        .sinks = p->has_sinks != 0,
        .bias = p->has_bias != 0,
        .bias_axis = {true, true, true, true},
    };
    for (int n = 0; n < P; n++)
        program->step[n] = n;
}

void ra__pjrt_steps(struct ra__pjrt_program *program, const struct ra__schedule *schedule) {
    program->steps = 1;
    for (int n = 1; n < program->P; n++) {
        bool computes = false;
        for (int r = 0; r < program->P; r++)
            computes = computes || (n < schedule[r].steps && schedule[r].step[n].computes);
        if (computes)
            program->step[program->steps++] = n;
    }
}

/* ---- the mask as arrays ---- */

int64_t ra__pjrt_most_spans(const struct ra__mask_rule *rule, struct ra__span *room) {
    int64_t most = 1;
    for (int64_t i = 0; i < rule->Sq; i++) {
        const int64_t n = ra__mask_row(rule, i, room);
        most = n > most ? n : most;
    }
    return most;
}

void ra__pjrt_fill_queries(const struct ra__pjrt_program *program, const struct ra__mask_rule *rule, const struct ra__shard *q,
                           struct ra__span *room, int32_t *spans, int32_t *aligned, int32_t *position) {
    const int64_t Tq = program->Tq;
    for (int64_t t = 0; t < Tq; t++) {
        const int64_t i = t < q->T ? ra__shard_position(q, t) : 0, n = t < q->T ? ra__mask_row(rule, i, room) : 0;
        for (int64_t s = 0; s < program->spans; s++) { /* one that does not exist neither reaches nor begins anywhere */
            spans[2 * s * Tq + t] = s < n ? (int32_t)room[s].begin : INT32_MAX;
            spans[(2 * s + 1) * Tq + t] = s < n ? (int32_t)room[s].end : 0;
        }
        if (position)
            position[t] = (int32_t)i;
        if (aligned)
            aligned[t] = t < q->T ? (int32_t)ra__mask_aligned(rule, i) : 0;
    }
}

void ra__pjrt_fill_keys(const struct ra__pjrt_program *program, const struct ra__shard *kv, const int32_t *segment, int32_t *index) {
    const int64_t Tkv = program->Tkv;
    for (int64_t t = 0; t < Tkv; t++)
        index[t] = t < kv->T ? (int32_t)ra__shard_position(kv, t) : INT32_MAX; /* behind every span and every length */
    for (int64_t b = 0; b < program->B && program->segments; b++)
        for (int64_t t = 0; t < Tkv; t++)
            index[(1 + b) * Tkv + t] = t < kv->T ? segment[b * kv->T + t] : 0;
}
