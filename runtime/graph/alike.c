/* alike.c - whether two traced graphs are the same program over parameters that are alike, so that every pass over
 * graphs makes the same of both, and what first differs if not. Their models can have been sharded differently: these
 * passes do not see that.
 */
#include <stdio.h>
#include <string.h>

#include "base/numbers/dtype.h"
#include "graph/graph.h"
#include "graph/infer/infer.h"

static int are_infos_alike(const ms_value_info *a, const ms_value_info *b) {
  return a->dtype == b->dtype && a->ndim == b->ndim && !memcmp(a->dims, b->dims, (size_t)a->ndim * sizeof *a->dims);
}

static int are_values_alike(const ms_value *a, const ms_value *b) {
  return a->kind == b->kind && a->node == b->node && a->output == b->output && a->param == b->param &&
         a->rows.outer == b->rows.outer && a->rows.rows == b->rows.rows && a->rows.first == b->rows.first &&
         are_infos_alike(&a->info, &b->info) && !strcmp(a->name, b->name);
}

static int are_attrs_alike(const ms_op_attrs *a, const ms_op_attrs *b) { return !memcmp(a, b, sizeof *a); }

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

/* ---- what differs ----------------------------------------------------------------------------------------------- */

enum { DIFFERENCE_BYTES = 512 };
static _Thread_local char difference_text[DIFFERENCE_BYTES];

#define SAY(...) snprintf(difference_text, sizeof difference_text, __VA_ARGS__)

static const char *scope_of(const ms_node *node) { return node->scope[0] ? node->scope : "the root module"; }

/* Names the attribute that differs, by the words of the op's row. */
static void say_attribute(const ms_node *was, const ms_node *now) {
  const ms_op_row *row = ms_op_row_of(now->op);
  int n;
  for (const ms_attribute *a = ms_op_attributes(now->op, &n); n > 0; n--, a++) {
    const double before = ms_attribute_value(a, &was->attrs), after = ms_attribute_value(a, &now->attrs);
    if (before == after) continue;
    SAY("%s in %s: %.*s was %.9g and is %.9g", row->name, scope_of(now), a->length, a->name, before, after);
    return;
  }
  SAY("%s in %s has other settings", row->name, scope_of(now));
}

static void say_node(const ms_graph *was, const ms_graph *now, int n) {
  const ms_node *a = &was->nodes[n], *b = &now->nodes[n];
  const char *before = ms_op_row_of(a->op)->name, *after = ms_op_row_of(b->op)->name;
  if (a->op != b->op || strcmp(a->scope, b->scope))
    SAY("%s in %s has become %s in %s", before, scope_of(a), after, scope_of(b));
  else if (!are_attrs_alike(&a->attrs, &b->attrs)) say_attribute(a, b);
  else SAY("%s in %s reads or recomputes something else", after, scope_of(b));
}

static void say_value(const ms_graph *was, const ms_graph *now, int v) {
  char before[MS_SHAPE_TEXT], after[MS_SHAPE_TEXT];
  const ms_value *a = &was->values[v], *b = &now->values[v];
  SAY("%s was %s %s and is %s %s", b->kind == MS_VALUE_INPUT ? b->name : "a value", ms_dtype_name(a->info.dtype),
      ms_shape_text(&a->info, before), ms_dtype_name(b->info.dtype), ms_shape_text(&b->info, after));
}

/* Nodes come first, since they say where. */
static void say_difference(const ms_graph *was, const ms_graph *now) {
  for (int n = 0; n < was->n_nodes && n < now->n_nodes; n++)
    if (!are_nodes_alike(&was->nodes[n], &now->nodes[n])) {
      say_node(was, now, n);
      return;
    }
  if (was->n_nodes != now->n_nodes) {
    SAY("it had %d ops and has %d", was->n_nodes, now->n_nodes);
    return;
  }
  for (int v = 0; v < was->n_values && v < now->n_values; v++)
    if (!are_values_alike(&was->values[v], &now->values[v])) {
      say_value(was, now, v);
      return;
    }
  SAY("its inputs, its results or the parameters that it uses are others");
}

int ms_graph_difference(const ms_graph *graph, const ms_graph *before, const char **difference) {
  MS_HANDLE(graph, GRAPH);
  MS_HANDLE(before, GRAPH);
  MS_GIVEN(difference);
  difference_text[0] = '\0';
  if (!ms_graph_is_alike(before, graph)) say_difference(before, graph);
  *difference = difference_text;
  return MS_OK;
}
