/* Front door: check -> plan -> run. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "base/threads.h"
#include "block/gemm.h"
#include "block/tiles.h"
#include "plan/plan.h"

void ra_problem_init(ra_problem *p) {
    *p = (ra_problem){.size = sizeof *p, .B = 1, .H = 1, .G = 1, .scale = NAN, .mask = {.window_left = -1, .window_right = -1}};
}

/* ---- arguments of a run ---- */

static ra_status check_tensor(const char *name, const ra_tensor *x, bool output, int64_t B, int64_t T, int64_t H, int64_t D) {
    const int64_t extent[4] = {B, T, H, D};
    if (T == 0)
        return RA_OK;
    if (!x->data)
        return ra__fail(RA_ERR_INVALID, "%s is missing", name);
    if (ra_dtype_size(x->dtype) == 0)
        return ra__fail(RA_ERR_INVALID, "%s: unknown dtype %d", name, (int)x->dtype);
    int64_t reach = 0; /* offset of the last element */
    bool overflow = false;
    for (int i = 0; i < 4; i++) {
        if (x->stride[i] < 0)
            return ra__fail(RA_ERR_INVALID, "%s: stride %lld of dimension %d is negative", name, (long long)x->stride[i], i);
        overflow |= __builtin_add_overflow(reach, ra__mul(x->stride[i], extent[i] - 1, &overflow), &reach);
    }
    if (overflow || reach > INT64_MAX / 4)
        return ra__fail(RA_ERR_OVERFLOW, "%s: its strides reach beyond 64 bits", name);
    if (!output)
        return RA_OK;
    /* Dimensions from the smallest stride up: each must step over everything below it. */
    int order[4] = {3, 2, 1, 0};
    for (int i = 1; i < 4; i++)
        for (int j = i; j > 0 && x->stride[order[j]] < x->stride[order[j - 1]]; j--) {
            int t = order[j];
            order[j] = order[j - 1];
            order[j - 1] = t;
        }
    int64_t span = 1;
    for (int i = 0; i < 4; i++) {
        const int d = order[i];
        if (extent[d] == 1)
            continue;
        if (x->stride[d] < span)
            return ra__fail(RA_ERR_INVALID, "%s: stride %lld of dimension %d makes it overlap itself", name, (long long)x->stride[d], d);
        span = x->stride[d] * (extent[d] - 1) + span;
    }
    return RA_OK;
}

/* Given if and only if the plan was made for it. */
static ra_status check_vector(const char *name, const float *x, bool planned, int64_t elements) {
    if (planned && elements && !x)
        return ra__fail(RA_ERR_INVALID, "%s is missing", name);
    if (!planned && x)
        return ra__fail(RA_ERR_INVALID, "%s is given, but the plan was made without has_%s", name, name);
    return RA_OK;
}

static ra_status check_inputs(const ra_plan *plan, const ra_attention_args *args) {
    const ra_problem *p = &plan->problem;
    const int64_t Tq = plan->ring.q.T, Tk = plan->ring.kv.T;
    if (!args)
        return ra__fail(RA_ERR_INVALID, "args is NULL");
    const struct {
        const char *name;
        const ra_tensor *x;
        int64_t T;
    } typed[] = {{"q", &args->q, Tq}, {"k", &args->k, Tk}, {"v", &args->v, Tk}};
    RA__TRY(check_tensor("q", &args->q, false, p->B, Tq, p->H, p->D));
    RA__TRY(check_tensor("k", &args->k, false, p->B, Tk, p->G, p->D));
    RA__TRY(check_tensor("v", &args->v, false, p->B, Tk, p->G, p->Dv));
    for (int i = 0; i < 3; i++)
        if (typed[i].T && typed[i].x->dtype != p->dtype)
            return ra__fail(RA_ERR_INVALID, "%s: its dtype differs from the plan's", typed[i].name);
    if (!p->has_bias && args->bias.data)
        return ra__fail(RA_ERR_INVALID, "bias is given, but the plan was made without has_bias");
    if (p->has_bias && Tq && p->Skv)
        RA__TRY(check_tensor("bias", &args->bias, false, p->B, Tq, p->H, p->Skv));
    RA__TRY(check_vector("sinks", args->sinks, p->has_sinks, p->H));
    return check_vector("temperature", args->temperature, p->has_temperature, Tq);
}

/* The shape of bias decides over that of its gradient. An axis of length 1 has any stride, but the query axis: its whole length counts. */
static ra_status check_dbias(const ra_plan *plan, const ra_attention_args *args) {
    const ra_problem *p = &plan->problem;
    const int64_t whole[4] = {p->B, p->Sq, p->H, p->Skv};
    int64_t extent[4] = {p->B, plan->ring.q.T, p->H, p->Skv};
    if (!p->has_bias)
        return ra__fail(RA_ERR_INVALID, "dbias is wanted, but the plan was made without has_bias");
    if (args->dbias.dtype != RA_F32)
        return ra__fail(RA_ERR_INVALID, "dbias: must be RA_F32");
    for (int i = 0; i < 4; i++) {
        const bool summed = args->dbias.stride[i] == 0;
        if (args->bias.data && summed != (args->bias.stride[i] == 0) && extent[i] > 1)
            return ra__fail(RA_ERR_INVALID, "dbias: stride %lld of dimension %d, where bias has %lld: must be 0 where bias is broadcast",
                            (long long)args->dbias.stride[i], i, (long long)args->bias.stride[i]);
        if (summed && whole[i] > 1)
            extent[i] = 1;
    }
    return check_tensor("dbias", &args->dbias, true, extent[0], extent[1], extent[2], extent[3]);
}

static ra_status check_forward(const ra_plan *plan, const ra_attention_args *args) {
    const ra_problem *p = &plan->problem;
    RA__TRY(check_inputs(plan, args));
    return check_tensor("out", &args->out, true, p->B, plan->ring.q.T, p->H, p->Dv);
}

static ra_status check_backward(const ra_plan *plan, const ra_attention_args *args) {
    const ra_problem *p = &plan->problem;
    const int64_t Tq = plan->ring.q.T, Tk = plan->ring.kv.T;
    if (!p->backward)
        return ra__fail(RA_ERR_UNSUPPORTED, "the plan was made without backward");
    RA__TRY(check_inputs(plan, args));
    if (Tq && !args->lse)
        return ra__fail(RA_ERR_INVALID, "lse is missing: the backward starts from the forward's lse");
    if (args->dout.data) {
        RA__TRY(check_tensor("dout", &args->dout, false, p->B, Tq, p->H, p->Dv));
        RA__TRY(check_tensor("out", &args->out, false, p->B, Tq, p->H, p->Dv));
    }
    if (args->dq.data)
        RA__TRY(check_tensor("dq", &args->dq, true, p->B, Tq, p->H, p->D));
    if (args->dk.data)
        RA__TRY(check_tensor("dk", &args->dk, true, p->B, Tk, p->G, p->D));
    if (args->dv.data)
        RA__TRY(check_tensor("dv", &args->dv, true, p->B, Tk, p->G, p->Dv));
    if (args->dbias.data)
        RA__TRY(check_dbias(plan, args));
    if (args->dsinks && !p->has_sinks)
        return ra__fail(RA_ERR_INVALID, "dsinks is wanted, but the plan was made without has_sinks");
    return RA_OK;
}

/* ---- runs ---- */

typedef ra_status pass_fn(const struct ra__ring *ring, const ra_attention_args *args, char *workspace);

/* A rank that cannot start would leave the others waiting in the ring: the comm is failed with the same reason. */
static ra_status give_up(const ra_plan *plan, ra_status status) {
    if (plan->ring.schedule.P > 1) {
        char why[256];
        snprintf(why, sizeof why, "%s", ra_last_error());
        return ra__comm_fail(plan->comm, status, "%s", why);
    }
    return status;
}

static ra_status run(const ra_plan *plan, const ra_attention_args *args, void *workspace, ra_status checked, pass_fn *pass) {
    if (checked != RA_OK)
        return give_up(plan, checked);
    if ((uintptr_t)workspace % RA__ALIGN)
        return give_up(plan, ra__fail(RA_ERR_INVALID, "workspace is not aligned to %d bytes", RA__ALIGN));
    const size_t bytes = ra_plan_workspace_bytes(plan);
    char *own = workspace ? NULL : ra__alloc(&plan->comm->allocator, bytes);
    if (!workspace && !own)
        return give_up(plan, ra__fail(RA_ERR_MEMORY, "no memory for a workspace of %zu bytes", bytes));
    ra_status status = pass(&plan->ring, args, workspace ? workspace : own);
    ra__free(&plan->comm->allocator, own);
    return status;
}

ra_status ra_attention_forward(const ra_plan *plan, const ra_attention_args *args, void *workspace) {
    if (!plan)
        return ra__fail(RA_ERR_INVALID, "ra_attention_forward: plan is NULL");
    return run(plan, args, workspace, check_forward(plan, args), ra__ring_forward);
}

ra_status ra_attention_backward(const ra_plan *plan, const ra_attention_args *args, void *workspace) {
    if (!plan)
        return ra__fail(RA_ERR_INVALID, "ra_attention_backward: plan is NULL");
    return run(plan, args, workspace, check_backward(plan, args), ra__ring_backward);
}

/* ---- the simple form ---- */

/* Forward into an fp32 copy of out, which the backward then starts from. */
static ra_status both_passes(const ra_plan *plan, const ra_attention_args *args, char *workspace, float *lse, float *out32) {
    const ra_problem *p = &plan->problem;
    const struct ra__kernels *k = plan->ring.attn.k;
    const int64_t T = plan->ring.q.T;
    ra_attention_args a = *args;
    a.lse = lse;
    if (out32)
        a.out = ra_tensor_bshd(out32, RA_F32, T, p->H, p->Dv);
    RA__TRY(ra_attention_forward(plan, &a, workspace));
    for (int64_t b = 0; out32 && b < p->B; b++)
        for (int64_t h = 0; h < p->H; h++)
            ra__store_rows(k, &args->out, b, 0, T, h, p->Dv, out32 + (b * T * p->H + h) * p->Dv, p->H * p->Dv);
    return ra_attention_backward(plan, &a, workspace);
}

static ra_status one_call(const ra_plan *plan, const ra_attention_args *args, bool backward) {
    const ra_problem *p = &plan->problem;
    const ra_allocator *memory = &plan->comm->allocator;
    if (!backward)
        return ra_attention_forward(plan, args, NULL);
    const int64_t rows = p->B * plan->ring.q.T * p->H;
    const bool needs_lse = !args->lse, needs_out = args->out.dtype != RA_F32;
    ra_status status = check_forward(plan, args);
    if (status != RA_OK)
        return give_up(plan, status);
    char *workspace = ra__alloc(memory, ra_plan_workspace_bytes(plan));
    float *lse = needs_lse ? ra__alloc(memory, (size_t)rows * sizeof *lse) : args->lse;
    float *out32 = needs_out ? ra__alloc(memory, (size_t)(rows * p->Dv) * sizeof *out32) : NULL;
    if (!workspace || !lse || (needs_out && !out32))
        status = give_up(plan, ra__fail(RA_ERR_MEMORY, "no memory for a workspace of %zu bytes", ra_plan_workspace_bytes(plan)));
    else
        status = both_passes(plan, args, workspace, lse, out32);
    ra__free(memory, out32);
    if (needs_lse)
        ra__free(memory, lse);
    ra__free(memory, workspace);
    return status;
}

ra_status ra_attention(ra_comm *comm, const ra_problem *problem, const ra_attention_args *args) {
    if (!comm)
        return ra__fail(RA_ERR_INVALID, "ra_attention: comm is NULL");
    if (!problem || !args) { /* the other ranks are planning */
        struct ra__agreed unused;
        RA__TRY(ra__comm_check(comm));
        return ra__agree(comm, NULL, ra__fail(RA_ERR_INVALID, "ra_attention: %s is NULL", problem ? "args" : "problem"), false, &unused);
    }
    ra_problem p = *problem;
    p.backward = args->dq.data || args->dk.data || args->dv.data || args->dbias.data || args->dsinks;
    ra_plan *plan;
    RA__TRY(ra__plan_create(comm, &p, !p.backward, &plan));
    ra_status status = one_call(plan, args, plan->problem.backward);
    ra_plan_destroy(plan);
    return status;
}

/* ---- machine and build ---- */

#define STRING_(x) #x
#define STRING(x)  STRING_(x)
#define VERSION    STRING(RA_VERSION_MAJOR) "." STRING(RA_VERSION_MINOR) "." STRING(RA_VERSION_PATCH)

const char *ra_version(void) {
    return VERSION;
}

const char *ra_isa(void) {
    return ra__kernels()->isa;
}

double ra_measure_peak(int threads, double seconds) {
    const struct ra__kernels *k = ra__kernels();
    return threads < 1 || !(seconds > 0) ? 0 : ra__measure_peak(k, threads, seconds);
}

double ra_measure_bandwidth(int threads, double seconds) {
    return threads < 1 || !(seconds > 0) ? 0 : ra__measure_bandwidth(threads, seconds);
}

size_t ra_features(char *buf, size_t n) {
    char levels[64] = "";
    for (int level = RA__SCALAR; level <= RA__AMX; level++)
        if (ra__kernels_compiled(level) && level <= (int)ra__isa_detected()) {
            strncat(levels, *levels ? " " : "", sizeof levels - strlen(levels) - 1);
            strncat(levels, ra__isa_name((enum ra__isa)level), sizeof levels - strlen(levels) - 1);
        }
    const struct ra__gemm_about gemm = ra__gemm_about();
    char onednn[32] = "none";
    if (gemm.onednn_major)
        snprintf(onednn, sizeof onednn, "%d.%d", gemm.onednn_major, gemm.onednn_minor);
    int length = snprintf(buf, n,
                          "version: %s\ncompiler: %s\nisa: %s\nisa usable: %s\nopenmp: %s\nblas: %s\nonednn: %s\n"
                          "mpi links: %s%s%s\n",
                          ra_version(), __VERSION__, ra_isa(), levels, ra__openmp() ? "yes" : "no", gemm.cblas ? "yes" : "no", onednn,
                          ra__launched_available("openmpi") ? "openmpi " : "", ra__launched_available("mpich") ? "mpich" : "",
                          ra__launched_available("openmpi") || ra__launched_available("mpich") ? "" : "none");
    return length > 0 ? (size_t)length : 0;
}
