/* Tile sizes. Forward: 192 queries by 128 keys keep the probabilities and one query panel in L1, the key block and the query tile in L2.
 * Backward: 96 keys own dk and dv in L2 while the queries stream by. The figures are flat within 2 % around these values
 * (docs/kernels.md); the user's chunk sizes replace them. */
#include "block/tiles.h"
#include "plan/plan.h"

static int64_t at_most(int64_t n, int64_t limit) {
    return n < limit ? n : limit;
}

static int64_t least_common_multiple(int64_t a, int64_t b) {
    int64_t m = a;
    while (m % b)
        m += a;
    return m;
}

void ra__choose_tiles(struct ra__ring *ring, const ra_problem *p) {
    struct ra__attn *a = &ring->attn;
    const int64_t lanes = a->k->lanes, rows = a->k->rows, Tq = ring->q.T ? ring->q.T : 1, Tkv = ring->Tkv_max ? ring->Tkv_max : 1;
    const int64_t q_chunk = at_most(p->q_chunk ? p->q_chunk : 192, Tq), k_chunk = at_most(p->k_chunk ? p->k_chunk : 128, Tkv);
    a->q_tile = ra__round_up(q_chunk, lanes);
    a->k_tile = ra__round_up(k_chunk, rows);
    /* Few heads and many threads: smaller query tiles, which never change a row's bits. */
    while (!p->q_chunk && a->q_tile > lanes && a->B * a->H * (Tq / a->q_tile + 1) < 4 * (int64_t)a->threads)
        a->q_tile -= lanes;

    const int64_t step = least_common_multiple(rows, a->k->row_tile);
    const int64_t q_chunk_b = at_most(p->q_chunk ? p->q_chunk : (a->D > 64 || a->Dv > 64 ? 192 : 96), Tq);
    const int64_t k_chunk_b = at_most(at_most(p->k_chunk ? p->k_chunk : 96, Tkv), RA__MAX_KEY_PANELS * lanes);
    a->q_tile_b = ra__round_up(q_chunk_b, step);
    a->k_tile_b = ra__round_up(k_chunk_b, lanes);
}
