/* Operands between pages that must not be touched: they end right before one, or begin right after one, and what is left of the room
 * around them is watched for writes. Define _DEFAULT_SOURCE before the first include. */
#ifndef RA_TESTS_GUARD_H
#define RA_TESTS_GUARD_H

#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#include "base/half.h"
#include "check.h"

enum { PAGE = 4096, ROOM = 64 * PAGE, ROOMS = 8, FRINGE = 256 };

static unsigned char *rooms; /* | guard | room 0 | guard | room 1 | ... */
static struct {
    unsigned char *begin, *data;
    size_t bytes;
} taken[ROOMS];
static int taken_count;
static bool at_end; /* operands end at a guard page, else they begin after one */

static void make_rooms(void) {
    rooms = mmap(NULL, ROOMS * (ROOM + PAGE) + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (rooms == MAP_FAILED)
        CHECK_SKIP("no memory for guard pages");
    for (int i = 0; i <= ROOMS; i++)
        CHECK(mprotect(rooms + i * (size_t)(ROOM + PAGE), PAGE, PROT_NONE) == 0);
}

/* The next operand. What is left of its room near it is watched for writes. */
static void *take(int64_t bytes, size_t align) {
    unsigned char *begin = rooms + (size_t)taken_count * (ROOM + PAGE) + PAGE, *data = begin;
    if (taken_count == ROOMS || bytes > ROOM) {
        fprintf(stderr, "operand of %lld bytes does not fit\n", (long long)bytes);
        exit(1);
    }
    if (at_end)
        data = begin + ((size_t)(ROOM - bytes) & ~(align - 1));
    unsigned char *low = data - begin > FRINGE ? data - FRINGE : begin;
    unsigned char *high = begin + ROOM - (data + bytes) > FRINGE ? data + bytes + FRINGE : begin + ROOM;
    memset(low, 0xa5, (size_t)(high - low));
    taken[taken_count].begin = begin;
    taken[taken_count].data = data;
    taken[taken_count++].bytes = (size_t)bytes;
    return data;
}

static float *take_packed(int64_t n) {
    return take(n * (int64_t)sizeof(float), 64);
}

static float *take_floats(int64_t n) { /* aligned for the type only */
    return take(n * (int64_t)sizeof(float), sizeof(float));
}

/* Nothing around the operands was written; forgets them. */
static bool clean_up(const char *what) {
    bool clean = true;
    for (int i = 0; i < taken_count; i++) {
        unsigned char *begin = taken[i].begin, *end = begin + ROOM, *data = taken[i].data, *after = data + taken[i].bytes;
        for (unsigned char *p = data - begin > FRINGE ? data - FRINGE : begin; p < data; p++)
            clean &= *p == 0xa5;
        for (unsigned char *p = after; p < end && p < after + FRINGE; p++)
            clean &= *p == 0xa5;
    }
    taken_count = 0;
    return CHECK_MSG(clean, "%s wrote beside its operands", what);
}

__attribute__((unused)) static bool is_gap(const float *x) { /* as take() left it */
    return ra__bits(*x) == 0xa5a5a5a5u;
}

#endif
