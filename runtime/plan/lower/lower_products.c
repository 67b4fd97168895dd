/* lower_products.c - matrix products that begin before their input is gathered.
 *
 * With sequence parallelism a product reads rows of all ranks of a dimension. Its rows are independent, so a rank first
 * multiplies its own, which need no gather, while the others' arrive; then those of one rank after the other. This
 * hides the gather, or the time for which a peer is late, behind a part of the product (asynchronous tensor
 * parallelism, as in PyTorch's fused_all_gather_matmul). The kernels are the same on all ranks, but for where they read
 * and write. Only the first product that reads a gathered value waits for it, so only that one is divided. On GPUs it
 * stays whole: whether the overlap outweighs what smaller products cost has not been measured there.
 */
#include "base/numbers/dtype.h"
#include "plan/lower/lower.h"

/* The rows of a product of [ranks * rows, k] by [k, n]. */
typedef struct product {
  const ms_node *node;
  const ms_ref *in;
  ms_ref out;
  int64_t rows, k, n;
} product;

/* The rows of x from its first on, in two dimensions. */
static ms_ref rows_of(ms_ref x, int64_t first, int64_t rows, int64_t columns) {
  x.offset += first * columns * ms_dtype_size(x.info.dtype);
  x.info = (ms_value_info){.dtype = x.info.dtype, .ndim = 2, .dims = {rows, columns}};
  return x;
}

/* Multiplies the rows of one rank, which begin at x. */
static int multiply(ms_lowering *l, const product *p, int rank, ms_ref x) {
  const ms_ref out = rows_of(p->out, rank * p->rows, p->rows, p->n);
  const ms_node *n = p->node;
  ms_ref in[MS_MAX_INPUTS];
  for (int i = 1; i < n->inputs; i++) in[i] = p->in[i];
  in[0] = rows_of(x, 0, p->rows, p->k);
  return ms_plan_kernel(l->plan, l->phase, n->op, &n->attrs, n->inputs, in, 1, &out, n->scope, n->backward);
}

/* The node that gathers the first input. */
static const ms_node *gather_of(const ms_lowering *l, const ms_node *n) {
  return &l->graph->nodes[l->graph->values[l->root[n->in[0]]].node];
}

/* The ranks have rows of it, not columns: those of a single row are joined in memory, too. */
static int joins_rows(const ms_graph *g, const ms_node *gather) {
  return ms_across_joins_chunks(g, gather) && gather->attrs.across.along < g->values[gather->in[0]].info.ndim - 1;
}

int ms_lower_gathered_part(const ms_lowering *l, const ms_node *n) {
  const ms_graph *g = l->graph;
  if (n->op != MS_OP_matmul || n->attrs.product.trans_a || g->values[n->in[1]].info.ndim != 2) return -1;
  if (!ms_device_can(l->plan->config.device, MS_DEVICE_HOST_MEMORY)) return -1;
  const int root = l->root[n->in[0]];
  if (g->values[root].node < 0 || l->begun[root] || !joins_rows(g, gather_of(l, n))) return -1;
  return gather_of(l, n)->in[0];
}

int ms_lower_product(ms_lowering *l, const ms_node *n, ms_ref own, const ms_ref *in, ms_ref out) {
  const ms_node *gather = gather_of(l, n);
  const int ranks = (int)gather->attrs.across.ranks, place = l->model->dim[gather->attrs.across.dim].place;
  const ms_value_info *x = &in[0].info, *y = &out.info;
  const int64_t k = x->dims[x->ndim - 1];
  const product p = {n, in, out, ms_numel(x) / k / ranks, k, y->dims[y->ndim - 1]};
  MS_TRY(multiply(l, &p, place, own));
  for (int next = 1; next < ranks; next++) {
    const int rank = (place + next) % ranks;
    MS_TRY(multiply(l, &p, rank, rows_of(in[0], rank * p.rows, p.rows, k)));
  }
  return MS_OK;
}
