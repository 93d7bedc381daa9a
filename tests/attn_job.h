/* One rank's drivers fed by hand: a problem with its tensors, how it is to be computed, and what comes out against the oracle. Used by the
 * tests of the drivers. */
#ifndef RA_TESTS_ATTN_JOB_H
#define RA_TESTS_ATTN_JOB_H

#include "block/block.h"
#include "block/tiles.h"
#include "harness.h"
#include "plan/plan.h"
#include "ring/layout.h"

enum { MAX_BLOCKS = 12 };

static bool small(void) {
    return getenv("RA_TEST_SMALL") != NULL;
}

/* ---- tensors with extents ---- */

struct grid {
    ra_tensor t;
    int64_t n[4];
};

/* order: 0 b,t,h,d; 1 b,h,t,d; 2 as 0 with two unused elements after each; 3 d,h,t fastest last: a row's elements lie far apart. */
static struct grid grid_new(int64_t B, int64_t T, int64_t H, int64_t D, ra_dtype dtype, int order) {
    const int64_t strides[4][4] = {
        {T * H * D, H * D, D, 1}, {H * T * D, D, T * D, 1}, {3 * T * H * D, 3 * H * D, 3 * D, 3}, {D * H * T, 1, T, H * T}};
    struct grid g = {.t = {.dtype = dtype}, .n = {B, T, H, D}};
    memcpy(g.t.stride, strides[order], sizeof g.t.stride);
    const size_t bytes = (size_t)(3 * B * T * H * D) * ra_dtype_size(dtype);
    g.t.data = malloc(bytes + 1);
    memset(g.t.data, 0xff, bytes); /* NaN in every type */
    return g;
}

static void grid_set(const struct grid *g, int64_t b, int64_t t, int64_t h, int64_t d, double value) {
    const int64_t *s = g->t.stride;
    put_value(g->t.data, g->t.dtype, b * s[0] + t * s[1] + h * s[2] + d * s[3], value);
}

static double grid_get(const struct grid *g, int64_t b, int64_t t, int64_t h, int64_t d) {
    return oracle_load(&g->t, b, t, h, d);
}

typedef double value_fn(const struct grid *g, int64_t b, int64_t t, int64_t h, int64_t d);

static double random_value(const struct grid *g, int64_t b, int64_t t, int64_t h, int64_t d) {
    (void)g, (void)b, (void)t, (void)h, (void)d;
    return normal();
}

static struct grid grid_filled(int64_t B, int64_t T, int64_t H, int64_t D, ra_dtype dtype, int order, value_fn *value) {
    struct grid g = grid_new(B, T, H, D, dtype, order);
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t h = 0; h < H; h++)
                for (int64_t d = 0; d < D; d++)
                    grid_set(&g, b, t, h, d, value(&g, b, t, h, d));
    return g;
}

/* The tokens at `position`, in a tensor of their own. */
static struct grid grid_tokens(const struct grid *from, const int64_t *position, int64_t T, int order) {
    struct grid g = grid_new(from->n[0], T, from->n[2], from->n[3], from->t.dtype, order);
    for (int64_t b = 0; b < g.n[0]; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t h = 0; h < g.n[2]; h++)
                for (int64_t d = 0; d < g.n[3]; d++)
                    grid_set(&g, b, t, h, d, grid_get(from, b, position[t], h, d));
    return g;
}

/* ---- one problem, and how it is to be computed ---- */

struct job {
    ra_problem p;
    struct grid q, k, v, dout, bias; /* whole sequences */
    float *dlse;
    int32_t *q_ids, *kv_ids;

    int P;                         /* keys are cut into the shards of P ranks ... */
    ra_layout layout;              /* ... of this layout ... */
    int order[MAX_BLOCKS], blocks; /* ... and arrive in this order; -1: an empty block */
    bool two_stretches;            /* of queries */
    int threads, tensor_order;
    int64_t q_tile, k_tile, q_tile_b, k_tile_b;
    ra_dtype out_type;
    bool no_dout, no_dlse, no_dq, no_lse;
    bool decode; /* forward by the driver for short queries */

    /* By position, instead of p.mask; `bias` then says the same to the oracle alone. */
    const struct ra__mask_rule *rule;
    int64_t *kv_lens;
    float *alibi;

    float *out, *lse, *dq, *dk, *dv; /* dense, b, t, h, d */
    int64_t pairs, pairs_backward;
    int64_t edges; /* between documents, as far as positions tell */
};

/* Sizes are set by the caller in j->p; everything else gets a usual value. */
static void job_make(struct job *j, value_fn *q, value_fn *k, value_fn *v, value_fn *dout) {
    ra_problem *p = &j->p;
    const struct ra__kernels *kernels = ra__kernels();
    p->backward = 1;
    j->q = grid_filled(p->B, p->Sq, p->H, p->D, p->dtype, j->tensor_order, q);
    j->k = grid_filled(p->B, p->Skv, p->G, p->D, p->dtype, 0, k);
    j->v = grid_filled(p->B, p->Skv, p->G, p->Dv, p->dtype, 0, v);
    j->dout = grid_filled(p->B, p->Sq, p->H, p->Dv, p->dtype, j->tensor_order, dout);
    j->dlse = filled(p->B * p->H * p->Sq, RA_F32, 0.5);
    j->out = poisoned(q_numel(p, p->Dv));
    j->lse = poisoned(q_numel(p, 1));
    j->dq = poisoned(q_numel(p, p->D));
    j->dk = poisoned(kv_numel(p, p->D));
    j->dv = poisoned(kv_numel(p, p->Dv));
    j->threads = 1;
    j->P = j->blocks = 1;
    j->q_tile = j->k_tile_b = 2 * kernels->lanes;
    j->k_tile = 4 * kernels->rows;
    j->q_tile_b = 3 * kernels->rows;
}

static struct job random_job(int64_t Sq, int64_t Skv, int64_t D, int64_t Dv) {
    struct job j = {.P = 1};
    ra_problem_init(&j.p);
    j.p.Sq = Sq;
    j.p.Skv = Skv;
    j.p.D = D;
    j.p.Dv = Dv;
    return j;
}

static void job_free(struct job *j) {
    void *all[] = {j->q.t.data, j->k.t.data, j->v.t.data, j->dout.t.data, j->bias.t.data, j->dlse, j->q_ids,
                   j->kv_ids,   j->out,      j->lse,      j->dq,          j->dk,          j->dv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static oracle_result job_oracle(const struct job *j) {
    oracle_inputs in = {.q = j->q.t, .k = j->k.t, .v = j->v.t, .bias = j->bias.t, .dout = j->dout.t, .dlse = j->dlse};
    oracle_result o = {0};
    if (j->no_dout)
        in.dout.data = NULL;
    if (j->no_dlse)
        in.dlse = NULL;
    CHECK_OK(oracle_attention(&j->p, &in, &o));
    return o;
}

/* ---- running it ---- */

/* Rows end at a watched fringe; whoever reads what was never written meets NaN. */
static char *workspace_new(int64_t bytes) {
    char *w = NULL;
    CHECK(bytes >= 0 && bytes % 64 == 0);
    if (!(w = aligned_alloc(64, (size_t)bytes + 64)))
        exit(1);
    memset(w, 0xff, (size_t)bytes);
    memset(w + bytes, 0x5a, 64);
    return w;
}

static void workspace_free(char *w, int64_t bytes) {
    for (int i = 0; i < 64; i++)
        CHECK(w[bytes + i] == 0x5a);
    free(w);
}

struct block {
    struct ra__kv_block kv;
    struct grid k, v;
    int64_t *position;
    int32_t *segment;
};

static struct block block_of(const struct job *j, int index) {
    struct block x = {.kv = {.T = 0}};
    if (index < 0)
        return x;
    const struct ra__shard s = ra__layout_shard(j->layout, j->p.Skv, j->P, index);
    x.position = malloc((size_t)(s.T + 1) * sizeof *x.position);
    ra__shard_positions(&s, x.position);
    x.k = grid_tokens(&j->k, x.position, s.T, j->tensor_order);
    x.v = grid_tokens(&j->v, x.position, s.T, j->tensor_order);
    if (j->kv_ids) {
        x.segment = malloc((size_t)(j->p.B * s.T + 1) * sizeof *x.segment);
        for (int64_t b = 0; b < j->p.B; b++)
            for (int64_t t = 0; t < s.T; t++)
                x.segment[b * s.T + t] = j->kv_ids[b * j->p.Skv + x.position[t]];
    }
    x.kv = (struct ra__kv_block){x.k.t, x.v.t, s.T, s.stretches, x.position, x.segment};
    return x;
}

static void block_free(struct block *x) {
    free(x->k.t.data);
    free(x->v.t.data);
    free(x->position);
    free(x->segment);
}

static int64_t longest_block(const struct job *j) {
    int64_t longest = 0;
    for (int i = 0; i < j->P; i++) {
        int64_t T = ra__layout_shard(j->layout, j->p.Skv, j->P, i).T;
        longest = T > longest ? T : longest;
    }
    return longest;
}

static void count_poll(void *arg) {
    ++*(int *)arg;
}

static void run_forward(struct job *j, const struct ra__attn *a, const struct ra__q_shard *q, struct grid *out) {
    const int64_t longest = longest_block(j);
    const int64_t bytes = j->decode ? ra__decode_bytes(a, j->p.Sq, longest) : ra__forward_bytes(a, q->panels.count, longest, j->blocks > 1);
    int polls = 0;
    struct ra__forward f = {.a = a,
                            .q_shard = *q,
                            .q = j->q.t,
                            .out = out->t,
                            .lse = j->no_lse ? NULL : j->lse,
                            .workspace = workspace_new(bytes),
                            .Tk_max = longest,
                            .keep_state = j->blocks > 1};
    for (int i = 0; i < j->blocks; i++) {
        struct block x = block_of(j, j->order[i]);
        (j->decode ? ra__decode_block : ra__forward_block)(&f, &x.kv, i == 0, i == j->blocks - 1, (struct ra__poll){count_poll, &polls});
        block_free(&x);
    }
    CHECK(polls > 0 || longest == 0 || j->threads > 1 || j->p.Sq == 0);
    j->pairs = f.pairs;
    workspace_free(f.workspace, bytes);
}

/* dk, dv of one block, to their tokens. */
static void scatter(const struct job *j, const struct block *x, const float *block, float *whole, int64_t width) {
    const int64_t B = j->p.B, G = j->p.G, T = x->kv.T;
    for (int64_t b = 0; b < B; b++)
        for (int64_t g = 0; g < G; g++)
            for (int64_t t = 0; t < T; t++)
                memcpy(whole + ((b * j->p.Skv + x->position[t]) * G + g) * width, block + ((b * G + g) * T + t) * width,
                       (size_t)width * sizeof *whole);
}

static void run_backward(struct job *j, const struct ra__attn *a, const struct ra__q_shard *q, const struct grid *out, struct grid *dq) {
    const int64_t longest = longest_block(j), bytes = ra__backward_bytes(a, &q->stretches, longest);
    struct ra__backward w = {.a = a,
                             .q_shard = *q,
                             .q = j->q.t,
                             .out = out->t,
                             .dout = j->dout.t,
                             .dq = dq->t,
                             .lse = j->lse,
                             .dlse = j->no_dlse ? NULL : j->dlse,
                             .workspace = workspace_new(bytes),
                             .Tk_max = longest};
    if (j->no_dout)
        w.dout.data = NULL, w.out.data = NULL;
    if (j->no_dq)
        w.dq.data = NULL;
    ra__backward_begin(&w);
    for (int i = 0; i < j->blocks; i++) {
        struct block x = block_of(j, j->order[i]);
        float *dk = poisoned(j->p.B * j->p.G * x.kv.T * j->p.D), *dv = poisoned(j->p.B * j->p.G * x.kv.T * j->p.Dv);
        ra__backward_block(&w, &x.kv, dk, dv, (struct ra__poll){NULL, NULL});
        scatter(j, &x, dk, j->dk, j->p.D);
        scatter(j, &x, dv, j->dv, j->p.Dv);
        free(dk);
        free(dv);
        block_free(&x);
    }
    ra__backward_end(&w);
    j->pairs_backward = w.pairs;
    workspace_free(w.workspace, bytes);
}

static void flatten(const struct grid *g, float *to) {
    for (int64_t b = 0; b < g->n[0]; b++)
        for (int64_t t = 0; t < g->n[1]; t++)
            for (int64_t h = 0; h < g->n[2]; h++)
                for (int64_t d = 0; d < g->n[3]; d++)
                    *to++ = (float)grid_get(g, b, t, h, d);
}

static void run(struct job *j) {
    const ra_problem *p = &j->p;
    const double scale = isnan(p->scale) ? 1 / sqrt((double)p->D) : p->scale;
    const struct ra__kernels *kernels = p->dtype == RA_BF16 ? ra__kernels_bf16() : ra__kernels();
    struct ra__attn a = {.k = kernels,
                         .k_decode = ra__kernels(),
                         .B = p->B,
                         .H = p->H,
                         .G = p->G,
                         .D = p->D,
                         .Dv = p->Dv,
                         .threads = j->threads,
                         .q_tile = ra__round_up(j->q_tile, kernels->lanes),
                         .k_tile = ra__round_up(j->k_tile, kernels->rows),
                         .q_tile_b = ra__round_up(j->q_tile_b, kernels->rows),
                         .k_tile_b = ra__round_up(j->k_tile_b, kernels->lanes)};
    ra__attn_scale(&a, scale);
    /* The masks room works on a plan of one rank. */
    ra_plan plan = {.problem = *p, .rule = j->rule ? *j->rule : ra__mask_rule_of(p)};
    CHECK_OK(ra_comm_create_self(NULL, &plan.comm));
    plan.problem.layout = j->two_stretches ? RA_ZIGZAG : RA_CONTIGUOUS;
    plan.ring = (struct ra__ring){.attn = a, .q_segment = j->q_ids, .kv_lens = j->kv_lens, .alibi = j->alibi};
    plan.ring.schedule.P = 1;
    plan.ring.q = ra__layout_shard(plan.problem.layout, p->Sq, 1, 0);
    CHECK_OK(ra__masks_build(&plan));
    j->edges = plan.ring.q_spans.edges;
    const struct ra__q_shard q = {.T = p->Sq,
                                  .stretches = plan.ring.q.stretches,
                                  .panels = plan.ring.q_panels,
                                  .spans = plan.ring.q_spans,
                                  .segment = j->q_ids,
                                  .bias = j->bias.t.data && !j->rule ? &j->bias.t : NULL,
                                  .kv_lens = j->kv_lens,
                                  .alibi = j->alibi,
                                  .aligned = plan.ring.q_aligned};
    struct grid out = grid_new(p->B, p->Sq, p->H, p->Dv, j->out_type, j->tensor_order);
    struct grid dq = grid_new(p->B, p->Sq, p->H, p->D, RA_F32, j->tensor_order);
    run_forward(j, &a, &q, &out);
    if (!j->no_lse)
        run_backward(j, &a, &q, &out, &dq);
    flatten(&out, j->out);
    flatten(&dq, j->dq);
    free(out.t.data);
    free(dq.t.data);
    ra__masks_free(&plan);
    ra_comm_destroy(plan.comm);
}

static int64_t visible_pairs(const struct job *j) {
    const ra_problem *p = &j->p;
    int64_t n = 0;
    for (int64_t b = 0; b < p->B; b++)
        for (int64_t h = 0; h < p->H; h++)
            for (int64_t i = 0; i < p->Sq; i++)
                for (int64_t k = 0; k < p->Skv; k++)
                    n += oracle_sees(p, &j->bias.t, b, h, i, k);
    return n;
}

static bool run_and_check(struct job *j, double bound, const char *name) {
    const ra_problem *p = &j->p;
    bound = bound_for(p->dtype, bound);
    run(j);
    oracle_result o = job_oracle(j);
    const double out = relative_error(j->out, o.out, q_numel(p, p->Dv), 0.1);
    const double lse = j->no_lse ? 0 : relative_error(j->lse, o.lse, q_numel(p, 1), 1);
    /* dq and dk are sums that cancel, to 0 where a query sees one key: their terms are of size 1 */
    const double dq = j->no_dq || j->no_lse ? 0 : relative_error(j->dq, o.dq, q_numel(p, p->D), 1);
    const double dk = j->no_lse ? 0 : relative_error(j->dk, o.dk, kv_numel(p, p->D), 1);
    const double dv = j->no_lse ? 0 : relative_error(j->dv, o.dv, kv_numel(p, p->Dv), 0.1);
    oracle_result_free(&o);
    bool ok =
        CHECK_MSG(out <= bound && lse <= 2e-6 && dq <= bound && dk <= bound && dv <= bound,
                  "%s: Sq %lld Skv %lld H %lld G %lld D %lld Dv %lld, tiles %lldx%lld %lldx%lld, %d blocks of %d, order %d: out %.2g lse "
                  "%.2g dq %.2g dk %.2g dv %.2g",
                  name, (long long)p->Sq, (long long)p->Skv, (long long)p->H, (long long)p->G, (long long)p->D, (long long)p->Dv,
                  (long long)j->q_tile, (long long)j->k_tile, (long long)j->q_tile_b, (long long)j->k_tile_b, j->blocks, j->P,
                  j->tensor_order, out, lse, dq, dk, dv);
    ok &= CHECK_EQ_INT(j->pairs, visible_pairs(j));
    return ok && (j->no_lse || CHECK_EQ_INT(j->pairs_backward, j->pairs));
}

/* ---- tiles, blocks, storage, masks ---- */

static int64_t below(int64_t n) {
    return (int64_t)(uniform() * (double)n);
}

static void choose_tiles(struct job *j) {
    const struct ra__kernels *k = ra__kernels();
    j->q_tile = k->lanes * (1 + below(4));
    j->k_tile = k->rows * (1 + below(9));
    j->q_tile_b = k->rows * (1 + below(9));
    j->k_tile_b = k->lanes * (1 + below(4));
}

/* All P shards in a random order, empty blocks in between. */
static void choose_blocks(struct job *j) {
    j->P = 1 + (int)below(5);
    j->layout = (ra_layout)below(3);
    j->blocks = 0;
    for (int i = 0; i < j->P; i++) {
        if (below(4) == 0)
            j->order[j->blocks++] = -1;
        j->order[j->blocks++] = i;
    }
    for (int i = j->blocks - 1; i > 0; i--) {
        const int other = (int)below(i + 1), t = j->order[i];
        j->order[i] = j->order[other];
        j->order[other] = t;
    }
}

#endif
