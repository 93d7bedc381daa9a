/* Random problems: whole tensors from a seed, the same on every machine. Used by verify and bench. */
#ifndef RINGATTN_SAMPLE_H
#define RINGATTN_SAMPLE_H

#include "tensors.h"

/* Fills t with a whole problem (P = 1) of the sizes and mask that o gives; sizes left out are 1, Sq and Skv S, G H, Dv D.
 * with_gradients: dout and dlse too. Ends with tensors_free also after a failure. */
int sample_problem(const options *o, int with_gradients, tensors *t, failure *f);

/* A problem without data: sizes and mask, checked. */
int sample_shape(const options *o, tensors *t, failure *f);

/* n values of about normal distribution in dtype. */
void sample_fill(void *data, int64_t n, ra_dtype dtype, uint64_t seed);

#endif
