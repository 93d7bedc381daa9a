/* Makes one rank's schedule from the question who needs which rows of whose block. */
#include "ring/schedule.h"

#include <string.h>

#include "base/memory.h"

/* Exactly what two lists have in common, or one without the other, may have nearly twice as many ranges as each; and so may that again. */
enum { NEED = 2 * RA__ROWS_MOST, PART = 2 * NEED };

/* One block on its way round the ring. */
struct journey {
    struct ra__schedule *schedule;
    ra__needs_fn *needs;
    const void *context;
    int64_t most;
    bool *computes;        /* [P], by distance from the owner */
    struct ra__rows *need; /* [P + 1], likewise; 0: the owner itself; P: none */
    struct ra__rows *left; /* [P + 1]: what is needed there or further on */
    struct ra__rows so_far, united, part;
    struct ra__stretch *storage;
};

static bool prepare(struct journey *j) {
    const ra_allocator *memory = j->schedule->memory;
    const size_t P = (size_t)j->schedule->P, lists = 2 * (P + 1);
    j->computes = ra__alloc(memory, P * sizeof *j->computes);
    j->need = ra__alloc_zero(memory, lists * sizeof *j->need);
    j->left = j->need ? j->need + P + 1 : NULL;
    j->storage = ra__alloc(memory, (lists * NEED + 2 * NEED + PART) * sizeof *j->storage);
    if (!j->computes || !j->need || !j->storage)
        return false;
    for (size_t i = 0; i < lists; i++)
        j->need[i].range = j->storage + i * NEED;
    j->so_far.range = j->storage + lists * NEED;
    j->united.range = j->so_far.range + NEED;
    j->part.range = j->united.range + NEED;
    return true;
}

static void finish(struct journey *j) {
    ra__free(j->schedule->memory, j->computes);
    ra__free(j->schedule->memory, j->need);
    ra__free(j->schedule->memory, j->storage);
}

static void swap(struct ra__rows *a, struct ra__rows *b) {
    const struct ra__rows t = *a;
    *a = *b;
    *b = t;
}

/* Lets each row be needed from its first reader to its last, so that its gradients come home once. */
static void close_gaps(struct journey *j) {
    const int P = j->schedule->P;
    j->so_far.count = j->so_far.n = 0;
    for (int d = 1; d < P; d++) {
        ra__rows_unite(&j->united, &j->so_far, &j->need[d], j->most);
        swap(&j->united, &j->so_far);
        ra__rows_intersect(&j->need[d], &j->so_far, &j->left[d]);
    }
}

/* Who needs what of a block. All ranks come to the same result. */
static void ask(struct journey *j, int block) {
    const int P = j->schedule->P;
    int64_t coming_home = 0;
    for (int d = P - 1; d >= 0; d--) {
        struct ra__rows *need = &j->need[d];
        need->count = j->needs(j->context, (block + d) % P, block, need->range, j->most);
        ra__rows_count(need);
        j->computes[d] = need->count > 0;
        ra__rows_unite(&j->left[d], &j->left[d + 1], need, j->most);
        ra__rows_subtract(&j->part, need, &j->need[d + 1]);
        coming_home += d > 0 ? j->part.n : 0;
    }
    if (P > 1 && coming_home > 2 * j->left[1].n) /* more than the owner should need memory for */
        close_gaps(j);
}

static bool keep(struct ra__rows *to, const struct ra__rows *rows, const ra_allocator *memory) {
    if (rows->count == 0)
        return true;
    *to = *rows;
    to->range = ra__alloc(memory, (size_t)rows->count * sizeof *to->range);
    if (to->range)
        memcpy(to->range, rows->range, (size_t)rows->count * sizeof *to->range);
    return to->range;
}

typedef void combine_fn(struct ra__rows *out, const struct ra__rows *a, const struct ra__rows *b);

static bool keep_part(struct journey *j, struct ra__rows *to, combine_fn *combine, const struct ra__rows *a, const struct ra__rows *b) {
    combine(&j->part, a, b);
    return keep(to, &j->part, j->schedule->memory);
}

/* The previous reader's rows: the owner itself is none. */
static const struct ra__rows *before(const struct journey *j, int d) {
    return d > 1 ? &j->need[d - 1] : &j->need[j->schedule->P];
}

static bool own_block(struct journey *j, int64_t T) {
    struct ra__schedule *s = j->schedule;
    struct ra__stretch all = {0, T};
    ask(j, s->r);
    s->step[0].computes = j->computes[0];
    bool kept = keep(&s->step[0].here, &(struct ra__rows){&all, T > 0, T}, s->memory);
    for (int d = 1; d < s->P && kept; d++) {
        kept = keep_part(j, &s->step[d - 1].serve, ra__rows_subtract, &j->need[d], before(j, d)) &&
               keep_part(j, &s->returning[d], ra__rows_subtract, &j->need[d], &j->need[d + 1]);
        s->steps = s->step[d - 1].serve.count ? d : s->steps;
        s->returns += s->returning[d].count > 0;
    }
    return kept;
}

static bool visiting_block(struct journey *j, int d) {
    struct ra__schedule *s = j->schedule;
    struct ra__step *step = &s->step[d];
    const struct ra__rows *here = &j->need[d];
    ask(j, step->block);
    if (here->count == 0)
        return true;
    s->steps = d + 1 > s->steps ? d + 1 : s->steps;
    step->computes = j->computes[d];
    return keep(&step->here, here, s->memory) && keep_part(j, &step->passed, ra__rows_intersect, here, before(j, d)) &&
           keep_part(j, &step->served, ra__rows_subtract, here, before(j, d)) &&
           keep_part(j, &step->pass, ra__rows_intersect, here, &j->need[d + 1]) &&
           keep_part(j, &step->home, ra__rows_subtract, here, &j->need[d + 1]);
}

bool ra__schedule_make(struct ra__schedule *s, const ra_allocator *memory, int P, int r, int64_t T, int64_t most, ra__needs_fn *needs,
                       const void *context) {
    *s = (struct ra__schedule){.P = P, .r = r, .steps = 1, .memory = memory};
    struct journey j = {.schedule = s, .needs = needs, .context = context, .most = most};
    s->step = ra__alloc_zero(memory, (size_t)P * sizeof *s->step);
    s->returning = ra__alloc_zero(memory, (size_t)P * sizeof *s->returning);
    bool made = s->step && s->returning && prepare(&j);
    for (int d = 0; d < P && made; d++) {
        s->step[d].block = (r - d + P) % P;
        made = d == 0 ? own_block(&j, T) : visiting_block(&j, d);
    }
    finish(&j);
    return made;
}

void ra__schedule_free(struct ra__schedule *s) {
    for (int i = 0; s->step && i < s->P; i++) {
        const struct ra__step *step = &s->step[i];
        const struct ra__rows *lists[] = {&step->here, &step->passed, &step->served, &step->pass, &step->home, &step->serve};
        for (size_t n = 0; n < sizeof lists / sizeof *lists; n++)
            ra__free(s->memory, lists[n]->range);
    }
    for (int i = 0; s->returning && i < s->P; i++)
        ra__free(s->memory, s->returning[i].range);
    ra__free(s->memory, s->step);
    ra__free(s->memory, s->returning);
    s->step = NULL;
    s->returning = NULL;
}

static int64_t rows_bytes(const struct ra__rows *rows) {
    return rows->range ? ra__alloc_bytes(rows->count, sizeof *rows->range) : 0;
}

int64_t ra__schedule_bytes(const struct ra__schedule *s) {
    int64_t bytes = ra__alloc_bytes(s->P, sizeof *s->step) + ra__alloc_bytes(s->P, sizeof *s->returning);
    for (int i = 0; i < s->P; i++) {
        const struct ra__step *step = &s->step[i];
        bytes += rows_bytes(&step->here) + rows_bytes(&step->passed) + rows_bytes(&step->served) + rows_bytes(&step->pass) +
                 rows_bytes(&step->home) + rows_bytes(&step->serve) + rows_bytes(&s->returning[i]);
    }
    return bytes;
}
