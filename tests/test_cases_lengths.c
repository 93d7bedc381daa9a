/* Cases of group B: lengths, alignment, windows, packed lengths, chunks, strides. Numbers as in docs/cases.md. */
#define _DEFAULT_SOURCE
#include <sys/mman.h>

#include "cases.h"

static bool causal(const ra_problem *p, int64_t b, int64_t i, int64_t j) {
    (void)b;
    return j <= i + (p->mask.align == RA_ALIGN_BOTTOM_RIGHT ? p->Skv - p->Sq : 0);
}

/* Case 16: 2999 tokens, not a multiple of anything; out[i] = i/2. */
static void case_016_odd_length(void) {
    struct whole w = problem(small() ? 599 : 2999, small() ? 599 : 2999, 1, 1, 4, 1);
    w.p.mask.causal = 1;
    uniform_everywhere(&w, 0, causal, "odd length");
    for (int64_t i = 0; i < w.p.Sq; i++)
        CHECK(near(w.out[i], (double)i / 2, 1e-5, 1));
    whole_free(&w);
}

/* Case 17: every small length on every number of ranks, more ranks than tokens too. */
static void case_017_any_length_any_ranks(void) {
    static const int64_t lengths[] = {1, 2, 3, 5, 7, 63, 65, 127};
    static const int ranks[] = {1, 2, 3, 4, 7, 8};
    for (int n = 0; n < COUNT(lengths); n++)
        for (int layout = 0; layout < 3; layout++)
            for (int kind = 0; kind < 3; kind++) {
                struct whole w = problem(lengths[n], lengths[n], 2, 1, 5, 3);
                w.p.layout = (ra_layout)layout;
                w.p.mask.causal = kind != 1;
                w.p.mask.window_left = kind == 2 ? 3 : -1;
                whole_make(&w, 0);
                family_f(&w);
                struct results one = {.n = {0}};
                for (int r = 0; r < COUNT(ranks); r++) {
                    w.P = ranks[r];
                    poison_results(&w);
                    if (!CHECK_OK(whole_run(&w)))
                        break;
                    if (r == 0) {
                        whole_check(&w, 1e-5, "any length");
                        one = results_of(&w);
                    } else {
                        same_values(&one, &w, 1e-5, "any length, any ranks");
                    }
                }
                results_free(&one);
                whole_free(&w);
            }
}

/* Case 20: numbers of ranks that are no power of two and do not divide. */
static void case_020_ranks_that_do_not_divide(void) {
    static const int ranks[] = {3, 5, 6, 7, 11};
    for (int r = 0; r < COUNT(ranks); r++)
        for (int layout = 0; layout < 3; layout++) {
            struct whole w = problem(100, 100, 3, 1, 8, 8);
            w.p.layout = (ra_layout)layout;
            w.p.mask.causal = r % 2;
            w.P = ranks[r];
            whole_make(&w, 0);
            family_f(&w);
            if (CHECK_OK(whole_run(&w)))
                whole_check(&w, 1e-5, "ranks that do not divide");
            whole_free(&w);
        }
}

/* Case 21: chunks of keys and queries below, at and above the length. */
static void case_021_chunks(void) {
    static const int64_t chunks[] = {1, 59, 60, 61, 240};
    for (int kind = 0; kind < 3; kind++)
        for (int layout = 0; layout < 3; layout++) {
            struct results chosen = {.n = {0}};
            struct whole w = problem(60, 60, 2, 1, 16, 8);
            w.p.layout = (ra_layout)layout;
            w.p.mask.causal = kind > 0;
            w.p.mask.window_left = kind == 2 ? 7 : -1;
            w.P = layout == 2 ? 3 : 1;
            whole_make(&w, 0);
            family_f(&w);
            CHECK_OK(whole_run(&w));
            chosen = results_of(&w);
            for (int n = 0; n < 2 * COUNT(chunks); n++) {
                w.p.q_chunk = n % 2 ? chunks[n / 2] : 0;
                w.p.k_chunk = n % 2 ? 0 : chunks[n / 2];
                poison_results(&w);
                CHECK_OK(whole_run(&w));
                same_values(&chosen, &w, 2e-6, "chunks");
            }
            results_free(&chosen);
            whole_free(&w);
        }
}

/* Case 22: both corners, never a guess. */
static void case_022_alignment(void) {
    static const struct {
        int64_t Sq, Skv;
        ra_align align;
        double out[5];
    } forms[] = {{2, 5, RA_ALIGN_BOTTOM_RIGHT, {1.5, 2}},
                 {2, 5, RA_ALIGN_TOP_LEFT, {0, 0.5}},
                 {5, 2, RA_ALIGN_BOTTOM_RIGHT, {0, 0, 0, 0, 0.5}},
                 {5, 2, RA_ALIGN_TOP_LEFT, {0, 0.5, 0.5, 0.5, 0.5}}};
    for (int n = 0; n < COUNT(forms); n++) {
        struct whole w = problem(forms[n].Sq, forms[n].Skv, 2, 1, 3, 1);
        w.p.mask.causal = 1;
        w.p.mask.align = forms[n].align;
        uniform_everywhere(&w, 0, causal, "alignment");
        for (int64_t i = 0; i < w.p.Sq; i++)
            CHECK(near(w.out[2 * i], forms[n].out[i], 1e-6, 1));
        whole_free(&w);
    }
    for (int kind = 0; kind < 5; kind++) { /* whatever is measured from a corner must name it */
        static const float slopes[] = {0.5f};
        struct whole w = problem(2, 5, 1, 1, 3, 1);
        char reason[256];
        w.p.mask.causal = kind == 0;
        w.p.mask.causal_block = kind == 1 ? 4 : 0;
        w.p.mask.window_left = kind == 2 ? 1 : -1;
        w.p.mask.window_right = kind == 3 ? 1 : -1;
        w.p.alibi_slopes = kind == 4 ? slopes : NULL;
        CHECK_STATUS(ra_supports(&w.p, NULL, reason, sizeof reason), RA_ERR_INVALID);
        CHECK_MSG(strstr(reason, "alignment"), "%s", reason);
        w.p.mask.align = RA_ALIGN_TOP_LEFT;
        CHECK_OK(ra_supports(&w.p, NULL, reason, sizeof reason));
    }
}

/* ---- windows ---- */

static bool window(const ra_problem *p, int64_t b, int64_t i, int64_t j) {
    (void)b;
    const ra_mask *m = &p->mask;
    const int64_t behind = i + (m->align == RA_ALIGN_BOTTOM_RIGHT ? p->Skv - p->Sq : 0) - j;
    return (!m->causal || behind >= 0 || j < m->prefix) && (m->window_left < 0 || behind <= m->window_left || j < m->keep_first) &&
           (m->window_right < 0 || -behind <= m->window_right);
}

/* Cases 23, 68: a window of L sees L + 1 keys, in every layout. */
static void case_023_window(void) {
    static const int64_t widths[] = {0, 1, 3, 8, 9, 10, INT64_MAX};
    for (int n = 0; n < COUNT(widths); n++)
        for (int kind = 0; kind < 5; kind++) { /* causal and left; left; right; both; causal and right */
            struct whole w = problem(10, 10, 2, 1, 4, 1);
            w.p.mask.causal = kind == 0 || kind == 4;
            w.p.mask.window_left = kind == 0 || kind == 1 || kind == 3 ? widths[n] : -1;
            w.p.mask.window_right = kind >= 2 ? widths[n] : -1;
            uniform_everywhere(&w, 0, window, "window");
            if (kind == 0 && widths[n] == 3)
                CHECK(near(w.out[9 * 2], 7.5, 1e-6, 1));
            for (int64_t i = 0; i < 10 && kind == 0 && widths[n] == 0; i++)
                CHECK(w.out[2 * i] == (float)i);
            whole_free(&w);
        }
    for (int place = 0; place < 12; place++) { /* one as wide as the sequence is none */
        struct whole w = problem(50, 50, 1, 1, 4, 4);
        w.p.mask.causal = 1;
        whole_make(&w, 0);
        family_f(&w);
        next_place(&w, place);
        CHECK_OK(whole_run(&w));
        struct results plain = results_of(&w);
        for (w.p.mask.window_left = 49; w.p.mask.window_left < 51; w.p.mask.window_left++) {
            poison_results(&w);
            CHECK_OK(whole_run(&w));
            same_bits(&plain, &w, FIVE, "window as wide as the sequence");
        }
        results_free(&plain);
        whole_free(&w);
    }
}

/* Neighbours of 22 and 23: windows, prefixes and kept keys from both corners of rectangles. */
static void case_023_windows_of_rectangles(void) {
    static const int64_t lengths[][2] = {{5, 23}, {23, 5}, {1, 40}, {17, 18}};
    for (int n = 0; n < 2 * COUNT(lengths); n++)
        for (int kind = 0; kind < 5; kind++) {
            struct whole w = problem(lengths[n / 2][0], lengths[n / 2][1], 1, 1, 4, 2);
            ra_mask *m = &w.p.mask;
            m->align = n % 2 ? RA_ALIGN_TOP_LEFT : RA_ALIGN_BOTTOM_RIGHT;
            m->causal = kind != 1;
            m->window_left = kind == 2 ? -1 : 3;
            m->window_right = kind == 1 ? 2 : kind == 4 ? 0 : -1;
            m->prefix = kind >= 2 ? 4 : 0;
            m->keep_first = kind >= 3 ? 2 : 0;
            uniform_everywhere(&w, 0, window, "window of a rectangle");
            whole_free(&w);
        }
}

/* ---- packed lengths ---- */

static bool packed(const ra_problem *p, int64_t b, int64_t i, int64_t j) {
    const ra_mask *m = &p->mask;
    (void)b;
    for (int64_t s = 0; s < m->sequences; s++) {
        const int64_t q0 = m->cu_seqlens_q[s], q1 = m->cu_seqlens_q[s + 1], k0 = m->cu_seqlens_kv[s], k1 = m->cu_seqlens_kv[s + 1];
        const int64_t offset = m->align == RA_ALIGN_BOTTOM_RIGHT ? (k1 - k0) - (q1 - q0) : 0;
        if (i >= q0 && i < q1 && j >= k0 && j < k1)
            return !m->causal || j - k0 <= i - q0 + offset;
    }
    return false;
}

/* Cases 24, 25b: sequences without queries, without keys, without either; what is behind the last one. Results start as NaN. */
static void case_024_empty_sequences(void) {
    static const int32_t q[][5] = {{0, 3, 3, 8, 8}, {0, 0, 0, 8, 8}, {0, 0, 0, 0, 0}, {0, 3, 3, 8, 8}},
                         kv[][5] = {{0, 3, 7, 7, 7}, {0, 0, 7, 7, 7}, {0, 0, 4, 7, 7}, {0, 0, 0, 0, 0}};
    for (int n = 0; n < COUNT(q); n++)
        for (int tail = 0; tail <= 6; tail += 3)
            for (int kind = 0; kind < 3; kind++) { /* full, causal from either corner */
                struct whole w = problem(8 + tail, 7 + tail, 2, 1, 3, 2);
                w.p.mask.cu_seqlens_q = q[n];
                w.p.mask.cu_seqlens_kv = kv[n];
                w.p.mask.sequences = 4;
                w.p.mask.causal = kind > 0;
                w.p.mask.align = kind == 0 ? RA_ALIGN_NONE : kind == 1 ? RA_ALIGN_TOP_LEFT : RA_ALIGN_BOTTOM_RIGHT;
                uniform_everywhere(&w, 0, packed, "empty sequences");
                whole_free(&w);
            }
}

/* Case 25: the library finds the longest sequence itself; room behind the last offset changes nothing, whatever it holds. */
/* Bits are those of the tight buffer where tiles are cut alike: on one rank, in one stretch. */
static void case_025_room_behind_the_last_offset(void) {
    static const int32_t offsets[] = {0, 3, 23, 24, 37};
    struct results tight = {.n = {0}};
    for (int room = 0; room <= 27; room += 9) {
        struct whole w = problem(37 + room, 37 + room, 2, 1, 5, 3);
        w.p.mask.cu_seqlens_q = w.p.mask.cu_seqlens_kv = offsets;
        w.p.mask.sequences = 4;
        w.p.mask.causal = 1;
        whole_make(&w, 0);
        family_f(&w);
        for (int64_t n = 37 * 5; n < (37 + room) * 5; n++)
            ((float *)w.k)[n] = NAN;
        for (int64_t n = 37 * 2 * 5; n < (37 + room) * 2 * 5; n++)
            ((float *)w.q)[n] = NAN;
        EVERYWHERE(&w) {
            CHECK_OK(whole_run(&w));
            if (room == 0 && place_ == 0)
                tight = results_of(&w);
            const float *now[5] = {w.out, w.lse, w.dq, w.dk, w.dv};
            const int64_t row[5] = {2 * 3, 0, 2 * 5, 5, 3};
            for (int n = 0; n < 5; n++) {
                const int64_t most = n == 1 ? 37 : 37 * row[n]; /* lse: the first head */
                int64_t other = 0, wrong = 0;
                for (int64_t i = 0; i < most; i++) {
                    other += memcmp(&now[n][i], &tight.x[n][i], sizeof(float)) != 0;
                    wrong += !near(now[n][i], tight.x[n][i], 1e-5, 1);
                }
                CHECK_MSG(wrong == 0 && (other == 0 || w.P > 1 || w.p.layout == RA_ZIGZAG),
                          "room %d, P %d layout %d, tensor %d: %lld bits, %lld values differ", room, w.P, (int)w.p.layout, n,
                          (long long)other, (long long)wrong);
                for (int64_t i = 0; i < room * row[n]; i++)
                    CHECK(now[n][37 * row[n] + i] == 0);
            }
            for (int64_t i = 37; i < 37 + room; i++)
                CHECK(w.lse[i] == -INFINITY && w.lse[37 + room + i] == -INFINITY);
        }
        whole_free(&w);
    }
    results_free(&tight);
    static const int32_t bad[][3] = {{1, 3, 8}, {0, 5, 4}, {0, 3, 38}, {-1, 3, 8}, {0, -3, 8}};
    for (int n = 0; n < 2 * COUNT(bad); n++) {
        static const int32_t good[] = {0, 3, 8};
        struct whole w = problem(37, 37, 1, 1, 4, 4);
        w.p.mask.cu_seqlens_q = n % 2 ? bad[n / 2] : good;
        w.p.mask.cu_seqlens_kv = n % 2 ? good : bad[n / 2];
        w.p.mask.sequences = 2;
        char reason[256];
        CHECK_STATUS(ra_supports(&w.p, NULL, reason, sizeof reason), RA_ERR_INVALID);
        CHECK_MSG(strstr(reason, n % 2 ? "cu_seqlens_q[" : "cu_seqlens_kv["), "%s", reason);
    }
}

static bool slices_with_gaps(const ra_problem *p, int64_t b, int64_t i, int64_t j) {
    (void)p, (void)b;
    return (i >= 3 && i < 11 && j >= 5 && j < 9) || (i >= 20 && i < 29 && j >= 20 && j < 29 && j <= i);
}

/* Case 25b: gaps between sequences, and requests of length 0 among others of a batch. */
static bool lens_of_batch(const ra_problem *p, int64_t b, int64_t i, int64_t j) {
    (void)i;
    return j < p->mask.kv_lens[b];
}

static void case_025b_gaps_are_written(void) {
    static const int64_t slices[] = {3, 11, 5, 9, RA_SLICE_FULL, 20, 29, 20, 29, RA_SLICE_CAUSAL};
    struct whole w = problem(33, 33, 2, 2, 4, 3);
    w.p.mask.slices = slices;
    w.p.mask.slice_count = 2;
    uniform_everywhere(&w, 0, slices_with_gaps, "gaps");
    whole_free(&w);
    static const int32_t lens[] = {0, 9, 1, 0};
    struct whole x = problem(6, 9, 2, 1, 4, 3);
    x.p.B = 4;
    x.p.mask.kv_lens = lens;
    uniform_everywhere(&x, 0, lens_of_batch, "requests of length 0");
    whole_free(&x);
}

/* Case 27: a prompt in chunks of 5, 0, 7 and 1 over what is there already is the prompt at once. */
static void case_027_chunked_prefill(void) {
    static const int64_t chunks[] = {5, 0, 7, 1};
    struct whole all = problem(13, 13, 2, 1, 6, 4);
    all.p.mask.causal = 1;
    whole_make(&all, 0);
    family_f(&all);
    CHECK_OK(whole_run(&all));
    for (int64_t n = 0, done = 0; n < COUNT(chunks); done += chunks[n++]) {
        struct whole w = problem(chunks[n], done + chunks[n], 2, 1, 6, 4);
        w.p.mask.causal = 1;
        w.p.mask.align = RA_ALIGN_BOTTOM_RIGHT;
        whole_make(&w, 0);
        w.p.backward = 0;
        memcpy(w.q, (float *)all.q + done * 12, (size_t)(chunks[n] * 12) * 4);
        memcpy(w.k, all.k, (size_t)((done + chunks[n]) * 6) * 4);
        memcpy(w.v, all.v, (size_t)((done + chunks[n]) * 4) * 4);
        EVERYWHERE(&w) {
            CHECK_OK(whole_run(&w));
            for (int64_t i = 0; i < chunks[n] * 8; i++)
                CHECK(near(w.out[i], all.out[done * 8 + i], 1e-5, 0.1));
        }
        whole_free(&w);
    }
    whole_free(&all);
}

/* Cases 30, 59: head sizes, none too small, too odd or too large. */
static void case_059_head_sizes(void) {
    static const int64_t sizes[] = {1, 2, 3, 5, 8, 40, 72, 80, 96, 100, 127, 160, 192, 256, 320, 512, 576};
    for (int n = 0; n < COUNT(sizes); n++)
        for (int t = 0; t < 3; t++) {
            struct whole w = problem(21, 21, 2, 1, sizes[n], sizes[(n * 7 + 3 * t) % COUNT(sizes)]);
            w.p.dtype = (ra_dtype)t;
            w.p.mask.causal = 1;
            w.p.layout = (ra_layout)((n + t) % 3);
            w.P = 1 + (n + t) % 3;
            whole_make(&w, 0);
            family_f(&w);
            if (CHECK_OK(whole_run(&w)))
                whole_check(&w, t == RA_BF16 ? 2e-2 : 1e-5, "head size"); /* bf16 pairs: dq cancels in family F */
            whole_free(&w);
        }
}

/* ---- strides (cases 83, 86) ---- */

enum { S = 9, WIDTH = 4 };

/* A tensor whose axis `far` has a stride beyond 2^31 elements, in a mapping of which only what is touched exists. */
struct sparse {
    ra_tensor t;
    void *map;
    size_t bytes;
};

static struct sparse sparse_new(int far, const int64_t extent[4], const float *whole) {
    struct sparse s = {.t = {.dtype = RA_F32}};
    const int64_t huge = ((int64_t)1 << 31) + 64;
    int64_t step = 1;
    for (int axis = 3; axis >= 0; axis--)
        if (axis != far) {
            s.t.stride[axis] = step;
            step *= extent[axis];
        }
    s.t.stride[far] = huge;
    s.bytes = (size_t)(huge * (extent[far] - 1) + step) * sizeof(float);
    s.map = mmap(NULL, s.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    s.t.data = s.map == MAP_FAILED ? NULL : s.map;
    if (!s.t.data)
        return s;
    for (int64_t n = 0; whole && n < extent[0] * extent[1] * extent[2] * extent[3]; n++) {
        const int64_t d = n % extent[3], h = n / extent[3] % extent[2], t = n / extent[3] / extent[2] % extent[1],
                      b = n / extent[3] / extent[2] / extent[1];
        ((float *)s.map)[b * s.t.stride[0] + t * s.t.stride[1] + h * s.t.stride[2] + d * s.t.stride[3]] = whole[n];
    }
    return s;
}

static void check_sparse(const struct sparse *s, const int64_t extent[4], const float *whole, const char *name) {
    int64_t wrong = 0;
    for (int64_t n = 0; n < extent[0] * extent[1] * extent[2] * extent[3]; n++) {
        const int64_t d = n % extent[3], h = n / extent[3] % extent[2], t = n / extent[3] / extent[2] % extent[1],
                      b = n / extent[3] / extent[2] / extent[1];
        const float *x = (float *)s->map + b * s->t.stride[0] + t * s->t.stride[1] + h * s->t.stride[2] + d * s->t.stride[3];
        wrong += memcmp(x, &whole[n], sizeof *x) != 0;
    }
    CHECK_MSG(wrong == 0, "%s: %lld elements differ from the run without gaps", name, (long long)wrong);
}

static void case_086_strides_beyond_32_bits(void) {
    for (int far = 0; far < 3; far++)
        for (int few = 0; few < 2; few++) { /* by the driver for few queries as well */
            struct whole w = problem(few ? 3 : S, S, 2, 2, WIDTH, WIDTH);
            w.p.B = 2;
            w.p.mask.causal = 1;
            w.p.mask.align = RA_ALIGN_BOTTOM_RIGHT;
            if (!few && far == 1)
                w.p.Sq = w.p.Skv = 20;
            whole_make(&w, 0);
            memset(w.dlse, 0, (size_t)q_numel(&w.p, 1) * 4);
            CHECK_OK(whole_run(&w));
            const int64_t q[4] = {2, w.p.Sq, 2, WIDTH}, kv[4] = {2, w.p.Skv, 2, WIDTH};
            const float *whole[8] = {w.q, w.k, w.v, w.dout, NULL, NULL, NULL, NULL};
            struct sparse x[8];
            bool there = true;
            for (int n = 0; n < 8; n++) {
                x[n] = sparse_new(far, n == 0 || n == 3 || n == 4 || n == 5 ? q : kv, whole[n]);
                there &= x[n].t.data != NULL;
            }
            if (!there) {
                printf("  skipped axis %d: no address space for it\n", far);
            } else {
                float *lse = poisoned(q_numel(&w.p, 1));
                ra_attention_args a = {.q = x[0].t,
                                       .k = x[1].t,
                                       .v = x[2].t,
                                       .dout = x[3].t,
                                       .out = x[4].t,
                                       .dq = x[5].t,
                                       .dk = x[6].t,
                                       .dv = x[7].t,
                                       .lse = lse};
                ra_comm *comm = NULL;
                CHECK_OK(ra_comm_create_self(NULL, &comm));
                CHECK_OK(ra_attention(comm, &w.p, &a));
                check_sparse(&x[4], q, w.out, "out");
                check_sparse(&x[5], q, w.dq, "dq");
                check_sparse(&x[6], kv, w.dk, "dk");
                check_sparse(&x[7], kv, w.dv, "dv");
                ra_comm_destroy(comm);
                free(lse);
            }
            for (int n = 0; n < 8; n++)
                if (x[n].t.data)
                    munmap(x[n].map, x[n].bytes);
            whole_free(&w);
        }
}

int main(void) {
    RUN(case_016_odd_length);
    RUN(case_017_any_length_any_ranks);
    RUN(case_020_ranks_that_do_not_divide);
    RUN(case_021_chunks);
    RUN(case_022_alignment);
    RUN(case_023_window);
    RUN(case_023_windows_of_rectangles);
    RUN(case_024_empty_sequences);
    RUN(case_025_room_behind_the_last_offset);
    RUN(case_025b_gaps_are_written);
    RUN(case_027_chunked_prefill);
    RUN(case_059_head_sizes);
    RUN(case_086_strides_beyond_32_bits);
    return check_result();
}
