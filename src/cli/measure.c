/* Running and timing the passes. */
#define _POSIX_C_SOURCE 200809L
#include "measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static void print_plan(const run *r) {
    size_t n = ra_plan_print(r->plan, NULL, 0) + 1;
    char *text = malloc(n);
    if (!text)
        return;
    ra_plan_print(r->plan, text, n);
    fputs(text, stderr);
    free(text);
}

int run_open(run *r, worker *w, tensors *t) {
    memset(r, 0, sizeof *r);
    r->w = w;
    r->t = t;
    t->problem.threads = w->threads;
    tensors_plan_arrays(t);
    fail_library(&w->failure, ra_plan_create(w->comm, &t->problem, &r->plan), "plan");
    if (worker_agree(w))
        return -1;
    if (w->rank == 0 && w->o->verbose)
        print_plan(r);
    ra_plan_info info;
    ra_plan_query(r->plan, &info);
    size_t bytes = ra_plan_workspace_bytes(r->plan);
    if (posix_memalign(&r->workspace, 64, bytes + 64)) {
        r->workspace = NULL;
        fail_memory(&w->failure, (int64_t)bytes, "the workspace");
    }
    r->report.workspace_bytes = (int64_t)bytes;
    r->report.plan_bytes = info.plan_bytes;
    r->report.threads = w->threads;
    return worker_agree(w);
}

void run_close(run *r) {
    ra_plan_destroy(r->plan);
    free(r->workspace);
    r->plan = NULL;
    r->workspace = NULL;
}

int64_t resident_bytes(void) {
    /* Not getrusage first: its maximum includes what the process was before exec, which may be a large parent. */
    char line[128];
    long long kilobytes = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && kilobytes < 0 && fgets(line, sizeof line, file))
        if (strncmp(line, "VmHWM:", 6) == 0)
            kilobytes = strtoll(line + 6, NULL, 10);
    if (file)
        fclose(file);
    struct rusage usage;
    if (kilobytes < 0)
        kilobytes = getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_maxrss : 0;
    return kilobytes * 1024;
}

double worker_slowest(worker *w, double seconds) {
    double *all = malloc((size_t)w->size * sizeof *all), most = 0;
    if (!all) {
        ra_comm_fail(w->comm, RA_ERR_MEMORY, "out of memory");
        fail_memory(&w->failure, w->size * 8, "the list of ranks");
        return -1;
    }
    int failed = worker_gather(w, &seconds, all, sizeof seconds, "waiting for the other ranks");
    for (int r = 0; r < w->size && !failed; r++)
        most = all[r] > most ? all[r] : most;
    free(all);
    return failed ? -1 : most;
}

static int one_pass(run *r, int backward, pass_report *report, double *seconds) {
    ra_stats stats = {0};
    ra_attention_args args = tensors_args(r->t);
    args.stats = &stats;
    ra_status s = backward ? ra_attention_backward(r->plan, &args, r->workspace) : ra_attention_forward(r->plan, &args, r->workspace);
    fail_library(&r->w->failure, s, backward ? "backward" : "forward");
    if (worker_agree(r->w))
        return -1;
    *report = (pass_report){stats.seconds, stats.seconds_transfer, stats.seconds_exposed, stats.pairs, stats.bytes_sent};
    *seconds = worker_slowest(r->w, stats.seconds);
    return *seconds < 0 ? -1 : 0;
}

typedef struct timed {
    double seconds; /* the slowest rank's, the same on every rank */
    pass_report report;
} timed;

static int by_seconds(const void *a, const void *b) {
    const timed *x = a, *y = b;
    return (x->seconds > y->seconds) - (x->seconds < y->seconds);
}

static int repeat_pass(run *r, int backward, int repeat, int median, pass_report *report) {
    timed *all = calloc((size_t)repeat, sizeof *all);
    if (!all)
        fail_memory(&r->w->failure, repeat * (int64_t)sizeof *all, "the list of times");
    int result = worker_agree(r->w);
    for (int i = 0; i < repeat && !result; i++)
        result = one_pass(r, backward, &all[i].report, &all[i].seconds);
    if (!result) {
        qsort(all, (size_t)repeat, sizeof *all, by_seconds);
        *report = all[median ? repeat / 2 : 0].report;
    }
    free(all);
    return result;
}

/* All ranks at once, and nobody computing meanwhile. Collective. */
static int measure_machine(worker *w, double (*measure)(int threads, double seconds), double seconds, double *result) {
    const struct timespec as_long = {.tv_nsec = (long)(seconds * 1e9)};
    if (worker_agree(w))
        return -1;
    if (w->peak_threads)
        *result = measure(w->peak_threads, seconds);
    else
        nanosleep(&as_long, NULL); /* waiting for the others may spin, and take from them what they measure */
    return worker_agree(w);
}

int run_passes(run *r, int repeat, int median, double peak_seconds) {
    rank_report *x = &r->report;
    if (peak_seconds > 0 && measure_machine(r->w, ra_measure_peak, peak_seconds, &x->peak_before))
        return -1;
    if (repeat_pass(r, 0, repeat, median, &x->forward))
        return -1;
    if (r->t->problem.backward && repeat_pass(r, 1, repeat, median, &x->backward))
        return -1;
    if (peak_seconds > 0 && measure_machine(r->w, ra_measure_peak, peak_seconds, &x->peak_after))
        return -1;
    x->resident_bytes = resident_bytes();
    return 0;
}

int run_bandwidth(run *r, double seconds) {
    double bandwidth = 0;
    if (measure_machine(r->w, ra_measure_bandwidth, seconds, &bandwidth))
        return -1;
    if (bandwidth > r->report.bandwidth)
        r->report.bandwidth = bandwidth;
    return 0;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static void slower(double *most, double seconds) {
    if (seconds > *most)
        *most = seconds;
}

summary summarize(const rank_report *of, int ranks, const ra_problem *p) {
    summary s = {0};
    double transfer = 0, exposed = 0, before = 0, after = 0;
    for (int r = 0; r < ranks; r++) {
        const pass_report *f = &of[r].forward, *b = &of[r].backward;
        slower(&s.seconds_forward, f->seconds);
        slower(&s.seconds_backward, b->seconds);
        s.flops_forward += f->pairs * (double)(2 * p->D + 2 * p->Dv);
        s.flops_backward += b->pairs * (double)(6 * p->D + 4 * p->Dv);
        transfer += f->transfer + b->transfer;
        exposed += f->exposed + b->exposed;
        before += of[r].peak_before;
        after += of[r].peak_after;
        s.bandwidth_gbytes += of[r].bandwidth;
        s.bytes_sent = larger(s.bytes_sent, f->bytes_sent + b->bytes_sent);
        s.bytes_forward = larger(s.bytes_forward, f->bytes_sent);
        s.bytes_backward = larger(s.bytes_backward, b->bytes_sent);
        s.workspace_bytes = larger(s.workspace_bytes, of[r].workspace_bytes);
        s.plan_bytes = larger(s.plan_bytes, of[r].plan_bytes);
        s.resident_bytes = larger(s.resident_bytes, of[r].resident_bytes);
        s.threads = (int)larger(s.threads, of[r].threads);
    }
    s.peak_gflops = before > after ? before : after;
    /* Two transfers at a time may both be waited for, then more is exposed than one of them took. */
    s.overlap = transfer <= 0 ? 1 : exposed < transfer ? 1 - exposed / transfer : 0;
    return s;
}
