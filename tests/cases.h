/* What the tests of docs/cases.md share: the two families of inputs, the closed form of one of them, and every place where a problem is
 * run.
 *
 * Family F: q, k, v, dout are sines of their indices; the right value is the oracle's.
 * Family U: k = 0 and v[j] = j, so that all visible keys weigh the same and results follow from the set of visible keys alone:
 *     out = mean of the visible j, lse = ln(their number), dq = 0, dv_j = sum over the rows i that see j of dout / count(i).
 * check_uniform works them out from a predicate that the test writes down, so that not even the oracle is trusted. */
#ifndef RA_TESTS_CASES_H
#define RA_TESTS_CASES_H

#include "harness.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

__attribute__((unused)) static bool small(void) {
    return getenv("RA_TEST_SMALL") != NULL;
}

static struct whole problem(int64_t Sq, int64_t Skv, int64_t H, int64_t G, int64_t D, int64_t Dv) {
    struct whole w = {.P = 1, .timeout_s = 10};
    ra_problem_init(&w.p);
    w.p.Sq = Sq;
    w.p.Skv = Skv;
    w.p.H = H;
    w.p.G = G;
    w.p.D = D;
    w.p.Dv = Dv;
    w.p.threads = 1;
    return w;
}

__attribute__((unused)) static void family_f(struct whole *w) {
    const ra_problem *p = &w->p;
    const int64_t q_row = p->H * p->D, k_row = p->G * p->D, v_row = p->G * p->Dv, o_row = p->H * p->Dv;
    for (int64_t n = 0; n < q_numel(p, p->D); n++)
        put_value(w->q, p->dtype, n,
                  sin(0.11 * (double)(n / q_row % p->Sq) + 0.7 * (double)(n % q_row / p->D) + 0.23 * (double)(n % p->D)));
    for (int64_t n = 0; n < kv_numel(p, p->D); n++)
        put_value(w->k, p->dtype, n,
                  cos(0.07 * (double)(n / k_row % p->Skv) + 0.5 * (double)(n % k_row / p->D) + 0.31 * (double)(n % p->D)));
    for (int64_t n = 0; n < kv_numel(p, p->Dv); n++)
        put_value(w->v, p->dtype, n,
                  sin(0.05 * (double)(n / v_row % p->Skv) + 0.9 * (double)(n % p->Dv)) + 0.1 * (double)(n % v_row / p->Dv));
    for (int64_t n = 0; n < q_numel(p, p->Dv); n++)
        put_value(w->dout, p->dtype, n,
                  cos(0.03 * (double)(n / o_row % p->Sq) + 0.2 * (double)(n % p->Dv) + 0.4 * (double)(n % o_row / p->Dv)));
    memset(w->dlse, 0, (size_t)q_numel(p, 1) * sizeof *w->dlse);
}

/* q stays random: nothing may depend on it but dk. dout = 1. */
__attribute__((unused)) static void family_u(struct whole *w) {
    const ra_problem *p = &w->p;
    memset(w->k, 0, (size_t)kv_numel(p, p->D) * ra_dtype_size(p->dtype));
    for (int64_t n = 0; n < kv_numel(p, p->Dv); n++)
        put_value(w->v, p->dtype, n, (double)(n / (p->G * p->Dv) % p->Skv));
    for (int64_t n = 0; n < q_numel(p, p->Dv); n++)
        put_value(w->dout, p->dtype, n, 1);
    memset(w->dlse, 0, (size_t)q_numel(p, 1) * sizeof *w->dlse);
}

/* ---- everywhere: P = 1, 2, 4, 7 in every layout ---- */

static void poison_results(struct whole *w) {
    const ra_problem *p = &w->p;
    float *const x[] = {w->out, w->lse, w->dq, w->dk, w->dv, w->row_max, w->dsinks, w->dbias};
    const int64_t n[] = {q_numel(p, p->Dv), q_numel(p, 1), q_numel(p, p->D), kv_numel(p, p->D), kv_numel(p, p->Dv),
                         q_numel(p, 1),     p->H,          bias_numel(w)};
    for (int i = 0; i < COUNT(x); i++)
        if (x[i])
            memset(x[i], 0xff, (size_t)n[i] * sizeof(float));
}

static bool next_place(struct whole *w, int n) {
    static const int ranks[] = {1, 2, 4, 7};
    if (n >= 3 * COUNT(ranks))
        return false;
    w->P = ranks[n / 3];
    w->p.layout = (ra_layout)(n % 3);
    poison_results(w);
    return true;
}

#define EVERYWHERE(w) for (int place_ = 0; next_place((w), place_); place_++)

/* Runs it: true if there are results. What the engine does not do yet must be refused by the run exactly as ra_supports says, and is told;
 * outputs on demand are refused by the run alone. */
__attribute__((unused)) static bool run_or_refused(struct whole *w, const char *name) {
    char reason[256];
    const ra_status promised = ra_supports(&w->p, "cpu", reason, sizeof reason), got = whole_run(w);
    if (got == RA_ERR_UNSUPPORTED && strstr(ra_last_error(), "yet")) {
        CHECK_MSG(promised == RA_ERR_UNSUPPORTED || w->row_max || w->dbias || w->dsinks, "%s: refused (%s), though ra_supports said %s",
                  name, ra_last_error(), ra_status_name(promised));
        if (w->P == 1 && w->p.layout == RA_CONTIGUOUS)
            printf("  skipped %s: %s\n", name, ra_last_error());
        return false;
    }
    return CHECK_MSG(got == RA_OK && promised == RA_OK, "%s: P %d layout %d: %s (%s), ra_supports: %s", name, w->P, (int)w->p.layout,
                     ra_status_name(got), ra_last_error(), ra_status_name(promised));
}

/* ---- the closed form ---- */

typedef bool sees_fn(const ra_problem *p, int64_t b, int64_t i, int64_t j);

static bool near(double x, double right, double bound, double floor) {
    return fabs(x - right) <= bound * (fabs(right) > floor ? fabs(right) : floor);
}

/* All five tensors of family U for the mask that `sees` states. */
__attribute__((unused)) static void check_uniform(const struct whole *w, sees_fn *sees, const char *name) {
    const ra_problem *p = &w->p;
    const double bound = bound_for(p->dtype, p->dtype == RA_F32 ? 1e-5 : 1e-3), scale = isnan(p->scale) ? 1 / sqrt((double)p->D) : p->scale;
    const double group = (double)(p->H / p->G);
    double *dv = malloc((size_t)(p->Skv + 1) * sizeof *dv), *dk = malloc((size_t)(p->Skv * p->D + 1) * sizeof *dk);
    int64_t wrong_out = 0, wrong_lse = 0, wrong_dq = 0, wrong_dk = 0, wrong_dv = 0;
    for (int64_t b = 0; b < p->B; b++)
        for (int64_t g = 0; g < p->G; g++) {
            double largest_dk = 1;
            memset(dv, 0, (size_t)p->Skv * sizeof *dv);
            memset(dk, 0, (size_t)(p->Skv * p->D) * sizeof *dk);
            for (int64_t i = 0; i < p->Sq; i++) {
                double count = 0, sum = 0;
                for (int64_t j = 0; j < p->Skv; j++)
                    if (sees(p, b, i, j)) {
                        count++;
                        sum += (double)j;
                    }
                const double mean = count ? sum / count : 0;
                for (int64_t h = g * p->H / p->G; h < (g + 1) * p->H / p->G; h++) {
                    const float lse = w->lse[(b * p->H + h) * p->Sq + i];
                    wrong_lse += count ? !near(lse, log(count), bound, 1) : lse != -INFINITY;
                    for (int64_t d = 0; d < p->Dv; d++) {
                        const float out = w->out[((b * p->Sq + i) * p->H + h) * p->Dv + d];
                        wrong_out += count ? !near(out, mean, bound, 1) : out != 0;
                    }
                    for (int64_t d = 0; d < p->D && p->backward; d++) {
                        const int64_t at = ((b * p->Sq + i) * p->H + h) * p->D + d;
                        wrong_dq += w->dq[at] != 0;
                        for (int64_t j = 0; j < p->Skv && count; j++) /* ds = p (dout.v - mean of it) */
                            if (sees(p, b, i, j))
                                dk[j * p->D + d] += scale * (double)p->Dv * ((double)j - mean) / count * get_value(w->q, p->dtype, at);
                    }
                }
                for (int64_t j = 0; j < p->Skv && count; j++)
                    dv[j] += sees(p, b, i, j) ? group / count : 0;
            }
            for (int64_t n = 0; n < p->Skv * p->D; n++)
                largest_dk = fabs(dk[n]) > largest_dk ? fabs(dk[n]) : largest_dk;
            for (int64_t j = 0; j < p->Skv && p->backward; j++) {
                for (int64_t d = 0; d < p->Dv; d++) {
                    const float x = w->dv[((b * p->Skv + j) * p->G + g) * p->Dv + d];
                    wrong_dv += dv[j] == 0 ? x != 0 : !near(x, dv[j], bound, 1);
                }
                for (int64_t d = 0; d < p->D; d++) {
                    const float x = w->dk[((b * p->Skv + j) * p->G + g) * p->D + d];
                    wrong_dk += dv[j] == 0 ? x != 0 : !near(x, dk[j * p->D + d], bound, largest_dk);
                }
            }
        }
    free(dv);
    free(dk);
    CHECK_MSG(wrong_out + wrong_lse + wrong_dq + wrong_dk + wrong_dv == 0,
              "%s: P %d layout %d dtype %d: wrong are %lld of out, %lld of lse, %lld of dq, %lld of dk, %lld of dv", name, w->P,
              (int)p->layout, (int)p->dtype, (long long)wrong_out, (long long)wrong_lse, (long long)wrong_dq, (long long)wrong_dk,
              (long long)wrong_dv);
}

/* Family U everywhere, against the closed form. */
__attribute__((unused)) static void uniform_everywhere(struct whole *w, int document, sees_fn *sees, const char *name) {
    whole_make(w, document);
    family_u(w);
    const int wanted = w->p.backward;
    EVERYWHERE(w) {
        bool ran = true;
        for (w->p.backward = wanted && !whole_is_short(w); ran && w->p.backward <= wanted; w->p.backward++) {
            ran = run_or_refused(w, name);
            if (ran)
                check_uniform(w, sees, name);
        }
        w->p.backward = wanted;
        if (!ran)
            break;
    }
}

/* ---- the same bits ---- */

enum { OUT = 1, LSE = 2, DQ = 4, DK = 8, DV = 16, FIVE = 31 };

struct results {
    float *x[5];
    int64_t n[5];
};

__attribute__((unused)) static struct results results_of(const struct whole *w) {
    const ra_problem *p = &w->p;
    const float *from[5] = {w->out, w->lse, w->dq, w->dk, w->dv};
    struct results r = {.n = {q_numel(p, p->Dv), q_numel(p, 1), q_numel(p, p->D), kv_numel(p, p->D), kv_numel(p, p->Dv)}};
    for (int i = 0; i < 5; i++)
        r.x[i] = memcpy(malloc((size_t)(r.n[i] + 1) * sizeof(float)), from[i], (size_t)r.n[i] * sizeof(float));
    return r;
}

__attribute__((unused)) static void results_free(struct results *r) {
    for (int i = 0; i < 5; i++)
        free(r->x[i]);
}

__attribute__((unused)) static bool same_bits(const struct results *r, const struct whole *w, unsigned which, const char *name) {
    static const char *const names[] = {"out", "lse", "dq", "dk", "dv"};
    const float *now[5] = {w->out, w->lse, w->dq, w->dk, w->dv};
    bool ok = true;
    for (int i = 0; i < 5; i++)
        if (which >> i & 1)
            ok &= CHECK_MSG(r->n[i] == 0 || memcmp(r->x[i], now[i], (size_t)r->n[i] * sizeof(float)) == 0,
                            "%s: P %d layout %d: %s has other bits", name, w->P, (int)w->p.layout, names[i]);
    return ok;
}

/* Within rounding: |x - y| <= bound * largest |y|. */
__attribute__((unused)) static bool same_values(const struct results *r, const struct whole *w, double bound, const char *name) {
    static const char *const names[] = {"out", "lse", "dq", "dk", "dv"};
    const float *now[5] = {w->out, w->lse, w->dq, w->dk, w->dv};
    bool ok = true;
    for (int i = 0; i < (w->p.backward ? 5 : 2); i++) {
        double *wide = malloc((size_t)(r->n[i] + 1) * sizeof *wide);
        for (int64_t n = 0; n < r->n[i]; n++)
            wide[n] = r->x[i][n];
        const double e = relative_error(now[i], wide, r->n[i], i == 1 ? 1 : 0.1);
        ok &= CHECK_MSG(e <= bound, "%s: P %d layout %d: %s differs by %.2g, bound %.2g", name, w->P, (int)w->p.layout, names[i], e, bound);
        free(wide);
    }
    return ok;
}

/* Against the oracle everywhere. */
__attribute__((unused)) static void exact_everywhere(struct whole *w, double bound, const char *name) {
    const int wanted = w->p.backward;
    EVERYWHERE(w) {
        bool right = true;
        for (w->p.backward = wanted && !whole_is_short(w); right && w->p.backward <= wanted; w->p.backward++)
            right = run_or_refused(w, name) && whole_check(w, bound, name);
        w->p.backward = wanted;
        if (!right)
            break;
    }
}

#endif
