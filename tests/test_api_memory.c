/* Memory: allocation failing at every call, no leaks, nothing allocated by runs that are given a workspace, workspaces that are large
 * enough and do not grow with the number of ranks (case 90). */
#define _DEFAULT_SOURCE
#include <sys/mman.h>

#include "base/cpu.h"
#include "harness.h"

static bool small(void) {
    return getenv("RA_TEST_SMALL") != NULL;
}

/* ---- an allocator that counts and fails ---- */

struct meter {
    atomic_long live, bytes, calls; /* blocks and bytes that are out, calls so far */
    atomic_long fail_at;            /* this call fails (1 = the first); 0: none */
    atomic_bool failed;
};

enum { NOTE = 64 }; /* bytes in front of a block, which hold its size */

static void *metered_alloc(void *user, size_t bytes, size_t align) {
    struct meter *m = user;
    const long call = atomic_fetch_add(&m->calls, 1) + 1;
    if (call == atomic_load(&m->fail_at)) {
        atomic_store(&m->failed, true);
        return NULL;
    }
    void *p = NULL;
    CHECK(align >= 1 && align <= NOTE && (align & (align - 1)) == 0);
    if (posix_memalign(&p, NOTE, NOTE + bytes) != 0)
        return NULL;
    memcpy(p, &bytes, sizeof bytes);
    memset((char *)p + NOTE, 0xff, bytes); /* nobody may count on zeros */
    atomic_fetch_add(&m->live, 1);
    atomic_fetch_add(&m->bytes, (long)bytes);
    return (char *)p + NOTE;
}

static void metered_free(void *user, void *p) {
    struct meter *m = user;
    size_t bytes;
    CHECK(p != NULL);
    memcpy(&bytes, (char *)p - NOTE, sizeof bytes);
    atomic_fetch_sub(&m->live, 1);
    atomic_fetch_sub(&m->bytes, (long)bytes);
    free((char *)p - NOTE);
}

/* ---- one rank's operands, small and without meaning ---- */

static ra_problem memory_problem(void) {
    ra_problem p;
    ra_problem_init(&p);
    p.B = 2;
    p.Sq = p.Skv = 14;
    p.H = 4;
    p.G = 2;
    p.D = 6;
    p.Dv = 5;
    p.threads = 1;
    p.backward = 1;
    p.mask.causal = 1;
    p.layout = RA_STRIPED;
    return p;
}

struct operands {
    void *x[8];
    float *lse;
    int32_t *ids;
    ra_attention_args args;
};

static struct operands operands_new(const ra_problem *p, int P, int r) {
    const int64_t T = ra_shard_size(p->layout, p->Sq, P, r);
    const int64_t heads[8] = {p->H, p->G, p->G, p->H, p->H, p->H, p->G, p->G},
                  width[8] = {p->D, p->D, p->Dv, p->Dv, p->Dv, p->D, p->D, p->Dv};
    struct operands o = {.lse = poisoned(p->B * T * p->H), .ids = calloc((size_t)(p->B * T + 1), sizeof *o.ids)};
    ra_tensor t[8];
    for (int i = 0; i < 8; i++) {
        const ra_dtype type = i > 4 ? RA_F32 : p->dtype;
        o.x[i] = calloc((size_t)(p->B * T * heads[i] * width[i] + 1), 4);
        t[i] = ra_tensor_bshd(o.x[i], type, T, heads[i], width[i]);
    }
    o.args =
        (ra_attention_args){.q = t[0], .k = t[1], .v = t[2], .dout = t[3], .out = t[4], .dq = t[5], .dk = t[6], .dv = t[7], .lse = o.lse};
    return o;
}

static void operands_free(struct operands *o) {
    for (int i = 0; i < 8; i++)
        free(o->x[i]);
    free(o->lse);
    free(o->ids);
}

/* ---- allocation failing at the k-th call ---- */

struct attempt {
    bool simple, segments;
    ra_dtype dtype;
};

static ra_status attempt_rank(ra_comm *comm, int r, void *user) {
    const struct attempt *a = user;
    ra_problem p = memory_problem();
    p.dtype = a->dtype;
    struct operands o = operands_new(&p, ra_comm_size(comm), r);
    if (a->segments)
        p.mask.q_segment_ids = p.mask.kv_segment_ids = o.ids;
    ra_plan *plan = NULL;
    ra_status s;
    if (a->simple) {
        o.args.lse = NULL; /* so that it must be allocated */
        s = ra_attention(comm, &p, &o.args);
    } else {
        s = ra_plan_create(comm, &p, &plan);
        if (s == RA_OK)
            s = ra_attention_forward(plan, &o.args, NULL);
        if (s == RA_OK)
            s = ra_attention_backward(plan, &o.args, NULL);
        ra_plan_destroy(plan);
    }
    CHECK(s == RA_OK || *ra_last_error());
    operands_free(&o);
    return s;
}

static ra_status attempt_self(const ra_comm_options *options, struct attempt *a) {
    ra_comm *comm;
    ra_status s = ra_comm_create_self(options, &comm);
    if (s == RA_OK) {
        s = attempt_rank(comm, 0, a);
        ra_comm_destroy(comm);
    }
    return s;
}

/* P = 0: a comm of one's own; else P local ranks. Fails the k-th allocation, for all k until there are no more. */
static void fail_every_allocation(int P, struct attempt a) {
    struct meter m = {.live = 0};
    const ra_allocator allocator = {metered_alloc, metered_free, &m};
    const ra_comm_options options = {.timeout_s = 20, .allocator = &allocator};
    const char *form = a.simple ? "simple" : "planned";
    int failures = 0;
    for (long k = 1;; k++) {
        atomic_store(&m.calls, 0);
        atomic_store(&m.fail_at, k);
        atomic_store(&m.failed, false);
        const double start = ra__now();
        const ra_status s = P ? ra_local_run(P, &options, NULL, attempt_rank, &a) : attempt_self(&options, &a);
        const bool failed = atomic_load(&m.failed);
        CHECK_MSG(s == (failed ? RA_ERR_MEMORY : RA_OK), "P %d, %s form, allocation %ld: %s (%s)", P, form, k, ra_status_name(s),
                  ra_last_error());
        CHECK_MSG(atomic_load(&m.live) == 0, "P %d, %s form, allocation %ld: %ld blocks are lost", P, form, k, atomic_load(&m.live));
        if (!CHECK_MSG(ra__now() - start < 10, "P %d, %s form, allocation %ld: %g s", P, form, k, ra__now() - start) || !failed)
            break;
        failures++;
    }
    CHECK_MSG(failures >= 5, "only %d allocations were made to fail", failures);
}

static void no_memory(void) {
    for (int variant = 0; variant < 8; variant++) {
        const struct attempt a = {.simple = variant & 1, .segments = variant & 2, .dtype = variant & 4 ? RA_F16 : RA_F32};
        fail_every_allocation(0, a);
        fail_every_allocation(3, a);
    }
}

/* ---- leaks, and what runs allocate ---- */

struct repeat {
    struct meter *meter;
    int calls;
    bool own_workspace;
};

static ra_status repeat_rank(ra_comm *comm, int r, void *user) {
    const struct repeat *t = user;
    const ra_problem p = memory_problem();
    struct operands o = operands_new(&p, ra_comm_size(comm), r);
    char token = 0, tokens[8];
    ra_plan *plan = NULL;
    if (!CHECK_OK(ra_plan_create(comm, &p, &plan)))
        return RA_ERR_INTERNAL;
    const size_t bytes = ra_plan_workspace_bytes(plan);
    void *workspace = t->own_workspace ? aligned_alloc(64, bytes) : NULL;
    long live = 0, calls = 0;
    for (int i = 0; i < t->calls; i++) {
        CHECK_OK(ra_attention_forward(plan, &o.args, workspace));
        CHECK_OK(ra_attention_backward(plan, &o.args, workspace));
        if (i > 0 && i < t->calls - 1)
            continue;
        CHECK_OK(ra_comm_allgather(comm, &token, tokens, 1)); /* all ranks have finished the call, none has begun another */
        if (i == 0) {
            live = atomic_load(&t->meter->live);
            calls = atomic_load(&t->meter->calls);
        } else {
            CHECK_EQ_INT(atomic_load(&t->meter->live), live);
            if (t->own_workspace)
                CHECK_EQ_INT(atomic_load(&t->meter->calls), calls);
            else
                CHECK(atomic_load(&t->meter->calls) >= calls + 2 * (t->calls - 1)); /* the meter counts */
        }
        CHECK_OK(ra_comm_allgather(comm, &token, tokens, 1));
    }
    free(workspace);
    ra_plan_destroy(plan);
    operands_free(&o);
    return RA_OK;
}

static void a_thousand_calls(void) {
    for (int P = 1; P <= 3; P += 2)
        for (int own = 0; own < 2; own++) {
            struct meter m = {.live = 0};
            const ra_allocator allocator = {metered_alloc, metered_free, &m};
            const ra_comm_options options = {.timeout_s = 20, .allocator = &allocator};
            struct repeat t = {&m, small() ? 200 : 1000, own};
            CHECK_OK(ra_local_run(P, &options, NULL, repeat_rank, &t));
            CHECK_EQ_INT(atomic_load(&m.live), 0);
        }
}

static void plans_leak_nothing(void) {
    struct meter m = {.live = 0};
    const ra_allocator allocator = {metered_alloc, metered_free, &m};
    const ra_comm_options options = {.allocator = &allocator};
    ra_comm *comm;
    if (!CHECK_OK(ra_comm_create_self(&options, &comm)))
        return;
    const long live = atomic_load(&m.live);
    ra_problem p = memory_problem();
    for (int i = 0; i < 100; i++) {
        ra_plan *plan;
        p.D = i % 3; /* every third is refused */
        if (ra_plan_create(comm, &p, &plan) == RA_OK)
            ra_plan_destroy(plan);
        CHECK_EQ_INT(atomic_load(&m.live), live);
    }
    CHECK(atomic_load(&m.calls) > 200);
    ra_comm_destroy(comm);
    CHECK_EQ_INT(atomic_load(&m.live), 0);
}

/* ---- what a plan says it holds ---- */

struct weighing {
    struct meter *meter;
    int variant;
    atomic_long told;
};

/* Every array that a plan may have, in every combination of its kinds of masks and modifiers. */
static ra_status weigh_rank(ra_comm *comm, int r, void *user) {
    static const int64_t slices[] = {0, 40, 0, 60, RA_SLICE_FULL, 20, 61, 20, 61, RA_SLICE_CAUSAL, 5, 7, 60, 61, RA_SLICE_FULL};
    static const int32_t offsets[] = {0, 13, 13, 40, 59}, lens[] = {61, 50};
    static const float slopes[] = {1, 0.5f, 0.25f, 0.125f};
    struct weighing *w = user;
    const int v = w->variant, P = ra_comm_size(comm);
    ra_problem p = memory_problem();
    char token = 0, tokens[8];
    int32_t ids[2 * 61];
    p.Sq = p.Skv = 61;
    p.layout = (ra_layout)(v % 3);
    p.backward = v & 1;
    p.dropout = v & 2 ? 0.5 : 0;
    p.alibi_slopes = v & 4 ? slopes : NULL;
    p.mask.kv_lens = v & 8 ? lens : NULL;
    p.mask.slices = v & 16 ? slices : NULL;
    p.mask.slice_count = v & 16 ? 3 : 0;
    p.mask.window_left = v & 32 ? 9 : -1;
    p.mask.keep_first = v & 32 ? 3 : 0;
    p.mask.cu_seqlens_q = p.mask.cu_seqlens_kv = v & 64 ? offsets : NULL;
    p.mask.sequences = v & 64 ? 4 : 0;
    for (int i = 0; i < 2 * 61; i++)
        ids[i] = i % 61 / 9;
    p.mask.q_segment_ids = p.mask.kv_segment_ids = v & 128 ? ids : NULL;
    CHECK_OK(ra_comm_allgather(comm, &token, tokens, 1));
    const long before = atomic_load(&w->meter->bytes);
    CHECK_OK(ra_comm_allgather(comm, &token, tokens, 1));
    ra_plan *plan;
    const ra_status s = ra_plan_create(comm, &p, &plan);
    if (!CHECK_OK(s))
        return s;
    ra_plan_info info;
    char text[8192], memory[120];
    ra_plan_query(plan, &info);
    atomic_fetch_add(&w->told, (long)info.plan_bytes);
    CHECK_OK(ra_comm_allgather(comm, &token, tokens, 1));
    const long held = atomic_load(&w->meter->bytes) - before;
    if (r == 0)
        CHECK_MSG(held == atomic_load(&w->told), "variant %d, %d ranks: the plans hold %ld bytes and say %ld", v, P, held,
                  atomic_load(&w->told));
    ra_plan_print(plan, text, sizeof text);
    snprintf(memory, sizeof memory, "memory     %lld bytes: workspace %lld, plan %lld\n",
             (long long)(info.workspace_bytes + info.plan_bytes), (long long)info.workspace_bytes, (long long)info.plan_bytes);
    CHECK_MSG(strstr(text, memory) != NULL, "%s is not in %s", memory, text);
    CHECK_OK(ra_comm_allgather(comm, &token, tokens, 1));
    ra_plan_destroy(plan);
    return RA_OK;
}

static void plans_know_their_memory(void) {
    for (int variant = 0; variant < 256; variant++)
        for (int P = 1; P <= 4; P++) {
            struct meter m = {.live = 0};
            const ra_allocator allocator = {metered_alloc, metered_free, &m};
            const ra_comm_options options = {.timeout_s = 20, .allocator = &allocator};
            struct weighing w = {.meter = &m, .variant = variant};
            CHECK_OK(ra_local_run(P, &options, NULL, weigh_rank, &w));
            CHECK_EQ_INT(atomic_load(&m.bytes), 0);
        }
}

/* ---- workspaces ---- */

/* Runs in a workspace of exactly the stated size, a page that must not be touched right behind it. */
static ra_status exact_workspace(ra_comm *comm, int r, void *user) {
    ra_problem p = memory_problem();
    const int variant = *(const int *)user;
    p.Sq = p.Skv = 30 + 17 * variant;
    p.layout = (ra_layout)(variant % 3);
    p.dtype = (ra_dtype)(variant / 2 % 3);
    p.D = 1 + 13 * (variant % 7);
    p.Dv = 1 + 7 * (variant % 11);
    p.q_chunk = variant % 4 ? 8 * variant : 0;
    p.k_chunk = variant % 5 ? 3 * variant : 0;
    p.threads = 1 + variant % 3;
    struct operands o = operands_new(&p, ra_comm_size(comm), r);
    ra_plan *plan;
    ra_status s = ra_plan_create(comm, &p, &plan);
    if (s == RA_OK) {
        const size_t page = 4096, bytes = ra_plan_workspace_bytes(plan), room = (bytes + page - 1) / page * page;
        char *map = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(map != MAP_FAILED && mprotect(map + room, page, PROT_NONE) == 0 && bytes % 64 == 0);
        memset(map, 0xff, room);
        s = ra_attention_forward(plan, &o.args, map + room - bytes);
        if (s == RA_OK)
            s = ra_attention_backward(plan, &o.args, map + room - bytes);
        for (size_t i = 0; i < room - bytes; i++)
            CHECK((unsigned char)map[i] == 0xff);
        munmap(map, room + page);
    }
    const int64_t n = p.B * ra_shard_size(p.layout, p.Sq, ra_comm_size(comm), r) * p.H * p.D;
    for (int64_t i = 0; i < n; i++)
        CHECK(((float *)o.x[5])[i] == 0); /* dq of zeros is zero; NaN from the workspace would show */
    ra_plan_destroy(plan);
    operands_free(&o);
    return s;
}

static void workspaces_are_large_enough(void) {
    for (int variant = 0; variant < (small() ? 8 : 40); variant++)
        for (int P = 1; P <= 3; P++)
            CHECK_OK(ra_local_run(P, NULL, NULL, exact_workspace, &variant));
}

struct sizes {
    ra_problem p;
    int64_t bytes; /* the largest of any rank */
    atomic_flag lock;
};

static ra_status plan_size(ra_comm *comm, int r, void *user) {
    struct sizes *s = user;
    ra_plan *plan;
    (void)r;
    ra_status status = ra_plan_create(comm, &s->p, &plan);
    if (status != RA_OK)
        return status;
    const int64_t bytes = (int64_t)ra_plan_workspace_bytes(plan);
    while (atomic_flag_test_and_set(&s->lock))
        ra__yield();
    s->bytes = bytes > s->bytes ? bytes : s->bytes;
    atomic_flag_clear(&s->lock);
    ra_plan_destroy(plan);
    return RA_OK;
}

static double workspace_of(int P, int64_t T, int variant) {
    struct sizes s = {.lock = ATOMIC_FLAG_INIT};
    ra_problem_init(&s.p);
    s.p.Sq = s.p.Skv = T * P;
    s.p.H = 4;
    s.p.G = 2;
    s.p.D = s.p.Dv = 64;
    s.p.threads = 2;
    s.p.layout = (ra_layout)(variant % 3);
    s.p.backward = variant / 3 % 2;
    s.p.mask.causal = variant / 6 % 2;
    s.p.dtype = variant / 12 ? RA_BF16 : RA_F32;
    CHECK_OK(ra_local_run(P, NULL, NULL, plan_size, &s));
    return (double)s.bytes;
}

/* a + b S/P: the same for any number of ranks, less for two, where no sum goes on, and a straight line in the tokens of a rank. */
static void workspaces_do_not_grow_with_ranks(void) {
    for (int variant = 0; variant < 24; variant++) {
        double before = workspace_of(4, 512, variant);
        CHECK(workspace_of(2, 512, variant) < 1.05 * before);
        for (int P = 8; P <= 32; P *= 2) {
            const double now = workspace_of(P, 512, variant);
            CHECK_MSG(fabs(now - before) < 0.05 * before, "variant %d: %g bytes on %d ranks, %g on %d", variant, before, P / 2, now, P);
            before = now;
        }
        const double w[3] = {workspace_of(4, 512, variant), workspace_of(4, 1024, variant), workspace_of(4, 1536, variant)};
        CHECK_MSG(w[1] > 1.2 * w[0] && fabs(w[2] - w[1] - (w[1] - w[0])) < 0.05 * w[0], "variant %d: %g, %g, %g bytes for 512, 1024, 1536",
                  variant, w[0], w[1], w[2]);
    }
}

int main(void) {
    RUN(no_memory);
    RUN(a_thousand_calls);
    RUN(plans_leak_nothing);
    RUN(plans_know_their_memory);
    RUN(workspaces_are_large_enough);
    RUN(workspaces_do_not_grow_with_ranks);
    return check_result();
}
