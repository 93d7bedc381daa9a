/* Agreement: every rank shows the others its outcome so far and its problem; all come to the same verdict. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "plan/plan.h"

enum { BACKWARD = 13, SEGMENTS, FIELDS, UNKNOWN = -1 };

static const char *const field_name[FIELDS] = {"B",      "Sq",     "Skv",          "H",     "G",        "D",        "Dv",      "dtype",
                                               "layout", "causal", "causal_block", "align", "has_bias", "backward", "segments"};

struct card {
    ra_status status;
    char why[256];
    int64_t field[FIELDS];
    double scale;
};

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
                                   p->backward ? 1
                                   : follows   ? UNKNOWN
                                               : 0,
                                   segments};
    memcpy(c->field, field, sizeof field);
    c->scale = isnan(p->scale) ? 1 / sqrt((double)p->D) : p->scale;
}

/* Compares with rank 0, or with the first rank that knows. */
static ra_status compare(const struct card *cards, int P, struct ra__agreed *agreed) {
    for (int f = 0; f < FIELDS; f++) {
        int first = 0;
        while (first < P - 1 && cards[first].field[f] == UNKNOWN)
            first++;
        for (int r = first + 1; r < P; r++)
            if (cards[r].field[f] != cards[first].field[f] && cards[r].field[f] != UNKNOWN)
                return ra__fail(RA_ERR_MISMATCH, "rank %d passes %s = %lld, rank %d passes %lld", r, field_name[f],
                                (long long)cards[r].field[f], first, (long long)cards[first].field[f]);
        if (f == SEGMENTS)
            agreed->segments = cards[first].field[f] == 1;
        if (f == BACKWARD)
            agreed->backward = cards[first].field[f] == 1;
    }
    for (int r = 1; r < P; r++)
        if (cards[r].scale != cards[0].scale)
            return ra__fail(RA_ERR_MISMATCH, "rank %d passes scale = %g, rank 0 passes %g", r, cards[r].scale, cards[0].scale);
    return RA_OK;
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
