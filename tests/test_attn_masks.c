/* The drivers under masks by position, windows, prefixes, slices, packed sequences, lengths, ALiBi: against the oracle, which is told the
 * same as a bias; and the same mask said in different ways. */
#include "attn_job.h"

/* The conditions of a rule, and where its parts lie. */
struct position_mask {
    struct ra__mask_rule rule;
    struct ra__slice slice[4];
    int64_t reach[4], kv_lens[2];
    int32_t cu_q[4], cu_k[4];
    float slopes[6];
};

static void cut_in_three(int32_t *cu, int64_t S) {
    const int32_t a = (int32_t)below(S + 1), b = (int32_t)below(S + 1);
    cu[1] = a < b ? a : b;
    cu[2] = a < b ? b : a;
    cu[3] = below(3) ? (int32_t)S : cu[2];
}

static void choose_rule(struct job *j, struct position_mask *m) {
    struct ra__mask_rule *r = &m->rule;
    *m = (struct position_mask){.rule = {.Sq = j->p.Sq, .Skv = j->p.Skv, .left = -1, .right = -1, .bottom_right = below(2)}};
    const int64_t kind = below(5);
    r->block = below(2) ? 0 : below(2) ? 1 : 1 + below(30);
    if (kind != 1) {
        r->left = below(3) ? below(70) : -1;
        r->right = below(3) ? below(50) : -1;
        r->keep_first = below(2) * below(20);
        r->prefix = below(2) * below(40);
    }
    if (kind == 1 || kind == 2) {
        cut_in_three(m->cu_q, r->Sq);
        cut_in_three(m->cu_k, r->Skv);
        r->cu_q = m->cu_q;
        r->cu_k = m->cu_k;
        r->sequences = 3;
    }
    if (kind == 3) {
        for (; r->slices < 4; r->slices++) {
            const int64_t q0 = below(r->Sq), k0 = below(r->Skv);
            m->slice[r->slices] = (struct ra__slice){q0, q0 + 1 + below(r->Sq - q0), k0, k0 + 1 + below(r->Skv - k0), below(4)};
        }
        ra__slices_sort(m->slice, m->reach, 4);
        r->slice = m->slice;
        r->slice_reach = m->reach;
    }
    ra__mask_rule_finish(r);
    j->rule = r;
    for (int64_t b = 0; b < 2 && kind == 4; b++) {
        m->kv_lens[b] = below(r->Skv + 1);
        j->kv_lens = m->kv_lens;
    }
    for (int64_t h = 0; h < 6 && below(4) == 0; h++) {
        m->slopes[h] = (float)uniform() / 8;
        j->alibi = m->slopes;
    }
}

/* What the rule says, as a bias. */
static void rule_as_bias(struct job *j) {
    const ra_problem *p = &j->p;
    struct ra__span row[16];
    j->bias = grid_filled(p->B, p->Sq, p->H, p->Skv, RA_F32, 0, random_value);
    for (int64_t b = 0; b < p->B; b++)
        for (int64_t i = 0; i < p->Sq; i++) {
            const int64_t n = ra__mask_row(j->rule, i, row), aligned = ra__mask_aligned(j->rule, i);
            for (int64_t k = 0; k < p->Skv; k++) {
                bool seen = false;
                for (int64_t s = 0; s < n; s++)
                    seen |= k >= row[s].begin && k < row[s].end;
                seen &= !j->kv_lens || k < j->kv_lens[b];
                for (int64_t h = 0; h < p->H; h++) {
                    const double alibi = j->alibi ? -j->alibi[h] * fabs((double)(aligned - k)) : 0;
                    grid_set(&j->bias, b, i, h, k, seen ? alibi : -INFINITY);
                }
            }
        }
}

static bool same_floats(const float *x, const float *y, int64_t n) {
    return memcmp(x, y, (size_t)n * sizeof *x) == 0;
}

/* Runs a copy of the job as `change` makes it, and compares every bit; dq only if `all`. */
static void check_same_bits(const struct job *j, struct job other, bool all, const char *what) {
    const ra_problem *p = &j->p;
    other.out = poisoned(q_numel(p, p->Dv));
    other.lse = poisoned(q_numel(p, 1));
    other.dq = poisoned(q_numel(p, p->D));
    other.dk = poisoned(kv_numel(p, p->D));
    other.dv = poisoned(kv_numel(p, p->Dv));
    run(&other);
    CHECK_MSG(same_floats(j->out, other.out, q_numel(p, p->Dv)) && same_floats(j->lse, other.lse, q_numel(p, 1)), "%s: out or lse", what);
    CHECK_MSG(!all || same_floats(j->dq, other.dq, q_numel(p, p->D)), "%s: dq", what);
    CHECK_MSG(same_floats(j->dk, other.dk, kv_numel(p, p->D)) && same_floats(j->dv, other.dv, kv_numel(p, p->Dv)), "%s: dk or dv", what);
    float *made[] = {other.out, other.lse, other.dq, other.dk, other.dv};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        free(made[i]);
}

/* The bias in place of the rule: where products are single multiply-adds, no bit differs, wherever tiles are cut; but dq is a sum of the
 * sums of tiles, and documents cut tiles. */
static void check_bias_instead(const struct job *j) {
    struct job other = *j;
    other.rule = NULL;
    other.kv_lens = NULL;
    check_same_bits(j, other, j->edges == 0, "as a bias");
}

static void masks_by_position(void) {
    static const int64_t sizes[] = {1, 5, 8, 17, 33, 64};
    for (int trial = 0; trial < (small() ? 40 : 200); trial++) {
        struct position_mask m;
        struct job j = random_job(1 + below(trial % 3 ? 220 : 5), 1 + below(220), sizes[below(6)], sizes[below(6)]);
        j.decode = trial % 3 == 0;
        j.p.B = 1 + below(2);
        j.p.G = 1 + below(2);
        j.p.H = j.p.G * (1 + below(3));
        j.p.dtype = (ra_dtype)(below(2) * below(3));
        job_make(&j, random_value, random_value, random_value, random_value);
        choose_tiles(&j);
        choose_blocks(&j);
        choose_rule(&j, &m);
        rule_as_bias(&j);
        j.two_stretches = below(2);
        j.threads = 1 + (int)below(3);
        const bool ok = run_and_check(&j, 2e-5, "masks by position");
        if (ok && !j.alibi && (j.p.dtype != RA_BF16 || ra__kernels_bf16()->pair == 1))
            check_bias_instead(&j);
        job_free(&j);
        if (!ok)
            return;
    }
}

/* Documents as packed sequences, as segment ids and as slices: the same tiles, the same bits in every type. */
static void documents_three_ways(void) {
    for (int trial = 0; trial < (small() ? 12 : 60); trial++) {
        const int64_t S = 60 + below(400);
        struct job j = random_job(S, S, 8 + below(9), 8);
        struct position_mask m = {.rule = {.Sq = S, .Skv = S, .block = below(2), .left = -1, .right = -1, .cu_q = m.cu_q, .cu_k = m.cu_q}};
        const struct ra__mask_rule whole = {.Sq = S, .Skv = S, .block = m.rule.block, .left = -1, .right = -1, .most = 2};
        struct ra__mask_rule slices = whole;
        j.p.H = 2;
        j.p.dtype = (ra_dtype)below(3);
        job_make(&j, random_value, random_value, random_value, random_value);
        choose_tiles(&j);
        choose_blocks(&j);
        cut_in_three(m.cu_q, S);
        m.cu_q[3] = (int32_t)S;
        m.rule.sequences = 3;
        ra__mask_rule_finish(&m.rule);
        j.rule = &m.rule;
        run(&j);

        struct job other = j;
        other.rule = &whole;
        other.q_ids = other.kv_ids = malloc((size_t)S * sizeof *other.q_ids);
        for (int64_t i = 0; i < S; i++)
            other.q_ids[i] = (i >= m.cu_q[1]) + (i >= m.cu_q[2]);
        check_same_bits(&j, other, true, "as segments");
        free(other.q_ids);

        other = j;
        for (int64_t i = 0; i < 3; i++)
            m.slice[i] = (struct ra__slice){m.cu_q[i], m.cu_q[i + 1], m.cu_q[i], m.cu_q[i + 1], m.rule.block};
        ra__slices_sort(m.slice, m.reach, 3);
        slices.block = 0;
        slices.slice = m.slice;
        slices.slice_reach = m.reach;
        slices.slices = 3;
        ra__mask_rule_finish(&slices);
        other.rule = &slices;
        check_same_bits(&j, other, true, "as slices");
        job_free(&j);
    }
}

int main(void) {
    RUN(masks_by_position);
    RUN(documents_three_ways);
    return check_result();
}
