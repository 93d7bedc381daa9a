/* Runs the passes of a plan, several times if asked, and gathers what the ranks measured. Used by attend, verify and bench. */
#ifndef RINGATTN_MEASURE_H
#define RINGATTN_MEASURE_H

#include "crew.h"
#include "tensors.h"

typedef struct pass_report {
    double seconds, transfer, exposed, pairs;
    int64_t bytes_sent;
} pass_report;

/* One rank's share of the report: of the repetition that counts. */
typedef struct rank_report {
    pass_report forward, backward;
    int64_t workspace_bytes, plan_bytes, resident_bytes;
    double peak_before, peak_after; /* GFLOP/s while all ranks measure at once */
    double bandwidth;               /* GB/s likewise; 0: not measured */
    int threads;
} rank_report;

typedef struct run {
    worker *w;
    tensors *t;
    ra_plan *plan;
    void *workspace;
    rank_report report;
} run;

/* Plans (collective) and makes the workspace. Ends with run_close also after a failure; failures are agreed on. */
int run_open(run *r, worker *w, tensors *t);
void run_close(run *r);

/* The passes, `repeat` times: the fastest, by its slowest rank, counts; with `median` the median. The backward when the problem asks for
 * it. Before and after, the FMA peak is measured for peak_seconds, less than 1; 0: not at all. Collective, failures agreed on. */
int run_passes(run *r, int repeat, int median, double peak_seconds);

/* The speed of reading memory, by all ranks at once, for `seconds`; the most measured so far counts. Collective, failures agreed on. */
int run_bandwidth(run *r, double seconds);

/* The largest of all ranks' seconds, on every rank; negative after a failure. Collective. */
double worker_slowest(worker *w, double seconds);

int64_t resident_bytes(void); /* the most this process has had in memory */

/* What the figures of all ranks come to. */
typedef struct summary {
    int threads; /* per rank, the most */
    double seconds_forward, seconds_backward;
    double flops_forward, flops_backward; /* sums over ranks */
    double peak_gflops, overlap, bandwidth_gbytes;
    int64_t bytes_sent, workspace_bytes, plan_bytes, resident_bytes; /* the largest of any rank */
    int64_t bytes_forward, bytes_backward;                           /* sent, likewise */
} summary;

summary summarize(const rank_report *of, int ranks, const ra_problem *p);

#endif
