/* Drawing problems. */
#include "draw.h"

#include <math.h>
#include <string.h>

enum kind {
    CAUSAL,
    CAUSAL_BLOCK,
    WINDOW,
    PREFIX,
    KEEP_FIRST,
    SEGMENTS,
    KV_LENGTHS,
    PACKED,
    SLICED,
    BIASED,
    SOFTCAP,
    WITH_ALIBI,
    SUNK,
    DROPOUT,
    TEMPERED,
    ROW_MAXIMUM,
    BIAS_GRADIENT,
    SINK_GRADIENT,
    KINDS
};

static const char *const names[KINDS + 1] = {"causal",      "causal-block", "window", "prefix",  "keep-first", "segments", "kv-lens",
                                             "packed",      "slices",       "bias",   "softcap", "alibi",      "sinks",    "dropout",
                                             "temperature", "row-max",      "dbias",  "dsinks",  NULL};

int draw_kinds(const char *list, unsigned *kinds, failure *f) {
    *kinds = list && strcmp(list, "none") == 0 ? 0 : (1u << KINDS) - 1;
    if (!list || !*kinds)
        return 0;
    *kinds = 0;
    for (const char *at = list; *at;) {
        char name[32];
        const size_t length = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)length, at);
        int i = 0;
        while (i < KINDS && strcmp(names[i], name) != 0)
            i++;
        if (i == KINDS) {
            const char *near = nearest_name(name, names);
            return near ? fail(f, EXIT_USAGE, "--only: unknown kind %s, did you mean %s?", name, near)
                        : fail(f, EXIT_USAGE, "--only: unknown kind %s (ringattn verify --help lists them)", name);
        }
        *kinds |= 1u << i;
        at += length + (at[length] == ',');
    }
    return 0;
}

/* splitmix64, as in sample.c, from a state of its own */
static uint64_t next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static int64_t between(uint64_t *state, int64_t least, int64_t most) {
    return least + (int64_t)(next(state) % (uint64_t)(most - least + 1));
}

static int one_in(uint64_t *state, int n) {
    return next(state) % (uint64_t)n == 0;
}

static void draw_sizes(options *o, uint64_t *state) {
    static const int64_t heads[][2] = {{1, 1}, {2, 1}, {2, 2}, {3, 1}, {4, 2}, {4, 4}, {6, 2}, {8, 1}};
    const int64_t *h = heads[between(state, 0, 7)];
    o->B = between(state, 1, 2);
    o->Sq = one_in(state, 8) ? between(state, 1, 4) : between(state, 1, 90);
    o->Skv = one_in(state, 2) ? o->Sq : between(state, 1, 90);
    o->H = h[0];
    o->G = h[1];
    o->D = one_in(state, 2) ? 8 * between(state, 1, 10) : between(state, 1, 72);
    o->Dv = one_in(state, 2) ? o->D : between(state, 1, 72);
    o->dtype = (int)between(state, 0, 2);
    o->layout = (int)between(state, 0, 2);
    o->order = (int)between(state, 0, 1);
}

static void draw_mask(options *o, uint64_t *state, const int *has) {
    o->causal = has[CAUSAL];
    if (has[CAUSAL_BLOCK] && !o->causal)
        o->causal_block = between(state, 1, 20);
    if (has[WINDOW]) {
        o->window[0] = one_in(state, 3) ? -1 : between(state, 0, 30);
        o->window[1] = one_in(state, 3) ? -1 : between(state, 0, 30);
    }
    if (has[PREFIX]) { /* with what it is an exception from */
        o->prefix = between(state, 1, 40);
        o->causal |= !o->causal_block;
    }
    if (has[KEEP_FIRST]) {
        o->keep_first = between(state, 1, 10);
        o->window[0] = o->window[0] >= 0 ? o->window[0] : between(state, 0, 30);
    }
    if (has[SEGMENTS])
        o->segments = between(state, 1, 6);
    o->kv_lens = has[KV_LENGTHS];
    if (has[PACKED])
        o->packed = between(state, 1, 6);
    if (has[SLICED])
        o->slices = between(state, 1, 6);
}

static void draw_modifiers(options *o, uint64_t *state, const int *has) {
    static const double dropout[] = {0.1, 0.5, 0.9, 1};
    if (has[BIASED])
        o->bias = one_in(state, 2) ? BIAS_KEY : BIAS_FULL;
    if (has[SOFTCAP])
        o->softcap = one_in(state, 2) ? 1 : 20;
    o->alibi = has[WITH_ALIBI];
    o->sinks = has[SUNK];
    if (has[DROPOUT])
        o->dropout = dropout[between(state, 0, 3)];
    o->temperature = has[TEMPERED];
    o->row_max = has[ROW_MAXIMUM];
    o->dbias = has[BIAS_GRADIENT] && o->bias;
    o->dsinks = has[SINK_GRADIENT] && o->sinks;
}

void draw_options(options *o, uint64_t seed, int64_t i, unsigned kinds, int ranks_are_fixed) {
    uint64_t state = seed;
    for (int k = 0; k < 2; k++)
        state = next(&state) + (uint64_t)i;
    int has[KINDS];
    for (int k = 0; k < KINDS; k++) /* drawn whether allowed or not, so that --only changes nothing else */
        has[k] = one_in(&state, 4) && kinds >> k & 1;
    for (int k = BIAS_GRADIENT; k <= SINK_GRADIENT; k++) /* rare enough, with what they need */
        has[k] = one_in(&state, 2) && kinds >> k & 1;
    o->random = 0;
    o->only = NULL;
    o->seed = (int64_t)(next(&state) >> 1);
    draw_sizes(o, &state);
    if (!ranks_are_fixed && !o->ring)
        o->ring = between(&state, 1, 5);
    draw_mask(o, &state, has);
    draw_modifiers(o, &state, has);
    const int positional = o->causal || o->causal_block || o->window[0] >= 0 || o->window[1] >= 0 || o->alibi;
    const int align = one_in(&state, 2) ? RA_ALIGN_TOP_LEFT : RA_ALIGN_BOTTOM_RIGHT;
    if (positional && (o->Sq != o->Skv || one_in(&state, 2)))
        o->align = align;
}
