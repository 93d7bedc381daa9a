/* The staircase of dispatch: portable first, each instruction set that is compiled in and allowed steps above it. */
#include "base/cpu.h"
#include "block/ffn_rows.h"
#include "block/kernels.h"

bool ra__kernels_compiled(int level) {
    switch ((enum ra__isa)level) {
    case RA__SCALAR:
        return true;
    case RA__AVX2:
#ifdef RA_HAVE_AVX2
        return true;
#else
        return false;
#endif
    case RA__AVX512:
#ifdef RA_HAVE_AVX512
        return true;
#else
        return false;
#endif
    case RA__AVX512BF16:
#ifdef RA_HAVE_AVX512BF16
        return true;
#else
        return false;
#endif
    case RA__AMX:
#ifdef RA_HAVE_AMX
        return true;
#else
        return false;
#endif
    }
    return false;
}

const struct ra__kernels *ra__kernels(void) {
    const struct ra__kernels *k = &ra__kernels_scalar;
    enum ra__isa allowed = ra__isa_allowed();
    (void)allowed;
#ifdef RA_HAVE_AVX2
    if (allowed >= RA__AVX2)
        k = &ra__kernels_avx2;
#endif
#ifdef RA_HAVE_AVX512
    if (allowed >= RA__AVX512)
        k = &ra__kernels_avx512;
#endif
    return k;
}

const struct ra__kernels *ra__kernels_bf16(void) {
    const struct ra__kernels *k = ra__kernels();
    enum ra__isa allowed = ra__isa_allowed();
    (void)allowed;
#ifdef RA_HAVE_AVX512BF16
    if (allowed >= RA__AVX512BF16)
        k = &ra__kernels_avx512bf16;
#endif
#ifdef RA_HAVE_AMX
    if (allowed >= RA__AMX)
        k = &ra__kernels_amx;
#endif
    return k;
}

const struct ra__ffn_rows *ra__ffn_rows(void) {
    const struct ra__ffn_rows *rows = &ra__ffn_rows_scalar;
    enum ra__isa allowed = ra__isa_allowed();
    (void)allowed;
#ifdef RA_HAVE_AVX2
    if (allowed >= RA__AVX2)
        rows = &ra__ffn_rows_avx2;
#endif
#ifdef RA_HAVE_AVX512
    if (allowed >= RA__AVX512)
        rows = &ra__ffn_rows_avx512;
#endif
    return rows;
}
