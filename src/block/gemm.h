/* The one thing taken from others: matrix multiplication. The build links one of gemm_onednn.c, gemm_cblas.c and gemm_none.c, so that
 * nothing above this header knows which library there is, or whether. All products of a call of ours are made between ra__gemm_open and
 * ra__gemm_close, by the thread that opened, so that oneDNN's primitives are made once per shape. */
#ifndef RA_BLOCK_GEMM_H
#define RA_BLOCK_GEMM_H

#include <stdbool.h>
#include <stdint.h>

/* CBLAS counts in int: m, n, k, lda, ldb and ldc must not exceed this. */
#define RA__GEMM_MAX INT32_MAX

/* c = op(a) op(b) or, with `add`, c += op(a) op(b), row-major; op(a) [m,k], op(b) [k,n], c [m,n]; op(z) is z, or its transpose where
 * transpose_z. a and b are fp32 or, with `bf16`, bf16; c is fp32, and so are the sums. lda, ldb, ldc: elements from row to row, as stored.
 * All of m, n, k >= 1. Without `add`, c is written without being read, so that it may hold NaN. c overlaps neither a nor b. */
struct ra__product {
    bool bf16, transpose_a, transpose_b, add;
    int64_t m, n, k, lda, ldb, ldc;
};

/* Made for a shape, and kept: the primitive, and the descriptions of a, b and c. */
struct ra__made {
    struct ra__product shape;
    struct dnnl_primitive *primitive;
    struct dnnl_memory *memory[3];
};

struct ra__gemm {
    const char *failed; /* what the first failed call was, or NULL; after a failure products do nothing */
    struct dnnl_engine *engine;
    struct dnnl_stream *stream;
    int count;
    struct ra__made made[32]; /* twice as many as a pass has shapes */
};

struct ra__gemm_about {
    bool available, cblas;
    int onednn_major, onednn_minor; /* 0: not oneDNN */
};

struct ra__gemm_about ra__gemm_about(void);
bool ra__gemm_takes_bf16(void); /* on this processor, under RA_ISA. Asks the processor, which takes long on virtual ones: ask once */

/* Threads are the library's own: those of OpenMP (ra__set_default_threads) where it uses OpenMP, as oneDNN does. */
void ra__gemm_open(struct ra__gemm *w);
void ra__gemm(struct ra__gemm *w, const struct ra__product *p, const void *a, const void *b, float *c);
void ra__gemm_close(struct ra__gemm *w);

#endif
