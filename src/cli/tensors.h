/* The tensors of one attention problem as one rank holds them, and how their rows lie in the whole sequence.
 *
 * Every tensor is [outer][tokens][bytes]: q in bshd order is [B][Sq][H D], in bhsd order [B H][Sq][D], lse [B H][Sq][1]. A rank holds the
 * rows of its tokens in local order, with the outer axis kept, so that files and memory have the same order of axes. The whole
 * problem on one rank (P = 1) is the same struct. */
#ifndef RINGATTN_TENSORS_H
#define RINGATTN_TENSORS_H

#include "failure.h"
#include "options.h"

/* Inputs, then from OUT on results. */
typedef enum slot {
    Q,
    K,
    V,
    DOUT,
    DLSE,
    BIAS,
    Q_IDS,
    KV_IDS,
    KV_LENS,
    CU_Q,
    CU_KV,
    SLICES,
    ALIBI,
    SINKS,
    TEMPERATURE,
    OUT,
    LSE,
    DQ,
    DK,
    DV,
    ROW_MAX,
    DBIAS,
    DSINKS,
    SLOTS
} slot;

typedef struct tensors {
    ra_problem problem; /* of the whole sequence; its arrays are set by tensors_plan_arrays */
    enum order order;
    int P, r;
    int64_t bias_axes[4]; /* batch, head, query and key axes of the bias as stored: full length or 1 */
    void *data[SLOTS];    /* NULL: not there */
    ra_dtype dtype[SLOTS];
} tensors;

typedef struct rows {
    int64_t outer, tokens, bytes; /* of the whole sequence */
    int whole;                    /* one row for all tokens, or none by token: every rank has all of it */
} rows;

const char *slot_name(slot s);

/* Shape of the whole tensor in the order of the file; returns the number of axes. */
int tensors_shape(const tensors *t, slot s, int64_t shape[4]);

rows tensors_rows(const tensors *t, slot s);
int64_t tensors_local_tokens(const tensors *t, slot s);
int64_t tensors_elements(const tensors *t, slot s); /* of this rank's rows */

/* The longest run of local tokens from t on that are neighbours in the sequence too, and where in the sequence it begins. */
int64_t tensors_run(const tensors *t, slot s, int64_t from, int64_t *position);

/* Memory for this rank's rows, never NULL on success even for no rows, aligned to 64. */
int tensors_allocate(tensors *t, slot s, ra_dtype dtype, failure *f);
void tensors_free(tensors *t);

/* Fills a rank's tensor with its rows of the whole one; both in the same order. */
void tensors_gather(const tensors *whole, tensors *mine, slot s);

ra_tensor tensors_view(const tensors *t, slot s); /* data NULL if it is not there */
ra_attention_args tensors_args(const tensors *t); /* all but stats */
void tensors_plan_arrays(tensors *t);             /* points the problem at ids, lengths, offsets, slices and slopes */
int tensors_usual_slopes(tensors *t, failure *f); /* ALIBI by ra_alibi_slopes */

int tensors_is_bias(slot s);  /* BIAS or DBIAS */
int tensors_is_row(slot s);   /* one number for each batch element, head and query: LSE, DLSE, ROW_MAX */
int tensors_is_fixed(slot s); /* the same on every rank, whatever tokens it holds */

#endif
