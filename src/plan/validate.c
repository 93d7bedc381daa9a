/* One rank's arguments, each refused with the field and the reason. */
#include <math.h>

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
                 {"causal_block", p->mask.causal_block, 0}};
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

static ra_status check_mask(const ra_problem *p) {
    const ra_mask *m = &p->mask;
    if (m->causal && m->causal_block)
        return ra__fail(RA_ERR_INVALID, "causal and causal_block: choose one (causal_block 1 is causal)");
    if (m->align != RA_ALIGN_NONE && m->align != RA_ALIGN_TOP_LEFT && m->align != RA_ALIGN_BOTTOM_RIGHT)
        return ra__fail(RA_ERR_INVALID, "align: unknown value %d", (int)m->align);
    if ((m->causal || m->causal_block) && p->Sq != p->Skv && m->align == RA_ALIGN_NONE)
        return ra__fail(RA_ERR_INVALID, "%lld queries, %lld keys and a causal mask: its alignment (top-left or bottom-right) must be named",
                        (long long)p->Sq, (long long)p->Skv);
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
    if (isinf((float)(p->scale * 1.4426950408889634))) /* the logits' unit is log2 */
        return ra__fail(RA_ERR_INVALID, "scale is %g: too large for fp32", p->scale);
    RA__TRY(check_sizes(p));
    RA__TRY(check_mask(p));
    return check_segments(p, P, r);
}
