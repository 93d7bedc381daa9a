/* The ring as a whole, on local ranks: masks, types, orders, exactness, determinism, slow and failing links. */
#include "harness.h"

static bool small(void) {
    return getenv("RA_TEST_SMALL") != NULL;
}

static struct whole problem(int P, int64_t S, int64_t H, int64_t G, int64_t D, int64_t Dv) {
    struct whole w = {.P = P};
    ra_problem_init(&w.p);
    w.p.Sq = w.p.Skv = S;
    w.p.H = H;
    w.p.G = G;
    w.p.D = D;
    w.p.Dv = Dv;
    w.p.threads = 1;
    return w;
}

static void check_and_free(struct whole *w, double bound, const char *name) {
    const int wanted = w->p.backward;
    for (w->p.backward = wanted && !whole_is_short(w); w->p.backward <= wanted; w->p.backward++)
        if (CHECK_OK(whole_run(w)))
            whole_check(w, bound, name);
    whole_free(w);
}

/* Every mask of the language under every layout, several rank counts, types and orders (cases 34, 42, 57). */
static void masks(void) {
    static const struct {
        int causal;
        int64_t block;
        int document, bias;
    } kinds[] = {{0, 0, 0, 0},  {1, 0, 0, 0}, {0, 8, 0, 0}, {0, 7, 0, 0}, {0, 0, 11, 0},
                 {1, 0, 11, 0}, {0, 0, 0, 1}, {1, 0, 0, 2}, {1, 0, 9, 3}, {0, 5, 9, 4}};
    static const int64_t lengths[][2] = {{77, 77}, {40, 100}, {100, 40}};
    const int ranks[] = {1, 2, 3, 4, 8};
    int seed = 0;
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
        for (int i = 0; i < 3; i++)
            for (int layout = 0; layout < 3; layout++)
                for (size_t n = 0; n < sizeof ranks / sizeof *ranks; n++, seed++) {
                    if (small() && seed % 5)
                        continue;
                    struct whole w = problem(ranks[n], lengths[i][0], 4, seed % 2 ? 2 : 4, 24, 16);
                    w.p.B = 2;
                    w.p.Skv = lengths[i][1];
                    w.p.layout = (ra_layout)layout;
                    w.p.dtype = (ra_dtype)(seed % 3);
                    w.bhsd = seed % 2;
                    w.p.mask.causal = kinds[kind].causal;
                    w.p.mask.causal_block = kinds[kind].block;
                    w.p.mask.align = seed % 2 ? RA_ALIGN_TOP_LEFT : RA_ALIGN_BOTTOM_RIGHT;
                    if (kinds[kind].bias) { /* each of the four broadcast shapes */
                        const int shape = kinds[kind].bias - 1;
                        w.bias_b = shape & 1 ? 2 : 1;
                        w.bias_h = shape & 2 ? 4 : 1;
                        w.bias_q = shape == 0 ? 1 : w.p.Sq;
                    }
                    whole_make(&w, kinds[kind].document);
                    check_and_free(&w, 1e-5, "masks");
                }
}

/* Longer than a tile in both directions, on one thread and two. */
static void several_tiles(void) {
    for (int layout = 0; layout < 3; layout++)
        for (int P = 1; P <= 3; P++) {
            struct whole w = problem(P, small() ? 300 : 700, 2, 1, 64, 64);
            w.p.layout = (ra_layout)layout;
            w.p.mask.causal = P != 2;
            w.p.threads = P == 1 ? 2 : 1;
            whole_make(&w, 0);
            check_and_free(&w, 1e-5, "several tiles");
        }
    struct whole odd = problem(4, small() ? 299 : 2999, 1, 1, 8, 8); /* case 16 */
    odd.p.layout = RA_ZIGZAG;
    odd.p.mask.causal = 1;
    whole_make(&odd, 0);
    check_and_free(&odd, 1e-5, "2999 tokens on 4 ranks");
}

/* Key and query chunks of any size give the same result (case 21). */
static void chunks(void) {
    static const int64_t chunk[] = {1, 7, 59, 60, 61, 240, 100000};
    for (size_t i = 0; i < sizeof chunk / sizeof *chunk; i++)
        for (int which = 0; which < 2; which++) {
            struct whole w = problem(2, 60, 2, 2, 16, 16);
            w.p.mask.causal = 1;
            w.p.q_chunk = which ? chunk[i] : 0;
            w.p.k_chunk = which ? 0 : chunk[i];
            whole_make(&w, 0);
            check_and_free(&w, 3e-6, "chunks");
        }
}

/* Closed forms: K = 0, V[j] = j: the mean of the visible keys (cases 1, 22). */
static void uniform_keys(struct whole *w) {
    ra_problem *p = &w->p;
    memset(w->k, 0, (size_t)kv_numel(p, p->D) * ra_dtype_size(p->dtype));
    for (int64_t j = 0; j < p->Skv; j++)
        for (int64_t g = 0; g < p->G; g++)
            for (int64_t d = 0; d < p->Dv; d++)
                put_value(w->v, p->dtype, (j * p->G + g) * p->Dv + d, (double)j);
    for (int64_t i = 0; i < q_numel(p, p->Dv); i++)
        put_value(w->dout, p->dtype, i, 1);
    memset(w->dlse, 0, (size_t)q_numel(p, 1) * sizeof *w->dlse);
}

static void alignment(void) {
    static const struct {
        int64_t Sq, Skv;
        ra_align align;
        float out[5];
        int visible[5];
    } cases[] = {{2, 5, RA_ALIGN_BOTTOM_RIGHT, {1.5f, 2}, {4, 5}},
                 {2, 5, RA_ALIGN_TOP_LEFT, {0, 0.5f}, {1, 2}},
                 {5, 2, RA_ALIGN_BOTTOM_RIGHT, {0, 0, 0, 0, 0.5f}, {0, 0, 0, 1, 2}},
                 {5, 2, RA_ALIGN_TOP_LEFT, {0, 0.5f, 0.5f, 0.5f, 0.5f}, {1, 2, 2, 2, 2}}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int P = 1; P <= 3; P++) {
            struct whole w = problem(P, cases[c].Sq, 1, 1, 3, 1);
            w.p.Skv = cases[c].Skv;
            w.p.mask.causal = 1;
            w.p.mask.align = cases[c].align;
            whole_make(&w, 0);
            uniform_keys(&w);
            CHECK_OK(whole_run(&w));
            for (int64_t i = 0; i < w.p.Sq; i++) {
                CHECK_MSG(fabsf(w.out[i] - cases[c].out[i]) < 1e-6f, "case %zu row %lld: out %g", c, (long long)i, w.out[i]);
                if (cases[c].visible[i] == 0)
                    CHECK(w.lse[i] == -INFINITY && w.dq[3 * i] == 0 && w.dq[3 * i + 2] == 0);
                else
                    CHECK(fabs(w.lse[i] - log(cases[c].visible[i])) < 1e-6);
            }
            whole_free(&w);
        }
}

/* Left padding, hidden by segments or by an additive -inf: the same bits, exact rows (case 2). */
static void padding_two_ways(void) {
    for (int layout = 0; layout < 3; layout++) {
        struct whole a = problem(4, 64, 1, 1, 8, 2);
        a.p.mask.causal = 1;
        a.p.layout = (ra_layout)layout;
        random_state = 7;
        whole_make(&a, 1);
        for (int i = 0; i < 64; i++) {
            a.q_ids[i] = 1;
            a.kv_ids[i] = i >= 16;
        }
        struct whole b = problem(4, 64, 1, 1, 8, 2);
        b.p.mask.causal = 1;
        b.p.layout = (ra_layout)layout;
        b.bias_b = b.bias_h = b.bias_q = 1;
        random_state = 7;
        whole_make(&b, 0);
        for (int i = 0; i < 64; i++)
            b.bias[i] = i < 16 ? -INFINITY : 0;
        uniform_keys(&a);
        uniform_keys(&b);
        memcpy(b.q, a.q, 64 * 8 * 4);
        CHECK_OK(whole_run(&a));
        CHECK_OK(whole_run(&b));
        for (int i = 0; i < 64; i++)
            CHECK(i < 16 ? a.out[2 * i] == 0 && a.lse[i] == -INFINITY : fabsf(a.out[2 * i] - (float)(16 + i) / 2) < 1e-4f);
        CHECK(memcmp(a.out, b.out, 64 * 2 * 4) == 0 && memcmp(a.lse, b.lse, 64 * 4) == 0 && memcmp(a.dv, b.dv, 64 * 2 * 4) == 0);
        whole_free(&a);
        whole_free(&b);
    }
}

/* Scores far from zero (cases 7, 8, 11, 13): no finite stand-in for -inf, scale before overflow. */
static void extreme_logits(void) {
    for (int P = 1; P <= 3; P++) {
        struct whole w = problem(P, 3, 1, 1, 1, 1);
        w.p.scale = 1;
        whole_make(&w, 0);
        for (int i = 0; i < 3; i++) {
            put_value(w.q, RA_F32, i, 1);
            put_value(w.k, RA_F32, i, -60000);
            put_value(w.v, RA_F32, i, i + 1);
        }
        CHECK_OK(whole_run(&w));
        CHECK(fabsf(w.out[0] - 2) < 1e-5f && fabs(w.lse[0] - (-60000 + log(3))) < 0.01);
        put_value(w.k, RA_F32, 0, 0); /* one key 200, then 1e4, above or below the others */
        for (int sign = -1; sign <= 1; sign += 2)
            for (double gap = 200; gap <= 1e4; gap *= 50) {
                put_value(w.k, RA_F32, 1, sign * gap);
                put_value(w.k, RA_F32, 2, 0);
                CHECK_OK(whole_run(&w));
                CHECK(fabsf(w.out[0] - 2) < 1e-5f && isfinite(w.lse[0]));
                CHECK(fabs(w.lse[0] - (sign > 0 ? gap : log(2))) < 1e-3);
            }
        whole_free(&w);
    }
    struct whole f16 = problem(2, 8, 1, 1, 256, 1);
    f16.p.dtype = RA_F16;
    f16.p.scale = 1.0 / 16;
    whole_make(&f16, 0);
    for (int64_t i = 0; i < 8 * 256; i++) {
        put_value(f16.q, RA_F16, i, 16);
        put_value(f16.k, RA_F16, i, 16);
    }
    for (int i = 0; i < 8; i++)
        put_value(f16.v, RA_F16, i, i);
    CHECK_OK(whole_run(&f16));
    CHECK_MSG(fabsf(f16.out[0] - 3.5f) < 1e-3f && fabsf(f16.lse[0] - (4096 + logf(8))) < 1e-5f * 4098, "out %g lse %.9g", f16.out[0],
              f16.lse[0]);
    whole_free(&f16);
}

/* Thousands of keys that each weigh less than half an ulp of the first one: together they count, in whatever order blocks
 * arrive. Only those in the first one's own tile (at most 128 of 2^-24) may be lost. */
static void many_small_weights(void) {
    enum { S = 8192 };
    for (int P = 1; P <= 4; P++) {
        struct whole w = problem(P, S, 1, 1, 1, 1);
        w.p.scale = 1;
        whole_make(&w, 0);
        for (int i = 0; i < S; i++) {
            put_value(w.q, RA_F32, i, 1);
            put_value(w.k, RA_F32, i, i == S / 2 ? 0 : -24 * log(2));
            put_value(w.v, RA_F32, i, i == S / 2 ? 0 : 1);
        }
        CHECK_OK(whole_run(&w));
        const double rest = (S - 1) * 0x1p-24, l = 1 + rest;
        CHECK_MSG(fabs(w.lse[0] - log(l)) < 1e-5 && fabs(w.lse[S - 1] - log(l)) < 1e-5, "P %d: lse %.9g, expected %.9g", P, w.lse[0],
                  log(l));
        CHECK_MSG(fabs(w.out[0] - rest / l) < 1e-8, "P %d: out %.9g, expected %.9g", P, w.out[0], rest / l);
        whole_free(&w);
    }
}

/* The same bits twice, and for any number of threads; subsets of work stay what they are (cases 52, 73). */
static void same_bits(void) {
    for (int layout = 0; layout < 3; layout++) {
        float *first[5] = {NULL};
        struct whole w = problem(2, small() ? 200 : 600, 4, 2, 40, 24);
        w.p.layout = (ra_layout)layout;
        w.p.mask.causal = 1;
        w.p.dtype = (ra_dtype)layout;
        whole_make(&w, 0);
        const size_t n[5] = {(size_t)q_numel(&w.p, w.p.Dv), (size_t)q_numel(&w.p, 1), (size_t)q_numel(&w.p, w.p.D),
                             (size_t)kv_numel(&w.p, w.p.D), (size_t)kv_numel(&w.p, w.p.Dv)};
        for (int run = 0; run < 5; run++) {
            w.p.threads = run < 2 ? 1 : run;
            CHECK_OK(whole_run(&w));
            float *now[5] = {w.out, w.lse, w.dq, w.dk, w.dv};
            for (int i = 0; i < 5; i++) {
                if (run == 0)
                    first[i] = memcpy(malloc(n[i] * sizeof(float)), now[i], n[i] * sizeof(float));
                else
                    CHECK_MSG(memcmp(first[i], now[i], n[i] * sizeof(float)) == 0, "tensor %d differs with %d threads", i, w.p.threads);
            }
        }
        for (int i = 0; i < 5; i++)
            free(first[i]);
        whole_free(&w);
    }
}

/* Whatever lies in keys and values that nobody sees, the bits are those of the run without them (case 5). */
static void hidden_garbage(void) {
    static const double garbage[] = {1e30, INFINITY, NAN};
    enum { N = 32, VALID = 20 };
    for (int P = 1; P <= 4; P++) {
        struct whole clean = problem(P, N, 2, 1, 8, 8);
        clean.p.mask.causal = 1;
        whole_make(&clean, 1);
        for (int i = 0; i < N; i++)
            clean.q_ids[i] = clean.kv_ids[i] = i < VALID ? 1 : 2;
        for (int64_t i = 0; i < q_numel(&clean.p, 8); i++)
            if (i / 16 >= VALID)
                put_value(clean.dout, RA_F32, i, 0);
        memset(clean.dlse, 0, (size_t)q_numel(&clean.p, 1) * 4);
        CHECK_OK(whole_run(&clean));
        struct whole dirty = clean;
        const int64_t row = 8;
        dirty.k = memcpy(malloc(N * row * 4), clean.k, N * row * 4);
        dirty.v = memcpy(malloc(N * row * 4), clean.v, N * row * 4);
        for (int kind = 0; kind < 3; kind++) {
            dirty.out = poisoned(N * 2 * 8);
            dirty.lse = poisoned(N * 2);
            dirty.dq = poisoned(N * 2 * 8);
            dirty.dk = poisoned(N * 8);
            dirty.dv = poisoned(N * 8);
            for (int64_t i = VALID * row; i < N * row; i++) {
                put_value(dirty.k, RA_F32, i, garbage[kind]);
                put_value(dirty.v, RA_F32, i, garbage[kind]);
            }
            CHECK_OK(whole_run(&dirty));
            CHECK(memcmp(dirty.out, clean.out, VALID * 2 * 8 * 4) == 0);
            for (int h = 0; h < 2; h++)
                CHECK(memcmp(dirty.lse + h * N, clean.lse + h * N, VALID * 4) == 0);
            CHECK(memcmp(dirty.dq, clean.dq, VALID * 2 * 8 * 4) == 0);
            CHECK(memcmp(dirty.dk, clean.dk, VALID * 8 * 4) == 0 && memcmp(dirty.dv, clean.dv, VALID * 8 * 4) == 0);
            float *mine[] = {dirty.out, dirty.lse, dirty.dq, dirty.dk, dirty.dv};
            for (int i = 0; i < 5; i++)
                free(mine[i]);
        }
        free(dirty.k);
        free(dirty.v);
        whole_free(&clean);
    }
}

/* NaN that is seen reaches the rows that see it, and no others (case 4). */
static void visible_nan(void) {
    enum { N = 40, ROW = 17, COLUMN = 3 };
    for (int P = 1; P <= 3; P++) {
        struct whole w = problem(P, N, 1, 1, 8, 8);
        w.p.mask.causal = 1;
        w.p.layout = P == 3 ? RA_STRIPED : RA_ZIGZAG;
        whole_make(&w, 0);
        CHECK_OK(whole_run(&w));
        float *clean = memcpy(malloc(N * 8 * 4), w.out, N * 8 * 4);
        ((float *)w.v)[ROW * 8 + COLUMN] = NAN;
        CHECK_OK(whole_run(&w));
        for (int i = 0; i < N; i++)
            for (int d = 0; d < 8; d++)
                CHECK(i >= ROW && d == COLUMN ? isnan(w.out[i * 8 + d]) : w.out[i * 8 + d] == clean[i * 8 + d]);
        ((float *)w.v)[ROW * 8 + COLUMN] = 0.5f;
        CHECK_OK(whole_run(&w));
        memcpy(clean, w.out, N * 8 * 4);
        ((float *)w.q)[ROW * 8 + 2] = NAN;
        CHECK_OK(whole_run(&w));
        for (int i = 0; i < N; i++)
            for (int d = 0; d < 8; d++) {
                CHECK(i == ROW ? isnan(w.out[i * 8 + d]) : w.out[i * 8 + d] == clean[i * 8 + d]);
                CHECK(isnan(w.dq[i * 8 + d]) == (i == ROW));
                CHECK(isnan(w.dk[i * 8 + d]) == (i <= ROW) && isnan(w.dv[i * 8 + d]) == (i <= ROW));
            }
        free(clean);
        whole_free(&w);
    }
}

/* Grouped heads: query head h reads kv head h / (H/G), gradients are summed over the group (case 55). */
static void grouped_heads(void) {
    for (int P = 1; P <= 3; P++) {
        struct whole w = problem(P, 6, 4, 2, 2, 1);
        whole_make(&w, 0);
        memset(w.k, 0, 6 * 2 * 2 * 4);
        memset(w.dlse, 0, 6 * 4 * 4);
        for (int i = 0; i < 6; i++) {
            for (int g = 0; g < 2; g++)
                ((float *)w.v)[i * 2 + g] = (float)g + 1;
            for (int h = 0; h < 4; h++)
                ((float *)w.dout)[i * 4 + h] = (float)h + 1;
        }
        CHECK_OK(whole_run(&w));
        for (int i = 0; i < 6; i++)
            for (int h = 0; h < 4; h++)
                CHECK(fabsf(w.out[i * 4 + h] - (float)(h / 2 + 1)) < 1e-6f);
        for (int i = 0; i < 6; i++)
            CHECK(fabsf(w.dv[i * 2] - 3) < 1e-5f && fabsf(w.dv[i * 2 + 1] - 7) < 1e-5f);
        whole_free(&w);
    }
}

/* bf16 storage: the running state is fp32, so the error does not grow with the ring (cases 35, 53). */
static void bf16_error_flat_in_P(void) {
    struct whole w = problem(1, small() ? 512 : 4096, 1, 1, 32, 32);
    w.p.dtype = RA_BF16;
    w.half_out = true;
    w.p.mask.causal = 1;
    w.p.layout = RA_ZIGZAG;
    whole_make(&w, 0);
    oracle_result o = whole_oracle(&w);
    struct errors one = {0};
    for (w.P = 1; w.P <= 64; w.P *= 2) {
        CHECK_OK(whole_run(&w));
        struct errors e = whole_errors(&w, &o);
        printf("  bf16 P %d: out %.2e lse %.2e dq %.2e dk %.2e dv %.2e\n", w.P, e.out, e.lse, e.dq, e.dk, e.dv);
        if (w.P == 1)
            one = e;
        CHECK(e.out <= 1.5 * one.out && e.lse <= 1.5 * one.lse + 1e-7 && e.dq <= 1.5 * one.dq && e.dk <= 1.5 * one.dk &&
              e.dv <= 1.5 * one.dv + 1e-7);
        CHECK(e.out < 8e-3);
    }
    oracle_result_free(&o);
    whole_free(&w);
}

/* Slow links, tiny messages: the same bits (case 87). */
static void odd_links(void) {
    struct whole w = problem(4, 90, 2, 1, 16, 8);
    w.p.mask.causal = 1;
    w.p.layout = RA_ZIGZAG;
    whole_make(&w, 13);
    CHECK_OK(whole_run(&w));
    const size_t n = (size_t)q_numel(&w.p, 8), nk = (size_t)kv_numel(&w.p, 16);
    float *out = memcpy(malloc(n * 4), w.out, n * 4), *dk = memcpy(malloc(nk * 4), w.dk, nk * 4);
    const ra_local_options links[] = {
        {.max_message = 1000}, {.max_message = 1}, {.delay_s = 0.002}, {.bytes_per_s = 1e7, .max_message = 333}};
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        w.link = links[i];
        if (small() && links[i].max_message == 1)
            continue;
        CHECK_OK(whole_run(&w));
        CHECK(memcmp(out, w.out, n * 4) == 0 && memcmp(dk, w.dk, nk * 4) == 0);
    }
    free(out);
    free(dk);
    whole_free(&w);
}

/* A rank whose link dies at its n-th message, loudly or silently: all ranks end with a named error, nothing hangs (case 92). */
static void failing_link(void) {
    for (int silently = 0; silently <= 1; silently++)
        for (int64_t after = 1; after <= 12; after += silently ? 5 : 1) {
            struct whole w = problem(4, 64, 1, 1, 8, 8);
            w.timeout_s = 0.5;
            w.link = (ra_local_options){.fail_rank = 2, .fail_after = after, .fail_silently = silently};
            whole_make(&w, 0);
            ra_status s = whole_run(&w);
            CHECK_MSG(s == RA_ERR_LINK || s == RA_ERR_TIMEOUT || s == RA_ERR_PEER_LOST, "after %lld: %s %s", (long long)after,
                      ra_status_name(s), ra_last_error());
            CHECK(strlen(ra_last_error()) > 10);
            whole_free(&w);
        }
}

/* Blocks that a mask empties are neither computed nor sent further than needed. */
static void hidden_blocks_stay_home(void) {
    struct whole w = problem(4, 64, 1, 1, 8, 8);
    whole_make(&w, 16); /* four documents of 16 tokens: one a rank */
    CHECK_OK(whole_run(&w));
    CHECK_EQ_INT(w.forward.bytes_sent, 0);
    CHECK_EQ_INT(w.backward.bytes_sent, 0);
    CHECK_EQ_INT(w.forward.pairs, 16 * 16);
    whole_check(&w, 1e-5, "documents");
    whole_free(&w);
    struct whole c = problem(4, 64, 1, 1, 8, 8);
    c.p.mask.causal = 1;
    whole_make(&c, 0);
    CHECK_OK(whole_run(&c)); /* rank 0 sends its own block once and passes nothing on */
    CHECK_EQ_INT(c.forward.bytes_sent, 16 * (8 + 8) * 4);
    CHECK_EQ_INT(c.forward.pairs, 16 * 17 / 2);
    whole_free(&c);
}

int main(void) {
    RUN(masks);
    RUN(several_tiles);
    RUN(chunks);
    RUN(alignment);
    RUN(padding_two_ways);
    RUN(extreme_logits);
    RUN(many_small_weights);
    RUN(same_bits);
    RUN(hidden_garbage);
    RUN(visible_nan);
    RUN(grouped_heads);
    RUN(bf16_error_flat_in_P);
    RUN(odd_links);
    RUN(failing_link);
    RUN(hidden_blocks_stay_home);
    return check_result();
}
