/* Stands in for the others in a build without oneDNN and CBLAS. */
#include "block/gemm.h"

struct ra__gemm_about ra__gemm_about(void) {
    return (struct ra__gemm_about){.available = false};
}

bool ra__gemm_takes_bf16(void) {
    return false;
}

void ra__gemm_open(struct ra__gemm *w) {
    w->failed = "built without oneDNN and CBLAS";
}

void ra__gemm(struct ra__gemm *w, const struct ra__product *p, const void *a, const void *b, float *c) {
    (void)w, (void)p, (void)a, (void)b, (void)c;
}

void ra__gemm_close(struct ra__gemm *w) {
    (void)w;
}
