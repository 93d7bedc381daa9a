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
 * Every product is summed in fp32, and what is between products is computed in fp32. In what type the operands are multiplied:
 *
 *   fp32 tensors                       fp32, where they lie
 *   bf16, and the GEMM takes bf16      bf16, where they lie; h, du and dg are rounded to bf16 for it (oneDNN, AVX512-BF16)
 *   other 16-bit tensors               fp32 copies: x, dy and y by chunks, the weights by panels, again for every chunk, so that no whole
 *                                      fp32 weight ever exists
 *
 * A chunk's hidden columns are computed a panel at a time, so that u and g are still in the cache when the activation reads them. Hence
 * the workspace: h of a chunk, chunk * F, except with copies, which cost chunk * E + E * panel; and chunk * panel a few times.
 *
 * Threads: the loops between GEMMs use OpenMP, so the GEMMs should too (oneDNN, libopenblas-openmp). Beside a BLAS with threads of its
 * own, OpenMP's wait busily for their next loop on the cores that the GEMM needs: OMP_WAIT_POLICY=passive or threads = 1 avoid that.
 *
 * Bits: the loops here share out rows and columns whole, every sum is in the order of the tokens, and each gradient is computed by itself.
 * So which gradients are wanted does not change them. The number of threads may, where oneDNN makes a product of few rows: it then splits
 * sums among threads. With the same number they are the same. */
#include <string.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/threads.h"
#include "block/ffn_rows.h"
#include "block/gemm.h"
#include "block/kernels.h"

#define PANEL         1024 /* hidden columns at a time: u and g of a chunk are some MB then */
#define PANEL_COPY    512  /* likewise, of weights converted on the way */
#define DEFAULT_CHUNK 1024 /* tokens: enough that converting and packing the weights for each chunk costs little */

/* ---- checks, sizes ---- */

/* How the operands of GEMMs come about, see above. */
enum way { SINGLE, DIRECT, COPY };

static enum way way_of(ra_dtype dtype) {
    return dtype == RA_F32 ? SINGLE : dtype == RA_BF16 && ra__gemm_takes_bf16() ? DIRECT : COPY;
}

/* The workspace as byte offsets, the same for both passes. */
struct sizes {
    enum way way;
    int64_t chunk, panel, total;
    int64_t h;          /* SINGLE: fp32 [chunk,F], the forward's h; u is in it. DIRECT: bf16 [chunk,F], or 3 of [chunk,panel]: h, du, dg */
    int64_t u, g;       /* [chunk,panel]; g of SWIGLU only. Then h, du and dg, in place */
    int64_t dh;         /* [chunk,panel]; then h */
    int64_t bu;         /* [panel], zero where there is no bias */
    int64_t bd;         /* [E], likewise */
    int64_t y;          /* but SINGLE: [chunk,E]; y, or COPY's dy */
    int64_t x;          /* COPY: [chunk,E] */
    int64_t wg, wu, wd; /* COPY: [E,panel], [E,panel], [panel,E] */
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
    return ra__isa_check(ra__kernels_compiled);
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

    const bool gated = f->activation == RA_SWIGLU;
    s->way = way_of(f->dtype);
    const bool copy = s->way == COPY, single = s->way == SINGLE;
    s->chunk = f->chunk ? f->chunk : DEFAULT_CHUNK;
    s->chunk = s->chunk < f->T ? s->chunk : f->T;
    s->chunk = s->chunk < RA__GEMM_MAX ? s->chunk : RA__GEMM_MAX;
    s->panel = copy ? PANEL_COPY : PANEL;
    s->panel = s->panel < F ? s->panel : F;

    struct ra__layout w = {0};
    const int64_t hidden = s->chunk * s->panel, tokens = s->chunk * E, weights = E * s->panel; /* int32 factors */
    const int64_t kept = single || F > 3 * s->panel ? F : 3 * s->panel;
    s->h = ra__reserve(&w, copy ? 0 : s->chunk * kept, single ? element : element / 2);
    s->u = single ? s->h : ra__reserve(&w, hidden, element);
    s->g = ra__reserve(&w, gated ? hidden : 0, element);
    s->dh = ra__reserve(&w, hidden, element);
    s->bu = ra__reserve(&w, s->panel, element);
    s->bd = ra__reserve(&w, E, element);
    s->y = ra__reserve(&w, single ? 0 : tokens, element);
    s->x = ra__reserve(&w, copy ? tokens : 0, element);
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
    if (!ra__gemm_about().available)
        return ra__fail(RA_ERR_UNSUPPORTED, "feed-forward: built without oneDNN and CBLAS");
    return RA_OK;
}

/* ---- moving numbers ---- */

/* A run: the options, and where its workspace lies. */
struct run {
    ra_activation activation;
    ra_dtype dtype;
    enum way way;
    int threads;
    int64_t T, E, F, chunk, panel;
    const ra_ffn_args *args;
    const struct ra__ffn_rows *rows;
    struct ra__gemm *gemm;
    void *h;
    float *u, *g, *dh, *bu, *bd, *x, *y, *wg, *wu, *wd;
};

/* Numbers that are multiplied, bf16 if DIRECT, else fp32: rows `stride` elements apart. */
struct matrix {
    const void *at;
    int64_t stride;
};

static const void *element(const struct run *r, const void *tensor, int64_t i) {
    return (const char *)tensor + i * (int64_t)ra_dtype_size(r->dtype);
}

/* `rows` rows of n elements of a tensor of the run's dtype from element `first` on, `stride` apart: in place, or converted into copy. */
static struct matrix operand(const struct run *r, const void *tensor, int64_t first, int64_t rows, int64_t n, int64_t stride, float *copy) {
    if (r->way != COPY)
        return (struct matrix){element(r, tensor, first), stride};
#pragma omp parallel for num_threads(r->threads)
    for (int64_t i = 0; i < rows; i++)
        r->rows->widen(r->dtype, n, element(r, tensor, first + i * stride), copy + i * n);
    return (struct matrix){copy, n};
}

/* n elements of a bias, or zeros for none. */
static void widen_bias(const struct run *r, const void *bias, int64_t first, int64_t n, float *dst) {
    if (bias)
        r->rows->widen(r->dtype, n, element(r, bias, first), dst);
    else
        memset(dst, 0, (size_t)n * sizeof *dst);
}

/* sum[j] (+)= sum over i of a[i][j], a of type dtype: whole columns to a thread, a strip of them at a time, rows in order. */
static void sum_rows(const struct run *r, int64_t rows, int64_t n, ra_dtype dtype, struct matrix a, bool add, float *sum) {
    enum { STRIP = 256 };
#pragma omp parallel for num_threads(r->threads)
    for (int64_t j = 0; j < n; j += STRIP) {
        float strip[STRIP] = {0}, row[STRIP];
        const int64_t width = n - j < STRIP ? n - j : STRIP, size = (int64_t)ra_dtype_size(dtype);
        for (int64_t i = 0; i < rows; i++) {
            r->rows->widen(dtype, width, (const char *)a.at + (i * a.stride + j) * size, row);
            for (int64_t k = 0; k < width; k++)
                strip[k] += row[k];
        }
        for (int64_t k = 0; k < width; k++)
            sum[j + k] = add ? sum[j + k] + strip[k] : strip[k];
    }
}

/* c (+)= op(a) op(b), see gemm.h */
static void multiply(const struct run *r, char op_a, char op_b, int64_t m, int64_t n, int64_t k, struct matrix a, struct matrix b, bool add,
                     float *c, int64_t ldc) {
    const struct ra__product p = {.bf16 = r->way == DIRECT,
                                  .transpose_a = op_a == 'T',
                                  .transpose_b = op_b == 'T',
                                  .add = add,
                                  .m = m,
                                  .n = n,
                                  .k = k,
                                  .lda = a.stride,
                                  .ldb = b.stride,
                                  .ldc = ldc};
    ra__gemm(r->gemm, &p, a.at, b.at, c);
}

/* ---- a panel of hidden columns ---- */

/* The weights of hidden columns j .. j+m-1; their bias is in bu. */
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
        p.wg = operand(r, a->wg, j, E, m, F, r->wg);
    p.wu = operand(r, a->wu, j, E, m, F, r->wu);
    p.wd = operand(r, a->wd, j * E, m, E, E, r->wd);
    widen_bias(r, a->bu, j, m, r->bu);
    return p;
}

/* u = x wu (without its bias), its rows `stride` apart, g = x wg: [n,m] */
static void hidden_forward(const struct run *r, const struct panel *p, int64_t n, struct matrix x, float *u, int64_t stride) {
    multiply(r, 'N', 'N', n, p->m, r->E, x, p->wu, false, u, stride);
    if (r->activation == RA_SWIGLU)
        multiply(r, 'N', 'N', n, p->m, r->E, x, p->wg, false, r->g, p->m);
}

/* u = h; DIRECT: also its bf16 copy at h, F apart. */
static void activate(const struct run *r, int64_t n, int64_t m, float *u, int64_t stride, uint16_t *h) {
#pragma omp parallel for num_threads(r->threads)
    for (int64_t i = 0; i < n; i++) {
        r->rows->activate(r->activation, m, r->g + i * m, u + i * stride, r->bu);
        if (r->way == DIRECT)
            r->rows->to_bf16(m, u + i * stride, h + i * r->F);
    }
}

/* What the products of a panel's gradients multiply: [n,m]. */
struct hidden {
    struct matrix h, du, dg;
};

/* u = du, g = dg, dh = h; DIRECT: also their bf16 copies at r->h. */
static struct hidden differentiate(const struct run *r, int64_t n, int64_t m) {
    const bool gated = r->activation == RA_SWIGLU, direct = r->way == DIRECT;
    uint16_t *const h = r->h, *const du = direct ? h + n * m : NULL, *const dg = direct ? du + n * m : NULL;
#pragma omp parallel for num_threads(r->threads)
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = i * m;
        r->rows->differentiate(r->activation, m, r->g + at, r->u + at, r->bu, r->dh + at);
        if (!direct)
            continue;
        r->rows->to_bf16(m, r->dh + at, h + at);
        r->rows->to_bf16(m, r->u + at, du + at);
        if (gated)
            r->rows->to_bf16(m, r->g + at, dg + at);
    }
    if (direct)
        return (struct hidden){{h, m}, {du, m}, {dg, m}};
    return (struct hidden){{r->dh, m}, {r->u, m}, {r->g, m}};
}

/* ---- the passes: chunks of tokens t .. t+n-1, for each the panels ---- */

static void forward_chunk(const struct run *r, int64_t t, int64_t n) {
    const ra_ffn_args *a = r->args;
    const int64_t E = r->E, F = r->F;
    const bool single = r->way == SINGLE, copy = r->way == COPY;
    const struct matrix x = operand(r, a->x, t * E, n, E, E, r->x);
    /* With y == x this overwrites x only when no panel will read it any more: COPY reads a copy. */
    float *y = single ? (float *)a->y + t * E : r->y;
    for (int64_t j = 0; j < F; j += r->panel) {
        const struct panel p = panel_at(r, j);
        float *u = single ? r->u + j : r->u;
        const int64_t stride = single ? F : p.m;
        hidden_forward(r, &p, n, x, u, stride);
        activate(r, n, p.m, u, stride, (uint16_t *)r->h + j);
        if (copy)
            multiply(r, 'N', 'N', n, E, p.m, (struct matrix){u, stride}, p.wd, j > 0, y, E);
    }
    if (!copy)
        multiply(r, 'N', 'N', n, E, F, (struct matrix){r->h, F}, (struct matrix){a->wd, E}, false, y, E);
    if (single && !a->bd)
        return;
#pragma omp parallel for num_threads(r->threads)
    for (int64_t i = 0; i < n; i++)
        r->rows->narrow(r->dtype, E, y + i * E, r->bd, (char *)a->y + (t + i) * E * (int64_t)ra_dtype_size(r->dtype));
}

/* The gradients by way of one panel. Later chunks add to the weights', later panels to dx. */
static void panel_gradients(const struct run *r, const struct panel *p, int64_t t, int64_t n, struct matrix x, struct matrix dy) {
    const ra_ffn_args *a = r->args;
    const int64_t E = r->E, F = r->F, j = p->j, m = p->m;
    const struct hidden d = differentiate(r, n, m);
    if (a->dwd)
        multiply(r, 'T', 'N', m, E, n, d.h, dy, t > 0, a->dwd + j * E, E);
    if (a->dwu)
        multiply(r, 'T', 'N', E, m, n, x, d.du, t > 0, a->dwu + j, F);
    if (a->dwg)
        multiply(r, 'T', 'N', E, m, n, x, d.dg, t > 0, a->dwg + j, F);
    if (a->dbu)
        sum_rows(r, n, m, RA_F32, (struct matrix){r->u, m}, t > 0, a->dbu + j);
    if (a->dx)
        multiply(r, 'N', 'T', n, E, m, d.du, p->wu, j > 0, a->dx + t * E, E);
    if (a->dx && r->activation == RA_SWIGLU)
        multiply(r, 'N', 'T', n, E, m, d.dg, p->wg, true, a->dx + t * E, E);
}

static void backward_chunk(const struct run *r, int64_t t, int64_t n) {
    const ra_ffn_args *a = r->args;
    const int64_t E = r->E;
    const struct matrix dy = operand(r, a->dy, t * E, n, E, E, r->y);
    if (a->dbd)
        sum_rows(r, n, E, r->way == DIRECT ? r->dtype : RA_F32, dy, t > 0, a->dbd);
    if (!a->dx && !a->dwg && !a->dwu && !a->dwd && !a->dbu)
        return;
    const struct matrix x = operand(r, a->x, t * E, n, E, E, r->x);
    for (int64_t j = 0; j < r->F; j += r->panel) {
        const struct panel p = panel_at(r, j);
        hidden_forward(r, &p, n, x, r->u, p.m);
        multiply(r, 'N', 'T', n, p.m, E, dy, p.wd, false, r->dh, p.m);
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
    const int threads_before = ra__default_threads();
    struct ra__gemm gemm;
    const struct run r = {
        .activation = f->activation,
        .dtype = f->dtype,
        .way = s->way,
        .threads = f->threads ? f->threads : threads_before,
        .T = f->T,
        .E = f->E,
        .F = f->F,
        .chunk = s->chunk,
        .panel = s->panel,
        .args = args,
        .rows = ra__ffn_rows(),
        .gemm = &gemm,
        .h = base + s->h,
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
    ra__set_default_threads(r.threads);
    ra__gemm_open(&gemm);
    widen_bias(&r, args->bd, 0, r.E, r.bd);
    for (int64_t t = 0; t < r.T && !gemm.failed; t += r.chunk)
        chunk(&r, t, r.T - t < r.chunk ? r.T - t : r.chunk);
    ra__gemm_close(&gemm);
    ra__set_default_threads(threads_before);
    if (!workspace)
        ra__free(&allocator, base);
    return gemm.failed ? ra__fail(RA_ERR_MEMORY, "feed-forward: a product failed: %s", gemm.failed) : RA_OK;
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
