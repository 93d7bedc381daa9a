/* Makes, queries and destroys plans. */
#include "plan/plan.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/threads.h"
#include "block/dropout.h"

static struct ra__segment_range range_of(const int32_t *q, int64_t Tq, const int32_t *k, int64_t Tk) {
    struct ra__segment_range r = {INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN};
    for (int64_t t = 0; t < Tq; t++) {
        r.q_min = q[t] < r.q_min ? q[t] : r.q_min;
        r.q_max = q[t] > r.q_max ? q[t] : r.q_max;
    }
    for (int64_t t = 0; t < Tk; t++) {
        r.k_min = k[t] < r.k_min ? k[t] : r.k_min;
        r.k_max = k[t] > r.k_max ? k[t] : r.k_max;
    }
    return r;
}

/* Arrays of the plan. All or none; on failure ra_plan_destroy frees what there is. */
static ra_status allocate(ra_plan *plan, int P) {
    struct ra__ring *ring = &plan->ring;
    const ra_allocator *memory = &plan->comm->allocator;
    const size_t B = (size_t)plan->problem.B, id = sizeof(int32_t);
    bool missing = false;
    if (ring->attn.drops) {
        ring->q_position = ra__alloc(memory, (size_t)ring->q.T * sizeof *ring->q_position);
        missing |= !ring->q_position;
        if (ring->q_position)
            ra__shard_positions(&ring->q, ring->q_position);
    }
    if (plan->has_segments) {
        plan->ranges = ra__alloc(memory, (size_t)P * B * sizeof *plan->ranges);
        ring->q_segment = ra__alloc(memory, B * (size_t)ring->q.T * id);
        ring->kv_segment = ra__alloc(memory, B * (size_t)ring->kv.T * id);
        missing |= !plan->ranges || !ring->q_segment || !ring->kv_segment;
    }
    return missing ? ra__fail(RA_ERR_MEMORY, "no memory for a plan of %d ranks and %lld queries", P, (long long)ring->q.T) : RA_OK;
}

/* Copies this rank's segment ids and learns the other ranks' ranges. Collective. */
static ra_status share_segments(ra_plan *plan, const ra_problem *p) {
    struct ra__ring *ring = &plan->ring;
    const int64_t B = p->B, Tq = ring->q.T, Tk = ring->kv.T;
    if (Tq)
        memcpy(ring->q_segment, p->mask.q_segment_ids, (size_t)(B * Tq) * sizeof(int32_t));
    if (Tk)
        memcpy(ring->kv_segment, p->mask.kv_segment_ids, (size_t)(B * Tk) * sizeof(int32_t));
    struct ra__segment_range *mine = ra__alloc(&plan->comm->allocator, (size_t)B * sizeof *mine);
    if (!mine && ra_comm_size(plan->comm) == 1)
        return ra__fail(RA_ERR_MEMORY, "no memory for %lld segment ranges", (long long)B);
    if (!mine)
        return ra__comm_fail(plan->comm, RA_ERR_MEMORY, "no memory for %lld segment ranges", (long long)B);
    for (int64_t b = 0; b < B; b++)
        mine[b] = range_of(ring->q_segment + b * Tq, Tq, ring->kv_segment + b * Tk, Tk);
    ra_status status = ra_comm_allgather(plan->comm, mine, plan->ranges, (size_t)B * sizeof *mine);
    ra__free(&plan->comm->allocator, mine);
    return status;
}

/* Everything that follows from the problem without memory or communication. */
static void derive(ra_plan *plan, ra_comm *comm, const ra_problem *p, struct ra__agreed agreed) {
    const int P = ra_comm_size(comm), r = ra_comm_rank(comm);
    struct ra__ring *ring = &plan->ring;
    plan->comm = comm;
    plan->problem = *p;
    plan->problem.mask.q_segment_ids = plan->problem.mask.kv_segment_ids = NULL;
    plan->problem.scale = isnan(p->scale) ? 1 / sqrt((double)p->D) : p->scale;
    plan->problem.threads = p->threads ? p->threads : ra__default_threads();
    plan->rule = ra__mask_rule_of(p);
    plan->has_segments = agreed.segments;
    plan->problem.backward = agreed.backward;
    *ring = (struct ra__ring){.comm = comm,
                              .dtype = p->dtype,
                              .layout = p->layout,
                              .Sq = p->Sq,
                              .Skv = p->Skv,
                              .q = ra__layout_shard(p->layout, p->Sq, P, r),
                              .kv = ra__layout_shard(p->layout, p->Skv, P, r),
                              .has_bias = p->has_bias != 0,
                              .backward = agreed.backward};
    const bool modified = p->softcap > 0 || p->dropout > 0 || p->has_temperature; /* their kernels work on fp32 */
    ring->attn = (struct ra__attn){.k = p->dtype == RA_BF16 && !modified ? ra__kernels_bf16() : ra__kernels(),
                                   .k_decode = ra__kernels(),
                                   .B = p->B,
                                   .H = p->H,
                                   .G = p->G,
                                   .D = p->D,
                                   .Dv = p->Dv,
                                   .threads = plan->problem.threads,
                                   .softcap = (float)(p->softcap * 1.4426950408889634),
                                   .drops = p->dropout > 0,
                                   .seed = p->seed,
                                   .threshold = ra__dropout_threshold(p->dropout),
                                   .keep_scale = (float)ra__dropout_scale(p->dropout)};
    ra__attn_scale(&ring->attn, plan->problem.scale);
    for (int i = 0; i < P; i++) {
        int64_t T = ra__layout_shard(p->layout, p->Skv, P, i).T;
        ring->Tkv_max = T > ring->Tkv_max ? T : ring->Tkv_max;
    }
    ring->schedule.P = P;
    ring->schedule.r = r;
    ra__choose_tiles(ring, p);
}

static ra_status check_limits(const ra_plan *plan) {
    const struct ra__ring *ring = &plan->ring;
    const int64_t span = (ring->attn.k_tile > ring->attn.k_tile_b ? ring->attn.k_tile : ring->attn.k_tile_b) * ring->kv.stride;
    if (span > INT32_MAX - 2)
        return ra__fail(RA_ERR_UNSUPPORTED, "a tile of keys spans %lld positions, at most 2^31: choose a smaller k_chunk", (long long)span);
    return RA_OK;
}

static ra_status measure(ra_plan *plan) {
    struct ra__ring *ring = &plan->ring;
    const int64_t forward = ra__ring_forward_bytes(ring), backward = ring->backward ? ra__ring_backward_bytes(ring) : 0;
    if (forward < 0 || backward < 0)
        return ra__fail(RA_ERR_OVERFLOW, "the workspace does not fit in 64 bits");
    ring->workspace_bytes = forward > backward ? forward : backward;
    return RA_OK;
}

static ra_status make_schedule(ra_plan *plan) {
    struct ra__ring *ring = &plan->ring;
    const int P = ring->schedule.P, r = ring->schedule.r;
    /* Rows from far apart lie side by side in a block that has gaps, and a tile may not span 2^31 positions (check_limits). */
    const int64_t most = ring->Skv > INT32_MAX ? 1 : RA__ROWS_MOST;
    return ra__schedule_make(&ring->schedule, &plan->comm->allocator, P, r, ring->kv.T, most, ra__plan_rows, plan)
               ? RA_OK
               : ra__fail(RA_ERR_MEMORY, "no memory for the schedule of %d ranks", P);
}

static ra_status build(ra_plan *plan, const ra_problem *p, bool follows) {
    struct ra__agreed unused;
    ra_status own = check_limits(plan);
    if (own == RA_OK)
        own = allocate(plan, ra_comm_size(plan->comm));
    if (own == RA_OK)
        own = ra__masks_copy(plan, p);
    if (plan->has_segments) {
        RA__TRY(ra__agree(plan->comm, p, own, follows, &unused)); /* no rank waits for the others' segments alone */
        RA__TRY(share_segments(plan, p));
    }
    if (own == RA_OK)
        own = ra__masks_build(plan);
    if (own == RA_OK)
        own = make_schedule(plan);
    RA__TRY(ra__agree(plan->comm, p, own, follows, &unused)); /* again, so that no rank goes on alone */
    return measure(plan);
}

ra_status ra__plan_create(ra_comm *comm, const ra_problem *problem, bool follows, ra_plan **out) {
    if (!comm)
        return ra__fail(RA_ERR_INVALID, "ra_plan_create: comm is NULL");
    RA__TRY(ra__comm_check(comm));
    struct ra__agreed agreed;
    ra_status own = problem && out ? ra__validate_problem(problem, ra_comm_size(comm), ra_comm_rank(comm))
                                   : ra__fail(RA_ERR_INVALID, "ra_plan_create: %s is NULL", problem ? "plan" : "problem");
    ra_plan *plan = own == RA_OK ? ra__alloc_zero(&comm->allocator, sizeof *plan) : NULL;
    if (own == RA_OK && !plan)
        own = ra__fail(RA_ERR_MEMORY, "no memory for a plan (%zu bytes)", sizeof *plan);
    ra_status status = ra__agree(comm, problem, own, follows, &agreed);
    if (status == RA_OK) {
        derive(plan, comm, problem, agreed);
        status = build(plan, problem, follows);
    } else if (plan) {
        plan->comm = comm;
    }
    if (status != RA_OK) {
        ra_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return RA_OK;
}

ra_status ra_plan_create(ra_comm *comm, const ra_problem *problem, ra_plan **out) {
    return ra__plan_create(comm, problem, false, out);
}

void ra_plan_destroy(ra_plan *plan) {
    if (!plan)
        return;
    const ra_allocator memory = plan->comm->allocator;
    ra__schedule_free(&plan->ring.schedule);
    ra__free(&memory, plan->ranges);
    ra__masks_free(plan);
    ra__free(&memory, plan->ring.kv_lens);
    ra__free(&memory, plan->ring.alibi);
    ra__free(&memory, plan->ring.q_position);
    ra__free(&memory, plan->ring.q_segment);
    ra__free(&memory, plan->ring.kv_segment);
    ra__free(&memory, plan);
}

size_t ra_plan_workspace_bytes(const ra_plan *plan) {
    return (size_t)plan->ring.workspace_bytes;
}

int ra_plan_computes(const ra_plan *plan, int rank, int step) {
    const int P = plan->ring.schedule.P;
    if (rank < 0 || rank >= P || step < 0 || step >= P)
        return 0;
    return ra__plan_needs(plan, rank, (rank - step + P) % P);
}

/* What ra_plan_destroy will give back. */
static int64_t plan_bytes(const ra_plan *plan) {
    const struct ra__ring *ring = &plan->ring;
    const int64_t B = plan->problem.B;
    int64_t bytes = ra__alloc_bytes(1, sizeof *plan) + ra__schedule_bytes(&ring->schedule) + ra__masks_bytes(plan);
    if (ring->q_position)
        bytes += ra__alloc_bytes(ring->q.T, sizeof *ring->q_position);
    if (plan->has_segments)
        bytes += ra__alloc_bytes(ring->schedule.P * B, sizeof *plan->ranges) + ra__alloc_bytes(B * ring->q.T, sizeof *ring->q_segment) +
                 ra__alloc_bytes(B * ring->kv.T, sizeof *ring->kv_segment);
    return bytes;
}

static void bytes_sent(const ra_plan *plan, int64_t *forward, int64_t *backward) {
    const struct ra__schedule *s = &plan->ring.schedule;
    *forward = *backward = 0;
    for (int i = 0; i < s->steps; i++) {
        const struct ra__step *step = &s->step[i];
        *forward += ra__kv_bytes(&plan->ring, step->pass.n) + ra__kv_bytes(&plan->ring, step->serve.n);
        *backward += ra__dkv_bytes(&plan->ring, step->pass.n) + ra__dkv_bytes(&plan->ring, step->home.n);
    }
    *backward = plan->ring.backward ? *backward + *forward : 0;
}

void ra_plan_query(const ra_plan *plan, ra_plan_info *info) {
    const struct ra__ring *ring = &plan->ring;
    const struct ra__attn *a = &ring->attn;
    *info = (ra_plan_info){.ranks = ring->schedule.P,
                           .rank = ring->schedule.r,
                           .threads = a->threads,
                           .isa = a->k->isa,
                           .Tq = ring->q.T,
                           .Tkv = ring->kv.T,
                           .q_tile = a->q_tile,
                           .k_tile = a->k_tile,
                           .q_tile_backward = a->q_tile_b,
                           .k_tile_backward = a->k_tile_b,
                           .steps = ring->schedule.steps,
                           .workspace_bytes = ring->workspace_bytes,
                           .plan_bytes = plan_bytes(plan),
                           .pairs = ra__plan_pairs(plan, ring->schedule.r) * (double)a->H};
    bytes_sent(plan, &info->bytes_sent_forward, &info->bytes_sent_backward);
    info->flops_forward = info->pairs * (double)(2 * a->D + 2 * a->Dv);
    info->flops_backward = info->pairs * (double)(6 * a->D + 4 * a->Dv);
}
