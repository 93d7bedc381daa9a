/* Set operations on sorted lists of ranges. */
#include "ring/rows.h"

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t end_of(struct ra__stretch s) {
    return s.t0 + s.n;
}

int64_t ra__rows_append(struct ra__stretch *range, int64_t count, int64_t most, int64_t begin, int64_t end) {
    struct ra__stretch *last = range + count - 1;
    if (count > 0 && (count == most || begin - end_of(*last) < RA__ROWS_GAP)) {
        last->n = end > end_of(*last) ? end - last->t0 : last->n;
        return count;
    }
    range[count] = (struct ra__stretch){begin, end - begin};
    return count + 1;
}

void ra__rows_count(struct ra__rows *rows) {
    rows->n = 0;
    for (int64_t i = 0; i < rows->count; i++)
        rows->n += rows->range[i].n;
}

void ra__rows_unite(struct ra__rows *out, const struct ra__rows *a, const struct ra__rows *b, int64_t most) {
    out->count = 0;
    for (int64_t i = 0, j = 0; i < a->count || j < b->count;) {
        const bool from_a = j == b->count || (i < a->count && a->range[i].t0 < b->range[j].t0);
        const struct ra__stretch next = from_a ? a->range[i++] : b->range[j++];
        out->count = ra__rows_append(out->range, out->count, most, next.t0, end_of(next));
    }
    ra__rows_count(out);
}

void ra__rows_intersect(struct ra__rows *out, const struct ra__rows *a, const struct ra__rows *b) {
    out->count = 0;
    for (int64_t i = 0, j = 0; i < a->count && j < b->count;) {
        const struct ra__stretch x = a->range[i], y = b->range[j];
        const int64_t begin = x.t0 > y.t0 ? x.t0 : y.t0, end = least(end_of(x), end_of(y));
        if (begin < end)
            out->range[out->count++] = (struct ra__stretch){begin, end - begin};
        if (end_of(x) < end_of(y))
            i++;
        else
            j++;
    }
    ra__rows_count(out);
}

void ra__rows_subtract(struct ra__rows *out, const struct ra__rows *a, const struct ra__rows *b) {
    struct ra__rows_cursor c = {.rows = b};
    out->count = 0;
    for (int64_t i = 0; i < a->count; i++) {
        int64_t run;
        for (int64_t t = a->range[i].t0; t < end_of(a->range[i]); t += run) {
            run = end_of(a->range[i]) - t;
            if (ra__rows_find(&c, t, &run) < 0)
                out->range[out->count++] = (struct ra__stretch){t, run};
        }
    }
    ra__rows_count(out);
}

int64_t ra__rows_find(struct ra__rows_cursor *c, int64_t row, int64_t *run) {
    if (!c->rows)
        return row;
    const struct ra__stretch *range = c->rows->range;
    for (; c->i < c->rows->count && end_of(range[c->i]) <= row; c->i++)
        c->before += range[c->i].n;
    if (c->i == c->rows->count)
        return -1;
    const bool inside = range[c->i].t0 <= row;
    *run = least(*run, inside ? end_of(range[c->i]) - row : range[c->i].t0 - row);
    return inside ? c->before + row - range[c->i].t0 : -1;
}
