/* Matrix multiplication by any CBLAS (OpenBLAS, BLIS, the reference one): fp32 only. */
#include "block/gemm.h"

#include <cblas.h>
#include <stddef.h>

struct ra__gemm_about ra__gemm_about(void) {
    return (struct ra__gemm_about){.available = true, .cblas = true};
}

bool ra__gemm_takes_bf16(void) {
    return false;
}

void ra__gemm_open(struct ra__gemm *w) {
    w->failed = NULL;
}

void ra__gemm(struct ra__gemm *w, const struct ra__product *p, const void *a, const void *b, float *c) {
    (void)w;
    cblas_sgemm(CblasRowMajor, p->transpose_a ? CblasTrans : CblasNoTrans, p->transpose_b ? CblasTrans : CblasNoTrans, (int)p->m, (int)p->n,
                (int)p->k, 1, a, (int)p->lda, b, (int)p->ldb, p->add ? 1 : 0, c, (int)p->ldc);
}

void ra__gemm_close(struct ra__gemm *w) {
    (void)w;
}
