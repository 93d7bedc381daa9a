/* Random problems with masks of all kinds, long enough that what a rank needs of a block has gaps. */
#ifndef RA_TESTS_RANDOM_MASKS_H
#define RA_TESTS_RANDOM_MASKS_H

#include "harness.h"

enum { MOST_SLICES = 8, MOST_SEQUENCES = 6 };

struct mask_arrays {
    int32_t kv_lens[3], cu_q[MOST_SEQUENCES + 1], cu_k[MOST_SEQUENCES + 1];
    int64_t slices[MOST_SLICES][5];
};

static int64_t below(int64_t n) {
    return n > 0 ? (int64_t)(uniform() * (double)n) : 0;
}

static void draw_offsets(int32_t *offsets, int64_t sequences, int64_t S) {
    offsets[0] = 0;
    for (int64_t i = 1; i <= sequences; i++)
        offsets[i] = offsets[i - 1] + (int32_t)below(2 * (S - offsets[i - 1]) / (sequences - i + 1) / 2 + 1);
}

static void draw_slices(struct mask_arrays *m, int64_t n, int64_t Sq, int64_t Skv) {
    for (int64_t i = 0; i < n; i++) {
        const int64_t q0 = below(Sq), k0 = below(Skv);
        const int64_t slice[5] = {q0, q0 + 1 + below(Sq - q0), k0, k0 + 1 + below(i % 2 ? Skv - k0 : (Skv - k0) / 8), below(4)};
        memcpy(m->slices[i], slice, sizeof slice);
    }
}

/* w: tensors filled in; arrays: to be kept as long. */
static struct whole draw_problem(int P, struct mask_arrays *arrays) {
    struct whole w = {.P = P, .bhsd = below(2)};
    ra_problem *p = &w.p;
    ra_mask *m = &p->mask;
    ra_problem_init(p);
    p->Sq = 1 + below(400);
    p->Skv = below(2) ? p->Sq : 1 + below(400);
    p->B = 1 + below(3);
    p->G = 1 + below(2);
    p->H = p->G * (1 + below(2));
    p->D = 1 + below(20);
    p->Dv = 1 + below(20);
    p->dtype = (ra_dtype)below(3);
    p->layout = (ra_layout)below(3);
    p->threads = 1;
    p->q_chunk = below(2) ? 0 : 1 + below(60);
    p->k_chunk = below(2) ? 0 : 1 + below(60);
    m->align = below(2) ? RA_ALIGN_TOP_LEFT : RA_ALIGN_BOTTOM_RIGHT;
    m->causal = below(2);
    m->causal_block = m->causal || below(2) ? 0 : 1 + below(50);
    m->window_left = below(3) ? below(60) : -1;
    m->window_right = below(3) ? -1 : below(60);
    m->prefix = below(3) ? 0 : below(60);
    m->keep_first = below(2) ? 0 : below(30);
    if (below(4) == 0) {
        for (int64_t b = 0; b < p->B; b++)
            arrays->kv_lens[b] = (int32_t)below(p->Skv + 1);
        m->kv_lens = arrays->kv_lens;
    }
    if (below(4) == 0) {
        m->sequences = 1 + below(MOST_SEQUENCES);
        draw_offsets(arrays->cu_q, m->sequences, p->Sq);
        draw_offsets(arrays->cu_k, m->sequences, p->Skv);
        m->cu_seqlens_q = arrays->cu_q;
        m->cu_seqlens_kv = arrays->cu_k;
    }
    if (below(3) == 0) {
        m->slice_count = 1 + below(MOST_SLICES);
        draw_slices(arrays, m->slice_count, p->Sq, p->Skv);
        m->slices = arrays->slices[0];
    }
    whole_make(&w, below(4) ? 0 : 10 + (int)below(90));
    return w;
}

/* The same one in every process. */
static struct whole draw_trial(int trial, int P, struct mask_arrays *arrays) {
    random_state = 0x9e3779b97f4a7c15u * ((uint64_t)trial + 1);
    return draw_problem(P, arrays);
}

/* The results of a run, to compare bits. */
struct results {
    float *x[5];
    size_t bytes[5];
};

__attribute__((unused)) static struct results results_of(const struct whole *w) {
    const ra_problem *p = &w->p;
    const float *x[5] = {w->out, w->lse, w->dq, w->dk, w->dv};
    const int64_t n[5] = {q_numel(p, p->Dv), q_numel(p, 1), q_numel(p, p->D), kv_numel(p, p->D), kv_numel(p, p->Dv)};
    struct results r;
    for (int i = 0; i < 5; i++) {
        r.bytes[i] = (size_t)n[i] * sizeof(float);
        r.x[i] = memcpy(malloc(r.bytes[i] + 1), x[i], r.bytes[i]);
    }
    return r;
}

__attribute__((unused)) static bool same_results(const struct results *a, const struct results *b) {
    bool same = true;
    for (int i = 0; i < 5; i++)
        same &= a->bytes[i] == b->bytes[i] && memcmp(a->x[i], b->x[i], a->bytes[i]) == 0;
    return same;
}

__attribute__((unused)) static void results_free(struct results *r) {
    for (int i = 0; i < 5; i++)
        free(r->x[i]);
}

#endif
