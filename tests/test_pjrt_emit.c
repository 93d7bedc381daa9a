/* The programs that are emitted for PJRT, as text and as data, without a plugin: their form, their exchanges, what masks become, what is
 * refused. Golden texts lie in tests/golden_pjrt; after a change that is meant, RA_PJRT_GOLDEN_UPDATE=1 writes them anew. */
#define _DEFAULT_SOURCE
#include <ctype.h>

#include "pjrt_checks.h"

/* ---- an allocator that counts and fails ---- */

struct meter {
    long live, calls, fail_at;
};

static void *metered_alloc(void *user, size_t bytes, size_t align) {
    struct meter *m = user;
    void *p = NULL;
    if (++m->calls == m->fail_at || posix_memalign(&p, align < sizeof p ? sizeof p : align, bytes) != 0)
        return NULL;
    memset(p, 0xff, bytes);
    m->live++;
    return p;
}

static void metered_free(void *user, void *p) {
    ((struct meter *)user)->live--;
    free(p);
}

/* ---- programs ---- */

static struct ra__pjrt_program small_program(int P, bool backward) {
    ra_problem p;
    struct ra__pjrt_program program;
    ra_problem_init(&p);
    p.B = 2;
    p.Sq = p.Skv = 16 * P;
    p.H = 4;
    p.G = 2;
    p.D = 8;
    p.Dv = 4;
    p.q_chunk = p.k_chunk = 8;
    p.backward = backward;
    ra__pjrt_describe(&p, P, &program);
    return program;
}

/* One that has everything. */
static struct ra__pjrt_program full_program(int P, bool backward) {
    struct ra__pjrt_program program = small_program(P, backward);
    program.dtype = RA_BF16;
    program.dout_dtype = RA_F32;
    program.spans = 2;
    program.softcap = 3;
    program.dropout = 0.25;
    program.segments = program.kv_lens = program.alibi = program.temperature = program.sinks = program.bias = true;
    program.row_max = program.dlse = program.dbias = true;
    return program;
}

static char *emit(const struct ra__pjrt_program *program) {
    const ra_allocator memory = ra__allocator_or_default(NULL);
    char *text = NULL;
    size_t length = 0;
    if (!CHECK_OK(ra__pjrt_emit(program, &memory, &text, &length)))
        return calloc(1, 1);
    CHECK_EQ_INT(strlen(text), length);
    return text; /* the default allocator's memory is free's */
}

static int count(const char *text, const char *what) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++)
        n++;
    return n;
}

/* ---- descriptions ---- */

static void sizes(void) {
    ra_problem p;
    struct ra__pjrt_program program;
    ra_problem_init(&p);
    p.Sq = 1000;
    p.Skv = 7;
    p.D = 16;
    p.Dv = 4;
    p.H = 6;
    p.G = 2;
    ra__pjrt_describe(&p, 3, &program);
    CHECK(program.P == 3 && program.steps == 3 && program.step[2] == 2 && program.R == 3 && program.scale == 0.25);
    CHECK(program.bq == 128 && program.Tq == 384); /* the longest shard has 334 */
    CHECK(program.bk == 8 && program.Tkv == 8);
    p.layout = RA_ZIGZAG;
    p.q_chunk = 100;
    p.k_chunk = 100;
    p.scale = 3;
    ra__pjrt_describe(&p, 3, &program);
    CHECK(program.bq == 100 && program.Tq == 400 && program.bk == 8 && program.Tkv == 8 && program.scale == 3);
    p.Skv = 0;
    ra__pjrt_describe(&p, 3, &program);
    CHECK(program.Tkv == 8 && program.bk == 8); /* filled up altogether */
}

/* ---- golden texts ---- */

static void check_golden(const char *name, const struct ra__pjrt_program *program) {
    const char *folder = getenv("RA_PJRT_GOLDEN_DIR");
    char path[512];
    char *text = emit(program);
    const size_t length = strlen(text);
    if (!CHECK_MSG(folder, "RA_PJRT_GOLDEN_DIR is not set")) {
        free(text);
        return;
    }
    snprintf(path, sizeof path, "%s/%s.mlir", folder, name);
    if (getenv("RA_PJRT_GOLDEN_UPDATE")) {
        FILE *f = fopen(path, "wb");
        CHECK_MSG(f && fwrite(text, 1, length, f) == length && fclose(f) == 0, "%s: not written", path);
    }
    FILE *f = fopen(path, "rb");
    if (CHECK_MSG(f, "%s: missing", path)) {
        char *golden = calloc(length + 2, 1);
        const size_t n = fread(golden, 1, length + 1, f);
        size_t at = 0;
        while (at < n && at < length && golden[at] == text[at])
            at++;
        int line = 1;
        for (size_t i = 0; i < at; i++)
            line += text[i] == '\n';
        CHECK_MSG(n == length && at == length, "%s: line %d is another; RA_PJRT_GOLDEN_UPDATE=1 takes what is emitted now", path, line);
        free(golden);
        fclose(f);
    }
    free(text);
}

static void golden_texts(void) {
    const struct ra__pjrt_program forward = small_program(2, false), backward = small_program(2, true);
    check_golden("forward", &forward);
    check_golden("backward", &backward);
}

/* ---- form ---- */

/* Values are used behind their definition and inside the region that it stands in, and everything opened is closed. */
static void check_form(const char *text, const char *name) {
    enum { MOST = 20000 };
    static int depth_of[MOST];
    memset(depth_of, 0, sizeof depth_of);
    int depth = 0, round = 0, last = 0, result_of_line = 0, depth_of_line = 0;
    for (const char *at = text; *at; at++) {
        round += (*at == '(') - (*at == ')');
        if (*at == '\n') { /* an operation's result is known behind it */
            depth_of[result_of_line] = depth_of_line;
            result_of_line = 0;
        }
        if (*at == '{')
            depth++;
        if (*at == '}') {
            for (int i = 1; i <= last; i++)
                depth_of[i] = depth_of[i] >= depth ? 0 : depth_of[i];
            depth--;
        }
        if (*at != '%')
            continue;
        char *end;
        const int id = (int)strtol(at + 1, &end, 10);
        if (!CHECK(id > 0 && id < MOST))
            return;
        const bool of_loop = strncmp(end, " = %", 4) == 0;
        const bool parameter = (at[-1] == '(' || at[-1] == ' ') && (of_loop || strncmp(end, ": tensor", 8) == 0);
        const bool result = !parameter && (strncmp(end, " = ", 3) == 0 || (*end == ':' && isdigit((unsigned char)end[1])));
        if (result || parameter) {
            CHECK_MSG(depth_of[id] == 0, "%s: %%%d is defined twice", name, id);
            last = id > last ? id : last;
        }
        if (result) {
            result_of_line = id;
            depth_of_line = depth;
        } else if (parameter) { /* of a function: known inside it; of a loop: in its regions, whose braces close one after the other */
            depth_of[id] = of_loop ? depth : depth + 1;
        } else if (!CHECK_MSG(depth_of[id] > 0, "%s: %%%d is not defined where it is used", name, id)) {
            return;
        }
    }
    CHECK_MSG(depth == 0 && round == 0, "%s: something is left open", name);
}

static void forms(void) {
    for (int P = 1; P <= 5; P++)
        for (int backward = 0; backward < 2; backward++)
            for (int full = 0; full < 2; full++)
                for (int unrolled = 1; unrolled < 8; unrolled += 6) {
                    struct ra__pjrt_program program = full ? full_program(P, backward) : small_program(P, backward);
                    char *text, name[64];
                    program.unrolled = unrolled;
                    text = emit(&program);
                    snprintf(name, sizeof name, "P %d, %s, %s", P, backward ? "backward" : "forward", full ? "everything" : "nothing");
                    check_form(text, name);
                    CHECK_MSG(!strstr(text, "E+") && !strstr(text, "inf") && !strstr(text, "nan"), "%s: a number in decimals", name);
                    CHECK_EQ_INT(count(text, "optimization_barrier"), P > unrolled ? 0 : P - 1);
                    free(text);
                }
}

static void precision(void) {
    struct ra__pjrt_program program = small_program(2, true);
    char *text = emit(&program);
    CHECK(count(text, "dot_general") > 0);
    CHECK_EQ_INT(count(text, "precision = [HIGHEST, HIGHEST]"), count(text, "dot_general"));
    free(text);
    program.dtype = program.dout_dtype = RA_BF16;
    text = emit(&program);
    CHECK(count(text, "dot_general") > 0 && count(text, "HIGHEST") == 0);
    free(text);
    program.dtype = program.dout_dtype = RA_F16; /* widened tile by tile */
    text = emit(&program);
    CHECK_EQ_INT(count(text, "precision = [HIGHEST, HIGHEST]"), count(text, "dot_general"));
    free(text);
}

/* ---- exchanges ---- */

/* The distances of all permutes in the order of the text; each must send from every device to another one. */
static int distances(const char *text, int P, int *distance, int most) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, "source_target_pairs = dense<["));) {
        at += strlen("source_target_pairs = dense<[");
        for (int r = 0; r < P; r++) {
            int from = -1, to = -1, used = 0;
            if (!CHECK(sscanf(at, "[%d, %d]%n", &from, &to, &used) == 2) || !CHECK(n < most))
                return n;
            CHECK_EQ_INT(from, r);
            if (r == 0)
                distance[n] = to;
            CHECK_EQ_INT(to, (r + distance[n]) % P);
            at += used + 2;
        }
        n++;
    }
    return n;
}

static void exchanges(void) {
    static int distance[1024];
    for (int P = 1; P <= 64; P++)
        for (int backward = 0; backward < 2; backward++) {
            const struct ra__pjrt_program program = small_program(P, backward);
            char *text = emit(&program);
            const int n = distances(text, P, distance, 1024), hops = P - 1;
            if (P > RA__PJRT_UNROLLED) /* once in the loop; the last step and the way home stand behind it */
                CHECK_EQ_INT(n, backward ? 3 + 2 + 2 + 2 : 3);
            else
                CHECK_EQ_INT(n, backward ? 5 * hops + 2 * (P > 1) : 3 * hops);
            if (backward && P > 1) {
                CHECK_EQ_INT(distance[n - 1], 1); /* P - 1 hops away from home */
                CHECK_EQ_INT(distance[n - 2], 1);
            }
            free(text);
        }
}

/* A ring that leaves out steps in which nobody computes: every block is met where it is said to be, and its gradients come home. */
static void leaps(void) {
    static int distance[64];
    struct ra__pjrt_program program = small_program(8, true);
    program.steps = 3;
    program.step[1] = 3;
    program.step[2] = 4;
    char *text = emit(&program);
    static const int expected[] = {3, 3, 3, 1, 1, 1, 3, 3, 1, 1, 4, 4}; /* k, v, index; then also dk, dv of the step before; home */
    if (CHECK_EQ_INT(distances(text, 8, distance, 64), 12))
        for (int i = 0; i < 12; i++)
            CHECK_EQ_INT(distance[i], expected[i]);
    CHECK_EQ_INT(count(text, "func.call @step"), 3);
    free(text);
}

/* Which steps the schedule leaves. */
static void check_steps(const ra_problem *p, int P, int steps, const int *expected) {
    struct whole w = {.P = P, .p = *p};
    struct pjrt_whole x;
    if (CHECK_OK(pjrt_whole_make(&x, &w)) && CHECK_EQ_INT(x.program.steps, steps))
        for (int n = 0; n < steps; n++)
            CHECK_EQ_INT(x.program.step[n], expected[n]);
    pjrt_whole_free(&x);
}

static void steps_of_the_schedule(void) {
    static const int all[] = {0, 1, 2, 3, 4, 5, 6, 7}, far[] = {0, 3};
    static const int64_t slices[] = {0, 64, 0, 8, RA_SLICE_FULL};
    int64_t apart[8][5];
    ra_problem p;
    ra_problem_init(&p);
    p.Sq = p.Skv = 64;
    p.D = p.Dv = 4;
    check_steps(&p, 8, 8, all);
    p.mask.causal = 1;
    check_steps(&p, 8, 8, all);
    p.mask.window_left = 8; /* the block before */
    check_steps(&p, 8, 2, all);
    p.mask.window_left = 0;
    check_steps(&p, 8, 1, all);
    p.mask = (ra_mask){.window_left = -1, .window_right = -1, .slices = slices, .slice_count = 1};
    check_steps(&p, 8, 8, all);
    for (int64_t r = 0; r < 8; r++) { /* rank r's queries see the keys of r - 3 alone */
        const int64_t b = (r + 5) % 8, row[5] = {8 * r, 8 * r + 8, 8 * b, 8 * b + 8, RA_SLICE_FULL};
        memcpy(apart[r], row, sizeof row);
    }
    p.mask.slices = apart[0];
    p.mask.slice_count = 8;
    check_steps(&p, 8, 2, far);
}

/* ---- faults ---- */

static void no_memory(void) {
    const struct ra__pjrt_program program = full_program(4, true);
    char *whole = emit(&program);
    bool done = false;
    for (long k = 1; !done && k < 100; k++) {
        struct meter m = {.fail_at = k};
        const ra_allocator memory = {metered_alloc, metered_free, &m};
        char *text = NULL;
        size_t length = 0;
        const ra_status s = ra__pjrt_emit(&program, &memory, &text, &length);
        done = s == RA_OK;
        if (done) {
            CHECK(k > 3 && m.calls == k - 1 && m.live == 1 && strcmp(text, whole) == 0);
            ra__free(&memory, text);
        } else {
            CHECK_EQ_INT(s, RA_ERR_MEMORY);
            CHECK(text == NULL && length == 0);
        }
        CHECK_EQ_INT(m.live, 0);
    }
    CHECK(done);
    free(whole);
}

static void expect(struct ra__pjrt_program program, ra_status status, const char *why) {
    const ra_allocator memory = ra__allocator_or_default(NULL);
    char *text = NULL;
    size_t length = 0;
    CHECK_STATUS(ra__pjrt_emit(&program, &memory, &text, &length), status);
    CHECK_MSG(!text && strstr(ra_last_error(), why), "\"%s\" does not say \"%s\"", ra_last_error(), why);
}

static void contradictions(void) {
    const struct ra__pjrt_program good = small_program(4, true);
    struct ra__pjrt_program p = good;
    p.step[2] = 1;
    expect(p, RA_ERR_INVALID, "ascend");
    p = good;
    p.step[3] = 4;
    expect(p, RA_ERR_INVALID, "ascend");
    p = good;
    p.P = RA__PJRT_DEVICES + 1;
    expect(p, RA_ERR_INVALID, "513 devices");
    p = good;
    p.steps = 5;
    expect(p, RA_ERR_INVALID, "5 steps");
    p = good;
    p.bq = 7;
    expect(p, RA_ERR_INVALID, "tiles of 7");
    p = good;
    p.Dv = 0;
    expect(p, RA_ERR_INVALID, "positive");
    p = good;
    p.scale = NAN;
    expect(p, RA_ERR_INVALID, "scale");
    p = good;
    p.spans = RA__PJRT_SPANS + 1;
    expect(p, RA_ERR_INVALID, "17 spans");
    p = good;
    p.Tkv = (int64_t)1 << 29; /* times 4 devices */
    expect(p, RA_ERR_OVERFLOW, "32 bits");
    p = good;
    p.B = (int64_t)1 << 62;
    expect(p, RA_ERR_OVERFLOW, "does not fit in 64 bits");
}

static void check_refused(const ra_problem *p, int P, const char *why) {
    CHECK_STATUS(ra__pjrt_unsupported(p, P), RA_ERR_UNSUPPORTED);
    CHECK_MSG(strstr(ra_last_error(), why), "\"%s\" does not say \"%s\"", ra_last_error(), why);
}

static void refused(void) {
    static int64_t slices[64][5];
    ra_problem good, p;
    ra_problem_init(&good);
    good.Sq = good.Skv = 64;
    good.D = good.Dv = 4;
    CHECK_OK(ra__pjrt_unsupported(&good, RA__PJRT_DEVICES));
    check_refused(&good, RA__PJRT_DEVICES + 1, "513 devices");
    p = good;
    p.Skv = (int64_t)1 << 29;
    check_refused(&p, 4, "536870912 keys");
    p.Skv--;
    CHECK_OK(ra__pjrt_unsupported(&p, 4));
    p = good;
    p.dropout = 0.5;
    p.B = (int64_t)1 << 32;
    check_refused(&p, 4, "2^32 heads");
    for (int i = 0; i < 64; i++) { /* alternate keys, to 15 slices over each query, then to 16 over one */
        const int64_t row[5] = {i / 15, i / 15 + 1, 2 * (i % 15), 2 * (i % 15) + 1, RA_SLICE_FULL};
        memcpy(slices[i], row, sizeof row);
    }
    p = good;
    p.mask.slices = slices[0];
    p.mask.slice_count = 45;
    CHECK_OK(ra__pjrt_unsupported(&p, 4));
    slices[45][0] = 2;
    slices[45][1] = 3;
    slices[45][2] = 40;
    slices[45][3] = 41;
    p.mask.slice_count = 46;
    check_refused(&p, 4, "16 cover one query");
}

/* ---- masks as data ---- */

/* Does the arrays' query t of device r see row k of the block of device c? */
static bool arrays_see(const struct pjrt_whole *x, const int32_t *q_ids, int r, int c, int64_t b, int64_t t, int64_t k) {
    const struct ra__pjrt_program *p = &x->program;
    const int32_t position = x->index[c][k];
    bool inside = false;
    for (int n = 0; n < p->spans; n++)
        inside = inside || (position >= x->spans[r][2 * n * p->Tq + t] && position < x->spans[r][(2 * n + 1) * p->Tq + t]);
    if (p->segments && q_ids[b * ra_shard_size(x->w->p.layout, x->w->p.Sq, p->P, r) + t] != x->index[c][(1 + b) * p->Tkv + k])
        return false;
    return inside && (!p->kv_lens || position < x->w->p.mask.kv_lens[b]);
}

/* Every pair is seen as the reference sees it, by its two devices' arrays; what fills up is seen by nobody and sees nothing. */
static void check_mask(const struct pjrt_whole *x) {
    const ra_problem *p = &x->w->p;
    const int P = x->program.P;
    long wrong = 0;
    for (int r = 0; r < P; r++) {
        const int64_t T = ra_shard_size(p->layout, p->Sq, P, r);
        int32_t *ids = x->w->q_ids ? ids_of(x->w, r, p->Sq, x->w->q_ids) : NULL;
        for (int c = 0; c < P; c++) {
            const int64_t Tk = ra_shard_size(p->layout, p->Skv, P, c);
            for (int64_t t = 0; t < x->program.Tq; t++)
                for (int64_t k = 0; k < x->program.Tkv; k++)
                    for (int64_t b = 0; b < p->B; b++) {
                        const bool real = t < T && k < Tk;
                        const bool want = real && oracle_sees(p, NULL, b, 0, ra_shard_position(p->layout, p->Sq, P, r, t),
                                                              ra_shard_position(p->layout, p->Skv, P, c, k));
                        wrong += (real || b == 0) && want != (t < T && arrays_see(x, ids, r, c, b, t, k));
                    }
        }
        for (int64_t t = T; t < x->program.Tq; t++)
            for (int n = 0; n < x->program.spans; n++)
                wrong += x->spans[r][2 * n * x->program.Tq + t] < x->spans[r][(2 * n + 1) * x->program.Tq + t];
        free(ids);
    }
    CHECK_EQ_INT(wrong, 0);
}

static void masks(void) {
    static const int ranks[] = {1, 2, 4, 5, 8};
    for (int trial = 0; trial < (getenv("RA_TEST_SMALL") ? 10 : 40); trial++) {
        struct mask_arrays arrays;
        struct whole w = draw_trial(trial, ranks[trial % 5], &arrays);
        struct pjrt_whole x;
        CHECK_OK(ra__pjrt_unsupported(&w.p, w.P));
        if (CHECK_OK(pjrt_whole_make(&x, &w)))
            check_mask(&x);
        pjrt_whole_free(&x);
        whole_free(&w);
    }
}

/* ---- inputs and outputs ---- */

/* Is called in a plugin's stead: what it is handed is complete, and what it returns arrives where it belongs. */
static ra_status pretend(void *user, const struct pjrt_job *job) {
    int *calls = user;
    ++*calls;
    CHECK_EQ_INT(count(job->text, "@main"), 1);
    const char *main = strstr(job->text, "@main("), *end = strstr(main, ") -> (");
    const char *line = strchr(main, '\n');
    for (const char *list = main; list && list < line; list = list == main ? end : line) {
        const int want = list == main ? job->inputs : job->outputs;
        int n = 0;
        for (const char *at = strstr(list, "tensor<"); at && at < (list == main ? end : line); at = strstr(at + 1, "tensor<"))
            n++;
        CHECK_EQ_INT(n, want);
    }
    for (int r = 0; r < job->program->P; r++)
        for (int i = 0; i < job->outputs; i++) {
            float *x = job->out[r * job->outputs + i];
            for (int64_t k = 0; k < ra__hlo_elements(job->output[i].type); k++)
                x[k] = (float)(i + 1);
        }
    return RA_OK;
}

static void arrays(void) {
    for (int trial = 0; trial < 12; trial++) {
        struct pjrt_trial x;
        int calls = 0;
        pjrt_draw(&x, trial, 1 + trial % 5);
        if (CHECK_OK(pjrt_whole_run(&x.w, 0, pretend, &calls))) {
            CHECK_EQ_INT(calls, 2);
            const ra_problem *p = &x.w.p;
            for (int64_t i = 0; i < q_numel(p, p->Dv); i++)
                CHECK(x.w.out[i] == 1);
            for (int64_t i = 0; i < q_numel(p, 1); i++)
                CHECK(x.w.lse[i] == 2 && x.w.row_max[i] == 3);
            for (int64_t i = 0; i < kv_numel(p, p->Dv); i++)
                CHECK(x.w.dv[i] == 3);
        }
        whole_free(&x.w);
    }
}

int main(void) {
    RUN(sizes);
    RUN(golden_texts);
    RUN(forms);
    RUN(precision);
    RUN(exchanges);
    RUN(leaps);
    RUN(steps_of_the_schedule);
    RUN(no_memory);
    RUN(contradictions);
    RUN(refused);
    RUN(masks);
    RUN(arrays);
    return check_result();
}
