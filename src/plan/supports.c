/* What the CPU engine does not do yet, refused in one place: a plan asks here, and so does whoever wants to know beforehand. An option is
 * exact on every path or it has a line here; there is no third outcome. */
#include <stdio.h>
#include <string.h>

#include "plan/plan.h"

ra_status ra__unsupported(const ra_problem *p) {
    const struct {
        const char *what;
        bool wanted;
    } missing[] = {
        {"softcap", p->softcap > 0}, {"sinks", p->has_sinks != 0}, {"a temperature", p->has_temperature != 0}, {"dropout", p->dropout > 0}};
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++)
        if (missing[i].wanted)
            return ra__fail(RA_ERR_UNSUPPORTED, "%s: the CPU engine does not do this yet", missing[i].what);
    return RA_OK;
}

ra_status ra__unsupported_run(const ra_attention_args *args, bool backward) {
    const struct {
        const char *what;
        bool wanted;
    } missing[] = {{"row_max", !backward && args->row_max}, {"dbias", backward && args->dbias.data}, {"dsinks", backward && args->dsinks}};
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++)
        if (missing[i].wanted)
            return ra__fail(RA_ERR_UNSUPPORTED, "%s: the CPU engine does not compute this yet", missing[i].what);
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
