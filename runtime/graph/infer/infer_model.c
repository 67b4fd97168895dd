/* infer_model.c - shape rules of the ops a transformer is made of: matmul, embedding, rope, cross entropy. */
#include <inttypes.h>
#include <stdio.h>

#include "graph/infer/infer.h"
#include "kernels/products/matmul_f8.h"

typedef struct matrix {
  int64_t rows, columns;
} matrix;

/* The last two dimensions, swapped if the product reads them transposed. */
static matrix matrix_of(const ms_value_info *x, int transposed) {
  int64_t rows = x->dims[x->ndim - 2], columns = x->dims[x->ndim - 1];
  return transposed ? (matrix){columns, rows} : (matrix){rows, columns};
}

static int check_matmul_operands(const ms_node *node, const ms_value_info *a, const ms_value_info *b) {
  char text_a[MS_SHAPE_TEXT], text_b[MS_SHAPE_TEXT];
  MS_TRY(ms_check_float(node, a, "a"));
  MS_TRY(ms_check_float(node, b, "b"));
  MS_TRY(ms_check_same_dtype(node, a, "a", b, "b"));
  if (a->ndim < 2 || b->ndim < 2)
    return MS_FAIL(MS_ESHAPE, "matmul: %s x %s; both need two dimensions or more", ms_shape_text(a, text_a),
                   ms_shape_text(b, text_b));
  if (b->ndim != 2 && b->ndim != a->ndim)
    return MS_FAIL(MS_ESHAPE, "matmul: %s x %s; b must have two dimensions, or as many as a", ms_shape_text(a, text_a),
                   ms_shape_text(b, text_b));
  for (int d = 0; b->ndim > 2 && d < a->ndim - 2; d++)
    if (a->dims[d] != b->dims[d])
      return MS_FAIL(MS_ESHAPE, "matmul: leading dimensions differ: %s x %s", ms_shape_text(a, text_a),
                     ms_shape_text(b, text_b));
  return MS_OK;
}

int ms_infer_matmul(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  char text_a[MS_SHAPE_TEXT], text_b[MS_SHAPE_TEXT];
  int trans_a = node->attrs.product.trans_a != 0, trans_b = node->attrs.product.trans_b != 0;
  MS_TRY(check_matmul_operands(node, &in[0], &in[1]));
  matrix a = matrix_of(&in[0], trans_a), b = matrix_of(&in[1], trans_b);
  if (a.columns != b.rows)
    return MS_FAIL(MS_ESHAPE, "matmul: inner dimensions differ: %s%s x %s%s", ms_shape_text(&in[0], text_a),
                   trans_a ? " transposed" : "", ms_shape_text(&in[1], text_b), trans_b ? " transposed" : "");
  if (node->attrs.product.activation < MS_ACT_NONE || node->attrs.product.activation > MS_ACT_SILU)
    return MS_FAIL(MS_EINVAL,
                   "matmul: activation %" PRId64 "; it must be 0 (none), 1 (relu), 2 (gelu), 3 (gelu_tanh) or 4 (silu)",
                   node->attrs.product.activation);
  out[0] = in[0];
  out[0].dims[in[0].ndim - 2] = a.rows;
  out[0].dims[in[0].ndim - 1] = b.columns;
  if (node->inputs == 3) MS_TRY(ms_check_channels(node, &out[0], &in[2], "the bias"));
  return ms_asked_dtype(node, in[0].dtype, MS_DTYPE_FLOAT, &out[0].dtype);
}

/* The third input is what the product is added to. */
int ms_infer_matmul_add(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  ms_node product = *node;
  product.inputs = 2;
  MS_TRY(ms_infer_matmul(&product, in, out));
  MS_TRY(ms_check_same_shape(node, &in[2], "x", &out[0], "the product"));
  return ms_check_same_dtype(node, &in[2], "x", &out[0], "the product");
}

/* The summed axis and the columns of the result are multiples of what products of codes add at a time. */
int ms_infer_matmul_f8(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  const int64_t recipe = node->attrs.product.recipe, product = node->attrs.product.product;
  MS_TRY(ms_infer_matmul(node, in, out));
  if (recipe <= MS_FP8_NONE || !ms_f8_recipe_name((int)recipe) || product < 0 || product >= MS_F8_PRODUCTS ||
      !ms_f8_rounds((int)recipe, (int)product))
    return MS_FAIL(MS_EINVAL, "matmul_f8: recipe %" PRId64 " has no product %" PRId64, recipe, product);
  if (in[1].ndim != 2 || (in[0].ndim > 2 && node->attrs.product.trans_a))
    return MS_FAIL(MS_ESHAPE, "matmul_f8: b must be a matrix, and a that is transposed, too");
  const int64_t inner = in[1].dims[node->attrs.product.trans_b != 0],
                columns = in[1].dims[!node->attrs.product.trans_b];
  const int multiple = ms_f8_multiple((int)recipe);
  if (inner % multiple || columns % multiple)
    return MS_FAIL(MS_ESHAPE,
                   "matmul_f8: %" PRId64 " inner elements and %" PRId64 " columns; both must be multiples "
                   "of %d",
                   inner, columns, multiple);
  return MS_OK;
}

/* Only the shape of the codes matters; the bias is last. */
int ms_infer_matmul_f8_codes(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  ms_node product = *node;
  ms_value_info plain[] = {in[0], in[MS_F8_CODES_INPUT], in[node->inputs - 1]};
  MS_TRY(ms_check_dtype(node, &in[MS_F8_CODES_INPUT], MS_F8E4M3, "the codes"));
  MS_TRY(ms_check_ndim(node, &in[MS_F8_SCALE_INPUT], 0, "the scale", "a scalar"));
  MS_TRY(ms_check_dtype(node, &in[MS_F8_SCALE_INPUT], MS_F32, "the scale"));
  plain[MS_F8_CODES_INPUT].dtype = in[0].dtype;
  product.inputs--;
  return ms_infer_matmul_f8(&product, plain, out);
}

int ms_infer_matmul_gelu(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_infer_matmul(node, in, out));
  out[1] = out[0];
  return MS_OK;
}

/* The third input is the input of gelu. */
int ms_infer_matmul_gelu_backward(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  ms_node product = *node;
  product.inputs = 2;
  MS_TRY(ms_infer_matmul(&product, in, out));
  MS_TRY(ms_check_same_shape(node, &in[2], "x", &out[0], "the product"));
  MS_TRY(ms_check_same_dtype(node, &in[2], "x", &out[0], "the product"));
  out[1] = (ms_value_info){.ndim = 1, .dims = {out[0].dims[out[0].ndim - 1]}, .dtype = out[0].dtype};
  return MS_OK;
}

int ms_infer_embedding(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  char text[MS_SHAPE_TEXT];
  MS_TRY(ms_check_float(node, &in[0], "w"));
  MS_TRY(ms_check_ndim(node, &in[0], 2, "w", "[V,D]"));
  MS_TRY(ms_check_dtype(node, &in[1], MS_I32, "tokens"));
  if (in[1].ndim == MS_MAX_DIMS)
    return MS_FAIL(MS_ESHAPE, "embedding: tokens are %s; they can have at most %d dimensions",
                   ms_shape_text(&in[1], text), MS_MAX_DIMS - 1);
  const int64_t parts = ms_table_parts(&node->attrs), rows = in[0].dims[0] * parts, first = node->attrs.table.first;
  if (node->attrs.table.rows < 0 || node->attrs.table.rows > rows)
    return MS_FAIL(MS_EINVAL, "embedding: rows %" PRId64 "; w is %s: it must be 0 to %" PRId64, node->attrs.table.rows,
                   ms_shape_text(&in[0], text), rows);
  if (first < 0 || first % in[0].dims[0] || first >= rows)
    return MS_FAIL(MS_EINVAL,
                   "embedding: first %" PRId64 "; w is %s, one of %" PRId64 " parts of a table: it must be a "
                   "multiple of %" PRId64 " below %" PRId64,
                   first, ms_shape_text(&in[0], text), parts, in[0].dims[0], rows);
  out[0] = in[1];
  out[0].dims[out[0].ndim++] = in[0].dims[1];
  out[0].dtype = in[0].dtype;
  return MS_OK;
}

int ms_infer_embedding_backward(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  ms_value_info tokens = in[1];
  MS_TRY(ms_check_dtype(node, &in[0], MS_I32, "tokens"));
  MS_TRY(ms_check_float(node, &in[1], "dy"));
  tokens.ndim--;
  if (in[1].ndim < 1) return MS_FAIL(MS_ESHAPE, "embedding_backward: dy is a scalar; it must be [...,D]");
  MS_TRY(ms_check_same_shape(node, &in[0], "tokens", &tokens, "dy without its last axis"));
  if (node->attrs.table.rows < 1)
    return MS_FAIL(MS_EINVAL, "embedding_backward: rows %" PRId64 "; it must be at least 1", node->attrs.table.rows);
  out[0] = (ms_value_info){.ndim = 2, .dims = {node->attrs.table.rows, in[1].dims[in[1].ndim - 1]}};
  MS_TRY(ms_asked_dtype(node, in[1].dtype, MS_DTYPE_FLOAT, &out[0].dtype));
  if (node->inputs < 3) return MS_OK;
  MS_TRY(ms_check_same_shape(node, &in[2], "the other gradient", &out[0], "the result"));
  return ms_check_same_dtype(node, &in[2], "the other gradient", &out[0], "the result");
}

/* The second input of rope: frequencies and factors. */
static int check_turns(const ms_node *node, const ms_value_info *in) {
  char text[MS_SHAPE_TEXT], text_x[MS_SHAPE_TEXT];
  MS_TRY(ms_check_dtype(node, &in[1], MS_F32, "turns"));
  MS_TRY(ms_check_ndim(node, &in[1], 2, "turns", "[2,P]"));
  if (in[1].dims[0] != 2 || 2 * in[1].dims[1] > in[0].dims[3])
    return MS_FAIL(MS_ESHAPE, "rope: turns are %s; for x %s they must be [2,P], with P of at most %" PRId64 " pairs",
                   ms_shape_text(&in[1], text), ms_shape_text(&in[0], text_x), in[0].dims[3] / 2);
  if (node->attrs.rope.original)
    return MS_FAIL(MS_EINVAL, "rope: original %" PRId64 " scales frequencies of theta, but turns give them",
                   node->attrs.rope.original);
  return MS_OK;
}

int ms_infer_rope(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  char text[MS_SHAPE_TEXT];
  MS_TRY(ms_check_float(node, &in[0], "x"));
  MS_TRY(ms_check_ndim(node, &in[0], 4, "x", "[B,T,H,D]"));
  if (in[0].dims[3] % 2)
    return MS_FAIL(MS_ESHAPE, "rope: x is %s; its last dimension must be even, since pairs are rotated",
                   ms_shape_text(&in[0], text));
  if (node->inputs == 2) MS_TRY(check_turns(node, in));
  const ms_op_attrs *attrs = &node->attrs;
  if (!(attrs->rope.theta > 0)) return MS_FAIL(MS_EINVAL, "rope: theta %g; it must be positive", attrs->rope.theta);
  if (attrs->rope.original < 0)
    return MS_FAIL(MS_EINVAL,
                   "rope: original %" PRId64 "; it must be the context length of the original training, or 0",
                   attrs->rope.original);
  if (attrs->rope.original && !(attrs->rope.factor > 0 && attrs->rope.low > 0 && attrs->rope.high >= attrs->rope.low))
    return MS_FAIL(MS_EINVAL, "rope: factor %g, low %g, high %g; they must be positive, and high at least low",
                   attrs->rope.factor, attrs->rope.low, attrs->rope.high);
  out[0] = in[0];
  return MS_OK;
}

int ms_infer_cross_entropy(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  ms_value_info rows = in[0];
  MS_TRY(ms_check_float(node, &in[0], "logits"));
  MS_TRY(ms_check_dtype(node, &in[1], MS_I32, "targets"));
  if (in[0].ndim < 1) return MS_FAIL(MS_ESHAPE, "cross_entropy: logits are a scalar; they must be [...,V]");
  rows.ndim--;
  MS_TRY(ms_check_same_shape(node, &rows, "logits without the last axis", &in[1], "targets"));
  const int64_t logits = in[0].dims[in[0].ndim - 1];
  if (node->attrs.loss.classes < 0 || node->attrs.loss.classes > logits)
    return MS_FAIL(MS_EINVAL, "cross_entropy: classes %" PRId64 "; a row has %" PRId64 " logits: it must be 0 to that",
                   node->attrs.loss.classes, logits);
  out[0] = out[2] = (ms_value_info){.dtype = MS_F32};
  out[1] = (ms_value_info){.dtype = MS_F32, .ndim = 1, .dims = {ms_rows(&in[0])}};
  return MS_OK;
}

int ms_infer_count_targets(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  MS_TRY(ms_check_dtype(node, &in[0], MS_I32, "targets"));
  out[0] = (ms_value_info){.dtype = MS_F32};
  return MS_OK;
}

int ms_infer_cross_entropy_step(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  ms_value_info loss[3] = {{0}};
  MS_TRY(ms_infer_cross_entropy(node, in, loss));
  out[0] = in[0];
  out[1] = loss[0];
  return MS_OK;
}

int ms_infer_weigh(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  static const char *const names[] = {"x", "part", "total"};
  for (int i = 0; i < 3; i++) {
    MS_TRY(ms_check_dtype(node, &in[i], MS_F32, names[i]));
    MS_TRY(ms_check_ndim(node, &in[i], 0, names[i], "[]"));
  }
  out[0] = in[0];
  return MS_OK;
}

int ms_infer_cross_entropy_part(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  (void)node;
  out[0] = (ms_value_info){.dtype = MS_F32, .ndim = 3, .dims = {1, ms_rows(&in[0]), 2}};
  return MS_OK;
}

int ms_infer_cross_entropy_join(const ms_node *node, const ms_value_info *in, ms_value_info *out) {
  const ms_value_info added = {.dtype = MS_F32, .ndim = 3, .dims = {node->attrs.loss.parts, ms_rows(&in[0]), 2}};
  MS_TRY(ms_check_same_shape(node, &in[2], "what the parts add", &added, "parts, rows, 2"));
  out[0] = out[2] = (ms_value_info){.dtype = MS_F32};
  out[1] = (ms_value_info){.dtype = MS_F32, .ndim = 1, .dims = {ms_rows(&in[0])}};
  return MS_OK;
}
