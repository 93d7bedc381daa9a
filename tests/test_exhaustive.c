/* Every small case: all lengths, rank counts and layouts against the oracle, forward and backward (cases 16, 17, 20, 31, 34, 42), and all
 * combinations of head sizes and group sizes (30, 55, 57, 59). */
#include "harness.h"

static bool small(void) {
    return getenv("RA_TEST_SMALL") != NULL;
}

static void every_length_and_rank_count(void) {
    for (int64_t S = 1; S <= 129; S += small() ? 8 : 1) {
        for (int causal = 0; causal <= 1; causal++) {
            struct whole w = {.P = 1};
            ra_problem_init(&w.p);
            w.p.Sq = w.p.Skv = S;
            w.p.H = 2;
            w.p.D = 5;
            w.p.Dv = 3;
            w.p.threads = 1;
            w.p.mask.causal = causal;
            whole_make(&w, 0);
            oracle_result o = whole_oracle(&w);
            for (w.P = 1; w.P <= 9; w.P++)
                for (int layout = 0; layout < 3; layout++) {
                    w.p.layout = (ra_layout)layout;
                    if (!CHECK_OK(whole_run(&w)))
                        return;
                    struct errors e = whole_errors(&w, &o);
                    CHECK_MSG(e.out < 3e-6 && e.lse < 3e-6 && e.dq < 5e-6 && e.dk < 5e-6 && e.dv < 5e-6,
                              "S %lld P %d layout %d causal %d: out %.2g lse %.2g dq %.2g dk %.2g dv %.2g", (long long)S, w.P, layout,
                              causal, e.out, e.lse, e.dq, e.dk, e.dv);
                }
            oracle_result_free(&o);
            whole_free(&w);
        }
    }
}

static void every_head_size(void) {
    static const int64_t sizes[] = {1, 2, 3, 5, 8, 16, 24, 40, 64, 80, 96, 128, 192, 256};
    enum { N = sizeof sizes / sizeof *sizes };
    for (int i = 0; i < N; i += small() ? 3 : 1)
        for (int j = 0; j < N; j += small() ? 3 : 1)
            for (int causal = 0; causal <= 1; causal++) {
                static const int64_t groups[] = {1, 2, 3, 8};
                struct whole w = {.P = 2, .bhsd = (i + j) % 2};
                ra_problem_init(&w.p);
                w.p.Sq = w.p.Skv = 37;
                w.p.G = 2;
                w.p.H = 2 * groups[(i + j + causal) % 4];
                w.p.D = sizes[i];
                w.p.Dv = sizes[j];
                w.p.layout = (ra_layout)((i + 2 * j) % 3);
                w.p.dtype = (ra_dtype)((2 * i + j) % 3);
                w.p.threads = 1;
                w.p.mask.causal = causal;
                whole_make(&w, 0);
                if (!CHECK_OK(whole_run(&w)))
                    return;
                whole_check(&w, 1e-5, "head sizes");
                whole_free(&w);
            }
}

int main(void) {
    RUN(every_length_and_rank_count);
    RUN(every_head_size);
    return check_result();
}
