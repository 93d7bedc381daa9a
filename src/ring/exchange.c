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
static char *copy_rows(const struct ra__attn *a, const ra_tensor *from, int64_t b, int64_t t0, int64_t n, int64_t width, char *to) {
    const int64_t element = (int64_t)ra_dtype_size(from->dtype), *stride = from->stride;
    const char *rows = (const char *)from->data + (b * stride[0] + t0 * stride[1]) * element;
    if (stride[3] == 1 && stride[2] == width && stride[1] == a->G * width) {
        memcpy(to, rows, (size_t)(n * a->G * width * element));
        return to + n * a->G * width * element;
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
    return to;
}

/* Makes the message that carries `rows`, all of which are at `from`. */
static void gather(const struct ra__ring *ring, const struct place *from, const struct ra__rows *rows, char *buffer) {
    const struct ra__attn *a = &ring->attn;
    const struct message m = message_of(ring, rows->n);
    char *k = buffer + m.k, *v = buffer + m.v;
    int32_t *segment = (int32_t *)(buffer + m.segment);
    for (int64_t b = 0; b < a->B; b++) {
        struct ra__rows_cursor cursor = {.rows = from->rows};
        for (int64_t i = 0; i < rows->count; i++) {
            int64_t n, end = rows->range[i].t0 + rows->range[i].n;
            for (int64_t t = rows->range[i].t0; t < end; t += n) {
                n = end - t;
                const int64_t at = ra__rows_find(&cursor, t, &n);
                k = copy_rows(a, &from->k, b, at, n, a->D, k);
                v = copy_rows(a, &from->v, b, at, n, a->Dv, v);
                if (!from->segment)
                    continue;
                memcpy(segment, from->segment + b * from->T + at, (size_t)n * sizeof *segment);
                segment += n;
            }
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

/* Local rows of a shard that are one stretch of a visiting block. */
struct piece {
    int64_t begin, end;
};

/* The pieces of the rows that are here: their ranges, cut where the shard's positions jump, while there are at most two; else what lies
 * between the jumps. */
static int cut_pieces(const struct ra__shard *shard, const struct ra__rows *here, struct piece piece[2], bool *gaps) {
    int count = 0;
    *gaps = false;
    for (int64_t i = 0; i < here->count; i++)
        for (int part = 0; part < shard->stretches.count; part++) {
            const struct ra__stretch s = shard->stretches.part[part], r = here->range[i];
            const int64_t begin = s.t0 > r.t0 ? s.t0 : r.t0, s_end = s.t0 + s.n, r_end = r.t0 + r.n, end = s_end < r_end ? s_end : r_end;
            if (begin < end && count < 2)
                piece[count] = (struct piece){begin, end};
            count += begin < end;
        }
    if (count <= 2)
        return count;
    *gaps = true;
    for (int part = 0; part < shard->stretches.count; part++)
        piece[part] = (struct piece){shard->stretches.part[part].t0, shard->stretches.part[part].t0 + shard->stretches.part[part].n};
    return shard->stretches.count;
}

/* The rows from the first to the last of the piece that are in `seen`. */
static struct piece trim(struct piece p, const struct ra__rows *seen) {
    struct piece trimmed = {p.end, p.end};
    for (int64_t i = 0; i < seen->count; i++) {
        const struct ra__stretch r = seen->range[i];
        const int64_t begin = r.t0 > p.begin ? r.t0 : p.begin, end = r.t0 + r.n < p.end ? r.t0 + r.n : p.end;
        if (begin >= end)
            continue;
        trimmed.begin = trimmed.begin < begin ? trimmed.begin : begin;
        trimmed.end = end;
    }
    return trimmed;
}

struct ra__visit ra__visit_of(const struct ra__ring *ring, int i) {
    const struct ra__step *step = &ring->schedule.step[i];
    const struct ra__shard shard = shard_of(ring, step->block);
    struct ra__visit visit = {.stretches.count = 0};
    struct piece piece[2];
    bool gaps;
    const int count = cut_pieces(&shard, &step->here, piece, &gaps);
    visit.in_place = ra__by_reference(ring) && !gaps && 2 * step->here.n >= shard.T;
    visit.T = visit.in_place ? shard.T : step->here.n;
    struct ra__rows_cursor cursor = {.rows = visit.in_place ? NULL : &step->here};
    for (int n = 0; n < count; n++) {
        const struct piece p = trim(piece[n], &step->seen);
        int64_t any = INT64_MAX;
        if (p.begin == p.end)
            continue;
        const int64_t first = ra__rows_find(&cursor, p.begin, &any), last = ra__rows_find(&cursor, p.end - 1, &any);
        visit.stretches.part[visit.stretches.count++] = (struct ra__stretch){first, last + 1 - first};
    }
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

struct ra__kv_block ra__traveller_own(const struct ra__traveller *t, const ra_attention_args *args) {
    const struct ra__shard *shard = &t->ring->kv;
    ra__shard_positions(shard, t->positions);
    return (struct ra__kv_block){args->k, args->v, shard->T, shard->stretches, t->positions, t->ring->kv_segment};
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

struct ra__traveller_map ra__traveller_reserve(const struct ra__ring *ring, struct ra__layout *w) {
    const struct ra__schedule *s = &ring->schedule;
    const bool by_reference = ra__by_reference(ring);
    int64_t rows[3] = {by_reference ? 0 : s->step[0].send.n, 0, 0};
    struct ra__traveller_map m = {.T = ring->kv.T};
    for (int i = 1; i < s->steps; i++) {
        const struct ra__step *step = &s->step[i];
        const struct ra__visit visit = ra__visit_of(ring, i);
        m.T = step->computes ? larger(m.T, visit.T) : m.T;
        if (!by_reference)
            rows[i % 2] = larger(rows[i % 2], step->here.n);
        else if (step->computes && !visit.in_place)
            rows[0] = larger(rows[0], step->here.n);
        if (!by_reference && step->send.n < step->here.n)
            rows[2] = larger(rows[2], step->send.n);
    }
    m.positions = ra__reserve(w, m.T, sizeof(int64_t));
    for (int i = 0; i < 3; i++) {
        const int64_t bytes = ra__kv_bytes(ring, rows[i]);
        w->overflow |= bytes < 0;
        m.buffer[i] = ra__reserve(w, i == 0 && by_reference ? larger(bytes, s->P) : bytes < 0 ? 0 : bytes, 1);
    }
    return m;
}

struct ra__traveller ra__traveller_begin(const struct ra__ring *ring, const ra_attention_args *args, const struct ra__traveller_map *m,
                                         char *workspace) {
    struct ra__traveller t = {.ring = ring,
                              .by_reference = ra__by_reference(ring),
                              .buffer = {workspace + m->buffer[0], workspace + m->buffer[1], workspace + m->buffer[2]},
                              .positions = (int64_t *)(workspace + m->positions)};
    const struct ra__step *step = &ring->schedule.step[0];
    t.block = t.whole = ra__traveller_own(&t, args);
    if (t.by_reference)
        ring->comm->link.count(ring->comm->link.self, 1);
    else if (step->send.n)
        gather(ring, &(struct place){t.block.k, t.block.v, t.block.segment, t.block.T, NULL}, &step->send, t.buffer[0]);
    return t;
}

/* The message of step i: what arrived, or a part of it. */
static const char *message_to_send(const struct ra__traveller *t, int i) {
    const struct ra__step *step = &t->ring->schedule.step[i];
    if (i == 0 || step->send.n == step->here.n)
        return t->buffer[i % 2];
    const struct ra__kv_block here = unpack(t->ring, step->here.n, t->buffer[i % 2]);
    gather(t->ring, &(struct place){here.k, here.v, here.segment, here.T, &step->here}, &step->send, t->buffer[2]);
    return t->buffer[2];
}

ra_status ra__traveller_post(struct ra__traveller *t, struct ra__exchange *x, int i) {
    const struct ra__ring *ring = t->ring;
    const struct ra__schedule *s = &ring->schedule;
    const int next = (s->r + 1) % s->P, previous = (s->r - 1 + s->P) % s->P;
    const int64_t coming = i + 1 < s->steps ? s->step[i + 1].here.n : 0, leaving = s->step[i].send.n, reference = sizeof t->whole;
    if (coming)
        RA__TRY(t->by_reference ? ra__exchange_recv(x, previous, RA__TAG_KV, &t->coming, reference)
                                : ra__exchange_recv(x, previous, RA__TAG_KV, t->buffer[(i + 1) % 2], ra__kv_bytes(ring, coming)));
    if (!leaving)
        return RA_OK;
    if (!t->by_reference)
        return ra__exchange_send(x, next, RA__TAG_KV, message_to_send(t, i), ra__kv_bytes(ring, leaving));
    x->bytes_sent += ra__kv_bytes(ring, leaving) - reference;
    return ra__exchange_send(x, next, RA__TAG_KV, &t->whole, reference);
}

void ra__traveller_advance(struct ra__traveller *t, int i) {
    const struct ra__ring *ring = t->ring;
    if (i + 1 >= ring->schedule.steps)
        return;
    const struct ra__step *step = &ring->schedule.step[i + 1];
    const struct ra__shard shard = shard_of(ring, step->block);
    const struct ra__visit visit = ra__visit_of(ring, i + 1);
    if (step->here.n)
        t->whole = t->coming; /* by reference */
    if (!step->computes)
        return;
    char *buffer = t->by_reference ? t->buffer[0] : t->buffer[(i + 1) % 2];
    if (t->by_reference && !visit.in_place)
        gather(ring, &(struct place){t->whole.k, t->whole.v, t->whole.segment, t->whole.T, NULL}, &step->here, buffer);
    t->block = visit.in_place ? t->whole : unpack(ring, step->here.n, buffer);
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
        status = ra_comm_allgather(comm, "", t->buffer[0], 1);
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
                                .aligned = ring->q_aligned};
}
