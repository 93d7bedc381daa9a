/* Stands in for gemm_cblas.c in a build without CBLAS. */
#include "block/gemm.h"

bool ra__gemm_available(void) {
    return false;
}

void ra__gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda, const float *b,
              int64_t ldb, float beta, float *c, int64_t ldc) {
    (void)transpose_a, (void)transpose_b, (void)m, (void)n, (void)k, (void)alpha, (void)a, (void)lda;
    (void)b, (void)ldb, (void)beta, (void)c, (void)ldc;
}
