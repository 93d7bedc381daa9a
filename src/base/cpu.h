/* What the processor can do, the user's cap on it, time. */
#ifndef RA_BASE_CPU_H
#define RA_BASE_CPU_H

enum ra__isa { RA__SCALAR, RA__AVX2, RA__AVX512, RA__AVX512BF16, RA__AMX };

enum ra__isa ra__isa_detected(void); /* by CPUID, XCR0 and, for AMX, the permission of the kernel */
enum ra__isa ra__isa_allowed(void);  /* the same, capped by the environment variable RA_ISA; an unknown value is ignored */
const char *ra__isa_name(enum ra__isa level);
const char *ra__environment(const char *name); /* getenv; the one place that reads the environment. "" counts as unset (NULL) */
long ra__cache_bytes(int level);               /* data cache of level 1 or 2 of one core; a common size where the system does not tell */
double ra__now(void);                          /* seconds, monotonic */
void ra__yield(void);                          /* give the core away for a moment */

#endif
