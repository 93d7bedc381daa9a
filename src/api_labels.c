/* Labels of the next token. Where a shard's stretch ends, the label is another rank's: contiguous stretches (contiguous, zigzag) need the
 * first label of the stretch that follows, stripes the labels of the whole neighbouring rank. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "plan/plan.h"

enum { TAG_LABELS = 100 }; /* none of the ring's */

/* What the ranks must have in common. */
struct card {
    ra_status status;
    char why[256];
    int64_t layout, B, S, ignore;
    uint64_t offsets; /* a hash */
};

struct job {
    ra_comm *comm;
    ra_layout layout;
    int64_t B, S;
    struct ra__shard shard;
    const int64_t *labels;
    int64_t *shifted;
    int64_t ignore;
    void *room; /* firsts of all ranks, or the labels of the neighbour */
};

/* The first label of each stretch and where it is, by rank. */
struct first {
    int64_t position, label; /* position -1: the rank has no such stretch */
};

static size_t room_bytes(const struct job *j) {
    const int P = ra_comm_size(j->comm), r = ra_comm_rank(j->comm);
    if (j->layout == RA_STRIPED)
        return (size_t)(j->B * ra__layout_shard(j->layout, j->S, P, (r + 1) % P).T) * sizeof(int64_t);
    return (size_t)(P + 1) * 2 * (size_t)j->B * sizeof(struct first); /* all ranks', and this one's */
}

static ra_status check(const struct job *j, const int32_t *cu_seqlens, int64_t sequences) {
    if (j->layout != RA_CONTIGUOUS && j->layout != RA_ZIGZAG && j->layout != RA_STRIPED)
        return ra__fail(RA_ERR_INVALID, "labels: unknown layout %d", (int)j->layout);
    if (j->B < 1 || j->S < 0 || j->S > INT64_MAX / 64 / j->B)
        return ra__fail(RA_ERR_INVALID, "labels: B %lld, S %lld", (long long)j->B, (long long)j->S);
    if (sequences < 0 || !cu_seqlens != !sequences)
        return ra__fail(RA_ERR_INVALID, "labels: cu_seqlens of %lld sequences%s", (long long)sequences, cu_seqlens ? "" : " is NULL");
    if (cu_seqlens)
        RA__TRY(ra__validate_offsets("cu_seqlens", cu_seqlens, sequences, "S", j->S));
    if (ra__layout_shard(j->layout, j->S, ra_comm_size(j->comm), ra_comm_rank(j->comm)).T && (!j->labels || !j->shifted))
        return ra__fail(RA_ERR_INVALID, "%s is NULL", j->labels ? "shifted" : "labels");
    return RA_OK;
}

/* All ranks go on, or none. */
static ra_status agree(const struct job *j, ra_status own, const int32_t *cu_seqlens, int64_t sequences) {
    const int P = ra_comm_size(j->comm);
    struct card mine = {.status = own, .layout = j->layout, .B = j->B, .S = j->S, .ignore = j->ignore};
    if (own != RA_OK)
        snprintf(mine.why, sizeof mine.why, "%s", ra_last_error());
    else
        mine.offsets = ra__hash(cu_seqlens, sequences + 1, sizeof *cu_seqlens);
    if (P == 1)
        return own;
    struct card *cards = ra__alloc(&j->comm->allocator, (size_t)P * sizeof *cards);
    if (!cards)
        return ra__comm_fail(j->comm, RA_ERR_MEMORY, "no memory for shifting labels with %d ranks", P);
    ra_status status = ra_comm_allgather(j->comm, &mine, cards, sizeof mine);
    for (int r = 0; r < P && status == RA_OK; r++)
        if (cards[r].status != RA_OK)
            status = ra__fail(cards[r].status, "rank %d: %s", r, cards[r].why);
    for (int r = 1; r < P && status == RA_OK; r++)
        if (cards[r].layout != cards[0].layout || cards[r].B != cards[0].B || cards[r].S != cards[0].S)
            status =
                ra__fail(RA_ERR_MISMATCH, "labels: rank %d has layout %d, B %lld, S %lld, rank 0 %d, %lld, %lld", r, (int)cards[r].layout,
                         (long long)cards[r].B, (long long)cards[r].S, (int)cards[0].layout, (long long)cards[0].B, (long long)cards[0].S);
        else if (cards[r].ignore != cards[0].ignore || cards[r].offsets != cards[0].offsets)
            status = ra__fail(RA_ERR_MISMATCH, "labels: rank %d passes another %s than rank 0", r,
                              cards[r].ignore != cards[0].ignore ? "ignore" : "cu_seqlens");
    ra__free(&j->comm->allocator, cards);
    return status;
}

/* Inside a stretch the next token is the next label; at its end it is the first label of some rank's stretch. */
static ra_status shift_stretches(const struct job *j) {
    const int P = ra_comm_size(j->comm);
    const struct ra__stretches *x = &j->shard.stretches;
    const size_t bytes = 2 * (size_t)j->B * sizeof(struct first);
    struct first *all = j->room, *mine = all + 2 * j->B * P;
    for (int64_t n = 0; n < 2 * j->B; n++) {
        const int64_t b = n / 2, i = n % 2;
        mine[n] = i < x->count ? (struct first){j->shard.position[i], j->labels[b * j->shard.T + x->part[i].t0]} : (struct first){-1, 0};
    }
    RA__TRY(ra_comm_allgather(j->comm, mine, all, bytes));
    for (int64_t b = 0; b < j->B; b++)
        for (int i = 0; i < x->count; i++) {
            const int64_t t0 = x->part[i].t0, n = x->part[i].n, next = j->shard.position[i] + n;
            const int64_t *from = j->labels + b * j->shard.T + t0;
            int64_t *to = j->shifted + b * j->shard.T + t0;
            memcpy(to, from + 1, (size_t)(n - 1) * sizeof *to);
            to[n - 1] = j->ignore;
            for (int64_t k = 0; k < 2 * P; k++) {
                const struct first *f = &all[k / 2 * 2 * j->B + 2 * b + k % 2];
                if (f->position == next)
                    to[n - 1] = f->label;
            }
        }
    return RA_OK;
}

/* The next token is the neighbour's, in the same place; after the last rank's comes the first rank's next. */
static ra_status shift_stripes(const struct job *j) {
    const int P = ra_comm_size(j->comm), r = ra_comm_rank(j->comm);
    const int64_t T = j->shard.T, skip = r == P - 1, theirs = ra__layout_shard(j->layout, j->S, P, (r + 1) % P).T;
    const int64_t *from = P > 1 ? j->room : j->labels;
    if (P > 1) {
        struct ra__transfer out = {0}, in = {0}, *both[] = {&out, &in};
        RA__TRY(ra__recv(j->comm, &in, (r + 1) % P, TAG_LABELS, j->room, room_bytes(j)));
        RA__TRY(ra__send(j->comm, &out, (r + P - 1) % P, TAG_LABELS, j->labels, (size_t)(j->B * T) * sizeof *j->labels));
        RA__TRY(ra__wait(both, 2, "labels"));
    }
    for (int64_t b = 0; b < j->B; b++)
        for (int64_t t = 0; t < T; t++)
            j->shifted[b * T + t] = t + skip < theirs ? from[b * theirs + t + skip] : j->ignore;
    return RA_OK;
}

static void ignore_ends(const struct job *j, const int32_t *cu_seqlens, int64_t sequences) {
    for (int64_t t = 0, s = 0; t < j->shard.T; t++) {
        const int64_t position = ra__shard_position(&j->shard, t);
        while (s < sequences && cu_seqlens[s + 1] <= position)
            s++;
        for (int64_t b = 0; b < j->B && (s == sequences || position + 1 == cu_seqlens[s + 1]); b++)
            j->shifted[b * j->shard.T + t] = j->ignore;
    }
}

ra_status ra_shift_labels(ra_comm *comm, ra_layout layout, int64_t B, int64_t S, const int32_t *cu_seqlens, int64_t sequences,
                          const int64_t *labels, int64_t *shifted, int64_t ignore) {
    if (!comm)
        return ra__fail(RA_ERR_INVALID, "ra_shift_labels: comm is NULL");
    RA__TRY(ra__comm_check(comm));
    struct job j = {.comm = comm, .layout = layout, .B = B, .S = S, .labels = labels, .shifted = shifted, .ignore = ignore};
    ra_status status = check(&j, cu_seqlens, sequences);
    if (status == RA_OK) {
        j.shard = ra__layout_shard(layout, S, ra_comm_size(comm), ra_comm_rank(comm));
        j.room = ra__alloc(&comm->allocator, room_bytes(&j));
        if (!j.room)
            status = ra__fail(RA_ERR_MEMORY, "no memory for %zu bytes of labels", room_bytes(&j));
    }
    status = agree(&j, status, cu_seqlens, sequences);
    if (status == RA_OK)
        status = layout == RA_STRIPED ? shift_stripes(&j) : shift_stretches(&j);
    if (status == RA_OK && cu_seqlens)
        ignore_ends(&j, cu_seqlens, sequences);
    ra__free(&comm->allocator, j.room);
    return status;
}
