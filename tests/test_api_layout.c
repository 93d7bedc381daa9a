/* Layout tools over all layouts and many ranks: positions, packed positions, labels across shard edges, slopes (cases 44, 75, 76, 78). */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "check.h"

enum { MOST = 41, BATCH = 2, IGNORE = -100 };

static bool refused(ra_status s, const char *word) {
    return s == RA_ERR_INVALID && strstr(ra_last_error(), word);
}

/* Case 44: the shards' positions are 0..S-1, each once and ascending; permuting there and back changes nothing. */
static void case_44_positions(void) {
    static const int64_t lengths[] = {0, 1, 5, 37, MOST};
    for (ra_layout layout = RA_CONTIGUOUS; layout <= RA_STRIPED; layout++)
        for (int n = 0; n < 5; n++)
            for (int P = 1; P <= 9; P++) {
                const int64_t S = lengths[n];
                int seen[MOST] = {0};
                int64_t position[MOST], order[MOST], there[MOST], back[MOST], rank_order = 0;
                for (int64_t i = 0; i < S; i++)
                    order[i] = i;
                CHECK_OK(ra_permute(layout, S, P, order, there, 1, sizeof *order));
                CHECK_OK(ra_unpermute(layout, S, P, there, back, 1, sizeof *order));
                CHECK(memcmp(order, back, (size_t)S * sizeof *order) == 0);
                for (int r = 0; r < P; r++) {
                    CHECK_OK(ra_shard_positions(layout, S, P, r, position));
                    for (int64_t t = 0; t < ra_shard_size(layout, S, P, r); t++) {
                        CHECK(position[t] == ra_shard_position(layout, S, P, r, t) && position[t] == there[rank_order++]);
                        CHECK(t == 0 || position[t] > position[t - 1]);
                        seen[position[t]]++;
                    }
                }
                for (int64_t i = 0; i < S; i++)
                    CHECK(seen[i] == 1);
            }
    int64_t x;
    CHECK(refused(ra_shard_positions((ra_layout)7, 8, 2, 0, &x), "layout 7"));
    CHECK(refused(ra_shard_positions(RA_ZIGZAG, 8, 2, 2, &x), "rank 2"));
    CHECK(refused(ra_shard_positions(RA_ZIGZAG, 8, 2, 1, NULL), "positions is NULL"));
    CHECK_OK(ra_shard_positions(RA_ZIGZAG, 0, 2, 1, NULL));
}

static void case_78_packed_positions(void) {
    static const int32_t offsets[] = {0, 3, 3, 23, 24, 37}, late[] = {1, 3}, falling[] = {0, 3, 2}, beyond[] = {0, 42};
    for (ra_layout layout = RA_CONTIGUOUS; layout <= RA_STRIPED; layout++)
        for (int P = 1; P <= 5; P++)
            for (int r = 0; r < P; r++) {
                int64_t position[MOST];
                CHECK_OK(ra_packed_positions(layout, MOST, P, r, offsets, 5, position));
                for (int64_t t = 0; t < ra_shard_size(layout, MOST, P, r); t++) {
                    const int64_t i = ra_shard_position(layout, MOST, P, r, t);
                    const int64_t expected = i < 3 ? i : i < 23 ? i - 3 : i < 24 ? 0 : i < 37 ? i - 24 : i - 37;
                    CHECK_EQ_INT(position[t], expected);
                }
            }
    int64_t x[MOST];
    CHECK(refused(ra_packed_positions(RA_ZIGZAG, MOST, 1, 0, late, 1, x), "cu_seqlens[0] is 1"));
    CHECK(refused(ra_packed_positions(RA_ZIGZAG, MOST, 1, 0, falling, 2, x), "cu_seqlens[2] is 2 after 3"));
    CHECK(refused(ra_packed_positions(RA_ZIGZAG, MOST, 1, 0, beyond, 1, x), "beyond S, 41"));
    CHECK(refused(ra_packed_positions(RA_ZIGZAG, MOST, 1, 0, NULL, 1, x), "cu_seqlens"));
    CHECK(refused(ra_packed_positions(RA_ZIGZAG, MOST, 1, 0, offsets, 0, x), "0 sequences"));
    CHECK(refused(ra_packed_positions(RA_ZIGZAG, MOST, 1, 5, offsets, 5, x), "rank 5"));
}

/* ---- labels ---- */

struct shift {
    ra_layout layout;
    int64_t S;
    const int32_t *offsets;
    int64_t sequences;
    int wrong; /* what rank 1 does wrong */
};

/* The label of token i of batch element b. */
static int64_t label(int64_t b, int64_t i) {
    return 1000 * b + 7 * i + 1;
}

static int64_t next_label(const struct shift *s, int64_t b, int64_t i) {
    bool inside = s->sequences == 0 && i + 1 < s->S;
    for (int64_t n = 0; n < s->sequences; n++)
        inside |= i >= s->offsets[n] && i + 1 < s->offsets[n + 1];
    return inside ? label(b, i + 1) : IGNORE;
}

static ra_status shift_rank(ra_comm *comm, int r, void *user) {
    const struct shift *s = user;
    const int P = ra_comm_size(comm);
    const int64_t T = ra_shard_size(s->layout, s->S, P, r);
    int64_t labels[BATCH * MOST], shifted[BATCH * MOST];
    for (int64_t b = 0; b < BATCH; b++)
        for (int64_t t = 0; t < T; t++)
            labels[b * T + t] = label(b, ra_shard_position(s->layout, s->S, P, r, t));
    memset(shifted, 0x55, sizeof shifted);
    const ra_status status = ra_shift_labels(comm, s->layout, BATCH, s->S, s->offsets, s->sequences, labels, shifted, IGNORE);
    for (int64_t b = 0; b < BATCH && status == RA_OK; b++)
        for (int64_t t = 0; t < T; t++) {
            const int64_t i = ra_shard_position(s->layout, s->S, P, r, t);
            CHECK_MSG(shifted[b * T + t] == next_label(s, b, i), "layout %d S %lld P %d rank %d: token %lld: %lld, expected %lld",
                      (int)s->layout, (long long)s->S, P, r, (long long)i, (long long)shifted[b * T + t], (long long)next_label(s, b, i));
        }
    return status;
}

static void case_76_labels(void) {
    static const int32_t offsets[] = {0, 3, 23, 23, 24, 37}, one[] = {0, 1};
    static const int64_t lengths[] = {0, 1, 2, 5, 37, MOST};
    for (ra_layout layout = RA_CONTIGUOUS; layout <= RA_STRIPED; layout++)
        for (int P = 1; P <= 7; P++) {
            for (int n = 0; n < 6; n++) {
                struct shift plain = {layout, lengths[n], NULL, 0, 0};
                CHECK_OK(ra_local_run(P, NULL, NULL, shift_rank, &plain));
                struct shift first = {layout, lengths[n], one, 1, 0};
                if (lengths[n])
                    CHECK_OK(ra_local_run(P, NULL, NULL, shift_rank, &first));
            }
            struct shift packed = {layout, 37, offsets, 5, 0}, tail = {layout, MOST, offsets, 5, 0}; /* and case 75's edges inside */
            CHECK_OK(ra_local_run(P, NULL, NULL, shift_rank, &packed));
            CHECK_OK(ra_local_run(P, NULL, NULL, shift_rank, &tail));
        }
}

static ra_status wrong_rank(ra_comm *comm, int r, void *user) {
    const struct shift *s = user;
    static const int32_t offsets[] = {0, 4, 12}, other[] = {0, 5, 12}, beyond[] = {0, 13};
    static const struct {
        ra_status status;
        const char *word;
    } expected[] = {{RA_ERR_INVALID, "layout 9"},        {RA_ERR_INVALID, "labels is NULL"},      {RA_ERR_INVALID, "B 0"},
                    {RA_ERR_INVALID, "beyond S, 12"},    {RA_ERR_INVALID, "0 sequences"},         {RA_ERR_MISMATCH, "S 13"},
                    {RA_ERR_MISMATCH, "another ignore"}, {RA_ERR_MISMATCH, "another cu_seqlens"}, {RA_ERR_INVALID, "shifted is NULL"}};
    int64_t labels[BATCH * MOST] = {0}, shifted[BATCH * MOST];
    const int w = r == 1 ? s->wrong : -1;
    const int64_t sequences = w == 4 ? 0 : w == 3 ? 1 : 2;
    const ra_status status = ra_shift_labels(comm, w == 0 ? (ra_layout)9 : RA_STRIPED, w == 2 ? 0 : BATCH, w == 5 ? 13 : 12,
                                             w == 3   ? beyond
                                             : w == 7 ? other
                                                      : offsets,
                                             sequences, w == 1 ? NULL : labels, w == 8 ? NULL : shifted, w == 6 ? 0 : IGNORE);
    CHECK_MSG(status == expected[s->wrong].status && strstr(ra_last_error(), expected[s->wrong].word), "fault %d, rank %d: %s (%s)",
              s->wrong, r, ra_status_name(status), ra_last_error());
    CHECK_OK(ra_shift_labels(comm, RA_ZIGZAG, 1, 9, NULL, 0, labels, shifted, IGNORE)); /* the comm survives */
    return RA_OK;
}

static void bad_labels(void) {
    for (int wrong = 0; wrong < 9; wrong++) {
        struct shift s = {.wrong = wrong};
        CHECK_OK(ra_local_run(3, NULL, NULL, wrong_rank, &s));
    }
    int64_t x[4] = {0};
    CHECK(refused(ra_shift_labels(NULL, RA_STRIPED, 1, 4, NULL, 0, x, x, 0), "comm is NULL"));
}

/* ---- ALiBi ---- */

static void slopes(void) {
    float s[13];
    CHECK_OK(ra_alibi_slopes(8, s));
    for (int h = 0; h < 8; h++)
        CHECK(s[h] == ldexpf(1, -h - 1));
    CHECK_OK(ra_alibi_slopes(1, s));
    CHECK(s[0] == 0x1p-8f);
    CHECK_OK(ra_alibi_slopes(12, s)); /* as published with the paper: those of 8 heads, then 2^-0.5, 2^-1.5, ... of 16 */
    for (int h = 0; h < 8; h++)
        CHECK(s[h] == ldexpf(1, -h - 1));
    for (int h = 8; h < 12; h++)
        CHECK(s[h] == (float)pow(2, -0.5 - (h - 8)));
    CHECK_OK(ra_alibi_slopes(3, s));
    CHECK(s[0] == 0x1p-4f && s[1] == 0x1p-8f && s[2] == 0x1p-2f);
    CHECK(refused(ra_alibi_slopes(0, s), "at least 1"));
    CHECK(refused(ra_alibi_slopes(4, NULL), "NULL"));
}

int main(void) {
    RUN(case_44_positions);
    RUN(case_78_packed_positions);
    RUN(case_76_labels);
    RUN(bad_labels);
    RUN(slopes);
    return check_result();
}
