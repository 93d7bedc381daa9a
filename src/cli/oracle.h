/* The fp64 reference that everything else is measured against: attention and its gradients as they are written on paper.
 *
 * Two passes over whole sequences on one rank, plain loops in double, every logit of a row held at once. It shares no code with the
 * library (no online softmax, no tiles, no schedule), so that a fault would have to be made twice to go unseen. It needs nothing but
 * ringattention.h's types; the tests compile it on its own.
 *
 *   s_ij = scale q_i.k_j + bias_ij over the keys j that query i sees
 *   lse_i = ln sum_j exp(s_ij)     p_ij = exp(s_ij - lse_i)     out_i = sum_j p_ij v_j
 *   dv_j = sum_i p_ij dout_i       ds_ij = p_ij (dout_i.v_j - dout_i.out_i + dlse_i)
 *   dq_i = scale sum_j ds_ij k_j   dk_j = scale sum_i ds_ij q_i
 */
#ifndef RINGATTN_ORACLE_H
#define RINGATTN_ORACLE_H

#include "ringattention.h"

/* Whole sequences, axes (b, t, h, d) as in ra_attention_args: q [B,Sq,H,D], k [B,Skv,G,D], v [B,Skv,G,Dv], bias (b, query, h, key),
 * dout [B,Sq,H,Dv], dlse [B,H,Sq]. */
typedef struct oracle_inputs {
    ra_tensor q, k, v;
    ra_tensor bias;    /* data NULL: none */
    ra_tensor dout;    /* data NULL: zero */
    const float *dlse; /* NULL: zero */
} oracle_inputs;

/* Dense, in (b, t, h, d) order whatever the order of the inputs: out [B,Sq,H,Dv], lse [B,H,Sq], dq [B,Sq,H,D], dk [B,Skv,G,D],
 * dv [B,Skv,G,Dv]. To be released by oracle_result_free. */
typedef struct oracle_result {
    double *out, *lse;
    double *dq, *dk, *dv; /* NULL unless the backward was asked for */
} oracle_result;

/* Evaluates problem (B, Sq, Skv, H, G, D, Dv, scale, mask with the ids of whole sequences, backward; the rest is not read).
 * Returns RA_OK, or RA_ERR_MEMORY with *result all NULL. */
ra_status oracle_attention(const ra_problem *problem, const oracle_inputs *in, oracle_result *result);
void oracle_result_free(oracle_result *result);

/* 1 if query i of batch b and head h sees key j. bias may be NULL. */
int oracle_sees(const ra_problem *problem, const ra_tensor *bias, int64_t b, int64_t h, int64_t i, int64_t j);

/* One element of a tensor as double. */
double oracle_load(const ra_tensor *tensor, int64_t b, int64_t t, int64_t h, int64_t d);

#endif
