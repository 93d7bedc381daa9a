/* Memory: every allocation of the library goes through the comm's allocator; a run's workspace is laid out once, as offsets. */
#ifndef RA_BASE_MEMORY_H
#define RA_BASE_MEMORY_H

#include <stdbool.h>

#include "ringattention.h"

#define RA__ALIGN 64

/* The allocator to use: *a, or malloc when a is NULL. */
ra_allocator ra__allocator_or_default(const ra_allocator *a);

/* bytes >= 0, aligned to RA__ALIGN; NULL when there is none (never for bytes == 0). */
void *ra__alloc(const ra_allocator *a, size_t bytes);
void *ra__alloc_zero(const ra_allocator *a, size_t bytes);
void ra__free(const ra_allocator *a, void *p);                /* NULL is allowed */
int64_t ra__alloc_bytes(int64_t count, size_t element_bytes); /* what ra__alloc takes for an array that there is */

/* A workspace is measured before it exists: reserve() hands out offsets and adds up the total. Overflow sticks and is checked once. */
struct ra__layout {
    int64_t total;
    bool overflow;
};
int64_t ra__reserve(struct ra__layout *w, int64_t count, int64_t element_bytes);

/* a*b, or *overflow = true and 0. For a, b >= 0. */
int64_t ra__mul(int64_t a, int64_t b, bool *overflow);

#endif
