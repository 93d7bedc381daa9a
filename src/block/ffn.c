/* The feed-forward of a transformer, a chunk of tokens at a time, forward and backward.
 *
 * The F-wide intermediate of all T tokens is the largest tensor of a layer, and tokens do not see each other in it: so it is computed for
 * `chunk` tokens, used and forgotten, and the backward computes it again (Liu and Abbeel, arXiv 2305.19370, section 3). The result is the
 * same, memory does not depend on T, and the GEMMs are still large enough to run at the BLAS library's speed.
 *
 *   forward                          backward, by the chain rule
 *   u = x wu + bu   [n,F]            dh = dy wd^T                     dwd += h^T dy
 *   g = x wg        [n,F], SWIGLU    du = dh f(g), dg = dh u f'(g)    dwu += x^T du, dwg += x^T dg
 *   h = f(g) u  or  f(u)             (without g: du = dh f'(u))       dx = du wu^T + dg wg^T
 *   y = h wd + bd   [n,E]            dbu += sum of du's rows, dbd += sum of dy's rows
 *
 * Everything is computed in fp32. fp32 tensors are used where they lie. 16-bit ones are converted on the way: x, dy and y by chunks, the
 * weights by panels of PANEL of the F hidden columns, again for every chunk, so that no whole fp32 weight ever exists. Hence the workspace:
 * fp32 chunk * F, 16-bit chunk * (PANEL + E) + E * PANEL, times a small constant.
 *
 * Threads: the loops between GEMMs use OpenMP, so the BLAS library should too (libopenblas-openmp). Beside one with threads of its own,
 * OpenMP's wait busily for their next loop on the cores that the GEMM needs: OMP_WAIT_POLICY=passive or threads = 1 avoid that.
 *
 * Bits: rows and columns are shared out among threads whole, every sum is in the order of the tokens, and each gradient is computed by
 * itself. So neither the number of threads nor which gradients are wanted changes them. */
#include "block/ffn.h"

#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "base/threads.h"
#include "block/gemm.h"

#define PANEL         512  /* hidden columns of a 16-bit weight converted at a time */
#define DEFAULT_CHUNK 1024 /* tokens: enough that converting and packing the weights for each chunk costs little */

/* ---- checks, sizes ---- */

/* The workspace as byte offsets, the same for both passes. In fp32 panel is F, and what is marked "copy" is empty. */
struct sizes {
    int64_t chunk, panel, total;
    int64_t u, g;       /* [chunk,panel]; g of SWIGLU only. Then h, du and dg, in place */
    int64_t dh;         /* [chunk,panel]; then h */
    int64_t bu;         /* [panel], zero where there is no bias */
    int64_t bd;         /* [E], likewise */
    int64_t x, y;       /* copy: [chunk,E]; y or dy */
    int64_t wg, wu, wd; /* copy: [E,panel], [E,panel], [panel,E] */
};

static ra_status check_options(const ra_ffn *f) {
    if (!f)
        return ra__fail(RA_ERR_INVALID, "f is NULL");
    if (f->size != sizeof *f)
        return ra__fail(RA_ERR_INVALID, "f was not set up by ra_ffn_init");
    if (f->activation != RA_SWIGLU && f->activation != RA_GELU && f->activation != RA_GELU_TANH)
        return ra__fail(RA_ERR_INVALID, "activation %d is unknown", (int)f->activation);
    if (f->dtype != RA_F32 && f->dtype != RA_BF16 && f->dtype != RA_F16)
        return ra__fail(RA_ERR_INVALID, "dtype %d is unknown", (int)f->dtype);
    if (f->T < 0)
        return ra__fail(RA_ERR_INVALID, "T is %lld: it must not be negative", (long long)f->T);
    if (f->E < 1 || f->F < 1)
        return ra__fail(RA_ERR_INVALID, "E is %lld, F is %lld: both must be at least 1", (long long)f->E, (long long)f->F);
    if (f->chunk < 0)
        return ra__fail(RA_ERR_INVALID, "chunk is %lld: it must not be negative", (long long)f->chunk);
    if (f->threads < 0 || f->threads > 4096)
        return ra__fail(RA_ERR_INVALID, "threads is %d: must be from 0 to 4096", f->threads);
    return RA_OK;
}

static ra_status measure(const ra_ffn *f, struct sizes *s) {
    RA__TRY(check_options(f));
    const int64_t element = sizeof(float), E = f->E, F = f->F, wide = E > F ? E : F;
    bool overflow = false;
    ra__mul(ra__mul(f->T, E, &overflow), element, &overflow);
    ra__mul(ra__mul(E, F, &overflow), element, &overflow);
    if (overflow)
        return ra__fail(RA_ERR_OVERFLOW, "T is %lld, E is %lld, F is %lld: a tensor's size does not fit in 64 bits", (long long)f->T,
                        (long long)E, (long long)F);
    if (wide > RA__GEMM_MAX)
        return ra__fail(RA_ERR_UNSUPPORTED, "E is %lld, F is %lld: CBLAS counts to %lld", (long long)E, (long long)F,
                        (long long)RA__GEMM_MAX);

    const bool gated = f->activation == RA_SWIGLU, copy = f->dtype != RA_F32;
    s->chunk = f->chunk ? f->chunk : DEFAULT_CHUNK;
    s->chunk = s->chunk < f->T ? s->chunk : f->T;
    s->chunk = s->chunk < RA__GEMM_MAX ? s->chunk : RA__GEMM_MAX;
    s->panel = copy && F > PANEL ? PANEL : F;

    struct ra__layout w = {0};
    const int64_t hidden = s->chunk * s->panel, tokens = s->chunk * E, weights = E * s->panel; /* int32 factors */
    s->u = ra__reserve(&w, hidden, element);
    s->g = ra__reserve(&w, gated ? hidden : 0, element);
    s->dh = ra__reserve(&w, hidden, element);
    s->bu = ra__reserve(&w, s->panel, element);
    s->bd = ra__reserve(&w, E, element);
    s->x = ra__reserve(&w, copy ? tokens : 0, element);
    s->y = ra__reserve(&w, copy ? tokens : 0, element);
    s->wg = ra__reserve(&w, copy && gated ? weights : 0, element);
    s->wu = ra__reserve(&w, copy ? weights : 0, element);
    s->wd = ra__reserve(&w, copy ? weights : 0, element);
    s->total = w.total;
    return w.overflow ? ra__fail(RA_ERR_OVERFLOW, "the workspace's size does not fit in 64 bits") : RA_OK;
}

static ra_status check_args(const ra_ffn *f, const ra_ffn_args *a, const void *workspace) {
    if (!a)
        return ra__fail(RA_ERR_INVALID, "args is NULL");
    if (!a->x && f->T > 0)
        return ra__fail(RA_ERR_INVALID, "x is required");
    if (!a->wu || !a->wd)
        return ra__fail(RA_ERR_INVALID, "%s is required", a->wu ? "wd" : "wu");
    if (f->activation == RA_SWIGLU && !a->wg)
        return ra__fail(RA_ERR_INVALID, "wg is required for SWIGLU");
    if (f->activation != RA_SWIGLU && (a->wg || a->dwg))
        return ra__fail(RA_ERR_INVALID, "%s is given, but only SWIGLU has a gate", a->wg ? "wg" : "dwg");
    if ((uintptr_t)workspace % RA__ALIGN)
        return ra__fail(RA_ERR_INVALID, "workspace is not aligned to %d bytes", RA__ALIGN);
    if (!ra__gemm_available())
        return ra__fail(RA_ERR_UNSUPPORTED, "feed-forward: built without CBLAS");
    return RA_OK;
}

/* ---- moving numbers ---- */

/* A run: the options, and where its workspace lies. */
struct run {
    ra_activation activation;
    ra_dtype dtype;
    int threads;
    int64_t T, E, F, chunk, panel;
    const ra_ffn_args *args;
    float *u, *g, *dh, *bu, *bd, *x, *y, *wg, *wu, *wd;
};

/* fp32 numbers that are read: rows `stride` elements apart. */
struct matrix {
    const float *at;
    int64_t stride;
};

static void widen_row(ra_dtype dtype, int64_t n, const void *restrict src, float *restrict dst) {
    const uint16_t *restrict half = src;
    if (dtype == RA_F32)
        memcpy(dst, src, (size_t)n * sizeof *dst);
    else if (dtype == RA_BF16)
        for (int64_t i = 0; i < n; i++)
            dst[i] = ra__from_bf16(half[i]);
    else
        for (int64_t i = 0; i < n; i++)
            dst[i] = ra__from_f16(half[i]);
}

/* dst = src + bias, rounded to dtype. In fp32 dst is src. */
static void narrow_row(ra_dtype dtype, int64_t n, const float *src, const float *restrict bias, void *dst) {
    float *single = dst;
    uint16_t *half = dst;
    if (dtype == RA_F32)
        for (int64_t i = 0; i < n; i++)
            single[i] += bias[i];
    else if (dtype == RA_BF16)
        for (int64_t i = 0; i < n; i++)
            half[i] = ra__to_bf16(src[i] + bias[i]);
    else
        for (int64_t i = 0; i < n; i++)
            half[i] = ra__to_f16(src[i] + bias[i]);
}

static const void *element(const struct run *r, const void *tensor, int64_t i) {
    return (const char *)tensor + i * (int64_t)ra_dtype_size(r->dtype);
}

/* `rows` rows of n elements of a tensor of the run's dtype from element `first` on, `stride` apart: in place, or converted into copy. */
static struct matrix widen(const struct run *r, const void *tensor, int64_t first, int64_t rows, int64_t n, int64_t stride, float *copy) {
    if (r->dtype == RA_F32)
        return (struct matrix){(const float *)tensor + first, stride};
#pragma omp parallel for num_threads(r->threads)
    for (int64_t i = 0; i < rows; i++)
        widen_row(r->dtype, n, element(r, tensor, first + i * stride), copy + i * n);
    return (struct matrix){copy, n};
}

/* n elements of a bias, or zeros for none. */
static void widen_bias(const struct run *r, const void *bias, int64_t first, int64_t n, float *dst) {
    if (bias)
        widen_row(r->dtype, n, element(r, bias, first), dst);
    else
        memset(dst, 0, (size_t)n * sizeof *dst);
}

/* sum[j] (+)= sum over i of a[i][j]: whole columns to a thread, a strip of them at a time, rows in order. */
static void sum_rows(const struct run *r, int64_t rows, int64_t n, struct matrix a, bool add, float *sum) {
    enum { STRIP = 64 };
#pragma omp parallel for num_threads(r->threads)
    for (int64_t j = 0; j < n; j += STRIP) {
        float strip[STRIP] = {0};
        const int64_t width = n - j < STRIP ? n - j : STRIP;
        for (int64_t i = 0; i < rows; i++)
            for (int64_t k = 0; k < width; k++)
                strip[k] += a.at[i * a.stride + j + k];
        for (int64_t k = 0; k < width; k++)
            sum[j + k] = add ? sum[j + k] + strip[k] : strip[k];
    }
}

/* ---- activations of one row: u [n] before its bias, g [n] ---- */

/* u = h */
static void activate_row(ra_activation activation, int64_t n, const float *restrict g, float *restrict u, const float *restrict bu) {
    if (activation == RA_SWIGLU)
        for (int64_t i = 0; i < n; i++)
            u[i] = ra__silu(g[i]).value * (u[i] + bu[i]);
    else if (activation == RA_GELU)
        for (int64_t i = 0; i < n; i++)
            u[i] = ra__gelu(u[i] + bu[i]).value;
    else
        for (int64_t i = 0; i < n; i++)
            u[i] = ra__gelu_tanh(u[i] + bu[i]).value;
}

/* h = h, u = du, g = dg; h holds dh before. */
static void differentiate_row(ra_activation activation, int64_t n, float *restrict g, float *restrict u, const float *restrict bu,
                              float *restrict h) {
    if (activation == RA_SWIGLU) {
        for (int64_t i = 0; i < n; i++) {
            const struct ra__slope gate = ra__silu(g[i]);
            const float up = u[i] + bu[i], dh = h[i];
            h[i] = gate.value * up;
            u[i] = dh * gate.value;
            g[i] = dh * up * gate.slope;
        }
        return;
    }
    if (activation == RA_GELU) {
        for (int64_t i = 0; i < n; i++) {
            const struct ra__slope s = ra__gelu(u[i] + bu[i]);
            u[i] = h[i] * s.slope;
            h[i] = s.value;
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        const struct ra__slope s = ra__gelu_tanh(u[i] + bu[i]);
        u[i] = h[i] * s.slope;
        h[i] = s.value;
    }
}

/* ---- a panel of hidden columns ---- */

/* The weights and bias of hidden columns j .. j+m-1, in fp32. */
struct panel {
    int64_t j, m;
    struct matrix wg, wu; /* [E,m] */
    struct matrix wd;     /* [m,E] */
};

static struct panel panel_at(const struct run *r, int64_t j) {
    const ra_ffn_args *a = r->args;
    const int64_t E = r->E, F = r->F, m = F - j < r->panel ? F - j : r->panel;
    struct panel p = {j, m, {0}, {0}, {0}};
    if (r->activation == RA_SWIGLU)
        p.wg = widen(r, a->wg, j, E, m, F, r->wg);
    p.wu = widen(r, a->wu, j, E, m, F, r->wu);
    p.wd = widen(r, a->wd, j * E, m, E, E, r->wd);
    widen_bias(r, a->bu, j, m, r->bu);
    return p;
}

/* u = x wu (without its bias), g = x wg: [n,m] */
static void hidden_forward(const struct run *r, const struct panel *p, int64_t n, struct matrix x) {
    ra__gemm(false, false, n, p->m, r->E, 1, x.at, x.stride, p->wu.at, p->wu.stride, 0, r->u, p->m);
    if (r->activation == RA_SWIGLU)
        ra__gemm(false, false, n, p->m, r->E, 1, x.at, x.stride, p->wg.at, p->wg.stride, 0, r->g, p->m);
}

static void activate(const struct run *r, int64_t n, int64_t m) {
#pragma omp parallel for num_threads(r->threads)
    for (int64_t i = 0; i < n; i++)
        activate_row(r->activation, m, r->g + i * m, r->u + i * m, r->bu);
}

static void differentiate(const struct run *r, int64_t n, int64_t m) {
#pragma omp parallel for num_threads(r->threads)
    for (int64_t i = 0; i < n; i++)
        differentiate_row(r->activation, m, r->g + i * m, r->u + i * m, r->bu, r->dh + i * m);
}

/* ---- the passes: chunks of tokens t .. t+n-1, for each the panels ---- */

static void forward_chunk(const struct run *r, int64_t t, int64_t n) {
    const ra_ffn_args *a = r->args;
    const int64_t E = r->E;
    const bool single = r->dtype == RA_F32;
    const struct matrix x = widen(r, a->x, t * E, n, E, E, r->x);
    /* With y == x this overwrites x before the next panel would read it; but then x is a copy, or there is no next panel. */
    float *y = single ? (float *)a->y + t * E : r->y;
    for (int64_t j = 0; j < r->F; j += r->panel) {
        const struct panel p = panel_at(r, j);
        hidden_forward(r, &p, n, x);
        activate(r, n, p.m);
        ra__gemm(false, false, n, E, p.m, 1, r->u, p.m, p.wd.at, p.wd.stride, j > 0, y, E);
    }
    if (single && !a->bd)
        return;
#pragma omp parallel for num_threads(r->threads)
    for (int64_t i = 0; i < n; i++)
        narrow_row(r->dtype, E, y + i * E, r->bd, (char *)a->y + (t + i) * E * (int64_t)ra_dtype_size(r->dtype));
}

/* The gradients by way of one panel; u and g hold du and dg, dh holds h. Later chunks add to the weights', later panels to dx. */
static void panel_gradients(const struct run *r, const struct panel *p, int64_t t, int64_t n, struct matrix x, struct matrix dy) {
    const ra_ffn_args *a = r->args;
    const int64_t E = r->E, F = r->F, j = p->j, m = p->m;
    const bool gated = r->activation == RA_SWIGLU;
    if (a->dwd)
        ra__gemm(true, false, m, E, n, 1, r->dh, m, dy.at, dy.stride, t > 0, a->dwd + j * E, E);
    if (a->dwu)
        ra__gemm(true, false, E, m, n, 1, x.at, x.stride, r->u, m, t > 0, a->dwu + j, F);
    if (a->dwg)
        ra__gemm(true, false, E, m, n, 1, x.at, x.stride, r->g, m, t > 0, a->dwg + j, F);
    if (a->dbu)
        sum_rows(r, n, m, (struct matrix){r->u, m}, t > 0, a->dbu + j);
    if (a->dx)
        ra__gemm(false, true, n, E, m, 1, r->u, m, p->wu.at, p->wu.stride, j > 0, a->dx + t * E, E);
    if (a->dx && gated)
        ra__gemm(false, true, n, E, m, 1, r->g, m, p->wg.at, p->wg.stride, 1, a->dx + t * E, E);
}

static void backward_chunk(const struct run *r, int64_t t, int64_t n) {
    const ra_ffn_args *a = r->args;
    const int64_t E = r->E;
    const struct matrix dy = widen(r, a->dy, t * E, n, E, E, r->y);
    if (a->dbd)
        sum_rows(r, n, E, dy, t > 0, a->dbd);
    if (!a->dx && !a->dwg && !a->dwu && !a->dwd && !a->dbu)
        return;
    const struct matrix x = widen(r, a->x, t * E, n, E, E, r->x);
    for (int64_t j = 0; j < r->F; j += r->panel) {
        const struct panel p = panel_at(r, j);
        hidden_forward(r, &p, n, x);
        ra__gemm(false, true, n, p.m, E, 1, dy.at, dy.stride, p.wd.at, p.wd.stride, 0, r->dh, p.m);
        differentiate(r, n, p.m);
        panel_gradients(r, &p, t, n, x, dy);
    }
}

/* Without tokens the weights' gradients are sums of nothing. */
static void zero_gradients(const ra_ffn *f, const ra_ffn_args *a) {
    float *const weights[] = {a->dwg, a->dwu, a->dwd};
    for (int i = 0; i < 3; i++)
        if (weights[i])
            memset(weights[i], 0, (size_t)(f->E * f->F) * sizeof(float));
    if (a->dbu)
        memset(a->dbu, 0, (size_t)f->F * sizeof(float));
    if (a->dbd)
        memset(a->dbd, 0, (size_t)f->E * sizeof(float));
}

/* Runs chunk() over all tokens, with a workspace. */
static ra_status run_chunks(const ra_ffn *f, const ra_ffn_args *args, const struct sizes *s, void *workspace,
                            void (*chunk)(const struct run *r, int64_t t, int64_t n)) {
    const ra_allocator allocator = ra__allocator_or_default(f->allocator);
    char *base = workspace ? workspace : ra__alloc(&allocator, (size_t)s->total);
    if (!base)
        return ra__fail(RA_ERR_MEMORY, "feed-forward: no memory for %lld bytes of workspace", (long long)s->total);
    const struct run r = {
        .activation = f->activation,
        .dtype = f->dtype,
        .threads = f->threads ? f->threads : ra__default_threads(),
        .T = f->T,
        .E = f->E,
        .F = f->F,
        .chunk = s->chunk,
        .panel = s->panel,
        .args = args,
        .u = (float *)(base + s->u),
        .g = (float *)(base + s->g),
        .dh = (float *)(base + s->dh),
        .bu = (float *)(base + s->bu),
        .bd = (float *)(base + s->bd),
        .x = (float *)(base + s->x),
        .y = (float *)(base + s->y),
        .wg = (float *)(base + s->wg),
        .wu = (float *)(base + s->wu),
        .wd = (float *)(base + s->wd),
    };
    widen_bias(&r, args->bd, 0, r.E, r.bd);
    for (int64_t t = 0; t < r.T; t += r.chunk)
        chunk(&r, t, r.T - t < r.chunk ? r.T - t : r.chunk);
    if (!workspace)
        ra__free(&allocator, base);
    return RA_OK;
}

/* ---- public ---- */

void ra_ffn_init(ra_ffn *f) {
    *f = (ra_ffn){.size = sizeof *f};
}

size_t ra_ffn_workspace_bytes(const ra_ffn *f) {
    struct sizes s;
    return measure(f, &s) == RA_OK ? (size_t)s.total : 0;
}

ra_status ra_ffn_forward(const ra_ffn *f, const ra_ffn_args *args, void *workspace) {
    struct sizes s;
    RA__TRY(measure(f, &s));
    RA__TRY(check_args(f, args, workspace));
    if (f->T == 0)
        return RA_OK;
    if (!args->y)
        return ra__fail(RA_ERR_INVALID, "y is required");
    return run_chunks(f, args, &s, workspace, forward_chunk);
}

ra_status ra_ffn_backward(const ra_ffn *f, const ra_ffn_args *args, void *workspace) {
    struct sizes s;
    RA__TRY(measure(f, &s));
    RA__TRY(check_args(f, args, workspace));
    if (f->T == 0) {
        zero_gradients(f, args);
        return RA_OK;
    }
    if (!args->dy)
        return ra__fail(RA_ERR_INVALID, "dy is required");
    return run_chunks(f, args, &s, workspace, backward_chunk);
}
