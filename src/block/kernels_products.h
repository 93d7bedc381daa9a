/* Products by register tiles of vectors, and the packing of their left-hand sides: to be included after kernels_body.h, by every set that
 * multiplies with vectors. */

enum { K_STEP = PAIR };

static void prepare(void) {}

static void gemm(const float *a, int64_t a_stride, int64_t panels, const float *b, int64_t k, float *c, bool accumulate) {
    for (int64_t panel = 0; panel < panels; panel++, a += a_stride, c += MR * NR) {
        vec acc[MR][NV];
        UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV; j++) acc[i][j] = vec_set1(0);
        const float *a_step = a, *b_step = b;
        UNROLL_8 for (int64_t step = 0; step < k; step++, a_step += MR, b_step += NR) {
            vec right[NV];
            UNROLL for (int j = 0; j < NV; j++) right[j] = vec_load(b_step + j * W);
            UNROLL for (int i = 0; i < MR; i++) {
                vec left = vec_set1(a_step[i]);
                UNROLL for (int j = 0; j < NV; j++) acc[i][j] = vec_dot(acc[i][j], left, right[j]);
            }
        }
        if (accumulate)
            UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV; j++) acc[i][j] =
                vec_add(vec_load(c + i * NR + j * W), acc[i][j]);
        UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV; j++) vec_store(c + i * NR + j * W, acc[i][j]);
    }
}

static void gemm_rows(const float *s, int64_t s_stride, int64_t panels, const float *b, float *c, int64_t ldc, int n) {
    vec acc[ROW_TILE][COL_VECS];
    UNROLL for (int i = 0; i < ROW_TILE; i++) UNROLL for (int j = 0; j < COL_VECS; j++) acc[i][j] = vec_set1(0);
    for (int64_t panel = 0; panel < panels; panel++, s += s_stride) {
        UNROLL_8 for (int lane = 0; lane < NR / PAIR; lane++, b += NC) {
            vec right[COL_VECS];
            UNROLL for (int j = 0; j < COL_VECS; j++) right[j] = vec_load(b + j * W);
            UNROLL for (int i = 0; i < ROW_TILE; i++) {
                vec left = vec_set1(s[i * NR + lane]);
                UNROLL for (int j = 0; j < COL_VECS; j++) acc[i][j] = vec_dot(acc[i][j], left, right[j]);
            }
        }
    }
    UNROLL for (int i = 0; i < ROW_TILE; i++) if (i < n) UNROLL for (int j = 0; j < COL_VECS; j++)
        vec_store(c + i * ldc + j * W, vec_add(vec_load(c + i * ldc + j * W), acc[i][j]));
}

/* 2 MR rows at once: two panels, transposed together; where a vector is as wide as two panels are high. Returns the words done. */
static inline int64_t pack_two_row_panels(float *dst, const float *src, int64_t ld, int64_t words, int64_t whole, float scale) {
    const vec factor = vec_set1(scale);
    int64_t d = 0;
    for (; 2 * MR == W && d + W <= whole; d += W) {
        vec r[W];
        for (int i = 0; i < W; i++)
            r[i] = scaled(vec_loadu(src + i * ld + d), factor);
        vec_transpose(r);
        for (int i = 0; i < W; i++)
            vec_store_halves(dst + (d + i) * MR, dst + (words + d + i) * MR, r[i]);
    }
    return d;
}

static void pack_rows(float *dst, const float *src, int64_t ld, int64_t n, int64_t k, float scale) {
    const int64_t words = (k + PAIR - 1) / PAIR;
    int64_t first = 0; /* word from which on this panel is not yet packed */
    for (int64_t row = 0; row < n; row += MR, dst += words * MR) {
        int64_t present = n - row < MR ? n - row : MR;
        if (row / MR % 2 == 0)
            first = n - row >= 2 * MR ? pack_two_row_panels(dst, src + row * ld, ld, words, k / PAIR, scale) : 0;
        for (int64_t i = 0; i < MR; i++) {
            const float *from = src + (row + i) * ld;
            if (i < present)
                for (int64_t d = first; d < words; d++)
                    dst[d * MR + i] = word(from, d, k, scale);
            else
                for (int64_t d = 0; d < words; d++)
                    dst[d * MR + i] = 0;
        }
    }
}

static void pack_transposed(float *dst, const float *src, int64_t ld, int64_t n, int64_t k) {
    pack_cols(dst, src, ld, n, n, k, MR);
}
