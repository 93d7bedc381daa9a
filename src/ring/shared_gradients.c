/* Gradients that belong to no key: of the sinks, and of a bias that all queries share. Each rank has its queries' part of them; the sums
 * are made in the order of the ranks, so that every rank has the same bits. */
#include <string.h>

#include "base/memory.h"
#include "ring/ring.h"

enum { SUMMED = 256 }; /* values that are summed at a time */

/* Workspace, byte offsets. */
struct map {
    int64_t sinks, values, all;
};

static int64_t layout(const struct ra__ring *ring, struct map *m) {
    struct ra__layout w = {0, false};
    m->sinks = ra__reserve(&w, ring->attn.H, sizeof(double));
    m->values = ra__reserve(&w, SUMMED, sizeof(double));
    m->all = ra__reserve(&w, (int64_t)ring->schedule.P * SUMMED, sizeof(double));
    return w.overflow ? -1 : w.total;
}

int64_t ra__shared_gradients_bytes(const struct ra__ring *ring) {
    struct map m;
    return layout(ring, &m);
}

double *ra__shared_gradients_sinks(const struct ra__ring *ring, char *workspace) {
    struct map m;
    layout(ring, &m);
    return (double *)(workspace + m.sinks);
}

/* x [n], n <= SUMMED: this rank's part -> the sum. Collective. */
static ra_status sum(const struct ra__ring *ring, double *x, int64_t n, double *all) {
    const int P = ring->schedule.P;
    RA__TRY(ra_comm_allgather(ring->comm, x, all, (size_t)n * sizeof *x));
    for (int64_t i = 0; i < n; i++) {
        x[i] = 0;
        for (int r = 0; r < P; r++)
            x[i] += all[r * n + i];
    }
    return RA_OK;
}

static ra_status finish_sinks(const struct ra__ring *ring, float *dsinks, double *parts, double *all) {
    const int64_t H = ring->attn.H;
    for (int64_t h = 0; h < H; h += SUMMED)
        RA__TRY(sum(ring, parts + h, H - h < SUMMED ? H - h : SUMMED, all));
    for (int64_t h = 0; dsinks && h < H; h++)
        dsinks[h] = (float)parts[h];
    return RA_OK;
}

/* Whether all ranks want the gradient of a bias that queries share, or none; else no rank may wait for the others. Collective. */
static ra_status agree_on_bias(const struct ra__ring *ring, bool wanted, double *all) {
    double mine = wanted;
    RA__TRY(ra_comm_allgather(ring->comm, &mine, all, sizeof mine));
    for (int r = 1; r < ring->schedule.P; r++)
        if (all[r] != all[0])
            return ra__fail(RA_ERR_MISMATCH, "rank %d %s dbias over all queries, rank 0 %s", r, all[r] != 0 ? "wants" : "does not want",
                            all[0] != 0 ? "does" : "does not");
    return RA_OK;
}

static ra_status finish_bias(const struct ra__ring *ring, const ra_tensor *dbias, double *values, double *all) {
    const int64_t B = dbias->stride[0] ? ring->attn.B : 1, H = dbias->stride[2] ? ring->attn.H : 1, K = dbias->stride[3] ? ring->Skv : 1;
    const bool wanted = dbias->data && dbias->stride[1] == 0 && ring->Sq > 1;
    RA__TRY(agree_on_bias(ring, wanted, all));
    for (int64_t row = 0; wanted && row < B * H; row++)
        for (int64_t first = 0; first < K; first += SUMMED) {
            const int64_t n = K - first < SUMMED ? K - first : SUMMED;
            float *to = (float *)dbias->data + row / H * dbias->stride[0] + row % H * dbias->stride[2] + first * dbias->stride[3];
            for (int64_t i = 0; i < n; i++)
                values[i] = to[i * dbias->stride[3]];
            RA__TRY(sum(ring, values, n, all));
            for (int64_t i = 0; i < n; i++)
                to[i * dbias->stride[3]] = (float)values[i];
        }
    return RA_OK;
}

ra_status ra__shared_gradients_finish(const struct ra__ring *ring, const ra_attention_args *args, char *workspace) {
    struct map m;
    layout(ring, &m);
    double *all = (double *)(workspace + m.all);
    if (args->sinks)
        RA__TRY(finish_sinks(ring, args->dsinks, (double *)(workspace + m.sinks), all));
    return ring->has_bias && ring->schedule.P > 1 ? finish_bias(ring, &args->dbias, (double *)(workspace + m.values), all) : RA_OK;
}
