/* infer_delta_rule.c - shape rules of the gated delta rule, with and without documents, and of its gradient. */
#include <inttypes.h>
#include <string.h>

#include "graph/infer/infer.h"
#include "kernels/gated_delta_rule.h"

static int check_keys(const ms_node *node, const ms_value_info *q, const ms_value_info *k) {
  MS_TRY(ms_check_float(node, q, "q"));
  MS_TRY(ms_check_ndim(node, q, 4, "q", "[B,T,G,D]"));
  MS_TRY(ms_check_same_shape(node, q, "q", k, "k"));
  return ms_check_same_dtype(node, q, "q", k, "k");
}

static int check_values(const ms_node *node, const ms_value_info *k, const ms_value_info *v) {
  char text_k[MS_SHAPE_TEXT], text_v[MS_SHAPE_TEXT];
  MS_TRY(ms_check_ndim(node, v, 4, "v", "[B,T,H,E]"));
  MS_TRY(ms_check_same_dtype(node, k, "k", v, "v"));
  if (memcmp(k->dims, v->dims, 2 * sizeof *k->dims))
    return MS_FAIL(MS_ESHAPE, "%s: k is %s and v is %s; the first two dimensions must be the same", ms_node_name(node),
                   ms_shape_text(k, text_k), ms_shape_text(v, text_v));
  if (k->dims[2] && v->dims[2] % k->dims[2] == 0) return MS_OK;
  return MS_FAIL(MS_ESHAPE, "%s: k is %s and v is %s; v's %" PRId64 " heads must be a multiple of k's %" PRId64,
                 ms_node_name(node), ms_shape_text(k, text_k), ms_shape_text(v, text_v), v->dims[2], k->dims[2]);
}

/* g and beta: a number for each position of each head of v; of f32, or of the dtype of v. */
static int check_numbers(const ms_node *node, const ms_value_info *v, const ms_value_info *x, const char *what) {
  char text_v[MS_SHAPE_TEXT], text_x[MS_SHAPE_TEXT];
  MS_TRY(ms_check_float(node, x, what));
  if (x->ndim == 3 && !memcmp(x->dims, v->dims, 3 * sizeof *x->dims)) return MS_OK;
  return MS_FAIL(MS_ESHAPE, "%s: v is %s and %s is %s; it must be [B,T,H], like the first three axes of v",
                 ms_node_name(node), ms_shape_text(v, text_v), what, ms_shape_text(x, text_x));
}

static int check_tokens(const ms_node *node, const ms_value_info *v, const ms_value_info *tokens) {
  char text_v[MS_SHAPE_TEXT], text[MS_SHAPE_TEXT];
  MS_TRY(ms_check_dtype(node, tokens, MS_I32, "tokens"));
  if (tokens->ndim == 2 && !memcmp(tokens->dims, v->dims, 2 * sizeof *v->dims)) return MS_OK;
  return MS_FAIL(MS_ESHAPE, "%s: v is %s and tokens are %s; they must be [B,T], like the first two axes of v",
                 ms_node_name(node), ms_shape_text(v, text_v), ms_shape_text(tokens, text));
}

static ms_value_info state_of(const ms_delta_rule *r) {
  return (ms_value_info){.dtype = MS_F32, .ndim = 4, .dims = {r->batch, r->heads, r->d, r->e}};
}

static int check(const ms_node *node, const ms_value_info *in, ms_delta_rule *r) {
  MS_TRY(check_keys(node, &in[MS_DELTA_Q], &in[MS_DELTA_K]));
  MS_TRY(check_values(node, &in[MS_DELTA_K], &in[MS_DELTA_V]));
  MS_TRY(check_numbers(node, &in[MS_DELTA_V], &in[MS_DELTA_G], "g"));
  MS_TRY(check_numbers(node, &in[MS_DELTA_V], &in[MS_DELTA_BETA], "beta"));
  *r = ms_delta_rule_of(node->op, &node->attrs, node->inputs, in);
  return r->tokens < 0 ? MS_OK : check_tokens(node, &in[MS_DELTA_V], &in[r->tokens]);
}

int ms_infer_gated_delta_rule(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  ms_delta_rule r;
  MS_TRY(check(node, in, &r));
  const ms_value_info state = state_of(&r);
  if (r.begins >= 0) {
    MS_TRY(ms_check_same_shape(node, &state, "the state of k and v", &in[r.begins], "the given state"));
    MS_TRY(ms_check_dtype(node, &in[r.begins], MS_F32, "state"));
  }
  out[0] = in[MS_DELTA_V];
  out[1] = state;
  return MS_OK;
}

int ms_infer_gated_delta_rule_backward(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  ms_delta_rule r;
  MS_TRY(check(node, in, &r));
  MS_TRY(ms_check_same_shape(node, &in[MS_DELTA_V], "v", &in[MS_DELTA_DY], "dy"));
  MS_TRY(ms_check_same_dtype(node, &in[MS_DELTA_V], "v", &in[MS_DELTA_DY], "dy"));
  for (int i = 0; i < 5; i++) out[i] = in[i];
  return MS_OK;
}
