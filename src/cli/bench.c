/* ringattn bench: how fast, and how near to what the machine could do. Random tensors, each rank only its share. */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "crew.h"
#include "measure.h"
#include "report.h"
#include "sample.h"

static const struct {
    const char *name;
    int64_t S, H, G, D;
    int causal, by_default;
} shapes[] = {
    {"d64", 4096, 4, 4, 64, 0, 1},          {"d128", 4096, 4, 4, 128, 0, 1}, {"d64-causal", 4096, 4, 4, 64, 1, 1},
    {"d128-causal", 4096, 4, 4, 128, 1, 1}, {"gqa", 4096, 8, 2, 64, 1, 1},   {"long", 32768, 1, 1, 64, 1, 0},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0], REPEAT = 5 };

typedef struct bench {
    options o;  /* of the shape at hand */
    int repeat; /* how often each pass runs */
    tensors shape;
    rank_report *reports; /* of all ranks */
} bench;

static int fill(tensors *t, int rank, failure *f) {
    const ra_problem *p = &t->problem;
    for (slot s = Q; s < SLOTS; s++) {
        if (s == DLSE || s == BIAS || s == Q_IDS || s == KV_IDS)
            continue;
        if (tensors_allocate(t, s, s <= DOUT ? p->dtype : RA_F32, f))
            return -1;
        if (s <= DOUT)
            sample_fill(t->data[s], tensors_elements(t, s), p->dtype, (uint64_t)(rank * SLOTS + (int)s));
    }
    return 0;
}

static void bench_body(worker *w, void *user) {
    bench *b = user;
    tensors t = b->shape;
    run r = {0};
    t.P = w->size;
    t.r = w->rank;
    fill(&t, w->rank, &w->failure);
    /* The first run warms caches, pages and threads up and is not counted. */
    if (worker_agree(w) == 0 && run_open(&r, w, &t) == 0 && run_passes(&r, 1, 0, 0) == 0 && run_passes(&r, b->repeat, 1, 0.25) == 0) {
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

static json_t *shape_object(const bench *b, const char *name, const summary *s, int ranks) {
    const ra_problem *p = &b->shape.problem;
    double forward = s->flops_forward * 1e-9 / s->seconds_forward, backward = s->flops_backward * 1e-9 / s->seconds_backward;
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:b, s:s, s:s, s:s, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "shape",
                     name, "S", (json_int_t)p->Sq, "H", (json_int_t)p->H, "G", (json_int_t)p->G, "D", (json_int_t)p->D, "Dv",
                     (json_int_t)p->Dv, "causal", p->mask.causal, "dtype", dtype_name(p->dtype), "layout", layout_name(p->layout), "isa",
                     ra_isa(), "ranks", ranks, "threads", s->threads, "repeat", b->repeat, "seconds_forward",
                     json_number(s->seconds_forward), "seconds_backward", json_number(s->seconds_backward), "gflops_forward",
                     json_number(forward), "gflops_backward", json_number(backward), "peak_gflops", json_number(s->peak_gflops),
                     "percent_forward", json_number(100 * forward / s->peak_gflops), "percent_backward",
                     json_number(100 * backward / s->peak_gflops), "overlap", json_number(s->overlap));
}

static void print_header(const bench *b, int ranks) {
    printf("%d rank%s, %s, kernels %s, %s, median of %d\n", ranks, ranks > 1 ? "s" : "", layout_name(b->o.layout), ra_isa(),
           dtype_name(b->o.dtype), b->repeat);
    printf("%-12s %7s %4s %4s %4s %10s   %9s %9s %6s   %9s %9s %6s\n", "shape", "S", "H", "G", "D", "peak", "forward s", "GFLOP/s", "%",
           "backw. s", "GFLOP/s", "%");
}

static void print_shape(const bench *b, const char *name, const summary *s) {
    const ra_problem *p = &b->shape.problem;
    double forward = s->flops_forward * 1e-9 / s->seconds_forward, backward = s->flops_backward * 1e-9 / s->seconds_backward;
    printf("%-12s %7" PRId64 " %4" PRId64 " %4" PRId64 " %4" PRId64 " %10.1f   %9.4f %9.2f %6.1f   %9.4f %9.2f %6.1f\n", name, p->Sq, p->H,
           p->G, p->D, s->peak_gflops, s->seconds_forward, forward, 100 * forward / s->peak_gflops, s->seconds_backward, backward,
           100 * backward / s->peak_gflops);
    fflush(stdout);
}

/* The options' sizes go before the shape's. */
static void apply_shape(options *o, int i) {
    o->S = o->S >= 0 ? o->S : shapes[i].S;
    if (o->H < 0) {
        o->H = shapes[i].H;
        o->G = o->G >= 0 ? o->G : shapes[i].G;
    }
    o->D = o->D >= 0 ? o->D : shapes[i].D;
    o->causal |= shapes[i].causal && !o->causal_block;
}

static int bench_shape(bench *b, crew *c, const char *name, json_t *list) {
    failure f = {0};
    int ranks = crew_ranks(c);
    b->reports = calloc((size_t)ranks, sizeof *b->reports);
    if (!b->reports)
        fail_memory(&f, ranks * (int64_t)sizeof *b->reports, "the report");
    if (f.status || sample_shape(&b->o, &b->shape, &f)) {
        free(b->reports);
        return crew_speaks(c) ? failure_print(&f) : f.status;
    }
    int status = crew_run(c, bench_body, b);
    if (status == 0 && crew_speaks(c)) {
        summary s = summarize(b->reports, ranks, &b->shape.problem);
        if (list)
            json_array_append_new(list, shape_object(b, name, &s, ranks));
        else if (!b->o.quiet)
            print_shape(b, name, &s);
    }
    free(b->reports);
    return status;
}

static int find_shape(const char *name, failure *f) {
    const char *names[SHAPES + 1] = {0};
    for (int i = 0; i < SHAPES; i++) {
        names[i] = shapes[i].name;
        if (strcmp(names[i], name) == 0)
            return i;
    }
    const char *near = nearest_name(name, names);
    return fail(f, EXIT_USAGE, "unknown shape %s, did you mean %s? (d64, d128, d64-causal, d128-causal, gqa, long)", name,
                near ? near : names[0]);
}

static int bench_all(const options *o, crew *c, json_t *list, failure *f) {
    bench b = {.repeat = o->repeat ? (int)o->repeat : REPEAT};
    int chosen[SHAPES] = {0}, status = 0, custom = o->S >= 0 && o->D >= 0 && o->operand_count == 0;
    for (int i = 0; i < o->operand_count; i++) {
        int at = find_shape(o->operands[i], f);
        if (at < 0)
            return f->status;
        chosen[at] = 1;
    }
    b.o = *o;
    if (crew_speaks(c) && !list && !o->quiet)
        print_header(&b, crew_ranks(c));
    if (custom) {
        b.o.H = o->H >= 0 ? o->H : 4;
        return bench_shape(&b, c, "given", list);
    }
    for (int i = 0; i < SHAPES && !status; i++) {
        b.o = *o;
        apply_shape(&b.o, i);
        if (chosen[i] || (o->operand_count == 0 && shapes[i].by_default))
            status = bench_shape(&b, c, shapes[i].name, list);
    }
    return status;
}

int command_bench(const options *o) {
    failure f = {0};
    crew c = {0};
    int status = crew_open(&c, o, &f) ? f.status : 0;
    json_t *list = o->json && !status ? json_array() : NULL;
    if (!status)
        status = bench_all(o, &c, list, &f);
    if (!status && list && crew_speaks(&c))
        report_json(json_pack("{s:O}", "results", list), &f);
    if (f.status && crew_speaks(&c))
        status = failure_print(&f);
    json_decref(list);
    crew_close(&c);
    return status;
}
