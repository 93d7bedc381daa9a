/* Causal attention over as many ranks as it is started with: ./attend, or mpirun -n 4 ./attend. */
#include <ringattention.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    enum { S = 4096, H = 8, D = 64 };
    ra_comm *comm;
    if (ra_comm_create_launched(NULL, &comm) != RA_OK)
        return fprintf(stderr, "%s\n", ra_last_error()), 1;
    ra_problem p;
    ra_problem_init(&p);
    p.Sq = p.Skv = S, p.H = p.G = H, p.D = p.Dv = D, p.layout = RA_ZIGZAG, p.mask.causal = 1;
    int P = ra_comm_size(comm), r = ra_comm_rank(comm);
    int64_t T = ra_shard_size(p.layout, S, P, r), n = T * H * D; /* this rank's tokens */
    float *q = calloc((size_t)n + 1, sizeof *q), *k = q, *v = calloc((size_t)n + 1, sizeof *v), *out = calloc((size_t)n + 1, sizeof *out);
    for (int64_t i = 0; i < n; i++) /* a value is its token's position; q = k = 0 weighs all visible keys alike: out[i] = i / 2 */
        v[i] = (float)ra_shard_position(p.layout, S, P, r, i / (H * D));
    ra_attention_args a = {.q = ra_tensor_bshd(q, RA_F32, T, H, D), .k = ra_tensor_bshd(k, RA_F32, T, H, D)};
    a.v = ra_tensor_bshd(v, RA_F32, T, H, D), a.out = ra_tensor_bshd(out, RA_F32, T, H, D);
    if (ra_attention(comm, &p, &a) != RA_OK)
        return fprintf(stderr, "rank %d: %s\n", r, ra_last_error()), 1;
    printf("rank %d of %d: %lld tokens, the last one's output is %g\n", r, P, (long long)T, out[n - 1]);
    ra_comm_destroy(comm);
    return free(q), free(v), free(out), 0;
}
