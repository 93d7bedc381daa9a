/* What the CPU engine does not do, refused in one place: a plan asks here, and so does whoever wants to know beforehand. An option is
 * exact on every path or it has a line here; there is no third outcome. */
#include <stdio.h>
#include <string.h>

#include "plan/plan.h"

ra_status ra__unsupported(const ra_problem *p) {
    const int64_t longest = (int64_t)1 << 48, heads = (int64_t)1 << 32;
    if (p->dropout > 0 && (p->Sq >= longest || p->Skv >= longest || p->B > heads / p->H))
        return ra__fail(RA_ERR_UNSUPPORTED, "dropout: its counters tell 2^48 tokens and 2^32 heads of a batch apart, not %lld and %lld",
                        (long long)(p->Sq > p->Skv ? p->Sq : p->Skv), (long long)(p->B * p->H));
    return RA_OK;
}

ra_status ra_supports(const ra_problem *problem, const char *engine, char *reason, size_t n) {
    ra_status s;
    if (!problem)
        s = ra__fail(RA_ERR_INVALID, "ra_supports: problem is NULL");
    else if (engine && strcmp(engine, "cpu") != 0)
        s = ra__fail(RA_ERR_UNSUPPORTED, "engine %s: this library has none of that name, only cpu", engine);
    else
        s = ra__validate_problem(problem, 1, 0);
    if (reason && n)
        snprintf(reason, n, "%s", s == RA_OK ? "" : ra_last_error());
    return s;
}
