/* What the processor can do, the user's cap on it, time. */
#ifndef RA_BASE_CPU_H
#define RA_BASE_CPU_H

#include <stdbool.h>

#include "base/status.h"

enum ra__isa { RA__SCALAR, RA__AVX2, RA__AVX512, RA__AVX512BF16, RA__AMX };

enum ra__isa ra__isa_detected(void); /* by CPUID, XCR0 and, for AMX, the permission of the kernel */
enum ra__isa ra__isa_allowed(void);  /* the level that RA_ISA names; without it the usual one */
/* What to take of what is there. vendor: as CPUID names it. Intel's vectors multiply bf16 pairs at half the speed of fp32
 * (docs/kernels.md): without AMX bf16 is converted there. */
enum ra__isa ra__isa_usual(enum ra__isa detected, const char *vendor);
const char *ra__isa_name(enum ra__isa level);
/* Refuses a value of RA_ISA that is no level, or one that the build (`compiled`) or the processor lacks: whoever names a level wants that
 * one, and ra__isa_allowed would take another. */
ra_status ra__isa_check(bool (*compiled)(int level));
const char *ra__environment(const char *name); /* getenv; the one place that reads the environment. "" counts as unset (NULL) */
long ra__cache_bytes(int level);               /* data cache of level 1 or 2 of one core; a common size where the system does not tell */
double ra__now(void);                          /* seconds, monotonic */
void ra__yield(void);                          /* give the core away for a moment */

#endif
