/* Failures: recording, wording, and the lines of many ranks folded into one. */
#include "failure.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int fail(failure *f, int status, const char *format, ...) {
    if (f->status)
        return -1;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(f->text, sizeof f->text, format, arguments);
    va_end(arguments);
    for (char *c = f->text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    f->status = status;
    return -1;
}

static int exit_status_of(ra_status s) {
    switch (s) {
    case RA_OK:
        return EXIT_DONE;
    case RA_ERR_INVALID: /* the file's shapes were checked before, so what is left is the flags' */
        return EXIT_USAGE;
    case RA_ERR_UNSUPPORTED:
    case RA_ERR_OVERFLOW:
        return EXIT_UNSUPPORTED;
    case RA_ERR_MISMATCH:
    case RA_ERR_PEER_LOST:
    case RA_ERR_TIMEOUT:
    case RA_ERR_LINK:
        return EXIT_RANKS;
    case RA_ERR_MEMORY:
        return EXIT_MEMORY;
    case RA_ERR_INTERNAL:
        break;
    }
    return EXIT_INTERNAL;
}

int fail_library(failure *f, ra_status s, const char *doing) {
    if (s == RA_OK)
        return 0;
    const char *detail = ra_last_error();
    fail(f, exit_status_of(s), "%s: %s%s%s", doing, ra_status_text(s), *detail ? ": " : "", detail);
    f->follows = s == RA_ERR_PEER_LOST;
    return -1;
}

int fail_memory(failure *f, int64_t bytes, const char *what) {
    return fail(f, EXIT_MEMORY, "out of memory: %s needs %lld bytes on this rank", what, (long long)bytes);
}

static int same(const failure *a, const failure *b) {
    return a->status == b->status && a->follows == b->follows && strcmp(a->text, b->text) == 0;
}

/* "rank 2", "ranks 0-3", "ranks 0, 2-3": the ranks from i on that failed like of[i]. */
static void print_ranks(const failure *of, int n, int i, int first_rank) {
    int count = 0;
    for (int r = i; r < n; r++)
        count += same(&of[r], &of[i]);
    fprintf(stderr, count == 1 ? "rank" : "ranks");
    const char *separator = " ";
    for (int r = i; r < n; r++) {
        if (!same(&of[r], &of[i]))
            continue;
        int last = r;
        while (last + 1 < n && same(&of[last + 1], &of[i]))
            last++;
        fprintf(stderr, last > r ? "%s%d-%d" : "%s%d", separator, first_rank + r, first_rank + last);
        separator = ", ";
        r = last;
    }
    fprintf(stderr, ": ");
}

int failures_print(const failure *of, int n, int first_rank, int name_ranks, int quiet) {
    const failure *cause = NULL;
    for (int r = 0; r < n; r++)
        if (of[r].status && (!cause || (cause->follows && !of[r].follows)))
            cause = &of[r];
    for (int r = 0; r < n && !quiet; r++) {
        int told = 0;
        for (int earlier = 0; earlier < r && !told; earlier++)
            told = same(&of[earlier], &of[r]);
        if (!of[r].status || told || (of[r].follows && !cause->follows))
            continue;
        fprintf(stderr, "ringattn: ");
        if (name_ranks)
            print_ranks(of, n, r, first_rank);
        fprintf(stderr, "%s\n", of[r].text);
    }
    return cause ? cause->status : 0;
}

int failure_print(const failure *f) {
    return failures_print(f, 1, 0, 0, 0);
}
