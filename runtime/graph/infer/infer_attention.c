/* infer_attention.c - shape rules of attention, with and without documents, and of its gradients. */
#include <inttypes.h>
#include <string.h>

#include "graph/infer/infer.h"
#include "kernels/attention_options.h"

static int check_queries_and_keys(const ms_node *node, const ms_value_info *in) {
  char text_q[MS_SHAPE_TEXT], text_k[MS_SHAPE_TEXT];
  const char *name = ms_node_name(node);
  const ms_value_info *q = &in[0], *k = &in[1];
  MS_TRY(ms_check_float(node, q, "q"));
  MS_TRY(ms_check_ndim(node, q, 4, "q", "[B,T,H,D]"));
  MS_TRY(ms_check_ndim(node, k, 4, "k", "[B,S,G,D]"));
  MS_TRY(ms_check_same_dtype(node, q, "q", k, "k"));
  if (q->dims[0] != k->dims[0] || q->dims[3] != k->dims[3])
    return MS_FAIL(MS_ESHAPE, "%s: q is %s and k is %s; the first and the last dimension must be the same", name,
                   ms_shape_text(q, text_q), ms_shape_text(k, text_k));
  if (q->dims[2] % k->dims[2])
    return MS_FAIL(MS_ESHAPE, "%s: q is %s and k is %s; q's %" PRId64 " heads must be a multiple of k's %" PRId64, name,
                   ms_shape_text(q, text_q), ms_shape_text(k, text_k), q->dims[2], k->dims[2]);
  MS_TRY(ms_attention_options_check(name, node->op, &node->attrs));
  const ms_attention_options o = ms_attention_options_of(node->op, &node->attrs, in);
  if ((o.causal || o.window) && q->dims[1] > k->dims[1])
    return MS_FAIL(MS_ESHAPE, "%s: q is %s and k is %s; %s needs at least as many keys as queries", name,
                   ms_shape_text(q, text_q), ms_shape_text(k, text_k), o.causal ? "causal attention" : "a window");
  return MS_OK;
}

static int check_attention(const ms_node *node, const ms_value_info *in) {
  char text_k[MS_SHAPE_TEXT], text_v[MS_SHAPE_TEXT];
  const ms_value_info *k = &in[1], *v = &in[2];
  MS_TRY(check_queries_and_keys(node, in));
  MS_TRY(ms_check_ndim(node, v, 4, "v", "[B,S,G,E]"));
  MS_TRY(ms_check_same_dtype(node, k, "k", v, "v"));
  if (!memcmp(k->dims, v->dims, 3 * sizeof *k->dims)) return MS_OK;
  return MS_FAIL(MS_ESHAPE, "%s: k is %s and v is %s; all but the last dimension must be the same", ms_node_name(node),
                 ms_shape_text(k, text_k), ms_shape_text(v, text_v));
}

/* [B,T,H,E] */
static ms_value_info attention_result(const ms_value_info *q, const ms_value_info *v) {
  ms_value_info o = *q;
  o.dims[3] = v->dims[3];
  return o;
}

static ms_value_info attention_lse(const ms_value_info *q) {
  return (ms_value_info){.dtype = MS_F32, .ndim = 3, .dims = {q->dims[0], q->dims[2], q->dims[1]}};
}

int ms_infer_attention(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_attention(node, in));
  out[0] = attention_result(&in[0], &in[2]);
  out[1] = attention_lse(&in[0]);
  return MS_OK;
}

int ms_infer_attention_backward(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_attention(node, in));
  const ms_value_info lse = attention_lse(&in[0]), o = attention_result(&in[0], &in[2]);
  MS_TRY(ms_check_same_shape(node, &o, "the result of q and v", &in[3], "o"));
  MS_TRY(ms_check_same_shape(node, &lse, "the lse of q", &in[4], "lse"));
  MS_TRY(ms_check_same_shape(node, &o, "the result of q and v", &in[5], "do"));
  MS_TRY(ms_check_same_dtype(node, &in[0], "q", &in[5], "do"));
  for (int i = 0; i < 3; i++) out[i] = in[i];
  return MS_OK;
}

static int check_documents(const ms_node *node, const ms_value_info *in, const ms_value_info *tokens) {
  char text_q[MS_SHAPE_TEXT], text_k[MS_SHAPE_TEXT], text[MS_SHAPE_TEXT];
  const char *name = ms_node_name(node);
  const ms_value_info *q = &in[0], *k = &in[1];
  const ms_attention_options options = ms_attention_options_of(node->op, &node->attrs, in);
  MS_TRY(ms_check_dtype(node, tokens, MS_I32, "tokens"));
  if (ms_attention_queries(&options, q->dims[1]) != k->dims[1])
    return MS_FAIL(MS_ESHAPE, "%s: q is %s and k is %s; both must have the same length", name, ms_shape_text(q, text_q),
                   ms_shape_text(k, text_k));
  if (tokens->ndim != 2 || tokens->dims[0] != q->dims[0] || tokens->dims[1] != k->dims[1])
    return MS_FAIL(MS_ESHAPE, "%s: k is %s and tokens are %s; they must be [B,T], like the first two axes of k", name,
                   ms_shape_text(k, text_k), ms_shape_text(tokens, text));
  return MS_OK;
}

int ms_infer_attention_max(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_queries_and_keys(node, in));
  out[0] = attention_lse(&in[0]);
  return MS_OK;
}

int ms_infer_document_attention_max(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_infer_attention_max(node, in, out));
  return check_documents(node, in, &in[2]);
}

int ms_infer_document_attention(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_attention(node, in));
  MS_TRY(check_documents(node, in, &in[3]));
  out[0] = attention_result(&in[0], &in[2]);
  out[1] = attention_lse(&in[0]);
  return MS_OK;
}

int ms_infer_document_attention_backward(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_infer_attention_backward(node, in, out));
  return check_documents(node, in, &in[6]);
}

/* As of the attention before it, whose results it scales. */
static int check_sink(const ms_node *node, const ms_value_info *in) {
  char text_q[MS_SHAPE_TEXT], text_sinks[MS_SHAPE_TEXT];
  MS_TRY(check_attention(node, in));
  const ms_value_info lse = attention_lse(&in[0]), o = attention_result(&in[0], &in[2]), *sinks = &in[5];
  MS_TRY(ms_check_same_shape(node, &o, "the result of q and v", &in[3], "o"));
  MS_TRY(ms_check_same_dtype(node, &in[0], "q", &in[3], "o"));
  MS_TRY(ms_check_same_shape(node, &lse, "the lse of q", &in[4], "lse"));
  MS_TRY(ms_check_dtype(node, &in[4], MS_F32, "lse"));
  MS_TRY(ms_check_float(node, sinks, "sinks"));
  if (sinks->ndim != 1 || sinks->dims[0] != in[0].dims[2])
    return MS_FAIL(MS_ESHAPE, "%s: q is %s and sinks are %s; they must be [H], one for each of the %" PRId64 " heads",
                   ms_node_name(node), ms_shape_text(&in[0], text_q), ms_shape_text(sinks, text_sinks), in[0].dims[2]);
  return MS_OK;
}

int ms_infer_attention_sink(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_sink(node, in));
  out[0] = in[3];
  out[1] = in[4];
  return MS_OK;
}

int ms_infer_document_attention_sink(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_infer_attention_sink(node, in, out));
  return check_documents(node, in, &in[6]);
}

int ms_infer_attention_sink_backward(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_check_same_shape(node, &in[0], "o", &in[2], "do"));
  MS_TRY(ms_check_same_dtype(node, &in[0], "o", &in[2], "do"));
  out[0] = in[3];
  return MS_OK;
}
