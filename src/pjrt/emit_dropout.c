/* Dropout's bits inside the program: Philox4x32-10 as block/dropout.h defines it, so that a device drops what any other engine drops.
 *
 * Each element computes the four words of its quad of keys and takes its own. That is four times the work that would do, but it needs
 * neither neighbours nor keys in order, which a striped block does not have. */
#include "block/dropout.h"

#include "pjrt/emit_block.h"

typedef struct ra__hlo_value value;

static value constant(struct ra__hlo *h, struct ra__hlo_type type, uint32_t x) {
    return ra__hlo_int(h, type, x);
}

/* The high and the low half of a x, for a constant a. */
static void multiply(struct ra__hlo *h, uint32_t a, value x, value *high, value *low) {
    const value wide = ra__hlo_convert(h, x, RA__HLO_U64), factor = constant(h, wide.type, a), bits = constant(h, wide.type, 32);
    const value product = ra__hlo_binary(h, "multiply", wide, factor);
    *high = ra__hlo_convert(h, ra__hlo_binary(h, "shift_right_logical", product, bits), RA__HLO_U32);
    *low = ra__hlo_convert(h, product, RA__HLO_U32);
}

static value either(struct ra__hlo *h, value a, value b, value c) {
    return ra__hlo_binary(h, "xor", ra__hlo_binary(h, "xor", a, b), c);
}

/* Ten rounds; key: scalars. They are a loop, since a compiler that fuses all of them takes minutes over it. */
static void philox(struct ra__hlo *h, value counter[4], const value key[2]) {
    static const uint32_t multiplier[] = {0xD2511F53, 0xCD9E8D57}, weyl[] = {0x9E3779B9, 0xBB67AE85};
    const value initial[6] = {counter[0], counter[1], counter[2], counter[3], key[0], key[1]};
    struct ra__hlo_loop loop;
    ra__hlo_loop_begin(h, &loop, 10, 6, initial);
    const value *c = loop.carried, *k = loop.carried + 4;
    value high[2], low[2], next[6];
    for (int i = 0; i < 2; i++) {
        multiply(h, multiplier[i], c[2 * i], &high[i], &low[i]);
        next[4 + i] = ra__hlo_binary(h, "add", k[i], constant(h, k[i].type, weyl[i]));
    }
    next[0] = either(h, high[1], c[1], ra__hlo_spread(h, k[0], c[0].type));
    next[1] = low[1];
    next[2] = either(h, high[0], c[3], ra__hlo_spread(h, k[1], c[0].type));
    next[3] = low[0];
    ra__hlo_loop_end(h, &loop, 1, next);
    for (int i = 0; i < 4; i++)
        counter[i] = loop.carried[i];
}

/* One half of the seed. */
static value half_seed(struct ra__hlo *h, value seed, int which) {
    static const int all[] = {0};
    const value at = ra__hlo_int(h, ra__hlo_scalar(RA__HLO_S32), which);
    return ra__hlo_reduce(h, "add", ra__hlo_slice(h, seed, 0, at, 1), 1, all);
}

/* b H + h over all scores. */
static value head_number(struct ra__pjrt_emitter *e) {
    struct ra__hlo *h = e->h;
    static const int heads[] = {0, 1, 2};
    const struct ra__hlo_type type = {RA__HLO_U32, 3, {e->p->B, e->p->G, e->p->R}};
    const value G = constant(h, type, (uint32_t)e->p->G), R = constant(h, type, (uint32_t)e->p->R);
    const value group = ra__hlo_binary(h, "add", ra__hlo_binary(h, "multiply", ra__hlo_iota(h, type, 0), G), ra__hlo_iota(h, type, 1));
    const value head = ra__hlo_binary(h, "add", ra__hlo_binary(h, "multiply", group, R), ra__hlo_iota(h, type, 2));
    return ra__pjrt_over_scores(e, head, heads);
}

double ra__pjrt_kept_scale(const struct ra__pjrt_program *p) {
    return ra__dropout_scale(p->dropout);
}

value ra__pjrt_kept(struct ra__pjrt_emitter *e, const struct ra__pjrt_queries *q, const struct ra__pjrt_keys *k) {
    static const int queries[] = {3}, keys[] = {4};
    struct ra__hlo *h = e->h;
    const uint64_t threshold = ra__dropout_threshold(e->p->dropout);
    const value rows = ra__hlo_convert(h, ra__hlo_slice(h, e->in[RA__PJRT_Q_POSITION], 0, q->at, e->p->bq), RA__HLO_U32);
    const value i = ra__pjrt_over_scores(e, rows, queries);
    const value position = ra__hlo_convert(h, k->position, RA__HLO_U32);
    const value quad = ra__hlo_binary(h, "shift_right_logical", position, constant(h, position.type, 2));
    const value word = ra__pjrt_over_scores(e, ra__hlo_binary(h, "and", position, constant(h, position.type, 3)), keys);
    value words[4] = {ra__pjrt_over_scores(e, quad, keys), i, head_number(e), constant(h, i.type, 0)};
    const value key[2] = {half_seed(h, e->in[RA__PJRT_SEED], 0), half_seed(h, e->in[RA__PJRT_SEED], 1)};
    philox(h, words, key);
    value mine = words[3];
    for (int n = 2; n >= 0; n--)
        mine = ra__hlo_select(h, ra__hlo_compare(h, "EQ", word, constant(h, word.type, (uint32_t)n)), words[n], mine);
    if (threshold > UINT32_MAX) /* nothing is kept */
        return ra__hlo_int(h, ra__hlo_with(mine.type, RA__HLO_BOOL), 0);
    return ra__hlo_compare(h, "GE", mine, constant(h, mine.type, (uint32_t)threshold));
}
