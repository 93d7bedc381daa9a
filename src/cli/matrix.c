/* The capability table: ra_supports asked about every mask with every modifier, type, layout and pass. */
#include "matrix.h"

#include <stdio.h>
#include <string.h>

enum { S = 8, HEADS = 2, TYPES = 3, LAYOUTS = 3, PASSES = 2 };

/* One thing that a problem may have. */
typedef struct feature {
    const char *name;
    void (*set)(ra_problem *p);
} feature;

static void nothing(ra_problem *p) {
    (void)p;
}
static void causal(ra_problem *p) {
    p->mask.causal = 1;
}
static void causal_block(ra_problem *p) {
    p->mask.causal_block = 4;
}
static void window(ra_problem *p) {
    p->mask.window_left = 2;
    p->mask.window_right = 1;
}
static void prefix(ra_problem *p) {
    p->mask.causal = 1;
    p->mask.prefix = 3;
}
static void keep_first(ra_problem *p) {
    p->mask.window_left = 2;
    p->mask.keep_first = 1;
}
static void segments(ra_problem *p) {
    static const int32_t ids[S] = {0, 0, 0, 1, 1, 2, 2, 2};
    p->mask.q_segment_ids = p->mask.kv_segment_ids = ids;
}
static void kv_lens(ra_problem *p) {
    static const int32_t lens[1] = {5};
    p->mask.kv_lens = lens;
}
static void packed(ra_problem *p) {
    static const int32_t q[4] = {0, 3, 3, 8}, kv[4] = {0, 2, 5, 8};
    p->mask.causal = 1;
    p->mask.align = RA_ALIGN_BOTTOM_RIGHT;
    p->mask.cu_seqlens_q = q;
    p->mask.cu_seqlens_kv = kv;
    p->mask.sequences = 3;
}
static void slices(ra_problem *p) {
    static const int64_t list[10] = {0, 4, 0, 8, RA_SLICE_CAUSAL, 4, 8, 0, 4, RA_SLICE_BOTH};
    p->mask.slices = list;
    p->mask.slice_count = 2;
}
static void bias(ra_problem *p) {
    p->has_bias = 1;
}
static void softcap(ra_problem *p) {
    p->softcap = 30;
}
static void alibi(ra_problem *p) {
    static const float slopes[HEADS] = {0.5f, 0.25f};
    p->alibi_slopes = slopes;
}
static void sinks(ra_problem *p) {
    p->has_sinks = 1;
}
static void dropout(ra_problem *p) {
    p->dropout = 0.1;
}
static void temperature(ra_problem *p) {
    p->has_temperature = 1;
}

static const feature masks[] = {{"none", nothing},  {"causal", causal},         {"causal-block", causal_block}, {"window", window},
                                {"prefix", prefix}, {"keep-first", keep_first}, {"segments", segments},         {"kv-lens", kv_lens},
                                {"packed", packed}, {"slices", slices}};
static const feature modifiers[] = {{"none", nothing}, {"bias", bias},       {"softcap", softcap},        {"alibi", alibi},
                                    {"sinks", sinks},  {"dropout", dropout}, {"temperature", temperature}};
enum { MASKS = sizeof masks / sizeof *masks, MODIFIERS = sizeof modifiers / sizeof *modifiers, VARIANTS = TYPES * LAYOUTS * PASSES };

static ra_status ask(int mask, int modifier, int variant, char *reason, size_t n) {
    ra_problem p;
    ra_problem_init(&p);
    p.Sq = p.Skv = S;
    p.H = p.G = HEADS;
    p.D = p.Dv = 4;
    p.dtype = (ra_dtype)(variant % TYPES);
    p.layout = (ra_layout)(variant / TYPES % LAYOUTS);
    p.backward = variant / TYPES / LAYOUTS;
    masks[mask].set(&p);
    modifiers[modifier].set(&p);
    return ra_supports(&p, "cpu", reason, n);
}

json_t *matrix_json(void) {
    json_t *list = json_array();
    char reason[256];
    for (int mask = 0; mask < MASKS; mask++)
        for (int modifier = 0; modifier < MODIFIERS; modifier++)
            for (int v = 0; v < VARIANTS; v++) {
                const ra_status s = ask(mask, modifier, v, reason, sizeof reason);
                json_array_append_new(
                    list, json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:s}", "mask", masks[mask].name, "modifier", modifiers[modifier].name,
                                    "dtype", dtype_name(v % TYPES), "layout", layout_name(v / TYPES % LAYOUTS), "pass",
                                    v / TYPES / LAYOUTS ? "backward" : "forward", "supported", s == RA_OK, "reason", reason));
            }
    return list;
}

/* The reasons, each once; the last of a full list stays the last. */
static void note(char reasons[][256], int *n, int most, const char *reason) {
    for (int i = 0; i < *n; i++)
        if (strcmp(reasons[i], reason) == 0)
            return;
    if (*n < most)
        snprintf(reasons[(*n)++], 256, "%s", reason);
}

void matrix_print(void) {
    enum { REASONS = 40 };
    char reasons[REASONS][256], reason[256];
    int n = 0;
    printf("masks (rows) with modifiers (columns), each in %d types, %d layouts and both passes\n%-14s", TYPES, LAYOUTS, "");
    for (int modifier = 0; modifier < MODIFIERS; modifier++)
        printf("%-12s", modifiers[modifier].name);
    printf("\n");
    for (int mask = 0; mask < MASKS; mask++) {
        printf("%-14s", masks[mask].name);
        for (int modifier = 0; modifier < MODIFIERS; modifier++) {
            int supported = 0;
            for (int v = 0; v < VARIANTS; v++)
                if (ask(mask, modifier, v, reason, sizeof reason) == RA_OK)
                    supported++;
                else
                    note(reasons, &n, REASONS, reason);
            char cell[24];
            snprintf(cell, sizeof cell, "%d of %d", supported, VARIANTS);
            printf("%-12s", supported == VARIANTS ? "yes" : supported ? cell : "no");
        }
        printf("\n");
    }
    for (int i = 0; i < n; i++)
        printf("refused: %s\n", reasons[i]);
}
