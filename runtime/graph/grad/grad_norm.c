/* grad_norm.c - gradients of layer_norm and rms_norm, fused with an addition or not, and of group_norm. One kernel
 * writes dx and the gradients of gain and bias, which are sums over all rows, in the dtype of the parameters'
 * gradients. */
#include "base/error.h"
#include "graph/grad/grad.h"

/* Positions of a normalisation's operands among its node's inputs and outputs. */
typedef struct norm_form {
  int backward; /* op */
  int gain;     /* input; the bias, if any, is the next one */
  int channels; /* 1: gain, 2: gain and bias */
  int summed;   /* 1: inputs 0 and 1 were added, output 2 is their sum */
} norm_form;

/* Emits dx of the normalised value and the channel gradients in dx_channels, which can stay unused. residual: a
 * gradient to add to dx, or -1. */
static int normalized_gradient(ms_graph *graph, const ms_node *n, const norm_form *form, int dy, int residual, int *dx,
                               int *dx_channels) {
  int in[5] = {form->summed ? n->out[2] : n->in[0], n->in[form->gain], n->out[1], dy, residual};
  int out[3], dtype;
  MS_TRY(ms_grad_dtype(graph, n->in[form->gain], &dtype));
  ms_op_attrs attrs = {.out_dtype = 1 + dtype};
  MS_TRY(ms_graph_emit(graph, form->backward, residual < 0 ? 4 : 5, in, &attrs, out));
  *dx = out[0];
  for (int c = 0; c < form->channels; c++) dx_channels[c] = out[1 + c];
  return MS_OK;
}

static int norm_gradient(ms_graph *graph, int node, const norm_form *form, const int *dy, const int *needs, int *dx) {
  const ms_node n = graph->nodes[node];
  int channels[2] = {-1, -1}, residual = form->summed ? dy[2] : -1, dsum = residual;
  MS_TRY(ms_grad_refuse(graph, node, dy, 1));
  if (dy[0] >= 0) MS_TRY(normalized_gradient(graph, &n, form, dy[0], residual, &dsum, channels));
  for (int i = 0; i < form->gain; i++)
    if (needs[i]) dx[i] = dsum;
  for (int c = 0; c < form->channels; c++)
    if (needs[form->gain + c]) dx[form->gain + c] = channels[c];
  return MS_OK;
}

int ms_grad_layer_norm(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  static const norm_form form = {MS_OP_layer_norm_backward, 1, 2, 0};
  return norm_gradient(graph, node, &form, dy, needs, dx);
}

int ms_grad_rms_norm(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  static const norm_form form = {MS_OP_rms_norm_backward, 1, 1, 0};
  return norm_gradient(graph, node, &form, dy, needs, dx);
}

int ms_grad_add_layer_norm(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  static const norm_form form = {MS_OP_layer_norm_backward, 2, 2, 1};
  return norm_gradient(graph, node, &form, dy, needs, dx);
}

int ms_grad_add_rms_norm(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  static const norm_form form = {MS_OP_rms_norm_backward, 2, 1, 1};
  return norm_gradient(graph, node, &form, dy, needs, dx);
}

int ms_grad_group_norm(ms_graph *graph, int node, const int *dy, const int *needs, int *dx) {
  const ms_node n = graph->nodes[node];
  const int in[4] = {n.in[0], n.in[1], n.out[1], dy[0]};
  int out[3], dtype;
  MS_TRY(ms_grad_refuse(graph, node, dy, 1));
  if (dy[0] < 0) return MS_OK;
  MS_TRY(ms_grad_dtype(graph, n.in[1], &dtype));
  const ms_op_attrs attrs = {.out_dtype = 1 + dtype, .norm = {.groups = n.attrs.norm.groups}};
  MS_TRY(ms_graph_emit(graph, MS_OP_group_norm_backward, 4, in, &attrs, out));
  for (int i = 0; i < 3; i++)
    if (needs[i]) dx[i] = out[i];
  return MS_OK;
}
