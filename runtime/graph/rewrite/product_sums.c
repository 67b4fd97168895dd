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
#include "graph/infer/infer.h"
#include "graph/rewrite/rewrite.h"

static const ms_value_info *info_of(const ms_graph *graph, int v) { return &graph->values[v].info; }

static int root_of(const ms_graph *graph, int v) {
  for (int maker = graph->values[v].node; maker >= 0; maker = graph->values[v].node) {
    if (!(ms_op_row_of(graph->nodes[maker].op)->flags & MS_OP_ALIAS)) break;
    v = graph->nodes[maker].in[0];
  }
  return v;
}

/* The product of which nothing but a sum reads the result, or NULL. */
static ms_node *summand(const ms_graph *graph, const ms_uses *uses, int v) {
  ms_node *product = uses->count[v] == 1 ? ms_maker(graph, v, MS_OP_matmul) : NULL;
  if (!product || !product->backward || product->inputs != 2 || product->attrs.product.activation != MS_ACT_NONE)
    return NULL;
  const int dtype = info_of(graph, v)->dtype; /* bf16 results of f32 operands are no sums in f32 */
  return dtype == MS_F32 || dtype == info_of(graph, product->in[0])->dtype ? product : NULL;
}

/* The sum is computed in the memory of the other summand, so the product must not read that. */
static int may_add_to(const ms_graph *graph, const ms_node *product, int other) {
  const ms_value_info *result = info_of(graph, product->out[0]), *x = info_of(graph, other);
  const int root = root_of(graph, other);
  return x->dtype == result->dtype && ms_same_shape(x, result) &&
         ms_made_before(graph, other, (int)(product - graph->nodes)) && root != root_of(graph, product->in[0]) &&
         root != root_of(graph, product->in[1]);
}

static void fuse_sum(ms_graph *graph, const ms_uses *uses, int index) {
  const ms_node *add = &graph->nodes[index];
  if (add->op != MS_OP_add) return;
  for (int side = 0; side < 2; side++) {
    const int other = add->in[1 - side], total = add->out[0];
    ms_node *product = summand(graph, uses, add->in[side]);
    if (!product || !may_add_to(graph, product, other)) continue;
    product->op = MS_OP_matmul_add;
    product->in[product->inputs++] = other;
    ms_remove_node(graph, index);
    ms_take_output(graph, (int)(product - graph->nodes), 0, total);
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
