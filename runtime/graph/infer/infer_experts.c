/* infer_experts.c - shape rules of mixtures of experts: the order of choices, rows that follow it, products by group.
 */
#include <inttypes.h>

#include "graph/infer/infer.h"
#include "kernels/products/matmul_f8.h"

int ms_infer_expert_order(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  char text[MS_SHAPE_TEXT];
  const int64_t experts = node->attrs.experts.experts, choices = ms_numel(&in[0]);
  MS_TRY(ms_check_dtype(node, &in[0], MS_I32, "the index"));
  if (experts < 1 || experts >= INT32_MAX)
    return MS_FAIL(MS_EINVAL, "expert_order: experts is %" PRId64 "; it must be 1 to %d", experts, INT32_MAX - 1);
  if (in[0].ndim < 1 || choices > INT32_MAX)
    return MS_FAIL(MS_ESHAPE, "expert_order: the index is %s; it needs an axis, and at most %d elements",
                   ms_shape_text(&in[0], text), INT32_MAX);
  out[0] = (ms_value_info){.dtype = MS_I32, .ndim = 1, .dims = {choices}};
  out[1] = in[0];
  out[2] = (ms_value_info){.dtype = MS_I32, .ndim = 1, .dims = {experts + 1}};
  return MS_OK;
}

/* order [T K] and places [T,K] of expert_order, and weights like places. */
static int check_choices(const ms_node *node, const ms_value_info *order, const ms_value_info *places,
                         const ms_value_info *weights) {
  char text_order[MS_SHAPE_TEXT], text_places[MS_SHAPE_TEXT];
  MS_TRY(ms_check_dtype(node, order, MS_I32, "order"));
  MS_TRY(ms_check_dtype(node, places, MS_I32, "places"));
  MS_TRY(ms_check_ndim(node, places, 2, "places", "[T,K]"));
  if (order->ndim != 1 || order->dims[0] != ms_numel(places))
    return MS_FAIL(MS_ESHAPE,
                   "%s: order is %s and places is %s; order must be [T K] for places [T,K], as expert_order "
                   "makes them",
                   ms_node_name(node), ms_shape_text(order, text_order), ms_shape_text(places, text_places));
  if (!weights) return MS_OK;
  MS_TRY(ms_check_float(node, weights, "weights"));
  return ms_check_same_shape(node, places, "places", weights, "weights");
}

static int check_rows(const ms_node *node, const ms_value_info *x, const char *what, int64_t rows) {
  char text[MS_SHAPE_TEXT];
  MS_TRY(ms_check_float(node, x, what));
  if (x->ndim == 2 && x->dims[0] == rows) return MS_OK;
  return MS_FAIL(MS_ESHAPE, "%s: %s is %s; it must have two axes, with %" PRId64 " rows for these places",
                 ms_node_name(node), what, ms_shape_text(x, text), rows);
}

int ms_infer_expert_dispatch(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_choices(node, &in[1], &in[2], node->inputs == 4 ? &in[3] : NULL));
  MS_TRY(check_rows(node, &in[0], "x", in[2].dims[0]));
  out[0] = in[0];
  out[0].dims[0] = in[1].dims[0];
  return MS_OK;
}

int ms_infer_expert_combine(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_choices(node, &in[1], &in[2], node->inputs == 4 ? &in[3] : NULL));
  MS_TRY(check_rows(node, &in[0], "x", in[1].dims[0]));
  out[0] = in[0];
  out[0].dims[0] = in[2].dims[0];
  return MS_OK;
}

int ms_infer_expert_weights_backward(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_check_dtype(node, &in[2], MS_I32, "places"));
  MS_TRY(ms_check_ndim(node, &in[2], 2, "places", "[T,K]"));
  MS_TRY(check_rows(node, &in[0], "x", in[2].dims[0]));
  MS_TRY(check_rows(node, &in[1], "y", ms_numel(&in[2])));
  MS_TRY(ms_check_same_dtype(node, &in[0], "x", &in[1], "y"));
  out[0] = in[2];
  out[0].dtype = MS_F32;
  return MS_OK;
}

static int check_offsets(const ms_node *node, const ms_value_info *offsets) {
  char text[MS_SHAPE_TEXT];
  MS_TRY(ms_check_dtype(node, offsets, MS_I32, "offsets"));
  if (offsets->ndim == 1 && offsets->dims[0] >= 2) return MS_OK;
  return MS_FAIL(MS_ESHAPE, "%s: offsets is %s; it must be [E+1] for E groups", ms_node_name(node),
                 ms_shape_text(offsets, text));
}

int ms_infer_grouped_matmul(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  char text_x[MS_SHAPE_TEXT], text_w[MS_SHAPE_TEXT];
  const int turned = node->attrs.product.trans_b != 0;
  MS_TRY(ms_check_float(node, &in[0], "x"));
  MS_TRY(ms_check_same_dtype(node, &in[0], "x", &in[1], "w"));
  MS_TRY(check_offsets(node, &in[2]));
  if (in[0].ndim != 2 || in[1].ndim != 3 || in[1].dims[0] != in[2].dims[0] - 1 ||
      in[0].dims[1] != in[1].dims[turned ? 2 : 1])
    return MS_FAIL(MS_ESHAPE, "grouped_matmul: x is %s and w is %s, with %" PRId64 " groups; they must be [R,K] and %s",
                   ms_shape_text(&in[0], text_x), ms_shape_text(&in[1], text_w), in[2].dims[0] - 1,
                   turned ? "[E,N,K]" : "[E,K,N]");
  out[0] = in[0];
  out[0].dims[1] = in[1].dims[turned ? 1 : 2];
  return MS_OK;
}

int ms_infer_grouped_matmul_backward_weight(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(check_offsets(node, &in[2]));
  MS_TRY(ms_check_ndim(node, &in[0], 2, "a", "[R,M]"));
  MS_TRY(check_rows(node, &in[0], "a", in[0].dims[0]));
  MS_TRY(check_rows(node, &in[1], "b", in[0].dims[0]));
  MS_TRY(ms_check_same_dtype(node, &in[0], "a", &in[1], "b"));
  out[0] = (ms_value_info){.ndim = 3, .dims = {in[2].dims[0] - 1, in[0].dims[1], in[1].dims[1]}};
  return ms_asked_dtype(node, in[0].dtype, MS_DTYPE_FLOAT, &out[0].dtype);
}

/* Sizes of weights are multiples of what products of codes add at a time; groups have as many rows as come. */
static int check_recipe(const ms_node *node, int64_t inner, int64_t columns) {
  const int64_t recipe = node->attrs.product.recipe, product = node->attrs.product.product;
  if (recipe <= MS_FP8_NONE || !ms_f8_recipe_name((int)recipe) || product < 0 || product >= MS_F8_PRODUCTS ||
      !ms_f8_rounds((int)recipe, (int)product))
    return MS_FAIL(MS_EINVAL, "%s: recipe %" PRId64 " has no product %" PRId64, ms_node_name(node), recipe, product);
  const int multiple = ms_f8_multiple((int)recipe);
  if (inner % multiple == 0 && columns % multiple == 0) return MS_OK;
  return MS_FAIL(MS_ESHAPE, "%s: weights of %" PRId64 " x %" PRId64 "; both must be multiples of %d",
                 ms_node_name(node), inner, columns, multiple);
}

int ms_infer_grouped_matmul_f8(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_infer_grouped_matmul(node, in, out));
  return check_recipe(node, in[1].dims[1], in[1].dims[2]);
}

int ms_infer_grouped_matmul_f8_backward_weight(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_infer_grouped_matmul_backward_weight(node, in, out));
  return check_recipe(node, out[0].dims[1], out[0].dims[2]);
}
