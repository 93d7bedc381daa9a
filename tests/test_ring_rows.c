/* Only the rows travel that are needed: under random masks a ring that sends bytes and one that passes references give the same bits, those
 * of the oracle up to rounding, and send what their plans say; for windows that is the least possible. */
#include "link/link.h"
#include "random_masks.h"

static bool small(void) {
    return getenv("RA_TEST_SMALL") != NULL;
}

/* A rank whose link cannot pass references. */
static ra_status rank_by_bytes(ra_comm *comm, int r, void *user) {
    comm->link.count = NULL;
    return whole_rank(comm, r, user);
}

/* Runs w both ways, and frees it. */
static void both_ways(struct whole *w, const char *name) {
    const ra_comm_options options = {.timeout_s = 30};
    if (CHECK_OK(ra_local_run(w->P, &options, NULL, rank_by_bytes, w))) {
        struct results bytes = results_of(w);
        CHECK_OK(whole_run(w));
        struct results references = results_of(w);
        CHECK_MSG(same_results(&bytes, &references), "%s: other bits by reference", name);
        whole_check(w, 1e-5, name);
        results_free(&bytes);
        results_free(&references);
    }
    whole_free(w);
}

static void random_masks(void) {
    for (int trial = 0; trial < (small() ? 150 : 1200); trial++) {
        struct mask_arrays arrays;
        struct whole w = draw_trial(trial, 1 + trial % 8, &arrays);
        char name[32];
        snprintf(name, sizeof name, "trial %d", trial);
        both_ways(&w, name);
    }
}

/* Every other rank sees everything, the others nothing or the very first key: with gaps between readers, sums would come home in more
 * pieces than there is memory for. */
static void every_other_rank(void) {
    enum { P = 8, T = 40 };
    for (int first_key = 0; first_key < 2; first_key++) {
        int64_t slices[P][5];
        struct whole w = {.P = P};
        ra_problem_init(&w.p);
        w.p.Sq = w.p.Skv = P * T;
        w.p.D = w.p.Dv = 8;
        w.p.H = 2;
        w.p.threads = 1;
        for (int r = 0; r < P; r++)
            memcpy(slices[r], (int64_t[5]){T * r, T * (r + 1), 0, r % 2 ? P * T : first_key, RA_SLICE_FULL}, sizeof slices[r]);
        if (!first_key) /* an empty slice is none */
            for (int r = 0; r < P / 2; r++)
                memcpy(slices[r], slices[2 * r + 1], sizeof slices[r]);
        w.p.mask.slices = slices[0];
        w.p.mask.slice_count = first_key ? P : P / 2;
        whole_make(&w, 0);
        both_ways(&w, "every other rank");
    }
}

/* ---- the least that can be sent ---- */

struct planned {
    ra_problem p;
    int64_t forward[8], backward[8], workspace[8];
    bool by_bytes;
};

static ra_status plan_only(ra_comm *comm, int r, void *user) {
    struct planned *x = user;
    ra_plan *plan;
    ra_plan_info info;
    if (x->by_bytes)
        comm->link.count = NULL;
    const ra_status s = ra_plan_create(comm, &x->p, &plan);
    if (s != RA_OK)
        return s;
    ra_plan_query(plan, &info);
    x->forward[r] = info.bytes_sent_forward;
    x->backward[r] = info.bytes_sent_backward;
    x->workspace[r] = info.workspace_bytes;
    ra_plan_destroy(plan);
    return RA_OK;
}

static struct planned new_plans(int64_t S, ra_layout layout) {
    struct planned x = {.by_bytes = true};
    ra_problem_init(&x.p);
    x.p.Sq = x.p.Skv = S;
    x.p.H = x.p.G = 4;
    x.p.D = x.p.Dv = 64;
    x.p.layout = layout;
    x.p.backward = 1;
    x.p.threads = 1;
    x.p.mask.causal = 1;
    return x;
}

/* Of how many chunks of the sequence the last rows are needed by another rank (step = 1), or of how many this rank needs the rows before
 * (step = -1). A rank has chunk r, in the zigzag layout of twice as many also the mirrored one. */
static int edges(ra_layout layout, int P, int r, int step) {
    const int chunks = layout == RA_ZIGZAG ? 2 * P : P, own[2] = {r, chunks - 1 - r};
    int count = 0;
    for (int i = 0; i < (layout == RA_ZIGZAG ? 2 : 1); i++) {
        const int other = own[i] + step;
        count += other >= 0 && other < chunks && !(layout == RA_ZIGZAG && (other == own[0] || other == own[1]));
    }
    return count;
}

static void windows_send_the_least(void) {
    enum { P = 8 };
    const int64_t S = small() ? 16384 : 65536;
    for (int64_t window = 1023; window <= 1024; window++)
        for (int layout = RA_CONTIGUOUS; layout <= RA_ZIGZAG; layout++) {
            struct planned x = new_plans(S, (ra_layout)layout);
            x.p.mask.window_left = small() ? window / 4 : window;
            CHECK_OK(ra_local_run(P, NULL, NULL, plan_only, &x));
            const int64_t rows = x.p.mask.window_left, bytes = rows * 4 * (64 + 64) * 4; /* of k and v, or their gradients */
            for (int r = 0; r < P; r++) {
                const int64_t out = edges((ra_layout)layout, P, r, 1) * bytes, back = edges((ra_layout)layout, P, r, -1) * bytes;
                CHECK_MSG(x.forward[r] >= out && (double)x.forward[r] <= 1.02 * (double)out, "layout %d rank %d sends %lld bytes of %lld",
                          layout, r, (long long)x.forward[r], (long long)out);
                CHECK_MSG(x.backward[r] >= out + back && (double)x.backward[r] <= 1.02 * (double)(out + back),
                          "layout %d rank %d sends %lld bytes of %lld in the backward", layout, r, (long long)x.backward[r],
                          (long long)(out + back));
            }
        }
}

/* A zigzag rank's late half is hidden from the ranks behind it: it is not sent through them. */
static void causal_zigzag_sends_halves(void) {
    enum { P = 8 };
    struct planned x = new_plans(1024, RA_ZIGZAG);
    CHECK_OK(ra_local_run(P, NULL, NULL, plan_only, &x));
    int64_t sum = 0;
    for (int r = 0; r < P; r++)
        sum += x.forward[r];
    const int64_t half = 64 * 4 * (64 + 64) * 4; /* early halves: 7 readers each; late ones: as many as there are ranks before */
    CHECK_EQ_INT(sum, (P * (P - 1) + P * (P - 1) / 2) * half);
}

/* Buffers are as large as what travels, on either kind of link. */
static void windows_save_memory(void) {
    for (int by_bytes = 0; by_bytes <= 1; by_bytes++)
        for (int layout = RA_CONTIGUOUS; layout <= RA_ZIGZAG; layout++) {
            struct planned full = new_plans(8192, (ra_layout)layout), window = full;
            full.by_bytes = window.by_bytes = by_bytes;
            window.p.mask.window_left = 64;
            CHECK_OK(ra_local_run(8, NULL, NULL, plan_only, &full));
            CHECK_OK(ra_local_run(8, NULL, NULL, plan_only, &window));
            for (int r = 1; r < 7; r++) { /* the other three or four buffers of a block's size are gone */
                const int64_t gradients = 1024 * 4 * (64 + 64) * 4;
                CHECK_MSG(window.workspace[r] < full.workspace[r] - 2 * gradients, "layout %d rank %d: %lld bytes, %lld without a window",
                          layout, r, (long long)window.workspace[r], (long long)full.workspace[r]);
            }
        }
}

int main(void) {
    RUN(random_masks);
    RUN(every_other_rank);
    RUN(windows_send_the_least);
    RUN(causal_zigzag_sends_halves);
    RUN(windows_save_memory);
    return check_result();
}
