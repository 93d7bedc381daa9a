/* The tests' assertions. A test is a function that checks things; main runs each with RUN and returns check_result():
 *
 *     static void adds(void) { CHECK_EQ_INT(1 + 1, 2); }
 *     int main(void) { RUN(adds); return check_result(); }
 *
 * A failed check prints where and what, is counted, and the test goes on. One line per test function on stdout, failures on stderr.
 * Exit status: 0 passed, 1 a check failed, 77 skipped (CHECK_SKIP, for a whole program). Checks may be made from any thread. */
#ifndef RA_TESTS_CHECK_H
#define RA_TESTS_CHECK_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "ringattention.h"

static atomic_int check_failures;

__attribute__((format(printf, 4, 5), unused)) static int check_report(int ok, const char *file, int line, const char *format, ...) {
    if (ok)
        return 1;
    char text[768];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    if (atomic_fetch_add(&check_failures, 1) < 50) /* the first fifty say enough */
        fprintf(stderr, "%s:%d: %s\n", file, line, text);
    return 0;
}

__attribute__((unused)) static int check_eq_int(long long a, long long b, const char *text, const char *file, int line) {
    return check_report(a == b, file, line, "%s: %lld, expected %lld", text, a, b);
}

__attribute__((unused)) static int check_status(ra_status got, ra_status want, const char *text, const char *file, int line) {
    return check_report(got == want, file, line, "%s: %s (%s), expected %s", text, ra_status_name(got), ra_last_error(),
                        ra_status_name(want));
}

/* Each yields whether it held, so that a test can stop: if (!CHECK(p)) return; */
#define CHECK(cond)              check_report(!!(cond), __FILE__, __LINE__, "%s", #cond)
#define CHECK_MSG(cond, ...)     check_report(!!(cond), __FILE__, __LINE__, __VA_ARGS__)
#define CHECK_EQ_INT(a, b)       check_eq_int((long long)(a), (long long)(b), #a, __FILE__, __LINE__)
#define CHECK_STATUS(call, want) check_status((call), (want), #call, __FILE__, __LINE__)
#define CHECK_OK(call)           CHECK_STATUS(call, RA_OK)

#define RUN(function)                                                                            \
    do {                                                                                         \
        int before_ = atomic_load(&check_failures);                                              \
        function();                                                                              \
        printf("%s %s\n", atomic_load(&check_failures) == before_ ? "ok" : "FAILED", #function); \
        fflush(stdout);                                                                          \
    } while (0)

#define CHECK_SKIP(reason)               \
    do {                                 \
        printf("skipped: %s\n", reason); \
        exit(77);                        \
    } while (0)

__attribute__((unused)) static int check_result(void) {
    int failures = atomic_load(&check_failures);
    if (failures)
        fprintf(stderr, "%d checks failed\n", failures);
    return failures ? 1 : 0;
}

#endif
