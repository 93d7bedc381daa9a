/* The drivers of one rank, fed by hand: odd tiles, empty blocks, blocks in any order, every storage of the operands, each mask, against the
 * oracle; what NaN, infinity and garbage may and may not reach; errors against those of a plain fp32 loop (cases 4, 5, 6, 21, 29, 30, 52).
 */
#include "attn_job.h"

static void choose_mask(struct job *j) {
    ra_mask *m = &j->p.mask;
    const int64_t kind = below(4);
    m->causal = kind == 1;
    m->causal_block = kind == 2 ? 1 + below(20) : 0;
    m->align = kind == 0 ? RA_ALIGN_NONE : below(2) ? RA_ALIGN_TOP_LEFT : RA_ALIGN_BOTTOM_RIGHT;
    if (below(3) == 0) {
        const int64_t document = 1 + below(40);
        j->q_ids = malloc((size_t)(j->p.B * j->p.Sq + 1) * sizeof *j->q_ids);
        j->kv_ids = malloc((size_t)(j->p.B * j->p.Skv + 1) * sizeof *j->kv_ids);
        for (int64_t i = 0; i < j->p.B * j->p.Sq; i++)
            j->q_ids[i] = (int32_t)(i / document);
        for (int64_t i = 0; i < j->p.B * j->p.Skv; i++)
            j->kv_ids[i] = (int32_t)(i / document + below(9) / 8);
        m->q_segment_ids = j->q_ids;
        m->kv_segment_ids = j->kv_ids;
    }
    if (below(3) == 0) {
        const int64_t nb = below(2) ? j->p.B : 1, nh = below(2) ? j->p.H : 1, nt = below(2) ? j->p.Sq : 1;
        j->bias = grid_filled(nb, nt, nh, j->p.Skv, (ra_dtype)below(3), (int)below(4), random_value);
        for (int64_t i = 0; i < nb * nt * nh * j->p.Skv / 4; i++)
            grid_set(&j->bias, below(nb), below(nt), below(nh), below(j->p.Skv), -INFINITY);
        const int64_t extents[3] = {nb, nt, nh};
        for (int i = 0; i < 3; i++)
            if (extents[i] == 1)
                j->bias.t.stride[i] = 0;
    }
}

static void anything(void) {
    static const int64_t sizes[] = {1, 2, 3, 5, 8, 16, 17, 24, 33, 40, 64};
    for (int trial = 0; trial < (small() ? 60 : 600); trial++) {
        const bool decode = trial % 3 == 0; /* few queries, more keys than are one thread's share */
        struct job j = random_job(1 + below(decode ? 5 : 140), 1 + below(decode ? 1200 : 140), sizes[below(11)], sizes[below(11)]);
        j.decode = decode;
        j.p.B = 1 + below(2);
        j.p.G = 1 + below(2);
        j.p.H = j.p.G * (1 + below(3));
        j.p.dtype = (ra_dtype)(below(2) * below(3));
        j.p.scale = below(3) ? NAN : 2 * uniform() - 1;
        j.tensor_order = (int)below(4);
        job_make(&j, random_value, random_value, random_value, random_value);
        choose_tiles(&j);
        choose_blocks(&j);
        choose_mask(&j);
        j.two_stretches = below(2);
        j.threads = 1 + (int)below(3);
        j.no_dout = below(8) == 0;
        j.no_dlse = below(4) == 0;
        j.no_dq = below(8) == 0;
        j.no_lse = below(10) == 0;
        const bool ok =
            run_and_check(&j, 2e-5, "anything"); /* logits reach some tens, gradients may be small: twice_the_plain_loop is strict */
        job_free(&j);
        if (!ok)
            return;
    }
}

/* Tiles as small as they get and larger than the problem, around every remainder. */
static void every_remainder(void) {
    const struct ra__kernels *k = ra__kernels();
    const int64_t step = small() ? 7 : 1;
    for (int64_t n = 1; n <= 2 * k->lanes + 1; n += step)
        for (int variant = 0; variant < 4; variant++) {
            struct job j = random_job(variant & 1 ? n : 37, variant & 1 ? 37 : n, 7, 9);
            j.p.mask.causal = 1;
            j.p.mask.align = RA_ALIGN_BOTTOM_RIGHT;
            job_make(&j, random_value, random_value, random_value, random_value);
            j.q_tile = variant & 2 ? k->lanes : 10 * k->lanes;
            j.k_tile = variant & 2 ? k->rows : 30 * k->rows;
            j.q_tile_b = j.k_tile;
            j.k_tile_b = j.q_tile;
            run_and_check(&j, 4e-6, "remainder");
            job_free(&j);
        }
}

static void every_head_size(void) {
    for (int64_t n = 1; n <= 2 * ra__kernels()->col_tile + 1; n += small() ? 5 : 1) {
        struct job j = random_job(19, 23, n, 2 * ra__kernels()->col_tile + 2 - n);
        job_make(&j, random_value, random_value, random_value, random_value);
        run_and_check(&j, 4e-6, "head size");
        job_free(&j);
    }
}

/* Nothing but empty blocks, or none of the keys visible: written all the same. */
static void nothing_visible(void) {
    for (int variant = 0; variant < 3; variant++) {
        struct job j = random_job(13, variant == 0 ? 0 : 50, 5, 6);
        if (variant == 2) { /* bottom right, more queries than keys: the first rows are empty */
            j.p.Sq = 70;
            j.p.mask.causal = 1;
            j.p.mask.align = RA_ALIGN_BOTTOM_RIGHT;
        }
        job_make(&j, random_value, random_value, random_value, random_value);
        if (variant == 1) {
            j.q_ids = calloc((size_t)j.p.Sq, sizeof *j.q_ids);
            j.kv_ids = malloc((size_t)j.p.Skv * sizeof *j.kv_ids);
            for (int64_t i = 0; i < j.p.Skv; i++)
                j.kv_ids[i] = i % 2 ? 1 : -1; /* the range of ids includes 0, no id is 0 */
            j.p.mask.q_segment_ids = j.q_ids;
            j.p.mask.kv_segment_ids = j.kv_ids;
        }
        run_and_check(&j, 4e-6, "nothing visible");
        const int64_t empty = variant == 2 ? 20 : j.p.Sq;
        for (int64_t i = 0; i < empty; i++) {
            CHECK(j.lse[i] == -INFINITY);
            for (int64_t d = 0; d < 6; d++)
                CHECK(j.out[i * 6 + d] == 0);
            for (int64_t d = 0; d < 5; d++)
                CHECK(j.dq[i * 5 + d] == 0);
        }
        job_free(&j);
    }
}

/* A document begins inside a register tile, in queries and in keys, and fills whole tiles afterwards: they are full but for their edge. */
static void documents_at_odd_places(void) {
    for (int64_t cut = 0; cut <= 2 * ra__kernels()->rows + 1; cut++)
        for (int variant = 1; variant < 4; variant++) {
            const int64_t n = 4 * ra__kernels()->lanes;
            struct job j = random_job(n, n, 5, 5);
            job_make(&j, random_value, random_value, random_value, random_value);
            j.q_ids = calloc((size_t)n, sizeof *j.q_ids);
            j.kv_ids = calloc((size_t)n, sizeof *j.kv_ids);
            for (int64_t i = 0; i < cut; i++) {
                j.q_ids[i] = variant & 1;
                j.kv_ids[i] = variant & 2;
            }
            j.p.mask.q_segment_ids = j.q_ids;
            j.p.mask.kv_segment_ids = j.kv_ids;
            run_and_check(&j, 4e-6, "document");
            job_free(&j);
        }
}

static double one(const struct grid *g, int64_t b, int64_t t, int64_t h, int64_t d) {
    (void)g, (void)b, (void)t, (void)h, (void)d;
    return 1;
}

/* Logits whose exponentials are not fp32 numbers, in tiles that are not filled: what fills them up must stay out (cases 7, 8). */
static void far_logits(void) {
    static const double scales[] = {-300, 300, -60000, 2e4};
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
        for (int64_t n = 1; n <= 2 * ra__kernels()->lanes; n += 5) {
            struct job j = random_job(n, 3 * n, 1, 3);
            j.p.scale = scales[i];
            job_make(&j, one, one, random_value, random_value);
            j.no_dlse = true;
            j.no_dq = fabs(scales[i]) > 1e3;       /* a sum that is 0 but for rounding, times the scale */
            run_and_check(&j, 1e-2, "far logits"); /* a lse of 60000 is known to 2e-3, and p by a factor e^0.002 */
            job_free(&j);
        }
}

static bool same(const float *a, const float *b, int64_t n) {
    return n == 0 || memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

/* The number of threads and the storage order of operands never change a bit. */
static void same_bits(void) {
    struct job first = {.P = 1};
    for (int variant = 0; variant < 8; variant++) {
        random_state = 4711;
        struct job j = random_job(131, 117, 24, 20);
        j.p.H = 4;
        j.p.G = 2;
        j.p.mask.causal_block = 5;
        j.p.mask.align = RA_ALIGN_BOTTOM_RIGHT;
        j.tensor_order = variant % 4;
        job_make(&j, random_value, random_value, random_value, random_value);
        j.threads = 1 + variant / 2;
        j.P = j.blocks = 3;
        for (int i = 0; i < 3; i++)
            j.order[i] = i;
        run(&j);
        if (variant == 0) {
            first = j;
            continue;
        }
        CHECK(same(first.out, j.out, q_numel(&j.p, j.p.Dv)) && same(first.lse, j.lse, q_numel(&j.p, 1)));
        CHECK(same(first.dq, j.dq, q_numel(&j.p, j.p.D)) && same(first.dk, j.dk, kv_numel(&j.p, j.p.D)));
        CHECK(same(first.dv, j.dv, kv_numel(&j.p, j.p.Dv)));
        job_free(&j);
    }
    job_free(&first);
}

/* ---- what must not leak (case 5) ---- */

static void set_row(struct grid *g, int64_t t, double value) {
    for (int64_t b = 0; b < g->n[0]; b++)
        for (int64_t h = 0; h < g->n[2]; h++)
            for (int64_t d = 0; d < g->n[3]; d++)
                grid_set(g, b, t, h, d, value);
}

enum { VALID = 40 };

/* Keys and queries from VALID on are padding: by segments, or by a bias (then padded queries see the valid keys and get zero dout). */
static struct job padded_job(double garbage, bool by_bias, ra_dtype dtype, bool decode) {
    random_state = 99;
    struct job j = random_job(decode ? 4 : 70, 70, 9, 11);
    j.decode = decode;
    j.p.H = 2;
    j.p.dtype = dtype;
    j.p.mask.causal = 1;
    j.p.mask.align = RA_ALIGN_BOTTOM_RIGHT;
    job_make(&j, random_value, random_value, random_value, random_value);
    choose_tiles(&j);
    j.P = 2;
    j.blocks = 2;
    j.order[1] = 1;
    for (int64_t t = VALID; t < 70; t++) {
        set_row(&j.k, t, garbage);
        set_row(&j.v, t, garbage);
        if (!by_bias) {
            set_row(&j.q, t, garbage);
            set_row(&j.dout, t, garbage);
            j.dlse[t] = j.dlse[70 + t] = (float)garbage;
        }
    }
    if (by_bias) {
        j.bias = grid_filled(1, 1, 1, 70, RA_F32, 0, random_value);
        j.bias.t.stride[0] = j.bias.t.stride[1] = j.bias.t.stride[2] = 0;
        for (int64_t t = VALID; t < 70; t++)
            grid_set(&j.bias, 0, 0, 0, t, -INFINITY);
    } else {
        j.q_ids = calloc(70, sizeof *j.q_ids);
        j.kv_ids = calloc(70, sizeof *j.kv_ids);
        for (int64_t t = VALID; t < 70; t++) {
            j.q_ids[t] = 2;
            j.kv_ids[t] = 1;
        }
        j.p.mask.q_segment_ids = j.q_ids;
        j.p.mask.kv_segment_ids = j.kv_ids;
    }
    return j;
}

static void hidden_garbage(void) {
    static const double garbage[] = {0, NAN, INFINITY, -INFINITY, 1e30, -1e30};
    for (int variant = 0; variant < 12; variant++) {
        const bool decode = variant >= 6, by_bias = variant & 1 || decode;
        struct job clean = {.P = 1};
        for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
            struct job j = padded_job(garbage[i], by_bias, (ra_dtype)(variant / 2 % 3), decode);
            const ra_problem *p = &j.p;
            run(&j);
            for (int64_t t = VALID; t < 70; t++)
                for (int64_t d = 0; d < 11; d++)
                    CHECK((d >= 9 || j.dk[t * 9 + d] == 0) && j.dv[t * 11 + d] == 0);
            if (i == 0) {
                clean = j;
                continue;
            }
            CHECK_MSG(same(j.out, clean.out, q_numel(p, p->Dv)) && same(j.lse, clean.lse, q_numel(p, 1)) &&
                          same(j.dq, clean.dq, q_numel(p, p->D)) && same(j.dk, clean.dk, kv_numel(p, p->D)) &&
                          same(j.dv, clean.dv, kv_numel(p, p->Dv)),
                      "hidden %g changes results", garbage[i]);
            job_free(&j);
        }
        for (int64_t t = 0; t < clean.p.Sq; t++) /* the clean run is one */
            CHECK(by_bias || t < VALID ? isfinite(clean.lse[t]) : clean.lse[t] == -INFINITY && clean.out[t * 22] == 0);
        job_free(&clean);
    }
}

/* ---- where a visible NaN goes (case 4) ---- */

static bool same_double(double a, double b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

/* NaN where the oracle has it; the bits of the clean run wherever the oracle is not touched. */
static void check_spread(const char *what, const float *x, const float *clean, const double *o, const double *o_clean, int64_t n) {
    int64_t missing = 0, leaked = 0, reached = 0;
    for (int64_t i = 0; i < n; i++) {
        missing += isnan(o[i]) && !isnan(x[i]);
        leaked += same_double(o[i], o_clean[i]) && ra__bits(x[i]) != ra__bits(clean[i]);
        reached += isnan(o[i]);
    }
    CHECK_MSG(missing == 0 && leaked == 0, "%s: NaN is missing in %lld elements of %lld and changes %lld others", what, (long long)missing,
              (long long)reached, (long long)leaked);
}

/* variant: bit 0 causal, bit 1 striped, from bit 2 on the type, from 12 on by the driver for short queries. */
static struct job spread_job(int variant) {
    random_state = 31337;
    struct job j = random_job(variant < 12 ? 61 : 5, 67, 6, 10);
    j.decode = variant >= 12;
    j.p.H = 4;
    j.p.dtype = (ra_dtype)(variant / 4 % 3);
    j.p.G = 2;
    j.p.mask.causal = variant & 1;
    j.p.mask.align = variant & 1 ? RA_ALIGN_BOTTOM_RIGHT : RA_ALIGN_NONE;
    job_make(&j, random_value, random_value, random_value, random_value);
    j.k_tile = 2 * ra__kernels()->rows;
    j.k_tile_b = j.q_tile = ra__kernels()->lanes;
    j.P = j.blocks = 3;
    j.order[0] = 2;
    j.order[2] = 1;
    j.layout = variant & 2 ? RA_STRIPED : RA_CONTIGUOUS;
    return j;
}

enum { INFINITE_KEY = 5, PLACES };

static void poison(struct job *j, int place, int64_t token) {
    struct grid *grids[] = {&j->q, &j->k, &j->v, &j->dout};
    if (place < 4)
        grid_set(grids[place], 0, token % grids[place]->n[1], 1, 3, NAN);
    else if (place == INFINITE_KEY) /* infinite logits: NaN, or 0 times infinity in dq */
        grid_set(&j->k, 0, token, 1, 3, -INFINITY);
    else
        j->dlse[j->p.Sq + token % j->p.Sq] = NAN;
}

static void visible_nan(void) {
    static const char *const names[] = {"q", "k", "v", "dout", "dlse", "k (infinite)"};
    static const int64_t tokens[] = {0, 5, 40, 60};
    for (int variant = 0; variant < 24; variant++)
        for (int place = 0; place < PLACES; place++)
            for (int i = 0; i < 4; i++) {
                struct job clean = spread_job(variant), j = spread_job(variant);
                poison(&j, place, tokens[i]);
                run(&clean);
                run(&j);
                oracle_result o = job_oracle(&j), oc = job_oracle(&clean);
                const ra_problem *p = &j.p;
                int64_t reached = 0;
                for (int64_t n = 0; n < q_numel(p, p->Dv); n++)
                    reached += isnan(o.out[n]);
                CHECK((reached > 0) == (place <= 2 || place == INFINITE_KEY));
                CHECK(place != 2 || (variant & 1) || reached == 2 * p->Sq); /* one column of both heads of the group */
                char name[64];
                snprintf(name, sizeof name, "NaN in %s, token %d, variant %d", names[place], (int)tokens[i], variant);
                check_spread(name, j.out, clean.out, o.out, oc.out, q_numel(p, p->Dv));
                check_spread(name, j.lse, clean.lse, o.lse, oc.lse, q_numel(p, 1));
                check_spread(name, j.dq, clean.dq, o.dq, oc.dq, q_numel(p, p->D));
                check_spread(name, j.dk, clean.dk, o.dk, oc.dk, kv_numel(p, p->D));
                check_spread(name, j.dv, clean.dv, o.dv, oc.dv, kv_numel(p, p->Dv));
                oracle_result_free(&o);
                oracle_result_free(&oc);
                job_free(&clean);
                job_free(&j);
            }
}

/* An infinite value is infinite in its column of the rows that see it, and nowhere else. */
static void visible_infinity(int variant) {
    struct job clean = spread_job(variant), j = spread_job(variant);
    grid_set(&j.v, 0, 20, 1, 3, -INFINITY);
    run(&clean);
    run(&j);
    for (int64_t i = 0; i < j.p.Sq; i++)
        for (int64_t h = 0; h < 4; h++)
            for (int64_t d = 0; d < 10; d++) {
                const int64_t at = (i * 4 + h) * 10 + d;
                const bool hit = h >= 2 && d == 3 && oracle_sees(&j.p, NULL, 0, h, i, 20);
                CHECK(hit ? j.out[at] == -INFINITY : ra__bits(j.out[at]) == ra__bits(clean.out[at]));
            }
    job_free(&clean);
    job_free(&j);
}

static void visible_infinities(void) {
    for (int t = 0; t < 3; t++)
        visible_infinity(1 + 4 * t);
}

/* ---- accuracy ---- */

static double family_q(const struct grid *g, int64_t b, int64_t t, int64_t h, int64_t d) {
    (void)g, (void)b;
    return sin(0.11 * (double)t + 0.7 * (double)h + 0.23 * (double)d);
}
static double family_k(const struct grid *g, int64_t b, int64_t t, int64_t h, int64_t d) {
    (void)g, (void)b;
    return cos(0.07 * (double)t + 0.5 * (double)h + 0.31 * (double)d);
}
static double family_v(const struct grid *g, int64_t b, int64_t t, int64_t h, int64_t d) {
    (void)g, (void)b;
    return sin(0.05 * (double)t + 0.9 * (double)d) + 0.1 * (double)h;
}
static double family_dout(const struct grid *g, int64_t b, int64_t t, int64_t h, int64_t d) {
    (void)g, (void)b;
    return cos(0.03 * (double)t + 0.2 * (double)d + 0.4 * (double)h);
}

/* Attention and gradients as anybody would write them in fp32; one batch element, one head. */
static void plain_row(const struct job *j, int64_t i, float *p, float *out, float *dq, float *dk, float *dv) {
    const ra_problem *x = &j->p;
    const int64_t n = x->Skv, D = x->D, Dv = x->Dv;
    const float *q = (const float *)j->q.t.data + i * D, *k = j->k.t.data, *v = j->v.t.data, *dout = (const float *)j->dout.t.data + i * Dv;
    const float scale = isnan(x->scale) ? (float)(1 / sqrt((double)D)) : (float)x->scale;
    float max = -INFINITY, sum = 0, delta = -j->dlse[i];
    for (int64_t key = 0; key < n; key++) {
        float s = 0;
        for (int64_t d = 0; d < D; d++)
            s += q[d] * k[key * D + d];
        p[key] = oracle_sees(x, NULL, 0, 0, i, key) ? s * scale : -INFINITY;
        max = p[key] > max ? p[key] : max;
    }
    for (int64_t key = 0; key < n; key++)
        sum += expf(p[key] - max);
    const float lse = max + logf(sum);
    for (int64_t key = 0; key < n; key++)
        p[key] = expf(p[key] - lse);
    for (int64_t d = 0; d < Dv; d++) {
        out[i * Dv + d] = 0;
        for (int64_t key = 0; key < n; key++)
            out[i * Dv + d] += p[key] * v[key * Dv + d];
        delta += out[i * Dv + d] * dout[d];
    }
    for (int64_t key = 0; key < n; key++) {
        float dp = 0;
        for (int64_t d = 0; d < Dv; d++) {
            dp += dout[d] * v[key * Dv + d];
            dv[key * Dv + d] += p[key] * dout[d];
        }
        const float ds = p[key] * (dp - delta) * scale;
        for (int64_t d = 0; d < D; d++) {
            dq[i * D + d] += ds * k[key * D + d];
            dk[key * D + d] += ds * q[d];
        }
    }
}

static void check_accuracy(struct job *j, const char *name) {
    const ra_problem *p = &j->p;
    const int64_t n[4] = {p->Sq * p->Dv, p->Sq * p->D, p->Skv * p->D, p->Skv * p->Dv};
    float *plain[4], *row = malloc((size_t)p->Skv * sizeof *row);
    for (int i = 0; i < 4; i++)
        plain[i] = calloc((size_t)n[i], sizeof(float));
    for (int64_t i = 0; i < p->Sq; i++)
        plain_row(j, i, row, plain[0], plain[1], plain[2], plain[3]);
    run(j);
    oracle_result o = job_oracle(j);
    const float *ours[4] = {j->out, j->dq, j->dk, j->dv};
    const double *reference[4] = {o.out, o.dq, o.dk, o.dv};
    static const char *const names[] = {"out", "dq", "dk", "dv"};
    for (int i = 0; i < 4; i++) {
        const double a = relative_error(ours[i], reference[i], n[i], 0), b = relative_error(plain[i], reference[i], n[i], 0);
        CHECK_MSG(a <= 2 * b, "%s, %s: error %.3g, of a plain fp32 loop %.3g", name, names[i], a, b);
        free(plain[i]);
    }
    free(row);
    oracle_result_free(&o);
}

static void twice_the_plain_loop(void) {
    for (int variant = 0; variant < 8; variant++) {
        struct job j = random_job(variant & 4 ? 512 : 128, variant & 4 ? 512 : 200, 64, 40);
        j.p.mask.causal = variant & 1;
        j.p.mask.align = RA_ALIGN_BOTTOM_RIGHT;
        j.p.scale = variant & 2 ? 1 : NAN; /* 8 times the usual */
        if (variant & 4)
            job_make(&j, random_value, random_value, random_value, random_value);
        else
            job_make(&j, family_q, family_k, family_v, family_dout);
        j.q_tile = 4 * ra__kernels()->lanes;
        j.k_tile = 128;
        char name[64];
        snprintf(name, sizeof name, "%s%s%s", variant & 4 ? "random" : "family F", variant & 1 ? ", causal" : "",
                 variant & 2 ? ", x8" : "");
        check_accuracy(&j, name);
        job_free(&j);
    }
}

static double zero(const struct grid *g, int64_t b, int64_t t, int64_t h, int64_t d) {
    (void)g, (void)b, (void)t, (void)h, (void)d;
    return 0;
}

/* Case 52: many equal keys. */
static void many_keys(void) {
    for (int64_t n = 4096; n <= (small() ? 4096 : 262144); n *= 8)
        for (int threads = 1; threads <= 3; threads++) {
            struct job j = random_job(1, n, 1, 1);
            j.p.dtype = RA_F16;
            job_make(&j, zero, zero, one, one);
            j.threads = threads;
            j.k_tile = 128;
            run(&j);
            CHECK_MSG(fabs(j.out[0] - 1) <= 1e-5 && fabs(j.lse[0] - log((double)n)) <= 1e-5, "%lld keys: out %.9g, lse %.9g", (long long)n,
                      j.out[0], j.lse[0]);
            job_free(&j);
        }
}

int main(void) {
    RUN(anything);
    RUN(every_remainder);
    RUN(every_head_size);
    RUN(nothing_visible);
    RUN(documents_at_odd_places);
    RUN(far_logits);
    RUN(same_bits);
    RUN(hidden_garbage);
    RUN(visible_nan);
    RUN(visible_infinities);
    RUN(twice_the_plain_loop);
    RUN(many_keys);
    return check_result();
}
