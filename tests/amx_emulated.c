/* Linked to a test, together with src/block/kernels_amx.c built over emulate_amx.h, and with the linker's --wrap for one function of the
 * library: where AVX512-BF16 is the best instruction set, the library takes itself to be on a processor with AMX. */
#include "base/cpu.h"

enum ra__isa __real_ra__isa_allowed(void);
enum ra__isa __wrap_ra__isa_allowed(void);

enum ra__isa __wrap_ra__isa_allowed(void) {
    const enum ra__isa level = __real_ra__isa_allowed();
    return level == RA__AVX512BF16 ? RA__AMX : level;
}
