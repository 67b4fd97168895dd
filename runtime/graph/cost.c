/* cost.c - what a node costs: floating-point operations, and bytes read and written when each tensor is touched once. */
#include "graph/infer.h"

static double elements(const ms_graph *graph, int value) { return (double)ms_numel(&graph->values[value].info); }

static double tensor_bytes(const ms_graph *graph, int value) {
  return elements(graph, value) * ms_dtype_size(graph->values[value].info.dtype);
}

/* 2 M N K for each leading index, and one addition an element for the bias */
static double matmul_flops(const ms_graph *graph, const ms_node *node) {
  const ms_value_info *a = &graph->values[node->in[0]].info;
  double inner = (double)a->dims[a->ndim - (node->attrs.i[0] ? 2 : 1)];
  return elements(graph, node->out[0]) * (2 * inner + (node->inputs == 3));
}

/* q k' and the product with v: 2 B H T S D each */
static double attention_flops(const ms_graph *graph, const ms_node *node) {
  return 4 * elements(graph, node->in[0]) * (double)graph->values[node->in[1]].info.dims[1];
}

/* The tensor whose elements a row's flops count is for: the first output, but for rows that sum it is what is summed. */
static int counted_value(const ms_node *node) {
  switch (node->op) {
    case MS_OP_sum:
    case MS_OP_mean:
    case MS_OP_max:
    case MS_OP_sum_to:
    case MS_OP_sum_squares:
    case MS_OP_step_totals:
    case MS_OP_cross_entropy: return node->in[0];
    case MS_OP_embedding_backward: return node->in[1];
    default: return node->out[0];
  }
}

double ms_node_flops(const ms_graph *graph, const ms_node *node) {
  switch (node->op) {
    case MS_OP_matmul: return matmul_flops(graph, node);
    case MS_OP_attention: return attention_flops(graph, node);
    case MS_OP_attention_backward: return 2.5 * attention_flops(graph, node);
    default: return ms_op_row_of(node->op)->flops * elements(graph, counted_value(node));
  }
}

double ms_node_bytes(const ms_graph *graph, const ms_node *node) {
  double bytes = 0;
  if (ms_op_row_of(node->op)->flags & MS_OP_ALIAS) return 0;
  for (int o = 0; o < node->outputs; o++) bytes += tensor_bytes(graph, node->out[o]);
  switch (node->op) {
    case MS_OP_embedding:
      return 2 * bytes + tensor_bytes(graph, node->in[1]); /* the rows that tokens name, not the table */
    case MS_OP_slice: return 2 * bytes;
    case MS_OP_adamw: /* what they update is read too */
    case MS_OP_sgd: bytes *= 2; break;
    case MS_OP_accumulate:
      if (node->attrs.i[0]) bytes *= 2;
      break;
    default: break;
  }
  for (int i = 0; i < node->inputs; i++) bytes += tensor_bytes(graph, node->in[i]);
  return bytes;
}
