/* One rank's arguments, each refused with the field and the reason. */
#include <float.h>
#include <math.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "plan/plan.h"

static ra_status check_sizes(const ra_problem *p) {
    const struct {
        const char *name;
        int64_t value, least;
    } sizes[] = {{"B", p->B, 1},
                 {"Sq", p->Sq, 0},
                 {"Skv", p->Skv, 0},
                 {"H", p->H, 1},
                 {"G", p->G, 1},
                 {"D", p->D, 1},
                 {"Dv", p->Dv, 1},
                 {"q_chunk", p->q_chunk, 0},
                 {"k_chunk", p->k_chunk, 0},
                 {"threads", p->threads, 0},
                 {"causal_block", p->mask.causal_block, 0},
                 {"window_left", p->mask.window_left, -1},
                 {"window_right", p->mask.window_right, -1},
                 {"prefix", p->mask.prefix, 0},
                 {"keep_first", p->mask.keep_first, 0},
                 {"sequences", p->mask.sequences, 0},
                 {"slice_count", p->mask.slice_count, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < sizes[i].least)
            return ra__fail(RA_ERR_INVALID, "%s is %lld: must be at least %lld", sizes[i].name, (long long)sizes[i].value,
                            (long long)sizes[i].least);
    if (p->H % p->G)
        return ra__fail(RA_ERR_INVALID, "%lld q heads, %lld k heads: q heads must be a multiple of k heads", (long long)p->H,
                        (long long)p->G);
    if (p->threads > 4096)
        return ra__fail(RA_ERR_INVALID, "threads is %d: at most 4096", p->threads);
    bool overflow = false;
    int64_t widest = p->D > p->Dv ? p->D : p->Dv, longest = p->Sq > p->Skv ? p->Sq : p->Skv;
    ra__mul(ra__mul(ra__mul(ra__mul(p->B, longest, &overflow), p->H, &overflow), widest, &overflow), 64, &overflow);
    if (overflow || longest > INT64_MAX / 4)
        return ra__fail(RA_ERR_OVERFLOW, "B %lld, S %lld, H %lld, D %lld: the tensors do not fit in 64 bits", (long long)p->B,
                        (long long)longest, (long long)p->H, (long long)widest);
    return RA_OK;
}

ra_status ra__validate_offsets(const char *name, const int32_t *offsets, int64_t sequences, const char *what, int64_t S) {
    if (offsets[0] != 0)
        return ra__fail(RA_ERR_INVALID, "%s[0] is %d: must be 0", name, (int)offsets[0]);
    for (int64_t i = 1; i <= sequences; i++)
        if (offsets[i] < offsets[i - 1])
            return ra__fail(RA_ERR_INVALID, "%s[%lld] is %d after %d: the offsets must ascend", name, (long long)i, (int)offsets[i],
                            (int)offsets[i - 1]);
    if (offsets[sequences] > S)
        return ra__fail(RA_ERR_INVALID, "%s[%lld] is %d: beyond %s, %lld", name, (long long)sequences, (int)offsets[sequences], what,
                        (long long)S);
    return RA_OK;
}

static ra_status check_packed(const ra_problem *p) {
    const ra_mask *m = &p->mask;
    if (!m->cu_seqlens_q && !m->cu_seqlens_kv && !m->sequences)
        return RA_OK;
    if (!m->cu_seqlens_q || !m->cu_seqlens_kv)
        return ra__fail(RA_ERR_INVALID, "cu_seqlens_%s is missing: give both or neither", m->cu_seqlens_q ? "kv" : "q");
    if (m->sequences == 0)
        return ra__fail(RA_ERR_INVALID, "sequences is 0, but cu_seqlens_q and cu_seqlens_kv are given");
    RA__TRY(ra__validate_offsets("cu_seqlens_q", m->cu_seqlens_q, m->sequences, "Sq", p->Sq));
    return ra__validate_offsets("cu_seqlens_kv", m->cu_seqlens_kv, m->sequences, "Skv", p->Skv);
}

static ra_status check_slices(const ra_problem *p) {
    const ra_mask *m = &p->mask;
    if (!m->slices != !m->slice_count)
        return ra__fail(RA_ERR_INVALID, m->slices ? "slices are given, but slice_count is 0" : "slice_count is %lld, but slices is NULL",
                        (long long)m->slice_count);
    for (int64_t i = 0; i < m->slice_count; i++) {
        const int64_t *s = m->slices + 5 * i;
        if (s[0] < 0 || s[0] >= s[1] || s[1] > p->Sq)
            return ra__fail(RA_ERR_INVALID, "slice %lld: queries %lld to %lld of %lld: not a range", (long long)i, (long long)s[0],
                            (long long)s[1], (long long)p->Sq);
        if (s[2] < 0 || s[2] >= s[3] || s[3] > p->Skv)
            return ra__fail(RA_ERR_INVALID, "slice %lld: keys %lld to %lld of %lld: not a range", (long long)i, (long long)s[2],
                            (long long)s[3], (long long)p->Skv);
        if (s[4] < RA_SLICE_FULL || s[4] > RA_SLICE_BOTH)
            return ra__fail(RA_ERR_INVALID, "slice %lld: unknown type %lld", (long long)i, (long long)s[4]);
    }
    return RA_OK;
}

/* What goes by positions needs to know where they start, as soon as two corners are possible. */
static ra_status check_align(const ra_problem *p) {
    const ra_mask *m = &p->mask;
    const char *what = m->causal || m->causal_block                  ? "a causal mask"
                       : m->window_left >= 0 || m->window_right >= 0 ? "a window"
                       : p->alibi_slopes                             ? "ALiBi"
                                                                     : NULL;
    if (m->align != RA_ALIGN_NONE && m->align != RA_ALIGN_TOP_LEFT && m->align != RA_ALIGN_BOTTOM_RIGHT)
        return ra__fail(RA_ERR_INVALID, "align: unknown value %d", (int)m->align);
    if (!what || m->align != RA_ALIGN_NONE)
        return RA_OK;
    if (!m->sequences && p->Sq != p->Skv)
        return ra__fail(RA_ERR_INVALID, "%lld queries, %lld keys and %s: its alignment (top-left or bottom-right) must be named",
                        (long long)p->Sq, (long long)p->Skv, what);
    for (int64_t i = 0; i < m->sequences; i++) {
        const int64_t nq = m->cu_seqlens_q[i + 1] - m->cu_seqlens_q[i], nk = m->cu_seqlens_kv[i + 1] - m->cu_seqlens_kv[i];
        if (nq != nk)
            return ra__fail(RA_ERR_INVALID,
                            "sequence %lld has %lld queries and %lld keys: the alignment (top-left or bottom-right) of %s must be named",
                            (long long)i, (long long)nq, (long long)nk, what);
    }
    return RA_OK;
}

static ra_status check_mask(const ra_problem *p) {
    const ra_mask *m = &p->mask;
    if (m->causal && m->causal_block)
        return ra__fail(RA_ERR_INVALID, "causal and causal_block: choose one (causal_block 1 is causal)");
    for (int64_t b = 0; m->kv_lens && b < p->B; b++)
        if (m->kv_lens[b] < 0 || m->kv_lens[b] > p->Skv)
            return ra__fail(RA_ERR_INVALID, "kv_lens[%lld] is %d: must be in 0..Skv, %lld", (long long)b, (int)m->kv_lens[b],
                            (long long)p->Skv);
    RA__TRY(check_packed(p));
    RA__TRY(check_slices(p));
    return check_align(p);
}

static ra_status check_modifiers(const ra_problem *p) {
    if (isinf((float)(p->scale * 1.4426950408889634))) /* the logits' unit is log2 */
        return ra__fail(RA_ERR_INVALID, "scale is %g: too large for fp32", p->scale);
    if (!(p->softcap >= 0) || isinf(p->softcap))
        return ra__fail(RA_ERR_INVALID, "softcap is %g: must be a finite number above 0, or 0 for none", p->softcap);
    if (p->softcap > 0 && (isinf((float)(p->softcap * 1.4426950408889634)) || (float)p->softcap < FLT_MIN))
        return ra__fail(RA_ERR_INVALID, "softcap is %g: too %s for fp32", p->softcap, p->softcap < 1 ? "small" : "large");
    for (int64_t h = 0; p->alibi_slopes && h < p->H; h++)
        if (!isfinite(p->alibi_slopes[h]))
            return ra__fail(RA_ERR_INVALID, "alibi_slopes[%lld] is %g: must be finite", (long long)h, (double)p->alibi_slopes[h]);
    if (!(p->dropout >= 0 && p->dropout <= 1))
        return ra__fail(RA_ERR_INVALID, "dropout is %g: must be in 0..1", p->dropout);
    /* What fits in the counters of dropout.h. */
    const int64_t longest = p->Sq > p->Skv ? p->Sq : p->Skv, heads = (int64_t)1 << 32, positions = (int64_t)1 << 48;
    if (p->dropout > 0 && (longest > positions || p->B > heads / p->H))
        return ra__fail(RA_ERR_UNSUPPORTED, "dropout: at most 2^48 tokens and 2^32 heads of the whole batch");
    return RA_OK;
}

/* Both or neither, where this rank has tokens. */
static ra_status check_segments(const ra_problem *p, int P, int r) {
    const ra_mask *m = &p->mask;
    const bool q_missing = !m->q_segment_ids && ra__layout_shard(p->layout, p->Sq, P, r).T > 0;
    const bool k_missing = !m->kv_segment_ids && ra__layout_shard(p->layout, p->Skv, P, r).T > 0;
    if ((m->q_segment_ids || m->kv_segment_ids) && (q_missing || k_missing))
        return ra__fail(RA_ERR_INVALID, "segment ids of the %s are missing: give both or neither", q_missing ? "queries" : "keys");
    return RA_OK;
}

ra_status ra__validate_problem(const ra_problem *p, int P, int r) {
    if (p->size != sizeof *p)
        return ra__fail(RA_ERR_INVALID, "problem: not initialised with ra_problem_init, or by another version of the library");
    if (ra_dtype_size(p->dtype) == 0)
        return ra__fail(RA_ERR_INVALID, "dtype: unknown value %d", (int)p->dtype);
    if (p->layout != RA_CONTIGUOUS && p->layout != RA_ZIGZAG && p->layout != RA_STRIPED)
        return ra__fail(RA_ERR_INVALID, "layout: unknown value %d", (int)p->layout);
    RA__TRY(check_sizes(p));
    RA__TRY(check_modifiers(p));
    RA__TRY(check_mask(p));
    RA__TRY(check_segments(p, P, r));
    RA__TRY(ra__isa_check(ra__kernels_compiled));
    return ra__unsupported(p);
}
