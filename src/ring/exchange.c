/* One step's transfers, and the message format of a key/value block: | k [B,T,G,D] | v [B,T,G,Dv] | segment ids [B,T] |, each part rounded
 * up to 64 bytes so that a block in a message buffer can be computed on in place. */
#include "ring/ring.h"

#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/memory.h"

ra_status ra__exchange_send(struct ra__exchange *x, int to, int tag, const void *data, int64_t bytes) {
    x->bytes_sent += bytes;
    return ra__send(x->comm, &x->transfer[x->count++], to, tag, data, (size_t)bytes);
}

ra_status ra__exchange_recv(struct ra__exchange *x, int from, int tag, void *data, int64_t bytes) {
    return ra__recv(x->comm, &x->transfer[x->count++], from, tag, data, (size_t)bytes);
}

static int pointers(struct ra__exchange *x, struct ra__transfer *list[RA__TRANSFERS]) {
    for (int i = 0; i < x->count; i++)
        list[i] = &x->transfer[i];
    return x->count;
}

static void poll_between_tiles(void *arg) {
    struct ra__exchange *x = arg;
    struct ra__transfer *list[RA__TRANSFERS];
    bool complete;
    int n = pointers(x, list);
    if (n == 0)
        list[n++] = x->comm->background; /* and with it the others */
    if (x->failure == RA_OK)
        x->failure = ra__progress(list, n, &complete);
}

struct ra__poll ra__exchange_poll(struct ra__exchange *x) {
    return x->count || x->comm->backgrounds ? (struct ra__poll){poll_between_tiles, x} : (struct ra__poll){NULL, NULL};
}

ra_status ra__exchange_finish(struct ra__exchange *x, const char *operation, int step) {
    struct ra__transfer *list[RA__TRANSFERS];
    char what[64];
    int n = pointers(x, list);
    if (n == 0)
        return RA_OK;
    snprintf(what, sizeof what, "%s of ring step %d", operation, step);
    const double start = ra__now();
    double first = start, last = 0;
    RA__TRY(x->failure);
    RA__TRY(ra__wait(list, n, what));
    for (int i = 0; i < n; i++) {
        first = list[i]->t_posted < first ? list[i]->t_posted : first;
        last = list[i]->t_done > last ? list[i]->t_done : last;
    }
    x->seconds_transfer += last - first;
    x->seconds_exposed += last > start ? last - start : 0;
    x->count = 0;
    return RA_OK;
}

/* Byte offsets of the parts of a message. */
struct message {
    int64_t k, v, segment, bytes;
};

static struct message message_of(const struct ra__ring *ring, int64_t T) {
    const struct ra__attn *a = &ring->attn;
    const int64_t element = (int64_t)ra_dtype_size(ring->dtype);
    struct ra__layout w = {0, false};
    int64_t tokens = ra__mul(a->B, T, &w.overflow), heads = ra__mul(tokens, a->G, &w.overflow);
    struct message m;
    m.k = ra__reserve(&w, ra__mul(heads, a->D, &w.overflow), element);
    m.v = ra__reserve(&w, ra__mul(heads, a->Dv, &w.overflow), element);
    m.segment = ra__reserve(&w, ring->kv_segment ? tokens : 0, sizeof(int32_t));
    m.bytes = w.overflow ? -1 : w.total;
    return m;
}

int64_t ra__kv_bytes(const struct ra__ring *ring, int64_t T) {
    return message_of(ring, T).bytes;
}

int64_t ra__dkv_bytes(const struct ra__ring *ring, int64_t T) {
    const struct ra__attn *a = &ring->attn;
    bool overflow = false;
    int64_t heads = ra__mul(ra__mul(a->B, a->G, &overflow), T, &overflow);
    int64_t bytes = ra__mul(ra__mul(heads, a->D + a->Dv, &overflow), sizeof(float), &overflow);
    return overflow ? -1 : bytes;
}

/* A block as it lies somewhere: the row t of its rank's shard is row ra__rows_find(rows, t) there. */
struct place {
    ra_tensor k, v;
    const int32_t *segment; /* [B,T] or NULL */
    int64_t T;
    const struct ra__rows *rows; /* NULL: all, in their order */
};

/* n tokens x heads of width elements without gaps <- tensor with any strides. */
static void copy_rows(const struct ra__attn *a, const ra_tensor *from, int64_t b, int64_t t0, int64_t n, int64_t width, char *to) {
    const int64_t element = (int64_t)ra_dtype_size(from->dtype), *stride = from->stride;
    const char *rows = (const char *)from->data + (b * stride[0] + t0 * stride[1]) * element;
    if (stride[3] == 1 && stride[2] == width && stride[1] == a->G * width) {
        memcpy(to, rows, (size_t)(n * a->G * width * element));
        return;
    }
    for (int64_t t = 0; t < n; t++)
        for (int64_t g = 0; g < a->G; g++, to += width * element) {
            const char *row = rows + (t * stride[1] + g * stride[2]) * element;
            if (stride[3] == 1)
                memcpy(to, row, (size_t)(width * element));
            else
                for (int64_t d = 0; d < width; d++)
                    memcpy(to + d * element, row + d * stride[3] * element, (size_t)element);
        }
}

/* Copies the rows of `rows` that are at `from` into a message that carries `rows`. */
static void gather(const struct ra__ring *ring, const struct place *from, const struct ra__rows *rows, char *buffer) {
    const struct ra__attn *a = &ring->attn;
    const int64_t element = (int64_t)ra_dtype_size(ring->dtype);
    const struct message m = message_of(ring, rows->n);
    int32_t *segment = (int32_t *)(buffer + m.segment);
    for (int64_t b = 0; b < a->B; b++) {
        struct ra__rows_cursor cursor = {.rows = from->rows};
        int64_t n, to = b * rows->n;
        for (int64_t i = 0; i < rows->count; i++)
            for (int64_t t = rows->range[i].t0, end = t + rows->range[i].n; t < end; t += n, to += n) {
                n = end - t;
                const int64_t at = ra__rows_find(&cursor, t, &n);
                if (at < 0)
                    continue;
                copy_rows(a, &from->k, b, at, n, a->D, buffer + m.k + to * a->G * a->D * element);
                copy_rows(a, &from->v, b, at, n, a->Dv, buffer + m.v + to * a->G * a->Dv * element);
                if (from->segment)
                    memcpy(segment + to, from->segment + b * from->T + at, (size_t)n * sizeof *segment);
            }
    }
}

/* A block of T rows in a message buffer. */
static struct ra__kv_block unpack(const struct ra__ring *ring, int64_t T, char *buffer) {
    const struct ra__attn *a = &ring->attn;
    const struct message m = message_of(ring, T);
    return (struct ra__kv_block){.k = ra_tensor_bshd(buffer + m.k, ring->dtype, T, a->G, a->D),
                                 .v = ra_tensor_bshd(buffer + m.v, ring->dtype, T, a->G, a->Dv),
                                 .T = T,
                                 .segment = ring->kv_segment ? (const int32_t *)(buffer + m.segment) : NULL};
}

static struct ra__shard shard_of(const struct ra__ring *ring, int b) {
    return ra__layout_shard(ring->layout, ring->Skv, ring->schedule.P, b);
}

/* ---- what a rank computes on ---- */

struct ra__visit ra__visit_of(const struct ra__ring *ring, int i) {
    const struct ra__rows *here = &ring->schedule.step[i].here;
    const struct ra__shard shard = shard_of(ring, ring->schedule.step[i].block);
    struct ra__visit visit = {.T = here->n};
    struct ra__stretches there = {.count = 0}, pieces = {.count = 0}, parts = {.count = 0};
    int64_t passed = 0, count = 0;
    for (int part = 0; part < shard.stretches.count; part++) {
        const int64_t begin = shard.stretches.part[part].t0, end = begin + shard.stretches.part[part].n, before = passed;
        for (int64_t range = 0; range < here->count; range++) {
            const struct ra__stretch r = here->range[range];
            const int64_t first = r.t0 > begin ? r.t0 : begin, n = (r.t0 + r.n < end ? r.t0 + r.n : end) - first;
            if (n <= 0)
                continue;
            if (count < 2) {
                there.part[count] = (struct ra__stretch){first, n};
                pieces.part[count] = (struct ra__stretch){passed, n};
                there.count = pieces.count = (int)count + 1;
            }
            count++;
            passed += n;
        }
        if (passed > before)
            parts.part[parts.count++] = (struct ra__stretch){before, passed - before};
    }
    visit.in_place = ra__by_reference(ring) && count <= 2 && 2 * here->n >= shard.T;
    visit.T = visit.in_place ? shard.T : here->n;
    visit.stretches = visit.in_place ? there : count <= 2 ? pieces : parts;
    return visit;
}

static void positions_of(const struct ra__shard *shard, const struct ra__rows *rows, int64_t *positions) {
    for (int64_t i = 0; i < rows->count; i++)
        for (int64_t t = rows->range[i].t0; t < rows->range[i].t0 + rows->range[i].n; t++)
            *positions++ = ra__shard_position(shard, t);
}

/* ---- the traveller ---- */

bool ra__by_reference(const struct ra__ring *ring) {
    return ring->schedule.P > 1 && ring->comm->link.count;
}

struct ra__kv_block ra__traveller_own(const struct ra__traveller *t) {
    const struct ra__ring *ring = t->ring;
    ra__shard_positions(&ring->kv, t->positions);
    return (struct ra__kv_block){t->args->k, t->args->v, ring->kv.T, ring->kv.stretches, t->positions, ring->kv_segment};
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static bool comes_in_two(const struct ra__step *step) {
    return step->passed.n && step->served.n;
}

struct ra__traveller_map ra__traveller_reserve(const struct ra__ring *ring, struct ra__layout *w) {
    const struct ra__schedule *s = &ring->schedule;
    const bool by_reference = ra__by_reference(ring);
    int64_t rows[RA__BUFFERS] = {by_reference ? 0 : s->step[0].serve.n};
    struct ra__traveller_map m = {.T = ring->kv.T};
    for (int i = 1; i < s->steps; i++) {
        const struct ra__step *step = &s->step[i];
        const struct ra__visit visit = ra__visit_of(ring, i);
        m.T = step->computes ? larger(m.T, visit.T) : m.T;
        if (by_reference) {
            rows[RA__HAND] = larger(rows[RA__HAND], step->computes && !visit.in_place ? step->here.n : 0);
            continue;
        }
        rows[RA__HAND + i % 2] = larger(rows[RA__HAND + i % 2], step->here.n);
        rows[RA__PASSED] = larger(rows[RA__PASSED], comes_in_two(step) ? step->passed.n : 0);
        rows[RA__SERVED] = larger(rows[RA__SERVED], comes_in_two(step) ? step->served.n : 0);
        rows[RA__PASS] = larger(rows[RA__PASS], step->pass.n < step->here.n ? step->pass.n : 0);
        rows[RA__SERVE] = larger(rows[RA__SERVE], step->serve.n);
    }
    m.positions = ra__reserve(w, m.T, sizeof(int64_t));
    for (int i = 0; i < RA__BUFFERS; i++) {
        const int64_t bytes = ra__kv_bytes(ring, rows[i]), all_ranks = i == RA__HAND && by_reference ? s->P : 0;
        w->overflow |= bytes < 0;
        m.buffer[i] = ra__reserve(w, larger(bytes, all_ranks), 1);
    }
    return m;
}

struct ra__traveller ra__traveller_begin(const struct ra__ring *ring, const ra_attention_args *args, const struct ra__traveller_map *m,
                                         char *workspace) {
    struct ra__traveller t = {
        .ring = ring, .by_reference = ra__by_reference(ring), .args = args, .positions = (int64_t *)(workspace + m->positions)};
    for (int i = 0; i < RA__BUFFERS; i++)
        t.buffer[i] = workspace + m->buffer[i];
    t.block = t.own = ra__traveller_own(&t);
    if (t.by_reference)
        ring->comm->link.count(ring->comm->link.self, 1);
    return t;
}

static char *hand(const struct ra__traveller *t, int i) {
    return t->buffer[RA__HAND + (t->by_reference ? 0 : i % 2)];
}

/* Where the rows lie that came over a link for step i. */
static struct place in_hand(const struct ra__traveller *t, int i) {
    const struct ra__rows *here = &t->ring->schedule.step[i].here;
    const struct ra__kv_block block = unpack(t->ring, here->n, hand(t, i));
    return (struct place){block.k, block.v, block.segment, here->n, here};
}

static struct place at_owner(const struct ra__kv_block *whole) {
    return (struct place){whole->k, whole->v, whole->segment, whole->T, NULL};
}

/* The messages of step i to the next rank and to the one that this rank serves. What the owner has is gathered when it is wanted; step 0
 * needs no block in hand, so its message lies there. */
static char *message_to_pass(const struct ra__traveller *t, int i) {
    const struct ra__step *step = &t->ring->schedule.step[i];
    if (step->pass.n == step->here.n)
        return hand(t, i);
    const struct place from = in_hand(t, i);
    gather(t->ring, &from, &step->pass, t->buffer[RA__PASS]);
    return t->buffer[RA__PASS];
}

static char *message_to_serve(const struct ra__traveller *t, int i) {
    const struct place from = at_owner(&t->own);
    char *buffer = i == 0 ? hand(t, 0) : t->buffer[RA__SERVE];
    gather(t->ring, &from, &t->ring->schedule.step[i].serve, buffer);
    return buffer;
}

/* By reference the message is the block as a whole, but the bytes count that a link would have to send. */
static ra_status send_rows(const struct ra__traveller *t, struct ra__exchange *x, int to, const struct ra__kv_block *whole, char *message,
                           int64_t rows) {
    const int64_t bytes = ra__kv_bytes(t->ring, rows), reference = sizeof *whole;
    if (!t->by_reference)
        return ra__exchange_send(x, to, RA__TAG_KV, message, bytes);
    x->bytes_sent += bytes - reference;
    return ra__exchange_send(x, to, RA__TAG_KV, whole, reference);
}

static ra_status receive_rows(struct ra__traveller *t, struct ra__exchange *x, int from, struct ra__kv_block *whole, char *message,
                              int64_t rows) {
    return t->by_reference ? ra__exchange_recv(x, from, RA__TAG_KV, whole, sizeof *whole)
                           : ra__exchange_recv(x, from, RA__TAG_KV, message, ra__kv_bytes(t->ring, rows));
}

ra_status ra__traveller_post(struct ra__traveller *t, struct ra__exchange *x, int i) {
    const struct ra__schedule *s = &t->ring->schedule;
    const struct ra__step *step = &s->step[i], *coming = i + 1 < s->steps ? step + 1 : NULL;
    const bool two = coming && comes_in_two(coming);
    if (coming && coming->passed.n)
        RA__TRY(
            receive_rows(t, x, (s->r - 1 + s->P) % s->P, &t->coming[0], two ? t->buffer[RA__PASSED] : hand(t, i + 1), coming->passed.n));
    if (coming && coming->served.n)
        RA__TRY(receive_rows(t, x, coming->block, &t->coming[1], two ? t->buffer[RA__SERVED] : hand(t, i + 1), coming->served.n));
    if (step->pass.n)
        RA__TRY(send_rows(t, x, (s->r + 1) % s->P, &t->whole, t->by_reference ? NULL : message_to_pass(t, i), step->pass.n));
    if (step->serve.n)
        RA__TRY(send_rows(t, x, (s->r + i + 1) % s->P, &t->own, t->by_reference ? NULL : message_to_serve(t, i), step->serve.n));
    return RA_OK;
}

/* Puts together what came in two messages. */
static void put_together(const struct ra__traveller *t, int i) {
    const struct ra__step *step = &t->ring->schedule.step[i];
    const struct ra__rows *rows[] = {&step->passed, &step->served};
    for (int half = 0; half < 2; half++) {
        const struct ra__kv_block b = unpack(t->ring, rows[half]->n, t->buffer[RA__PASSED + half]);
        gather(t->ring, &(struct place){b.k, b.v, b.segment, b.T, rows[half]}, &step->here, hand(t, i));
    }
}

void ra__traveller_advance(struct ra__traveller *t, int i) {
    const struct ra__ring *ring = t->ring;
    const struct ra__step *step = &ring->schedule.step[i + 1];
    if (i + 1 >= ring->schedule.steps || step->here.n == 0)
        return;
    const struct ra__shard shard = shard_of(ring, step->block);
    const struct ra__visit visit = ra__visit_of(ring, i + 1);
    t->whole = t->coming[step->passed.n ? 0 : 1];
    const struct place owner = at_owner(&t->whole);
    if (!t->by_reference && comes_in_two(step))
        put_together(t, i + 1);
    else if (t->by_reference && step->computes && !visit.in_place)
        gather(ring, &owner, &step->here, hand(t, i + 1));
    if (!step->computes)
        return;
    t->block = visit.in_place ? t->whole : unpack(ring, step->here.n, hand(t, i + 1));
    t->block.position = t->positions;
    t->block.stretches = visit.stretches;
    if (visit.in_place)
        ra__shard_positions(&shard, t->positions);
    else
        positions_of(&shard, &step->here, t->positions);
}

ra_status ra__traveller_end(const struct ra__traveller *t, ra_status status) {
    ra_comm *comm = t->ring->comm;
    if (!t->by_reference)
        return status;
    if (status == RA_OK)
        status = ra_comm_allgather(comm, "", t->buffer[RA__HAND], 1);
    int walking = comm->link.count(comm->link.self, -1);
    for (double start = ra__now(); status != RA_OK && walking > 0 && ra__now() - start < comm->timeout_s; ra__yield())
        walking = comm->link.count(comm->link.self, 0);
    return status;
}

struct ra__q_shard ra__own_q(const struct ra__ring *ring, const ra_attention_args *args) {
    return (struct ra__q_shard){.T = ring->q.T,
                                .stretches = ring->q.stretches,
                                .panels = ring->q_panels,
                                .spans = ring->q_spans,
                                .segment = ring->q_segment,
                                .bias = ring->has_bias ? &args->bias : NULL,
                                .kv_lens = ring->kv_lens,
                                .alibi = ring->alibi,
                                .aligned = ring->q_aligned,
                                .position = ring->q_position,
                                .temperature = args->temperature,
                                .sinks = args->sinks};
}
