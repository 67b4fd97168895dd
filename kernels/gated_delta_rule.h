/* gated_delta_rule.h - what the kernels of the gated delta rule on all devices, its shape rule and its cost read of a
 * call (Yang et al. 2024, "Gated Delta Networks"). Each value head has a state S [D,E], 0 before its first position:
 *
 *   S_t = e^{g_t} S_{t-1} + k_t (beta_t (v_t - e^{g_t} S_{t-1}' k_t))'        y_t = scale S_t' q_t
 *
 * Kernels compute it in chunks of up to MS_DELTA_CHUNK positions. With c_i = g_1 + ... + g_i in a chunk whose state
 * before is S, and all sums over positions of the chunk:
 *
 *   x_i = v_i - e^{c_i} S' k_i - sum over j < i of M_ij u_j     u_i = beta_i x_i     M_ij = e^{c_i - c_j} k_i' k_j
 *   y_i = scale e^{c_i} S' q_i + sum over j <= i of P_ij u_j    P_ij = scale e^{c_i - c_j} q_i' k_j
 *   S  <- e^{c_n} S + sum over j of e^{c_n - c_j} k_j u_j'
 *
 * The gradient makes the states again, and keeps those at multiples of MS_DELTA_CHUNK. A chunk begins there and where a
 * document does, whose state is 0, so these are all that it needs.
 */
#ifndef MS_KERNELS_GATED_DELTA_RULE_H
#define MS_KERNELS_GATED_DELTA_RULE_H

#include <math.h>

#include "kernels/op.h"

enum { MS_DELTA_CHUNK = 64 };

/* Inputs; the last one, which not every call has, is the state before the first position or, with documents, the
 * tokens. The gradient has that of y before it. */
enum { MS_DELTA_Q, MS_DELTA_K, MS_DELTA_V, MS_DELTA_G, MS_DELTA_BETA, MS_DELTA_LAST, MS_DELTA_DY = MS_DELTA_LAST };

/* q, k [batch][t][groups][d], v, y [batch][t][heads][e], g, beta [batch][t][heads]; heads / groups value heads share a
 * key head. */
typedef struct ms_delta_rule {
  int64_t batch, t, groups, heads, d, e;
  int backward;
  int begins; /* the input with the state before the first position, or -1: it is 0 */
  int tokens; /* the input with tokens, or -1: there are no documents */
  int32_t start;
  float scale;
} ms_delta_rule;

static inline ms_delta_rule ms_delta_rule_of(int op, const ms_op_attrs *attrs, int inputs, const ms_value_info *in) {
  const int documents = op == MS_OP_document_gated_delta_rule || op == MS_OP_document_gated_delta_rule_backward;
  const int backward = op == MS_OP_gated_delta_rule_backward || op == MS_OP_document_gated_delta_rule_backward;
  const int64_t *k = in[MS_DELTA_K].dims, *v = in[MS_DELTA_V].dims;
  const double scale = attrs->delta_rule.scale != 0.0 ? attrs->delta_rule.scale : 1.0 / sqrt((double)k[3]);
  ms_delta_rule r;
  r.batch = k[0], r.t = k[1], r.groups = k[2], r.heads = v[2], r.d = k[3], r.e = v[3];
  r.backward = backward;
  r.begins = !documents && !backward && inputs > MS_DELTA_LAST ? MS_DELTA_LAST : -1;
  r.tokens = documents ? MS_DELTA_LAST + backward : -1;
  r.start = documents ? (int32_t)attrs->delta_rule.start : 0;
  r.scale = (float)scale;
  return r;
}

/* Chunks of a row without documents: states that the gradient keeps of a head. */
static inline int64_t ms_delta_chunks(const ms_delta_rule *r) { return (r->t + MS_DELTA_CHUNK - 1) / MS_DELTA_CHUNK; }

#endif
