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

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* ---- spans ---- */

static struct ra__span around(struct ra__span a, struct ra__span b) {
    return (struct ra__span){least(a.begin, b.begin), most(a.end, b.end)};
}

static struct ra__span within(struct ra__span a, struct ra__span b) {
    return (struct ra__span){most(a.begin, b.begin), least(a.end, b.end)};
}

static bool covers(struct ra__span s, int64_t first, int64_t last) {
    return first >= s.begin && last < s.end;
}

static const struct ra__span nothing = {INT64_MAX, INT64_MIN}, everything = {INT64_MIN, INT64_MAX};

/* Keys that are hidden by length lie from here on. */
static int64_t limit_of(const struct ra__mask_view *v, int64_t b) {
    return v->kv_lens ? v->kv_lens[b] : INT64_MAX;
}

/* The first span of query t that ends behind `position`. */
static int64_t span_behind(const struct ra__spans *s, int64_t t, int64_t position) {
    int64_t low = s->first[t], n = s->first[t + 1] - low;
    if (n == 0 || s->span[low].end > position) /* mostly */
        return low;
    for (low++, n--; n > 0;) {
        const int64_t half = n / 2;
        if (s->span[low + half].end <= position) {
            low += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return low;
}

/* Number of the n ascending positions that are < limit. */
static int64_t count_below(const int64_t *positions, int64_t n, int64_t limit) {
    if (n == 0 || limit <= positions[0])
        return 0;
    if (limit > positions[n - 1])
        return n;
    if (positions[n - 1] - positions[0] == n - 1)
        return limit - positions[0];
    int64_t low = 0;
    while (n > 0) {
        int64_t half = n / 2;
        if (positions[low + half] < limit) {
            low += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return low;
}

/* ---- segments ---- */

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

/* ---- sums ---- */

struct ra__mask_queries ra__mask_sum_queries(const struct ra__mask_view *v, int64_t b, int64_t q0, int64_t nq) {
    struct ra__mask_queries s = {.first = nothing, .rest = nothing, .all_first = everything, .all_last = everything};
    const int64_t limit = limit_of(v, b);
    for (int64_t t = q0; t < q0 + nq; t++) {
        const int64_t i = v->q.first[t], n = v->q.first[t + 1] - i;
        const struct ra__span *span = v->q.span + i;
        if (n == 0) {
            s.all_first = s.all_last = nothing;
            continue;
        }
        s.first = around(s.first, span[0]);
        s.all_first = within(s.all_first, span[0]);
        s.all_last = within(s.all_last, span[n - 1]);
        if (n > 1)
            s.rest = around(s.rest, (struct ra__span){span[1].begin, span[n - 1].end});
        s.many |= n > 2;
    }
    s.first.end = least(s.first.end, limit);
    s.rest.end = least(s.rest.end, limit);
    s.all_first.end = least(s.all_first.end, limit);
    s.all_last.end = least(s.all_last.end, limit);
    struct range ids = {0, 0};
    if (v->q_segment)
        ids = nq > 0 ? segment_range(v->q_segment + b * v->Tq + q0, nq) : (struct range){INT32_MAX, INT32_MIN};
    s.min = ids.min;
    s.max = ids.max;
    return s;
}

struct ra__mask_queries ra__mask_join_queries(const struct ra__mask_queries *a, const struct ra__mask_queries *b) {
    return (struct ra__mask_queries){around(a->first, b->first),       around(a->rest, b->rest), within(a->all_first, b->all_first),
                                     within(a->all_last, b->all_last), a->many || b->many,       a->min < b->min ? a->min : b->min,
                                     a->max > b->max ? a->max : b->max};
}

struct ra__mask_keys ra__mask_sum_keys(const struct ra__mask_view *v, int64_t b, int64_t k0, int64_t nk) {
    struct range r = {0, 0};
    if (v->k_segment)
        r = segment_range(v->k_segment + b * v->Tk + k0, nk);
    return (struct ra__mask_keys){v->k_position[k0], v->k_position[k0 + nk - 1], r.min, r.max};
}

/* ---- classification ---- */

/* The part of [first, last] that some of the tile's queries may see. */
static struct ra__span reach(const struct ra__mask_view *v, const struct ra__mask_queries *q, const struct ra__mask_tile *t, int64_t first,
                             int64_t last) {
    const struct ra__span keys = {first, last + 1};
    struct ra__span seen = nothing;
    if (!q->many) {
        const struct ra__span a = within(q->first, keys), b = within(q->rest, keys);
        seen = a.begin < a.end ? a : seen;
        return b.begin < b.end ? around(seen, b) : seen;
    }
    for (int64_t i = t->q0; i < t->q0 + t->nq; i++) {
        int64_t at = span_behind(&v->q, i, first), end = at;
        while (end < v->q.first[i + 1] && v->q.span[end].begin <= last)
            end++;
        if (at < end)
            seen = around(seen, (struct ra__span){v->q.span[at].begin, v->q.span[end - 1].end});
    }
    return within(seen, (struct ra__span){first, least(last + 1, limit_of(v, t->b))});
}

static bool adds(const struct ra__mask_view *v) {
    return v->bias || v->alibi;
}

bool ra__mask_shrink_keys(const struct ra__mask_view *v, const struct ra__mask_queries *q, const struct ra__mask_keys *k,
                          struct ra__mask_tile *t) {
    if (t->nq == 0 || t->nk == 0 || !ra__mask_meets(q, k)) {
        t->nk = 0;
        return true;
    }
    bool full = !adds(v);
    const int64_t *positions = v->k_position + t->k0;
    if (!covers(q->all_first, k->first, k->last) && !covers(q->all_last, k->first, k->last)) {
        const struct ra__span seen = reach(v, q, t, positions[0], positions[t->nk - 1]);
        const int64_t before = count_below(positions, t->nk, seen.begin), end = count_below(positions, t->nk, seen.end);
        t->k0 += before;
        t->nk = most(end - before, 0);
        if (t->nk == 0)
            return true;
        const int64_t first = v->k_position[t->k0], last = v->k_position[t->k0 + t->nk - 1];
        full &= covers(q->all_first, first, last) || covers(q->all_last, first, last);
    }
    if (v->q_segment && (q->min != q->max || k->min != k->max)) {
        struct range ids = segment_range(v->q_segment + t->b * v->Tq + t->q0, t->nq);
        full &= one_segment(ids, trim_to_range(v->k_segment + t->b * v->Tk, &t->k0, &t->nk, ids));
    }
    return t->nk == 0 || full;
}

static bool query_meets(const struct ra__mask_view *v, int64_t t, int64_t first, int64_t last) {
    const int64_t i = span_behind(&v->q, t, first);
    return i < v->q.first[t + 1] && v->q.span[i].begin <= last;
}

static bool query_covers(const struct ra__mask_view *v, int64_t t, int64_t first, int64_t last) {
    const int64_t i = span_behind(&v->q, t, first);
    return i < v->q.first[t + 1] && covers(v->q.span[i], first, last);
}

bool ra__mask_shrink_queries(const struct ra__mask_view *v, const struct ra__mask_queries *q, const struct ra__mask_keys *k,
                             struct ra__mask_tile *t) {
    if (t->nq == 0 || t->nk == 0 || !ra__mask_meets(q, k)) {
        t->nq = 0;
        return true;
    }
    bool full = !adds(v);
    if (!covers(q->all_first, k->first, k->last) && !covers(q->all_last, k->first, k->last)) {
        const int64_t limit = limit_of(v, t->b), first = v->k_position[t->k0], end = v->k_position[t->k0 + t->nk - 1];
        const int64_t last = least(end, limit - 1);
        if (first >= limit)
            t->nq = 0;
        for (; t->nq > 0 && !query_meets(v, t->q0, first, last); t->q0++)
            t->nq--;
        while (t->nq > 0 && !query_meets(v, t->q0 + t->nq - 1, first, last))
            t->nq--;
        full &= end == last;
        for (int64_t i = 0; full && i < t->nq; i++)
            full = query_covers(v, t->q0 + i, first, last);
    }
    if (v->q_segment && t->nq > 0 && (q->min != q->max || k->min != k->max)) {
        struct range ids = segment_range(v->k_segment + t->b * v->Tk + t->k0, t->nk);
        full &= one_segment(ids, trim_to_range(v->q_segment + t->b * v->Tq, &t->q0, &t->nq, ids));
    }
    return t->nq == 0 || full;
}

/* Do positions alone decide inside the tile? */
static bool positional(const struct ra__mask_view *v, const struct ra__mask_tile *t) {
    if (adds(v) || t->nq == 0 || t->nk == 0)
        return false;
    return !v->q_segment || one_segment(segment_range(v->q_segment + t->b * v->Tq + t->q0, t->nq),
                                        segment_range(v->k_segment + t->b * v->Tk + t->k0, t->nk));
}

int64_t ra__mask_clear_keys(const struct ra__mask_view *v, const struct ra__mask_queries *q, const struct ra__mask_tile *t) {
    if (!positional(v, t))
        return 0;
    const int64_t *positions = v->k_position + t->k0;
    const int64_t first = positions[0] >= q->all_first.begin ? q->all_first.end : INT64_MIN;
    const int64_t last = positions[0] >= q->all_last.begin ? q->all_last.end : INT64_MIN;
    return count_below(positions, t->nk, most(first, last));
}

int64_t ra__mask_clear_queries(const struct ra__mask_view *v, const struct ra__mask_tile *t) {
    if (!positional(v, t))
        return 0;
    const int64_t first = v->k_position[t->k0], last = v->k_position[t->k0 + t->nk - 1];
    int64_t n = 0;
    while (last < limit_of(v, t->b) && n < t->nq && query_covers(v, t->q0 + t->nq - 1 - n, first, last))
        n++;
    return n;
}

/* ---- edges ---- */

bool ra__mask_edge_of_queries(const struct ra__mask_view *v, int64_t b, int64_t t) {
    if (v->q_segment && v->q_segment[b * v->Tq + t] != v->q_segment[b * v->Tq + t - 1])
        return true;
    const int64_t *first = v->q.first;
    int64_t i = first[t - 1], j = first[t];
    const int64_t i_end = j, j_end = first[t + 1];
    if (i == i_end || j == j_end)
        return false; /* who sees nothing costs nothing anywhere */
    while (i < i_end && j < j_end) {
        const struct ra__span both = within(v->q.span[i], v->q.span[j]);
        if (both.begin < both.end)
            return false;
        if (v->q.span[i].end < v->q.span[j].end)
            i++;
        else
            j++;
    }
    return true;
}

bool ra__mask_edge_of_keys(const struct ra__mask_view *v, int64_t b, int64_t t) {
    if (v->k_segment && v->k_segment[b * v->Tk + t] != v->k_segment[b * v->Tk + t - 1])
        return true;
    const int64_t next = count_below(v->q.edge, v->q.edges, v->k_position[t - 1] + 1);
    return next < v->q.edges && v->q.edge[next] <= v->k_position[t];
}

/* ---- additive tiles ---- */

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

/* To fp32: what is finite must stay finite, or it would hide its key. NaN stays; two instructions, no branch. */
static inline float narrowed(double x) {
    const double largest = 3.4028234663852886e38; /* of fp32 */
    x = largest < x ? largest : x;
    return (float)(-largest > x ? -largest : x);
}

enum { MAX_LANES = 64 };

/* Positions relative to the tile's first key, so that comparisons are in 32 bits. The plan bounds a key tile's span to 2^31 - 2. */
static int32_t relative(int64_t position, int64_t base) {
    if (position < base)
        return -1;
    return position - base > INT32_MAX - 1 ? INT32_MAX : (int32_t)(position - base);
}

/* One span of every lane's query, relative to the tile's first key, and its segment. Lanes without one see nothing. */
struct lanes {
    int32_t begin[MAX_LANES], end[MAX_LANES], segment[MAX_LANES];
};

/* The next span of each of the nq queries inside the tile; at [nq] moves on. false: none has any. */
static bool next_spans(const struct ra__mask_view *v, const struct ra__mask_tile *t, int64_t *at, int lanes, struct lanes *l) {
    const int64_t base = v->k_position[t->k0], last = v->k_position[t->k0 + t->nk - 1], limit = limit_of(v, t->b);
    bool any = false;
    for (int lane = 0; lane < lanes; lane++) {
        l->begin[lane] = l->end[lane] = 0;
        if (lane >= t->nq || at[lane] >= v->q.first[t->q0 + lane + 1] || v->q.span[at[lane]].begin > last)
            continue;
        const struct ra__span span = v->q.span[at[lane]++];
        l->begin[lane] = relative(span.begin, base);
        l->end[lane] = relative(least(span.end, limit), base);
        any = true;
    }
    return any;
}

/* Writes (or adds to) the row of one key; returns the number of lanes newly seen. */
static int32_t row_of_key(const struct lanes *l, int lanes, int32_t position, bool first, float *out) {
    int32_t seen = 0;
    if (first)
        for (int lane = 0; lane < lanes; lane++) {
            const int32_t in = (position >= l->begin[lane]) & (position < l->end[lane]);
            out[lane] = in ? 0.0f : -INFINITY;
            seen += in;
        }
    else
        for (int lane = 0; lane < lanes; lane++) {
            const int32_t in = (position >= l->begin[lane]) & (position < l->end[lane]);
            out[lane] = in ? 0.0f : out[lane];
            seen += in;
        }
    return seen;
}

/* Hides the lanes of other segments; returns how many of the lanes that were seen are left. */
static int32_t row_of_segment(const struct lanes *l, int lanes, int32_t segment, float *out) {
    int32_t seen = 0;
    for (int lane = 0; lane < lanes; lane++) {
        const int32_t in = (l->segment[lane] == segment) & (out[lane] == 0.0f);
        out[lane] = in ? 0.0f : -INFINITY;
        seen += in;
    }
    return seen;
}

/* The visible pairs by position; out[key][lane] = 0 where visible. */
static int64_t fill_spans_by_key(const struct ra__mask_view *v, const struct ra__mask_tile *t, int lanes, struct lanes *l, float *out) {
    const int64_t *positions = v->k_position + t->k0;
    const int64_t base = positions[0];
    int64_t at[MAX_LANES], visible = 0;
    for (int lane = 0; lane < t->nq; lane++)
        at[lane] = span_behind(&v->q, t->q0 + lane, base);
    bool first = true;
    while (next_spans(v, t, at, lanes, l) || first) {
        int32_t begin = 0, end = INT32_MAX; /* what all of them see needs no comparison */
        for (int lane = 0; lane < t->nq; lane++) {
            begin = l->begin[lane] > begin ? l->begin[lane] : begin;
            end = l->end[lane] < end ? l->end[lane] : end;
        }
        for (int64_t key = 0; key < t->nk; key++) {
            const int32_t position = (int32_t)(positions[key] - base);
            if (position >= begin && position < end) {
                memset(out + key * lanes, 0, sizeof(float) * (size_t)lanes);
                visible += t->nq;
            } else {
                visible += row_of_key(l, lanes, position, first, out + key * lanes);
            }
        }
        first = false;
    }
    return visible;
}

/* ---- bias and ALiBi ---- */

/* The bias of one query and n keys: out[i * step]. Keys that are neighbours are read as such, and what lies `ahead` elements further on is
 * asked for: rows are so far apart that nobody else would ask for them in time. */
static inline __attribute__((always_inline)) void row_of_bias(const struct ra__mask_view *v, int64_t b, int64_t q, int64_t h,
                                                              const int64_t *key, int64_t n, float *out, int step, int64_t ahead) {
    const int64_t *stride = v->bias->stride, first = b * stride[0] + q * stride[1] + h * stride[2];
    if (v->bias->dtype == RA_F32 && stride[3] == 1 && n > 0 && key[n - 1] - key[0] == n - 1) {
        const float *from = (const float *)v->bias->data + first + key[0], *next = from + ahead;
        for (int64_t i = 0; i < n && ahead; i += 16)
            __builtin_prefetch(next + i);
        for (int64_t i = 0; i < n; i++)
            out[i * step] = from[i];
    } else {
        for (int64_t i = 0; i < n; i++)
            out[i * step] = element(v->bias, first + key[i] * stride[3]);
    }
}

/* x = bias - slope |from - to| in units of log2 where it is 0, that is visible; returns how many are left. One of the two may be NULL. All
 * lanes, so that the loop has no end to treat apart: what lanes that are not used hold does not matter. */
static inline __attribute__((always_inline)) int32_t add_lanes(float *restrict x, int lanes, const float *restrict bias,
                                                               const double *restrict from, double to, double slope) {
    int32_t seen = 0;
    for (int lane = 0; lane < lanes; lane++) {
        double sum = bias ? (double)bias[lane] : 0;
        if (from)
            sum -= slope * fabs(from[lane] - to);
        float added = narrowed(sum * log2e);
        if (bias)
            added = fabsf(bias[lane]) == INFINITY ? bias[lane] : added;
        x[lane] = x[lane] == 0 ? added : x[lane];
        seen += x[lane] != -INFINITY;
    }
    return seen;
}

static int32_t add_to_row(float *restrict x, int lanes, const float *bias, const double *from, double to, double slope) {
    if (!from)
        return add_lanes(x, lanes, bias, NULL, 0, 0);
    return bias ? add_lanes(x, lanes, bias, from, to, slope) : add_lanes(x, lanes, NULL, from, to, slope);
}

/* Some keys at a time, query by query: rows of a bias lie far apart, often by a power of two, and read key by key they would drive each
 * other out of the first level of cache. */
static int64_t add_by_key(const struct ra__mask_view *v, const struct ra__mask_tile *t, int64_t h, int lanes, float *out) {
    enum { KEYS = 16 };
    const int64_t *keys = v->k_position + t->k0;
    const double slope = v->alibi ? v->alibi[h] : 0;
    float bias[KEYS][MAX_LANES] = {{0}};
    double aligned[MAX_LANES] = {0};
    int64_t visible = 0;
    for (int lane = 0; lane < t->nq && v->alibi; lane++) /* from the tile's first key */
        aligned[lane] = (double)(v->q_aligned[t->q0 + lane] - keys[0]);
    for (int64_t first = 0; first < t->nk; first += KEYS) {
        const int64_t n = least(KEYS, t->nk - first);
        for (int lane = 0; lane < t->nq && v->bias; lane++)
            row_of_bias(v, t->b, t->q0 + lane, h, keys + first, n, &bias[0][lane], MAX_LANES, least(KEYS, t->nk - first - n));
        for (int64_t i = 0; i < n; i++) {
            float *x = out + (first + i) * lanes;
            for (int lane = (int)t->nq; lane < lanes; lane++)
                x[lane] = -INFINITY; /* not counted */
            visible +=
                add_to_row(x, lanes, v->bias ? bias[i] : NULL, v->alibi ? aligned : NULL, (double)(keys[first + i] - keys[0]), slope);
        }
    }
    return visible;
}

int64_t ra__mask_fill_by_key(const struct ra__mask_view *v, const struct ra__mask_tile *t, int64_t h, int lanes, float *out) {
    struct lanes l;
    int64_t visible = fill_spans_by_key(v, t, lanes, &l, out);
    if (v->q_segment) {
        const int32_t *k_segment = v->k_segment + t->b * v->Tk + t->k0;
        for (int lane = 0; lane < lanes; lane++)
            l.segment[lane] = v->q_segment[t->b * v->Tq + t->q0 + (lane < t->nq ? lane : 0)];
        visible = 0;
        for (int64_t key = 0; key < t->nk; key++) {
            for (int lane = (int)t->nq; lane < lanes; lane++)
                out[key * lanes + lane] = -INFINITY; /* not counted */
            visible += row_of_segment(&l, lanes, k_segment[key], out + key * lanes);
        }
    }
    if (adds(v))
        visible = add_by_key(v, t, h, lanes, out);
    for (int64_t key = 0; key < t->nk && t->nq < lanes; key++)
        for (int lane = (int)t->nq; lane < lanes; lane++)
            out[key * lanes + lane] = 0;
    return visible;
}

/* Writes (or adds to) the row of one query. */
static int32_t row_of_query(const int32_t *position, int lanes, int32_t begin, int32_t end, bool first, float *out) {
    int32_t seen = 0;
    if (first)
        for (int lane = 0; lane < lanes; lane++) {
            const int32_t in = (position[lane] >= begin) & (position[lane] < end);
            out[lane] = in ? 0.0f : -INFINITY;
            seen += in;
        }
    else
        for (int lane = 0; lane < lanes; lane++) {
            const int32_t in = (position[lane] >= begin) & (position[lane] < end);
            out[lane] = in ? 0.0f : out[lane];
            seen += in;
        }
    return seen;
}

int64_t ra__mask_fill_by_query(const struct ra__mask_view *v, const struct ra__mask_tile *t, int64_t h, int lanes, float *out) {
    int32_t position[MAX_LANES];
    float bias[MAX_LANES] = {0};
    double distance[MAX_LANES]; /* of keys, from the tile's first one */
    struct lanes l;
    const int64_t base = v->k_position[t->k0], last = v->k_position[t->k0 + t->nk - 1], limit = limit_of(v, t->b);
    const int32_t *k_segment = v->k_segment ? v->k_segment + t->b * v->Tk + t->k0 : NULL;
    int64_t visible = 0;
    for (int lane = 0; lane < lanes; lane++) {
        position[lane] = lane < t->nk ? relative(v->k_position[t->k0 + lane], base) : INT32_MAX;
        l.segment[lane] = k_segment && lane < t->nk ? k_segment[lane] : 0;
        distance[lane] = position[lane];
    }
    for (int64_t query = t->q0; query < t->q0 + t->nq; query++, out += lanes) {
        int64_t i = span_behind(&v->q, query, base);
        int32_t seen = 0;
        bool first = true;
        for (; i < v->q.first[query + 1] && v->q.span[i].begin <= last; i++, first = false) {
            const int32_t begin = relative(v->q.span[i].begin, base), end = relative(least(v->q.span[i].end, limit), base);
            seen += row_of_query(position, lanes, begin, end, first, out);
        }
        if (first)
            row_of_query(position, lanes, 0, 0, true, out);
        if (k_segment)
            seen = row_of_segment(&l, lanes, v->q_segment[t->b * v->Tq + query], out);
        if (v->bias)
            row_of_bias(v, t->b, query, h, v->k_position + t->k0, t->nk, bias, 1,
                        v->bias->stride[1] * least(16, t->q0 + t->nq - 1 - query));
        if (adds(v))
            seen = add_to_row(out, lanes, v->bias ? bias : NULL, v->alibi ? distance : NULL,
                              v->alibi ? (double)(v->q_aligned[query] - base) : 0, v->alibi ? v->alibi[h] : 0);
        visible += seen;
    }
    return visible;
}
