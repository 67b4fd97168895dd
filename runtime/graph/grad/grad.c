/* grad.c - what gradient rules share. */
#include "graph/grad/grad.h"

#include "graph/infer/infer.h"

int ms_emit_unary(ms_graph *graph, int op, int x, const ms_op_attrs *attrs, int *out) {
  return ms_graph_emit(graph, op, 1, &x, attrs, out);
}

int ms_emit_binary(ms_graph *graph, int op, int a, int b, const ms_op_attrs *attrs, int *out) {
  int in[2] = {a, b};
  return ms_graph_emit(graph, op, 2, in, attrs, out);
}

/* Adds -0, which leaves every number as it is: the gradient of -x at dy = 0 is -0. */
int ms_emit_scale(ms_graph *graph, int x, double alpha, int *out) {
  ms_op_attrs attrs = {.scale = {.alpha = alpha, .beta = -0.0}};
  return ms_emit_unary(graph, MS_OP_scale, x, &attrs, out);
}

int ms_emit_shaped(ms_graph *graph, int op, int x, const ms_value_info *shape, int *out) {
  ms_op_attrs attrs = {.shape = {.d = {1, 1, 1, 1, 1, 1}, .ndim = shape->ndim}};
  if (ms_same_shape(ms_info_of(graph, x), shape)) {
    *out = x;
    return MS_OK;
  }
  for (int d = 0; d < shape->ndim; d++) attrs.shape.d[d] = shape->dims[d];
  return ms_emit_unary(graph, op, x, &attrs, out);
}

int ms_emit_cast(ms_graph *graph, int x, int dtype, int *out) {
  ms_op_attrs attrs = {.out_dtype = 1 + dtype};
  return ms_emit_unary(graph, MS_OP_cast, x, &attrs, out);
}

int ms_grad_dtype(const ms_graph *graph, int value, int *dtype) {
  const ms_value *v = &graph->values[value];
  ms_param_info info;
  *dtype = v->info.dtype;
  if (v->kind != MS_VALUE_PARAM) return MS_OK;
  MS_TRY(graph->lookup(graph->model, v->param, &info));
  *dtype = info.grad_dtype;
  return MS_OK;
}

int ms_grad_refuse(const ms_graph *graph, int node, const int *dy, int output) {
  if (dy[output] < 0) return MS_OK;
  return ms_graph_in_scope(graph, MS_FAIL(MS_EUNSUPPORTED,
                                          "%s: the loss depends on output %d, which has no gradient; only "
                                          "output 1 has one",
                                          ms_node_name(&graph->nodes[node]), output + 1));
}
