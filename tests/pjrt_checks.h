/* What a plugin's results must satisfy, whoever runs the programs: random problems with all masks and modifiers against the oracle, and
 * NaN and infinity that reach exactly the rows that see them. */
#ifndef RA_TESTS_PJRT_CHECKS_H
#define RA_TESTS_PJRT_CHECKS_H

#include "pjrt_whole.h"
#include "random_masks.h"

/* Probabilities and ds are rounded to bf16 as operands of bf16 products, as in kernels that multiply bf16 pairs; else all is fp32. */
static double pjrt_bound(ra_dtype dtype) {
    return dtype == RA_BF16 ? 1e-2 : 2e-5;
}

struct pjrt_trial {
    struct whole w;
    struct mask_arrays arrays;
    float slopes[16];
};

/* Problem number `trial`, with the modifiers that its number draws; whole_free(&x->w). */
static void pjrt_draw(struct pjrt_trial *x, int trial, int P) {
    struct whole *w = &x->w;
    *w = draw_trial(trial, P, &x->arrays);
    const bool sinks = below(2), temperature = below(2);
    whole_extras(w, (sinks ? SINKS | DSINKS : 0u) | (temperature ? TEMPERATURE : 0u) | ROW_MAX);
    w->p.softcap = below(3) ? 0 : 2;
    w->p.dropout = below(3) ? 0 : 0.25 * (double)(1 + below(4));
    w->p.seed = (uint64_t)below(1 << 20) * 0x100000001u + 77;
    if (below(2)) {
        for (int64_t h = 0; h < w->p.H; h++)
            x->slopes[h] = (float)(0.1 * uniform());
        w->p.alibi_slopes = x->slopes;
    }
    if (below(3) == 0) {
        w->bias_b = below(2) ? w->p.B : 1;
        w->bias_h = below(2) ? w->p.H : 1;
        w->bias_q = below(2) ? w->p.Sq : 1;
        w->bias = filled(bias_numel(w), RA_F32, 1);
        for (int64_t i = 0; i < bias_numel(w); i++)
            w->bias[i] = below(5) ? w->bias[i] : -INFINITY;
        w->p.has_bias = 1;
        w->dbias = poisoned(bias_numel(w));
    }
}

/* Both passes of one random problem on P devices. worst: the largest errors so far, by dtype; or NULL. Returns how many were compared: 0 if
 * the engine refuses the problem. */
__attribute__((unused)) static int pjrt_check_trial(int trial, int P, pjrt_run_fn *run, void *user, struct errors *worst) {
    struct pjrt_trial x;
    char name[32];
    pjrt_draw(&x, trial, P);
    const ra_status s = pjrt_whole_run(&x.w, trial % 3 ? 0 : 1, run, user);
    if (s == RA_OK) {
        oracle_result o = whole_oracle(&x.w);
        const struct errors e = whole_errors(&x.w, &o);
        oracle_result_free(&o);
        snprintf(name, sizeof name, "trial %d", trial);
        whole_check(&x.w, pjrt_bound(x.w.p.dtype), name);
        if (worst) {
            double *most = (double *)&worst[x.w.p.dtype];
            for (size_t i = 0; i < sizeof e / sizeof *most; i++)
                most[i] = fmax(most[i], ((const double *)&e)[i]);
        }
    } else {
        CHECK_STATUS(s, RA_ERR_UNSUPPORTED);
    }
    whole_free(&x.w);
    return s == RA_OK;
}

/* ---- NaN and infinity ---- */

/* Documents of 12 tokens in all, the keys from 50 on hidden from everybody. */
static struct whole pjrt_documents(int P, ra_dtype dtype, int32_t *lens) {
    struct whole w = {.P = P};
    random_state = 4711;
    ra_problem_init(&w.p);
    w.p.Sq = w.p.Skv = 61;
    w.p.H = 2;
    w.p.D = 7;
    w.p.Dv = 5;
    w.p.dtype = dtype;
    w.p.layout = RA_ZIGZAG;
    w.p.q_chunk = w.p.k_chunk = 8;
    w.p.mask.causal = 1;
    w.p.mask.kv_lens = lens;
    lens[0] = 50;
    whole_make(&w, 12);
    return w;
}

static bool pjrt_same(const float *x, const float *y, int64_t n) {
    return memcmp(x, y, (size_t)n * sizeof *x) == 0;
}

/* What nobody sees may be NaN or infinite without changing a bit, in both passes. */
__attribute__((unused)) static void pjrt_check_hidden(int P, ra_dtype dtype, pjrt_run_fn *run, void *user) {
    int32_t lens[2][1];
    struct whole a = pjrt_documents(P, dtype, lens[0]), b = pjrt_documents(P, dtype, lens[1]);
    const ra_problem *p = &a.p;
    for (int64_t s = 50; s < p->Skv; s++)
        for (int64_t i = 0; i < p->D; i++) {
            put_value(b.k, dtype, s * p->D + i, i % 3 ? NAN : INFINITY);
            if (i < p->Dv)
                put_value(b.v, dtype, s * p->Dv + i, i % 3 ? -INFINITY : NAN);
        }
    if (CHECK_OK(pjrt_whole_run(&a, 0, run, user)) && CHECK_OK(pjrt_whole_run(&b, 0, run, user))) {
        CHECK(pjrt_same(a.out, b.out, q_numel(p, p->Dv)) && pjrt_same(a.lse, b.lse, q_numel(p, 1)));
        CHECK(pjrt_same(a.dq, b.dq, q_numel(p, p->D)));
        CHECK(pjrt_same(a.dk, b.dk, kv_numel(p, p->D)) && pjrt_same(a.dv, b.dv, kv_numel(p, p->Dv)));
    }
    whole_free(&a);
    whole_free(&b);
}

enum { POISON_Q, POISON_K, POISON_V, POISON_DOUT };

/* Rows of two results that differ, or are not finite, are exactly those that `touched` says; heads alike. */
static void pjrt_check_rows(const char *what, const float *clean, const float *poisoned_, int64_t S, int64_t H, int64_t width,
                            const bool *touched) {
    for (int64_t s = 0; s < S; s++)
        for (int64_t h = 0; h < H; h++) {
            const float *x = clean + (s * H + h) * width, *y = poisoned_ + (s * H + h) * width;
            bool finite = true;
            for (int64_t i = 0; i < width; i++)
                finite = finite && isfinite(y[i]);
            CHECK_MSG(finite != touched[s], "%s: row %lld is %sfinite", what, (long long)s, finite ? "" : "not ");
            CHECK_MSG(touched[s] || pjrt_same(x, y, width), "%s: row %lld changed", what, (long long)s);
        }
}

/* One row of one input is NaN, or has an infinity: who sees it is not finite, everybody else keeps every bit. */
__attribute__((unused)) static void pjrt_check_seen(int P, ra_dtype dtype, int input, double poison, pjrt_run_fn *run, void *user) {
    int32_t lens[2][1];
    struct whole a = pjrt_documents(P, dtype, lens[0]), b = pjrt_documents(P, dtype, lens[1]);
    const ra_problem *p = &a.p;
    const int64_t at = 29; /* of the document 24..35 */
    void *const tensors[] = {b.q, b.k, b.v, b.dout};
    const int64_t heads[] = {p->H, p->G, p->G, p->H}, width[] = {p->D, p->D, p->Dv, p->Dv};
    for (int64_t i = 0; i < heads[input] * width[input]; i++)
        put_value(tensors[input], dtype, at * heads[input] * width[input] + i, poison);
    bool queries[61], keys[61] = {false}, none[61] = {false}; /* that are touched: a key, when such a query sees it */
    for (int64_t i = 0; i < 61; i++) {
        queries[i] = input == POISON_Q || input == POISON_DOUT ? i == at : oracle_sees(p, NULL, 0, 0, i, at);
        for (int64_t j = 0; j < 61 && queries[i]; j++)
            keys[j] = keys[j] || oracle_sees(p, NULL, 0, 0, i, j);
    }
    if (CHECK_OK(pjrt_whole_run(&a, 0, run, user)) && CHECK_OK(pjrt_whole_run(&b, 0, run, user))) {
        pjrt_check_rows("out", a.out, b.out, p->Sq, p->H, p->Dv, input == POISON_DOUT ? none : queries);
        pjrt_check_rows("dq", a.dq, b.dq, p->Sq, p->H, p->D, queries);
        pjrt_check_rows("dk", a.dk, b.dk, p->Skv, p->G, p->D, keys);
        pjrt_check_rows("dv", a.dv, b.dv, p->Skv, p->G, p->Dv, input == POISON_V ? none : keys);
    }
    whole_free(&a);
    whole_free(&b);
}

#endif
