/* The public functions' manners: every bad argument is refused with the documented status and a message that names the field, on every
 * rank, without hanging; what is asked about plans, layouts, machine and build is answered (cases 22, 45, 69, 92). */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/cpu.h"
#include "check.h"

static bool says(const char *word) {
    return CHECK_MSG(strstr(ra_last_error(), word) != NULL, "message \"%s\" does not name \"%s\"", ra_last_error(), word);
}

#define CHECK_REFUSED(call, status, word) \
    do {                                  \
        if (CHECK_STATUS(call, status))   \
            says(word);                   \
    } while (0)

static ra_problem good_problem(void) {
    ra_problem p;
    ra_problem_init(&p);
    p.Sq = p.Skv = 12;
    p.H = 4;
    p.G = 2;
    p.D = 8;
    p.Dv = 6;
    p.threads = 1;
    p.backward = 1;
    return p;
}

/* ---- names, sizes, layouts ---- */

static void statuses_have_names(void) {
#define RA_X(name, code, text)                                    \
    CHECK_EQ_INT(RA_##name, code);                                \
    CHECK(strcmp(ra_status_name((ra_status)(code)), #name) == 0); \
    CHECK(strcmp(ra_status_text((ra_status)(code)), text) == 0);
    RA_STATUS_LIST(RA_X)
#undef RA_X
    CHECK(*ra_status_name((ra_status)1) && *ra_status_text((ra_status)-77));
}

static void versions_agree(void) {
    char expected[32];
    snprintf(expected, sizeof expected, "%d.%d.%d", RA_VERSION_MAJOR, RA_VERSION_MINOR, RA_VERSION_PATCH);
    CHECK(strcmp(ra_version(), expected) == 0);
}

static void bad_layouts(void) {
    char a[64] = {0}, b[64];
    CHECK_EQ_INT(ra_shard_size((ra_layout)3, 8, 2, 0), -1);
    CHECK_EQ_INT(ra_shard_size(RA_ZIGZAG, -1, 2, 0), -1);
    CHECK_EQ_INT(ra_shard_size(RA_ZIGZAG, 8, 0, 0), -1);
    CHECK_EQ_INT(ra_shard_size(RA_ZIGZAG, 8, 2, 2), -1);
    CHECK_EQ_INT(ra_shard_size(RA_ZIGZAG, 8, 2, -1), -1);
    CHECK_EQ_INT(ra_shard_position((ra_layout)-1, 8, 2, 0, 0), -1);
    CHECK_EQ_INT(ra_shard_position(RA_STRIPED, 8, 2, 0, 4), -1);
    CHECK_REFUSED(ra_permute((ra_layout)9, 8, 2, a, b, 1, 4), RA_ERR_INVALID, "layout 9");
    CHECK_REFUSED(ra_permute(RA_STRIPED, -8, 2, a, b, 1, 4), RA_ERR_INVALID, "S -8");
    CHECK_REFUSED(ra_permute(RA_STRIPED, 8, 0, a, b, 1, 4), RA_ERR_INVALID, "P 0");
    CHECK_REFUSED(ra_permute(RA_STRIPED, 8, 2, a, b, -1, 4), RA_ERR_INVALID, "outer -1");
    CHECK_REFUSED(ra_unpermute(RA_STRIPED, 8, 2, a, b, 1, -4), RA_ERR_INVALID, "inner_bytes -4");
    CHECK_REFUSED(ra_permute(RA_STRIPED, 8, 2, NULL, b, 1, 4), RA_ERR_INVALID, "src");
    CHECK_REFUSED(ra_unpermute(RA_STRIPED, 8, 2, a, NULL, 1, 4), RA_ERR_INVALID, "dst");
    CHECK_OK(ra_permute(RA_STRIPED, 0, 2, NULL, NULL, 1, 4));
}

static void tensors(void) {
    float x;
    CHECK_EQ_INT(ra_dtype_size(RA_F32), 4);
    CHECK_EQ_INT(ra_dtype_size(RA_BF16), 2);
    CHECK_EQ_INT(ra_dtype_size(RA_F16), 2);
    CHECK_EQ_INT(ra_dtype_size((ra_dtype)3), 0);
    const ra_tensor a = ra_tensor_bshd(&x, RA_F16, 5, 3, 7), b = ra_tensor_bhsd(&x, RA_BF16, 5, 3, 7);
    CHECK(a.data == &x && a.dtype == RA_F16 && a.stride[0] == 105 && a.stride[1] == 21 && a.stride[2] == 7 && a.stride[3] == 1);
    CHECK(b.data == &x && b.dtype == RA_BF16 && b.stride[0] == 105 && b.stride[1] == 7 && b.stride[2] == 35 && b.stride[3] == 1);
    const ra_tensor c = ra_tensor_bias(&x, RA_F32, 2, 3, 5, 7), d = ra_tensor_bias(&x, RA_F32, 1, 1, 1, 7);
    CHECK(c.stride[0] == 105 && c.stride[1] == 7 && c.stride[2] == 35 && c.stride[3] == 1); /* stored [B,H,T,Skv], strides b, t, h, key */
    CHECK(d.stride[0] == 0 && d.stride[1] == 0 && d.stride[2] == 0 && d.stride[3] == 1);
}

/* ---- comms ---- */

static ra_status nothing(ra_comm *comm, int rank, void *user) {
    (void)comm, (void)rank, (void)user;
    return RA_OK;
}

static void bad_comms(void) {
    ra_comm *comm = NULL;
    const ra_comm_options negative = {.timeout_s = -1}, nan = {.timeout_s = NAN};
    const ra_allocator half = {0};
    const ra_comm_options no_free = {.allocator = &half};
    const ra_link link = {.name = "half a link", .size = 1};
    CHECK_REFUSED(ra_comm_create_self(NULL, NULL), RA_ERR_INVALID, "comm");
    CHECK_REFUSED(ra_comm_create_self(&negative, &comm), RA_ERR_INVALID, "timeout_s");
    CHECK_REFUSED(ra_comm_create_self(&nan, &comm), RA_ERR_INVALID, "timeout_s");
    CHECK_REFUSED(ra_comm_create_self(&no_free, &comm), RA_ERR_INVALID, "allocator");
    CHECK_STATUS(ra_comm_create_local(0, NULL, NULL, &comm), RA_ERR_INVALID);
    CHECK_REFUSED(ra_comm_create_local(2, NULL, NULL, NULL), RA_ERR_INVALID, "comms");
    CHECK_STATUS(ra_local_run(-1, NULL, NULL, nothing, NULL), RA_ERR_INVALID);
    CHECK_REFUSED(ra_local_run(2, NULL, NULL, NULL, NULL), RA_ERR_INVALID, "body");
    CHECK_REFUSED(ra_comm_create_link(NULL, NULL, &comm), RA_ERR_INVALID, "link");
    CHECK_REFUSED(ra_comm_create_link(&link, NULL, &comm), RA_ERR_INVALID, "link");
    CHECK(comm == NULL);
    CHECK_REFUSED(ra_comm_allgather(NULL, &comm, &comm, 1), RA_ERR_INVALID, "allgather");
    CHECK_EQ_INT(ra_comm_rank(NULL), -1);
    CHECK_EQ_INT(ra_comm_size(NULL), 0);
    CHECK(ra_comm_kind(NULL) != NULL);
    ra_comm_destroy(NULL);
    ra_comm_fail(NULL, RA_ERR_INTERNAL, "nobody");
    ra_plan_destroy(NULL);
}

/* ---- problems ---- */

static ra_comm *self;

static void check_refused_problem(const ra_problem *p, ra_status status, const char *word, int line) {
    char untouched;
    ra_plan *plan = (ra_plan *)&untouched;
    const ra_status got = ra_plan_create(self, p, &plan);
    check_report(got == status && strstr(ra_last_error(), word) && plan == (ra_plan *)&untouched, __FILE__, line,
                 "%s (%s), expected %s naming \"%s\"", ra_status_name(got), ra_last_error(), ra_status_name(status), word);
    if (got == RA_OK)
        ra_plan_destroy(plan);
}

/* The good problem with one thing changed. */
#define REFUSED(status, word, ...)                         \
    do {                                                   \
        ra_problem p = good_problem();                     \
        __VA_ARGS__;                                       \
        check_refused_problem(&p, status, word, __LINE__); \
    } while (0)
#define ACCEPTED(...)                              \
    do {                                           \
        ra_problem p = good_problem();             \
        ra_plan *plan = NULL;                      \
        __VA_ARGS__;                               \
        CHECK_OK(ra_plan_create(self, &p, &plan)); \
        ra_plan_destroy(plan);                     \
    } while (0)

static void bad_sizes(void) {
    REFUSED(RA_ERR_INVALID, "ra_problem_init", p.size = 0);
    REFUSED(RA_ERR_INVALID, "ra_problem_init", p.size--);
    REFUSED(RA_ERR_INVALID, "dtype", p.dtype = (ra_dtype)7);
    REFUSED(RA_ERR_INVALID, "layout", p.layout = (ra_layout)5);
    REFUSED(RA_ERR_INVALID, "layout", p.layout = (ra_layout)-1);
    REFUSED(RA_ERR_INVALID, "B is 0", p.B = 0);
    REFUSED(RA_ERR_INVALID, "B is -1", p.B = -1);
    REFUSED(RA_ERR_INVALID, "Sq is -1", p.Sq = -1);
    REFUSED(RA_ERR_INVALID, "Skv is -1", p.Skv = -1);
    REFUSED(RA_ERR_INVALID, "H is 0", p.H = 0);
    REFUSED(RA_ERR_INVALID, "G is 0", p.G = 0);
    REFUSED(RA_ERR_INVALID, "D is 0", p.D = 0);
    REFUSED(RA_ERR_INVALID, "Dv is -3", p.Dv = -3);
    REFUSED(RA_ERR_INVALID, "q heads must be a multiple of k heads", p.G = 3);
    REFUSED(RA_ERR_INVALID, "q heads must be a multiple of k heads", p.G = 8);
    REFUSED(RA_ERR_INVALID, "q_chunk", p.q_chunk = -1);
    REFUSED(RA_ERR_INVALID, "k_chunk", p.k_chunk = -1);
    REFUSED(RA_ERR_INVALID, "threads", p.threads = -1);
    REFUSED(RA_ERR_INVALID, "threads", p.threads = 1000000);
    REFUSED(RA_ERR_INVALID, "scale", p.scale = INFINITY);
    REFUSED(RA_ERR_INVALID, "scale", p.scale = -INFINITY);
    REFUSED(RA_ERR_INVALID, "scale", p.scale = 1e39); /* infinite in fp32 */
    REFUSED(RA_ERR_INVALID, "scale", p.scale = 3e38); /* as are its logits in units of log2 */
    REFUSED(RA_ERR_OVERFLOW, "64 bits", p.B = p.Sq = p.Skv = (int64_t)1 << 40);
    REFUSED(RA_ERR_OVERFLOW, "64 bits", p.Skv = INT64_MAX);
    REFUSED(RA_ERR_OVERFLOW, "64 bits", p.D = INT64_MAX);
    REFUSED(RA_ERR_UNSUPPORTED, "k_chunk", p.Skv = (int64_t)1 << 33; p.k_chunk = (int64_t)1 << 32);
    ACCEPTED(p.scale = 0);
    ACCEPTED(p.scale = -2);
    ACCEPTED(p.q_chunk = p.k_chunk = INT64_MAX);
    ACCEPTED(p.Sq = 0);
    ACCEPTED(p.Skv = 0);
    ACCEPTED(p.Sq = 3);
}

static void bad_masks(void) {
    static const int32_t ids[12] = {0};
    REFUSED(RA_ERR_INVALID, "causal_block", p.mask.causal_block = -1);
    REFUSED(RA_ERR_INVALID, "causal_block", p.mask.causal = 1; p.mask.causal_block = 4);
    REFUSED(RA_ERR_INVALID, "align", p.mask.align = (ra_align)9);
    REFUSED(RA_ERR_INVALID, "alignment", p.mask.causal = 1; p.Skv = 13);
    REFUSED(RA_ERR_INVALID, "alignment", p.mask.causal_block = 4; p.Sq = 3);
    REFUSED(RA_ERR_INVALID, "segment ids of the keys", p.mask.q_segment_ids = ids);
    REFUSED(RA_ERR_INVALID, "segment ids of the queries", p.mask.kv_segment_ids = ids);
    ACCEPTED(p.mask.causal = 1);
    ACCEPTED(p.mask.causal_block = 4);
    ACCEPTED(p.mask.causal_block = INT64_MAX);
    ACCEPTED(p.mask.causal = 1; p.Skv = 13; p.mask.align = RA_ALIGN_BOTTOM_RIGHT);
    ACCEPTED(p.mask.causal_block = 4; p.Sq = 3; p.mask.align = RA_ALIGN_TOP_LEFT);
    ACCEPTED(p.mask.q_segment_ids = p.mask.kv_segment_ids = ids);
    ACCEPTED(p.mask.q_segment_ids = ids; p.Skv = 0); /* there are no keys to be missed */
}

static void missing_arguments(void) {
    const ra_problem p = good_problem();
    const ra_attention_args args = {.lse = NULL};
    ra_plan *plan = NULL;
    CHECK_REFUSED(ra_plan_create(NULL, &p, &plan), RA_ERR_INVALID, "NULL");
    CHECK_REFUSED(ra_plan_create(self, NULL, &plan), RA_ERR_INVALID, "NULL");
    CHECK_REFUSED(ra_plan_create(self, &p, NULL), RA_ERR_INVALID, "NULL");
    CHECK(plan == NULL);
    CHECK_REFUSED(ra_attention_forward(NULL, &args, NULL), RA_ERR_INVALID, "NULL");
    CHECK_REFUSED(ra_attention_backward(NULL, &args, NULL), RA_ERR_INVALID, "NULL");
    CHECK_REFUSED(ra_attention(NULL, &p, &args), RA_ERR_INVALID, "NULL");
    CHECK_REFUSED(ra_attention(self, NULL, &args), RA_ERR_INVALID, "NULL");
    CHECK_REFUSED(ra_attention(self, &p, NULL), RA_ERR_INVALID, "NULL");
    CHECK_OK(ra_plan_create(self, &p, &plan));
    CHECK_REFUSED(ra_attention_forward(plan, NULL, NULL), RA_ERR_INVALID, "NULL");
    CHECK_REFUSED(ra_attention_backward(plan, NULL, NULL), RA_ERR_INVALID, "NULL");
    ra_plan_destroy(plan);
}

/* ---- tensors of a run ---- */

/* Zeroed operands of the good problem on one rank, of any rank of it on several. */
struct operands {
    float q[12 * 4 * 8], k[12 * 2 * 8], v[12 * 2 * 6], out[12 * 4 * 6], dout[12 * 4 * 6], bias[12], lse[48], dq[12 * 4 * 8], dk[12 * 2 * 8],
        dv[12 * 2 * 6];
};

static ra_attention_args good_args(struct operands *o, int64_t T) {
    memset(o, 0, sizeof *o);
    return (ra_attention_args){.q = ra_tensor_bshd(o->q, RA_F32, T, 4, 8),
                               .k = ra_tensor_bshd(o->k, RA_F32, T, 2, 8),
                               .v = ra_tensor_bshd(o->v, RA_F32, T, 2, 6),
                               .out = ra_tensor_bshd(o->out, RA_F32, T, 4, 6),
                               .lse = o->lse,
                               .dout = ra_tensor_bshd(o->dout, RA_F32, T, 4, 6),
                               .dq = ra_tensor_bshd(o->dq, RA_F32, T, 4, 8),
                               .dk = ra_tensor_bshd(o->dk, RA_F32, T, 2, 8),
                               .dv = ra_tensor_bshd(o->dv, RA_F32, T, 2, 6)};
}

typedef ra_status run_fn(const ra_plan *plan, const ra_attention_args *args, void *workspace);

static ra_plan *self_plan(int has_bias, int backward) {
    ra_problem p = good_problem();
    ra_plan *plan = NULL;
    p.has_bias = has_bias;
    p.backward = backward;
    CHECK_OK(ra_plan_create(self, &p, &plan));
    return plan;
}

#define RUN_REFUSED(run, status, word, ...)               \
    do {                                                  \
        struct operands o;                                \
        ra_attention_args a = good_args(&o, 12);          \
        __VA_ARGS__;                                      \
        CHECK_REFUSED(run(plan, &a, NULL), status, word); \
    } while (0)

static void bad_inputs(const ra_plan *plan, run_fn *run) {
    RUN_REFUSED(run, RA_ERR_INVALID, "q is missing", a.q.data = NULL);
    RUN_REFUSED(run, RA_ERR_INVALID, "k is missing", a.k.data = NULL);
    RUN_REFUSED(run, RA_ERR_INVALID, "v is missing", a.v.data = NULL);
    RUN_REFUSED(run, RA_ERR_INVALID, "q: unknown dtype", a.q.dtype = (ra_dtype)8);
    RUN_REFUSED(run, RA_ERR_INVALID, "v: unknown dtype", a.v.dtype = (ra_dtype)-1);
    RUN_REFUSED(run, RA_ERR_INVALID, "q: its dtype", a.q.dtype = RA_BF16);
    RUN_REFUSED(run, RA_ERR_INVALID, "k: its dtype", a.k.dtype = RA_F16);
    RUN_REFUSED(run, RA_ERR_INVALID, "v: its dtype", a.v.dtype = RA_F16);
    for (int i = 0; i < 4; i++) {
        RUN_REFUSED(run, RA_ERR_INVALID, "q: stride", a.q.stride[i] = -1);
        RUN_REFUSED(run, RA_ERR_INVALID, "k: stride", a.k.stride[i] = -8);
        RUN_REFUSED(run, RA_ERR_INVALID, "v: stride", a.v.stride[i] = INT64_MIN);
    }
    RUN_REFUSED(run, RA_ERR_OVERFLOW, "k", a.k.stride[1] = INT64_MAX);
    RUN_REFUSED(run, RA_ERR_OVERFLOW, "v", a.v.stride[2] = INT64_MAX / 2);
    RUN_REFUSED(run, RA_ERR_INVALID, "bias", a.bias = ra_tensor_bias(o.bias, RA_F32, 1, 1, 1, 12));
}

static void bad_forward_arguments(void) {
    ra_plan *plan = self_plan(0, 0);
    struct operands kept;
    ra_attention_args good = good_args(&kept, 12);
    bad_inputs(plan, ra_attention_forward);
    RUN_REFUSED(ra_attention_forward, RA_ERR_INVALID, "out is missing", a.out.data = NULL);
    RUN_REFUSED(ra_attention_forward, RA_ERR_INVALID, "out: unknown dtype", a.out.dtype = (ra_dtype)3);
    for (int i = 0; i < 4; i++)
        RUN_REFUSED(ra_attention_forward, RA_ERR_INVALID, "out: stride", a.out.stride[i] = -24);
    RUN_REFUSED(ra_attention_forward, RA_ERR_INVALID, "out: stride", a.out.stride[1] = 0);
    RUN_REFUSED(ra_attention_forward, RA_ERR_INVALID, "out: stride", a.out.stride[3] = 0);
    RUN_REFUSED(ra_attention_forward, RA_ERR_INVALID, "out: stride", a.out.stride[1] = 23); /* one less than a row of heads */
    RUN_REFUSED(ra_attention_forward, RA_ERR_INVALID, "out: stride", a.out.stride[2] = 5);
    RUN_REFUSED(ra_attention_backward, RA_ERR_UNSUPPORTED, "without backward", a.lse = o.lse);
    _Alignas(64) static char memory[1 << 20];
    if (CHECK(ra_plan_workspace_bytes(plan) < sizeof memory - 64)) {
        CHECK_REFUSED(ra_attention_forward(plan, &good, memory + 32), RA_ERR_INVALID, "workspace");
        CHECK_OK(ra_attention_forward(plan, &good, memory + 64));
    }
    good.out.stride[0] = 0; /* B = 1: never used */
    CHECK_OK(ra_attention_forward(plan, &good, NULL));
    ra_plan_destroy(plan);
    plan = self_plan(1, 0);
    RUN_REFUSED(ra_attention_forward, RA_ERR_INVALID, "bias is missing", a.stats = NULL);
    RUN_REFUSED(ra_attention_forward, RA_ERR_INVALID, "bias: unknown dtype", a.bias = ra_tensor_bias(o.bias, (ra_dtype)5, 1, 1, 1, 12));
    RUN_REFUSED(ra_attention_forward, RA_ERR_INVALID, "bias: stride", a.bias = ra_tensor_bias(o.bias, RA_F32, 1, 1, 1, 12);
                a.bias.stride[3] = -1);
    ra_plan_destroy(plan);
}

static void bad_backward_arguments(void) {
    ra_plan *plan = self_plan(0, 1);
    struct operands kept;
    ra_attention_args good = good_args(&kept, 12);
    bad_inputs(plan, ra_attention_backward);
    RUN_REFUSED(ra_attention_backward, RA_ERR_INVALID, "lse", a.lse = NULL);
    RUN_REFUSED(ra_attention_backward, RA_ERR_INVALID, "out is missing", a.out.data = NULL);
    RUN_REFUSED(ra_attention_backward, RA_ERR_INVALID, "dout: unknown dtype", a.dout.dtype = (ra_dtype)3);
    RUN_REFUSED(ra_attention_backward, RA_ERR_INVALID, "dout: stride", a.dout.stride[1] = -1);
    RUN_REFUSED(ra_attention_backward, RA_ERR_INVALID, "dq: unknown dtype", a.dq.dtype = (ra_dtype)3);
    RUN_REFUSED(ra_attention_backward, RA_ERR_INVALID, "dk: stride", a.dk.stride[2] = -1);
    RUN_REFUSED(ra_attention_backward, RA_ERR_INVALID, "dq: stride", a.dq.stride[1] = 0);
    RUN_REFUSED(ra_attention_backward, RA_ERR_INVALID, "dk: stride", a.dk.stride[1] = 8);
    RUN_REFUSED(ra_attention_backward, RA_ERR_INVALID, "dv: stride", a.dv.stride[3] = 3);
    RUN_REFUSED(ra_attention_backward, RA_ERR_OVERFLOW, "dv", a.dv.stride[1] = INT64_MAX);
    CHECK_OK(ra_attention_forward(plan, &good, NULL));
    CHECK_OK(ra_attention_backward(plan, &good, NULL)); /* refusals leave no trace */
    CHECK_REFUSED(ra_attention_backward(plan, &good, (void *)(uintptr_t)8), RA_ERR_INVALID, "workspace");
    ra_plan_destroy(plan);
}

static void bad_simple_form(void) {
    const ra_problem p = good_problem();
    struct operands o;
    ra_attention_args a = good_args(&o, 12);
    a.k.data = NULL;
    CHECK_REFUSED(ra_attention(self, &p, &a), RA_ERR_INVALID, "k is missing");
    a = good_args(&o, 12);
    a.dv.stride[1] = 1;
    CHECK_REFUSED(ra_attention(self, &p, &a), RA_ERR_INVALID, "dv: stride");
    ra_problem bad = p;
    bad.D = 0;
    CHECK_REFUSED(ra_attention(self, &bad, &a), RA_ERR_INVALID, "D is 0");
}

/* ---- ranks that disagree ---- */

enum { RANKS = 3 };

/* What each rank passes and gets. */
struct crew {
    ra_problem problem[RANKS];
    int null_at; /* this rank passes no problem at all; -1: none */
    ra_status status[RANKS], again[RANKS];
    char why[RANKS][256];
};

static ra_status plan_twice(ra_comm *comm, int rank, void *user) {
    struct crew *c = user;
    const ra_problem good = good_problem();
    ra_plan *plan = NULL;
    c->status[rank] = ra_plan_create(comm, rank == c->null_at ? NULL : &c->problem[rank], &plan);
    snprintf(c->why[rank], sizeof c->why[rank], "%s", ra_last_error());
    ra_plan_destroy(plan);
    plan = NULL;
    c->again[rank] = ra_plan_create(comm, &good, &plan); /* the comm survives a refusal */
    ra_plan_destroy(plan);
    return RA_OK;
}

static void check_crew(struct crew *c, ra_status status, const char *word, int line) {
    const ra_comm_options options = {.timeout_s = 20};
    const double start = ra__now();
    CHECK_OK(ra_local_run(RANKS, &options, NULL, plan_twice, c));
    CHECK(ra__now() - start < 10);
    for (int r = 0; r < RANKS; r++) {
        check_report(c->status[r] == status && strstr(c->why[r], word), __FILE__, line, "rank %d: %s (%s), expected %s naming \"%s\"", r,
                     ra_status_name(c->status[r]), c->why[r], ra_status_name(status), word);
        check_report(c->again[r] == RA_OK, __FILE__, line, "rank %d cannot plan again: %s", r, ra_status_name(c->again[r]));
    }
}

static struct crew new_crew(void) {
    struct crew c = {.null_at = -1};
    for (int r = 0; r < RANKS; r++)
        c.problem[r] = good_problem();
    return c;
}

/* One rank's problem differs in one thing. */
#define MISMATCH(rank, word, ...)                        \
    do {                                                 \
        struct crew c = new_crew();                      \
        ra_problem *p = &c.problem[rank];                \
        __VA_ARGS__;                                     \
        check_crew(&c, RA_ERR_MISMATCH, word, __LINE__); \
    } while (0)

static void ranks_disagree(void) {
    static const int32_t ids[12] = {0};
    MISMATCH(1, "B = 2", p->B = 2);
    MISMATCH(2, "Sq = 13", p->Sq = 13);
    MISMATCH(0, "Skv = ", p->Skv = 13);
    MISMATCH(1, "H = 2", p->H = 2);
    MISMATCH(1, "G = 4", p->G = 4);
    MISMATCH(1, "D = 64", p->D = 64);
    MISMATCH(2, "Dv = 1", p->Dv = 1);
    MISMATCH(1, "dtype", p->dtype = RA_F16);
    MISMATCH(1, "layout", p->layout = RA_ZIGZAG);
    MISMATCH(1, "causal", p->mask.causal = 1);
    MISMATCH(1, "causal_block", p->mask.causal_block = 2);
    MISMATCH(1, "align", p->mask.align = RA_ALIGN_TOP_LEFT);
    MISMATCH(0, "has_bias", p->has_bias = 1);
    MISMATCH(2, "backward", p->backward = 0);
    MISMATCH(1, "segments", p->mask.q_segment_ids = p->mask.kv_segment_ids = ids);
    MISMATCH(1, "scale", p->scale = 0.5);
    struct crew c = new_crew(); /* what may differ */
    c.problem[1].threads = 2;
    c.problem[2].q_chunk = 16;
    c.problem[0].k_chunk = 8;
    c.problem[2].scale = 1 / sqrt(8.0);
    check_crew(&c, RA_OK, "", __LINE__);
}

static void one_rank_is_wrong(void) {
    struct crew c = new_crew();
    c.problem[2].D = 0;
    check_crew(&c, RA_ERR_INVALID, "rank 2: D is 0", __LINE__);
    c = new_crew();
    c.problem[0].size = 3;
    check_crew(&c, RA_ERR_INVALID, "rank 0: problem", __LINE__);
    c = new_crew();
    c.problem[1].scale = INFINITY;
    c.problem[2].H = 1; /* the first reason is reported */
    check_crew(&c, RA_ERR_INVALID, "rank 1: scale", __LINE__);
    c = new_crew();
    c.null_at = 1;
    check_crew(&c, RA_ERR_INVALID, "rank 1: ra_plan_create: problem is NULL", __LINE__);
}

/* ---- a rank that cannot start a run ---- */

struct stumble {
    int kind; /* what rank 1 does wrong */
    ra_status status[RANKS], later[RANKS];
    char why[RANKS][256];
};

static ra_status run_with_a_fault(ra_comm *comm, int rank, void *user) {
    struct stumble *s = user;
    const ra_problem p = good_problem();
    struct operands o;
    ra_attention_args a = good_args(&o, 4);
    ra_plan *plan = NULL;
    if (!CHECK_OK(ra_plan_create(comm, &p, &plan)))
        return RA_OK;
    if (rank == 1 && s->kind == 0)
        a.k.data = NULL;
    if (rank == 1 && s->kind == 1)
        a.dv.stride[1] = 0;
    const ra_attention_args *args = rank == 1 && s->kind == 2 ? NULL : &a;
    void *workspace = rank == 1 && s->kind == 3 ? (void *)(uintptr_t)8 : NULL;
    s->status[rank] = s->kind == 1 ? ra_attention_backward(plan, args, workspace) : ra_attention_forward(plan, args, workspace);
    snprintf(s->why[rank], sizeof s->why[rank], "%s", ra_last_error());
    a = good_args(&o, 4);
    s->later[rank] = ra_attention_forward(plan, &a, NULL); /* the comm is unusable, and says so at once */
    ra_plan_destroy(plan);
    return RA_OK;
}

static void one_rank_cannot_start(void) {
    const ra_comm_options options = {.timeout_s = 60};
    static const char *const words[] = {"k is missing", "dv: stride", "NULL", "workspace"};
    for (int kind = 0; kind < 4; kind++) {
        struct stumble s = {.kind = kind};
        const double start = ra__now();
        CHECK_OK(ra_local_run(RANKS, &options, NULL, run_with_a_fault, &s));
        CHECK_MSG(ra__now() - start < 20, "the others waited %g s", ra__now() - start);
        for (int r = 0; r < RANKS; r++) {
            CHECK_MSG(s.status[r] == (r == 1 ? RA_ERR_INVALID : RA_ERR_PEER_LOST) && strstr(s.why[r], words[kind]),
                      "kind %d, rank %d: %s (%s)", kind, r, ra_status_name(s.status[r]), s.why[r]);
            CHECK(s.later[r] != RA_OK);
        }
    }
}

static ra_status one_call(ra_comm *comm, int rank, void *user) {
    const int kind = *(const int *)user;
    const ra_problem p = good_problem();
    struct operands o;
    ra_attention_args a = good_args(&o, 4);
    if (rank == 2 && kind == 0)
        a.v.dtype = (ra_dtype)9;
    const ra_status s = ra_attention(comm, rank == 2 && kind == 1 ? NULL : &p, rank == 2 && kind == 2 ? NULL : &a);
    CHECK(s == RA_ERR_INVALID || (kind == 0 && s == RA_ERR_PEER_LOST));
    return s;
}

static void the_first_cause_is_reported(void) {
    static const char *const causes[] = {"rank 2: v: unknown dtype 9", "rank 2: ra_attention: problem is NULL",
                                         "rank 2: ra_attention: args is NULL"};
    const ra_comm_options options = {.timeout_s = 20};
    for (int kind = 0; kind < 3; kind++)
        CHECK_REFUSED(ra_local_run(RANKS, &options, NULL, one_call, &kind), RA_ERR_INVALID, causes[kind]);
}

/* ---- the environment ---- */

static ra_status plan_one(ra_comm *comm, int rank, void *user) {
    const ra_problem p = good_problem();
    ra_plan *plan = NULL;
    (void)rank, (void)user;
    const ra_status s = ra_plan_create(comm, &p, &plan);
    ra_plan_destroy(plan);
    return s;
}

static bool scalar_is_compiled(int level) {
    return level == RA__SCALAR;
}

/* RA_ISA is applied or refused: no plan on another instruction set than the one that was named. */
static void missing_instruction_sets(void) {
    const char *before = getenv("RA_ISA");
    char text[64] = "", features[2048], reason[256];
    snprintf(text, sizeof text, "%s", before ? before : "");
    const ra_comm_options options = {.timeout_s = 20};
    const ra_problem p = good_problem();
    ra_features(features, sizeof features);
    const char *usable = strstr(features, "isa usable:");
    if (!CHECK(usable))
        return;
    for (int level = RA__SCALAR; level <= RA__AMX; level++) {
        char word[32]; /* a level's name ends with a blank or the line */
        setenv("RA_ISA", ra__isa_name((enum ra__isa)level), 1);
        snprintf(word, sizeof word, " %s", getenv("RA_ISA"));
        const char *found = strstr(usable, word);
        const size_t end = (size_t)(strchr(usable, '\n') - usable);
        while (found && found[strlen(word)] != ' ' && found[strlen(word)] != '\n')
            found = strstr(found + 1, word);
        if (found && (size_t)(found - usable) < end) {
            CHECK_OK(ra_local_run(RANKS, &options, NULL, plan_one, NULL));
            CHECK_OK(ra_supports(&p, NULL, NULL, 0));
        } else {
            CHECK_REFUSED(ra_local_run(RANKS, &options, NULL, plan_one, NULL), RA_ERR_INVALID, "lacks it; usable here are scalar");
        }
    }
    static const char *const wrong[] = {"avx", "avx5122", "AMX", " scalar", "0", "%s%n"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv("RA_ISA", wrong[i], 1);
        CHECK_REFUSED(ra_local_run(RANKS, &options, NULL, plan_one, NULL), RA_ERR_INVALID,
                      "no instruction set; known are scalar, avx2, avx512, avx512bf16, amx");
        says(wrong[i]);
        CHECK_STATUS(ra_supports(&p, NULL, reason, sizeof reason), RA_ERR_INVALID);
        CHECK(strstr(reason, "RA_ISA="));
    }
    setenv("RA_ISA", "avx2", 1);
    CHECK_REFUSED(ra__isa_check(scalar_is_compiled), RA_ERR_INVALID, "RA_ISA=avx2: this build lacks it; usable here are scalar");
    setenv("RA_ISA", "scalar", 1);
    CHECK_OK(ra__isa_check(scalar_is_compiled));
    setenv("RA_ISA", "", 1); /* as if it were not set */
    CHECK_OK(ra_local_run(RANKS, &options, NULL, plan_one, NULL));
    if (*text)
        setenv("RA_ISA", text, 1);
    else
        unsetenv("RA_ISA");
}

/* ---- what a plan tells ---- */

/* Like snprintf, for every length of buffer. */
static void check_truncation(size_t (*print)(char *buf, size_t n)) {
    static char whole[1 << 16], part[1 << 16];
    const size_t length = print(NULL, 0);
    if (!CHECK(length > 20 && length < sizeof whole - 8))
        return;
    CHECK_EQ_INT(print(whole, sizeof whole), length);
    CHECK_EQ_INT(strlen(whole), length);
    for (size_t n = 0; n <= length + 2; n += n < length - 40 && length > 2000 ? 13 : 1) {
        memset(part, 0x5a, length + 8);
        CHECK_EQ_INT(print(part, n), length);
        const size_t kept = n == 0 ? 0 : n - 1 < length ? n - 1 : length;
        CHECK(memcmp(part, whole, kept) == 0 && (n == 0 || part[kept] == 0));
        for (size_t i = n; i < length + 8; i++)
            CHECK(i < kept + 1 || part[i] == 0x5a);
    }
}

static const ra_plan *printed;
static size_t print_plan(char *buf, size_t n) {
    return ra_plan_print(printed, buf, n);
}

static size_t count(const char *text, const char *word) {
    size_t n = 0;
    for (const char *p = text; (p = strstr(p, word)); p += strlen(word))
        n++;
    return n;
}

static ra_status print_one_of(ra_comm *comm, int rank, void *user) {
    ra_problem p = good_problem();
    ra_plan *plan;
    p.Sq = p.Skv = 640;
    p.mask.causal = 1;
    p.layout = *(const ra_layout *)user;
    ra_status s = ra_plan_create(comm, &p, &plan);
    if (s != RA_OK)
        return s;
    if (rank == ra_comm_size(comm) / 2) {
        static char text[1 << 16];
        printed = plan;
        check_truncation(print_plan);
        ra_plan_print(plan, text, sizeof text);
        CHECK(strstr(text, "causal") && strstr(text, "640") && strstr(text, ra_isa()) && strstr(text, "workspace"));
        CHECK_EQ_INT(count(text, "\n  rank"), ra_comm_size(comm)); /* the picture shows every rank */
        CHECK_EQ_INT(count(text, " %\n"), ra_comm_size(comm));
    }
    ra_plan_destroy(plan);
    return RA_OK;
}

static void plans_are_printed(void) {
    const int sizes[] = {1, 5, 64};
    for (int i = 0; i < 3; i++)
        for (ra_layout layout = RA_CONTIGUOUS; layout <= RA_STRIPED; layout++)
            CHECK_OK(ra_local_run(sizes[i], NULL, NULL, print_one_of, &layout));
}

/* Every option that is set is in the plan's text, and none that is not. */
static void options_are_printed(void) {
    const float slopes[4] = {1, 0.5f, 0.25f, 0.125f};
    const int32_t lens[] = {7}, offsets[] = {0, 5, 12}, ids[12] = {0};
    const int64_t slices[] = {0, 12, 0, 12, RA_SLICE_FULL};
    static const char *const words[] = {"softcap 30",      "dropout 0.25 seed 99",
                                        " alibi",          " sinks",
                                        " temperature",    " bias",
                                        " segments",       " kv-lens",
                                        " 2 packed",       " 1 slice",
                                        " window 3,2",     " keep-first 2",
                                        "causal (offs",    " prefix 4",
                                        "modifiers  none", "mask       none"};
    enum { WORDS = sizeof words / sizeof *words };
    ra_comm *comm;
    if (!CHECK_OK(ra_comm_create_self(NULL, &comm)))
        return;
    for (int word = 0; word < WORDS; word++) {
        ra_problem p = good_problem();
        p.softcap = word == 0 ? 30 : 0;
        p.dropout = word == 1 ? 0.25 : 0;
        p.seed = 99;
        p.alibi_slopes = word == 2 ? slopes : NULL;
        p.has_sinks = word == 3;
        p.has_temperature = word == 4;
        p.has_bias = word == 5;
        p.mask.q_segment_ids = p.mask.kv_segment_ids = word == 6 ? ids : NULL;
        p.mask.kv_lens = word == 7 ? lens : NULL;
        p.mask.cu_seqlens_q = p.mask.cu_seqlens_kv = word == 8 ? offsets : NULL;
        p.mask.sequences = word == 8 ? 2 : 0;
        p.mask.slices = word == 9 ? slices : NULL;
        p.mask.slice_count = word == 9;
        p.mask.window_left = word == 10 || word == 11 ? 3 : -1;
        p.mask.window_right = word == 10 ? 2 : -1;
        p.mask.keep_first = word == 11 ? 2 : 0;
        p.mask.causal = word == 12 || word == 13;
        p.mask.prefix = word == 13 ? 4 : 0;
        ra_plan *plan = NULL;
        char text[8192] = "";
        CHECK_OK(ra_plan_create(comm, &p, &plan));
        ra_plan_print(plan, text, sizeof text);
        CHECK_MSG(strstr(text, words[word]) != NULL, "\"%s\" is not in %s", words[word], text);
        for (int other = 0; other < 10; other++)
            CHECK_MSG(other == word || !strstr(text, words[other]), "\"%s\" is in %s", words[other], text);
        CHECK((strstr(text, "modifiers  none") != NULL) == (word > 5) &&
              (strstr(text, "mask       none") != NULL) == (word < 5 || word > 13));
        ra_plan_destroy(plan);
    }
    ra_comm_destroy(comm);
}

static ra_status check_computes(ra_comm *comm, int rank, void *user) {
    ra_problem p = good_problem();
    ra_plan *plan;
    ra_plan_info info;
    (void)user;
    p.mask.causal = 1;
    ra_status s = ra_plan_create(comm, &p, &plan);
    if (s != RA_OK)
        return s;
    for (int r = 0; r < RANKS; r++)
        for (int step = 0; step < RANKS; step++)
            CHECK_EQ_INT(ra_plan_computes(plan, r, step), (r - step + RANKS) % RANKS <= r);
    CHECK_EQ_INT(ra_plan_computes(plan, -1, 0), 0);
    CHECK_EQ_INT(ra_plan_computes(plan, RANKS, 0), 0);
    CHECK_EQ_INT(ra_plan_computes(plan, 0, -1), 0);
    CHECK_EQ_INT(ra_plan_computes(plan, 0, RANKS), 0);
    ra_plan_query(plan, &info);
    CHECK(info.ranks == RANKS && info.rank == rank && info.threads == 1 && info.Tq == 4 && info.Tkv == 4);
    CHECK(strcmp(info.isa, ra_isa()) == 0 && info.workspace_bytes == (int64_t)ra_plan_workspace_bytes(plan));
    CHECK(info.workspace_bytes % 64 == 0 && info.steps >= 1 && info.steps <= RANKS);
    CHECK(info.pairs == 4 * (rank * 16 + 10)); /* 4 heads, whole blocks before its own, and a triangle */
    const int64_t kv = (4 * 2 * 8 * 4 + 63) / 64 * 64 + (4 * 2 * 6 * 4 + 63) / 64 * 64; /* k and v of one block, in parts of 64 bytes */
    CHECK_EQ_INT(info.bytes_sent_forward, rank == RANKS - 1 ? 0 : (rank + 1) * kv);
    ra_plan_destroy(plan);
    return RA_OK;
}

static void plans_are_queried(void) {
    CHECK_OK(ra_local_run(RANKS, NULL, NULL, check_computes, NULL));
}

static void the_build_is_described(void) {
    char text[2048];
    ra_features(text, sizeof text);
    check_truncation(ra_features);
    CHECK(strstr(text, "version: ") == text && strstr(text, ra_version()) && strstr(text, "\nisa: ") && strstr(text, "\nmpi links: "));
    CHECK(text[strlen(text) - 1] == '\n');
    CHECK(!strcmp(ra_isa(), "scalar") || !strcmp(ra_isa(), "avx2") || !strcmp(ra_isa(), "avx512"));
}

int main(void) {
    CHECK(strcmp(ra_last_error(), "") == 0);
    if (!CHECK_OK(ra_comm_create_self(NULL, &self)))
        return check_result();
    RUN(statuses_have_names);
    RUN(versions_agree);
    RUN(bad_layouts);
    RUN(tensors);
    RUN(bad_comms);
    RUN(bad_sizes);
    RUN(bad_masks);
    RUN(missing_arguments);
    RUN(bad_forward_arguments);
    RUN(bad_backward_arguments);
    RUN(bad_simple_form);
    RUN(ranks_disagree);
    RUN(one_rank_is_wrong);
    RUN(one_rank_cannot_start);
    RUN(the_first_cause_is_reported);
    RUN(missing_instruction_sets);
    RUN(plans_are_printed);
    RUN(options_are_printed);
    RUN(plans_are_queried);
    RUN(the_build_is_described);
    ra_comm_destroy(self);
    return check_result();
}
