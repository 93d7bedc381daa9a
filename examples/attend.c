/* Causal attention over a ring of 4 ranks, here threads of one process; each holds a quarter of the sequence. */
#include <ringattention.h>
#include <stdio.h>

enum { RANKS = 4, S = 1024, T = S / RANKS, H = 2, D = 64 };
static float q[RANKS][T][H][D], k[RANKS][T][H][D], v[RANKS][T][H][D], out[RANKS][T][H][D];

static ra_status body(ra_comm *comm, int rank, void *user) {
    (void)user;
    ra_problem p;
    ra_problem_init(&p);
    p.Sq = p.Skv = S, p.H = p.G = H, p.D = p.Dv = D, p.layout = RA_ZIGZAG, p.mask.causal = 1;
    ra_attention_args a = {.q = ra_tensor_bshd(q[rank], RA_F32, T, H, D), .k = ra_tensor_bshd(k[rank], RA_F32, T, H, D)};
    a.v = ra_tensor_bshd(v[rank], RA_F32, T, H, D), a.out = ra_tensor_bshd(out[rank], RA_F32, T, H, D);
    return ra_attention(comm, &p, &a);
}

int main(void) {
    for (int i = 0; i < S * H * D; i++) /* v = global position; q = k = 0: out[i] is the mean of 0..i */
        (&v[0][0][0][0])[i] = (float)ra_shard_position(RA_ZIGZAG, S, RANKS, i / (T * H * D), i / (H * D) % T);
    if (ra_local_run(RANKS, NULL, NULL, body, NULL) != RA_OK)
        return fprintf(stderr, "%s\n", ra_last_error()), 1;
    printf("out[%d] = %g\n", S - 1, out[0][T - 1][0][0]); /* rank 0 holds the first and the last eighth: (S - 1) / 2 = 511.5 */
    return 0;
}
