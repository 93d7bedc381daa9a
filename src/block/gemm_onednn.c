/* Matrix multiplication by oneDNN 2 (https://oneapi-src.github.io/oneDNN): fp32 by its sgemm, bf16 by its matmul primitive, which sums in
 * fp32.
 *
 * Why not a CBLAS: bf16 at twice fp32's speed, and fp32 at full speed on processors that are newer than the BLAS. Debian 12's OpenBLAS
 * takes AVX2 kernels on a Zen 5, half of oneDNN's speed; with AVX2 alone they are equal. fp16 is not here: oneDNN 2 cannot, on CPUs.
 *
 * oneDNN allocates for itself, by malloc: the primitives (a few KB each, freed by ra__gemm_close), their code (kept in a cache of the
 * process, ONEDNN_PRIMITIVE_CACHE_CAPACITY), and buffers for packed operands (kept with a primitive, or for the time of one sgemm). They
 * cannot come out of a workspace, because their size depends on the number of threads at run time. */
#include "block/gemm.h"

#include <oneapi/dnnl/dnnl.h>
#include <string.h>

#include "base/cpu.h"

struct ra__gemm_about ra__gemm_about(void) {
    const dnnl_version_t *version = dnnl_version();
    return (struct ra__gemm_about){.available = true, .onednn_major = version->major, .onednn_minor = version->minor};
}

/* Below AVX512-BF16 oneDNN emulates bf16, slower than fp32. It has a cap of its own, ONEDNN_MAX_CPU_ISA. */
bool ra__gemm_takes_bf16(void) {
    const int need = dnnl_cpu_isa_avx512_core_bf16;
    return ((int)dnnl_get_effective_cpu_isa() & need) == need && ra__isa_allowed() >= RA__AVX512BF16;
}

/* Whether the call succeeded; the first that does not is remembered. */
static bool succeeded(struct ra__gemm *w, dnnl_status_t status, const char *call) {
    if (status != dnnl_success && !w->failed)
        w->failed = status == dnnl_out_of_memory ? "oneDNN is out of memory" : call;
    return status == dnnl_success;
}
#define OK(call) succeeded(w, call, #call)

void ra__gemm_open(struct ra__gemm *w) {
    w->failed = NULL, w->engine = NULL, w->stream = NULL, w->count = 0;
    if (OK(dnnl_engine_create(&w->engine, dnnl_cpu, 0)))
        OK(dnnl_stream_create(&w->stream, w->engine, dnnl_stream_default_flags));
}

static void drop(struct ra__made *made) {
    for (int i = 0; i < 3; i++)
        if (made->memory[i])
            dnnl_memory_destroy(made->memory[i]);
    if (made->primitive)
        dnnl_primitive_destroy(made->primitive);
}

void ra__gemm_close(struct ra__gemm *w) {
    for (int i = 0; i < w->count; i++)
        drop(&w->made[i]);
    if (w->stream)
        dnnl_stream_destroy(w->stream);
    if (w->engine)
        dnnl_engine_destroy(w->engine);
}

static bool same(const struct ra__product *p, const struct ra__product *q) {
    return p->bf16 == q->bf16 && p->transpose_a == q->transpose_a && p->transpose_b == q->transpose_b && p->add == q->add && p->m == q->m &&
           p->n == q->n && p->k == q->k && p->lda == q->lda && p->ldb == q->ldb && p->ldc == q->ldc;
}

/* A matrix of rows x columns that is stored as its transpose where `transposed`. */
static bool describe(struct ra__gemm *w, dnnl_memory_desc_t *d, int64_t rows, int64_t columns, dnnl_data_type_t type, int64_t stride,
                     bool transposed) {
    const dnnl_dims_t sizes = {rows, columns}, strides = {transposed ? 1 : stride, transposed ? stride : 1};
    return OK(dnnl_memory_desc_init_by_strides(d, 2, sizes, type, strides));
}

static bool make_primitive(struct ra__gemm *w, const struct ra__product *p, const dnnl_memory_desc_t d[3], dnnl_primitive_t *primitive) {
    dnnl_matmul_desc_t matmul;
    dnnl_post_ops_t adding = NULL;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t description = NULL;
    bool ok = OK(dnnl_matmul_desc_init(&matmul, &d[0], &d[1], NULL, &d[2])) && OK(dnnl_primitive_attr_create(&attr)) &&
              OK(dnnl_post_ops_create(&adding));
    if (ok && p->add)
        ok = OK(dnnl_post_ops_append_sum(adding, 1)) && OK(dnnl_primitive_attr_set_post_ops(attr, adding));
    ok = ok && OK(dnnl_primitive_desc_create(&description, &matmul, attr, w->engine, NULL)) &&
         OK(dnnl_primitive_create(primitive, description));
    if (description)
        dnnl_primitive_desc_destroy(description);
    if (adding)
        dnnl_post_ops_destroy(adding);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return ok;
}

/* The primitive for p, made now if there is none yet. NULL after a failure. */
static struct ra__made *find(struct ra__gemm *w, const struct ra__product *p) {
    const int room = (int)(sizeof w->made / sizeof *w->made);
    for (int i = 0; i < w->count; i++)
        if (same(&w->made[i].shape, p))
            return &w->made[i];
    if (w->count == room)
        drop(&w->made[--w->count]);
    struct ra__made *made = &w->made[w->count++];
    memset(made, 0, sizeof *made);
    made->shape = *p;
    dnnl_memory_desc_t d[3];
    bool ok = describe(w, &d[0], p->m, p->k, dnnl_bf16, p->lda, p->transpose_a) &&
              describe(w, &d[1], p->k, p->n, dnnl_bf16, p->ldb, p->transpose_b) &&
              describe(w, &d[2], p->m, p->n, dnnl_f32, p->ldc, false) && make_primitive(w, p, d, &made->primitive);
    for (int i = 0; ok && i < 3; i++)
        ok = OK(dnnl_memory_create(&made->memory[i], &d[i], w->engine, DNNL_MEMORY_NONE));
    return ok ? made : NULL;
}

/* oneDNN wants pointers that are not const, but writes to c alone. */
static void multiply_bf16(struct ra__gemm *w, const struct ra__product *p, const void *a, const void *b, float *c) {
    struct ra__made *made = find(w, p);
    if (!made)
        return;
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, made->memory[0]}, {DNNL_ARG_WEIGHTS, made->memory[1]}, {DNNL_ARG_DST, made->memory[2]}};
    if (OK(dnnl_memory_set_data_handle(made->memory[0], (void *)(uintptr_t)a)) &&
        OK(dnnl_memory_set_data_handle(made->memory[1], (void *)(uintptr_t)b)) && OK(dnnl_memory_set_data_handle(made->memory[2], c)) &&
        OK(dnnl_primitive_execute(made->primitive, w->stream, 3, args)))
        OK(dnnl_stream_wait(w->stream));
}

void ra__gemm(struct ra__gemm *w, const struct ra__product *p, const void *a, const void *b, float *c) {
    if (w->failed)
        return;
    if (p->bf16)
        multiply_bf16(w, p, a, b, c);
    else
        OK(dnnl_sgemm(p->transpose_a ? 'T' : 'N', p->transpose_b ? 'T' : 'N', p->m, p->n, p->k, 1, a, p->lda, b, p->ldb, p->add ? 1 : 0, c,
                      p->ldc));
}
