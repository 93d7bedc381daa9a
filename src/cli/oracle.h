/* The fp64 reference that everything else is measured against: attention and its gradients as they are written on paper.
 *
 * Two passes over whole sequences on one rank, plain loops in double, every logit of a row held at once. It shares no code with the
 * library (no online softmax, no tiles, no schedule), so that a fault would have to be made twice to go unseen; only which pairs are
 * dropped is one definition for both, dropout.h. It needs nothing else but ringattention.h's types; the tests compile it on its own.
 *
 *   z_ij = scale temperature_i q_i.k_j                               over the keys j that query i sees
 *   s_ij = softcap tanh(z_ij / softcap) + bias_ij - slope |i + offset - j|
 *   lse_i = ln(exp(sink) + sum_j exp(s_ij))     p_ij = exp(s_ij - lse_i)     m_ij = 1 / (1 - dropout), or 0 where (i, j) is dropped
 *   out_i = sum_j p_ij m_ij v_j                 row_max_i = max_j s_ij
 *   dv_j = sum_i p_ij m_ij dout_i               ds_ij = p_ij (m_ij dout_i.v_j - dout_i.out_i + dlse_i)
 *   dbias = ds, summed over broadcast axes      dsink = sum_i exp(sink - lse_i) (dlse_i - dout_i.out_i)
 *   dz_ij = ds_ij (1 - tanh^2(z_ij / softcap))
 *   dq_i = sum_j scale temperature_i dz_ij k_j  dk_j = sum_i scale temperature_i dz_ij q_i
 */
#ifndef RINGATTN_ORACLE_H
#define RINGATTN_ORACLE_H

#include "ringattention.h"

/* Whole sequences, axes (b, t, h, d) as in ra_attention_args: q [B,Sq,H,D], k [B,Skv,G,D], v [B,Skv,G,Dv], bias (b, query, h, key),
 * dout [B,Sq,H,Dv], dlse [B,H,Sq], sinks [H], temperature [Sq]. */
typedef struct oracle_inputs {
    ra_tensor q, k, v;
    ra_tensor bias;           /* data NULL: none */
    ra_tensor dout;           /* data NULL: zero */
    const float *dlse;        /* NULL: zero */
    const float *sinks;       /* NULL: none */
    const float *temperature; /* NULL: 1 */
} oracle_inputs;

/* Dense, in (b, t, h, d) order whatever the order of the inputs: out [B,Sq,H,Dv], lse [B,H,Sq], dq [B,Sq,H,D], dk [B,Skv,G,D],
 * dv [B,Skv,G,Dv], row_max [B,H,Sq], dsinks [H], dbias as oracle_bias_shape says. To be released by oracle_result_free. */
typedef struct oracle_result {
    double *out, *lse, *row_max;
    double *dq, *dk, *dv;   /* NULL unless the backward was asked for */
    double *dbias, *dsinks; /* likewise, and unless there is a bias, sinks */
} oracle_result;

/* Evaluates problem (sizes, scale, mask with the ids of whole sequences, softcap, alibi_slopes, dropout, seed, backward; the rest is not
 * read). Returns RA_OK, or RA_ERR_MEMORY with *result all NULL. */
ra_status oracle_attention(const ra_problem *problem, const oracle_inputs *in, oracle_result *result);
void oracle_result_free(oracle_result *result);

/* The bias's lengths in the order b, h, query, key: 1 where it is broadcast. */
void oracle_bias_shape(const ra_problem *problem, const ra_tensor *bias, int64_t shape[4]);

/* 1 if query i of batch b and head h sees key j. bias may be NULL. */
int oracle_sees(const ra_problem *problem, const ra_tensor *bias, int64_t b, int64_t h, int64_t i, int64_t j);

/* One element of a tensor as double. */
double oracle_load(const ra_tensor *tensor, int64_t b, int64_t t, int64_t h, int64_t d);

#endif
