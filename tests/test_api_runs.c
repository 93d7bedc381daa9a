/* What runs through the public functions promise about their results: the simple form is the planned form bit for bit, gradients do not
 * depend on which of them are wanted, nor bits on the order of a tensor's axes; empty sequences; 16-bit types; plans that share a comm
 * (cases 10, 17, 24, 25b, 29, 45, 60b, 80). */
#include "harness.h"

static bool small(void) {
    return getenv("RA_TEST_SMALL") != NULL;
}

/* ---- one rank's tensors, their axes stored in any order ---- */

enum { ORDERS = 24, BSHD = 0 };

/* Strides for permutation `order` of (b, t, h, d), innermost last; order 0 is b, t, h, d. */
static void strides_of(int order, const int64_t extent[4], int64_t stride[4]) {
    int axes[4] = {0, 1, 2, 3}, permuted[4];
    for (int i = 0, left = 4, code = order; i < 4; i++, left--) {
        const int radix = left == 4 ? 6 : left == 3 ? 2 : 1, pick = code / radix;
        code %= radix;
        permuted[i] = axes[pick];
        for (int j = pick; j < 3; j++)
            axes[j] = axes[j + 1];
    }
    int64_t step = 1;
    for (int i = 3; i >= 0; i--) {
        stride[permuted[i]] = step;
        step *= extent[permuted[i]];
    }
}

struct view {
    ra_tensor t;
    int64_t T, heads, width;
};

/* Calls f on the address of each element of the rank's view, and of the same element in the whole tensor [B,S,heads,width]. */
static void view_copy(const struct whole *w, int r, const struct view *v, int64_t S, void *whole, bool out) {
    const size_t size = ra_dtype_size(v->t.dtype);
    for (int64_t b = 0; b < w->p.B; b++)
        for (int64_t t = 0; t < v->T; t++)
            for (int64_t h = 0; h < v->heads; h++)
                for (int64_t d = 0; d < v->width; d++) {
                    const int64_t *s = v->t.stride, at = ra_shard_position(w->p.layout, S, w->P, r, t);
                    char *here = (char *)v->t.data + (size_t)(b * s[0] + t * s[1] + h * s[2] + d * s[3]) * size;
                    char *there = (char *)whole + (size_t)(((b * S + at) * v->heads + h) * v->width + d) * size;
                    memcpy(out ? there : here, out ? here : there, size);
                }
}

static struct view view_new(const struct whole *w, int r, int64_t S, int64_t heads, int64_t width, ra_dtype t, int order, void *whole) {
    struct view v = {.T = ra_shard_size(w->p.layout, S, w->P, r), .heads = heads, .width = width};
    const int64_t extent[4] = {w->p.B, v.T, heads, width};
    const size_t bytes = (size_t)(w->p.B * v.T * heads * width) * ra_dtype_size(t);
    v.t.dtype = t;
    strides_of(order, extent, v.t.stride);
    v.t.data = bytes ? malloc(bytes) : NULL; /* a rank without tokens passes nothing */
    if (bytes)
        memset(v.t.data, 0xff, bytes); /* NaN in every type */
    if (whole)
        view_copy(w, r, &v, S, whole, false);
    return v;
}

/* ---- one run ---- */

enum { DQ = 1, DK = 2, DV = 4, ALL = 7 };

/* A problem and how it is run. */
struct form {
    struct whole w;
    int order;
    bool simple, no_lse, no_dout, no_dlse;
    bool one_dout; /* one row for all queries, by stride 0 */
    unsigned wanted;
    int wanting; /* the only rank that wants gradients; -1: all do */
    ra_dtype out_type, gradient_type;
    void *gradients[3]; /* as stored in gradient_type, when that is not F32 */
};

static struct form new_form(int P, ra_dtype t) {
    struct form f = {.w = {.P = P}, .wanted = ALL, .wanting = -1};
    ra_problem_init(&f.w.p);
    f.w.p.B = 2;
    f.w.p.Sq = f.w.p.Skv = 29;
    f.w.p.H = 4;
    f.w.p.G = 2;
    f.w.p.D = 11;
    f.w.p.Dv = 7;
    f.w.p.dtype = t;
    f.w.p.layout = RA_ZIGZAG;
    f.w.p.mask.causal = 1;
    f.w.p.threads = 1;
    return f;
}

static struct view view_out(const struct form *f, int r, int64_t S, int64_t heads, int64_t width, ra_dtype t) {
    return view_new(&f->w, r, S, heads, width, t, f->order, NULL);
}

static ra_status planned(ra_comm *comm, const ra_problem *p, ra_attention_args *a, unsigned wanted) {
    ra_plan *plan = NULL;
    ra_status s = ra_plan_create(comm, p, &plan);
    if (s == RA_OK)
        s = ra_attention_forward(plan, a, NULL);
    if (s == RA_OK && wanted)
        s = ra_attention_backward(plan, a, NULL);
    ra_plan_destroy(plan);
    return s;
}

static ra_status run_rank(ra_comm *comm, int r, void *user) {
    struct form *f = user;
    struct whole *w = &f->w;
    ra_problem p = w->p;
    const int64_t T = ra_shard_size(p.layout, p.Sq, w->P, r);
    struct view q = view_new(w, r, p.Sq, p.H, p.D, p.dtype, f->order, w->q), k = view_new(w, r, p.Skv, p.G, p.D, p.dtype, f->order, w->k),
                v = view_new(w, r, p.Skv, p.G, p.Dv, p.dtype, f->order, w->v),
                dout = view_new(w, r, p.Sq, p.H, p.Dv, p.dtype, f->order, w->dout);
    struct view out = view_out(f, r, p.Sq, p.H, p.Dv, f->out_type), dq = view_out(f, r, p.Sq, p.H, p.D, f->gradient_type),
                dk = view_out(f, r, p.Skv, p.G, p.D, f->gradient_type), dv = view_out(f, r, p.Skv, p.G, p.Dv, f->gradient_type);
    float *lse = rows_of(w, r, NULL), *dlse = rows_of(w, r, w->dlse);
    ra_stats stats = {.pairs = -1};
    ra_attention_args a = {.q = q.t, .k = k.t, .v = v.t, .out = out.t, .lse = lse, .dlse = dlse, .dout = dout.t, .stats = &stats};
    a.lse = f->no_lse ? NULL : lse;
    a.dlse = f->no_dlse ? NULL : dlse;
    if (f->one_dout) /* the row of position 0, [B,1,H,Dv] */
        a.dout = (ra_tensor){w->dout, {p.Sq * p.H * p.Dv, 0, p.Dv, 1}, p.dtype};
    if (f->no_dout)
        a.dout.data = NULL;
    const unsigned wanted = f->wanting < 0 || f->wanting == r ? f->wanted : 0;
    if (wanted & DQ)
        a.dq = dq.t;
    if (wanted & DK)
        a.dk = dk.t;
    if (wanted & DV)
        a.dv = dv.t;
    const ra_status s = f->simple ? ra_attention(comm, &p, &a) : planned(comm, &p, &a, f->wanted);
    if (s == RA_OK) {
        void *const gradient[3] = {f->gradients[0] ? f->gradients[0] : w->dq, f->gradients[1] ? f->gradients[1] : w->dk,
                                   f->gradients[2] ? f->gradients[2] : w->dv};
        CHECK(stats.pairs >= 0 && stats.seconds >= 0);
        view_copy(w, r, &out, p.Sq, w->out, true); /* also of types that are narrower than fp32 */
        view_copy(w, r, &dq, p.Sq, gradient[0], true);
        view_copy(w, r, &dk, p.Skv, gradient[1], true);
        view_copy(w, r, &dv, p.Skv, gradient[2], true);
        for (int64_t h = 0; h < p.B * p.H; h++)
            for (int64_t t = 0; t < T; t++)
                w->lse[h * p.Sq + ra_shard_position(p.layout, p.Sq, w->P, r, t)] = f->no_lse ? NAN : lse[h * T + t];
    }
    void *all[] = {q.t.data, k.t.data, v.t.data, dout.t.data, out.t.data, dq.t.data, dk.t.data, dv.t.data, lse, dlse};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    return s;
}

static bool run_form(struct form *f) {
    const ra_comm_options options = {.timeout_s = 20};
    f->w.p.backward = f->wanted != 0;
    return CHECK_OK(ra_local_run(f->w.P, &options, NULL, run_rank, f));
}

/* Copies of the five results. */
struct results {
    float *x[5];
    int64_t n[5];
};

static struct results results_of(const struct whole *w) {
    const ra_problem *p = &w->p;
    const float *from[5] = {w->out, w->lse, w->dq, w->dk, w->dv};
    struct results r = {.n = {q_numel(p, p->Dv), q_numel(p, 1), q_numel(p, p->D), kv_numel(p, p->D), kv_numel(p, p->Dv)}};
    for (int i = 0; i < 5; i++) {
        r.x[i] = malloc((size_t)(r.n[i] + 1) * sizeof(float));
        memcpy(r.x[i], from[i], (size_t)r.n[i] * sizeof(float));
    }
    return r;
}

static void results_free(struct results *r) {
    for (int i = 0; i < 5; i++)
        free(r->x[i]);
}

enum { OUT = 0, LSE = 1, GRADIENTS = 2 };

static void check_same(const struct results *r, const struct whole *w, int first, int end, const char *name) {
    const float *now[5] = {w->out, w->lse, w->dq, w->dk, w->dv};
    static const char *const names[] = {"out", "lse", "dq", "dk", "dv"};
    for (int i = first; i < end; i++)
        CHECK_MSG(r->n[i] == 0 || memcmp(r->x[i], now[i], (size_t)r->n[i] * sizeof(float)) == 0, "%s, P %d: %s differs", name, w->P,
                  names[i]);
}

static bool all_nan(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!isnan(x[i]))
            return false;
    return true;
}

static bool no_nan(const struct results *r) {
    for (int i = 0; i < 5; i++)
        for (int64_t j = 0; j < r->n[i]; j++)
            if (isnan(r->x[i][j]))
                return false;
    return true;
}

/* ---- tests ---- */

static void simple_form(void) {
    for (int P = 1; P <= 3; P++) {
        struct form f = new_form(P, RA_F32);
        whole_make(&f.w, 0);
        if (!run_form(&f))
            return;
        whole_check(&f.w, 4e-6, "planned form");
        struct results planned_results = results_of(&f.w);
        CHECK(no_nan(&planned_results)); /* what was NaN before is written */
        f.simple = true;
        run_form(&f);
        check_same(&planned_results, &f.w, OUT, 5, "simple form");
        f.no_lse = true;
        run_form(&f);
        check_same(&planned_results, &f.w, OUT, LSE, "simple form without lse");
        check_same(&planned_results, &f.w, GRADIENTS, 5, "simple form without lse");
        f.wanted = 0; /* forward only */
        run_form(&f);
        check_same(&planned_results, &f.w, OUT, LSE, "simple form, forward only");
        CHECK(all_nan(f.w.dq, q_numel(&f.w.p, f.w.p.D)));
        f.no_lse = false;
        run_form(&f);
        check_same(&planned_results, &f.w, OUT, GRADIENTS, "simple form, forward only");
        results_free(&planned_results);
        whole_free(&f.w);
    }
}

/* Each subset of the gradients: the bits of the full run, and nothing else is written. */
static void gradient_subsets(void) {
    for (int P = 1; P <= 3; P += 2) {
        struct form f = new_form(P, RA_F32);
        whole_make(&f.w, 0);
        run_form(&f);
        struct results full = results_of(&f.w);
        for (unsigned wanted = 0; wanted < 16; wanted++) {
            f.wanted = wanted & ALL;
            f.simple = wanted > ALL;
            run_form(&f);
            const float *now[3] = {f.w.dq, f.w.dk, f.w.dv};
            check_same(&full, &f.w, OUT, GRADIENTS, "subset");
            for (int i = 0; i < 3; i++)
                if (wanted >> i & 1)
                    check_same(&full, &f.w, GRADIENTS + i, GRADIENTS + i + 1, "subset");
                else
                    CHECK(all_nan(now[i], full.n[GRADIENTS + i]));
        }
        results_free(&full);
        whole_free(&f.w);
    }
}

/* In the simple form one rank may want gradients and the others none: the rank gets what it got when all wanted them. */
static void one_rank_wants_gradients(void) {
    struct form f = new_form(3, RA_F32);
    const ra_problem *p = &f.w.p;
    whole_make(&f.w, 0);
    run_form(&f);
    struct results full = results_of(&f.w);
    const float *now[3] = {f.w.dq, f.w.dk, f.w.dv};
    const int64_t row[3] = {p->H * p->D, p->G * p->D, p->G * p->Dv};
    f.simple = true;
    for (f.wanting = 0; f.wanting < 3; f.wanting++) {
        run_form(&f);
        check_same(&full, &f.w, OUT, GRADIENTS, "one rank");
        for (int i = 0; i < 3; i++)
            for (int r = 0; r < 3; r++)
                for (int64_t t = 0; t < ra_shard_size(p->layout, p->Sq, 3, r); t++) {
                    const int64_t at = ra_shard_position(p->layout, p->Sq, 3, r, t) * row[i];
                    CHECK(r == f.wanting ? memcmp(now[i] + at, full.x[GRADIENTS + i] + at, (size_t)row[i] * sizeof(float)) == 0
                                         : all_nan(now[i] + at, row[i]));
                }
    }
    results_free(&full);
    whole_free(&f.w);
}

/* Gradient through lse alone, through out alone, through neither. */
static void gradient_through_lse(void) {
    for (int variant = 0; variant < 8; variant++) {
        struct form f = new_form(variant & 4 ? 3 : 1, RA_F32);
        f.no_dout = variant & 1;
        f.no_dlse = variant & 2;
        whole_make(&f.w, 0);
        run_form(&f);
        if (f.no_dout)
            memset(f.w.dout, 0, (size_t)q_numel(&f.w.p, f.w.p.Dv) * sizeof(float)); /* for the oracle */
        if (f.no_dlse)
            memset(f.w.dlse, 0, (size_t)q_numel(&f.w.p, 1) * sizeof(float));
        whole_check(&f.w, 4e-6, "gradient through lse");
        if (f.no_dout && f.no_dlse)
            for (int64_t i = 0; i < q_numel(&f.w.p, f.w.p.D); i++)
                CHECK(f.w.dq[i] == 0);
        whole_free(&f.w);
    }
}

/* Case 45: axes stored in any of the 24 orders, bits the same. */
static void axes_in_any_order(void) {
    for (int P = 1; P <= 2; P++)
        for (int t = 0; t < 3; t++) {
            struct form f = new_form(P, (ra_dtype)t);
            struct results first = {.n = {0}};
            whole_make(&f.w, 0);
            for (f.order = BSHD; f.order < ORDERS; f.order += small() ? 5 : 1) {
                if (!run_form(&f))
                    return;
                if (f.order == BSHD)
                    first = results_of(&f.w);
                char name[32];
                snprintf(name, sizeof name, "axes in order %d", f.order);
                check_same(&first, &f.w, OUT, 5, name);
            }
            results_free(&first);
            whole_free(&f.w);
        }
}

/* Case 29: one row of dout for all queries by stride 0 is as good as copies of it. */
static void broadcast_dout(void) {
    for (int P = 1; P <= 3; P += 2) {
        struct form f = new_form(P, RA_F32);
        whole_make(&f.w, 0);
        const ra_problem *p = &f.w.p;
        float *dout = f.w.dout;
        for (int64_t b = 0; b < p->B; b++)
            for (int64_t t = 1; t < p->Sq; t++)
                memcpy(dout + (b * p->Sq + t) * p->H * p->Dv, dout + b * p->Sq * p->H * p->Dv, (size_t)(p->H * p->Dv) * sizeof *dout);
        run_form(&f);
        struct results copies = results_of(&f.w);
        f.one_dout = true;
        run_form(&f);
        check_same(&copies, &f.w, OUT, 5, "broadcast dout");
        results_free(&copies);
        whole_free(&f.w);
    }
}

/* 16-bit tensors in the simple form: out is the oracle's within a rounding, gradients are as accurate as fp32 ones. */
static void half_types(void) {
    for (int t = RA_BF16; t <= RA_F16; t++)
        for (int variant = 0; variant < 4; variant++) {
            struct form f = new_form(variant & 1 ? 3 : 1, (ra_dtype)t);
            const ra_problem *p = &f.w.p;
            const int64_t n = q_numel(p, p->Dv);
            f.simple = true;
            f.no_lse = variant & 2;
            f.out_type = (ra_dtype)t;
            whole_make(&f.w, 0);
            if (!run_form(&f))
                return;
            oracle_result o = whole_oracle(&f.w);
            float *out = malloc((size_t)n * sizeof *out);
            for (int64_t i = 0; i < n; i++)
                out[i] = (float)get_value(f.w.out, (ra_dtype)t, i);
            int64_t off = 0;
            const double half_ulp = t == RA_BF16 ? 0x1p-8 : 0x1p-11, bound = bound_for((ra_dtype)t, 4e-6);
            for (int64_t i = 0; i < n; i++)
                off += !(fabs(out[i] - o.out[i]) <= half_ulp * fabs(o.out[i]) + bound);
            CHECK_MSG(off == 0, "dtype %d: %lld elements of out are not the oracle's, rounded", t, (long long)off);
            CHECK(relative_error(f.w.dq, o.dq, q_numel(p, p->D), 0.1) < bound);
            CHECK(relative_error(f.w.dk, o.dk, kv_numel(p, p->D), 0.1) < bound);
            CHECK(relative_error(f.w.dv, o.dv, kv_numel(p, p->Dv), 0.1) < bound);
            free(out);
            oracle_result_free(&o);
            whole_free(&f.w);
        }
}

/* Gradients stored in 16 bits are the fp32 ones, rounded. */
static void half_gradients(void) {
    for (int t = RA_BF16; t <= RA_F16; t++)
        for (int P = 1; P <= 3; P += 2) {
            struct form f = new_form(P, RA_F32);
            const ra_problem *p = &f.w.p;
            const int64_t n[3] = {q_numel(p, p->D), kv_numel(p, p->D), kv_numel(p, p->Dv)};
            whole_make(&f.w, 0);
            run_form(&f);
            const float *wide[3] = {f.w.dq, f.w.dk, f.w.dv};
            f.gradient_type = (ra_dtype)t;
            for (int i = 0; i < 3; i++)
                f.gradients[i] = malloc((size_t)n[i] * 2);
            run_form(&f);
            for (int i = 0; i < 3; i++) {
                for (int64_t j = 0; j < n[i]; j++) {
                    const uint16_t expected = t == RA_BF16 ? ra__to_bf16(wide[i][j]) : ra__to_f16(wide[i][j]);
                    CHECK_EQ_INT(((uint16_t *)f.gradients[i])[j], expected);
                }
                free(f.gradients[i]);
            }
            whole_free(&f.w);
        }
}

/* No queries, no keys, neither; fewer tokens than ranks. Ranks without tokens pass no tensors. */
static void empty_sequences(void) {
    static const int64_t lengths[][2] = {{0, 0}, {0, 9}, {9, 0}, {1, 1}, {2, 1}, {1, 2}, {2, 2}};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int P = 1; P <= 4; P++)
            for (int variant = 0; variant < 12; variant++) {
                struct form f = new_form(P, RA_F32);
                f.w.p.Sq = lengths[i][0];
                f.w.p.Skv = lengths[i][1];
                f.w.p.layout = (ra_layout)(variant % 3);
                f.w.p.mask.causal = variant / 3 & 1;
                f.w.p.mask.align = RA_ALIGN_BOTTOM_RIGHT;
                f.simple = variant / 6;
                whole_make(&f.w, 0);
                if (!run_form(&f)) {
                    fprintf(stderr, "Sq %lld Skv %lld P %d variant %d\n", (long long)f.w.p.Sq, (long long)f.w.p.Skv, P, variant);
                    return;
                }
                whole_check(&f.w, 4e-6, "short sequence");
                for (int64_t j = 0; f.w.p.Skv == 0 && j < q_numel(&f.w.p, 1); j++) {
                    CHECK(f.w.lse[j] == -INFINITY);
                    for (int64_t d = 0; d < f.w.p.Dv; d++)
                        CHECK(f.w.out[j * f.w.p.Dv + d] == 0);
                    for (int64_t d = 0; d < f.w.p.D; d++)
                        CHECK(f.w.dq[j * f.w.p.D + d] == 0);
                }
                whole_free(&f.w);
            }
}

/* ---- plans that share a comm (cases 60b, 80) ---- */

struct pair {
    struct whole w[2];
    float *solo[2]; /* out of each on its own */
};

/* Out of rank r's queries, in its own order. */
static void own_args(const struct whole *w, int r, struct part part[4], ra_attention_args *a) {
    const ra_problem *p = &w->p;
    part[0] = part_new(w, r, p->Sq, p->H, p->D, p->dtype, w->q);
    part[1] = part_new(w, r, p->Skv, p->G, p->D, p->dtype, w->k);
    part[2] = part_new(w, r, p->Skv, p->G, p->Dv, p->dtype, w->v);
    part[3] = part_new(w, r, p->Sq, p->H, p->Dv, RA_F32, NULL);
    *a = (ra_attention_args){.q = part[0].tensor, .k = part[1].tensor, .v = part[2].tensor, .out = part[3].tensor};
}

static ra_status alternate(ra_comm *comm, int r, void *user) {
    struct pair *pair = user;
    struct part part[2][4];
    ra_attention_args a[2];
    ra_plan *plan[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        own_args(&pair->w[i], r, part[i], &a[i]);
        CHECK_OK(ra_plan_create(comm, &pair->w[i].p, &plan[i]));
    }
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 2; i++) {
            const struct whole *w = &pair->w[i];
            const size_t bytes = (size_t)(w->p.B * part[i][3].T * w->p.H * w->p.Dv) * sizeof(float);
            memset(part[i][3].data, 0xff, bytes);
            CHECK_OK(ra_attention_forward(plan[i], &a[i], NULL));
            part_copy(w, r, w->p.Sq, w->p.H, w->p.Dv, w->out, &part[i][3].tensor, true);
            for (int64_t t = 0; t < part[i][3].T; t++) { /* every round against the run alone */
                const int64_t s = ra_shard_position(w->p.layout, w->p.Sq, w->P, r, t), row = w->p.H * w->p.Dv;
                CHECK(memcmp(w->out + s * row, pair->solo[i] + s * row, (size_t)row * sizeof(float)) == 0);
            }
        }
    for (int i = 0; i < 2; i++) {
        ra_plan_destroy(plan[i]);
        for (int j = 0; j < 4; j++)
            free(part[i][j].data);
    }
    return RA_OK;
}

static void two_plans_on_one_comm(void) {
    struct pair pair = {.solo = {NULL}};
    const ra_comm_options options = {.timeout_s = 20};
    for (int i = 0; i < 2; i++) {
        struct form f = new_form(3, i ? RA_BF16 : RA_F32);
        f.w.p.B = 1;
        f.w.p.H = i ? 12 : 4;
        f.w.p.Sq = f.w.p.Skv = i ? 50 : 29;
        f.w.p.layout = i ? RA_STRIPED : RA_ZIGZAG;
        f.w.p.mask.causal = !i;
        whole_make(&f.w, 0);
        run_form(&f);
        pair.w[i] = f.w;
        pair.solo[i] = f.w.out;
        pair.w[i].out = poisoned(q_numel(&f.w.p, f.w.p.Dv));
        pair.w[i].p.backward = 0;
    }
    CHECK_OK(ra_local_run(3, &options, NULL, alternate, &pair));
    for (int i = 0; i < 2; i++) {
        free(pair.solo[i]);
        whole_free(&pair.w[i]);
    }
}

int main(void) {
    RUN(simple_form);
    RUN(gradient_subsets);
    RUN(one_rank_wants_gradients);
    RUN(gradient_through_lse);
    RUN(axes_in_any_order);
    RUN(broadcast_dout);
    RUN(half_types);
    RUN(half_gradients);
    RUN(empty_sequences);
    RUN(two_plans_on_one_comm);
    return check_result();
}
