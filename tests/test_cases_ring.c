/* Cases of groups C, D, G, H and I: what sharding, grouped heads, packing, decoding and size must not change. Numbers as in docs/cases.md.
 */
#include <pthread.h>

#include "cases.h"

/* ---- gradients under sharding ---- */

/* Case 31: dq, dk, dv each by itself; a gradient that arrives at one row alone stays with the keys that this row sees. */
static void case_031_gradients_one_by_one(void) {
    for (int row = 5; row < 48; row += 21) {
        struct whole w = problem(48, 48, 2, 1, 6, 4);
        w.p.mask.causal = 1;
        whole_make(&w, 0);
        family_f(&w);
        exact_everywhere(&w, 1e-5, "gradients");
        for (int64_t n = 0; n < 48 * 8; n++)
            if (n / 8 != row)
                put_value(w.dout, RA_F32, n, 0);
        EVERYWHERE(&w) {
            CHECK_OK(whole_run(&w));
            whole_check(&w, 1e-5, "gradient of one row");
            for (int64_t j = 0; j < 48; j++) {
                bool none = true, all = true;
                for (int d = 0; d < 4; d++) {
                    none &= w.dv[j * 4 + d] == 0 && w.dk[j * 6 + d] == 0;
                    all &= w.dv[j * 4 + d] != 0;
                }
                CHECK_MSG(j > row ? none : all, "P %d layout %d: key %lld, row %d", w.P, (int)w.p.layout, (long long)j, row);
            }
            for (int64_t n = 0; n < 48 * 12; n++)
                CHECK((w.dq[n] != 0) == (n / 12 == row));
        }
        whole_free(&w);
    }
}

/* Cases 34, 42, 55, 56, 57: causal or not, grouped heads in every ratio, dk != dv. */
static void case_034_grouped_heads(void) {
    static const int64_t heads[][2] = {{1, 1}, {4, 4}, {4, 2}, {4, 1}, {6, 2}, {8, 2}, {5, 5}, {28, 4}};
    for (int n = 0; n < COUNT(heads); n++)
        for (int mask = 0; mask < 2; mask++) {
            struct whole w = problem(50, 50, heads[n][0], heads[n][1], 24, 16);
            w.p.mask.causal = mask;
            w.p.dtype = n == 5 ? RA_F16 : RA_F32;
            whole_make(&w, 0);
            family_f(&w);
            exact_everywhere(&w, w.p.dtype == RA_F32 ? 1e-5 : 1e-4, "grouped heads");
            whole_free(&w);
        }
}

/* Case 55: query head h reads kv head h / (H/G), whose gradients are summed over the group, once whatever P is. */
static void case_055_head_of_heads(void) {
    struct whole w = problem(10, 10, 4, 2, 3, 2);
    whole_make(&w, 0);
    family_u(&w);
    for (int64_t n = 0; n < 10 * 2 * 2; n++)
        put_value(w.v, RA_F32, n, (double)(n / 2 % 2 + 1));
    for (int64_t n = 0; n < 10 * 4 * 2; n++)
        put_value(w.dout, RA_F32, n, (double)(n / 2 % 4 + 1));
    EVERYWHERE(&w) {
        CHECK_OK(whole_run(&w));
        for (int64_t n = 0; n < 10 * 4 * 2; n++)
            CHECK(near(w.out[n], (double)(n / 4 % 2 + 1), 1e-6, 1));
        for (int64_t n = 0; n < 10 * 2 * 2; n++)
            CHECK(near(w.dv[n], n / 2 % 2 ? 7 : 3, 1e-6, 1));
    }
    whole_free(&w);
}

/* Case 39: lse is [B,H,T] whatever the mask and layout; every batch element and head has another one here. */
static void case_039_shape_of_lse(void) {
    static const int32_t lens[] = {17, 30}, offsets[] = {0, 3, 20, 31};
    static const float slopes[] = {0.5f, 0.1f, 0.01f};
    struct whole w = problem(33, 33, 3, 1, 5, 2);
    w.p.B = 2;
    w.p.mask.causal = 1;
    w.p.mask.kv_lens = lens;
    w.p.mask.cu_seqlens_q = w.p.mask.cu_seqlens_kv = offsets;
    w.p.mask.sequences = 3;
    w.p.alibi_slopes = slopes;
    for (int order = 0; order < 2; order++) {
        w.bhsd = order;
        whole_make(&w, 0);
        exact_everywhere(&w, 1e-5, "shape of lse");
        CHECK(w.lse[2] != w.lse[33 + 2] && w.lse[19] != w.lse[3 * 33 + 19]);
        whole_free(&w);
    }
}

/* ---- two rings at once (cases 40, 60b) ---- */

struct ring {
    struct whole w;
    struct results alone;
};

static void *repeat_ring(void *user) {
    struct ring *r = user;
    for (int n = 0; n < 8; n++) {
        poison_results(&r->w);
        if (CHECK_OK(whole_run(&r->w)))
            same_bits(&r->alone, &r->w, FIVE, "beside another ring");
    }
    return NULL;
}

static void case_040_two_rings_at_once(void) {
    struct ring r[2];
    pthread_t thread[2];
    for (int i = 0; i < 2; i++) { /* 12 and 3 heads, other sizes, masks and types */
        r[i].w = problem(i ? 90 : 41, i ? 90 : 41, i ? 3 : 12, 3, i ? 8 : 16, 8);
        r[i].w.p.mask.causal = i;
        r[i].w.p.dtype = i ? RA_BF16 : RA_F32;
        r[i].w.p.layout = i ? RA_ZIGZAG : RA_STRIPED;
        r[i].w.P = 2;
        whole_make(&r[i].w, 0);
        CHECK_OK(whole_run(&r[i].w));
        whole_check(&r[i].w, i ? 1e-2 : 1e-5, "alone");
        r[i].alone = results_of(&r[i].w);
    }
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&thread[i], NULL, repeat_ring, &r[i]) == 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(thread[i], NULL);
        results_free(&r[i].alone);
        whole_free(&r[i].w);
    }
}

/* ---- balance (case 46) ---- */

struct balance {
    ra_problem p;
    double pairs[8];
};

static ra_status plan_rank(ra_comm *comm, int rank, void *user) {
    struct balance *b = user;
    ra_plan *plan = NULL;
    ra_plan_info info;
    const ra_status s = ra_plan_create(comm, &b->p, &plan);
    if (s != RA_OK)
        return s;
    ra_plan_query(plan, &info);
    b->pairs[rank] = info.pairs;
    ra_plan_destroy(plan);
    return RA_OK;
}

/* Most pairs of any rank over the mean; the sum must be `total`. */
static double imbalance(struct balance *b, int P, double total) {
    double sum = 0, most = 0;
    CHECK_OK(ra_local_run(P, NULL, NULL, plan_rank, b));
    for (int r = 0; r < P; r++) {
        sum += b->pairs[r];
        most = b->pairs[r] > most ? b->pairs[r] : most;
    }
    CHECK_MSG(sum == total, "%.0f pairs planned, %.0f are visible", sum, total);
    return most / (sum / P);
}

static void case_046_balance(void) {
    static const char *const names[] = {"contiguous", "zigzag", "striped"};
    struct balance b;
    ra_problem_init(&b.p);
    b.p.Sq = b.p.Skv = 4096;
    b.p.D = b.p.Dv = 8;
    b.p.threads = 1;
    b.p.mask.causal = 1;
    for (b.p.layout = RA_CONTIGUOUS; b.p.layout <= RA_STRIPED; b.p.layout++) {
        const double x = imbalance(&b, 8, 4096.0 * 4097 / 2);
        printf("  causal, S 4096, P 8, %s: %.4f\n", names[b.p.layout], x);
        CHECK(b.p.layout == RA_CONTIGUOUS ? x > 1.5 : x <= 1.02);
    }
    /* 4 long and 12 short documents: the long ones first, last, and spread out */
    for (int order = 0; order < 3; order++) {
        int32_t offsets[17] = {0};
        double total = 0;
        for (int n = 0; n < 16; n++) {
            const bool is_long = order == 0 ? n < 4 : order == 1 ? n >= 12 : (n == 1 || n == 2 || n == 7 || n == 13);
            const int32_t length = is_long ? 1000 : 61;
            offsets[n + 1] = offsets[n] + length;
            total += (double)length * (length + 1) / 2;
        }
        b.p.Sq = b.p.Skv = offsets[16];
        b.p.mask.cu_seqlens_q = b.p.mask.cu_seqlens_kv = offsets;
        b.p.mask.sequences = 16;
        for (b.p.layout = RA_CONTIGUOUS; b.p.layout <= RA_STRIPED; b.p.layout++) {
            const double x = imbalance(&b, 4, total);
            printf("  4 long and 12 short documents, P 4, order %d, %s: %.4f\n", order, names[b.p.layout], x);
            CHECK(b.p.layout != RA_STRIPED || x <= 1.1);
        }
    }
}

/* ---- layouts ---- */

/* Case 47: striped with chunks and blocks of many sizes. */
static void case_047_striped(void) {
    static const int64_t sizes[] = {1, 4, 16, 64};
    for (int n = 0; n < 2 * COUNT(sizes); n++)
        for (int P = 1; P <= 7; P += 3) {
            struct whole w = problem(130, 130, 2, 1, 8, 8);
            w.p.layout = RA_STRIPED;
            w.P = P;
            if (n < COUNT(sizes)) {
                w.p.mask.causal = 1;
                w.p.q_chunk = w.p.k_chunk = sizes[n];
            } else {
                w.p.mask.causal_block = sizes[n - COUNT(sizes)];
            }
            whole_make(&w, 0);
            family_f(&w);
            if (CHECK_OK(whole_run(&w)))
                whole_check(&w, 1e-5, "striped");
            whole_free(&w);
        }
}

static bool five_tokens(const ra_problem *p, int64_t b, int64_t i, int64_t j) {
    (void)p, (void)b;
    return j <= i && i - j <= 4;
}

/* Case 48: a window of 5 tokens over shards of 16 is exact to the token. */
static void case_048_window_across_shards(void) {
    struct whole w = problem(64, 64, 2, 1, 6, 2);
    w.p.mask.causal = 1;
    w.p.mask.window_left = 4;
    uniform_everywhere(&w, 0, five_tokens, "window across shards");
    whole_free(&w);
}

/* Case 50: causal documents said in five ways. The same bits, but for dq, a sum over key tiles: where documents cut tiles, a bias has other
 * tiles, and on several ranks segments send other rows than offsets do. */
static void case_050_one_mask_five_ways(void) {
    enum { PACKED, SEGMENTS, SLICES, SLICES_OF_ALL, BIAS, WAYS, S = 90 };
    static const int32_t offsets[] = {0, 17, 18, 60, S};
    int64_t slices[2][20];
    for (int n = 0; n < 4; n++)
        for (int all = 0; all < 2; all++) {
            const int64_t row[] = {offsets[n], offsets[n + 1], offsets[n], offsets[n + 1], all ? RA_SLICE_FULL : RA_SLICE_CAUSAL};
            memcpy(slices[all] + 5 * n, row, sizeof row);
        }
    for (int place = 0; place < 12; place++) {
        struct results first = {.n = {0}};
        for (int way = 0; way < WAYS; way++) {
            struct whole w = problem(S, S, 2, 1, 8, 6);
            w.p.mask.causal = way != SLICES && way != BIAS;
            if (way == PACKED)
                w.p.mask.cu_seqlens_q = w.p.mask.cu_seqlens_kv = offsets, w.p.mask.sequences = 4;
            if (way == SLICES || way == SLICES_OF_ALL)
                w.p.mask.slices = slices[way == SLICES_OF_ALL], w.p.mask.slice_count = 4;
            if (way == BIAS)
                w.bias_b = w.bias_h = 1, w.bias_q = S;
            whole_make(&w, way == SEGMENTS ? S : 0);
            family_f(&w);
            for (int i = 0; i < S; i++) {
                const int d = (i >= 17) + (i >= 18) + (i >= 60);
                if (way == SEGMENTS)
                    w.q_ids[i] = w.kv_ids[i] = d;
                for (int j = 0; way == BIAS && j < S; j++)
                    w.bias[i * S + j] = j <= i && j >= offsets[d] ? 0 : -INFINITY;
            }
            next_place(&w, place);
            CHECK_OK(whole_run(&w));
            if (way == PACKED) {
                whole_check(&w, 1e-5, "documents");
                first = results_of(&w);
            } else {
                static const char *const names[] = {"packed", "segments", "slices", "slices and causal", "bias"};
                const bool other_tiles = way == BIAS || (way == SEGMENTS && w.P > 1);
                same_bits(&first, &w, other_tiles ? FIVE & ~(unsigned)DQ : FIVE, names[way]);
                same_values(&first, &w, 2e-6, names[way]);
            }
            whole_free(&w);
        }
        results_free(&first);
    }
}

/* Case 53: thousands of bf16 keys in small chunks: accumulation is fp32. Where products are of bf16 pairs, probabilities are rounded to
 * 2^-9 before they are multiplied, which is up to 0.8 % of a mean of so many values; sums in bf16 would lose most of it. */
static void case_053_bf16_accumulation(void) {
    const int64_t S = small() ? 1024 : 8192;
    struct whole w = problem(64, S, 1, 1, 32, 16);
    w.p.dtype = RA_BF16;
    w.p.k_chunk = 16;
    whole_make(&w, 0);
    family_f(&w);
    oracle_result o = whole_oracle(&w);
    EVERYWHERE(&w) {
        CHECK_OK(whole_run(&w));
        const struct errors e = whole_errors(&w, &o);
        double largest = 0;
        for (int64_t n = 0; n < q_numel(&w.p, 16); n++)
            largest = fabs(o.out[n]) > largest ? fabs(o.out[n]) : largest;
        CHECK_MSG(e.out * (largest > 0.1 ? largest : 0.1) <= 1e-2 * largest && e.lse <= 1e-5, "P %d layout %d: out %.2g lse %.2g", w.P,
                  (int)w.p.layout, e.out, e.lse);
    }
    oracle_result_free(&o);
    whole_free(&w);
}

/* ---- packed sequences ---- */

static bool lengths_of_75(const ra_problem *p, int64_t b, int64_t i, int64_t j) {
    static const int64_t end[] = {3, 23, 24, 64};
    (void)p, (void)b;
    int n = 0;
    while (i >= end[n])
        n++;
    return j <= i && (n == 0 || j >= end[n - 1]);
}

/* Case 75: edges of shards inside sequences, edges of sequences inside shards. */
static void case_075_packed(void) {
    static const int32_t offsets[] = {0, 3, 23, 24, 64};
    struct whole w = problem(64, 64, 2, 1, 5, 2);
    w.p.mask.causal = 1;
    w.p.mask.cu_seqlens_q = w.p.mask.cu_seqlens_kv = offsets;
    w.p.mask.sequences = 4;
    uniform_everywhere(&w, 0, lengths_of_75, "packed");
    whole_free(&w);
    for (int t = 0; t < 3; t++) {
        struct whole x = problem(64, 64, 4, 2, 8, 8);
        x.p.mask = w.p.mask;
        x.p.dtype = (ra_dtype)t;
        whole_make(&x, 0);
        exact_everywhere(&x, 2e-5, "packed, random");
        whole_free(&x);
    }
}

/* ---- plans side by side (case 80) ---- */

static void *counting_alloc(void *user, size_t bytes, size_t align) {
    atomic_fetch_add((atomic_long *)user, 1);
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void plain_free(void *user, void *p) {
    (void)user;
    free(p);
}

struct models {
    struct whole w[3];
    struct results alone[3];
    atomic_long allocations;
};

static ra_status three_plans(ra_comm *comm, int r, void *user) {
    struct models *m = user;
    ra_plan *plan[3];
    struct part x[3][8];
    ra_attention_args a[3];
    void *workspace[3];
    float *lse[3];
    char token = 0, tokens[8];
    for (int i = 0; i < 3; i++) {
        const struct whole *w = &m->w[i];
        const ra_problem *p = &w->p;
        void *const whole[8] = {w->q, w->k, w->v, w->dout};
        for (int n = 0; n < 8; n++) {
            const bool of_q = n == 0 || n == 3 || n == 4 || n == 5;
            x[i][n] = part_new(w, r, p->Sq, of_q ? p->H : p->G, n == 2 || n == 3 || n == 4 || n == 7 ? p->Dv : p->D, RA_F32, whole[n]);
        }
        lse[i] = rows_of(w, r, NULL);
        a[i] = (ra_attention_args){.q = x[i][0].tensor,
                                   .k = x[i][1].tensor,
                                   .v = x[i][2].tensor,
                                   .dout = x[i][3].tensor,
                                   .out = x[i][4].tensor,
                                   .dq = x[i][5].tensor,
                                   .dk = x[i][6].tensor,
                                   .dv = x[i][7].tensor,
                                   .lse = lse[i]};
        CHECK_OK(ra_plan_create(comm, p, &plan[i]));
        workspace[i] = aligned_alloc(64, ra_plan_workspace_bytes(plan[i]));
    }
    CHECK_OK(ra_comm_allgather(comm, &token, tokens, 1));
    const long before = atomic_load(&m->allocations);
    for (int round = 0; round < 12; round++) {
        const int i = round % 3;
        CHECK_OK(ra_attention_forward(plan[i], &a[i], workspace[i]));
        CHECK_OK(ra_attention_backward(plan[i], &a[i], workspace[i]));
        CHECK_OK(ra_comm_allgather(comm, &token, tokens, 1));
        CHECK_EQ_INT(atomic_load(&m->allocations), before);
        if (round < 9)
            continue;
        struct whole *w = &m->w[i];
        part_copy(w, r, w->p.Sq, w->p.H, w->p.Dv, w->out, &x[i][4].tensor, true);
        part_copy(w, r, w->p.Sq, w->p.H, w->p.D, w->dq, &x[i][5].tensor, true);
        part_copy(w, r, w->p.Sq, w->p.G, w->p.D, w->dk, &x[i][6].tensor, true);
        part_copy(w, r, w->p.Sq, w->p.G, w->p.Dv, w->dv, &x[i][7].tensor, true);
    }
    CHECK_OK(ra_comm_allgather(comm, &token, tokens, 1)); /* nobody frees while others count */
    for (int i = 0; i < 3; i++) {
        ra_plan_destroy(plan[i]);
        free(workspace[i]);
        free(lse[i]);
        for (int n = 0; n < 8; n++)
            free(x[i][n].data);
    }
    return RA_OK;
}

static void case_080_three_masks_of_one_model(void) {
    static const int32_t offsets[] = {0, 11, 50, 60};
    struct models m = {.allocations = 0};
    const ra_allocator allocator = {counting_alloc, plain_free, &m.allocations};
    const ra_comm_options options = {.timeout_s = 20, .allocator = &allocator};
    for (int i = 0; i < 3; i++) {
        struct whole *w = &m.w[i];
        *w = problem(60, 60, 2, 1, 8, 6);
        w->P = 3;
        w->p.layout = RA_ZIGZAG;
        w->p.mask.causal = i != 1;
        if (i == 0)
            w->p.mask.window_left = 6;
        if (i == 2)
            w->p.mask.cu_seqlens_q = w->p.mask.cu_seqlens_kv = offsets, w->p.mask.sequences = 3;
        whole_make(w, 0);
        memset(w->dlse, 0, (size_t)q_numel(&w->p, 1) * 4);
        CHECK_OK(whole_run(w));
        m.alone[i] = results_of(w);
        poison_results(w);
    }
    CHECK_OK(ra_local_run(3, &options, NULL, three_plans, &m));
    for (int i = 0; i < 3; i++) {
        same_bits(&m.alone[i], &m.w[i], FIVE & ~(unsigned)LSE, "three masks in turn");
        results_free(&m.alone[i]);
        whole_free(&m.w[i]);
    }
}

/* ---- decoding ---- */

/* Case 81: keys dealt to 4 ranks by token mod 4, one query, 64 steps. */
static void case_081_decode(void) {
    struct whole all = problem(64, 64, 4, 2, 16, 8);
    all.p.mask.causal = 1;
    whole_make(&all, 0);
    CHECK_OK(whole_run(&all));
    for (int64_t t = 0; t < 64; t++) {
        struct whole w = problem(1, t + 1, 4, 2, 16, 8);
        w.p.mask.causal = 1;
        w.p.mask.align = RA_ALIGN_BOTTOM_RIGHT;
        w.p.layout = RA_STRIPED;
        whole_make(&w, 0);
        w.p.backward = 0;
        memcpy(w.q, (float *)all.q + t * 64, 64 * 4);
        memcpy(w.k, all.k, (size_t)(t + 1) * 32 * 4);
        memcpy(w.v, all.v, (size_t)(t + 1) * 16 * 4);
        struct results one = {.n = {0}};
        for (w.P = 1; w.P <= 4; w.P += 3) {
            CHECK_OK(whole_run(&w));
            if (w.P == 1)
                one = results_of(&w);
            else
                same_values(&one, &w, 1e-6, "decode");
            for (int64_t n = 0; n < 32; n++)
                CHECK(near(w.out[n], all.out[t * 32 + n], 4e-6, 1));
            for (int64_t h = 0; h < 4; h++)
                CHECK(near(w.lse[h], all.lse[h * 64 + t], 1e-6, 1));
        }
        results_free(&one);
        whole_free(&w);
    }
    whole_free(&all);
}

static bool after_cache(const ra_problem *p, int64_t b, int64_t i, int64_t j) {
    (void)b;
    return j <= i + p->Skv - p->Sq;
}

/* Case 82: 7 new tokens on top of a cache of 100. No order of sums is promised, so the one-shot call is met within rounding, not in bits.
 */
static void case_082_new_tokens_on_a_cache(void) {
    for (int64_t fresh = 1; fresh <= 40; fresh += 6) {
        struct whole w = problem(fresh, 100 + fresh, 2, 1, 8, 2);
        w.p.mask.causal = 1;
        w.p.mask.align = RA_ALIGN_BOTTOM_RIGHT;
        uniform_everywhere(&w, 0, after_cache, "new tokens on a cache");
        for (int64_t i = 0; i < fresh; i++)
            CHECK(near(w.out[i * 4], (100 + (double)i) / 2, 1e-6, 1));
        family_f(&w);
        struct whole all = problem(100 + fresh, 100 + fresh, 2, 1, 8, 2);
        all.p.mask.causal = 1;
        whole_make(&all, 0);
        family_f(&all);
        memcpy(w.q, (float *)all.q + 100 * 16, (size_t)fresh * 16 * 4);
        CHECK_OK(whole_run(&all));
        EVERYWHERE(&w) {
            CHECK_OK(whole_run(&w));
            for (int64_t n = 0; n < fresh * 4; n++)
                CHECK(near(w.out[n], all.out[100 * 4 + n], 2e-6, 1));
        }
        whole_free(&all);
        whole_free(&w);
    }
}

/* ---- size ---- */

struct account {
    atomic_long live, peak;
};

/* Sizes are kept in front of the blocks, 64 bytes or the alignment if that is more. */
static void *account_alloc(void *user, size_t bytes, size_t align) {
    struct account *a = user;
    const size_t head = align > 64 ? align : 64;
    char *p = aligned_alloc(head, (bytes + 2 * head - 1) / head * head);
    if (!p)
        return NULL;
    const size_t note[2] = {head, bytes};
    memcpy(p + head - sizeof note, note, sizeof note);
    const long live = atomic_fetch_add(&a->live, (long)bytes) + (long)bytes;
    if (live > atomic_load(&a->peak))
        atomic_store(&a->peak, live);
    return p + head;
}

static void account_free(void *user, void *p) {
    struct account *a = user;
    size_t note[2];
    memcpy(note, (char *)p - sizeof note, sizeof note);
    atomic_fetch_sub(&a->live, (long)note[1]);
    free((char *)p - note[0]);
}

/* Case 89: a million tokens, causal, in a window: no mask is ever held densely. */
static void case_089_a_million_tokens(void) {
    const int64_t S = small() ? 1 << 17 : 1 << 20;
    struct account account = {.live = 0};
    const ra_allocator allocator = {account_alloc, account_free, &account};
    const ra_comm_options options = {.allocator = &allocator};
    ra_comm *comm = NULL;
    ra_plan *plan = NULL;
    ra_problem p;
    ra_problem_init(&p);
    p.Sq = p.Skv = S;
    p.D = p.Dv = 4;
    p.mask.causal = 1;
    CHECK_OK(ra_comm_create_self(&options, &comm));
    CHECK_OK(ra_plan_create(comm, &p, &plan)); /* a plan of the whole triangle */
    CHECK(ra_plan_workspace_bytes(plan) < 64u << 20);
    ra_plan_destroy(plan);
    p.mask.window_left = 100;
    float *x = calloc((size_t)S * 4, sizeof *x), *v = malloc((size_t)S * 4 * sizeof *v), *out = poisoned(S * 4);
    for (int64_t n = 0; n < 4 * S; n++)
        v[n] = (float)(n / 4 % 1000);
    const ra_attention_args a = {.q = ra_tensor_bshd(x, RA_F32, S, 1, 4),
                                 .k = ra_tensor_bshd(x, RA_F32, S, 1, 4),
                                 .v = ra_tensor_bshd(v, RA_F32, S, 1, 4),
                                 .out = ra_tensor_bshd(out, RA_F32, S, 1, 4)};
    ra_plan_info info;
    CHECK_OK(ra_plan_create(comm, &p, &plan));
    ra_plan_query(plan, &info);
    ra_plan_destroy(plan);
    account.peak = 0;
    CHECK_OK(ra_attention(comm, &p, &a));
    const double said = (double)(info.workspace_bytes + info.plan_bytes), held = (double)atomic_load(&account.peak);
    CHECK_MSG(held >= said && held < 1.01 * said, "the plan says %g bytes, at most %g were held", said, held);
    int64_t wrong = 0;
    double sum = 0;
    for (int64_t i = 0; i < S; i++) {
        sum += v[4 * i] - (i > 100 ? v[4 * (i - 101)] : 0);
        wrong += !near(out[4 * i + i % 4], sum / (double)(i > 100 ? 101 : i + 1), 1e-5, 1);
    }
    CHECK_EQ_INT(wrong, 0);
    printf("  most memory held at any time, plan and workspace: %.1f MiB\n", (double)atomic_load(&account.peak) / 1048576);
    CHECK(atomic_load(&account.peak) < 96l << 20);
    ra_comm_destroy(comm);
    CHECK_EQ_INT(atomic_load(&account.live), 0);
    free(x);
    free(v);
    free(out);
}

int main(void) {
    RUN(case_031_gradients_one_by_one);
    RUN(case_034_grouped_heads);
    RUN(case_039_shape_of_lse);
    RUN(case_040_two_rings_at_once);
    RUN(case_046_balance);
    RUN(case_047_striped);
    RUN(case_048_window_across_shards);
    RUN(case_050_one_mask_five_ways);
    RUN(case_053_bf16_accumulation);
    RUN(case_055_head_of_heads);
    RUN(case_075_packed);
    RUN(case_080_three_masks_of_one_model);
    RUN(case_081_decode);
    RUN(case_082_new_tokens_on_a_cache);
    RUN(case_089_a_million_tokens);
    return check_result();
}
