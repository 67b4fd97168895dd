/* linear_loss.c - a linear layer and the cross entropy that reads its logits become ops that make the logits of a chunk
 * of rows at a time, because logits of a large vocabulary are a step's largest tensors.
 *
 * Forward: cross_entropy(x w' + b) -> linear_cross_entropy_join(linear_cross_entropy_part(x, w, b)), with what ranks
 * that divide the classes gather between the two. Backward then makes each chunk's logits again, a fourth product of
 * the head's size where whole logits need three, and keeps two numbers a row until then.
 *
 * loss_step.c saves that product where the gradient of the loss is known before the loss.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/min.h"
#include "base/numbers/dtype.h"
#include "graph/grad/grad.h"
#include "graph/infer/infer.h"
#include "graph/rewrite/rewrite.h"
#include "kernels/products/linear_cross_entropy.h"

/* ---- how many rows ----------------------------------------------------------------------------------------------- */

/* The logits of a chunk are at most half as large as the gradient of w in f32, which exists anyway: they have dim rows
 * in bf16, half of that in f32. With MAX_ROWS the products take much longer than reading and writing the sums of that
 * gradient, once per chunk; with less than MIN_ROWS they do not, and chunks of less than MIN_BYTES are no use. */
enum { MAX_ROWS = 1024, MIN_ROWS = 128, ROW_UNIT = 16 };
static const int64_t MIN_BYTES = 8 << 20;

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
/* Equal chunks, but for rounding to whole vectors. */
static int64_t chunk_rows(int64_t rows, const ms_value_info *w) {
  const int64_t size = ms_dtype_size(w->dtype), half_of_dw = w->dims[1] * (int64_t)sizeof(float) / 2 / size;
  const int64_t least = larger(MIN_ROWS, MIN_BYTES / (w->dims[0] * size));
  const int64_t most = larger(least, ms_min(MAX_ROWS, half_of_dw)), chunks = (rows + most - 1) / most;
  const int64_t even = (rows + chunks - 1) / chunks;
  return ms_min(rows, (even + ROW_UNIT - 1) / ROW_UNIT * ROW_UNIT);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

typedef struct fuser {
  ms_graph *graph;
  ms_uses uses;
} fuser;

/* A loss, and the product that makes its logits. */
typedef struct linear_loss {
  int loss, part; /* nodes; part -1: the loss reads logits of all classes */
  int product;
  int64_t rows, chunk;
} linear_loss;

static const ms_value_info *info_of(const ms_graph *graph, int v) { return &graph->values[v].info; }

/* The node that adds this rank's classes to a loss of divided logits. */
static int part_of(const ms_graph *graph, const ms_node *join) {
  const ms_node *gather = ms_maker(graph, join->in[2], MS_OP_all_gather);
  return gather ? graph->values[gather->in[0]].node : -1;
}

/* Why the product cannot be made in chunks, or NULL. */
static const char *fault_of(const fuser *f, const linear_loss *l) {
  const ms_node *loss = &f->graph->nodes[l->loss], *product = l->product < 0 ? NULL : &f->graph->nodes[l->product];
  if (product && ms_op_row_of(product->op)->flags & MS_OP_COLLECTIVE) return "ranks that divide the layer join them";
  if (product && product->op == MS_OP_matmul_f8)
    return "the layer multiplies in 8 bits: leave its weight out of the rules of fp8";
  if (!product || product->op != MS_OP_matmul)
    return "something else than a matrix product makes them, as a cap of logits does";
  const int readers = l->part < 0 ? 1 : 2;
  if (f->uses.count[loss->in[0]] != readers) return "something else reads them, too";
  if (product->attrs.product.activation != MS_ACT_NONE) return "the layer has an activation";
  const ms_value_info *w = info_of(f->graph, product->in[1]);
  if (product->attrs.product.trans_a || !product->attrs.product.trans_b || w->ndim != 2)
    return "the layer's weight is not [classes, dim]";
  return info_of(f->graph, loss->in[0])->dtype == w->dtype ? NULL : "they have another dtype than the layer's weight";
}

/* 1 when the step's loss is this one, or its share of the loss of all ranks, so that its gradient is known before. */
static int is_the_loss(const ms_graph *graph, int value) {
  int loss = graph->loss;
  for (const ms_node *weigh; loss >= 0 && loss != value; loss = weigh->in[0]) {
    weigh = ms_maker(graph, loss, MS_OP_weigh);
    if (!weigh) return 0;
  }
  return loss == value;
}

/* 1 when chunks take less memory than whole logits and no further product: besides a chunk's logits there are dx, and
 * the sums of dw if its dtype cannot hold them. */
static int saves(const fuser *f, const linear_loss *l, int *less) {
  const ms_graph *graph = f->graph;
  const ms_node *product = &graph->nodes[l->product];
  const ms_value *w = &graph->values[product->in[1]];
  const int64_t size = ms_dtype_size(w->info.dtype), row = w->info.dims[0] * size;
  int64_t taken = l->chunk * row + l->rows * w->info.dims[1] * size;
  int dtype;
  *less = 0;
  if (l->part >= 0 || !is_the_loss(graph, graph->nodes[l->loss].out[0])) return MS_OK;
  MS_TRY(ms_grad_dtype(graph, product->in[1], &dtype));
  if (dtype != MS_F32) taken += ms_numel(&w->info) * (int64_t)sizeof(float);
  if (w->kind == MS_VALUE_PARAM) {
    ms_param_info param;
    MS_TRY(graph->lookup(graph->model, w->param, &param));
    if (param.frozen) return MS_OK;
  }
  *less = l->chunk < l->rows && taken < l->rows * row;
  return MS_OK;
}

/* Makes the product the part's node, right before the loss, since nothing else reads the logits; its result becomes the
 * two numbers a row. */
static void move_product(ms_graph *graph, const linear_loss *l) {
  const ms_node product = graph->nodes[l->product];
  for (int n = l->product; n < l->loss - 1; n++) {
    graph->nodes[n] = graph->nodes[n + 1];
    for (int o = 0; o < graph->nodes[n].outputs; o++) graph->values[graph->nodes[n].out[o]].node = n;
  }
  graph->nodes[l->loss - 1] = product;
  ms_value *added = &graph->values[product.out[0]];
  added->node = l->loss - 1;
  added->info = (ms_value_info){.dtype = MS_F32, .ndim = 3, .dims = {1, l->rows, 2}};
}

static void replace(ms_node *node, int op, const ms_op_attrs *attrs, int inputs, const int *in) {
  node->op = op;
  node->attrs = *attrs;
  node->inputs = inputs;
  memcpy(node->in, in, (size_t)inputs * sizeof *in);
}

/* The value of a chunk's logits, the last output of the part. */
static int add_chunk(ms_graph *graph, const linear_loss *l, const ms_value_info *w, int part) {
  MS_TRY(ms_grow((void **)&graph->values, &graph->values_capacity, graph->n_values + 1, sizeof *graph->values));
  graph->values[graph->n_values] = (ms_value){.info = {.dtype = w->dtype, .ndim = 2, .dims = {l->chunk, w->dims[0]}},
                                              .node = part,
                                              .output = 1,
                                              .param = -1,
                                              .name = ""};
  graph->nodes[part].outputs = 2;
  graph->nodes[part].out[1] = graph->n_values++;
  return MS_OK;
}

static int fuse(ms_graph *graph, const linear_loss *l) {
  const ms_node loss = graph->nodes[l->loss], product = graph->nodes[l->product];
  const int biased = product.inputs == 3, bias = biased ? product.in[2] : -1;
  const int of_part[] = {product.in[0], product.in[1], loss.in[1], bias};
  const int added = l->part < 0 ? product.out[0] : loss.in[2];
  const int of_join[] = {product.in[0], product.in[1], loss.in[1], added, bias};
  ms_op_attrs attrs = loss.attrs;
  if (l->part < 0) attrs.loss.parts = 1;
  attrs.loss.chunk = l->chunk;
  attrs.loss.fused = 0;
  if (l->part < 0) move_product(graph, l);
  else ms_remove_node(graph, l->product);
  const ms_value_info w = *info_of(graph, product.in[1]);
  const int part = l->part < 0 ? l->loss - 1 : l->part;
  replace(&graph->nodes[part], MS_OP_linear_cross_entropy_part, &attrs, 3 + biased, of_part);
  replace(&graph->nodes[l->loss], MS_OP_linear_cross_entropy_join, &attrs, 4 + biased, of_join);
  return add_chunk(graph, l, &w, part);
}

static int fuse_loss(fuser *f, int index) {
  ms_graph *graph = f->graph;
  const ms_node *loss = &graph->nodes[index];
  const int joins = loss->op == MS_OP_cross_entropy_join;
  if ((loss->op != MS_OP_cross_entropy && !joins) || loss->attrs.loss.fused == MS_LOSS_WHOLE) return MS_OK;
  linear_loss l = {.loss = index,
                   .part = joins ? part_of(graph, loss) : -1,
                   .product = graph->values[loss->in[0]].node,
                   .rows = ms_rows(info_of(graph, loss->in[0]))};
  if (joins && l.part < 0) return MS_FAIL(MS_EINTERNAL, "cross_entropy_join: its input 3 is not gathered");
  const char *fault = fault_of(f, &l);
  int less = 1;
  if (fault && loss->attrs.loss.fused != MS_LOSS_CHUNKED) return MS_OK;
  graph->scope = loss->scope;
  if (fault)
    return ms_graph_in_scope(graph,
                             MS_FAIL(MS_EUNSUPPORTED,
                                     "cross_entropy: fused needs logits of a linear layer, which only the loss reads; "
                                     "here %s (fused = \"auto\" fuses only where that is so)",
                                     fault));
  l.chunk = loss->attrs.loss.chunk ? ms_min(loss->attrs.loss.chunk, l.rows)
                                   : chunk_rows(l.rows, info_of(graph, graph->nodes[l.product].in[1]));
  if (loss->attrs.loss.fused == MS_LOSS_CHUNKED_TO_SAVE) MS_TRY(saves(f, &l, &less));
  return less ? fuse(graph, &l) : MS_OK;
}

int ms_graph_fuse_linear_loss(ms_graph *graph) {
  fuser f = {.graph = graph};
  const char *scope = graph->scope;
  int rc = ms_uses_count(graph, &f.uses);
  for (int n = 0; n < graph->n_nodes && !rc; n++) rc = fuse_loss(&f, n);
  graph->scope = scope;
  ms_uses_free(&f.uses);
  ms_compact(graph);
  return rc;
}
