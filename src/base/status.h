/* Errors: one code, one sentence of detail per thread. The function that decides an error records it; callers only pass the code on. */
#ifndef RA_BASE_STATUS_H
#define RA_BASE_STATUS_H

#include "ringattention.h"

/* Records the detail for ra_last_error() and returns s. */
ra_status ra__fail(ra_status s, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define RA__TRY(expression)              \
    do {                                 \
        ra_status ra__s_ = (expression); \
        if (ra__s_ != RA_OK)             \
            return ra__s_;               \
    } while (0)

#endif
