/* Own CPUID code: compilers' __builtin_cpu_supports differ in the names they know. */
#define _DEFAULT_SOURCE /* syscall */
#include "base/cpu.h"

#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static uint64_t xcr0(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* Linux lets a process use tile registers once it has asked; asking again is harmless, so nobody has to remember. */
static bool tiles_granted(void) {
#if defined(__linux__)
    const long request_permission = 0x1023, tile_data = 18; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    return false;
#endif
}

enum ra__isa ra__isa_detected(void) {
    const uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29, need1 = fma | osxsave | avx | f16c;
    const uint32_t avx2 = 1u << 5, need512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
    const uint32_t need_amx = 1u << 22 | 1u << 24;                                      /* BF16, TILE */
    const uint32_t avx512_bf16 = 1u << 5;                                               /* leaf 7.1 */
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & need1) != need1 || (xcr0() & 6) != 6)
        return RA__SCALAR;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & avx2))
        return RA__SCALAR;
    if ((b & need512) != need512 || (xcr0() & 0xe6) != 0xe6)
        return RA__AVX2;
    const bool tiles = (d & need_amx) == need_amx && (xcr0() & 0x60000) == 0x60000;
    if (a < 1 || !__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & avx512_bf16))
        return RA__AVX512;
    return tiles && tiles_granted() ? RA__AMX : RA__AVX512BF16;
}

/* name: 12 characters and a 0. */
static void get_vendor(char *name) {
    uint32_t a, word[3] = {0};
    __get_cpuid(0, &a, &word[0], &word[2], &word[1]);
    memcpy(name, word, sizeof word);
    name[sizeof word] = 0;
}
#else
enum ra__isa ra__isa_detected(void) {
    return RA__SCALAR;
}

static void get_vendor(char *name) {
    name[0] = 0;
}
#endif

enum ra__isa ra__isa_usual(enum ra__isa detected, const char *vendor) {
    return detected == RA__AVX512BF16 && strcmp(vendor, "GenuineIntel") == 0 ? RA__AVX512 : detected;
}

const char *ra__isa_name(enum ra__isa level) {
    static const char *const names[] = {"scalar", "avx2", "avx512", "avx512bf16", "amx"};
    return names[level];
}

enum ra__isa ra__isa_allowed(void) {
    enum ra__isa best = ra__isa_detected();
    const char *cap = ra__environment("RA_ISA");
    for (enum ra__isa level = RA__SCALAR; cap && level <= best; level++)
        if (strcmp(cap, ra__isa_name(level)) == 0)
            return level;
    char vendor[13];
    get_vendor(vendor);
    return ra__isa_usual(best, vendor);
}

ra_status ra__isa_check(bool (*compiled)(int level)) {
    const char *cap = ra__environment("RA_ISA");
    char usable[64] = "";
    int named = -1;
    for (int level = RA__SCALAR; cap && level <= RA__AMX; level++) {
        const char *name = ra__isa_name((enum ra__isa)level);
        const size_t length = strlen(usable);
        named = strcmp(cap, name) == 0 ? level : named;
        if (compiled(level) && level <= (int)ra__isa_detected())
            snprintf(usable + length, sizeof usable - length, "%s%s", length ? ", " : "", name);
    }
    if (cap && named < 0)
        return ra__fail(RA_ERR_INVALID, "RA_ISA=%.40s: no instruction set; known are scalar, avx2, avx512, avx512bf16, amx, usable here %s",
                        cap, usable);
    if (cap && (!compiled(named) || named > (int)ra__isa_detected()))
        return ra__fail(RA_ERR_INVALID, "RA_ISA=%s: this %s lacks it; usable here are %s", cap, compiled(named) ? "processor" : "build",
                        usable);
    return RA_OK;
}

const char *ra__environment(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

double ra__now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void ra__yield(void) {
    sched_yield();
}

long ra__cache_bytes(int level) {
    long bytes = -1;
#ifdef _SC_LEVEL1_DCACHE_SIZE
    bytes = sysconf(level == 1 ? _SC_LEVEL1_DCACHE_SIZE : _SC_LEVEL2_CACHE_SIZE);
#endif
    return bytes > 0 ? bytes : level == 1 ? 32 << 10 : 512 << 10;
}
