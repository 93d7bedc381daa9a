/* The plan as text. */
#include <stdarg.h>
#include <stdio.h>

#include "plan/plan.h"

/* Like snprintf over many calls: counts what does not fit. */
struct text {
    char *buffer;
    size_t size, length;
};

static void put(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(struct text *t, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    const bool room = t->length < t->size;
    int n = vsnprintf(room ? t->buffer + t->length : NULL, room ? t->size - t->length : 0, format, ap);
    va_end(ap);
    t->length += n > 0 ? (size_t)n : 0;
}

static const char *const layout_name[] = {"contiguous", "zigzag", "striped"};
static const char *const dtype_name[] = {"f32", "bf16", "f16"};

static void put_count(struct text *t, int64_t n, const char *what) {
    put(t, " %lld %s%s", (long long)n, what, n == 1 ? "" : "s");
}

/* By position: where the diagonal begins, and what is measured from it. */
static void put_position(struct text *t, const struct ra__mask_rule *r) {
    if (r->block == 1)
        put(t, " causal");
    if (r->block > 1)
        put(t, " block-causal %lld", (long long)r->block);
    if (r->left >= 0 || r->right >= 0)
        put(t, " window %lld,%lld", (long long)r->left, (long long)r->right);
    if (ra__mask_rule_positional(r) && r->cu_q)
        put(t, " (%s)", r->bottom_right ? "bottom-right" : "top-left");
    else if (ra__mask_rule_positional(r))
        put(t, " (offset %lld)", (long long)(r->bottom_right ? r->Skv - r->Sq : 0));
    if (r->prefix)
        put(t, " prefix %lld", (long long)r->prefix);
    if (r->keep_first)
        put(t, " keep-first %lld", (long long)r->keep_first);
    if (r->cu_q)
        put_count(t, r->sequences, "packed sequence");
    if (r->slice)
        put_count(t, r->slices, "slice");
}

static void put_problem(struct text *t, const ra_plan *plan) {
    const ra_problem *p = &plan->problem;
    const struct ra__ring *ring = &plan->ring;
    put(t, "problem    B %lld, Sq %lld, Skv %lld, H %lld, G %lld, D %lld, Dv %lld, %s, scale %.6g\n", (long long)p->B, (long long)p->Sq,
        (long long)p->Skv, (long long)p->H, (long long)p->G, (long long)p->D, (long long)p->Dv, dtype_name[p->dtype], p->scale);
    put(t, "mask      ");
    const size_t before = t->length;
    put_position(t, &plan->rule);
    put(t, "%s%s%s", plan->has_segments ? " segments" : "", ring->kv_lens ? " kv-lens" : "", p->has_bias ? " bias" : "");
    put(t, "%s\n", t->length == before ? " none" : "");
}

/* What is done to the scores, in its order; a bias also hides, so it is in both lines. */
static void put_modifiers(struct text *t, const ra_plan *plan) {
    const ra_problem *p = &plan->problem;
    put(t, "modifiers ");
    const size_t before = t->length;
    put(t, "%s", p->has_temperature ? " temperature" : "");
    if (p->softcap > 0)
        put(t, " softcap %.6g", p->softcap);
    put(t, "%s%s%s", p->has_bias ? " bias" : "", plan->ring.alibi ? " alibi" : "", p->has_sinks ? " sinks" : "");
    if (p->dropout > 0)
        put(t, " dropout %.6g seed %llu", p->dropout, (unsigned long long)p->seed);
    put(t, "%s\n", t->length == before ? " none" : "");
}

static void put_rank(struct text *t, const ra_plan *plan) {
    ra_plan_info i;
    ra_plan_query(plan, &i);
    put(t, "ring       %d rank%s over the %s link, %s layout\n", i.ranks, i.ranks == 1 ? "" : "s", ra_comm_kind(plan->comm),
        layout_name[plan->problem.layout]);
    put(t, "rank %-5d %lld queries, %lld keys, %lld step%s, %d thread%s\n", i.rank, (long long)i.Tq, (long long)i.Tkv, (long long)i.steps,
        i.steps == 1 ? "" : "s", i.threads, i.threads == 1 ? "" : "s");
    put(t, "kernels    %s, register tile %dx%d and %dx%d\n", i.isa, plan->ring.attn.k->rows, plan->ring.attn.k->lanes,
        plan->ring.attn.k->row_tile, plan->ring.attn.k->col_tile);
    put(t, "tiles      forward %lld queries x %lld keys", (long long)i.q_tile, (long long)i.k_tile);
    if (plan->ring.backward)
        put(t, ", backward %lld x %lld", (long long)i.q_tile_backward, (long long)i.k_tile_backward);
    put(t, "\nmemory     %lld bytes: workspace %lld, plan %lld\n", (long long)(i.workspace_bytes + i.plan_bytes),
        (long long)i.workspace_bytes, (long long)i.plan_bytes);
    put(t, "sent       %lld bytes forward", (long long)i.bytes_sent_forward);
    if (plan->ring.backward)
        put(t, ", %lld backward", (long long)i.bytes_sent_backward);
    put(t, "\nflops      %.6g forward", i.flops_forward);
    if (plan->ring.backward)
        put(t, ", %.6g backward", i.flops_backward);
    put(t, "\n");
}

/* Numbers by step, equal neighbours as one: " 512x6 0". */
static void put_rows(struct text *t, const struct ra__schedule *s, int first, int64_t (*rows)(const struct ra__step *)) {
    for (int i = first, run; i < s->steps; i += run) {
        for (run = 1; i + run < s->steps && rows(&s->step[i + run]) == rows(&s->step[i]);)
            run++;
        put(t, run > 1 ? " %lldx%d" : " %lld", (long long)rows(&s->step[i]), run);
    }
}

static int64_t rows_sent(const struct ra__step *step) {
    return step->pass.n + step->serve.n;
}

static int64_t rows_here(const struct ra__step *step) {
    return step->here.n;
}

/* Rows of keys that this rank sends during each step, and whose gradients after it. */
static void put_travel(struct text *t, const ra_plan *plan) {
    const struct ra__schedule *s = &plan->ring.schedule;
    put(t, "rows sent ");
    put_rows(t, s, 0, rows_sent);
    put(t, " by step");
    if (plan->ring.backward && s->steps > 1) {
        put(t, ", with gradients of");
        put_rows(t, s, 1, rows_here);
    }
    put(t, "\n");
}

static void put_schedule(struct text *t, const ra_plan *plan) {
    const int P = plan->ring.schedule.P;
    double all = 0;
    for (int r = 0; r < P; r++)
        all += ra__plan_pairs(plan, r);
    put(t, "schedule   block at work in each step (. nothing of it is visible), and the rank's share of all pairs\n  step  ");
    for (int s = 0; s < P; s++)
        put(t, "%4d", s);
    put(t, "   share\n");
    for (int r = 0; r < P; r++) {
        put(t, "  rank%3d", r);
        for (int s = 0; s < P; s++)
            if (ra_plan_computes(plan, r, s))
                put(t, "%*d", s ? 4 : 3, (r - s + P) % P);
            else
                put(t, "%*s", s ? 4 : 3, ".");
        put(t, "  %5.1f %%\n", all > 0 ? 100 * ra__plan_pairs(plan, r) / all : 0);
    }
}

size_t ra_plan_print(const ra_plan *plan, char *buf, size_t n) {
    struct text t = {buf, n, 0};
    put_problem(&t, plan);
    put_modifiers(&t, plan);
    put_rank(&t, plan);
    put_travel(&t, plan);
    put_schedule(&t, plan);
    return t.length;
}
