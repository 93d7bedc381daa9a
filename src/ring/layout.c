/* Contiguous and zigzag parts, stripes. */
#include "ring/layout.h"

/* Where part i of N near-equal parts of S tokens begins. */
static int64_t part_begin(int64_t S, int64_t N, int64_t i) {
    int64_t rest = S % N;
    return i * (S / N) + (i < rest ? i : rest);
}

static void add_part(struct ra__shard *s, int64_t begin, int64_t end) {
    if (begin == end)
        return;
    s->position[s->stretches.count] = begin;
    s->stretches.part[s->stretches.count++] = (struct ra__stretch){s->T, end - begin};
    s->T += end - begin;
}

struct ra__shard ra__layout_shard(ra_layout layout, int64_t S, int P, int r) {
    struct ra__shard s = {.stride = 1};
    const int64_t N = 2 * (int64_t)P, mirror = N - 1 - r;
    switch (layout) {
    case RA_CONTIGUOUS:
        add_part(&s, part_begin(S, P, r), part_begin(S, P, r + 1));
        break;
    case RA_ZIGZAG:
        add_part(&s, part_begin(S, N, r), part_begin(S, N, r + 1));
        add_part(&s, part_begin(S, N, mirror), part_begin(S, N, mirror + 1));
        break;
    case RA_STRIPED:
        s.stride = P;
        s.T = r < S ? (S - r + P - 1) / P : 0;
        s.position[0] = r;
        s.stretches.part[0] = (struct ra__stretch){0, s.T};
        s.stretches.count = s.T > 0;
        break;
    }
    return s;
}

int64_t ra__shard_position(const struct ra__shard *s, int64_t t) {
    int i = s->stretches.count > 1 && t >= s->stretches.part[1].t0;
    return s->position[i] + (t - s->stretches.part[i].t0) * s->stride;
}

void ra__shard_positions(const struct ra__shard *s, int64_t *positions) {
    for (int64_t t = 0; t < s->T; t++)
        positions[t] = ra__shard_position(s, t);
}

int64_t ra__shard_first(const struct ra__shard *s) {
    return s->position[0];
}

int64_t ra__shard_last(const struct ra__shard *s) {
    return ra__shard_position(s, s->T - 1);
}
