/* Masks and score modifiers at the front door: every bad value is refused with a message that names the field, ranks that differ are told
 * so, and what the engine does not do is refused alike by ra_supports, by planning and by the run (cases 22, 24, 25, 66, 69, 72, 92). */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "check.h"
#include "plan/plan.h"

enum { S = 12, HEADS = 4, RANKS = 3 };

static ra_comm *self;

static ra_problem good_problem(void) {
    ra_problem p;
    ra_problem_init(&p);
    p.Sq = p.Skv = S;
    p.B = 2;
    p.H = HEADS;
    p.G = 2;
    p.D = p.Dv = 8;
    p.threads = 1;
    p.backward = 1;
    return p;
}

/* The plan's answer must be that of ra_supports, reason included. */
static ra_status ask(const ra_problem *p, int line, char reason[256]) {
    ra_plan *plan = NULL;
    const ra_status asked = ra_supports(p, "cpu", reason, 256), planned = ra_plan_create(self, p, &plan);
    check_report(asked == planned, __FILE__, line, "ra_supports says %s (%s), ra_plan_create %s (%s)", ra_status_name(asked), reason,
                 ra_status_name(planned), ra_last_error());
    check_report((asked == RA_OK) == !*reason && (asked == RA_OK || !strcmp(reason, ra_last_error())), __FILE__, line, "reason \"%s\"",
                 reason);
    ra_plan_destroy(plan);
    return asked;
}

static void check_refused(const ra_problem *p, ra_status status, const char *word, int line) {
    char reason[256];
    const ra_status got = ask(p, line, reason);
    check_report(got == status && strstr(reason, word), __FILE__, line, "%s (%s), expected %s naming \"%s\"", ra_status_name(got), reason,
                 ra_status_name(status), word);
}

/* Valid: done, or refused because the engine cannot. */
static void check_valid(const ra_problem *p, int line) {
    char reason[256];
    const ra_status got = ask(p, line, reason);
    check_report(got == RA_OK || (got == RA_ERR_UNSUPPORTED && strstr(reason, "yet")), __FILE__, line, "%s (%s)", ra_status_name(got),
                 reason);
}

/* The good problem with something changed. */
#define REFUSED(word, ...)                                 \
    do {                                                   \
        ra_problem p = good_problem();                     \
        __VA_ARGS__;                                       \
        check_refused(&p, RA_ERR_INVALID, word, __LINE__); \
    } while (0)
#define VALID(...)                     \
    do {                               \
        ra_problem p = good_problem(); \
        __VA_ARGS__;                   \
        check_valid(&p, __LINE__);     \
    } while (0)

static void defaults(void) {
    const ra_problem p = good_problem();
    CHECK(p.mask.window_left == -1 && p.mask.window_right == -1 && p.mask.prefix == 0 && p.mask.keep_first == 0);
    CHECK(!p.mask.kv_lens && !p.mask.cu_seqlens_q && !p.mask.cu_seqlens_kv && !p.mask.slices && !p.alibi_slopes);
    CHECK(p.softcap == 0 && p.dropout == 0 && p.seed == 0 && !p.has_sinks && !p.has_temperature);
}

static void windows(void) {
    REFUSED("window_left is -2", p.mask.window_left = -2);
    REFUSED("window_right is -9", p.mask.window_right = -9);
    REFUSED("prefix is -1", p.mask.prefix = -1);
    REFUSED("keep_first is -1", p.mask.keep_first = -1);
    REFUSED("12 queries, 13 keys and a window: its alignment", p.mask.window_left = 3; p.Skv = 13);
    REFUSED("a window", p.mask.window_right = 0; p.Sq = 1);
    VALID(p.mask.window_left = 0);
    VALID(p.mask.window_left = p.mask.window_right = INT64_MAX);
    VALID(p.mask.window_right = 3; p.Sq = 5; p.mask.align = RA_ALIGN_BOTTOM_RIGHT);
    VALID(p.mask.prefix = 5; p.mask.causal = 1);
    VALID(p.mask.prefix = INT64_MAX; p.mask.causal_block = 4);
    VALID(p.mask.keep_first = 100; p.mask.window_left = 2);
}

static void key_lengths(void) {
    static const int32_t good[2] = {0, S}, negative[2] = {3, -1}, beyond[2] = {S + 1, 4};
    REFUSED("kv_lens[1] is -1: must be in 0..Skv, 12", p.mask.kv_lens = negative);
    REFUSED("kv_lens[0] is 13", p.mask.kv_lens = beyond);
    VALID(p.mask.kv_lens = good);
}

static void packed(void) {
    static const int32_t q[4] = {0, 3, 3, 8}, kv[4] = {0, 3, 7, 7}, late[4] = {1, 3, 3, 8}, falling[4] = {0, 4, 3, 8},
                         beyond[4] = {0, 1, 2, 13}, whole[4] = {0, 0, 5, S};
#define PACK(a, b, n) p.mask.cu_seqlens_q = (a), p.mask.cu_seqlens_kv = (b), p.mask.sequences = (n)
    REFUSED("cu_seqlens_kv is missing", PACK(q, NULL, 3));
    REFUSED("cu_seqlens_q is missing", PACK(NULL, kv, 3));
    REFUSED("cu_seqlens_q is missing", PACK(NULL, NULL, 3));
    REFUSED("sequences is 0", PACK(q, kv, 0));
    REFUSED("sequences is -1", PACK(q, kv, -1));
    REFUSED("cu_seqlens_q[0] is 1: must be 0", PACK(late, kv, 3));
    REFUSED("cu_seqlens_kv[0] is 1", PACK(q, late, 3));
    REFUSED("cu_seqlens_q[2] is 3 after 4", PACK(falling, kv, 3));
    REFUSED("cu_seqlens_kv[2] is 3 after 4", PACK(q, falling, 3));
    REFUSED("cu_seqlens_q[3] is 13: beyond Sq, 12", PACK(beyond, kv, 3));
    REFUSED("cu_seqlens_kv[3] is 13: beyond Skv, 12", PACK(q, beyond, 3));
    REFUSED("sequence 1 has 0 queries and 4 keys: the alignment", PACK(q, kv, 3); p.mask.causal = 1);
    REFUSED("of ALiBi must be named", static const float slopes[HEADS] = {1}; PACK(q, kv, 3); p.alibi_slopes = slopes);
    VALID(PACK(q, kv, 3));
    VALID(PACK(q, kv, 3); p.mask.causal = 1; p.mask.align = RA_ALIGN_TOP_LEFT);
    VALID(PACK(q, q, 3); p.mask.causal = 1; p.Skv = 20); /* every sequence has as many keys as queries: one corner */
    VALID(PACK(whole, whole, 3); p.mask.window_left = 1);
    VALID(PACK(q, kv, 1));
#undef PACK
}

static void slices(void) {
    static int64_t s[10] = {0, 3, 0, 12, RA_SLICE_FULL, 3, 12, 2, 9, RA_SLICE_BOTH};
    static const struct {
        int at;
        int64_t value;
        const char *word;
    } bad[] = {{5, -1, "slice 1: queries -1 to 12 of 12: not a range"},
               {5, 12, "slice 1: queries 12 to 12"},
               {1, 0, "slice 0: queries 0 to 0"},
               {6, 13, "slice 1: queries 3 to 13"},
               {7, -2, "slice 1: keys -2 to 9"},
               {7, 9, "slice 1: keys 9 to 9"},
               {3, 13, "slice 0: keys 0 to 13 of 12"},
               {9, 4, "slice 1: unknown type 4"},
               {4, -1, "slice 0: unknown type -1"}};
    VALID(p.mask.slices = s; p.mask.slice_count = 2);
    VALID(p.mask.slices = s; p.mask.slice_count = 2; p.Skv = 13); /* slices name their corners themselves */
    REFUSED("slice_count is 0", p.mask.slices = s);
    REFUSED("slice_count is 2, but slices is NULL", p.mask.slice_count = 2);
    REFUSED("slice_count is -1", p.mask.slices = s; p.mask.slice_count = -1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const int64_t kept = s[bad[i].at];
        s[bad[i].at] = bad[i].value;
        REFUSED(bad[i].word, p.mask.slices = s; p.mask.slice_count = 2);
        s[bad[i].at] = kept;
    }
}

static void modifiers(void) {
    static float slopes[HEADS] = {0.5f, -0.25f, 0, 3e38f};
    REFUSED("softcap is -1", p.softcap = -1); /* case 66 */
    REFUSED("softcap is nan", p.softcap = NAN);
    REFUSED("softcap is inf", p.softcap = INFINITY);
    REFUSED("too large for fp32", p.softcap = 1e39);
    REFUSED("too small for fp32", p.softcap = 1e-40);
    REFUSED("dropout is -0.1", p.dropout = -0.1); /* case 72 */
    REFUSED("dropout is 1.00001", p.dropout = 1.00001);
    REFUSED("dropout is nan", p.dropout = NAN);
    VALID(p.alibi_slopes = slopes);
    REFUSED("12 queries, 11 keys and ALiBi: its alignment", p.alibi_slopes = slopes; p.Skv = 11);
    slopes[2] = INFINITY;
    REFUSED("alibi_slopes[2] is inf", p.alibi_slopes = slopes);
    slopes[2] = NAN;
    REFUSED("alibi_slopes[2] is nan", p.alibi_slopes = slopes);
    VALID(p.softcap = 50);
    VALID(p.softcap = 0);
    VALID(p.dropout = 0; p.seed = 5);
    VALID(p.dropout = 1);
    VALID(p.dropout = 1 - 0x1p-53; p.seed = UINT64_MAX);
    VALID(p.has_sinks = 1);
    VALID(p.has_temperature = 1);
    ra_problem many = good_problem();
    many.dropout = 0.5;
    many.B = many.H = many.G = 1 << 17;
    many.Sq = many.Skv = 1;
    check_refused(&many, RA_ERR_UNSUPPORTED, "2^32 heads", __LINE__);
}

static void supports(void) {
    ra_problem p = good_problem();
    char reason[256] = "untouched";
    CHECK_OK(ra_supports(&p, "cpu", reason, sizeof reason));
    CHECK(!*reason);
    CHECK_OK(ra_supports(&p, NULL, NULL, 0));
    CHECK_STATUS(ra_supports(&p, "abacus", reason, sizeof reason), RA_ERR_UNSUPPORTED);
    CHECK(strstr(reason, "engine abacus"));
    CHECK_STATUS(ra_supports(NULL, "cpu", reason, sizeof reason), RA_ERR_INVALID);
    CHECK(strstr(reason, "problem is NULL"));
    memset(reason, 'x', sizeof reason);
    CHECK_STATUS(ra_supports(&p, "abacus", reason, 5), RA_ERR_UNSUPPORTED);
    CHECK(!strcmp(reason, "engi") && reason[5] == 'x');
    CHECK_STATUS(ra_supports(&p, "abacus", reason, 0), RA_ERR_UNSUPPORTED);
    p.D = 0;
    CHECK_STATUS(ra_supports(&p, NULL, reason, sizeof reason), RA_ERR_INVALID);
    CHECK(strstr(reason, "D is 0"));
}

/* ---- a run ---- */

struct operands {
    float q[2 * S * HEADS * 8], k[2 * S * 2 * 8], v[2 * S * 2 * 8], out[2 * S * HEADS * 8], bias[2 * HEADS * S * S],
        dbias[2 * HEADS * S * S], lse[2 * HEADS * S], row_max[2 * HEADS * S], sinks[HEADS], temperature[S];
};

static ra_attention_args good_args(struct operands *o) {
    memset(o, 0, sizeof *o);
    return (ra_attention_args){.q = ra_tensor_bshd(o->q, RA_F32, S, HEADS, 8),
                               .k = ra_tensor_bshd(o->k, RA_F32, S, 2, 8),
                               .v = ra_tensor_bshd(o->v, RA_F32, S, 2, 8),
                               .out = ra_tensor_bshd(o->out, RA_F32, S, HEADS, 8),
                               .lse = o->lse};
}

static void check_run(const ra_plan *plan, const ra_attention_args *a, bool backward, ra_status status, const char *word, int line) {
    const ra_status got = backward ? ra_attention_backward(plan, a, NULL) : ra_attention_forward(plan, a, NULL);
    check_report(got == status && strstr(ra_last_error(), word), __FILE__, line, "%s (%s), expected %s naming \"%s\"", ra_status_name(got),
                 ra_last_error(), ra_status_name(status), word);
}

static void runs(void) {
    ra_problem p = good_problem();
    ra_plan *plan;
    static struct operands o;
    ra_attention_args a = good_args(&o);
    if (!CHECK_OK(ra_plan_create(self, &p, &plan)))
        return;
    a.sinks = o.sinks;
    check_run(plan, &a, false, RA_ERR_INVALID, "sinks is given, but the plan was made without has_sinks", __LINE__);
    a.sinks = NULL;
    a.temperature = o.temperature;
    check_run(plan, &a, true, RA_ERR_INVALID, "temperature is given, but the plan was made without has_temperature", __LINE__);
    a.temperature = NULL;
    a.dsinks = o.sinks;
    check_run(plan, &a, true, RA_ERR_INVALID, "dsinks is wanted", __LINE__);
    a.dsinks = NULL;
    a.dbias = ra_tensor_bias(o.dbias, RA_F32, 1, 1, 1, S);
    check_run(plan, &a, true, RA_ERR_INVALID, "dbias is wanted, but the plan was made without has_bias", __LINE__);
    ra_plan_destroy(plan);

    p.has_bias = 1;
    if (!CHECK_OK(ra_plan_create(self, &p, &plan)))
        return;
    a.bias = ra_tensor_bias(o.bias, RA_F32, 1, HEADS, S, S);
    a.dbias = ra_tensor_bias(o.dbias, RA_BF16, 1, HEADS, S, S);
    check_run(plan, &a, true, RA_ERR_INVALID, "dbias: must be RA_F32", __LINE__);
    a.dbias = ra_tensor_bias(o.dbias, RA_F32, 2, HEADS, S, S);
    check_run(plan, &a, true, RA_ERR_INVALID, "dbias: stride 576 of dimension 0, where bias has 0", __LINE__);
    a.dbias = ra_tensor_bias(o.dbias, RA_F32, 1, HEADS, 1, S);
    check_run(plan, &a, true, RA_ERR_INVALID, "dbias: stride 0 of dimension 1", __LINE__);
    a.dbias = ra_tensor_bias(o.dbias, RA_F32, 1, HEADS, S, S);
    a.dbias.stride[1] = S - 1;
    check_run(plan, &a, true, RA_ERR_INVALID, "dbias: stride 11 of dimension 1 makes it overlap itself", __LINE__);
    ra_plan_destroy(plan);
}

/* Outputs that are not computed are refused; those that are, are written. */
static void outputs(void) {
    ra_problem p = good_problem();
    ra_plan *plan;
    static struct operands o;
    ra_attention_args a = good_args(&o);
    p.has_bias = 1;
    if (!CHECK_OK(ra_plan_create(self, &p, &plan)))
        return;
    a.bias = ra_tensor_bias(o.bias, RA_F32, 2, HEADS, S, S);
    for (int i = 0; i < 2 * HEADS * S; i++)
        o.row_max[i] = NAN;
    a.row_max = o.row_max;
    ra_status s = ra_attention_forward(plan, &a, NULL);
    CHECK(s == RA_OK ? o.row_max[0] == 0 && o.row_max[2 * HEADS * S - 1] == 0
                     : s == RA_ERR_UNSUPPORTED && strstr(ra_last_error(), "row_max"));
    a.row_max = NULL;
    CHECK_OK(ra_attention_forward(plan, &a, NULL));
    for (int i = 0; i < 2 * HEADS * S * S; i++)
        o.dbias[i] = NAN;
    a.dbias = ra_tensor_bias(o.dbias, RA_F32, 2, HEADS, S, S);
    s = ra_attention_backward(plan, &a, NULL);
    CHECK(s == RA_OK ? o.dbias[0] == 0 && o.dbias[2 * HEADS * S * S - 1] == 0
                     : s == RA_ERR_UNSUPPORTED && strstr(ra_last_error(), "dbias"));
    ra_plan_destroy(plan);
}

/* ---- ranks that disagree ---- */

struct crew {
    ra_problem problem[RANKS];
    ra_status status[RANKS];
    char why[RANKS][256];
};

/* Agreement alone, so that it is tested whatever the engine supports. */
static ra_status agree(ra_comm *comm, int rank, void *user) {
    struct crew *c = user;
    struct ra__agreed agreed;
    c->status[rank] = ra__agree(comm, &c->problem[rank], RA_OK, false, &agreed);
    snprintf(c->why[rank], sizeof c->why[rank], "%s", ra_last_error());
    return RA_OK;
}

static void check_crew(struct crew *c, const char *word, int line) {
    const ra_comm_options options = {.timeout_s = 20};
    CHECK_OK(ra_local_run(RANKS, &options, NULL, agree, c));
    for (int r = 0; r < RANKS; r++)
        check_report(c->status[r] == RA_ERR_MISMATCH && strstr(c->why[r], word), __FILE__, line,
                     "rank %d: %s (%s), expected ERR_MISMATCH naming \"%s\"", r, ra_status_name(c->status[r]), c->why[r], word);
}

#define MISMATCH(word, all, ...)           \
    do {                                   \
        struct crew c;                     \
        for (int r = 0; r < RANKS; r++) {  \
            ra_problem *p = &c.problem[r]; \
            *p = good_problem();           \
            all;                           \
        }                                  \
        ra_problem *p = &c.problem[1];     \
        __VA_ARGS__;                       \
        check_crew(&c, word, __LINE__);    \
    } while (0)

static void ranks_disagree(void) {
    static const int32_t lens[2] = {3, 4}, other_lens[2] = {4, 3}, offsets[3] = {0, 4, S}, other_offsets[3] = {0, 5, S};
    static const int64_t slices[5] = {0, 12, 0, 12, 0}, other_slices[5] = {0, 12, 0, 12, 1};
    static const float slopes[HEADS] = {1, 2, 3, 4}, other_slopes[HEADS] = {1, 2, 3, 5};
    MISMATCH("window_left = 4", , p->mask.window_left = 4);
    MISMATCH("window_right = 0", , p->mask.window_right = 0);
    MISMATCH("prefix = 3", , p->mask.prefix = 3);
    MISMATCH("keep_first = 2", , p->mask.keep_first = 2);
    MISMATCH("has_sinks = 1", , p->has_sinks = 1);
    MISMATCH("has_temperature = 1", , p->has_temperature = 1);
    MISMATCH("softcap = 30", p->softcap = 20, p->softcap = 30);
    MISMATCH("dropout = 0.5", p->dropout = 0.25, p->dropout = 0.5);
    MISMATCH("seed = 18446744073709551615", p->dropout = 0.25, p->seed = UINT64_MAX);
    MISMATCH("rank 1 passes kv_lens, rank 0 does not", , p->mask.kv_lens = lens);
    MISMATCH("rank 0 passes kv_lens, rank 1 does not", p->mask.kv_lens = lens, p->mask.kv_lens = NULL);
    MISMATCH("rank 1 passes other values in kv_lens than rank 0", p->mask.kv_lens = lens, p->mask.kv_lens = other_lens);
    MISMATCH("cu_seqlens_q", p->mask.cu_seqlens_q = p->mask.cu_seqlens_kv = offsets;
             p->mask.sequences = 2, p->mask.cu_seqlens_q = other_offsets);
    MISMATCH("cu_seqlens_kv", p->mask.cu_seqlens_q = p->mask.cu_seqlens_kv = offsets;
             p->mask.sequences = 2, p->mask.cu_seqlens_kv = other_offsets);
    MISMATCH("sequences = 1", p->mask.cu_seqlens_q = p->mask.cu_seqlens_kv = offsets; p->mask.sequences = 2, p->mask.sequences = 1);
    MISMATCH("slices", p->mask.slices = slices; p->mask.slice_count = 1, p->mask.slices = other_slices);
    MISMATCH("alibi_slopes", p->alibi_slopes = slopes, p->alibi_slopes = other_slopes);
}

/* A seed without dropout means nothing. */
static void seeds_may_differ_without_dropout(void) {
    struct crew c;
    for (int r = 0; r < RANKS; r++) {
        c.problem[r] = good_problem();
        c.problem[r].seed = (uint64_t)r;
    }
    CHECK_OK(ra_local_run(RANKS, NULL, NULL, agree, &c));
    for (int r = 0; r < RANKS; r++)
        CHECK_EQ_INT(c.status[r], RA_OK);
}

int main(void) {
    if (!CHECK_OK(ra_comm_create_self(NULL, &self)))
        return check_result();
    RUN(defaults);
    RUN(windows);
    RUN(key_lengths);
    RUN(packed);
    RUN(slices);
    RUN(modifiers);
    RUN(supports);
    RUN(runs);
    RUN(outputs);
    RUN(ranks_disagree);
    RUN(seeds_may_differ_without_dropout);
    ra_comm_destroy(self);
    return check_result();
}
