/* The option table and its reader. getopt_long does the walking; abbreviations, which it would accept, are refused, because an option
 * added later would change their meaning. */
#define _GNU_SOURCE
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum kind { FLAG, CHOICE, SIZE, PAIR, REAL, TEXT }; /* PAIR: two sizes */

typedef struct entry {
    const char *name;
    int letter; /* 0: none */
    enum kind kind;
    size_t offset;
    int commands;
    const char *argument;
    const char *help;
    const char *const *choices; /* CHOICE: the value is the index */
    int64_t min, max;           /* SIZE, PAIR */
    int64_t unset;              /* SIZE, PAIR: the default */
} entry;

static const char *const layouts[] = {"contiguous", "zigzag", "striped", NULL};
static const char *const aligns[] = {"none", "top-left", "bottom-right", NULL};
static const char *const orders[] = {"bshd", "bhsd", NULL};
static const char *const dtypes[] = {"f32", "bf16", "f16", NULL};
static const char *const biases[] = {"none", "key", "full", NULL};

#define AT(field) offsetof(options, field)
#define RUNS      (ATTEND | VERIFY | BENCH)
#define MADE      (VERIFY | BENCH)
#define FILES     (ATTEND | VERIFY)
#define LONGEST   ((int64_t)1 << 40)

/* clang-format off */
static const entry table[] = {
    {"output", 'o', TEXT, AT(output), ATTEND, "FILE", "write the results to FILE (required)", NULL, 0, 0, 0},
    {"row-max", 0, FLAG, AT(row_max), FILES, NULL, "also the largest logit of every query, row_max", NULL, 0, 0, 0},
    {"dbias", 0, FLAG, AT(dbias), FILES, NULL, "also the gradient of the bias, with --backward", NULL, 0, 0, 0},
    {"dsinks", 0, FLAG, AT(dsinks), FILES, NULL, "also the gradient of the sinks, with --backward", NULL, 0, 0, 0},
    {"backward", 0, FLAG, AT(backward), ATTEND, NULL, "also compute dq, dk, dv from dout and dlse of the input", NULL, 0, 0, 0},
    {"ring", 0, SIZE, AT(ring), RUNS, "P", "number of ranks, run as threads of this process (default 1); under mpirun every process is a rank", NULL, 1, 1024, 0},
    {"layout", 0, CHOICE, AT(layout), RUNS, "NAME", "which tokens a rank holds: contiguous (default), zigzag, striped", layouts, 0, 0, 0},
    {"causal", 0, FLAG, AT(causal), RUNS, NULL, "a query sees no later key", NULL, 0, 0, 0},
    {"causal-block", 0, SIZE, AT(causal_block), RUNS, "N", "a query sees no key of a later block of N tokens", NULL, 1, LONGEST, 0},
    {"align", 0, CHOICE, AT(align), RUNS, "CORNER", "corner the causal mask, the window and ALiBi start from: top-left, bottom-right; must be given when there are not as many queries as keys", aligns, 0, 0, 0},
    {"window", 0, PAIR, AT(window), FILES, "L,R", "a query sees L keys before its own place and R after it; -1: all of them", NULL, -1, LONGEST, -1},
    {"prefix", 0, SIZE, AT(prefix), FILES, "N", "the first N keys are seen by all queries, in spite of --causal", NULL, 0, LONGEST, 0},
    {"keep-first", 0, SIZE, AT(keep_first), FILES, "N", "the first N keys are not hidden by L of --window", NULL, 0, LONGEST, 0},
    {"scale", 0, REAL, AT(scale), RUNS, "X", "logits are X q.k (default 1/sqrt(D))", NULL, 0, 0, 0},
    {"softcap", 0, REAL, AT(softcap), FILES, "C", "logits are bent to C tanh(logit / C)", NULL, 0, 0, 0},
    {"alibi", 0, FLAG, AT(alibi), FILES, NULL, "ALiBi with the usual slopes", NULL, 0, 0, 0},
    {"dropout", 0, REAL, AT(dropout), FILES, "P", "drop each probability with probability P, decided by --seed", NULL, 0, 0, 0},
    {"q-chunk", 0, SIZE, AT(q_chunk), RUNS, "N", "query rows per tile (default: chosen)", NULL, 1, LONGEST, 0},
    {"k-chunk", 0, SIZE, AT(k_chunk), RUNS, "N", "key rows per tile (default: chosen)", NULL, 1, LONGEST, 0},
    {"threads", 0, SIZE, AT(threads), RUNS, "N", "threads per rank (default: cores shared out among the ranks of a machine)", NULL, 1, 4096, 0},
    {"order", 0, CHOICE, AT(order), ATTEND | VERIFY, "ORDER", "axes of q, k, v, dout, out, dq, dk, dv: bshd (default), bhsd", orders, 0, 0, 0},
    {"B", 0, SIZE, AT(B), MADE, "N", "batch (default 1)", NULL, 1, LONGEST, -1},
    {"S", 0, SIZE, AT(S), MADE, "N", "tokens, queries and keys alike", NULL, 0, LONGEST, -1},
    {"Sq", 0, SIZE, AT(Sq), VERIFY, "N", "queries (default S)", NULL, 0, LONGEST, -1},
    {"Skv", 0, SIZE, AT(Skv), VERIFY, "N", "keys (default S)", NULL, 0, LONGEST, -1},
    {"H", 0, SIZE, AT(H), MADE, "N", "query heads", NULL, 1, LONGEST, -1},
    {"G", 0, SIZE, AT(G), MADE, "N", "key/value heads, a divisor of H (default H)", NULL, 1, LONGEST, -1},
    {"D", 0, SIZE, AT(D), MADE, "N", "head size of q and k", NULL, 1, LONGEST, -1},
    {"Dv", 0, SIZE, AT(Dv), MADE, "N", "head size of v (default D)", NULL, 1, LONGEST, -1},
    {"dtype", 0, CHOICE, AT(dtype), MADE, "TYPE", "type of q, k, v: f32 (default), bf16, f16", dtypes, 0, 0, 0},
    {"segments", 0, SIZE, AT(segments), VERIFY, "N", "cut the sequence into N segments that do not see each other", NULL, 0, LONGEST, 0},
    {"bias", 0, CHOICE, AT(bias), VERIFY, "KIND", "add a random bias, some of it -inf: none (default), key [1,1,1,Skv], full [B,H,Sq,Skv]", biases, 0, 0, 0},
    {"kv-lens", 0, FLAG, AT(kv_lens), VERIFY, NULL, "hide the keys from a random length on, another for each batch element", NULL, 0, 0, 0},
    {"packed", 0, SIZE, AT(packed), VERIFY, "N", "N packed sequences of random lengths, some of them empty", NULL, 0, LONGEST, 0},
    {"slices", 0, SIZE, AT(slices), VERIFY, "N", "show what N random slices cover, and nothing else", NULL, 0, LONGEST, 0},
    {"sinks", 0, FLAG, AT(sinks), VERIFY, NULL, "random sinks", NULL, 0, 0, 0},
    {"temperature", 0, FLAG, AT(temperature), VERIFY, NULL, "a random factor of every query's logits", NULL, 0, 0, 0},
    {"random", 0, SIZE, AT(random), VERIFY, "N", "draw N problems of all kinds from --seed", NULL, 1, 1000000000, 0},
    {"only", 0, TEXT, AT(only), VERIFY, "KINDS", "with --random: draw only these kinds and what they need, a list with commas of causal, causal-block, window, prefix, keep-first, segments, kv-lens, packed, slices, bias, softcap, alibi, sinks, dropout, temperature, row-max, dbias, dsinks; or none", NULL, 0, 0, 0},
    {"seed", 0, SIZE, AT(seed), FILES, "N", "seed of dropout and of random tensors (default 1)", NULL, 0, INT64_MAX, 1},
    {"tolerance", 0, REAL, AT(tolerance), VERIFY, "X", "bound of the errors as a share of the largest value (default: f32 1e-5, bf16 8e-3, f16 1e-3; references in FILE 1e-5)", NULL, 0, 0, 0},
    {"repeat", 0, SIZE, AT(repeat), ATTEND | BENCH, "N", "compute N times; attend reports the fastest (default 1), bench the median (default 5)", NULL, 1, 1000000, 0},
    {"timeout", 0, REAL, AT(timeout), RUNS, "S", "give a rank up after S seconds without an answer (default 300)", NULL, 0, 0, 0},
    {"list", 0, FLAG, AT(list), BENCH, NULL, "say what the shapes are and measure nothing", NULL, 0, 0, 0},
    {"matrix", 0, FLAG, AT(matrix), INFO, NULL, "which masks, modifiers, types, layouts and passes go together", NULL, 0, 0, 0},
    {"json", 0, FLAG, AT(json), RUNS | INFO, NULL, "print one JSON object on stdout", NULL, 0, 0, 0},
    {"quiet", 'q', FLAG, AT(quiet), RUNS, NULL, "print nothing but errors (and --json)", NULL, 0, 0, 0},
    {"verbose", 'v', FLAG, AT(verbose), RUNS, NULL, "tell on stderr what is being done, and print the plan", NULL, 0, 0, 0},
    {"help", 'h', FLAG, AT(help), RUNS | INFO, NULL, "print this text", NULL, 0, 0, 0},
};
/* clang-format on */
enum { ENTRIES = sizeof table / sizeof table[0], LONG_VALUE = 1000 };

const char *layout_name(int layout) {
    return layouts[layout];
}

const char *dtype_name(int dtype) {
    return dtypes[dtype];
}

static void *field(options *o, const entry *e) {
    return (char *)o + e->offset;
}

void options_init(options *o, enum command command) {
    memset(o, 0, sizeof *o);
    o->command = command;
    for (int i = 0; i < ENTRIES; i++) {
        int64_t *sizes = field(o, &table[i]);
        for (int k = 0; k < (table[i].kind == SIZE ? 1 : table[i].kind == PAIR ? 2 : 0); k++)
            sizes[k] = table[i].unset;
        if (table[i].kind == REAL)
            *(double *)field(o, &table[i]) = NAN;
    }
}

/* Levenshtein's distance; names are short. */
static int distance(const char *a, const char *b) {
    enum { LIMIT = 40 };
    int row[LIMIT + 1], m = (int)strlen(a), n = (int)strlen(b);
    if (m > LIMIT || n > LIMIT)
        return LIMIT;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; i <= m; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int replaced = diagonal + (a[i - 1] != b[j - 1]);
            int shorter = row[j] < row[j - 1] ? row[j] : row[j - 1];
            diagonal = row[j];
            row[j] = replaced < shorter + 1 ? replaced : shorter + 1;
        }
    }
    return row[n];
}

const char *nearest_name(const char *text, const char *const *names) {
    const char *best = NULL;
    int least = strlen(text) > 1 ? ((int)strlen(text) + 1) / 2 : 0;
    if (!*text)
        return NULL;
    for (; *names; names++) {
        int d = strncmp(text, *names, strlen(text)) == 0 ? 1 : distance(text, *names); /* an abbreviation is near */
        if (d <= least && (!best || d < least)) {
            best = *names;
            least = d;
        }
    }
    return best;
}

static const entry *find(const char *name, size_t length, int commands) {
    for (int i = 0; i < ENTRIES; i++)
        if (table[i].commands & commands && strlen(table[i].name) == length && strncmp(table[i].name, name, length) == 0)
            return &table[i];
    return NULL;
}

static int refuse_unknown(const options *o, const char *argument, const char *command_name, failure *f) {
    const char *names[ENTRIES + 1];
    int n = 0;
    for (int i = 0; i < ENTRIES; i++)
        if (table[i].commands & o->command)
            names[n++] = table[i].name;
    names[n] = NULL;
    char name[64];
    snprintf(name, sizeof name, "%s", argument + strspn(argument, "-"));
    name[strcspn(name, "=")] = 0;
    const char *dashes = argument[1] == '-' ? "--" : "-";
    if (find(name, strlen(name), ~o->command))
        return fail(f, EXIT_USAGE, "--%s is no option of ringattn %s", name, command_name);
    const char *near = nearest_name(name, names);
    if (near)
        return fail(f, EXIT_USAGE, "unknown option %s%s, did you mean --%s?", dashes, name, near);
    return fail(f, EXIT_USAGE, "unknown option %s%s (ringattn %s --help lists them)", dashes, name, command_name);
}

static int set_choice(int *value, const entry *e, const char *text, failure *f) {
    char list[120] = "";
    int n = 0;
    for (int i = 0; e->choices[i]; i++) {
        if (strcmp(e->choices[i], text) == 0) {
            *value = i;
            return 0;
        }
        n += snprintf(list + n, sizeof list - (size_t)n, "%s%s", i ? ", " : "", e->choices[i]);
    }
    const char *near = nearest_name(text, e->choices);
    if (near)
        return fail(f, EXIT_USAGE, "--%s: unknown value %s, did you mean %s?", e->name, text, near);
    return fail(f, EXIT_USAGE, "--%s: unknown value %s, known are %s", e->name, text, list);
}

static int set_size(int64_t *value, const entry *e, const char *text, failure *f) {
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    int bad = errno != 0 || end == text;
    const char *const suffixes = "KMG", *at = *end ? strchr(suffixes, *end & ~0x20) : NULL;
    if (!bad && at) {
        bad = __builtin_mul_overflow(n, 1LL << 10 * (at - suffixes + 1), &n);
        end++;
    }
    if (bad || *end)
        return fail(f, EXIT_USAGE, "--%s: %s is no whole number (K, M, G multiply by 1024)", e->name, text);
    if (n < e->min || n > e->max)
        return fail(f, EXIT_USAGE, "--%s: %s is not in %" PRId64 " .. %" PRId64, e->name, text, e->min, e->max);
    *value = n;
    return 0;
}

/* "L,R" */
static int set_pair(int64_t *values, const entry *e, const char *text, failure *f) {
    char first[32];
    const char *comma = strchr(text, ',');
    if (!comma || (size_t)(comma - text) >= sizeof first)
        return fail(f, EXIT_USAGE, "--%s: %s is no pair %s of whole numbers", e->name, text, e->argument);
    snprintf(first, sizeof first, "%.*s", (int)(comma - text), text);
    return set_size(&values[0], e, first, f) || set_size(&values[1], e, comma + 1, f) ? -1 : 0;
}

static int set_real(double *value, const entry *e, const char *text, failure *f) {
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end || !isfinite(x))
        return fail(f, EXIT_USAGE, "--%s: %s is no finite number", e->name, text);
    *value = x;
    return 0;
}

static int set(options *o, const entry *e, const char *text, failure *f) {
    void *at = field(o, e);
    switch (e->kind) {
    case FLAG:
        *(int *)at = 1;
        return 0;
    case CHOICE:
        return set_choice(at, e, text, f);
    case SIZE:
        return set_size(at, e, text, f);
    case PAIR:
        return set_pair(at, e, text, f);
    case REAL:
        return set_real(at, e, text, f);
    case TEXT:
        if (!*text)
            return fail(f, EXIT_USAGE, "--%s: the name is empty", e->name);
        *(const char **)at = text;
    }
    return 0;
}

static void getopt_tables(enum command command, struct option *longs, char *shorts) {
    *shorts++ = ':';
    for (int i = 0; i < ENTRIES; i++) {
        const entry *e = &table[i];
        if (!(e->commands & command))
            continue;
        *longs++ = (struct option){e->name, e->kind == FLAG ? no_argument : required_argument, NULL, LONG_VALUE + i};
        if (e->letter) {
            *shorts++ = (char)e->letter;
            if (e->kind != FLAG)
                *shorts++ = ':';
        }
    }
    memset(longs, 0, sizeof *longs);
    *shorts = 0;
}

static const entry *entry_of(int value) {
    if (value >= LONG_VALUE)
        return &table[value - LONG_VALUE];
    for (int i = 0; i < ENTRIES; i++)
        if (value && table[i].letter == value)
            return &table[i];
    return NULL;
}

/* Combinations that no subcommand can make sense of. */
static int check(const options *o, failure *f) {
    if (o->causal && o->causal_block)
        return fail(f, EXIT_USAGE, "--causal and --causal-block exclude each other (--causal-block 1 is --causal)");
    int causal = o->causal || o->causal_block, window = o->window[0] >= 0 || o->window[1] >= 0;
    /* A file may hold ALiBi's slopes: it is asked later. */
    if (o->align && !causal && !window && !o->alibi && !(o->command & FILES && o->operand_count))
        return fail(f, EXIT_USAGE, "--align needs --causal%s",
                    o->command & FILES ? ", --causal-block, --window or --alibi" : " or --causal-block");
    if (o->prefix && !causal)
        return fail(f, EXIT_USAGE, "--prefix needs --causal or --causal-block");
    if (o->keep_first && o->window[0] < 0)
        return fail(f, EXIT_USAGE, "--keep-first needs a --window that is bounded on its left");
    if (o->softcap < 0)
        return fail(f, EXIT_USAGE, "--softcap must not be below 0");
    if (o->dropout < 0 || o->dropout > 1)
        return fail(f, EXIT_USAGE, "--dropout must be in 0 .. 1");
    if (o->command == ATTEND && !o->backward && (o->dbias || o->dsinks))
        return fail(f, EXIT_USAGE, "--%s needs --backward", o->dbias ? "dbias" : "dsinks");
    if (o->timeout <= 0)
        return fail(f, EXIT_USAGE, "--timeout must be above 0");
    if (o->tolerance <= 0)
        return fail(f, EXIT_USAGE, "--tolerance must be above 0");
    if (o->quiet && o->verbose)
        return fail(f, EXIT_USAGE, "--quiet and --verbose exclude each other");
    return 0;
}

int options_parse(options *o, int argc, char **argv, failure *f) {
    struct option longs[ENTRIES + 1];
    char shorts[2 * ENTRIES + 2];
    getopt_tables(o->command, longs, shorts);
    opterr = 0;
    optind = 1;
    for (int value; (value = getopt_long(argc, argv, shorts, longs, NULL)) != -1;) {
        const char *argument = argv[optind - 1];
        const entry *e = entry_of(value == '?' || value == ':' ? optopt : value);
        if (value == ':')
            return fail(f, EXIT_USAGE, "option %s needs a value", argument);
        if (value == '?' && optopt >= LONG_VALUE)
            return fail(f, EXIT_USAGE, "option --%s takes no value", e->name);
        if (value == '?' && argument[1] != '-') {
            char letter[3] = {'-', (char)optopt, 0};
            return refuse_unknown(o, strlen(argument) > 2 ? argument : letter, argv[0], f);
        }
        if (value == '?')
            return refuse_unknown(o, argument, argv[0], f);
        if (value >= LONG_VALUE && optarg == argument)
            argument = argv[optind - 2];
        if (value >= LONG_VALUE && find(argument + 2, strcspn(argument + 2, "="), o->command) != e)
            return refuse_unknown(o, argument, argv[0], f);
        if (set(o, e, optarg, f))
            return -1;
    }
    o->operands = (const char **)argv + optind;
    o->operand_count = argc - optind;
    return o->help ? 0 : check(o, f);
}

void options_help(FILE *to, enum command command) {
    enum { TEXT_AT = 24, WIDTH = 100 };
    for (int i = 0; i < ENTRIES; i++) {
        const entry *e = &table[i];
        if (!(e->commands & command))
            continue;
        char letter[5] = "    ";
        if (e->letter)
            snprintf(letter, sizeof letter, "-%c, ", e->letter);
        int column = fprintf(to, "  %s--%s%s%s", letter, e->name, e->argument ? " " : "", e->argument ? e->argument : "");
        for (const char *word = e->help; *word;) {
            int length = (int)strcspn(word, " ");
            if (column + length + 1 > WIDTH || column >= TEXT_AT + 4) {
                if (column + length + 1 > WIDTH)
                    column = fprintf(to, "\n") - 1;
            }
            if (column < TEXT_AT)
                column += fprintf(to, "%*s", TEXT_AT - column, "");
            column += fprintf(to, " %.*s", length, word);
            word += length + (word[length] == ' ');
        }
        fprintf(to, "\n");
    }
}

static int equal_reals(double a, double b) {
    return a == b || (isnan(a) && isnan(b));
}

int options_equal(const options *a, const options *b) {
    static const size_t bytes[] = {
        [FLAG] = sizeof(int), [CHOICE] = sizeof(int), [SIZE] = sizeof(int64_t), [PAIR] = 2 * sizeof(int64_t), [TEXT] = sizeof(char *)};
    for (int i = 0; i < ENTRIES; i++) {
        const entry *e = &table[i];
        const void *x = (const char *)a + e->offset, *y = (const char *)b + e->offset;
        if (e->kind == REAL ? !equal_reals(*(const double *)x, *(const double *)y) : memcmp(x, y, bytes[e->kind]) != 0)
            return 0;
    }
    return 1;
}

void options_print(FILE *to, const options *o, const char *name) {
    options unset;
    options_init(&unset, o->command);
    fprintf(to, "ringattn %s", name);
    for (int i = 0; i < o->operand_count; i++)
        fprintf(to, " %s", o->operands[i]);
    for (int i = 0; i < ENTRIES; i++) {
        const entry *e = &table[i];
        const char *at = (const char *)o + e->offset, *was = (const char *)&unset + e->offset;
        if (!(e->commands & o->command))
            continue;
        if (e->kind == FLAG && *(const int *)at)
            fprintf(to, " --%s", e->name);
        else if (e->kind == CHOICE && *(const int *)at)
            fprintf(to, " --%s %s", e->name, e->choices[*(const int *)at]);
        else if (e->kind == SIZE && *(const int64_t *)at != *(const int64_t *)was)
            fprintf(to, " --%s %" PRId64, e->name, *(const int64_t *)at);
        else if (e->kind == PAIR && memcmp(at, was, 2 * sizeof(int64_t)) != 0)
            fprintf(to, " --%s %" PRId64 ",%" PRId64, e->name, ((const int64_t *)at)[0], ((const int64_t *)at)[1]);
        else if (e->kind == REAL && !isnan(*(const double *)at))
            fprintf(to, " --%s %.9g", e->name, *(const double *)at);
        else if (e->kind == TEXT && *(const char *const *)at)
            fprintf(to, " --%s %s", e->name, *(const char *const *)at);
    }
}
