/* Linked to a test, together with src/block/kernels_amx.c built over emulate_amx.h, and with the linker's --wrap for one function of the
 * library: the library then takes a processor with AVX512-BF16 for one with AMX. Elsewhere the test is skipped. */
#include <stdio.h>
#include <stdlib.h>

#include "base/cpu.h"

enum ra__isa __real_ra__isa_allowed(void);
enum ra__isa __wrap_ra__isa_allowed(void);

enum ra__isa __wrap_ra__isa_allowed(void) {
    const enum ra__isa level = __real_ra__isa_allowed();
    return level == RA__AVX512BF16 ? RA__AMX : level;
}

__attribute__((constructor)) static void skip_elsewhere(void) {
    if (ra__isa_detected() >= RA__AVX512BF16)
        return;
    printf("skipped: the processor lacks avx512bf16, of which all but the products is made\n");
    exit(77);
}
