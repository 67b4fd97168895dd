/* infer_elementwise.c - shape rules of elementwise ops. */
#include <stdio.h>

#include "base/numbers/dtype.h"
#include "graph/infer/infer.h"

static int64_t dim_from_end(const ms_value_info *x, int back) { return back <= x->ndim ? x->dims[x->ndim - back] : 1; }

/* NumPy's rule: aligned at the last dimension, sizes equal or one of them 1. */
static int broadcast_shape(const ms_node *node, const ms_value_info *a, const ms_value_info *b, ms_value_info *out) {
  char text_a[MS_SHAPE_TEXT], text_b[MS_SHAPE_TEXT];
  out->ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
  for (int back = 1; back <= out->ndim; back++) {
    int64_t size_a = dim_from_end(a, back), size_b = dim_from_end(b, back);
    if (size_a != size_b && size_a != 1 && size_b != 1)
      return MS_FAIL(MS_ESHAPE,
                     "%s: shapes do not broadcast: %s and %s; from the last dimension on, sizes must be equal or 1",
                     ms_node_name(node), ms_shape_text(a, text_a), ms_shape_text(b, text_b));
    out->dims[out->ndim - back] = size_a == 1 ? size_b : size_a;
  }
  return MS_OK;
}

/* The common dtype of a and b. A power by a single number in f32 keeps the tensor's: in bf16 2.7 would be 2.703. */
static int joined_dtype(const ms_node *node, const ms_value_info *a, const ms_value_info *b) {
  if (a->dtype == b->dtype) return a->dtype;
  const int powers =
      node->op == MS_OP_pow || node->op == MS_OP_pow_backward_base || node->op == MS_OP_pow_backward_exponent;
  if (powers && (a->ndim == 0) != (b->ndim == 0)) return a->ndim ? a->dtype : b->dtype;
  return MS_F32;
}

int ms_infer_broadcast(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_check_float(node, &in[0], "a"));
  MS_TRY(ms_check_float(node, &in[1], "b"));
  MS_TRY(broadcast_shape(node, &in[0], &in[1], &out[0]));
  out[0].dtype = joined_dtype(node, &in[0], &in[1]);
  return MS_OK;
}

/* a and b [2] are floats, or of one integer dtype: i32 and f32 have no common one that holds all values of both. */
static int broadcast_any(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  if (ms_is_float(in[0].dtype) && ms_is_float(in[1].dtype)) return ms_infer_broadcast(node, in, out);
  MS_TRY(ms_check_same_dtype(node, &in[0], "a", &in[1], "b"));
  MS_TRY(broadcast_shape(node, &in[0], &in[1], out));
  out->dtype = in[0].dtype;
  return MS_OK;
}

int ms_infer_compare(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(broadcast_any(node, in, &out[0]));
  out[0].dtype = MS_U8;
  return MS_OK;
}

/* Inputs a, b and the gradient of what they give, which is named in messages. */
static int infer_binary_backward(const ms_node *node, const ms_value_info *in, const char *given, ms_value_info *out) {
  MS_TRY(ms_infer_broadcast(node, in, out));
  MS_TRY(ms_check_same_shape(node, &out[0], given, &in[2], "dy"));
  return ms_check_float(node, &in[2], "dy");
}

int ms_infer_maximum_backward(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  return infer_binary_backward(node, in, "the larger", out);
}

int ms_infer_pow_backward(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  return infer_binary_backward(node, in, "the power", out);
}

int ms_infer_where(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  ms_value_info chosen;
  MS_TRY(ms_check_dtype(node, &in[0], MS_U8, "c"));
  MS_TRY(broadcast_any(node, &in[1], &chosen));
  MS_TRY(broadcast_shape(node, &in[0], &chosen, &out[0]));
  out[0].dtype = chosen.dtype;
  return MS_OK;
}

int ms_infer_same(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_check_float(node, &in[0], "x"));
  if (in[0].ndim == 0 && (node->op == MS_OP_softmax || node->op == MS_OP_log_softmax))
    return MS_FAIL(MS_ESHAPE, "%s: x is a scalar; it needs a last axis", ms_node_name(node));
  if (node->op == MS_OP_clamp && !(node->attrs.clamp.min <= node->attrs.clamp.max))
    return MS_FAIL(MS_EINVAL, "clamp: min is %g and max is %g; min must not exceed max", node->attrs.clamp.min,
                   node->attrs.clamp.max);
  if (node->op == MS_OP_dropout && !(node->attrs.mask.p >= 0 && node->attrs.mask.p < 1))
    return MS_FAIL(MS_EINVAL, "dropout: p is %g; it must be at least 0 and below 1", node->attrs.mask.p);
  out[0] = in[0];
  return MS_OK;
}

int ms_infer_same2(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_check_float(node, &in[0], "a"));
  MS_TRY(ms_check_same_shape(node, &in[0], "a", &in[1], "b"));
  MS_TRY(ms_check_same_dtype(node, &in[0], "a", &in[1], "b"));
  out[0] = in[0];
  return MS_OK;
}

/* Gradients with the shape of their first input. */
int ms_infer_first(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_check_float(node, &in[0], "the first input"));
  out[0] = in[0];
  return MS_OK;
}

int ms_infer_cast(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  char given[MS_DTYPE_LIST];
  out[0] = in[0];
  MS_TRY(ms_asked_dtype(node, in[0].dtype, 0, &out[0].dtype));
  if (ms_dtype_may(out[0].dtype, MS_DTYPE_CAST)) return MS_OK;
  return MS_FAIL(MS_EDTYPE, "cast: cannot cast to %s; supported are %s, and comparisons produce u8 masks",
                 ms_dtype_name(out[0].dtype), ms_dtype_list(MS_DTYPE_CAST, given));
}

int ms_infer_swiglu_backward(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  static const char *const what[] = {"a", "b", "dy"};
  MS_TRY(ms_check_float(node, &in[0], "a"));
  for (int i = 1; i < 3; i++) {
    MS_TRY(ms_check_same_shape(node, &in[0], "a", &in[i], what[i]));
    MS_TRY(ms_check_same_dtype(node, &in[0], "a", &in[i], what[i]));
  }
  out[0] = out[1] = in[0];
  return MS_OK;
}

int ms_infer_swiglu_backward_recompute(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  out[2] = in[0];
  return ms_infer_swiglu_backward(node, in, out);
}

int ms_infer_activation_backward_bias(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_infer_same2(node, in, out));
  if (in[0].ndim < 1) return MS_FAIL(MS_ESHAPE, "%s: a scalar has no last axis to keep", ms_node_name(node));
  if (node->attrs.product.activation < MS_ACT_RELU || node->attrs.product.activation > MS_ACT_SILU)
    return MS_FAIL(MS_EINVAL, "%s: activation %lld; it must be 1 (relu), 2 (gelu), 3 (gelu_tanh) or 4 (silu)",
                   ms_node_name(node), (long long)node->attrs.product.activation);
  out[1] = (ms_value_info){.ndim = 1, .dims = {in[0].dims[in[0].ndim - 1]}};
  return ms_asked_dtype(node, in[0].dtype, MS_DTYPE_FLOAT, &out[1].dtype);
}

/* Activations that can be recomputed from the gradient's own input; not relu, whose gradient reads the result. */
static int check_recomputed(const ms_node *node) {
  if (node->attrs.product.activation >= MS_ACT_GELU && node->attrs.product.activation <= MS_ACT_SILU) return MS_OK;
  return MS_FAIL(MS_EINVAL, "%s: activation %lld; it must be 2 (gelu), 3 (gelu_tanh) or 4 (silu)", ms_node_name(node),
                 (long long)node->attrs.product.activation);
}

int ms_infer_activation_backward_recompute(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_infer_same2(node, in, out));
  out[1] = in[0];
  return check_recomputed(node);
}

int ms_infer_activation_backward_bias_recompute(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_infer_activation_backward_bias(node, in, out));
  out[2] = in[0];
  return check_recomputed(node);
}
