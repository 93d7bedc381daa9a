/* The ring over MPI against the oracle, each process checking its own rows. Run under mpirun with any number of processes. */
#include "random_masks.h"
#include "ringattention_mpi.h"

/* Results start as the oracle's, so that a process's comparison of whole tensors is one of the rows it wrote. */
static void start_from(float *x, const double *reference, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)reference[i];
}

static void one(ra_comm *comm, struct whole *w, int document) {
    w->P = ra_comm_size(comm);
    random_state = 88172645463325252u; /* every process makes the same tensors */
    whole_make(w, document);
    oracle_result o = whole_oracle(w);
    start_from(w->out, o.out, q_numel(&w->p, w->p.Dv));
    start_from(w->lse, o.lse, q_numel(&w->p, 1));
    start_from(w->dq, o.dq, q_numel(&w->p, w->p.D));
    start_from(w->dk, o.dk, kv_numel(&w->p, w->p.D));
    start_from(w->dv, o.dv, kv_numel(&w->p, w->p.Dv));
    oracle_result_free(&o);
    if (CHECK_OK(whole_rank(comm, ra_comm_rank(comm), w)))
        whole_check(w, 1e-5, "mpi");
    whole_free(w);
}

static ra_comm *comm;

static void small_problems(void) {
    for (int layout = 0; layout < 3; layout++)
        for (int causal = 0; causal <= 1; causal++)
            for (int64_t S = 1; S <= 130; S = 3 * S + 1) {
                struct whole w = {0};
                ra_problem_init(&w.p);
                w.p.B = 2;
                w.p.Sq = w.p.Skv = S;
                w.p.H = 4;
                w.p.G = 2;
                w.p.D = 24;
                w.p.Dv = 16;
                w.p.layout = (ra_layout)layout;
                w.p.dtype = (ra_dtype)layout;
                w.p.mask.causal = causal;
                w.p.threads = 1;
                w.bhsd = causal;
                one(comm, &w, S > 20 ? 15 : 0);
            }
}

/* Blocks of several MB: rendezvous messages, progressed between tiles. */
static void large_blocks(void) {
    for (int layout = 0; layout < 2; layout++) {
        struct whole w = {0};
        ra_problem_init(&w.p);
        w.p.Sq = w.p.Skv = getenv("RA_TEST_SMALL") ? 500 : 1500;
        w.p.H = w.p.G = 8;
        w.p.D = w.p.Dv = 64;
        w.p.layout = (ra_layout)layout;
        w.p.mask.causal = 1;
        w.p.threads = 1;
        one(comm, &w, 0);
    }
}

/* The bits are those of a ring of threads, where references travel instead of rows. */
static void random_masks(void) {
    for (int trial = 0; trial < (getenv("RA_TEST_SMALL") ? 20 : 80); trial++) {
        struct mask_arrays arrays;
        struct whole w = draw_trial(trial, ra_comm_size(comm), &arrays);
        CHECK_OK(whole_run(&w));
        struct results local = results_of(&w);
        if (CHECK_OK(whole_rank(comm, ra_comm_rank(comm), &w))) { /* writes this process's rows anew */
            struct results mpi = results_of(&w);
            CHECK_MSG(same_results(&local, &mpi), "trial %d: other bits over MPI", trial);
            results_free(&mpi);
        }
        results_free(&local);
        whole_free(&w);
    }
}

static void mismatch(void) {
    if (ra_comm_size(comm) == 1)
        return;
    ra_problem p;
    ra_problem_init(&p);
    p.Sq = p.Skv = 16;
    p.D = ra_comm_rank(comm) == 1 ? 64 : 32;
    p.Dv = 8;
    ra_plan *plan = NULL;
    CHECK_STATUS(ra_plan_create(comm, &p, &plan), RA_ERR_MISMATCH);
    CHECK_MSG(strstr(ra_last_error(), "rank 1 passes D = 64"), "%s", ra_last_error());
    CHECK(plan == NULL);
}

int main(int argc, char **argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    ra_comm_options options = {.timeout_s = 60};
    if (!CHECK_OK(ra_comm_create_mpi(MPI_COMM_WORLD, &options, &comm)))
        MPI_Abort(MPI_COMM_WORLD, 1);
    RUN(small_problems);
    RUN(large_blocks);
    RUN(random_masks);
    RUN(mismatch);
    int result = check_result(), worst = 0;
    ra_comm_destroy(comm);
    MPI_Allreduce(&result, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Finalize();
    return worst;
}
