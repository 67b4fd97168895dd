/* infer_linear_loss.c - shape rules of the loss of a linear layer, whose logits x w' + b are never whole in memory. */
#include "graph/infer/infer.h"
#include "kernels/products/linear_cross_entropy.h"

/* The bias of an op that has one: b [V] in f32, or the dtype of the logits. */
static int check_bias(const ms_node *node, const ms_value_info *in) {
  const int b = ms_loss_bias_of(node->op, node->inputs);
  const ms_value_info logits = {.dtype = in[0].dtype, .ndim = 2, .dims = {ms_rows(&in[0]), in[1].dims[0]}};
  return b < 0 ? MS_OK : ms_check_channels(node, &logits, &in[b], "the bias");
}

/* x [...,D] and w [V,D] of one dtype, targets [...] */
static int check_operands(const ms_node *node, const ms_value_info *in) {
  char x[MS_SHAPE_TEXT], w[MS_SHAPE_TEXT];
  ms_value_info rows = in[0];
  MS_TRY(ms_check_float(node, &in[0], "x"));
  MS_TRY(ms_check_ndim(node, &in[1], 2, "w", "[V,D]"));
  MS_TRY(ms_check_same_dtype(node, &in[0], "x", &in[1], "w"));
  MS_TRY(ms_check_dtype(node, &in[2], MS_I32, "targets"));
  if (in[0].ndim < 1 || in[0].dims[in[0].ndim - 1] != in[1].dims[1])
    return MS_FAIL(MS_ESHAPE, "%s: x is %s and w %s; their last dimensions must be equal", ms_node_name(node),
                   ms_shape_text(&in[0], x), ms_shape_text(&in[1], w));
  MS_TRY(check_bias(node, in));
  rows.ndim--;
  return ms_check_same_shape(node, &rows, "x without its last axis", &in[2], "targets");
}

/* The last output of the ops that make logits: those of one chunk. As an output it can use memory that workspaces
 * cannot, such as gradients that are not written yet. */
static ms_value_info chunk_of(const ms_node *node, const ms_value_info *in) {
  const ms_loss_sizes sizes = ms_loss_sizes_of(node->op, &node->attrs, in);
  return (ms_value_info){.dtype = in[0].dtype, .ndim = 2, .dims = {sizes.chunk, sizes.classes}};
}

int ms_infer_linear_cross_entropy_part(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_operands(node, in));
  out[0] = (ms_value_info){.dtype = MS_F32, .ndim = 3, .dims = {1, ms_rows(&in[0]), 2}};
  out[1] = chunk_of(node, in);
  return MS_OK;
}

int ms_infer_linear_cross_entropy_join(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_operands(node, in));
  const ms_value_info added = {.dtype = MS_F32, .ndim = 3, .dims = {node->attrs.loss.parts, ms_rows(&in[0]), 2}};
  MS_TRY(ms_check_same_shape(node, &in[3], "what the parts add", &added, "parts, rows, 2"));
  out[0] = out[2] = (ms_value_info){.dtype = MS_F32};
  out[1] = (ms_value_info){.dtype = MS_F32, .ndim = 1, .dims = {ms_rows(&in[0])}};
  return MS_OK;
}

/* dw can have the dtype in which it is reduced. */
int ms_infer_linear_cross_entropy_backward(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_operands(node, in));
  out[0] = in[0];
  out[1] = in[1];
  out[2] = chunk_of(node, in);
  return ms_asked_dtype(node, in[1].dtype, MS_DTYPE_FLOAT, &out[1].dtype);
}

int ms_infer_linear_cross_entropy_backward_x(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_operands(node, in));
  out[0] = in[0];
  out[1] = chunk_of(node, in);
  return MS_OK;
}

int ms_infer_linear_cross_entropy_step(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_infer_linear_cross_entropy_backward(node, in, out));
  out[3] = out[2];
  out[2] = (ms_value_info){.dtype = MS_F32};
  return MS_OK;
}

/* db can have the dtype in which it is reduced, too. */
int ms_infer_linear_cross_entropy_backward_bias(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  ms_node asks = *node;
  MS_TRY(ms_infer_linear_cross_entropy_backward(node, in, out));
  out[3] = out[2];
  out[2] = in[ms_loss_bias_of(node->op, node->inputs)];
  asks.attrs.out_dtype = node->attrs.loss.bias_dtype;
  return ms_asked_dtype(&asks, out[2].dtype, MS_DTYPE_FLOAT, &out[2].dtype);
}

int ms_infer_linear_cross_entropy_step_bias(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_infer_linear_cross_entropy_backward_bias(node, in, out));
  out[4] = out[3];
  out[3] = (ms_value_info){.dtype = MS_F32};
  return MS_OK;
}
