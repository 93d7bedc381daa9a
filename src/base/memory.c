/* The default allocator, and the arithmetic of workspaces. */
#define _POSIX_C_SOURCE 200809L
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

static void *default_alloc(void *user, size_t bytes, size_t align) {
    (void)user;
    void *p = NULL;
    return posix_memalign(&p, align, bytes) == 0 ? p : NULL;
}

static void default_free(void *user, void *p) {
    (void)user;
    free(p);
}

ra_allocator ra__allocator_or_default(const ra_allocator *a) {
    return a ? *a : (ra_allocator){default_alloc, default_free, NULL};
}

void *ra__alloc(const ra_allocator *a, size_t bytes) {
    size_t rounded = (bytes + RA__ALIGN - 1) & ~(size_t)(RA__ALIGN - 1);
    if (rounded < bytes)
        return NULL;
    return a->alloc(a->user, rounded ? rounded : RA__ALIGN, RA__ALIGN);
}

int64_t ra__alloc_bytes(int64_t count, size_t element_bytes) {
    const int64_t bytes = (count * (int64_t)element_bytes + RA__ALIGN - 1) & ~(int64_t)(RA__ALIGN - 1);
    return bytes ? bytes : RA__ALIGN;
}

void *ra__alloc_zero(const ra_allocator *a, size_t bytes) {
    void *p = ra__alloc(a, bytes);
    return p ? memset(p, 0, bytes) : NULL;
}

void ra__free(const ra_allocator *a, void *p) {
    if (p)
        a->free(a->user, p);
}

int64_t ra__mul(int64_t a, int64_t b, bool *overflow) {
    int64_t product;
    if (__builtin_mul_overflow(a, b, &product)) {
        *overflow = true;
        return 0;
    }
    return product;
}

int64_t ra__reserve(struct ra__layout *w, int64_t count, int64_t element_bytes) {
    int64_t offset = w->total, bytes = ra__mul(count, element_bytes, &w->overflow);
    if (__builtin_add_overflow(bytes, RA__ALIGN - 1, &bytes) ||
        __builtin_add_overflow(offset, bytes & ~(int64_t)(RA__ALIGN - 1), &w->total)) {
        w->overflow = true;
        w->total = offset;
    }
    return offset;
}
