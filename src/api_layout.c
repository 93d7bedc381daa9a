/* Public helpers about shards and tensors. */
#include <string.h>

#include "base/status.h"
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
