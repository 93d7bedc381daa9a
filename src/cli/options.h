/* The command line as a struct. One table gives names, values, limits and help of every option of every subcommand. */
#ifndef RINGATTN_OPTIONS_H
#define RINGATTN_OPTIONS_H

#include <stdio.h>

#include "failure.h"

enum command { ATTEND = 1, VERIFY = 2, BENCH = 4, INFO = 8 };
enum order { ORDER_BSHD, ORDER_BHSD };
enum bias_kind { BIAS_NONE, BIAS_KEY, BIAS_FULL };

typedef struct options {
    enum command command;
    const char *output;
    const char **operands; /* arguments that are no options, in argv */
    int operand_count;
    int help, json, quiet, verbose, list;
    int backward, causal, layout, align, order, dtype, bias; /* flags, and the library's or our own enums */
    int alibi, sinks, temperature, kv_lens, row_max, dbias, dsinks, matrix;
    int64_t ring, threads, causal_block, q_chunk, k_chunk, repeat, segments, seed;
    int64_t window[2], prefix, keep_first, packed, slices, random;
    int64_t B, S, Sq, Skv, H, G, D, Dv;
    double scale, timeout, tolerance, softcap, dropout;
    const char *only;
} options;

void options_init(options *o, enum command command); /* the defaults: what is not given is 0, -1 for sizes, NaN for reals */

/* Reads argv[1..]; argv[0] is the subcommand's name. 0, or -1 with the reason in f (EXIT_USAGE). */
int options_parse(options *o, int argc, char **argv, failure *f);

void options_help(FILE *to, enum command command); /* the lines about each option */

/* The command line that gives these options, without what is at its default. */
void options_print(FILE *to, const options *o, const char *name);

/* 1 if both say the same, operands aside. */
int options_equal(const options *a, const options *b);

/* The name nearest to `text` in a list that ends with NULL; NULL if none is near. */
const char *nearest_name(const char *text, const char *const *names);

const char *layout_name(int layout);
const char *dtype_name(int dtype); /* as on the command line: "f32" */

#endif
