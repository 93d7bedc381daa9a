/* Dropout by tiles, sinks. */
#include "block/modify.h"

#include <math.h>

#include "block/dropout.h"

enum { AT_ONCE = 64 }; /* counters of one call of the kernel */

static void set_counter(uint32_t (*counter)[AT_ONCE], int64_t at, int64_t bh, int64_t q, int64_t quad) {
    ra__dropout_counter(bh, q, quad, (uint32_t *[4]){&counter[0][at], &counter[1][at], &counter[2][at], &counter[3][at]});
}

static float verdict(const struct ra__attn *a, uint32_t word) {
    return word >= a->threshold ? 0 : -INFINITY;
}

void ra__drop_by_key(const struct ra__attn *a, const struct ra__drop_tile *t, int lanes, float *out) {
    uint32_t counter[4][AT_ONCE] = {{0}};
    int64_t quad = -1;
    for (int64_t key = 0; key < t->nk; key++, out += lanes) {
        if (t->k[key] / 4 != quad) {
            quad = t->k[key] / 4;
            for (int64_t lane = 0; lane < t->nq; lane++)
                set_counter(counter, lane, t->bh, t->q[lane], quad);
            a->k->philox(counter, (uint32_t)a->seed, (uint32_t)(a->seed >> 32));
        }
        const uint32_t *word = counter[t->k[key] % 4];
        for (int lane = 0; lane < lanes; lane++)
            out[lane] = lane < t->nq ? verdict(a, word[lane]) : 0;
    }
}

/* The quads that the keys are in, ascending; place[key]: which of them. */
static int64_t quads_of(const struct ra__drop_tile *t, int64_t *quads, int *place) {
    int64_t n = 0;
    for (int64_t key = 0; key < t->nk; key++) {
        if (n == 0 || quads[n - 1] != t->k[key] / 4)
            quads[n++] = t->k[key] / 4;
        place[key] = (int)n - 1;
    }
    return n;
}

void ra__drop_by_query(const struct ra__attn *a, const struct ra__drop_tile *t, int lanes, float *out) {
    int64_t quads[AT_ONCE];
    int place[AT_ONCE];
    const int64_t n = quads_of(t, quads, place), rows = n ? AT_ONCE / n : t->nq; /* queries of one call */
    for (int64_t first = 0; first < t->nq; first += rows) {
        const int64_t count = t->nq - first < rows ? t->nq - first : rows;
        uint32_t counter[4][AT_ONCE] = {{0}};
        for (int64_t i = 0; i < count * n; i++)
            set_counter(counter, i, t->bh, t->q[first + i / n], quads[i % n]);
        a->k->philox(counter, (uint32_t)a->seed, (uint32_t)(a->seed >> 32));
        for (int64_t i = 0; i < count; i++, out += lanes)
            for (int lane = 0; lane < lanes; lane++)
                out[lane] = lane < t->nk ? verdict(a, counter[t->k[lane] % 4][i * n + place[lane]]) : 0;
    }
}

bool ra__dropped(const struct ra__attn *a, int64_t bh, int64_t q, int64_t k) {
    return a->drops && !ra__dropout_keeps(a->seed, bh, q, k, a->threshold);
}

struct ra__row_end ra__end_row(float m, float l, const float *sink) {
    const double ln2 = 0.69314718055994531;
    if (!sink || *sink == -INFINITY)
        return l == 0 ? (struct ra__row_end){0, -INFINITY, -INFINITY}
                      : (struct ra__row_end){1 / l, (float)((m + log2(l)) * ln2), (float)(m * ln2)};
    const double s = *sink / ln2, top = m > s ? m : s, sum = l * exp2(m - top) + exp2(s - top);
    return (struct ra__row_end){(float)(exp2(m - top) / sum), (float)((top + log2(sum)) * ln2), l == 0 ? -INFINITY : (float)(m * ln2)};
}
