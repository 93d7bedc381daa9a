/* What an input file means as an attention problem: finds its tensors, checks that their shapes and types fit together. */
#ifndef RINGATTN_INPUT_H
#define RINGATTN_INPUT_H

#include "safetensors.h"
#include "tensors.h"

typedef struct input {
    const char *path;
    int fd; /* -1: not open */
    st_header header;
    const st_tensor *tensor[SLOTS]; /* NULL: not in the file. Q_IDS and KV_IDS may be the same tensor */
    ra_dtype dtype[SLOTS];          /* of the floating-point ones */
} input;

/* Opens o's first operand. Ends with input_close also after a failure. */
int input_open(input *in, const char *path, failure *f);
void input_close(input *in);

/* The problem that file and options describe: fills t->problem, t->order, t->bias_axes. Errors: EXIT_BAD_INPUT, EXIT_USAGE. */
int input_problem(const input *in, const options *o, tensors *t, failure *f);

/* After the tensors have been read: their values are checked (EXIT_BAD_INPUT), --alibi makes its slopes. */
int input_finish(const input *in, const options *o, tensors *t, failure *f);

/* The options' share of a problem: layout, mask, modifiers, chunks. */
void options_problem(const options *o, ra_problem *p);

#endif
