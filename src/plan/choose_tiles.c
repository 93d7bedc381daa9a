/* Tile sizes, by the caches of a core. The kernels stream over packed operands, so what must stay near is small:
 *   L1  one panel of queries and the probabilities of one key tile:  lanes * (D + k_tile) words
 *       Products by tiles are so fast that reading and writing the output once per key tile counts: key tiles are longer then.
 *   L2  forward: a key tile and the query tile with its output:  (k_tile + q_tile) * (D + Dv) words
 *       backward: five packed key tiles (k twice, v, dk, dv), past which tiles of 96 queries stream
 * The user's chunk sizes replace all this. */
#include "base/cpu.h"
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

/* The largest multiple of `step` from step to `most` for which least + n * each stays within `budget`. */
static int64_t fitting(int64_t step, int64_t most, int64_t least, int64_t each, int64_t budget) {
    int64_t n = most / step * step;
    while (n > step && least + n * each > budget)
        n -= step;
    return n < step ? step : n;
}

void ra__choose_tiles(struct ra__ring *ring, const ra_problem *p) {
    struct ra__attn *a = &ring->attn;
    const int64_t lanes = a->k->lanes, rows = a->k->rows, Tq = ring->q.T ? ring->q.T : 1, Tkv = ring->Tkv_max ? ring->Tkv_max : 1;
    const int64_t word = sizeof(float), d = ra__words(a->k, a->D), dv = ra__words(a->k, a->Dv);
    const int64_t L1 = ra__cache_bytes(1), L2 = ra__cache_bytes(2);

    const int64_t most_forward = a->k->k_step > a->k->pair ? 256 : 128;
    const int64_t k_best = fitting(rows, most_forward, lanes * d * word, lanes * word, L1);
    const int64_t q_best = fitting(lanes, 192, k_best * (d + dv) * word, (d + a->Dv) * word, L2);
    a->q_tile = ra__round_up(at_most(p->q_chunk ? p->q_chunk : q_best, Tq), lanes);
    a->k_tile = ra__round_up(at_most(p->k_chunk ? p->k_chunk : k_best < 64 ? 64 : k_best, Tkv), rows);
    /* Few heads and many threads: smaller query tiles, which never change a row's bits. */
    while (!p->q_chunk && a->q_tile > lanes && a->B * a->H * (Tq / a->q_tile + 1) < 4 * (int64_t)a->threads)
        a->q_tile -= lanes;

    const int64_t step = least_common_multiple(rows, a->k->row_tile);
    const int64_t key_bytes = (2 * d + dv + a->D + a->Dv) * word;
    /* Every key tile streams all packed queries, of all heads of its group, from beyond L2: the longer it is, the less often. */
    const int64_t most_keys = a->H > a->G ? 288 : 192;
    const int64_t k_best_b = fitting(lanes, most_keys, 0, key_bytes, L2);
    const int64_t q_tile_b = p->q_chunk ? p->q_chunk : 96;
    const int64_t k_tile_b = at_most(p->k_chunk ? p->k_chunk : k_best_b, RA__MAX_KEY_PANELS * lanes);
    a->q_tile_b = ra__round_up(at_most(q_tile_b, Tq), step);
    a->k_tile_b = ra__round_up(at_most(k_tile_b, Tkv), lanes);
}
