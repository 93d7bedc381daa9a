/* The one thing taken from a BLAS: single-precision matrix multiplication. The build links gemm_cblas.c or, without a CBLAS,
 * gemm_none.c, so that nothing above this header knows which BLAS there is, or whether. */
#ifndef RA_BLOCK_GEMM_H
#define RA_BLOCK_GEMM_H

#include <stdbool.h>
#include <stdint.h>

/* CBLAS counts in int: m, n, k, lda, ldb and ldc must not exceed this. */
#define RA__GEMM_MAX INT32_MAX

bool ra__gemm_available(void);

/* c = alpha op(a) op(b) + beta c, row-major; op(a) [m,k], op(b) [k,n], c [m,n]; op(z) is z, or its transpose where transpose_z.
 * lda, ldb, ldc: elements from row to row, as stored. All of m, n, k >= 1. With beta = 0, c is written without being read, so that it
 * may hold NaN. c overlaps neither a nor b. Nothing happens when !ra__gemm_available().
 * Threads are the BLAS library's own; the bits do not depend on ours. */
void ra__gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda, const float *b,
              int64_t ldb, float beta, float *c, int64_t ldc);

#endif
