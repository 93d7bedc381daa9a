/* Which probabilities dropout drops: bits from a counter, so that every rank, tile, thread and pass finds the same ones without having to
 * remember or send any. The one definition of them, for the kernels and for the fp64 reference.
 *
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011), from Random123, with
 *   key      low and high half of the seed
 *   counter  [0] low 32 bits of j/4   [1] low 32 bits of i   [2] b H + h   [3] bits 32..47 of j/4, and above them bits 32..47 of i
 * for query i and key j (positions in the whole sequence, packed or not), batch element b and query head h of H. Word j mod 4 of the result
 * belongs to the pair, so one evaluation serves four neighbouring keys. The pair is kept if its word is at least p 2^32. */
#ifndef RA_BLOCK_DROPOUT_H
#define RA_BLOCK_DROPOUT_H

#include <Random123/philox.h>
#include <stdbool.h>
#include <stdint.h>

/* The counter of keys 4 quad .. 4 quad + 3. bh: b H + h. */
static inline void ra__dropout_counter(int64_t bh, int64_t i, int64_t quad, uint32_t *const counter[4]) {
    const uint64_t query = (uint64_t)i, keys = (uint64_t)quad;
    *counter[0] = (uint32_t)keys;
    *counter[1] = (uint32_t)query;
    *counter[2] = (uint32_t)bh;
    *counter[3] = (uint32_t)(keys >> 32 & 0xffff) | (uint32_t)(query >> 32 & 0xffff) << 16;
}

/* Their words. */
static inline void ra__dropout_words(uint64_t seed, int64_t bh, int64_t i, int64_t quad, uint32_t words[4]) {
    philox4x32_ctr_t counter;
    ra__dropout_counter(bh, i, quad, (uint32_t *const[4]){&counter.v[0], &counter.v[1], &counter.v[2], &counter.v[3]});
    const philox4x32_key_t key = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
    const philox4x32_ctr_t result = philox4x32_R(10, counter, key);
    for (int lane = 0; lane < 4; lane++)
        words[lane] = result.v[lane];
}

/* Of the dropout probability, 0..1: 0 keeps everything, 2^32 nothing. */
static inline uint64_t ra__dropout_threshold(double p) {
    return (uint64_t)(p * 4294967296.0);
}

static inline bool ra__dropout_keeps(uint64_t seed, int64_t bh, int64_t i, int64_t j, uint64_t threshold) {
    uint32_t words[4];
    ra__dropout_words(seed, bh, i, j / 4, words);
    return words[j % 4] >= threshold;
}

/* What kept probabilities are multiplied with. */
static inline double ra__dropout_scale(double p) {
    return p < 1 ? 1 / (1 - p) : 0;
}

#endif
