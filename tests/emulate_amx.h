/* AMX-TILE and AMX-BF16 in software, under the names of immintrin.h: to be included before a source that uses them (-include). It knows
 * palette 1 and follows Intel's description; what a processor refuses with an exception, and what only a mistake would do, aborts.
 *
 * tdpbf16ps: each element sums its even and its odd products in two chains of fused multiply-adds from +0, adds the two, and adds that to
 * C. Denormal operands and results count as 0, rounding is to nearest even, whatever MXCSR says. */
#ifndef RA_TESTS_EMULATE_AMX_H
#define RA_TESTS_EMULATE_AMX_H

#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EMULATED_TILES = 8, EMULATED_ROWS = 16, EMULATED_BYTES = 64 };

static _Thread_local struct {
    bool configured, written[EMULATED_TILES]; /* written: since it was configured; reading zeros of ldtilecfg is taken for a mistake */
    int rows[EMULATED_TILES], bytes[EMULATED_TILES];
    unsigned char data[EMULATED_TILES][EMULATED_ROWS][EMULATED_BYTES];
} emulated;

static inline void emulated_require(bool ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "emulated AMX: %s\n", what);
        abort();
    }
}

static inline void emulated_release(void) {
    memset(&emulated, 0, sizeof emulated);
}

/* | palette | start row | 14 reserved | 16 x 2 bytes per row | 16 x rows |, of which a palette 1 has eight tiles. */
static inline void emulated_loadconfig(const void *config) {
    unsigned char c[64];
    memcpy(c, config, sizeof c);
    emulated_release();
    if (c[0] == 0)
        return;
    emulated_require(c[0] == 1, "palette");
    for (int i = 1; i < 16; i++)
        emulated_require(c[i] == 0, "start row or reserved bytes");
    for (int i = 0; i < 16; i++) {
        const int bytes = c[16 + 2 * i] | c[17 + 2 * i] << 8, rows = c[48 + i];
        emulated_require(i < EMULATED_TILES ? bytes <= EMULATED_BYTES && rows <= EMULATED_ROWS : !bytes && !rows, "size of a tile");
        emulated_require(!bytes == !rows, "a tile with rows or columns only");
        if (i < EMULATED_TILES) {
            emulated.bytes[i] = bytes;
            emulated.rows[i] = rows;
        }
    }
    emulated.configured = true;
}

static inline void emulated_use(int tile) {
    emulated_require(emulated.configured && tile >= 0 && tile < EMULATED_TILES && emulated.rows[tile], "tile not configured");
}

static inline void emulated_read(int tile) {
    emulated_use(tile);
    emulated_require(emulated.written[tile], "tile read before it was written");
}

static inline void emulated_zero(int tile) {
    emulated_use(tile);
    memset(emulated.data[tile], 0, sizeof emulated.data[tile]);
    emulated.written[tile] = true;
}

static inline void emulated_loadd(int tile, const void *base, int64_t stride) {
    emulated_zero(tile);
    for (int i = 0; i < emulated.rows[tile]; i++)
        memcpy(emulated.data[tile][i], (const char *)base + i * stride, (size_t)emulated.bytes[tile]);
}

static inline void emulated_stored(int tile, void *base, int64_t stride) {
    emulated_read(tile);
    for (int i = 0; i < emulated.rows[tile]; i++)
        memcpy((char *)base + i * stride, emulated.data[tile][i], (size_t)emulated.bytes[tile]);
}

static inline float emulated_flush(float x) {
    return fabsf(x) < FLT_MIN ? copysignf(0, x) : x;
}

/* The low or the high bf16 of each of 16 words. */
static inline void emulated_halves(const unsigned char *row, bool high, float *out) {
    uint32_t words[16];
    memcpy(words, row, sizeof words);
    for (int i = 0; i < 16; i++) {
        words[i] = high ? words[i] & 0xffff0000u : words[i] << 16;
        memcpy(out + i, words + i, sizeof *out);
        out[i] = emulated_flush(out[i]);
    }
}

static inline void emulated_dpbf16ps(int c, int a, int b) {
    emulated_read(a);
    emulated_read(b);
    emulated_read(c);
    emulated_require(a != b && a != c && b != c, "the same tile twice");
    emulated_require(emulated.rows[a] == emulated.rows[c] && emulated.bytes[b] == emulated.bytes[c] &&
                         emulated.bytes[a] == 4 * emulated.rows[b] && emulated.bytes[b] % 4 == 0,
                     "sizes do not fit");
    for (int i = 0; i < emulated.rows[c]; i++) {
        float left[2][16], sum[2][16] = {{0}}, acc[16];
        for (int half = 0; half < 2; half++) {
            emulated_halves(emulated.data[a][i], half, left[half]);
            for (int k = 0; k < emulated.rows[b]; k++) {
                float right[16];
                emulated_halves(emulated.data[b][k], half, right);
                for (int j = 0; j < 16; j++)
                    sum[half][j] = emulated_flush(fmaf(left[half][k], right[j], sum[half][j]));
            }
        }
        memcpy(acc, emulated.data[c][i], sizeof acc);
        for (int j = 0; j < emulated.bytes[c] / 4; j++)
            acc[j] = emulated_flush(emulated_flush(acc[j]) + emulated_flush(sum[0][j] + sum[1][j]));
        memcpy(emulated.data[c][i], acc, sizeof acc);
    }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated_loadconfig
#define _tile_release    emulated_release
#define _tile_zero       emulated_zero
#define _tile_loadd      emulated_loadd
#define _tile_stored     emulated_stored
#define _tile_dpbf16ps   emulated_dpbf16ps

#endif
