/* Makes one rank's schedule from the question who needs which rows of whose block. */
#include "ring/schedule.h"

#include <string.h>

#include "base/memory.h"

/* Two lists of RA__ROWS_MOST ranges unite to as many, and their exact common part has less than twice as many; of that with a third ... */
enum { MOST_EXACT = 3 * RA__ROWS_MOST };

/* One block on its way round the ring. */
struct journey {
    struct ra__schedule *schedule;
    ra__needs_fn *needs;
    const void *context;
    int64_t most;
    int block;
    struct ra__rows *left;        /* [P + 1]: the rows that ranks at this distance or further need */
    struct ra__rows needed;       /* at the distance at hand */
    struct ra__rows in, on, home; /* sums, as in struct ra__step */
    struct ra__rows united, sum;
    struct ra__stretch *storage;
};

static bool pack(struct journey *j) {
    const int P = j->schedule->P;
    struct ra__rows *exact[] = {&j->in, &j->on, &j->home, &j->sum}, *bounded[] = {&j->needed, &j->united};
    const size_t lists = sizeof exact / sizeof *exact * MOST_EXACT + (sizeof bounded / sizeof *bounded + (size_t)P + 1) * RA__ROWS_MOST;
    j->left = ra__alloc_zero(j->schedule->memory, ((size_t)P + 1) * sizeof *j->left);
    j->storage = ra__alloc(j->schedule->memory, lists * sizeof *j->storage);
    if (!j->left || !j->storage)
        return false;
    struct ra__stretch *free = j->storage;
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++, free += MOST_EXACT)
        exact[i]->range = free;
    for (size_t i = 0; i < sizeof bounded / sizeof *bounded; i++, free += RA__ROWS_MOST)
        bounded[i]->range = free;
    for (int i = 0; i <= P; i++, free += RA__ROWS_MOST)
        j->left[i].range = free;
    return true;
}

static void unpack(struct journey *j) {
    ra__free(j->schedule->memory, j->left);
    ra__free(j->schedule->memory, j->storage);
}

static void ask(struct journey *j, int distance) {
    const int P = j->schedule->P;
    j->needed.count = j->needs(j->context, (j->block + distance) % P, j->block, j->needed.range, j->most);
    ra__rows_count(&j->needed);
}

/* Finds out what is needed at which distance, beginning with the last. */
static void set_out(struct journey *j, int block) {
    j->block = block;
    j->on.count = j->on.n = 0;
    for (int distance = j->schedule->P - 1; distance > 0; distance--) {
        ask(j, distance);
        ra__rows_unite(&j->left[distance], &j->left[distance + 1], &j->needed, j->most);
    }
}

static void swap(struct ra__rows *a, struct ra__rows *b) {
    const struct ra__rows t = *a;
    *a = *b;
    *b = t;
}

/* One rank further: what arrives there, and what leaves. */
static void stop_at(struct journey *j, int distance) {
    const struct ra__rows *next = &j->left[distance + 1];
    swap(&j->in, &j->on);
    ask(j, distance);
    ra__rows_unite(&j->united, &j->in, &j->needed, j->most);
    ra__rows_intersect(&j->sum, &j->united, &j->left[distance]); /* a bounded list may have rows between its ranges that are not here */
    ra__rows_intersect(&j->on, &j->sum, next);
    ra__rows_subtract(&j->home, &j->sum, next);
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

static bool own_block(struct journey *j, int64_t T) {
    struct ra__schedule *s = j->schedule;
    struct ra__step *step = &s->step[0];
    struct ra__stretch all = {0, T};
    set_out(j, s->r);
    ask(j, 0);
    step->computes = j->needed.count > 0;
    bool kept = keep(&step->here, &(struct ra__rows){&all, T > 0, T}, s->memory) && keep(&step->seen, &j->needed, s->memory) &&
                keep(&step->send, &j->left[1], s->memory);
    for (int distance = 1; distance < s->P && j->left[distance].count > 0; distance++) {
        stop_at(j, distance);
        s->returns += j->home.count > 0;
        kept = kept && keep(&s->returning[distance], &j->home, s->memory);
    }
    return kept;
}

static bool visiting_block(struct journey *j, int distance) {
    struct ra__schedule *s = j->schedule;
    struct ra__step *step = &s->step[distance];
    set_out(j, step->block);
    if (j->left[distance].count == 0)
        return true;
    s->steps = distance + 1;
    for (int stop = 1; stop <= distance; stop++)
        stop_at(j, stop);
    step->computes = j->needed.count > 0;
    return keep(&step->here, &j->left[distance], s->memory) && keep(&step->seen, &j->needed, s->memory) &&
           keep(&step->send, &j->left[distance + 1], s->memory) && keep(&step->sum_in, &j->in, s->memory) &&
           keep(&step->sum_on, &j->on, s->memory) && keep(&step->sum_home, &j->home, s->memory);
}

bool ra__schedule_make(struct ra__schedule *s, const ra_allocator *memory, int P, int r, int64_t T, int64_t most, ra__needs_fn *needs,
                       const void *context) {
    *s = (struct ra__schedule){.P = P, .r = r, .steps = 1, .memory = memory};
    struct journey j = {.schedule = s, .needs = needs, .context = context, .most = most};
    s->step = ra__alloc_zero(memory, (size_t)P * sizeof *s->step);
    s->returning = ra__alloc_zero(memory, (size_t)P * sizeof *s->returning);
    bool made = s->step && s->returning && pack(&j);
    for (int distance = 0; distance < P && made; distance++) {
        s->step[distance].block = (r - distance + P) % P;
        made = distance == 0 ? own_block(&j, T) : visiting_block(&j, distance);
    }
    unpack(&j);
    return made;
}

void ra__schedule_free(struct ra__schedule *s) {
    for (int i = 0; s->step && i < s->P; i++) {
        const struct ra__step *step = &s->step[i];
        const struct ra__rows *lists[] = {&step->here, &step->seen, &step->send, &step->sum_in, &step->sum_on, &step->sum_home};
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
