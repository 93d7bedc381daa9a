/* Tables and JSON. Keys are only ever added; man/ringattn.1 documents them. */
#define _POSIX_C_SOURCE 200809L
#include "report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

json_t *json_number(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

int report_json(json_t *object, failure *f) {
    char *text = object ? json_dumps(object, JSON_REAL_PRECISION(9)) : NULL;
    json_decref(object);
    if (!text)
        return fail_memory(f, 0, "the report");
    puts(text);
    free(text);
    return 0;
}

static json_t *per_rank(const rank_report *x, int rank, int backward) {
    json_t *seconds_backward = backward ? json_number(x->backward.seconds) : json_null();
    return json_pack("{s:i, s:i, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:o, s:o}", "rank", rank, "threads", x->threads, "seconds_forward",
                     json_number(x->forward.seconds), "seconds_backward", seconds_backward, "pairs", json_number(x->forward.pairs),
                     "bytes_sent", (json_int_t)(x->forward.bytes_sent + x->backward.bytes_sent), "workspace_bytes",
                     (json_int_t)x->workspace_bytes, "plan_bytes", (json_int_t)x->plan_bytes, "resident_bytes",
                     (json_int_t)x->resident_bytes, "seconds_transfer", json_number(x->forward.transfer + x->backward.transfer),
                     "seconds_exposed", json_number(x->forward.exposed + x->backward.exposed));
}

static json_t *attend_object(const options *o, const ra_problem *p, const rank_report *reports, int ranks, const char *link) {
    summary s = summarize(reports, ranks, p);
    json_t *all = json_array();
    for (int r = 0; r < ranks; r++)
        json_array_append_new(all, per_rank(&reports[r], r, o->backward));
    json_t *seconds_backward = o->backward ? json_number(s.seconds_backward) : json_null();
    return json_pack("{s:i, s:s, s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:o, s:s, s:s, s:[I,I,I,I,I,I,I], s:o}", "ranks",
                     ranks, "layout", layout_name(p->layout), "isa", ra_isa(), "threads", s.threads, "seconds_forward",
                     json_number(s.seconds_forward), "seconds_backward", seconds_backward, "flops_forward", json_number(s.flops_forward),
                     "flops_backward", json_number(s.flops_backward), "peak_gflops", json_number(s.peak_gflops), "bytes_sent",
                     (json_int_t)s.bytes_sent, "workspace_bytes", (json_int_t)s.workspace_bytes, "plan_bytes", (json_int_t)s.plan_bytes,
                     "resident_bytes", (json_int_t)s.resident_bytes, "overlap", json_number(s.overlap), "link", link, "dtype",
                     dtype_name(p->dtype), "shape", (json_int_t)p->B, (json_int_t)p->Sq, (json_int_t)p->Skv, (json_int_t)p->H,
                     (json_int_t)p->G, (json_int_t)p->D, (json_int_t)p->Dv, "per_rank", all);
}

static void print_pass(const char *name, double seconds, double flops, double peak) {
    double gflops = seconds > 0 ? flops * 1e-9 / seconds : 0;
    printf("%-10s %10.4f s  %9.2f GFLOP/s", name, seconds, gflops);
    if (peak > 0)
        printf("  %5.1f %% of the FMA peak", 100 * gflops / peak);
    printf("\n");
}

static void print_table(const options *o, const ra_problem *p, const rank_report *reports, int ranks, const char *link) {
    summary s = summarize(reports, ranks, p);
    printf("B %" PRId64 "  Sq %" PRId64 "  Skv %" PRId64 "  H %" PRId64 "  G %" PRId64 "  D %" PRId64 "  Dv %" PRId64 "  %s\n", p->B, p->Sq,
           p->Skv, p->H, p->G, p->D, p->Dv, dtype_name(p->dtype));
    printf("%d rank%s (%s), %s, %s, %d thread%s each, FMA peak %.1f GFLOP/s\n", ranks, ranks > 1 ? "s" : "", link, layout_name(p->layout),
           ra_isa(), s.threads, s.threads > 1 ? "s" : "", s.peak_gflops);
    print_pass("forward", s.seconds_forward, s.flops_forward, s.peak_gflops);
    if (o->backward)
        print_pass("backward", s.seconds_backward, s.flops_backward, s.peak_gflops);
    printf("largest of any rank: %" PRId64 " bytes sent, %" PRId64 " of workspace, %" PRId64 " of the plan, %" PRId64
           " resident; %.1f %% of transfers hidden\n",
           s.bytes_sent, s.workspace_bytes, s.plan_bytes, s.resident_bytes, 100 * s.overlap);
}

int report_attend(const options *o, const ra_problem *p, const rank_report *reports, int ranks, const char *link, failure *f) {
    if (o->json)
        return report_json(attend_object(o, p, reports, ranks, link), f);
    if (!o->quiet)
        print_table(o, p, reports, ranks, link);
    return 0;
}
