/* Agreement: every rank shows the others its outcome so far and its problem; all come to the same verdict. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "plan/plan.h"

enum { BACKWARD = 13, SEGMENTS, SEED = SEGMENTS + 9, FIELDS, REALS = 3, ARRAYS = 5 };
#define UNKNOWN INT64_MIN /* of `backward` and `segments`: a rank that follows the others */

static const char *const field_name[FIELDS] = {"B",
                                               "Sq",
                                               "Skv",
                                               "H",
                                               "G",
                                               "D",
                                               "Dv",
                                               "dtype",
                                               "layout",
                                               "causal",
                                               "causal_block",
                                               "align",
                                               "has_bias",
                                               "backward",
                                               "segments",
                                               "window_left",
                                               "window_right",
                                               "prefix",
                                               "keep_first",
                                               "sequences",
                                               "slice_count",
                                               "has_sinks",
                                               "has_temperature",
                                               "seed"};
static const char *const real_name[REALS] = {"scale", "softcap", "dropout"};
static const char *const array_name[ARRAYS] = {"kv_lens", "cu_seqlens_q", "cu_seqlens_kv", "slices", "alibi_slopes"};

/* What the ranks must have in common; of arrays a hash, 0 for none. */
struct card {
    ra_status status;
    char why[256];
    int64_t field[FIELDS];
    double real[REALS];
    uint64_t array[ARRAYS];
};

uint64_t ra__hash(const void *data, int64_t n, size_t bytes) {
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; data && i < (size_t)n * bytes; i++)
        h = (h ^ ((const unsigned char *)data)[i]) * 1099511628211u;
    return data ? h | 1 : 0;
}

static void write_card(struct card *c, const ra_problem *p, ra_status own, bool follows, int P, int r) {
    memset(c, 0, sizeof *c);
    c->status = own;
    if (own != RA_OK) {
        strncpy(c->why, ra_last_error(), sizeof c->why - 1);
        return;
    }
    const ra_mask *m = &p->mask;
    const bool tokens = ra__layout_shard(p->layout, p->Sq, P, r).T + ra__layout_shard(p->layout, p->Skv, P, r).T > 0;
    const int64_t segments = m->q_segment_ids || m->kv_segment_ids ? 1 : tokens ? 0 : UNKNOWN;
    const int64_t backward = p->backward ? 1 : follows ? UNKNOWN : 0;
    const int64_t field[FIELDS] = {p->B,
                                   p->Sq,
                                   p->Skv,
                                   p->H,
                                   p->G,
                                   p->D,
                                   p->Dv,
                                   p->dtype,
                                   p->layout,
                                   m->causal != 0,
                                   m->causal_block,
                                   m->align,
                                   p->has_bias != 0,
                                   backward,
                                   segments,
                                   m->window_left,
                                   m->window_right,
                                   m->prefix,
                                   m->keep_first,
                                   m->sequences,
                                   m->slice_count,
                                   p->has_sinks != 0,
                                   p->has_temperature != 0,
                                   p->dropout > 0 ? (int64_t)p->seed : 0};
    memcpy(c->field, field, sizeof field);
    c->real[0] = isnan(p->scale) ? 1 / sqrt((double)p->D) : p->scale;
    c->real[1] = p->softcap;
    c->real[2] = p->dropout;
    c->array[0] = ra__hash(m->kv_lens, p->B, sizeof *m->kv_lens);
    c->array[1] = ra__hash(m->cu_seqlens_q, m->sequences + 1, sizeof *m->cu_seqlens_q);
    c->array[2] = ra__hash(m->cu_seqlens_kv, m->sequences + 1, sizeof *m->cu_seqlens_kv);
    c->array[3] = ra__hash(m->slices, 5 * m->slice_count, sizeof *m->slices);
    c->array[4] = ra__hash(p->alibi_slopes, p->H, sizeof *p->alibi_slopes);
}

static ra_status compare_arrays(const struct card *cards, int P) {
    for (int f = 0; f < ARRAYS; f++)
        for (int r = 1; r < P; r++) {
            const uint64_t mine = cards[r].array[f], first = cards[0].array[f];
            if (mine != first && mine && first)
                return ra__fail(RA_ERR_MISMATCH, "rank %d passes other values in %s than rank 0", r, array_name[f]);
            if (mine != first)
                return ra__fail(RA_ERR_MISMATCH, "rank %d passes %s, rank %d does not", mine ? r : 0, array_name[f], mine ? 0 : r);
        }
    return RA_OK;
}

/* Compares with rank 0, or with the first rank that knows. */
static ra_status compare(const struct card *cards, int P, struct ra__agreed *agreed) {
    for (int f = 0; f < FIELDS; f++) {
        const bool may_follow = f == BACKWARD || f == SEGMENTS;
        int first = 0;
        while (may_follow && first < P - 1 && cards[first].field[f] == UNKNOWN)
            first++;
        for (int r = first + 1; r < P; r++)
            if (cards[r].field[f] != cards[first].field[f] && !(may_follow && cards[r].field[f] == UNKNOWN))
                return ra__fail(RA_ERR_MISMATCH,
                                f == SEED ? "rank %d passes %s = %llu, rank %d passes %llu"
                                          : "rank %d passes %s = %lld, rank %d passes %lld",
                                r, field_name[f], (long long)cards[r].field[f], first, (long long)cards[first].field[f]);
        if (f == SEGMENTS)
            agreed->segments = cards[first].field[f] == 1;
        if (f == BACKWARD)
            agreed->backward = cards[first].field[f] == 1;
    }
    for (int f = 0; f < REALS; f++)
        for (int r = 1; r < P; r++)
            if (cards[r].real[f] != cards[0].real[f])
                return ra__fail(RA_ERR_MISMATCH, "rank %d passes %s = %g, rank 0 passes %g", r, real_name[f], cards[r].real[f],
                                cards[0].real[f]);
    return compare_arrays(cards, P);
}

ra_status ra__agree(ra_comm *comm, const ra_problem *p, ra_status own, bool follows, struct ra__agreed *agreed) {
    const int P = ra_comm_size(comm);
    struct card mine, *cards = ra__alloc(&comm->allocator, (size_t)P * sizeof *cards);
    if (!cards && P == 1)
        return ra__fail(RA_ERR_MEMORY, "no memory for planning");
    if (!cards) /* the others wait for this rank's card: the comm itself must carry the news */
        return ra__comm_fail(comm, RA_ERR_MEMORY, "no memory for planning with %d ranks", P);
    write_card(&mine, p, own, follows, P, ra_comm_rank(comm));
    ra_status status = ra_comm_allgather(comm, &mine, cards, sizeof mine);
    for (int r = 0; r < P && status == RA_OK; r++)
        if (cards[r].status != RA_OK)
            status = P == 1 ? ra__fail(cards[r].status, "%s", cards[r].why) : ra__fail(cards[r].status, "rank %d: %s", r, cards[r].why);
    if (status == RA_OK)
        status = compare(cards, P, agreed);
    ra__free(&comm->allocator, cards);
    return status;
}
