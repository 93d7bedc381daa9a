/* ringattn verify: the library against the fp64 oracle.
 *
 * Every process holds the whole problem (these are small) and evaluates the oracle; the ranks run the ring on their shares and compare
 * their own rows. What is bounded is max |difference| of a tensor on a rank, as a share of the largest value of the whole tensor. */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "crew.h"
#include "draw.h"
#include "input.h"
#include "measure.h"
#include "oracle.h"
#include "rank_io.h"
#include "report.h"
#include "sample.h"

static const slot compared[] = {OUT, LSE, DQ, DK, DV, ROW_MAX, DBIAS, DSINKS};
enum { COMPARED = sizeof compared / sizeof compared[0], REASONS = 32 };

/* max |difference| of one tensor on one rank; NaN where one of the two is not finite and the other is not the same. */
typedef struct errors {
    double of[COMPARED];
} errors;

/* Why problems were refused, and how many. */
typedef struct refusals {
    int problems, reasons;
    struct {
        char text[200];
        int problems;
    } of[REASONS]; /* the last one: all others */
} refusals;

typedef struct verification {
    const options *o;
    tensors whole;
    int counts_refusals; /* a problem that is refused is counted; else it is a failure */
    refusals refused;
    int problems, exact;
    int against_file;                  /* the references are those of the file, else the oracle's */
    const double *reference[COMPARED]; /* (b, t, h, d) order; lse [B,H,Sq]; NULL: none */
    double bound[COMPARED];
    errors *rank; /* [P], filled by the ranks of this process */
    json_t *list; /* with --json: what was found */
    int checks, failures;
} verification;

static void copy_shape(const tensors *whole, tensors *mine, const worker *w) {
    *mine = *whole;
    mine->P = w->size;
    mine->r = w->rank;
    memset(mine->data, 0, sizeof mine->data);
}

static int is_wanted(const options *o, const ra_problem *p, slot s) {
    if (s == DBIAS || s == DSINKS)
        return p->backward && (s == DBIAS ? o->dbias : o->dsinks);
    return s == ROW_MAX ? o->row_max : s == OUT || s == LSE || p->backward;
}

static int allocate_share(const options *o, const tensors *whole, tensors *mine, failure *f) {
    for (slot s = 0; s < OUT; s++) {
        if (!whole->data[s])
            continue;
        if (tensors_allocate(mine, s, whole->dtype[s], f))
            return -1;
        tensors_gather(whole, mine, s);
    }
    for (int i = 0; i < COMPARED; i++)
        if (is_wanted(o, &mine->problem, compared[i]) && tensors_allocate(mine, compared[i], RA_F32, f))
            return -1;
    return 0;
}

static double difference(double got, double want) {
    if (got == want || (isnan(got) && isnan(want)))
        return 0;
    return fabs(got - want);
}

/* A NaN must not lose against a number. */
static double worse(double a, double b) {
    return isnan(a) || a > b ? a : b;
}

/* One number per query. */
static double compare_rows(const tensors *mine, slot s, const double *reference) {
    const ra_problem *p = &mine->problem;
    int64_t n = tensors_local_tokens(mine, s);
    const float *x = mine->data[s];
    double most = 0;
    for (int64_t outer = 0; outer < p->B * p->H; outer++)
        for (int64_t t = 0; t < n; t++) {
            int64_t position = ra_shard_position(p->layout, p->Sq, mine->P, mine->r, t);
            most = worse(difference(x[outer * n + t], reference[outer * p->Sq + position]), most);
        }
    return most;
}

/* Every element of a tensor that is [outer][tokens][width] here and there. */
static double compare_runs(const tensors *mine, slot s, const double *reference) {
    rows x = tensors_rows(mine, s);
    const float *got = mine->data[s];
    int64_t n = tensors_local_tokens(mine, s), width = x.bytes / (int64_t)sizeof *got;
    double most = 0;
    for (int64_t t = 0, position, length; t < n; t += length) {
        length = tensors_run(mine, s, t, &position);
        for (int64_t o = 0; o < x.outer; o++)
            for (int64_t e = 0; e < length * width; e++)
                most = worse(difference(got[(o * n + t) * width + e], reference[(o * x.tokens + position) * width + e]), most);
    }
    return most;
}

static double compare(const tensors *mine, slot s, const double *reference) {
    if (tensors_is_row(s))
        return compare_rows(mine, s, reference);
    if (s == DBIAS || s == DSINKS)
        return compare_runs(mine, s, reference);
    const ra_problem *p = &mine->problem;
    int64_t shape[4], n = tensors_local_tokens(mine, s);
    tensors_shape(mine, s, shape);
    int token = mine->order == ORDER_BSHD ? 1 : 2;
    int64_t S = shape[token], heads = shape[3 - token], width = shape[3];
    ra_tensor view = tensors_view(mine, s);
    double most = 0;
    for (int64_t b = 0; b < p->B; b++)
        for (int64_t t = 0; t < n; t++) {
            int64_t position = ra_shard_position(p->layout, S, mine->P, mine->r, t);
            const double *want = reference + (b * S + position) * heads * width;
            for (int64_t h = 0; h < heads; h++)
                for (int64_t d = 0; d < width; d++)
                    most = worse(difference(oracle_load(&view, b, t, h, d), want[h * width + d]), most);
        }
    return most;
}

/* Runs the passes that the problem has, and keeps the larger errors. */
static int run_and_note(const verification *v, worker *w, tensors *mine, errors *e) {
    run r = {0};
    const int failed = run_open(&r, w, mine) || run_passes(&r, 1, 0, 0);
    for (int i = 0; i < COMPARED && !failed; i++)
        if (v->reference[i] && is_wanted(v->o, &mine->problem, compared[i]))
            e->of[i] = worse(compare(mine, compared[i], v->reference[i]), e->of[i]);
    run_close(&r);
    return failed;
}

static void verify_body(worker *w, void *user) {
    verification *v = user;
    tensors mine;
    errors e = {{0}};
    const int wanted = v->whole.problem.backward;
    copy_shape(&v->whole, &mine, w);
    allocate_share(v->o, &v->whole, &mine, &w->failure);
    int failed = worker_agree(w);
    /* Without a backward a plan may choose other kernels: both kinds are for verification. */
    for (mine.problem.backward = 0; mine.problem.backward <= wanted && !failed; mine.problem.backward++)
        failed = run_and_note(v, w, &mine, &e);
    if (!failed) {
        /* Threads write what is theirs; processes need everybody's. */
        if (w->size > 1 && strcmp(ra_comm_kind(w->comm), "local") != 0)
            worker_gather(w, &e, v->rank, sizeof e, "gathering the errors");
        else
            v->rank[w->rank] = e;
        worker_agree(w);
    }
    tensors_free(&mine);
}

static double largest(const double *x, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(x[i]) && fabs(x[i]) > most)
            most = fabs(x[i]);
    return most;
}

static double largest_of(const tensors *t, slot s) {
    int64_t shape[4];
    double most = 0;
    if (!t->data[s])
        return 0;
    tensors_shape(t, s, shape);
    ra_tensor dense = ra_tensor_bshd(t->data[s], t->dtype[s], 1, 1, tensors_elements(t, s));
    for (int64_t i = 0; i < tensors_elements(t, s); i++) {
        double x = fabs(oracle_load(&dense, 0, 0, 0, i));
        most = isfinite(x) && x > most ? x : most;
    }
    return most;
}

/* The size of the terms that a gradient is a sum of. It matters where they cancel: with a single key dq is 0 but for rounding. The many
 * terms of a sum over queries and heads count by the root of their number. */
static double size_of_terms(const verification *v, slot s) {
    const ra_problem *p = &v->whole.problem;
    double scale = isnan(p->scale) ? 1 / sqrt((double)p->D) : fabs(p->scale);
    double kept = p->dropout < 1 ? 1 / (1 - p->dropout) : 0;
    double ds = kept * largest_of(&v->whole, DOUT) * largest_of(&v->whole, V) * sqrt((double)p->Dv) + largest_of(&v->whole, DLSE);
    if (s == DBIAS && v->whole.data[BIAS])
        return ds * sqrt((double)(p->B * p->H * p->Sq * p->Skv) / (double)(tensors_elements(&v->whole, BIAS) + 1));
    if (s == DSINKS)
        return ds * sqrt((double)(p->B * p->Sq));
    if (s == DQ)
        return scale * ds * largest_of(&v->whole, K);
    return s == DK ? scale * ds * largest_of(&v->whole, Q) : 0;
}

static void set_bounds(verification *v) {
    static const double by_type[] = {1e-5, 8e-3, 1e-3};
    double tolerance = v->against_file ? 1e-5 : by_type[v->whole.problem.dtype];
    if (!isnan(v->o->tolerance))
        tolerance = v->o->tolerance;
    for (int i = 0; i < COMPARED; i++) {
        if (!v->reference[i])
            continue;
        double size = largest(v->reference[i], tensors_elements(&v->whole, compared[i]));
        double terms = 1e-2 * size_of_terms(v, compared[i]); /* of these an ulp of fp32 */
        v->bound[i] = tolerance * (size > terms ? size : terms);
        if (tensors_is_row(compared[i])) /* a logarithm: its error does not shrink with it */
            v->bound[i] = tolerance * (size > 1 ? size : 1);
    }
}

static json_t *result_object(const verification *v, int rank, int i, int failed) {
    return json_pack("{s:i, s:s, s:s, s:o, s:o, s:b}", "rank", rank, "tensor", slot_name(compared[i]), "against",
                     v->against_file ? "file" : "oracle", "error", json_number(v->rank[rank].of[i]), "bound", json_number(v->bound[i]),
                     "ok", !failed);
}

/* Prints the errors of all ranks; brief: only those above their bound. Returns how many are. */
static int print_errors(verification *v, int ranks, int brief) {
    int failures = 0;
    if (!brief && !v->list)
        printf("%-6s %-6s %12s %12s  against %s\n", "rank", "tensor", "max error", "bound", v->against_file ? "the file" : "fp64");
    for (int r = 0; r < ranks; r++)
        for (int i = 0; i < COMPARED; i++) {
            if (!v->reference[i])
                continue;
            double error = v->rank[r].of[i];
            int failed = !(error <= v->bound[i]);
            failures += failed;
            v->checks++;
            if (v->list && (!brief || failed))
                json_array_append_new(v->list, result_object(v, r, i, failed));
            if (!v->list && (!brief || failed))
                printf("%-6d %-6s %12.3g %12.3g%s\n", r, slot_name(compared[i]), error, v->bound[i], failed ? "  ABOVE" : "");
        }
    v->failures += failures;
    return failures;
}

static void set_references(verification *v, const oracle_result *x) {
    const double *reference[COMPARED] = {x->out, x->lse, x->dq, x->dk, x->dv, x->row_max, x->dbias, x->dsinks};
    for (int i = 0; i < COMPARED; i++)
        v->reference[i] = is_wanted(v->o, &v->whole.problem, compared[i]) ? reference[i] : NULL;
    set_bounds(v);
}

static int run_oracle(verification *v, oracle_result *result, failure *f) {
    ra_attention_args args = tensors_args(&v->whole);
    oracle_inputs in = {args.q, args.k, args.v, args.bias, args.dout, args.dlse, args.sinks, args.temperature};
    if (oracle_attention(&v->whole.problem, &in, result) != RA_OK)
        return fail_memory(f, 0, "the fp64 reference");
    return 0;
}

static void count_refusal(verification *v, const char *reason) {
    refusals *r = &v->refused;
    int i = 0;
    while (i < r->reasons && i < REASONS - 1 && strcmp(r->of[i].text, reason) != 0)
        i++;
    if (i == r->reasons) {
        r->reasons++;
        snprintf(r->of[i].text, sizeof r->of[i].text, "%.199s", i < REASONS - 1 ? reason : "other reasons");
    }
    r->of[i].problems++;
    r->problems++;
}

/* A run refuses results that the engine does not compute; ra_supports cannot know of them. So the smallest problem is asked for the same,
 * on this rank alone: a refusal in the ring would end it. */
static ra_status try_results(const options *o) {
    float zero[1] = {0}, written[5] = {0};
    ra_problem p;
    ra_comm *comm = NULL;
    ra_plan *plan = NULL;
    const ra_tensor x = ra_tensor_bshd(zero, RA_F32, 1, 1, 1);
    ra_attention_args a = {.q = x, .k = x, .v = x, .out = ra_tensor_bshd(&written[0], RA_F32, 1, 1, 1), .lse = &written[1]};
    ra_problem_init(&p);
    p.Sq = p.Skv = p.D = p.Dv = p.backward = p.threads = 1;
    p.has_bias = o->dbias;
    p.has_sinks = o->dsinks;
    if (o->dbias) {
        a.bias = x;
        a.dbias = ra_tensor_bshd(&written[2], RA_F32, 1, 1, 1);
    }
    a.sinks = o->dsinks ? zero : NULL;
    a.dsinks = o->dsinks ? &written[3] : NULL;
    a.row_max = o->row_max ? &written[4] : NULL;
    ra_status s = ra_comm_create_self(NULL, &comm);
    s = s ? s : ra_plan_create(comm, &p, &plan);
    s = s ? s : ra_attention_forward(plan, &a, NULL);
    s = s ? s : ra_attention_backward(plan, &a, NULL);
    ra_plan_destroy(plan);
    ra_comm_destroy(comm);
    return s;
}

/* Before the reference is worked out. 0: supported; otherwise the failure is in f, with EXIT_UNSUPPORTED where another engine might. */
static int check_supported(verification *v, failure *f) {
    char reason[256];
    tensors_plan_arrays(&v->whole);
    ra_status s = ra_supports(&v->whole.problem, NULL, reason, sizeof reason);
    if (s == RA_OK && (v->o->row_max || v->o->dbias || v->o->dsinks)) {
        s = try_results(v->o);
        snprintf(reason, sizeof reason, "%s", ra_last_error());
    }
    if (s == RA_OK)
        return 0;
    return fail(f, s == RA_ERR_INVALID ? EXIT_USAGE : EXIT_UNSUPPORTED, "%s", reason);
}

static void print_command(const verification *v, const crew *c) {
    fprintf(stderr, "ringattn: verify: above the bound; to reproduce: %s", c->size > 1 ? "mpirun -n " : "");
    if (c->size > 1)
        fprintf(stderr, "%d ", c->size);
    options_print(stderr, v->o, "verify");
    fprintf(stderr, "\n");
}

/* Runs the ring and compares; the command that reproduces a failure is printed. */
static int run_and_compare(verification *v, crew *c, int brief) {
    int ranks = crew_ranks(c);
    failure f = {0};
    v->rank = calloc((size_t)ranks, sizeof *v->rank);
    if (!v->rank) {
        fail_memory(&f, ranks * (int64_t)sizeof *v->rank, "the errors");
        return failure_print(&f);
    }
    int status = crew_run(c, verify_body, v);
    if (status == 0 && crew_speaks(c)) {
        if (print_errors(v, ranks, brief || v->o->quiet))
            print_command(v, c);
        else
            v->exact++;
    }
    free(v->rank);
    v->rank = NULL;
    return status;
}

static int verify_random(verification *v, crew *c, int brief) {
    failure f = {0};
    oracle_result expected = {0};
    int status;
    v->problems++;
    if (sample_problem(v->o, 1, &v->whole, &f) || check_supported(v, &f) || run_oracle(v, &expected, &f)) {
        status = f.status;
        if (v->counts_refusals && status == EXIT_UNSUPPORTED) {
            count_refusal(v, f.text);
            status = 0;
        } else if (crew_speaks(c)) {
            failure_print(&f);
        }
    } else {
        set_references(v, &expected);
        status = run_and_compare(v, c, brief);
    }
    oracle_result_free(&expected);
    tensors_free(&v->whole);
    return status;
}

/* A tensor of the whole problem in double and in (b, t, h, d) order; those without such axes as they are. NULL without memory. */
static double *widen(const tensors *whole, slot s) {
    int64_t n = tensors_elements(whole, s), shape[4] = {1, 1, 1, n};
    int token = whole->order == ORDER_BSHD ? 1 : 2;
    ra_tensor view = ra_tensor_bshd(whole->data[s], whole->dtype[s], 1, 1, n);
    if (s <= DV && s != LSE) {
        tensors_shape(whole, s, shape);
        view = tensors_view(whole, s);
    }
    double *wide = malloc((size_t)(n + 1) * sizeof *wide), *at = wide;
    for (int64_t b = 0; wide && b < shape[0]; b++)
        for (int64_t t = 0; t < shape[token]; t++)
            for (int64_t h = 0; h < shape[3 - token]; h++)
                for (int64_t d = 0; d < shape[3]; d++)
                    *at++ = oracle_load(&view, b, t, h, d);
    return wide;
}

/* The file's own out, lse, dq, dk, dv as references. */
static int read_references(verification *v, const input *in, double *reference[COMPARED], failure *f) {
    tensors *whole = &v->whole;
    for (int i = 0; i < COMPARED; i++) {
        slot s = compared[i];
        const st_tensor *x = in->tensor[s];
        int64_t shape[4];
        if (!x || !is_wanted(v->o, &whole->problem, s))
            continue;
        int axes = tensors_shape(whole, s, shape);
        if (strcmp(x->dtype, "F32") != 0 || x->axes != axes || memcmp(x->shape, shape, (size_t)axes * sizeof shape[0]) != 0) {
            fprintf(stderr, "ringattn: note: %s: tensor %s is not F32 of the result's shape and is not compared\n", in->path, x->name);
            continue;
        }
        if (tensors_allocate(whole, s, RA_F32, f) || rank_read(whole, s, in->fd, x, in->path, f))
            return -1;
        reference[i] = widen(whole, s);
        if (!reference[i])
            return fail_memory(f, tensors_elements(whole, s) * 8, "a reference");
    }
    return 0;
}

static int read_inputs(verification *v, input *in, failure *f) {
    options o = *v->o;
    if (input_open(in, o.operands[0], f))
        return -1;
    o.backward = in->tensor[DOUT] || in->tensor[DLSE];
    v->whole.P = 1;
    if (input_problem(in, &o, &v->whole, f))
        return -1;
    for (slot s = 0; s < OUT; s++)
        if (in->tensor[s] &&
            (tensors_allocate(&v->whole, s, in->dtype[s], f) || rank_read(&v->whole, s, in->fd, in->tensor[s], in->path, f)))
            return -1;
    return input_finish(in, &o, &v->whole, f);
}

static int verify_file(verification *v, crew *c) {
    failure f = {0};
    input in = {.fd = -1};
    oracle_result expected = {0};
    double *reference[COMPARED] = {0};
    int status, any = 0;
    if (read_inputs(v, &in, &f) || read_references(v, &in, reference, &f) || check_supported(v, &f) || run_oracle(v, &expected, &f)) {
        status = crew_speaks(c) ? failure_print(&f) : f.status;
    } else {
        set_references(v, &expected);
        status = run_and_compare(v, c, 0);
        for (int i = 0; i < COMPARED; i++)
            any |= reference[i] != NULL;
        if (status == 0 && any) {
            v->against_file = 1;
            memcpy(v->reference, reference, sizeof reference);
            set_bounds(v);
            status = run_and_compare(v, c, 0);
        }
    }
    for (int i = 0; i < COMPARED; i++)
        free(reference[i]);
    oracle_result_free(&expected);
    tensors_free(&v->whole);
    input_close(&in);
    return status;
}

/* The built-in matrix: each problem in all layouts on several ring sizes. */
static const struct {
    int64_t B, Sq, Skv, H, G, D, Dv;
    int causal;
    int64_t causal_block;
    int align, dtype, order, bias;
    int64_t segments;
} matrix[] = {
    {1, 1, 1, 1, 1, 1, 1, 0, 0, 0, RA_F32, ORDER_BSHD, BIAS_NONE, 0},
    {1, 3, 3, 2, 1, 5, 3, 1, 0, 0, RA_F32, ORDER_BSHD, BIAS_NONE, 0},
    {2, 64, 64, 4, 4, 64, 64, 0, 0, 0, RA_F32, ORDER_BSHD, BIAS_NONE, 0},
    {2, 127, 127, 4, 2, 64, 64, 1, 0, 0, RA_F32, ORDER_BSHD, BIAS_NONE, 0},
    {1, 200, 200, 6, 2, 128, 128, 1, 0, 0, RA_F32, ORDER_BHSD, BIAS_NONE, 0},
    {1, 96, 96, 8, 1, 24, 16, 1, 0, 0, RA_F32, ORDER_BHSD, BIAS_NONE, 0},
    {1, 130, 130, 2, 2, 40, 40, 0, 16, 0, RA_F32, ORDER_BSHD, BIAS_NONE, 0},
    {1, 50, 90, 2, 1, 32, 32, 1, 0, RA_ALIGN_TOP_LEFT, RA_F32, ORDER_BSHD, BIAS_NONE, 0},
    {1, 50, 90, 2, 1, 32, 32, 1, 0, RA_ALIGN_BOTTOM_RIGHT, RA_F32, ORDER_BSHD, BIAS_NONE, 0},
    {1, 90, 50, 2, 1, 32, 32, 1, 0, RA_ALIGN_BOTTOM_RIGHT, RA_F32, ORDER_BSHD, BIAS_NONE, 0},
    {1, 90, 50, 2, 1, 32, 32, 0, 8, RA_ALIGN_BOTTOM_RIGHT, RA_F32, ORDER_BHSD, BIAS_NONE, 0},
    {2, 120, 120, 3, 3, 48, 48, 0, 0, 0, RA_F32, ORDER_BSHD, BIAS_NONE, 5},
    {2, 120, 120, 3, 1, 48, 80, 1, 0, 0, RA_F32, ORDER_BSHD, BIAS_NONE, 7},
    {2, 77, 77, 2, 2, 64, 64, 0, 0, 0, RA_F32, ORDER_BSHD, BIAS_KEY, 0},
    {2, 77, 77, 4, 2, 64, 64, 1, 0, 0, RA_F32, ORDER_BSHD, BIAS_FULL, 0},
    {1, 60, 60, 2, 2, 16, 16, 1, 0, 0, RA_F32, ORDER_BHSD, BIAS_FULL, 3},
    {1, 7, 0, 1, 1, 8, 8, 0, 0, 0, RA_F32, ORDER_BSHD, BIAS_NONE, 0},
    {1, 33, 33, 2, 1, 256, 256, 1, 0, 0, RA_F32, ORDER_BSHD, BIAS_NONE, 0},
    {1, 256, 256, 4, 2, 64, 64, 1, 0, 0, RA_BF16, ORDER_BSHD, BIAS_NONE, 0},
    {1, 256, 256, 4, 2, 64, 64, 1, 0, 0, RA_F16, ORDER_BHSD, BIAS_NONE, 0},
    {1, 99, 99, 2, 2, 80, 80, 0, 0, 0, RA_BF16, ORDER_BHSD, BIAS_KEY, 4},
};

static void options_of_entry(options *o, size_t i) {
    o->B = matrix[i].B;
    o->Sq = matrix[i].Sq;
    o->Skv = matrix[i].Skv;
    o->H = matrix[i].H;
    o->G = matrix[i].G;
    o->D = matrix[i].D;
    o->Dv = matrix[i].Dv;
    o->causal = matrix[i].causal;
    o->causal_block = matrix[i].causal_block;
    o->align = matrix[i].align;
    o->dtype = matrix[i].dtype;
    o->order = matrix[i].order;
    o->bias = matrix[i].bias;
    o->segments = matrix[i].segments;
}

static int verify_matrix(verification *v, crew *c) {
    static const int rings[] = {1, 2, 3, 5};
    options o = *v->o;
    v->o = c->o = &o;
    int status = 0, problems = 0;
    int several = c->size == 1 && !o.ring;
    for (size_t i = 0; i < sizeof matrix / sizeof matrix[0] && !status; i++) {
        options_of_entry(&o, i);
        for (int layout = 0; layout < 3; layout++)
            for (size_t k = 0; k < (several ? sizeof rings / sizeof rings[0] : 1) && !status; k++, problems++) {
                o.layout = layout;
                if (several)
                    o.ring = rings[k];
                status = verify_random(v, c, !o.verbose);
            }
    }
    if (crew_speaks(c) && !v->list && !o.quiet)
        printf("%d problems, %d tensors compared with fp64, %d above their bound\n", problems, v->checks, v->failures);
    return status;
}

/* N problems, each from its own seed. Layouts, types and sizes are drawn with the rest. */
static int verify_drawn(verification *v, crew *c, unsigned kinds) {
    options o = *v->o;
    const options *asked = v->o;
    int status = 0;
    v->o = c->o = &o;
    v->counts_refusals = 1;
    for (int64_t i = 0; i < asked->random && !status; i++) {
        o = *asked;
        draw_options(&o, (uint64_t)asked->seed, i, kinds, c->size > 1);
        status = verify_random(v, c, 1);
    }
    v->o = c->o = asked;
    if (!crew_speaks(c) || v->list || asked->quiet)
        return status;
    printf("%d problems tried: %d exact, %d refused, %d wrong; %d tensors compared with fp64\n", v->problems, v->exact, v->refused.problems,
           v->problems - v->exact - v->refused.problems, v->checks);
    for (int i = 0; i < v->refused.reasons; i++)
        printf("%6d refused: %s\n", v->refused.of[i].problems, v->refused.of[i].text);
    return status;
}

/* With --random everything else is drawn. */
static int check_drawn(const options *o, failure *f) {
    options plain;
    options_init(&plain, o->command);
    plain.random = o->random;
    plain.only = o->only;
    plain.seed = o->seed;
    plain.ring = o->ring;
    plain.threads = o->threads;
    plain.timeout = o->timeout;
    plain.tolerance = o->tolerance;
    plain.json = o->json;
    plain.quiet = o->quiet;
    plain.verbose = o->verbose;
    plain.operands = o->operands;
    if (!options_equal(o, &plain) || o->operand_count)
        return fail(f, EXIT_USAGE,
                    "--random draws the problems: only --only, --seed, --ring, --threads, --tolerance, --timeout, --json, "
                    "--quiet and --verbose go with it");
    return 0;
}

static int check_options(const options *o, failure *f) {
    if (o->random)
        return check_drawn(o, f);
    if (o->only)
        return fail(f, EXIT_USAGE, "--only needs --random");
    if (o->operand_count > 1)
        return fail(f, EXIT_USAGE, "verify takes one file, the second is %s", o->operands[1]);
    int sized = o->B >= 0 || o->S >= 0 || o->Sq >= 0 || o->Skv >= 0 || o->H >= 0 || o->G >= 0 || o->D >= 0 || o->Dv >= 0;
    int made = sized || o->dtype || o->segments || o->bias || o->kv_lens || o->packed || o->slices || o->sinks || o->temperature;
    int asked = o->causal || o->causal_block || o->window[0] >= 0 || o->window[1] >= 0 || o->softcap > 0 || o->alibi || o->dropout > 0;
    if (o->operand_count && made)
        return fail(f, EXIT_USAGE,
                    "sizes, --dtype, --segments, --bias, --kv-lens, --packed, --slices, --sinks and --temperature are the "
                    "file's own when a file is given");
    if (!o->operand_count && !sized && (made || asked || o->layout || o->order || o->row_max || o->dbias || o->dsinks))
        return fail(f, EXIT_USAGE, "give the sizes of the problem too, at least --S and --D; without any option a built-in matrix is run");
    if (o->S >= 0 && (o->Sq >= 0 || o->Skv >= 0))
        return fail(f, EXIT_USAGE, "--S is for --Sq and --Skv both; give it or them");
    if (sized && o->S < 0 && o->Sq < 0 && o->Skv < 0)
        return fail(f, EXIT_USAGE, "the length is missing: --S, or --Sq and --Skv");
    return 0;
}

static json_t *reasons_object(const refusals *r) {
    json_t *object = json_object();
    for (int i = 0; i < r->reasons; i++)
        json_object_set_new(object, r->of[i].text, json_integer(r->of[i].problems));
    return object;
}

int command_verify(const options *o) {
    failure f = {0};
    crew c = {0};
    verification v = {.o = o};
    unsigned kinds = 0;
    int status;
    if (check_options(o, &f) || draw_kinds(o->only, &kinds, &f) || crew_open(&c, o, &f)) {
        status = crew_speaks(&c) ? failure_print(&f) : f.status;
        crew_close(&c);
        return status;
    }
    v.list = o->json ? json_array() : NULL;
    if (o->operand_count)
        status = verify_file(&v, &c);
    else if (o->random)
        status = verify_drawn(&v, &c, kinds);
    else if (o->S < 0 && o->Sq < 0 && o->Skv < 0)
        status = verify_matrix(&v, &c);
    else
        status = verify_random(&v, &c, 0);
    if (status == 0 && v.list && crew_speaks(&c)) {
        json_t *object = json_pack("{s:i, s:i, s:O, s:s, s:i, s:i, s:i, s:o}", "checks", v.checks, "failures", v.failures, "results",
                                   v.list, "isa", ra_isa(), "problems", v.problems, "exact", v.exact, "refused", v.refused.problems,
                                   "reasons", reasons_object(&v.refused));
        if (report_json(object, &f))
            status = failure_print(&f);
    }
    json_decref(v.list);
    crew_close(&c);
    return status ? status : v.failures ? EXIT_CHECK_FAILED : 0;
}
