/* Tile classification and additive mask tiles. */
#include "block/mask.h"

#include <math.h>
#include <string.h>

#include "base/half.h"

static const double log2e = 1.4426950408889634;

int64_t ra__mask_last_key(int64_t i, int64_t offset, int64_t N) {
    int64_t q = i + offset, group = q / N - (q % N < 0); /* floor */
    return group >= INT64_MAX / N - 1 ? INT64_MAX : (group + 1) * N - 1;
}

struct range {
    int32_t min, max;
};

static struct range segment_range(const int32_t *ids, int64_t n) {
    struct range r = {ids[0], ids[0]};
    for (int64_t i = 1; i < n; i++) {
        r.min = ids[i] < r.min ? ids[i] : r.min;
        r.max = ids[i] > r.max ? ids[i] : r.max;
    }
    return r;
}

/* Trims [*first, *first + *n) to ids inside `other`; returns the range of what is left (undefined when *n becomes 0). */
static struct range trim_to_range(const int32_t *ids, int64_t *first, int64_t *n, struct range other) {
    while (*n > 0 && (ids[*first] < other.min || ids[*first] > other.max))
        ++*first, --*n;
    while (*n > 0 && (ids[*first + *n - 1] < other.min || ids[*first + *n - 1] > other.max))
        --*n;
    return *n > 0 ? segment_range(ids + *first, *n) : (struct range){0, 0};
}

static bool one_segment(struct range a, struct range b) {
    return a.min == a.max && b.min == b.max && a.min == b.min;
}

/* Number of the n ascending positions that are <= last. */
static int64_t count_up_to(const int64_t *positions, int64_t n, int64_t last) {
    int64_t low = 0;
    while (n > 0) {
        int64_t half = n / 2;
        if (positions[low + half] <= last) {
            low += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return low;
}

bool ra__mask_shrink_keys(const struct ra__mask_view *v, struct ra__mask_tile *t) {
    if (t->nq == 0 || t->nk == 0) {
        t->nk = 0;
        return true;
    }
    bool full = !v->bias;
    t->nk = count_up_to(v->k_position + t->k0, t->nk, v->q_last[t->q0 + t->nq - 1]);
    if (v->q_segment && t->nk > 0) {
        struct range q = segment_range(v->q_segment + t->b * v->Tq + t->q0, t->nq);
        full &= one_segment(q, trim_to_range(v->k_segment + t->b * v->Tk, &t->k0, &t->nk, q));
    }
    return t->nk == 0 || (full && v->k_position[t->k0 + t->nk - 1] <= v->q_last[t->q0]);
}

bool ra__mask_shrink_queries(const struct ra__mask_view *v, struct ra__mask_tile *t) {
    if (t->nq == 0 || t->nk == 0) {
        t->nq = 0;
        return true;
    }
    bool full = !v->bias;
    int64_t blind = count_up_to(v->q_last + t->q0, t->nq, v->k_position[t->k0] - 1); /* these see no key of the tile */
    t->q0 += blind;
    t->nq -= blind;
    if (v->q_segment && t->nq > 0) {
        struct range k = segment_range(v->k_segment + t->b * v->Tk + t->k0, t->nk);
        full &= one_segment(k, trim_to_range(v->q_segment + t->b * v->Tq, &t->q0, &t->nq, k));
    }
    return t->nq == 0 || (full && v->k_position[t->k0 + t->nk - 1] <= v->q_last[t->q0]);
}

/* Do positions alone decide inside the tile? */
static bool positional(const struct ra__mask_view *v, const struct ra__mask_tile *t) {
    if (v->bias || t->nq == 0 || t->nk == 0)
        return false;
    return !v->q_segment || one_segment(segment_range(v->q_segment + t->b * v->Tq + t->q0, t->nq),
                                        segment_range(v->k_segment + t->b * v->Tk + t->k0, t->nk));
}

int64_t ra__mask_clear_keys(const struct ra__mask_view *v, const struct ra__mask_tile *t) {
    return positional(v, t) ? count_up_to(v->k_position + t->k0, t->nk, v->q_last[t->q0]) : 0;
}

int64_t ra__mask_clear_queries(const struct ra__mask_view *v, const struct ra__mask_tile *t) {
    if (!positional(v, t))
        return 0;
    return t->nq - count_up_to(v->q_last + t->q0, t->nq, v->k_position[t->k0 + t->nk - 1] - 1);
}

static float element(const ra_tensor *x, int64_t offset) {
    switch (x->dtype) {
    case RA_F32:
        return ((const float *)x->data)[offset];
    case RA_BF16:
        return ra__from_bf16(((const uint16_t *)x->data)[offset]);
    case RA_F16:
        return ra__from_f16(((const uint16_t *)x->data)[offset]);
    }
    return 0;
}

/* bias * log2(e). A finite bias must stay finite, or it would hide its key. */
static float bias_log2(const ra_tensor *bias, int64_t b, int64_t q, int64_t h, int64_t key) {
    float x = element(bias, b * bias->stride[0] + q * bias->stride[1] + h * bias->stride[2] + key * bias->stride[3]);
    float scaled = (float)(x * log2e);
    return isinf(scaled) && isfinite(x) ? copysignf(3.4028234e38f, x) : scaled;
}

/* Positions relative to the tile's first key, so that comparisons are in 32 bits. The plan bounds a key tile's span to 2^31 - 2. */
static int32_t relative(int64_t position, int64_t base) {
    if (position < base)
        return -1;
    return position - base > INT32_MAX - 1 ? INT32_MAX : (int32_t)(position - base);
}

int64_t ra__mask_fill_by_key(const struct ra__mask_view *v, const struct ra__mask_tile *t, int64_t h, int lanes, float *out) {
    int32_t last[64], segment[64];
    const int64_t base = v->k_position[t->k0];
    const int32_t *q_segment = v->q_segment ? v->q_segment + t->b * v->Tq + t->q0 : NULL;
    int64_t visible = 0;
    for (int lane = 0; lane < lanes; lane++) {
        last[lane] = lane < t->nq ? relative(v->q_last[t->q0 + lane], base) : -1;
        segment[lane] = q_segment && lane < t->nq ? q_segment[lane] : 0;
    }
    for (int64_t key = 0; key < t->nk; key++, out += lanes) {
        int32_t position = relative(v->k_position[t->k0 + key], base);
        int32_t k_segment = v->k_segment ? v->k_segment[t->b * v->Tk + t->k0 + key] : 0;
        for (int lane = 0; lane < lanes; lane++)
            out[lane] = ((position <= last[lane]) & (k_segment == segment[lane])) ? 0.0f : -INFINITY;
        for (int lane = 0; v->bias && lane < t->nq; lane++)
            if (out[lane] == 0)
                out[lane] = bias_log2(v->bias, t->b, t->q0 + lane, h, v->k_position[t->k0 + key]);
        for (int lane = 0; lane < t->nq; lane++)
            visible += out[lane] != -INFINITY;
        for (int lane = (int)t->nq; lane < lanes; lane++)
            out[lane] = 0;
    }
    return visible;
}

int64_t ra__mask_fill_by_query(const struct ra__mask_view *v, const struct ra__mask_tile *t, int64_t h, int lanes, float *out) {
    int32_t position[64], segment[64];
    const int64_t base = v->k_position[t->k0];
    const int32_t *k_segment = v->k_segment ? v->k_segment + t->b * v->Tk + t->k0 : NULL;
    int64_t visible = 0;
    for (int lane = 0; lane < lanes; lane++) {
        position[lane] = lane < t->nk ? relative(v->k_position[t->k0 + lane], base) : INT32_MAX;
        segment[lane] = k_segment && lane < t->nk ? k_segment[lane] : 0;
    }
    for (int64_t query = 0; query < t->nq; query++, out += lanes) {
        int32_t last = relative(v->q_last[t->q0 + query], base);
        int32_t q_segment = v->q_segment ? v->q_segment[t->b * v->Tq + t->q0 + query] : 0;
        for (int lane = 0; lane < lanes; lane++)
            out[lane] = ((position[lane] <= last) & (q_segment == segment[lane])) ? 0.0f : -INFINITY;
        for (int lane = (int)t->nk; lane < lanes; lane++)
            out[lane] = -INFINITY; /* `last` may be INT32_MAX */
        for (int lane = 0; v->bias && lane < t->nk; lane++)
            if (out[lane] == 0)
                out[lane] = bias_log2(v->bias, t->b, t->q0 + query, h, v->k_position[t->k0 + lane]);
        for (int lane = 0; lane < t->nk; lane++)
            visible += out[lane] != -INFINITY;
    }
    return visible;
}
