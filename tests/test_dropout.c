/* The bits of dropout: Philox as published, every bit of a position counts, and the frequencies are those asked for (cases 70 to 72). */
#include "block/dropout.h"

#include <math.h>
#include <string.h>

#include "check.h"

/* Random123's kat_vectors, philox 4x32 10, through the function that the library uses: any counter is some pair's. */
static void known_answers(void) {
    static const struct {
        uint32_t counter[4], key[2], result[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
    for (size_t n = 0; n < sizeof known / sizeof *known; n++) {
        const uint32_t *c = known[n].counter;
        const uint64_t seed = known[n].key[0] | (uint64_t)known[n].key[1] << 32;
        const int64_t quad = (int64_t)(c[0] | (uint64_t)(c[3] & 0xffff) << 32), i = (int64_t)(c[1] | (uint64_t)(c[3] >> 16) << 32);
        uint32_t words[4];
        ra__dropout_words(seed, c[2], i, quad, words);
        CHECK(memcmp(words, known[n].result, sizeof words) == 0);
        for (int lane = 0; lane < 4; lane++) {
            CHECK(ra__dropout_keeps(seed, c[2], i, 4 * quad + lane, known[n].result[lane]));
            CHECK(!ra__dropout_keeps(seed, c[2], i, 4 * quad + lane, (uint64_t)known[n].result[lane] + 1));
        }
    }
}

static void every_coordinate_counts(void) {
    uint32_t first[4], other[4];
    const int64_t far = (int64_t)1 << 33;
    ra__dropout_words(7, 3, 5, 9, first);
    const struct {
        uint64_t seed;
        int64_t bh, i, quad;
    } moved[] = {{8, 3, 5, 9},       {7 + ((uint64_t)1 << 32), 3, 5, 9},
                 {7, 4, 5, 9},       {7, 3, 6, 9},
                 {7, 3, 5 + far, 9}, {7, 3, 5, 10},
                 {7, 3, 5, 9 + far}, {7, 3, 9, 5},
                 {7, 5, 3, 9}};
    for (size_t n = 0; n < sizeof moved / sizeof *moved; n++) {
        ra__dropout_words(moved[n].seed, moved[n].bh, moved[n].i, moved[n].quad, other);
        CHECK_MSG(memcmp(first, other, sizeof first) != 0, "move %zu changes nothing", n);
    }
}

static void thresholds(void) {
    CHECK(ra__dropout_threshold(0) == 0);
    CHECK(ra__dropout_threshold(1) == (uint64_t)1 << 32);
    CHECK(ra__dropout_threshold(1 - 0x1p-53) == 0xffffffff);
    CHECK(ra__dropout_threshold(0.5) == (uint64_t)1 << 31);
    CHECK(ra__dropout_scale(0) == 1 && ra__dropout_scale(0.75) == 4 && ra__dropout_scale(1) == 0);
    for (int64_t j = 0; j < 1000; j++) {
        CHECK(ra__dropout_keeps(1, 0, 0, j, ra__dropout_threshold(0)));
        CHECK(!ra__dropout_keeps(1, 0, 0, j, ra__dropout_threshold(1)));
    }
}

static void frequencies(void) {
    enum { N = 300 };
    for (double p = 0.1; p < 1; p += 0.2) {
        const uint64_t threshold = ra__dropout_threshold(p);
        double kept = 0, kept_far = 0, both = 0;
        for (int64_t i = 0; i < N; i++)
            for (int64_t j = 0; j < N; j++) {
                const bool here = ra__dropout_keeps(7, 1, i, j, threshold), far = ra__dropout_keeps(7, 1, i, j + 4096, threshold);
                kept += here;
                kept_far += far;
                both += here && far;
            }
        const double n = N * (double)N, q = 1 - p, sigma = sqrt(n * p * q);
        CHECK_MSG(fabs(kept - n * q) < 4 * sigma, "p %g: kept %g of %g", p, kept, n);
        const double covariance = both / n - kept / n * (kept_far / n); /* of two shards' masks */
        CHECK_MSG(fabs(covariance) < 4 * p * q / N, "p %g: covariance %g", p, covariance);
    }
}

int main(void) {
    RUN(known_answers);
    RUN(every_coordinate_counts);
    RUN(thresholds);
    RUN(frequencies);
    return check_result();
}
