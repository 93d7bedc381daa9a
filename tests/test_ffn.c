/* The blockwise feed-forward against plain loops over one token at a time.
 *
 * The loops run twice: in fp64, which is the truth, and with every operation rounded to fp32, which is what the straightforward program
 * would give. The library may be at most twice as far from the truth as that program. The fp64 gradients are themselves checked against
 * central differences.
 *
 * Where products are of bf16 operands, the library rounds h, du and dg to bf16 first, each to within 2^-8 of itself. One factor of every
 * product that is summed for y, dx, dwg, dwu and dwd is such a number, so these may be farther off by 2^-8 of the sum of the products'
 * sizes; and y, as a different fp32 number is then rounded to bf16, by 2^-8 of itself.
 *
 * test_ffn --speed [T E F [ROUNDS]] measures instead: each pass against its products alone, in turns. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "base/cpu.h"
#include "base/half.h"
#include "base/threads.h"
#include "block/gemm.h"
#include "check.h"

enum { X, WG, WU, WD, BU, BD, DY, INPUTS };
enum { Y, DX, DWG, DWU, DWD, DBU, DBD, OUTPUTS };
static const char *const output_names[] = {"y", "dx", "dwg", "dwu", "dwd", "dbu", "dbd"};

/* One feed-forward: its inputs as stored (in[]) and as the numbers they stand for (value[]). Absent biases and gates have no elements. */
struct problem {
    ra_ffn f;
    int64_t in_count[INPUTS], out_count[OUTPUTS];
    double *value[INPUTS];
    void *in[INPUTS], *in_copy[INPUTS];
};

struct result {
    void *y;
    float *gradient[OUTPUTS]; /* DX .. DBD */
};

static void *need(size_t bytes) {
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p)
        exit(1);
    return p;
}

/* ---- storage ---- */

static void store(ra_dtype dtype, void *to, int64_t i, double value) {
    if (dtype == RA_F32)
        ((float *)to)[i] = (float)value;
    else
        ((uint16_t *)to)[i] = dtype == RA_BF16 ? ra__to_bf16((float)value) : ra__to_f16((float)value);
}

static double load(ra_dtype dtype, const void *from, int64_t i) {
    if (dtype == RA_F32)
        return (double)((const float *)from)[i];
    const uint16_t h = ((const uint16_t *)from)[i];
    return (double)(dtype == RA_BF16 ? ra__from_bf16(h) : ra__from_f16(h));
}

static size_t bytes_of(ra_dtype dtype) {
    return dtype == RA_F32 ? 4 : 2;
}

static double uniform(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(*state >> 11) * 0x1p-52 - 1;
}

static struct problem make(ra_activation activation, ra_dtype dtype, int64_t T, int64_t E, int64_t F, bool biased, double x_size) {
    struct problem p;
    memset(&p, 0, sizeof p);
    ra_ffn_init(&p.f);
    p.f.activation = activation, p.f.dtype = dtype, p.f.T = T, p.f.E = E, p.f.F = F;
    p.f.threads = 1; /* teams for so little work would only wait for each other, long on a busy machine */
    const int64_t gate = activation == RA_SWIGLU ? E * F : 0;
    const int64_t in[] = {T * E, gate, E * F, F * E, biased ? F : 0, biased ? E : 0, T * E};
    const int64_t out[] = {T * E, T * E, gate, E * F, F * E, F, E};
    const double size[] = {x_size, 2 / sqrt((double)E), 2 / sqrt((double)E), 1 / sqrt((double)F), 1, 1, 1};
    memcpy(p.out_count, out, sizeof out);
    uint64_t seed = (uint64_t)(1 + T * 1000003 + E * 1009 + F);
    for (int a = 0; a < INPUTS; a++) {
        p.in_count[a] = in[a];
        p.value[a] = need((size_t)in[a] * sizeof(double));
        p.in[a] = need((size_t)in[a] * bytes_of(dtype));
        p.in_copy[a] = need((size_t)in[a] * bytes_of(dtype));
        for (int64_t i = 0; i < in[a]; i++) {
            store(dtype, p.in[a], i, size[a] * uniform(&seed));
            p.value[a][i] = load(dtype, p.in[a], i);
        }
        memcpy(p.in_copy[a], p.in[a], (size_t)in[a] * bytes_of(dtype));
    }
    return p;
}

static void drop(struct problem *p) {
    for (int a = 0; a < INPUTS; a++) {
        free(p->value[a]);
        free(p->in[a]);
        free(p->in_copy[a]);
    }
}

/* ---- the loops ---- */

static double rounded(bool single, double value) {
    return single ? (double)(float)value : value;
}

/* acc + a b; products and sums of two fp32 numbers are rounded correctly by way of fp64. */
static double add(bool single, double acc, double a, double b) {
    return rounded(single, acc + rounded(single, a * b));
}

static double activation(ra_activation kind, bool single, double a, double *slope) {
    const double pi = 3.14159265358979323846;
    double s, ds; /* f(a) = a s(a) */
    if (kind == RA_SWIGLU) {
        s = 1 / rounded(single, 1 + rounded(single, exp(-a)));
        ds = s * (1 - s);
    } else if (kind == RA_GELU) {
        s = 0.5 * rounded(single, 1 + rounded(single, erf(rounded(single, a / sqrt(2)))));
        ds = exp(-a * a / 2) / sqrt(2 * pi);
    } else {
        const double t = rounded(single, tanh(rounded(single, sqrt(2 / pi) * (a + 0.044715 * a * a * a))));
        s = 0.5 * rounded(single, 1 + t);
        ds = 0.5 * (1 - t * t) * sqrt(2 / pi) * (1 + 3 * 0.044715 * a * a);
    }
    s = rounded(single, s);
    *slope = rounded(single, s + rounded(single, a * ds));
    return rounded(single, a * s);
}

/* What the loops give: out[Y] .. out[DBD], each of out_count elements; size, the sums of the sizes of what is added; and the largest
 * partial sum on the way to each tensor, against which rounding errors are to be seen where the sum itself cancels. */
struct loops {
    bool single;
    double *out[OUTPUTS], *size[OUTPUTS], peak[OUTPUTS];
};

/* out[output][i] += a b */
static void grow(struct loops *l, int output, int64_t i, double a, double b) {
    double *sum = &l->out[output][i];
    *sum = add(l->single, *sum, a, b);
    l->size[output][i] += fabs(a * b);
    l->peak[output] = fmax(l->peak[output], fabs(*sum));
}

static void loops_run(const struct problem *p, struct loops *l) {
    const int64_t T = p->f.T, E = p->f.E, F = p->f.F;
    const bool single = l->single, gated = p->f.activation == RA_SWIGLU, biased = p->in_count[BU] > 0;
    double *const *in = p->value;
    for (int a = 0; a < OUTPUTS; a++) {
        memset(l->out[a], 0, (size_t)p->out_count[a] * sizeof(double));
        memset(l->size[a], 0, (size_t)p->out_count[a] * sizeof(double));
        l->peak[a] = 0;
    }
    for (int64_t t = 0; t < T; t++) {
        const double *x = in[X] + t * E, *dy = in[DY] + t * E;
        for (int64_t f = 0; f < F; f++) {
            double u = 0, g = 0, dh = 0, slope;
            for (int64_t e = 0; e < E; e++) {
                u = add(single, u, x[e], in[WU][e * F + f]);
                g = gated ? add(single, g, x[e], in[WG][e * F + f]) : 0;
                dh = add(single, dh, dy[e], in[WD][f * E + e]);
            }
            u = biased ? rounded(single, u + in[BU][f]) : u;
            const double v = activation(p->f.activation, single, gated ? g : u, &slope);
            const double h = gated ? rounded(single, v * u) : v;
            const double du = rounded(single, dh * (gated ? v : slope));
            const double dg = gated ? rounded(single, rounded(single, dh * u) * slope) : 0;
            for (int64_t e = 0; e < E; e++) {
                grow(l, Y, t * E + e, h, in[WD][f * E + e]);
                grow(l, DX, t * E + e, du, in[WU][e * F + f]);
                grow(l, DWD, f * E + e, h, dy[e]);
                grow(l, DWU, e * F + f, x[e], du);
                if (gated) {
                    grow(l, DX, t * E + e, dg, in[WG][e * F + f]);
                    grow(l, DWG, e * F + f, x[e], dg);
                }
            }
            grow(l, DBU, f, 1, du);
        }
        for (int64_t e = 0; e < E; e++) {
            grow(l, Y, t * E + e, 1, biased ? in[BD][e] : 0);
            grow(l, DBD, e, 1, dy[e]);
        }
    }
}

static struct loops loops_new(const struct problem *p, bool single) {
    struct loops l = {.single = single};
    for (int a = 0; a < OUTPUTS; a++) {
        l.out[a] = need((size_t)p->out_count[a] * sizeof(double));
        l.size[a] = need((size_t)p->out_count[a] * sizeof(double));
    }
    loops_run(p, &l);
    return l;
}

static void loops_free(struct loops *l) {
    for (int a = 0; a < OUTPUTS; a++) {
        free(l->out[a]);
        free(l->size[a]);
    }
}

/* ---- the library ---- */

static struct result result_new(const struct problem *p) {
    struct result r = {need((size_t)p->out_count[Y] * bytes_of(p->f.dtype)), {0}};
    memset(r.y, 0xff, (size_t)p->out_count[Y] * bytes_of(p->f.dtype)); /* NaN in each dtype: what is not written shows */
    for (int a = DX; a < OUTPUTS; a++) {
        r.gradient[a] = need((size_t)p->out_count[a] * sizeof(float));
        memset(r.gradient[a], 0xff, (size_t)p->out_count[a] * sizeof(float));
    }
    return r;
}

static void result_free(struct result *r) {
    free(r->y);
    for (int a = DX; a < OUTPUTS; a++)
        free(r->gradient[a]);
}

/* wanted: bit a for output a. */
static ra_ffn_args args_of(const struct problem *p, const struct result *r, unsigned wanted) {
    const void *in[INPUTS];
    float *out[OUTPUTS];
    for (int a = 0; a < INPUTS; a++)
        in[a] = p->in_count[a] ? p->in[a] : NULL;
    for (int a = DX; a < OUTPUTS; a++)
        out[a] = (wanted >> a & 1) && (a != DWG || p->in_count[WG]) ? r->gradient[a] : NULL;
    return (ra_ffn_args){.x = in[X],
                         .wg = in[WG],
                         .wu = in[WU],
                         .wd = in[WD],
                         .bu = in[BU],
                         .bd = in[BD],
                         .dy = in[DY],
                         .y = r->y,
                         .dx = out[DX],
                         .dwg = out[DWG],
                         .dwu = out[DWU],
                         .dwd = out[DWD],
                         .dbu = out[DBU],
                         .dbd = out[DBD]};
}

static const unsigned all = (1u << OUTPUTS) - 1;

static bool run(const struct problem *p, struct result *r) {
    const ra_ffn_args a = args_of(p, r, all);
    bool ok = CHECK_OK(ra_ffn_forward(&p->f, &a, NULL));
    return CHECK_OK(ra_ffn_backward(&p->f, &a, NULL)) && ok;
}

static bool same(const struct problem *p, int output, const struct result *a, const struct result *b) {
    if (output == Y)
        return memcmp(a->y, b->y, (size_t)p->out_count[Y] * bytes_of(p->f.dtype)) == 0;
    return memcmp(a->gradient[output], b->gradient[output], (size_t)p->out_count[output] * sizeof(float)) == 0;
}

static void check_same(const struct problem *p, const struct result *a, const struct result *b, const char *what) {
    for (int i = 0; i < OUTPUTS; i++)
        CHECK_MSG(same(p, i, a, b), "%s: %s differs (activation %d, dtype %d)", what, output_names[i], (int)p->f.activation,
                  (int)p->f.dtype);
}

static void check_inputs_unchanged(const struct problem *p) {
    for (int a = 0; a < INPUTS; a++)
        CHECK(memcmp(p->in[a], p->in_copy[a], (size_t)p->in_count[a] * bytes_of(p->f.dtype)) == 0);
}

/* ---- accuracy ---- */

struct truth {
    struct loops exact, plain;
};

static struct truth truth_of(const struct problem *p) {
    struct truth t = {loops_new(p, false), loops_new(p, true)};
    for (int64_t i = 0; i < p->out_count[Y]; i++) { /* the plain program stores y in its dtype, too */
        uint32_t bits;
        store(p->f.dtype, &bits, 0, t.plain.out[Y][i]);
        t.plain.out[Y][i] = load(p->f.dtype, &bits, 0);
    }
    return t;
}

static void truth_free(struct truth *t) {
    loops_free(&t->exact);
    loops_free(&t->plain);
}

static bool multiplies_bf16; /* whether the library's products take bf16 operands here */
static double worst_ratio;   /* the largest error seen, in units of the bound */

/* By how much rounding h, du and dg to bf16 may move element i of an output. */
static double bf16_room(const struct truth *t, int output, int64_t i) {
    if (output == DBU || output == DBD)
        return 0;
    return 0x1p-8 * (t->exact.size[output][i] + (output == Y ? fabs(t->exact.out[Y][i]) : 0)) * (1 + 0x1p-7);
}

/* Largest errors against fp64: at most twice the plain program's, which may be lucky by a few units in the last place. */
static void check_accuracy(const struct problem *p, const struct truth *t, const struct result *r) {
    for (int a = 0; a < OUTPUTS; a++) {
        if (a == DWG && !p->in_count[WG])
            continue;
        double error = 0, plain = 0;
        const bool bf16 = p->f.dtype == RA_BF16 && multiplies_bf16;
        for (int64_t i = 0; i < p->out_count[a]; i++) {
            const double exact = t->exact.out[a][i];
            const double e =
                fabs((a == Y ? load(p->f.dtype, r->y, i) : (double)r->gradient[a][i]) - exact) - (bf16 ? bf16_room(t, a, i) : 0);
            error = e <= error ? error : e; /* so written, NaN is kept */
            plain = fmax(plain, fabs(t->plain.out[a][i] - exact));
        }
        const double bound = 2 * plain + 4 * FLT_EPSILON * t->exact.peak[a];
        worst_ratio = bound > 0 ? fmax(worst_ratio, error / bound) : worst_ratio;
        CHECK_MSG(error <= bound, "%s: error %g, plain loop %g, size %g (activation %d dtype %d T %lld E %lld F %lld chunk %lld)",
                  output_names[a], error, plain, t->exact.peak[a], (int)p->f.activation, (int)p->f.dtype, (long long)p->f.T,
                  (long long)p->f.E, (long long)p->f.F, (long long)p->f.chunk);
    }
}

static void check_chunks(struct problem *p) {
    const int64_t chunks[] = {1, 3, p->f.T, p->f.T + 1, 0};
    struct truth t = truth_of(p);
    for (int c = 0; c < 5; c++) {
        struct result r = result_new(p);
        p->f.chunk = chunks[c];
        if (run(p, &r))
            check_accuracy(p, &t, &r);
        check_inputs_unchanged(p);
        result_free(&r);
    }
    truth_free(&t);
}

/* F = 2100: hidden columns in several panels of every kind. */
static void matches_loops(void) {
    const int64_t tokens[] = {0, 1, 5, 33}, sizes[][2] = {{1, 1}, {7, 5}, {13, 29}, {3, 2100}};
    for (int kind = 0; kind < 3; kind++)
        for (int dtype = 0; dtype < 3; dtype++)
            for (int t = 0; t < 4; t++)
                for (int s = 0; s < 4; s++) {
                    const bool biased = (t + s) % 2 == 0;
                    struct problem p = make((ra_activation)kind, (ra_dtype)dtype, tokens[t], sizes[s][0], sizes[s][1], biased, 2.0);
                    check_chunks(&p);
                    drop(&p);
                }
    printf("   largest error: %.2f of the bound\n", worst_ratio);
}

/* L = sum of y dy as the loops give it with `by` added to one input. */
static double loss_at(struct problem *p, struct loops *l, double *input, double by) {
    const double before = *input;
    double loss = 0;
    *input += by;
    loops_run(p, l);
    for (int64_t k = 0; k < p->out_count[Y]; k++)
        loss += l->out[Y][k] * p->value[DY][k];
    *input = before;
    return loss;
}

static void loops_match_differences(void) {
    static const int gradient_of[] = {DX, DWG, DWU, DWD, DBU, DBD};
    for (int kind = 0; kind < 3; kind++) {
        struct problem p = make((ra_activation)kind, RA_F32, 2, 3, 4, true, 1.0);
        struct loops exact = loops_new(&p, false), moved = loops_new(&p, false);
        for (int a = X; a <= BD; a++)
            for (int64_t i = 0; i < p.in_count[a]; i++) {
                const double step = 1e-5, up = loss_at(&p, &moved, &p.value[a][i], step);
                const double by_differences = (up - loss_at(&p, &moved, &p.value[a][i], -step)) / (2 * step);
                CHECK_MSG(fabs(by_differences - exact.out[gradient_of[a]][i]) < 1e-8,
                          "activation %d, %s[%lld]: %.12g, by differences %.12g", kind, output_names[gradient_of[a]], (long long)i,
                          exact.out[gradient_of[a]][i], by_differences);
            }
        loops_free(&exact);
        loops_free(&moved);
        drop(&p);
    }
}

/* Pre-activations of +-1e4: silu and gelu saturate, nothing overflows. */
static void large_inputs(void) {
    for (int kind = 0; kind < 3; kind++)
        for (int dtype = RA_F32; dtype <= RA_BF16; dtype++) {
            struct problem p = make((ra_activation)kind, (ra_dtype)dtype, 9, 5, 7, true, 1e4);
            struct truth t = truth_of(&p);
            struct result r = result_new(&p);
            if (run(&p, &r))
                check_accuracy(&p, &t, &r);
            for (int64_t i = 0; i < p.out_count[Y]; i++)
                CHECK(isfinite(load(p.f.dtype, r.y, i)));
            for (int a = DX; a < OUTPUTS; a++)
                for (int64_t i = 0; i < p.out_count[a] && (a != DWG || p.in_count[WG]); i++)
                    CHECK(isfinite((double)r.gradient[a][i]));
            result_free(&r);
            truth_free(&t);
            drop(&p);
        }
}

/* NaN in a token's x is in all of that token's y and in no other's. */
static void nan_stays_in_its_row(void) {
    struct problem p = make(RA_SWIGLU, RA_F32, 5, 7, 9, true, 1.0);
    struct result r = result_new(&p);
    ((float *)p.in[X])[2 * 7 + 3] = NAN;
    run(&p, &r);
    for (int64_t i = 0; i < p.out_count[Y]; i++) {
        CHECK(isnan(((float *)r.y)[i]) == (i / 7 == 2));
        CHECK(isnan(r.gradient[DX][i]) == (i / 7 == 2));
    }
    result_free(&r);
    drop(&p);
}

/* ---- bits ---- */

static void each(void (*test)(struct problem *p), int64_t T, int64_t E, int64_t F, int64_t chunk) {
    for (int kind = 0; kind < 3; kind++)
        for (int dtype = 0; dtype < 3; dtype++) {
            struct problem p = make((ra_activation)kind, (ra_dtype)dtype, T, E, F, true, 2.0);
            p.f.chunk = chunk;
            test(&p);
            check_inputs_unchanged(&p);
            drop(&p);
        }
}

static void subsets_of(struct problem *p) {
    struct result full = result_new(p);
    run(p, &full);
    for (unsigned wanted = 0; wanted <= all; wanted += 1u << DX) {
        struct result r = result_new(p), untouched = result_new(p);
        const ra_ffn_args a = args_of(p, &r, wanted);
        CHECK_OK(ra_ffn_backward(&p->f, &a, NULL));
        for (int i = DX; i < OUTPUTS; i++)
            CHECK_MSG(same(p, i, &r, (wanted >> i & 1) ? &full : &untouched), "%s, wanted %#x (activation %d, dtype %d)", output_names[i],
                      wanted, (int)p->f.activation, (int)p->f.dtype);
        result_free(&r);
        result_free(&untouched);
    }
    result_free(&full);
}

static void subsets_of_gradients(void) {
    each(subsets_of, 5, 7, 9, 3);
    each(subsets_of, 5, 3, 1300, 2);
}

/* Any number of threads gives a right result, and twice the same. oneDNN may split sums among threads, so only a CBLAS gives the same bits
 * for any number. The caller's own number of threads is left alone. */
static void threads_of(struct problem *p) {
    struct result one = result_new(p);
    struct truth t = truth_of(p);
    const int before = ra__default_threads();
    p->f.threads = 1;
    run(p, &one);
    for (int threads = 0; threads <= 3; threads++) {
        struct result r = result_new(p), again = result_new(p);
        p->f.threads = threads;
        run(p, &r);
        run(p, &again);
        check_same(p, &r, &again, "twice the same threads");
        check_accuracy(p, &t, &r);
        if (ra__gemm_about().cblas || threads == 1)
            check_same(p, &one, &r, "threads");
        result_free(&r);
        result_free(&again);
    }
    CHECK_EQ_INT(ra__default_threads(), before);
    truth_free(&t);
    result_free(&one);
}

static void any_number_of_threads(void) {
    each(threads_of, 65, 33, 700, 20);
    each(threads_of, 3, 100, 130, 0);
    each(threads_of, 1, 8, 2100, 0); /* few rows: what is likely to be split */
}

/* Ranks of one process: several threads in the feed-forward at once, each with threads of its own, get the bits that each gets alone. */
struct rank {
    struct problem p;
    struct result alone;
    pthread_t thread;
};

static void *rank_main(void *user) {
    struct rank *k = user;
    for (int i = 0; i < 6; i++) {
        struct result r = result_new(&k->p);
        run(&k->p, &r);
        check_same(&k->p, &k->alone, &r, "ranks at once");
        result_free(&r);
    }
    return NULL;
}

static void ranks_at_once(void) {
    enum { RANKS = 6 };
    for (int threads = 1; threads <= 2; threads++) {
        struct rank ranks[RANKS];
        for (int i = 0; i < RANKS; i++) {
            struct rank *k = &ranks[i];
            k->p = make((ra_activation)(i % 3), i % 2 ? RA_F32 : RA_BF16, 50, 40 + i / 4, 300, true, 1.0);
            k->p.f.chunk = 16, k->p.f.threads = threads;
            k->alone = result_new(&k->p);
            run(&k->p, &k->alone);
        }
        for (int i = 0; i < RANKS; i++)
            if (pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]) != 0)
                exit(1);
        for (int i = 0; i < RANKS; i++) {
            pthread_join(ranks[i].thread, NULL);
            result_free(&ranks[i].alone);
            drop(&ranks[i].p);
        }
    }
}

static void in_place_of(struct problem *p) {
    struct result r = result_new(p);
    ra_ffn_args a = args_of(p, &r, all);
    const size_t bytes = (size_t)p->in_count[X] * bytes_of(p->f.dtype);
    void *both = need(bytes);
    CHECK_OK(ra_ffn_forward(&p->f, &a, NULL));
    memcpy(both, p->in[X], bytes);
    a.x = a.y = both;
    CHECK_OK(ra_ffn_forward(&p->f, &a, NULL));
    CHECK(memcmp(both, r.y, bytes) == 0);
    free(both);
    result_free(&r);
}

static void y_may_be_x(void) {
    each(in_place_of, 11, 5, 1300, 4);
}

/* ---- memory ---- */

struct counter {
    int calls, live, fail_at;
    size_t bytes;
};

static void *count_alloc(void *user, size_t bytes, size_t align) {
    struct counter *c = user;
    if (++c->calls == c->fail_at)
        return NULL;
    c->live++;
    c->bytes += bytes;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void count_free(void *user, void *ptr) {
    ((struct counter *)user)->live--;
    free(ptr);
}

/* A workspace of exactly the stated size gives the same bits, and is what is allocated otherwise. */
static void workspace_of(struct problem *p) {
    struct result inside = result_new(p), given = result_new(p);
    struct counter c = {0};
    const ra_allocator counting = {count_alloc, count_free, &c};
    p->f.allocator = &counting;
    const size_t bytes = ra_ffn_workspace_bytes(&p->f);
    run(p, &inside);
    CHECK_EQ_INT(c.bytes, 2 * bytes); /* one for each pass */
    CHECK_EQ_INT(c.live, 0);

    const int before = c.calls;
    void *workspace = aligned_alloc(64, bytes);
    memset(workspace, 0xff, bytes);
    const ra_ffn_args a = args_of(p, &given, all);
    CHECK_OK(ra_ffn_forward(&p->f, &a, workspace));
    memset(workspace, 0xff, bytes);
    CHECK_OK(ra_ffn_backward(&p->f, &a, workspace));
    CHECK_EQ_INT(c.calls, before);
    check_same(p, &inside, &given, "workspace");
    free(workspace);

    for (int k = 1; k <= 3; k++) { /* every call allocates once, so the third finds its memory */
        struct counter failing = {.fail_at = k};
        const ra_allocator refusing = {count_alloc, count_free, &failing};
        p->f.allocator = &refusing;
        CHECK_STATUS(ra_ffn_forward(&p->f, &a, NULL), k == 1 ? RA_ERR_MEMORY : RA_OK);
        CHECK_STATUS(ra_ffn_backward(&p->f, &a, NULL), k == 2 ? RA_ERR_MEMORY : RA_OK);
        CHECK_EQ_INT(failing.live, 0);
    }
    p->f.allocator = NULL;
    result_free(&inside);
    result_free(&given);
}

static void workspace_is_exact(void) {
    each(workspace_of, 11, 5, 1300, 4);
    each(workspace_of, 3, 5, 3500, 0);
    each(workspace_of, 3, 7, 9, 0);
}

static void memory_does_not_grow_with_tokens(void) {
    for (int dtype = 0; dtype < 3; dtype++)
        for (int64_t chunk = 0; chunk <= 512; chunk += 256) {
            ra_ffn f;
            ra_ffn_init(&f);
            f.dtype = (ra_dtype)dtype, f.E = 100, f.F = 1000, f.chunk = chunk;
            f.T = 2000;
            const size_t few = ra_ffn_workspace_bytes(&f);
            f.T = 1000000;
            CHECK(few > 0);
            CHECK_EQ_INT(ra_ffn_workspace_bytes(&f), few);
            f.T = INT64_C(1000000000000); /* and it does not overflow on the way */
            CHECK_EQ_INT(ra_ffn_workspace_bytes(&f), few);
        }
}

/* ---- refusals ---- */

static void refuses_options(const ra_ffn_args *a, ra_ffn bad, ra_status want, const char *why) {
    CHECK_EQ_INT(ra_ffn_workspace_bytes(&bad), 0);
    CHECK_STATUS(ra_ffn_forward(&bad, a, NULL), want);
    CHECK_MSG(strstr(ra_last_error(), why), "\"%s\" does not say \"%s\"", ra_last_error(), why);
    CHECK_STATUS(ra_ffn_backward(&bad, a, NULL), want);
    CHECK_MSG(strstr(ra_last_error(), why), "\"%s\" does not say \"%s\"", ra_last_error(), why);
}

static void bad_options(void) {
    struct problem p = make(RA_SWIGLU, RA_F32, 2, 3, 4, true, 1.0);
    struct result r = result_new(&p);
    const ra_ffn_args a = args_of(&p, &r, all);
#define BAD(want, why, ...)                \
    do {                                   \
        ra_ffn f = p.f;                    \
        __VA_ARGS__;                       \
        refuses_options(&a, f, want, why); \
    } while (0)
    BAD(RA_ERR_INVALID, "ra_ffn_init", f.size = 0);
    BAD(RA_ERR_INVALID, "activation 7", f.activation = (ra_activation)7);
    BAD(RA_ERR_INVALID, "dtype 7", f.dtype = (ra_dtype)7);
    BAD(RA_ERR_INVALID, "T is -1", f.T = -1);
    BAD(RA_ERR_INVALID, "E is 0", f.E = 0);
    BAD(RA_ERR_INVALID, "F is -3", f.F = -3);
    BAD(RA_ERR_INVALID, "chunk is -1", f.chunk = -1);
    BAD(RA_ERR_INVALID, "threads is -1", f.threads = -1);
    BAD(RA_ERR_OVERFLOW, "64 bits", f.T = INT64_MAX);
    BAD(RA_ERR_OVERFLOW, "64 bits", f.E = f.F = INT64_C(1) << 40);
    BAD(RA_ERR_OVERFLOW, "workspace", f.T = f.chunk = f.F = INT32_MAX);
    BAD(RA_ERR_UNSUPPORTED, "CBLAS counts", f.F = INT64_C(1) << 31);
    BAD(RA_ERR_UNSUPPORTED, "CBLAS counts", f.E = INT64_C(1) << 31);
#undef BAD
    char isa[64];
    snprintf(isa, sizeof isa, "%s", getenv("RA_ISA") ? getenv("RA_ISA") : "");
    setenv("RA_ISA", "avx1024", 1);
    refuses_options(&a, p.f, RA_ERR_INVALID, "RA_ISA=avx1024: no instruction set; known are scalar, avx2");
    CHECK_EQ_INT(ra_ffn_workspace_bytes(&p.f), 0);
    setenv("RA_ISA", isa, 1);
    CHECK_EQ_INT(ra_ffn_workspace_bytes(NULL), 0);
    CHECK_STATUS(ra_ffn_forward(NULL, &a, NULL), RA_ERR_INVALID);
    CHECK_STATUS(ra_ffn_backward(NULL, &a, NULL), RA_ERR_INVALID);
    result_free(&r);
    drop(&p);
}

static void refuses_args(const ra_ffn *f, const ra_ffn_args *bad, void *workspace, bool forward, bool backward, const char *why) {
    if (forward) {
        CHECK_STATUS(ra_ffn_forward(f, bad, workspace), RA_ERR_INVALID);
        CHECK_MSG(strstr(ra_last_error(), why), "\"%s\" does not say \"%s\"", ra_last_error(), why);
    }
    if (backward) {
        CHECK_STATUS(ra_ffn_backward(f, bad, workspace), RA_ERR_INVALID);
        CHECK_MSG(strstr(ra_last_error(), why), "\"%s\" does not say \"%s\"", ra_last_error(), why);
    }
}

static void bad_args_of(ra_activation kind) {
    struct problem p = make(kind, RA_F32, 2, 3, 4, true, 1.0);
    struct result r = result_new(&p);
    _Alignas(64) float somewhere[64];
#define BAD(forward, backward, why, ...)                      \
    do {                                                      \
        ra_ffn_args a = args_of(&p, &r, all);                 \
        __VA_ARGS__;                                          \
        refuses_args(&p.f, &a, NULL, forward, backward, why); \
    } while (0)
    BAD(true, true, "x is required", a.x = NULL);
    BAD(true, true, "wu is required", a.wu = NULL);
    BAD(true, true, "wd is required", a.wd = NULL);
    BAD(true, false, "y is required", a.y = NULL);
    BAD(false, true, "dy is required", a.dy = NULL);
    if (kind == RA_SWIGLU) {
        BAD(true, true, "wg is required for SWIGLU", a.wg = NULL);
    } else {
        BAD(true, true, "wg is given", a.wg = somewhere);
        BAD(true, true, "dwg is given", a.dwg = somewhere);
    }
#undef BAD
    const ra_ffn_args good = args_of(&p, &r, all);
    refuses_args(&p.f, NULL, NULL, true, true, "args is NULL");
    refuses_args(&p.f, &good, (char *)somewhere + 4, true, true, "aligned");
    result_free(&r);
    drop(&p);
}

static void bad_args(void) {
    for (int kind = 0; kind < 3; kind++)
        bad_args_of((ra_activation)kind);
}

/* Without tokens: y untouched, the weights' gradients zero, and no tensor of tokens is needed. */
static void no_tokens(void) {
    struct problem p = make(RA_SWIGLU, RA_F32, 0, 3, 4, true, 1.0);
    struct result r = result_new(&p);
    ra_ffn_args a = args_of(&p, &r, all);
    float y = 7;
    a.y = &y;
    CHECK_OK(ra_ffn_forward(&p.f, &a, NULL));
    a.y = NULL, a.dx = NULL;
    CHECK_OK(ra_ffn_forward(&p.f, &a, NULL));
    CHECK_OK(ra_ffn_backward(&p.f, &a, NULL));
    CHECK(y == 7);
    for (int i = DWG; i < OUTPUTS; i++)
        for (int64_t k = 0; k < p.out_count[i]; k++)
            CHECK(r.gradient[i][k] == 0);
    result_free(&r);
    drop(&p);
}

/* Whether this build can multiply; if not, both passes must say so. */
static bool available(void) {
    struct problem p = make(RA_GELU, RA_F32, 2, 3, 4, true, 1.0);
    struct result r = result_new(&p);
    const ra_ffn_args a = args_of(&p, &r, all);
    const bool yes = ra_ffn_forward(&p.f, &a, NULL) != RA_ERR_UNSUPPORTED;
    if (!yes) {
        CHECK(strstr(ra_last_error(), "built without oneDNN and CBLAS"));
        CHECK_STATUS(ra_ffn_backward(&p.f, &a, NULL), RA_ERR_UNSUPPORTED);
        CHECK(strstr(ra_last_error(), "built without oneDNN and CBLAS"));
    }
    result_free(&r);
    drop(&p);
    return yes;
}

/* ---- speed ---- */

/* The products of a pass over T tokens, by chunks of n, `panel` hidden columns at a time: operands of p's type, results in fp32. */
static void products_alone(const struct problem *p, bool backward, int64_t panel, void *const in[4], float *const out[4]) {
    const int64_t E = p->f.E, F = p->f.F, n = p->f.T < 1024 ? p->f.T : 1024;
    const int gates = p->f.activation == RA_SWIGLU ? 2 : 1;
    const bool bf16 = p->f.dtype == RA_BF16 && multiplies_bf16;
    const size_t size = bytes_of(p->f.dtype);
    void *const x = in[0], *const w = in[1], *const h = in[2], *const wd = in[3];
    struct ra__gemm gemm;
    ra__gemm_open(&gemm);
#define PRODUCT(a, at_a, ta, b, at_b, tb, c, rows, columns, inner, sum, sa, sb, sc)                                                \
    ra__gemm(&gemm, &(struct ra__product){bf16, ta, tb, sum, rows, columns, inner, sa, sb, sc}, (char *)(a) + (size_t)(at_a)*size, \
             (char *)(b) + (size_t)(at_b)*size, c)
    for (int64_t t = 0; t < p->f.T; t += n) {
        for (int64_t j = 0; j < F; j += panel) {
            const int64_t m = F - j < panel ? F - j : panel;
            for (int g = 0; g < gates; g++)
                PRODUCT(x, 0, false, w, j, false, out[0], n, m, E, false, E, F, m); /* u, g */
            if (!backward)
                continue;
            PRODUCT(x, 0, false, wd, j * E, true, out[0], n, m, E, false, E, E, m);    /* dh */
            PRODUCT(h, 0, true, x, 0, false, out[1] + j * E, m, E, n, t > 0, m, E, E); /* dwd */
            for (int g = 0; g < gates; g++) {
                PRODUCT(x, 0, true, h, 0, false, out[2] + j, E, m, n, t > 0, E, m, F);      /* dwu, dwg */
                PRODUCT(h, 0, false, w, j, true, out[3], n, E, m, j > 0 || g > 0, m, F, E); /* dx */
            }
        }
        if (!backward)
            PRODUCT(h, 0, false, wd, 0, false, out[3], n, E, F, false, F, E, E); /* y */
    }
#undef PRODUCT
    ra__gemm_close(&gemm);
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Prints a pass's time over that of its products alone, by panels or all of F at once, whichever is faster in most rounds. */
static void speed_of(ra_activation kind, ra_dtype dtype, bool backward, int threads, int64_t T, int64_t E, int64_t F, int rounds) {
    struct problem p = make(kind, dtype, T, E, F, false, 1.0);
    struct result r = result_new(&p);
    const ra_ffn_args args = args_of(&p, &r, all);
    const size_t size = bytes_of(dtype);
    void *const in[4] = {p.in[X], p.in[WU], need((size_t)(1024 * F) * size), p.in[WD]};
    float *const out[4] = {need((size_t)(1024 * F) * 4), need((size_t)(E * F) * 4), need((size_t)(E * F) * 4),
                           need((size_t)(1024 * E) * 4)};
    const int gates = kind == RA_SWIGLU ? 2 : 1;
    const double gflop = 2e-9 * (double)T * (double)E * (double)F * (backward ? 3 * gates + 2 : gates + 1);
    double ratio[2][101], ours[101];
    p.f.threads = threads;
    ra__set_default_threads(threads);
    for (int i = -1; i < rounds; i++) { /* the first round does not count */
        const double start = ra__now();
        CHECK_OK(backward ? ra_ffn_backward(&p.f, &args, NULL) : ra_ffn_forward(&p.f, &args, NULL));
        const double middle = ra__now();
        products_alone(&p, backward, 1024, in, out);
        const double later = ra__now();
        products_alone(&p, backward, F, in, out);
        if (i < 0)
            continue;
        ours[i] = middle - start;
        ratio[0][i] = (middle - start) / (later - middle);
        ratio[1][i] = (middle - start) / (ra__now() - later);
    }
    qsort(ours, (size_t)rounds, sizeof *ours, ascending);
    for (int w = 0; w < 2; w++)
        qsort(ratio[w], (size_t)rounds, sizeof **ratio, ascending);
    const int w = ratio[0][rounds / 2] > ratio[1][rounds / 2] ? 0 : 1, m = rounds / 2;
    printf("%-10s %-4s %-8s %7d %9.4f %9.1f %9.3f (%.3f to %.3f) %s\n", kind == RA_SWIGLU ? "swiglu" : "gelu",
           dtype == RA_F32 ? "f32" : "bf16", backward ? "backward" : "forward", threads, ours[m], gflop / ours[m], ratio[w][m],
           ratio[w][rounds / 4], ratio[w][rounds - 1 - rounds / 4], w ? "at once" : "by panels");
    fflush(stdout);
    for (int i = 0; i < 4; i++)
        free(out[i]);
    free(in[2]);
    result_free(&r);
    drop(&p);
}

static int speed(int64_t T, int64_t E, int64_t F, int rounds) {
    const int most = ra__default_threads();
    char features[512];
    ra_features(features, sizeof features);
    printf("%sT %lld, E %lld, F %lld; median of %d rounds\n%-10s %-4s %-8s %7s %9s %9s %9s (quartiles)\n", features, (long long)T,
           (long long)E, (long long)F, rounds, "activation", "type", "pass", "threads", "s", "GFLOP/s", "x GEMMs");
    for (int threads = 1; threads <= most; threads *= 2)
        for (int dtype = RA_F32; dtype <= RA_BF16; dtype++)
            for (int kind = RA_SWIGLU; kind <= RA_GELU; kind++)
                for (int backward = 0; backward < 2; backward++)
                    speed_of((ra_activation)kind, (ra_dtype)dtype, backward, threads, T, E, F, rounds);
    return check_result();
}

int main(int argc, char **argv) {
    multiplies_bf16 = ra__gemm_takes_bf16();
    if (argc > 1 && strcmp(argv[1], "--speed") == 0) {
        const int64_t T = argc > 4 ? atoll(argv[2]) : 2048, E = argc > 4 ? atoll(argv[3]) : 1024, F = argc > 4 ? atoll(argv[4]) : 4096;
        const int rounds = argc > 5 ? atoi(argv[5]) : 9;
        if (T < 1 || E < 1 || F < 1 || rounds < 1 || rounds > 101)
            return 1;
        return speed(T, E, F, rounds);
    }
    const bool blas = available();
    RUN(loops_match_differences);
    RUN(bad_options);
    RUN(memory_does_not_grow_with_tokens);
    if (!blas) {
        if (check_result() != 0)
            return 1;
        CHECK_SKIP("built without oneDNN and CBLAS: only the refusals were tested");
    }
    RUN(bad_args);
    RUN(no_tokens);
    RUN(matches_loops);
    RUN(large_inputs);
    RUN(nan_stays_in_its_row);
    RUN(subsets_of_gradients);
    RUN(any_number_of_threads);
    RUN(ranks_at_once);
    RUN(y_may_be_x);
    RUN(workspace_is_exact);
    return check_result();
}
