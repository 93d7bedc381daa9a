/* ringattn bench: how fast, and how near to what the machine could do. Random tensors, each rank only its share.
 *
 * A shape is a list of cases (shapes.h). Cases that are compared take turns, A B A B, so that whatever else happens on the machine happens
 * to all of them; a figure is the median of the rounds, a ratio the median of each round's ratio. */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "measure.h"
#include "report.h"
#include "sample.h"
#include "shapes.h"

enum { REPEAT = 5 };

typedef struct bench {
    crew *c;
    const options *o;
    json_t *list; /* NULL: a table */
    int reads;    /* the header last printed was that of cases that read */
    int titled;   /* any was */
    /* The visit at hand: */
    const bench_case *at;
    int turns; /* the case is one of several that take turns */
    tensors shape;
    rank_report *reports; /* of all ranks */
} bench;

/* ---- one visit of one case ---- */

/* Token i of S is in segment i N / S. */
static void fill_ids(tensors *t, slot s, int64_t S, int64_t segments) {
    const ra_problem *p = &t->problem;
    const int64_t n = tensors_local_tokens(t, s);
    for (int64_t b = 0; b < p->B; b++)
        for (int64_t i = 0; i < n; i++)
            ((int32_t *)t->data[s])[b * n + i] = (int32_t)(ra_shard_position(p->layout, S, t->P, t->r, i) * segments / S);
}

static int fill(tensors *t, int rank, int64_t segments, failure *f) {
    const ra_problem *p = &t->problem;
    for (slot s = Q; s < SLOTS; s++) {
        const int ids = s == Q_IDS || s == KV_IDS;
        const int gradient = s == DOUT || s == DQ || s == DK || s == DV;
        if (!(s <= V || s == OUT || s == LSE || (ids && segments) || (gradient && p->backward)))
            continue;
        if (tensors_allocate(t, s, s <= DOUT ? p->dtype : RA_F32, f))
            return -1;
        if (s <= DOUT)
            sample_fill(t->data[s], tensors_elements(t, s), p->dtype, (uint64_t)(rank * SLOTS + (int)s));
        else if (ids)
            fill_ids(t, s, s == Q_IDS ? p->Sq : p->Skv, segments);
    }
    return 0;
}

/* How often to time the passes of a visit, one run of which took `seconds`: short ones more often. */
static int passes_of_a_turn(double seconds) {
    const double enough = 0.1;
    const int most = 15;
    return seconds * most < enough ? most : 1 + (int)(enough / seconds);
}

static int measure(const bench *b, worker *w, run *r, tensors *t) {
    const double peak_seconds = b->turns ? 0.1 : 0.25;
    int repeat = b->o->repeat ? (int)b->o->repeat : REPEAT;
    /* The first run warms caches, pages and threads up and is not counted. */
    if (run_open(r, w, t) || run_passes(r, 1, 0, 0))
        return -1;
    if (b->turns) {
        const double seconds = worker_slowest(w, r->report.forward.seconds + r->report.backward.seconds);
        if (seconds < 0)
            return -1;
        repeat = passes_of_a_turn(seconds);
    }
    if (b->at->reads && run_bandwidth(r, 2 * peak_seconds))
        return -1;
    if (run_passes(r, repeat, 1, peak_seconds))
        return -1;
    return b->at->reads ? run_bandwidth(r, 2 * peak_seconds) : 0;
}

static void visit_body(worker *w, void *user) {
    bench *b = user;
    tensors t = b->shape;
    run r = {0};
    t.P = w->size;
    t.r = w->rank;
    fill(&t, w->rank, b->at->o.segments, &w->failure);
    if (worker_agree(w) == 0 && measure(b, w, &r, &t) == 0) {
        rank_report *all = calloc((size_t)w->size, sizeof *all);
        if (!all)
            fail_memory(&w->failure, w->size * (int64_t)sizeof *all, "the report");
        if (worker_agree(w) == 0 && worker_gather(w, &r.report, all, sizeof *all, "gathering the report") == 0 && w->guards)
            memcpy(b->reports, all, (size_t)w->size * sizeof *all);
        free(all);
    }
    run_close(&r);
    tensors_free(&t);
}

/* The first of several processes does the work of all on all their cores, and the others wait. */
static void lone_body(worker *w, void *user) {
    if (w->rank == 0) {
        worker alone = {.o = w->o, .size = 1, .guards = 1, .threads = w->threads * w->size, .peak_threads = w->threads * w->size};
        if (fail_library(&w->failure, ra_comm_create_self(NULL, &alone.comm), "one rank alone") == 0) {
            visit_body(&alone, user);
            w->failure = alone.failure;
            free(alone.all);
            ra_comm_destroy(alone.comm);
        }
    }
    worker_agree(w);
}

/* Exit status; *figures on the process that speaks. */
static int visit(bench *b, const bench_case *at, const ra_local_options *link, summary *figures) {
    failure f = {0};
    crew *c = b->c;
    c->o = &at->o;
    c->link = link;
    b->at = at;
    const int ranks = at->alone ? 1 : crew_ranks(c);
    b->reports = calloc((size_t)ranks, sizeof *b->reports);
    int status;
    if (!b->reports)
        fail_memory(&f, ranks * (int64_t)sizeof *b->reports, "the report");
    if (f.status || sample_shape(&at->o, &b->shape, &f)) {
        status = crew_speaks(c) ? failure_print(&f) : f.status;
    } else {
        b->shape.problem.backward = !at->forward_only;
        status = crew_run(c, at->alone ? lone_body : visit_body, b);
    }
    if (!status)
        *figures = summarize(b->reports, ranks, &b->shape.problem);
    free(b->reports);
    c->o = b->o;
    c->link = NULL;
    return status;
}

/* The passes differ in what they send, so each has a link of its own, measured against the fast ring's steps. */
static int visit_slowly(bench *b, const bench_case *at, const summary *fast, summary *figures) {
    const double ranks = crew_ranks(b->c) > 1 ? crew_ranks(b->c) : (double)at->o.ring, per_transfer = ranks / (ranks - 1) / at->slow_share;
    const ra_local_options forward = {.bytes_per_s = per_transfer * (double)fast->bytes_forward / fast->seconds_forward};
    const ra_local_options backward = {.bytes_per_s = per_transfer * (double)fast->bytes_backward / fast->seconds_backward};
    summary second;
    int status = visit(b, at, &forward, figures);
    if (!status)
        status = visit(b, at, &backward, &second);
    if (!status)
        figures->seconds_backward = second.seconds_backward;
    return status;
}

/* ---- figures of all rounds ---- */

static int by_value(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

/* Seconds, and useful operations per second, of one pass or both. */
enum pass { FORWARD, BACKWARD, BOTH };

static double seconds_of(const summary *s, enum pass pass) {
    return (pass == BACKWARD ? 0 : s->seconds_forward) + (pass == FORWARD ? 0 : s->seconds_backward);
}

static double speed_of(const summary *s, enum pass pass) {
    return ((pass == BACKWARD ? 0 : s->flops_forward) + (pass == FORWARD ? 0 : s->flops_backward)) / seconds_of(s, pass);
}

/* What is printed of a case. NaN: it has none. */
typedef struct row {
    summary s;                       /* of the last round, with the most of peak and bandwidth of all */
    double seconds[2];               /* medians */
    double least[2], most[2];        /* of the rounds */
    double gflops[3], ratio[3];      /* by pass */
    double gbytes, percent_of_bytes; /* forward */
} row;

static double storage_bytes(const bench_case *at) {
    const options *o = &at->o;
    const int64_t Dv = o->Dv >= 0 ? o->Dv : o->D, B = o->B >= 0 ? o->B : 1;
    return (double)(B * o->G * (o->Skv >= 0 ? o->Skv : o->S) * (o->D + Dv)) * (double)ra_dtype_size((ra_dtype)o->dtype);
}

/* x [cases][rounds], scratch [rounds]. */
static row row_of(const bench_cases *cases, int at, const summary *x, int rounds, double *scratch) {
    const bench_case *a = &cases->at[at];
    const summary *mine = x + at * rounds;
    row r = {.s = mine[rounds - 1], .gbytes = NAN, .percent_of_bytes = NAN};
    for (int i = 0; i < rounds; i++) {
        r.s.peak_gflops = fmax(r.s.peak_gflops, mine[i].peak_gflops);
        r.s.bandwidth_gbytes = fmax(r.s.bandwidth_gbytes, mine[i].bandwidth_gbytes);
    }
    for (enum pass pass = FORWARD; pass <= BOTH; pass++) {
        if (pass != FORWARD && a->forward_only) {
            r.gflops[pass] = r.ratio[pass] = NAN;
            if (pass == BACKWARD)
                r.seconds[pass] = r.least[pass] = r.most[pass] = NAN;
            continue;
        }
        for (int i = 0; i < rounds; i++)
            scratch[i] = speed_of(&mine[i], pass);
        r.gflops[pass] = median(scratch, rounds) * 1e-9;
        for (int i = 0; i < rounds; i++)
            scratch[i] = a->against < 0 ? NAN : speed_of(&mine[i], pass) / speed_of(&x[a->against * rounds + i], pass);
        r.ratio[pass] = a->against < 0 ? NAN : median(scratch, rounds);
        if (pass == BOTH)
            continue;
        for (int i = 0; i < rounds; i++)
            scratch[i] = seconds_of(&mine[i], pass);
        r.seconds[pass] = median(scratch, rounds);
        r.least[pass] = scratch[0];
        r.most[pass] = scratch[rounds - 1];
    }
    if (a->reads) {
        r.gbytes = storage_bytes(a) / r.seconds[FORWARD] * 1e-9;
        r.percent_of_bytes = 100 * r.gbytes / r.s.bandwidth_gbytes;
    }
    return r;
}

/* ---- printing ---- */

static double percent(const row *r, enum pass pass) {
    return 100 * r->gflops[pass] / r->s.peak_gflops;
}

static json_t *row_object(const char *shape, const bench_cases *cases, int at, const row *r, int ranks, int repeat) {
    const bench_case *a = &cases->at[at];
    const options *o = &a->o;
    json_t *x = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:b, s:s, s:s, s:s, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "shape", a->name, "S",
        (json_int_t)o->S, "H", (json_int_t)o->H, "G", (json_int_t)(o->G >= 0 ? o->G : o->H), "D", (json_int_t)o->D, "Dv",
        (json_int_t)(o->Dv >= 0 ? o->Dv : o->D), "causal", o->causal, "dtype", dtype_name(o->dtype), "layout", layout_name(o->layout),
        "isa", ra_isa(), "ranks", ranks, "threads", r->s.threads, "repeat", repeat, "seconds_forward", json_number(r->seconds[FORWARD]),
        "seconds_backward", json_number(r->seconds[BACKWARD]), "gflops_forward", json_number(r->gflops[FORWARD]), "gflops_backward",
        json_number(r->gflops[BACKWARD]), "peak_gflops", json_number(r->s.peak_gflops), "percent_forward", json_number(percent(r, FORWARD)),
        "percent_backward", json_number(percent(r, BACKWARD)), "overlap", json_number(r->s.overlap));
    json_t *more = json_pack(
        "{s:s, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:s?, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "group", shape, "Sq",
        (json_int_t)(o->Sq >= 0 ? o->Sq : o->S), "segments", (json_int_t)o->segments, "gflops_both", json_number(r->gflops[BOTH]),
        "percent_both", json_number(percent(r, BOTH)), "least_forward", json_number(r->least[FORWARD]), "most_forward",
        json_number(r->most[FORWARD]), "least_backward", json_number(r->least[BACKWARD]), "most_backward", json_number(r->most[BACKWARD]),
        "against", a->against < 0 ? NULL : cases->at[a->against].name, "ratio_forward", json_number(r->ratio[FORWARD]), "ratio_backward",
        json_number(r->ratio[BACKWARD]), "ratio_both", json_number(r->ratio[BOTH]), "slow_share",
        a->slow_share > 0 ? json_real(a->slow_share) : json_null(), "gbytes_forward", json_number(r->gbytes), "bandwidth_gbytes",
        a->reads ? json_number(r->s.bandwidth_gbytes) : json_null(), "percent_bandwidth", json_number(r->percent_of_bytes));
    json_object_update(x, more);
    json_decref(more);
    return x;
}

static void print_header(const bench *b, int reads, int repeat) {
    const int ranks = crew_ranks(b->c);
    if (!b->titled)
        printf("%d rank%s, %s, kernels %s, %s, median of %d\n", ranks, ranks > 1 ? "s" : "", layout_name(b->o->layout), ra_isa(),
               dtype_name(b->o->dtype), repeat);
    printf("%-16s %7s %4s %4s %4s %10s   %9s %9s %6s   ", "shape", "S", "H", "G", "D", "peak", "forward s", "GFLOP/s", "%");
    if (reads)
        printf("%9s %9s %6s   %4s %5s %7s\n", "GB/s", "memory", "%", "type", "ranks", "threads");
    else
        printf("%9s %9s %6s   %6s   %4s %5s %7s   %7s %7s %7s\n", "backw. s", "GFLOP/s", "%", "both %", "type", "ranks", "threads",
               "forward", "backw.", "both");
}

/* A number in its column, or a dash. */
static void print_number(int width, int digits, double x) {
    if (isfinite(x))
        printf("%*.*f", width, digits, x);
    else
        printf("%*s", width, "-");
}

static void print_row(const bench_cases *cases, int at, const row *r, int ranks) {
    const bench_case *a = &cases->at[at];
    const options *o = &a->o;
    printf("%-16s %7" PRId64 " %4" PRId64 " %4" PRId64 " %4" PRId64 " %10.1f   %9.4f %9.2f %6.1f   ", a->name, o->S, o->H,
           o->G >= 0 ? o->G : o->H, o->D, r->s.peak_gflops, r->seconds[FORWARD], r->gflops[FORWARD], percent(r, FORWARD));
    if (a->reads) {
        printf("%9.2f %9.2f %6.1f   %4s %5d %7d\n", r->gbytes, r->s.bandwidth_gbytes, r->percent_of_bytes, dtype_name(o->dtype), ranks,
               r->s.threads);
        return;
    }
    print_number(9, 4, r->seconds[BACKWARD]);
    print_number(10, 2, r->gflops[BACKWARD]);
    print_number(7, 1, percent(r, BACKWARD));
    print_number(9, 1, percent(r, BOTH));
    printf("   %4s %5d %7d", dtype_name(o->dtype), ranks, r->s.threads);
    if (a->against >= 0) {
        printf("  ");
        for (enum pass pass = FORWARD; pass <= BOTH; pass++)
            print_number(8, 3, r->ratio[pass]);
        printf(" x %s", cases->at[a->against].name);
    }
    printf("\n");
}

static void report(bench *b, const char *shape, const bench_cases *cases, const summary *x, int rounds, double *scratch) {
    const int repeat = cases->rounds ? cases->rounds : b->o->repeat ? (int)b->o->repeat : REPEAT;
    for (int i = 0; i < cases->n; i++) {
        const bench_case *a = &cases->at[i];
        const row r = row_of(cases, i, x, rounds, scratch);
        const int ranks = a->alone ? 1 : b->c->size > 1 ? b->c->size : a->o.ring ? (int)a->o.ring : 1;
        if (b->list) {
            json_array_append_new(b->list, row_object(shape, cases, i, &r, ranks, repeat));
            continue;
        }
        if (b->o->quiet)
            continue;
        if (!b->titled || b->reads != a->reads)
            print_header(b, a->reads, repeat);
        b->titled = 1;
        b->reads = a->reads;
        print_row(cases, i, &r, ranks);
    }
    fflush(stdout);
}

/* ---- shapes ---- */

static int run_cases(bench *b, const char *shape, const bench_cases *cases) {
    const int rounds = cases->rounds ? cases->rounds : 1;
    summary *x = calloc((size_t)(cases->n * rounds), sizeof *x);
    double *scratch = calloc((size_t)rounds, sizeof *scratch);
    failure f = {0};
    int status = 0;
    if (!x || !scratch) {
        fail_memory(&f, cases->n * rounds * (int64_t)sizeof *x, "the figures");
        status = failure_print(&f);
    }
    b->turns = cases->rounds > 0;
    for (int round = 0; round < rounds && !status; round++)
        for (int i = 0; i < cases->n && !status; i++) {
            const bench_case *a = &cases->at[i];
            summary *mine = &x[i * rounds + round];
            status = a->slow_share > 0 ? visit_slowly(b, a, &x[a->against * rounds + round], mine) : visit(b, a, NULL, mine);
        }
    if (!status && crew_speaks(b->c))
        report(b, shape, cases, x, rounds, scratch);
    free(x);
    free(scratch);
    return status;
}

/* Sizes without a name. */
static int run_given(bench *b) {
    bench_cases cases = {.n = 1};
    bench_case *x = &cases.at[0];
    *x = (bench_case){.name = "given", .o = *b->o, .against = -1};
    x->o.H = x->o.H >= 0 ? x->o.H : 4;
    return run_cases(b, "given", &cases);
}

static int run_shapes(bench *b, failure *f) {
    const options *o = b->o;
    int status = 0, all = 0, n = shapes_count();
    int *chosen = calloc((size_t)n, sizeof *chosen);
    bench_cases *cases = calloc(1, sizeof *cases);
    if (!chosen || !cases)
        status = fail_memory(f, (int64_t)sizeof *cases, "the list of cases");
    for (int i = 0; i < o->operand_count && !status; i++) {
        int at = -1;
        if (strcmp(o->operands[i], "all") == 0)
            all = 1;
        else if ((at = shapes_find(o->operands[i], f)) < 0)
            status = f->status;
        else
            chosen[at] = 1;
    }
    for (int i = 0; i < n && !status; i++) {
        if (!all && !chosen[i] && (o->operand_count || !shapes_by_default(i)))
            continue;
        status = shapes_cases(i, o, b->c, cases, f) ? f->status : run_cases(b, shapes_name(i), cases);
    }
    free(chosen);
    free(cases);
    return status;
}

int command_bench(const options *o) {
    failure f = {0};
    crew c = {0};
    bench b = {.c = &c, .o = o};
    if (o->list) {
        shapes_list();
        return 0;
    }
    int status = crew_open(&c, o, &f) ? f.status : 0;
    b.list = o->json && !status ? json_array() : NULL;
    if (!status)
        status = o->S >= 0 && o->D >= 0 && o->operand_count == 0 ? run_given(&b) : run_shapes(&b, &f);
    if (!status && b.list && crew_speaks(&c))
        report_json(json_pack("{s:O}", "results", b.list), &f);
    if (f.status && crew_speaks(&c))
        status = failure_print(&f);
    json_decref(b.list);
    crew_close(&c);
    return status;
}
