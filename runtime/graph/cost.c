/* cost.c - what an op costs: floating-point operations, and bytes read and written when each tensor is touched once. */
#include "graph/infer.h"

static double elements(const ms_value_info *info) { return (double)ms_numel(info); }

static double tensor_bytes(const ms_value_info *info) { return elements(info) * ms_dtype_size(info->dtype); }

/* 2 M N K for each leading index, and for each element what comes behind it: the addition of a bias, gelu or its gradient */
static double matmul_flops(const ms_cost_case *c, int behind) {
  const ms_value_info *a = &c->in[0];
  double inner = (double)a->dims[a->ndim - (c->attrs->i[0] ? 2 : 1)];
  return elements(&c->out[0]) * (2 * inner + behind);
}

/* q k' and the product with v: 2 B H T S D each */
static double attention_flops(const ms_cost_case *c) { return 4 * elements(&c->in[0]) * (double)c->in[1].dims[1]; }

/* The tensor whose elements a row's flops count is for: the first output, but for rows that sum it is what is summed. */
static const ms_value_info *counted_tensor(const ms_cost_case *c) {
  switch (c->op) {
    case MS_OP_sum:
    case MS_OP_mean:
    case MS_OP_max:
    case MS_OP_min:
    case MS_OP_sum_to:
    case MS_OP_sum_squares:
    case MS_OP_step_totals:
    case MS_OP_cross_entropy: return &c->in[0];
    case MS_OP_embedding_backward: return &c->in[1];
    default: return &c->out[0];
  }
}

double ms_op_flops(const ms_cost_case *c) {
  switch (c->op) {
    case MS_OP_matmul:
    case MS_OP_matmul_accumulate: return matmul_flops(c, c->inputs == 3);
    case MS_OP_matmul_gelu: return matmul_flops(c, 1 + ms_op_row_of(MS_OP_gelu_tanh)->flops);
    case MS_OP_matmul_gelu_backward:
    case MS_OP_matmul_gelu_backward_bias: return matmul_flops(c, ms_op_row_of(MS_OP_gelu_tanh_backward)->flops);
    case MS_OP_document_attention:
    case MS_OP_attention: return attention_flops(c);
    case MS_OP_document_attention_backward:
    case MS_OP_attention_backward: return 2.5 * attention_flops(c);
    default: return ms_op_row_of(c->op)->flops * elements(counted_tensor(c));
  }
}

double ms_op_bytes(const ms_cost_case *c) {
  double bytes = 0;
  if (ms_op_row_of(c->op)->flags & MS_OP_ALIAS) return 0;
  for (int o = 0; o < c->outputs; o++) bytes += tensor_bytes(&c->out[o]);
  switch (c->op) {
    case MS_OP_embedding: return 2 * bytes + tensor_bytes(&c->in[1]); /* the rows that tokens name, not the table */
    case MS_OP_embedding_backward: /* added where the other gradient lies: to the rows that tokens name */
      if (c->inputs == 3) return tensor_bytes(&c->in[0]) + 3 * tensor_bytes(&c->in[1]);
      break;
    case MS_OP_slice: return 2 * bytes;
    case MS_OP_adamw: /* what they update is read too */
    case MS_OP_sgd:
    case MS_OP_matmul_accumulate:
    case MS_OP_ema: bytes *= 2; break;
    case MS_OP_accumulate:
      if (c->attrs->i[0]) bytes *= 2;
      break;
    default: break;
  }
  for (int i = 0; i < c->inputs; i++) bytes += tensor_bytes(&c->in[i]);
  return bytes;
}

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
