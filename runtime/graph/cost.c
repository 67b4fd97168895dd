/* cost.c - the cost of an op: floating-point operations, and bytes read and written if each tensor is touched once.
 * The column `work` of the op table names the function here, and the column `flops` is its factor. */
#include "base/numbers/dtype.h"
#include "graph/infer/infer.h"
#include "kernels/attention_options.h"
#include "kernels/gated_delta_rule.h"
#include "kernels/products/linear_cross_entropy.h"
#include "kernels/products/matmul_f8.h"
#include "kernels/products/orthogonalise.h"

static double elements(const ms_value_info *info) { return (double)ms_numel(info); }

static double tensor_bytes(const ms_value_info *info) { return elements(info) * ms_dtype_size(info->dtype); }

/* Reads each input and writes each output; also reads outputs that the op updates, but not their copy (MS_OP_COPIES).
 */
static double bytes_once(const ms_cost_case *c) {
  const int reads = ms_op_reads_outputs(c->op, c->attrs), own = ms_op_row_of(c->op)->outputs;
  double bytes = 0;
  for (int o = 0; o < c->outputs; o++) bytes += (1 + (reads && o < own)) * tensor_bytes(&c->out[o]);
  for (int i = 0; i < c->inputs; i++) bytes += tensor_bytes(&c->in[i]);
  return bytes;
}

static int flops_of(const ms_cost_case *c) { return ms_op_row_of(c->op)->flops; }

/* ---- the column `work` of the op table -------------------------------------------------------------------------- */

/* `flops` per element of the first output */
ms_work ms_work_each(const ms_cost_case *c) { return (ms_work){flops_of(c) * elements(&c->out[0]), bytes_once(c)}; }

/* `flops` per element of the first input, for reductions */
ms_work ms_work_each_read(const ms_cost_case *c) { return (ms_work){flops_of(c) * elements(&c->in[0]), bytes_once(c)}; }

/* of what the parts add, after the targets; other inputs count for nothing: only the gradient reads them */
ms_work ms_work_joined(const ms_cost_case *c) {
  const int targets = c->op == MS_OP_linear_cross_entropy_join ? 2 : 1;
  const ms_cost_case read = {
      .op = c->op, .attrs = c->attrs, .inputs = 2, .outputs = c->outputs, .in = c->in + targets, .out = c->out};
  return (ms_work){flops_of(c) * elements(&read.in[1]), bytes_once(&read)};
}

/* 2 M N K per leading index, plus `flops` per element of the result for gelu or its gradient */
static ms_work product(const ms_cost_case *c, int after) {
  const ms_value_info *a = &c->in[0];
  double inner = (double)a->dims[a->ndim - (c->attrs->product.trans_a ? 2 : 1)];
  return (ms_work){elements(&c->out[0]) * (2 * inner + after), bytes_once(c)};
}

ms_work ms_work_product(const ms_cost_case *c) { return product(c, flops_of(c)); }

/* plus the addition of a bias if there is a third input */
ms_work ms_work_product_bias(const ms_cost_case *c) { return product(c, flops_of(c) + (c->inputs == 3)); }

/* also writes the codes of both operands, a byte each, and reads them; a scale can take a second pass. If a weight
 * comes as codes, only those that are turned are written again. */
ms_work ms_work_product_f8(const ms_cost_case *c) {
  const int trans_a = c->attrs->product.trans_a != 0, trans_b = c->attrs->product.trans_b != 0;
  const int recipe = (int)c->attrs->product.recipe, made = (int)c->attrs->product.product;
  const int coded = ms_dtype_may(c->in[1].dtype, MS_DTYPE_SCALED);
  ms_work work = product(c, flops_of(c) + (c->inputs == 3 + coded));
  if (coded && !trans_b) work.bytes += 2 * elements(&c->in[1]);
  for (int operand = 0; operand < 2 - coded; operand++) {
    const int turned = operand ? !trans_b : trans_a, passes = ms_f8_passes(recipe, made, operand, turned);
    work.bytes += (passes - 1) * tensor_bytes(&c->in[operand]) + 2 * elements(&c->in[operand]);
  }
  return work;
}

/* 1 + 2 + ... + n */
static double sum_to(double n) { return n * (n + 1) / 2; }

/* Queries are the last positions, from `first` on. The keys that each sees are added up. */
static double keys_in_windows_on_both_sides(double first, double keys, double window) {
  const double whole =
      keys - window > first ? keys - window : first;          /* from here on the end of the keys cuts windows */
  const double cut = window - 1 > first ? window - 1 : first; /* before it their beginning does */
  return sum_to(whole + window - 1) - sum_to(first + window - 1) + (keys - whole) * keys -
         (sum_to(keys - window) - sum_to(cut - window));
}

/* Queries are the last positions; those that ranks divide count as their share of all. */
double ms_attention_keys(const ms_cost_case *c) {
  const ms_attention_options o = ms_attention_options_of(c->op, c->attrs, c->in);
  const double keys = (double)c->in[1].dims[1], window = (double)o.window,
               first = keys - (double)ms_attention_queries(&o, c->in[0].dims[1]);
  if (!o.window || first >= keys) return keys;
  if (!o.causal) return keys_in_windows_on_both_sides(first, keys, window) / (keys - first);
  const double narrowed = first < window ? window : first; /* queries before it see all keys up to theirs */
  const double seen = sum_to(narrowed) - sum_to(first) + (keys - narrowed) * window;
  return keys * seen / (sum_to(keys) - sum_to(first));
}

/* q k' and the product with v, 2 B H T S D and 2 B H T S E; backward three of the first kind and two of the second.
 * q [B,T,H,D], k [B,S,G,D], v [B,S,G,E] */
ms_work ms_work_attention(const ms_cost_case *c) {
  const ms_attention_options o = ms_attention_options_of(c->op, c->attrs, c->in);
  const double of_keys = o.backward ? 3 : 1, of_values = o.backward ? 2 : 1, products = of_keys + of_values;
  const double q = elements(&c->in[0]), result = q / (double)c->in[0].dims[3] * (double)c->in[2].dims[3];
  return (ms_work){flops_of(c) / products * (of_keys * q + of_values * result) * ms_attention_keys(c), bytes_once(c)};
}

/* q k' alone. */
ms_work ms_work_attention_max(const ms_cost_case *c) {
  return (ms_work){flops_of(c) * elements(&c->in[0]) * ms_attention_keys(c), bytes_once(c)};
}

/* Scales o, and reads and writes lse; q, k and v are of the gradient alone. */
ms_work ms_work_attention_sink(const ms_cost_case *c) {
  return (ms_work){flops_of(c) * elements(&c->out[0]), 2 * (tensor_bytes(&c->out[0]) + tensor_bytes(&c->out[1]))};
}

/* A position of a head has three products with the state, 2 D E operations each, and two of keys and two of values with
 * the positions of its chunk, half of which it sees on average. The gradient has twice as many; that it makes the
 * states again is no work of the model. */
ms_work ms_work_gated_delta_rule(const ms_cost_case *c) {
  const ms_delta_rule r = ms_delta_rule_of(c->op, c->attrs, c->inputs, c->in);
  const double d = (double)r.d, e = (double)r.e, chunk = (double)(r.t < MS_DELTA_CHUNK ? r.t : MS_DELTA_CHUNK);
  const double positions = (double)r.batch * (double)r.t * (double)r.heads;
  return (ms_work){flops_of(c) * positions * (d * e + chunk * (d + e) / 3), bytes_once(c)};
}

/* The product x w' of x [...,D] and w [V,D] and its two gradients; making the logits again for backward is no work of
 * the model. Logits of a chunk are written and read by each product and each pass over them, and every chunk reads w,
 * and adds to its gradient. */
ms_work ms_work_chunked_loss(const ms_cost_case *c) {
  const ms_loss_sizes l = ms_loss_sizes_of(c->op, c->attrs, c->in);
  const double logits = (double)l.rows * (double)l.classes, product = 2 * logits * (double)l.dim;
  const double w = (double)l.classes * (double)l.dim, size = ms_dtype_size(c->in[0].dtype);
  const double each_chunk = w * (size * (l.logits + l.dx) + 2 * (double)sizeof(float) * l.dw);
  const int passes = 2 * l.logits + 2 * l.dx + l.dx + l.dw + l.db;
  return (ms_work){product * (l.logits - l.again + l.dx + l.dw) + flops_of(c) * logits,
                   bytes_once(c) + (double)(l.chunks - 1) * each_chunk + size * logits * passes};
}

/* The products; each step also reads and writes x and the squares of the smaller size several times. */
ms_work ms_work_orthogonalise(const ms_cost_case *c) {
  const double steps = (double)c->attrs->orthogonalise.steps, m = (double)ms_orthogonalise_inner(&c->in[0]);
  const int size = c->attrs->orthogonalise.dtype == MS_ORTHOGONALISE_BF16 ? 2 : 4;
  const double matrices = (double)ms_orthogonalise_matrices(&c->in[0]);
  const double x = elements(&c->in[0]) * (2 * size + 12 + (size == 2) * 6), g = m * m * (4 * size + 16);
  return (ms_work){ms_orthogonalise_flops(c->attrs->orthogonalise.steps, &c->in[0]),
                   3 * bytes_once(c) / 2 + steps * (x + matrices * g)};
}

/* Reads only the rows of the table [V,D] that the tokens select, or the elements that the index does. */
ms_work ms_work_rows(const ms_cost_case *c) {
  return (ms_work){flops_of(c) * elements(&c->out[0]), 2 * tensor_bytes(&c->out[0]) + tensor_bytes(&c->in[1])};
}

/* Sums rows of dy [...,D] by token; with another gradient to add to, touches only the rows that the tokens select. */
ms_work ms_work_rows_added(const ms_cost_case *c) {
  const double added = tensor_bytes(&c->in[0]) + 3 * tensor_bytes(&c->in[1]);
  return (ms_work){flops_of(c) * elements(&c->in[1]), c->inputs == 3 ? added : bytes_once(c)};
}

/* `flops` per element of the rows of all choices, or for their gradient of those that it multiplies. */
ms_work ms_work_dispatched(const ms_cost_case *c) {
  const double rows = elements(&c->in[1]), most = elements(&c->in[0]), other = elements(&c->out[0]);
  const double all = c->op == MS_OP_expert_weights_backward ? rows : most > other ? most : other;
  return (ms_work){flops_of(c) * all, bytes_once(c)};
}

/* `flops` per row, element of a row and element of its result: every row has one expert. Experts without rows are not
 * read; their gradients are written. */
ms_work ms_work_grouped_product(const ms_cost_case *c) {
  const int is_product = c->out[0].ndim == 2;
  const double rows = (double)c->in[0].dims[0], inner = (double)c->in[0].dims[1], experts = (double)c->in[1].dims[0];
  const ms_value_info *across = is_product ? &c->out[0] : &c->in[1];
  const double unread = is_product && rows < experts ? tensor_bytes(&c->in[1]) * (1 - rows / experts) : 0;
  return (ms_work){flops_of(c) * rows * inner * (double)across->dims[1], bytes_once(c) - unread};
}

/* also writes the values of both operands' codes, and reads them */
ms_work ms_work_grouped_product_f8(const ms_cost_case *c) {
  const double size = (double)ms_dtype_size(ms_f8_values_dtype((int)c->attrs->product.recipe, 1));
  ms_work work = ms_work_grouped_product(c);
  work.bytes += 2 * size * (elements(&c->in[0]) + elements(&c->in[1]));
  return work;
}

/* `flops` per element of the last input, which is added to others. */
ms_work ms_work_scattered(const ms_cost_case *c) { return (ms_work){flops_of(c) * elements(&c->in[2]), bytes_once(c)}; }

/* `flops` per element of the result, channel of a group and tap; that of w [O,C/groups,KH,KW] against x; plus the
 * addition of a bias if there is a third input */
ms_work ms_work_convolution(const ms_cost_case *c) {
  const int to_x = c->op == MS_OP_conv2d_backward_input, to_w = c->op == MS_OP_conv2d_backward_weight;
  const ms_value_info *w = to_w ? &c->out[0] : &c->in[1], *y = to_x ? &c->in[0] : to_w ? &c->in[1] : &c->out[0];
  const double each = elements(w) / (double)(w->dims[0] ? w->dims[0] : 1);
  return (ms_work){elements(y) * (flops_of(c) * each + (c->inputs == 3)), bytes_once(c)};
}

/* `flops` per element of each window; the gradient's input has one element a window */
ms_work ms_work_windows(const ms_cost_case *c) {
  const int backward = c->op == MS_OP_max_pool2d_backward || c->op == MS_OP_avg_pool2d_backward;
  const double size = (double)c->attrs->windows.kernel_h * (double)c->attrs->windows.kernel_w;
  return (ms_work){flops_of(c) * size * elements(backward ? &c->in[0] : &c->out[0]), bytes_once(c)};
}

/* Reads only the part of the input that it returns. */
ms_work ms_work_part(const ms_cost_case *c) {
  return (ms_work){flops_of(c) * elements(&c->out[0]), 2 * tensor_bytes(&c->out[0])};
}

/* ---- of nodes and calls ----------------------------------------------------------------------------------------- */

static ms_work work_of(const ms_cost_case *c) {
  const ms_op_row *row = ms_op_row_of(c->op);
  return row->flags & MS_OP_ALIAS ? (ms_work){0} : row->work(c);
}

double ms_op_flops(const ms_cost_case *c) { return work_of(c).flops; }

double ms_op_bytes(const ms_cost_case *c) { return work_of(c).bytes; }

typedef struct node_shapes {
  ms_value_info in[MS_MAX_INPUTS], out[MS_MAX_OUTPUTS];
} node_shapes;

static ms_cost_case case_of_node(const ms_graph *graph, const ms_node *node, node_shapes *shapes) {
  for (int i = 0; i < node->inputs; i++) shapes->in[i] = graph->values[node->in[i]].info;
  for (int o = 0; o < node->outputs; o++) shapes->out[o] = graph->values[node->out[o]].info;
  return (ms_cost_case){node->op, &node->attrs, node->inputs, node->outputs, shapes->in, shapes->out};
}

double ms_node_flops(const ms_graph *graph, const ms_node *node) {
  node_shapes shapes;
  ms_cost_case c = case_of_node(graph, node, &shapes);
  return ms_op_flops(&c);
}

double ms_node_bytes(const ms_graph *graph, const ms_node *node) {
  node_shapes shapes;
  ms_cost_case c = case_of_node(graph, node, &shapes);
  return ms_op_bytes(&c);
}
