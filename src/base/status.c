/* Status names and texts from the public list, and the calling thread's last error. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[512];

const char *ra_last_error(void) {
    return last_error;
}

static void record(const char *format, va_list ap) {
    /* The arguments may point into last_error itself ("rank 2: " + ra_last_error()), so format aside first. */
    char text[sizeof last_error];
    vsnprintf(text, sizeof text, format, ap);
    snprintf(last_error, sizeof last_error, "%s", text);
}

ra_status ra__fail(ra_status s, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    record(format, ap);
    va_end(ap);
    return s;
}

ra_status ra_link_error(ra_status s, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    record(format, ap);
    va_end(ap);
    return s;
}

const char *ra_status_name(ra_status s) {
    switch (s) {
#define X(name, code, text) \
    case RA_##name:         \
        return #name;
        RA_STATUS_LIST(X)
#undef X
    }
    return "unknown";
}

const char *ra_status_text(ra_status s) {
    switch (s) {
#define X(name, code, text) \
    case RA_##name:         \
        return text;
        RA_STATUS_LIST(X)
#undef X
    }
    return "unknown status";
}
