/* The AMX-BF16 kernel set: products by tiles (tdpbf16ps), everything else as in AVX512-BF16.
 *
 * A tile register is 16 rows of 64 bytes: 16 values of C, or 16 words of A (a row of C, 32 values along the sum) or B (two values of that
 * sum for 16 columns). Blocks of C are 2 x 2 tiles, so that four tile loads feed four products. B's layouts are those of the other sets;
 * of A each tile must lie together, which is what k_step is for. */
#include <string.h>

#include "block/vec_avx512bf16.h"

enum { NV = 2, MR = 32, ROW_TILE = 32, COL_VECS = 2, K_STEP = 32 };
#define VEC_ISA "amx"

#include "block/kernels_body.h"

enum { TILE = 16, TILE_BYTES = 64 }; /* rows of a tile, also its columns of words; bytes of a row */

/* The operand of ldtilecfg: all eight registers are whole tiles. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} whole_tiles = {
    .palette = 1,
    .bytes = {TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES},
    .rows = {TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE},
};

/* gcc does not know that a tile load reads memory: makes it finish what was written to p. */
static inline void publish(const float *p) {
    __asm__ volatile("" : : "r"(p) : "memory");
}

/* Registers 0 to 3 are the block of C, row by row; distances of rows are in floats (words). */
static inline void zero_block(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

static inline void load_block(const float *c, int64_t ld) {
    _tile_loadd(0, c, 4 * ld);
    _tile_loadd(1, c + TILE, 4 * ld);
    _tile_loadd(2, c + TILE * ld, 4 * ld);
    _tile_loadd(3, c + TILE * ld + TILE, 4 * ld);
}

static inline void store_block(float *c, int64_t ld) {
    _tile_stored(0, c, 4 * ld);
    _tile_stored(1, c + TILE, 4 * ld);
    _tile_stored(2, c + TILE * ld, 4 * ld);
    _tile_stored(3, c + TILE * ld + TILE, 4 * ld);
}

/* The block += A [32][32 values] B [32 values][32]. */
static inline void multiply(const float *a, int64_t lda, const float *b, int64_t ldb) {
    _tile_loadd(4, a, 4 * lda);
    _tile_loadd(6, b, 4 * ldb);
    _tile_loadd(7, b + TILE, 4 * ldb);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + TILE * lda, 4 * lda);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
}

/* Costs some 290 cycles, as much as 18 products of tiles. Tiles are never released, which would only save the operating system their
 * storing. */
static void prepare(void) {
    _tile_loadconfig(&whole_tiles);
}

static void gemm(const float *a, int64_t a_stride, int64_t panels, const float *b, int64_t k, float *c, bool accumulate) {
    const int64_t whole = k / TILE * TILE, rest = k - whole;
    _Alignas(64) float last[TILE * NR]; /* the last words of B, filled up with zeros */
    if (rest) {
        memcpy(last, b + whole * NR, (size_t)(rest * NR) * sizeof *b);
        memset(last + rest * NR, 0, (size_t)((TILE - rest) * NR) * sizeof *b);
        publish(last);
    }
    for (int64_t panel = 0; panel < panels; panel++, a += a_stride, c += MR * NR) {
        if (accumulate)
            load_block(c, NR);
        else
            zero_block();
        for (int64_t step = 0; step < whole; step += TILE)
            multiply(a + step * MR, TILE, b + step * NR, NR);
        if (rest)
            multiply(a + whole * MR, TILE, last, NR);
        store_block(c, NR);
    }
}

static void gemm_rows(const float *s, int64_t s_stride, int64_t panels, const float *b, float *c, int64_t ldc, int n) {
    _Alignas(64) float edge[ROW_TILE * NC]; /* a block with fewer rows than its tiles */
    float *block = c;
    int64_t ld = ldc;
    if (n < ROW_TILE) {
        memset(edge, 0, sizeof edge);
        for (int i = 0; i < n; i++)
            memcpy(edge + i * NC, c + i * ldc, NC * sizeof *c);
        publish(edge);
        block = edge;
        ld = NC;
    }
    load_block(block, ld);
    for (int64_t panel = 0; panel < panels; panel++, s += s_stride, b += NR / PAIR * NC)
        multiply(s, NR, b, NC);
    store_block(block, ld);
    for (int i = 0; n < ROW_TILE && i < n; i++)
        memcpy(c + i * ldc, edge + i * NC, NC * sizeof *c);
}

/* Left panels [k/32][MR][16 words]. */
static void pack_rows(float *dst, const float *src, int64_t ld, int64_t n, int64_t k, float scale) {
    const vec sign = vec_set1(scale);
    const int64_t words = (k + 1) / 2, whole = k / 2;
    for (int64_t row = 0; row < n; row += MR)
        for (int64_t d = 0; d < words; d += TILE)
            for (int64_t i = row; i < row + MR; i++, dst += TILE) {
                const float *from = src + i * ld;
                if (i >= n)
                    vec_store(dst, vec_set1(0));
                else if (d + TILE <= whole)
                    vec_store(dst, vec_flip(vec_loadu(from + d), sign));
                else
                    for (int64_t j = 0; j < TILE; j++)
                        dst[j] = d + j < words ? word(from, d + j, k, scale) : 0;
            }
}

/* A row of words from 16 head dimensions of two tokens: of the first `rows` of them, of the dimensions in `present`. */
static inline vec two_tokens(const float *src, int64_t ld, int64_t d, int64_t rows, __mmask16 present) {
    const uint16_t *low = (const uint16_t *)src + d, *high = (const uint16_t *)(src + ld) + d;
    const __m256i zero = _mm256_setzero_si256();
    const __m256i first = rows > 0 ? _mm256_maskz_loadu_epi16(present, low) : zero;
    const __m256i second = rows > 1 ? _mm256_maskz_loadu_epi16(present, high) : zero;
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_cvtepu16_epi32(first), _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16)));
}

static void pack_transposed(float *dst, const float *src, int64_t ld, int64_t n, int64_t k) {
    for (int64_t d0 = 0; d0 < k; d0 += MR)
        for (int64_t t = 0; t < n; t += K_STEP)
            for (int64_t d = d0; d < d0 + MR; d += TILE, dst += TILE * TILE) {
                const __mmask16 present = d + TILE <= k ? 0xffff : d < k ? (__mmask16)((1u << (k - d)) - 1) : 0;
                vec r[TILE];
                for (int i = 0; i < TILE; i++)
                    r[i] = two_tokens(src + (t + 2 * i) * ld, ld, d, n - t - 2 * i, present);
                vec_transpose(r);
                for (int i = 0; i < TILE; i++)
                    vec_store(dst + i * TILE, r[i]);
            }
}

const struct ra__kernels ra__kernels_amx = RA__KERNEL_TABLE;
