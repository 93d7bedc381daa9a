/* Public helpers about shards and tensors. */
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "plan/plan.h"
#include "ring/layout.h"

static bool valid(ra_layout layout, int64_t S, int P, int r) {
    return (layout == RA_CONTIGUOUS || layout == RA_ZIGZAG || layout == RA_STRIPED) && S >= 0 && P >= 1 && r >= 0 && r < P;
}

int64_t ra_shard_size(ra_layout layout, int64_t S, int P, int r) {
    return valid(layout, S, P, r) ? ra__layout_shard(layout, S, P, r).T : -1;
}

int64_t ra_shard_position(ra_layout layout, int64_t S, int P, int r, int64_t t) {
    if (!valid(layout, S, P, r))
        return -1;
    const struct ra__shard s = ra__layout_shard(layout, S, P, r);
    return t >= 0 && t < s.T ? ra__shard_position(&s, t) : -1;
}

ra_status ra_shard_positions(ra_layout layout, int64_t S, int P, int r, int64_t *positions) {
    if (!valid(layout, S, P, r))
        return ra__fail(RA_ERR_INVALID, "positions: layout %d, S %lld, P %d, rank %d", (int)layout, (long long)S, P, r);
    const struct ra__shard s = ra__layout_shard(layout, S, P, r);
    if (s.T && !positions)
        return ra__fail(RA_ERR_INVALID, "positions is NULL");
    ra__shard_positions(&s, positions);
    return RA_OK;
}

ra_status ra_packed_positions(ra_layout layout, int64_t S, int P, int r, const int32_t *cu_seqlens, int64_t sequences, int64_t *positions) {
    if (!cu_seqlens || sequences < 1)
        return ra__fail(RA_ERR_INVALID, "positions: cu_seqlens of %lld sequences%s", (long long)sequences, cu_seqlens ? "" : " is NULL");
    RA__TRY(ra_shard_positions(layout, S, P, r, positions));
    RA__TRY(ra__validate_offsets("cu_seqlens", cu_seqlens, sequences, "S", S));
    const int64_t T = ra__layout_shard(layout, S, P, r).T;
    for (int64_t t = 0, s = 0; t < T; t++) { /* local tokens ascend */
        while (s < sequences && cu_seqlens[s + 1] <= positions[t])
            s++;
        positions[t] -= cu_seqlens[s];
    }
    return RA_OK;
}

ra_status ra_alibi_slopes(int64_t H, float *slopes) {
    if (H < 1 || !slopes)
        return ra__fail(RA_ERR_INVALID, "alibi_slopes: %s", slopes ? "H must be at least 1" : "slopes is NULL");
    int64_t power = 1;
    while (power <= H / 2)
        power *= 2;
    for (int64_t h = 0; h < power; h++)
        slopes[h] = (float)exp2(-8.0 * (double)(h + 1) / (double)power);
    for (int64_t h = power; h < H; h++)
        slopes[h] = (float)exp2(-4.0 * (double)(2 * (h - power) + 1) / (double)power);
    return RA_OK;
}

/* Copies tokens between sequence order and rank order. */
static ra_status reorder(ra_layout layout, int64_t S, int P, const void *src, void *dst, int64_t outer, int64_t bytes, bool to_ranks) {
    if (!valid(layout, S, P, 0) || outer < 0 || bytes < 0)
        return ra__fail(RA_ERR_INVALID, "permute: layout %d, S %lld, P %d, outer %lld, inner_bytes %lld", (int)layout, (long long)S, P,
                        (long long)outer, (long long)bytes);
    if (S && outer && bytes && (!src || !dst))
        return ra__fail(RA_ERR_INVALID, "permute: %s is NULL", src ? "dst" : "src");
    for (int64_t o = 0; o < outer; o++) {
        const char *from = (const char *)src + o * S * bytes;
        char *to = (char *)dst + o * S * bytes;
        int64_t rank_order = 0;
        for (int r = 0; r < P; r++) {
            const struct ra__shard s = ra__layout_shard(layout, S, P, r);
            for (int64_t t = 0; t < s.T; t++, rank_order++) {
                const int64_t position = ra__shard_position(&s, t);
                memcpy(to + (to_ranks ? rank_order : position) * bytes, from + (to_ranks ? position : rank_order) * bytes, (size_t)bytes);
            }
        }
    }
    return RA_OK;
}

ra_status ra_permute(ra_layout layout, int64_t S, int P, const void *src, void *dst, int64_t outer, int64_t inner_bytes) {
    return reorder(layout, S, P, src, dst, outer, inner_bytes, true);
}

ra_status ra_unpermute(ra_layout layout, int64_t S, int P, const void *src, void *dst, int64_t outer, int64_t inner_bytes) {
    return reorder(layout, S, P, src, dst, outer, inner_bytes, false);
}

size_t ra_dtype_size(ra_dtype t) {
    switch (t) {
    case RA_F32:
        return 4;
    case RA_BF16:
    case RA_F16:
        return 2;
    }
    return 0;
}

ra_tensor ra_tensor_bshd(const void *data, ra_dtype dtype, int64_t T, int64_t H, int64_t D) {
    return (ra_tensor){(void *)data, {T * H * D, H * D, D, 1}, dtype};
}

ra_tensor ra_tensor_bhsd(const void *data, ra_dtype dtype, int64_t T, int64_t H, int64_t D) {
    return (ra_tensor){(void *)data, {H * T * D, D, T * D, 1}, dtype};
}

ra_tensor ra_tensor_bias(const void *data, ra_dtype dtype, int64_t nb, int64_t nh, int64_t nt, int64_t Skv) {
    return (ra_tensor){(void *)data, {nb > 1 ? nh * nt * Skv : 0, nt > 1 ? Skv : 0, nh > 1 ? nt * Skv : 0, 1}, dtype};
}
