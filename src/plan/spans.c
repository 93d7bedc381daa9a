/* Spans of one query, and unions of them. */
#include "plan/spans.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* ---- packed sequences ---- */

/* The sequence of one query: where its queries and keys begin, and how many there are. */
struct sequence {
    int64_t q0, nq, k0, nk;
};

/* The last sequence that begins at or before i: those that begin in the same place before it are empty. */
static bool sequence_of(const struct ra__mask_rule *rule, int64_t i, struct sequence *s) {
    *s = (struct sequence){0, rule->Sq, 0, rule->Skv};
    if (!rule->cu_q)
        return true;
    int64_t low = 0, high = rule->sequences; /* cu_q[low] <= i < cu_q[high] */
    if (i >= rule->cu_q[high] || rule->sequences == 0)
        return false;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (rule->cu_q[middle] <= i)
            low = middle;
        else
            high = middle;
    }
    *s = (struct sequence){rule->cu_q[low], (int64_t)rule->cu_q[low + 1] - rule->cu_q[low], rule->cu_k[low],
                           (int64_t)rule->cu_k[low + 1] - rule->cu_k[low]};
    return true;
}

static int64_t position_of(const struct ra__mask_rule *rule, const struct sequence *s, int64_t i) {
    return i - s->q0 + (rule->bottom_right ? s->nk - s->nq : 0);
}

int64_t ra__mask_aligned(const struct ra__mask_rule *rule, int64_t i) {
    struct sequence s;
    return sequence_of(rule, i, &s) ? s.k0 + position_of(rule, &s, i) : 0;
}

/* What all conditions but the slices leave: at most the kept first keys and a window. */
static int64_t sequence_spans(const struct ra__mask_rule *rule, int64_t i, struct ra__span out[2]) {
    struct sequence s;
    if (!sequence_of(rule, i, &s))
        return 0;
    const int64_t q = position_of(rule, &s, i), nk = s.nk;
    int64_t end = nk, begin = 0, kept = 0;
    if (rule->block) {
        const int64_t last = ra__mask_last_key(q, 0, rule->block);
        end = least(end, most(last < nk ? last + 1 : nk, rule->prefix));
    }
    if (rule->right >= 0 && rule->right < nk - q)
        end = least(end, q + rule->right + 1);
    if (rule->left >= 0 && rule->left < q) {
        begin = q - rule->left;
        kept = least(rule->keep_first, end);
    }
    int64_t n = 0;
    if (kept > 0 && kept < begin)
        out[n++] = (struct ra__span){s.k0, s.k0 + kept};
    else if (kept > 0)
        begin = 0;
    if (begin < end)
        out[n++] = (struct ra__span){s.k0 + begin, s.k0 + end};
    return n;
}

/* ---- slices ---- */

static int by_query(const void *x, const void *y) {
    const struct ra__slice *a = x, *b = y;
    return (a->q0 > b->q0) - (a->q0 < b->q0);
}

/* The sorted list is read as a balanced tree, whose root is the middle: reach[root] is the largest q1 in it. */
static int64_t set_reach(const struct ra__slice *slice, int64_t *reach, int64_t low, int64_t high) {
    if (low >= high)
        return INT64_MIN;
    const int64_t middle = low + (high - low) / 2;
    const int64_t left = set_reach(slice, reach, low, middle), right = set_reach(slice, reach, middle + 1, high);
    return reach[middle] = most(slice[middle].q1, most(left, right));
}

void ra__slices_sort(struct ra__slice *slice, int64_t *reach, int64_t n) {
    if (n)
        qsort(slice, (size_t)n, sizeof *slice, by_query);
    set_reach(slice, reach, 0, n);
}

/* Appends what the slices low..high give query i, unsorted. Skips subtrees that end before it or begin after it; out NULL: only counts. */
static int64_t collect(const struct ra__mask_rule *rule, int64_t low, int64_t high, int64_t i, struct ra__span *out, int64_t n) {
    if (low >= high)
        return n;
    const int64_t middle = low + (high - low) / 2;
    if (rule->slice_reach[middle] <= i)
        return n;
    n = collect(rule, low, middle, i, out, n);
    const struct ra__slice *s = &rule->slice[middle];
    if (s->q0 > i)
        return n;
    if (i < s->q1 && !out)
        n++;
    if (i < s->q1 && out) {
        const int64_t end = s->type & 1 ? least(s->k1, s->k1 + (i - s->q1) + 1) : s->k1;
        const int64_t begin = s->type & 2 ? most(s->k0, s->k0 + (i - s->q0)) : s->k0;
        if (begin < end)
            out[n++] = (struct ra__span){begin, end};
    }
    return collect(rule, middle + 1, high, i, out, n);
}

static int by_begin(const void *x, const void *y) {
    const struct ra__span *a = x, *b = y;
    return (a->begin > b->begin) - (a->begin < b->begin);
}

/* Sorts, and joins spans that overlap; also those that touch, when `touching`. */
static int64_t join(struct ra__span *span, int64_t n, bool touching) {
    int64_t joined = 0;
    if (n > 1)
        qsort(span, (size_t)n, sizeof *span, by_begin);
    for (int64_t i = 0; i < n; i++)
        if (joined && span[i].begin < span[joined - 1].end + touching)
            span[joined - 1].end = most(span[joined - 1].end, span[i].end);
        else
            span[joined++] = span[i];
    return joined;
}

/* out = what is in both lists; na + nb - 1 spans at most. */
static int64_t intersect(const struct ra__span *a, int64_t na, const struct ra__span *b, int64_t nb, struct ra__span *out) {
    int64_t n = 0;
    for (int64_t i = 0, j = 0; i < na && j < nb;) {
        const int64_t begin = most(a[i].begin, b[j].begin), end = least(a[i].end, b[j].end);
        if (begin < end)
            out[n++] = (struct ra__span){begin, end};
        if (a[i].end < b[j].end)
            i++;
        else
            j++;
    }
    return n;
}

/* ---- rows ---- */

void ra__mask_rule_finish(struct ra__mask_rule *rule) {
    int64_t cover = 0; /* the most slices over one query: reached where a slice begins */
    for (int64_t i = 0; i < rule->slices; i++)
        if (i + 1 == rule->slices || rule->slice[i + 1].q0 != rule->slice[i].q0)
            cover = most(cover, collect(rule, 0, rule->slices, rule->slice[i].q0, NULL, 0));
    rule->most = 2 * cover + 2; /* the result, and behind it the slices as they are */
}

int64_t ra__mask_row(const struct ra__mask_rule *rule, int64_t i, struct ra__span *out) {
    if (!rule->slice)
        return sequence_spans(rule, i, out);
    struct ra__span given[2], *covered = out + rule->most / 2;
    const int64_t n = sequence_spans(rule, i, given);
    return intersect(given, n, covered, join(covered, collect(rule, 0, rule->slices, i, covered, 0), true), out);
}

/* ---- unions ---- */

static bool append(struct ra__span_set *set, struct ra__span span) {
    if (set->count == set->room) {
        const int64_t room = 2 * set->room + 8;
        struct ra__span *more = ra__alloc(set->memory, (size_t)room * sizeof *more);
        if (!more)
            return false;
        if (set->count)
            memcpy(more, set->span, (size_t)set->count * sizeof *more);
        ra__free(set->memory, set->span);
        set->span = more;
        set->room = room;
    }
    set->span[set->count++] = span;
    return true;
}

bool ra__span_set_add(struct ra__span_set *set, const struct ra__span *row, int64_t n) {
    const int64_t end = set->count;
    int64_t kept = 0;
    while (kept < n && set->previous + kept < end) {
        struct ra__span *old = &set->span[set->previous + kept];
        if (row[kept].begin >= old->end || row[kept].end <= old->begin)
            break;
        old->begin = least(old->begin, row[kept].begin);
        old->end = most(old->end, row[kept].end);
        kept++;
    }
    if (kept == n)
        return true;
    if (set->previous + kept < end) { /* another pattern begins; what the two share is joined at the end */
        set->previous = end;
        kept = 0;
    }
    for (; kept < n; kept++)
        if (!append(set, row[kept]))
            return false;
    return true;
}

void ra__span_set_finish(struct ra__span_set *set) {
    set->count = join(set->span, set->count, false);
}

void ra__span_set_free(struct ra__span_set *set) {
    ra__free(set->memory, set->span);
    *set = (struct ra__span_set){.memory = set->memory};
}
