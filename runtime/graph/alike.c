/* alike.c - whether two traced graphs are the same program over parameters that are alike, so that every pass over
 * graphs makes the same of both. Their models can have been sharded differently: these passes do not see that.
 */
#include <string.h>

#include "graph/graph.h"

static int are_infos_alike(const ms_value_info *a, const ms_value_info *b) {
  return a->dtype == b->dtype && a->ndim == b->ndim && !memcmp(a->dims, b->dims, (size_t)a->ndim * sizeof *a->dims);
}

static int are_values_alike(const ms_value *a, const ms_value *b) {
  return a->kind == b->kind && a->node == b->node && a->output == b->output && a->param == b->param &&
         a->rows.outer == b->rows.outer && a->rows.rows == b->rows.rows && a->rows.first == b->rows.first &&
         are_infos_alike(&a->info, &b->info) && !strcmp(a->name, b->name);
}

static int are_attrs_alike(const ms_attrs *a, const ms_attrs *b) {
  return !memcmp(a->i, b->i, sizeof a->i) && !memcmp(a->f, b->f, sizeof a->f);
}

static int are_nodes_alike(const ms_node *a, const ms_node *b) {
  return a->op == b->op && a->inputs == b->inputs && a->outputs == b->outputs && a->backward == b->backward &&
         a->region == b->region && a->recompute == b->recompute && a->recomputed == b->recomputed &&
         a->regather == b->regather && are_attrs_alike(&a->attrs, &b->attrs) &&
         !memcmp(a->in, b->in, (size_t)a->inputs * sizeof *a->in) &&
         !memcmp(a->out, b->out, (size_t)a->outputs * sizeof *a->out) && !strcmp(a->scope, b->scope);
}

static int are_params_alike(const ms_graph *a, const ms_graph *b, int p) {
  ms_param_info x, y;
  if (a->param_values[p] != b->param_values[p] || a->lookup(a->model, p, &x) || b->lookup(b->model, p, &y)) return 0;
  return are_infos_alike(&x.info, &y.info) && x.grad_dtype == y.grad_dtype && x.frozen == y.frozen && x.fp8 == y.fp8 &&
         !strcmp(x.name, y.name);
}

static int are_ends_alike(const ms_graph *a, const ms_graph *b) {
  if (a->loss != b->loss || a->loss_weight != b->loss_weight || a->n_outputs != b->n_outputs) return 0;
  for (int o = 0; o < a->n_outputs; o++)
    if (a->outputs[o].value != b->outputs[o].value || strcmp(a->outputs[o].name, b->outputs[o].name)) return 0;
  return 1;
}

int ms_graph_is_alike(const ms_graph *a, const ms_graph *b) {
  if (a->n_values != b->n_values || a->n_nodes != b->n_nodes || a->n_params != b->n_params || !are_ends_alike(a, b))
    return 0;
  for (int v = 0; v < a->n_values; v++)
    if (!are_values_alike(&a->values[v], &b->values[v])) return 0;
  for (int n = 0; n < a->n_nodes; n++)
    if (!are_nodes_alike(&a->nodes[n], &b->nodes[n])) return 0;
  for (int p = 0; p < a->n_params; p++)
    if (!are_params_alike(a, b, p)) return 0;
  return 1;
}
