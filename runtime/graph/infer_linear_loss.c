/* infer_linear_loss.c - shape rules of the loss of a linear layer, whose logits x w' are never whole in memory. */
#include "graph/infer.h"

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
  rows.ndim--;
  return ms_check_same_shape(node, &rows, "x without its last axis", &in[2], "targets");
}

int ms_infer_linear_cross_entropy_part(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_operands(node, in));
  out[0] = (ms_value_info){.dtype = MS_F32, .ndim = 3, .dims = {1, ms_rows(&in[0]), 2}};
  return MS_OK;
}

int ms_infer_linear_cross_entropy_join(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_operands(node, in));
  const ms_value_info added = {.dtype = MS_F32, .ndim = 3, .dims = {node->attrs.i[1], ms_rows(&in[0]), 2}};
  MS_TRY(ms_check_same_shape(node, &in[3], "what the parts add", &added, "parts, rows, 2"));
  out[0] = out[2] = (ms_value_info){.dtype = MS_F32};
  out[1] = (ms_value_info){.dtype = MS_F32, .ndim = 1, .dims = {ms_rows(&in[0])}};
  return MS_OK;
}

/* dw, where the op has it, can have the dtype in which it is reduced. */
int ms_infer_linear_cross_entropy_backward(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_operands(node, in));
  out[0] = in[0];
  if (ms_op_row_of(node->op)->outputs == 1) return MS_OK;
  out[1] = in[1];
  return ms_asked_dtype(node, in[1].dtype, MS_DTYPE_FLOAT, &out[1].dtype);
}

int ms_infer_linear_cross_entropy_step(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_infer_linear_cross_entropy_backward(node, in, out));
  out[2] = (ms_value_info){.dtype = MS_F32};
  return MS_OK;
}
