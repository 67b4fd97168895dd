/* product_sums.c - what several products read, as queries, keys and values read a norm's result, has a gradient that is
 * a sum of products. Instead of writing each to memory of its own, which an addition reads again, every product but the
 * first adds itself to the sum of those before it, in its place (matmul_add). In tensors of the gradient's size, each
 * further product then reads and writes one, where it wrote one and the addition read two and wrote one: 4 -> 2, one
 * kernel fewer, and one tensor less in memory. A sum of bf16 products is rounded once per product instead of twice.
 *
 * The same holds for the gradient of a weight that several products read, and for a residual gradient that no norm
 * adds.
 */
#include "base/error.h"
#include "graph/infer.h"
#include "graph/rewrite.h"

static const ms_value_info *info_of(const ms_graph *graph, int v) { return &graph->values[v].info; }

static int root_of(const ms_graph *graph, int v) {
  for (int maker = graph->values[v].node; maker >= 0; maker = graph->values[v].node) {
    if (!(ms_op_row_of(graph->nodes[maker].op)->flags & MS_OP_ALIAS)) break;
    v = graph->nodes[maker].in[0];
  }
  return v;
}

/* A product of which nothing but a sum reads the result, directly or after a reshape. */
typedef struct summand {
  int product, reshape; /* nodes; reshape -1: none */
} summand;

static int read_summand(const ms_graph *graph, const ms_uses *uses, int v, summand *s) {
  s->reshape = -1;
  if (uses->count[v] != 1) return 0;
  if (ms_maker(graph, v, MS_OP_reshape)) {
    s->reshape = graph->values[v].node;
    v = graph->nodes[s->reshape].in[0];
    if (uses->count[v] != 1) return 0;
  }
  const ms_node *product = ms_maker(graph, v, MS_OP_matmul);
  if (!product || !product->backward || product->inputs != 2 || product->attrs.i[2] != MS_ACT_NONE) return 0;
  s->product = graph->values[v].node;
  const int dtype = info_of(graph, v)->dtype; /* bf16 results of f32 operands are no sums in f32 */
  return dtype == MS_F32 || dtype == info_of(graph, product->in[0])->dtype;
}

/* The sum is computed in the memory of the other summand, so the product must not read that. */
static int may_add_to(const ms_graph *graph, const summand *s, int other, int total) {
  const ms_node *product = &graph->nodes[s->product];
  const ms_value_info *sum = info_of(graph, total), *x = info_of(graph, other);
  const int root = root_of(graph, other);
  return x->dtype == sum->dtype && ms_same_shape(x, sum) && ms_made_before(graph, other, s->product) &&
         root != root_of(graph, product->in[0]) && root != root_of(graph, product->in[1]) &&
         info_of(graph, product->out[0])->dtype == sum->dtype;
}

/* The three nodes product, reshape, addition become: reshape of the other summand, product, reshape of the sum. */
static void add_reshaped(ms_graph *graph, const summand *s, int other, int add) {
  ms_node *product = &graph->nodes[s->product], *reshape = &graph->nodes[s->reshape], *sum = &graph->nodes[add];
  const ms_node was = *product, shaped = *reshape;
  const ms_value_info *matrix = info_of(graph, was.out[0]);
  const int folded = shaped.out[0], result = was.out[0];
  sum->op = MS_OP_reshape;
  sum->attrs = shaped.attrs;
  sum->inputs = 1;
  sum->in[0] = result;
  *product = shaped;
  product->in[0] = other;
  product->attrs = (ms_attrs){.i = {[6] = matrix->ndim}};
  for (int d = 0; d < matrix->ndim; d++) product->attrs.i[d] = matrix->dims[d];
  *reshape = was;
  reshape->op = MS_OP_matmul_add;
  reshape->in[reshape->inputs++] = folded;
  graph->values[folded].info = *matrix;
  graph->values[folded].node = s->product;
  graph->values[result].node = s->reshape;
}

static void fuse_sum(ms_graph *graph, const ms_uses *uses, int index) {
  const ms_node *add = &graph->nodes[index];
  if (add->op != MS_OP_add) return;
  const int total = add->out[0];
  for (int side = 0; side < 2; side++) {
    const int other = add->in[1 - side];
    summand s;
    if (!read_summand(graph, uses, add->in[side], &s) || !may_add_to(graph, &s, other, total)) continue;
    if (s.reshape >= 0) {
      add_reshaped(graph, &s, other, index);
      return;
    }
    ms_node *product = &graph->nodes[s.product];
    product->op = MS_OP_matmul_add;
    product->in[product->inputs++] = other;
    ms_remove_node(graph, index);
    ms_take_output(graph, s.product, 0, total);
    return;
  }
}

int ms_graph_fuse_product_sums(ms_graph *graph) {
  ms_uses uses;
  MS_TRY(ms_uses_count(graph, &uses));
  for (int n = 0; n < graph->n_nodes; n++) fuse_sum(graph, &uses, n);
  ms_uses_free(&uses);
  ms_compact(graph);
  return MS_OK;
}
