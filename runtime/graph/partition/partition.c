/* partition.c - the walk over a traced graph that makes the program of one rank (partition.h). The walk is repeated
 * when it has found parameters that must be replicate, which adds at least one of them each time. */
#include "graph/partition/partition.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers/dtype.h"
#include "base/error.h"
#include "graph/infer/infer.h"
#include "graph/partition/partition_walk.h"

static const ms_placement invariant = {MS_INVARIANT, 0, 0, 0}, replicate = {MS_REPLICATE, 0, 0, 0},
                          partial = {MS_PARTIAL, 0, 0, 0};

/* ---- parameters and inputs -------------------------------------------------------------------------------------- */

static int check_shard(const ms_walk *w, const char *kind, const char *name, const ms_value_info *x, ms_placement p) {
  char what[160], shape[MS_SHAPE_TEXT];
  snprintf(what, sizeof what, "%s %.120s", kind, name);
  if (p.kind == MS_INVARIANT) return MS_OK;
  if (p.kind != MS_SHARD || p.axis < 0 || p.axis >= x->ndim || p.outer < 1)
    return MS_FAIL(MS_EINVAL, "%s %s: its placement on %s must be none or the shard of one of its axes", what,
                   ms_shape_text(x, shape), w->spec->name);
  if (p.folded && p.outer % 2)
    return MS_FAIL(MS_EINVAL, "%s: %lld blocks cannot be folded in pairs", what, (long long)p.outer);
  if (x->dims[p.axis] % (p.outer * w->spec->ranks)) return ms_walk_uneven(w, what, x, p.axis, p.outer);
  return MS_OK;
}

static int place_param(ms_walk *w, int param, const ms_value_info *x, ms_placed_value *placed) {
  ms_param_info info;
  const ms_placement asked = w->spec->params[param];
  MS_TRY(w->traced->lookup(w->traced->model, param, &info));
  MS_TRY(check_shard(w, "parameter", info.name, x, asked));
  placed->wanted = !info.frozen && w->traced->loss >= 0;
  placed->fixed = 1;
  placed->settled = asked.kind == MS_SHARD;
  placed->uncut = info.fp8 != MS_FP8_NONE && !placed->settled;
  placed->place = asked;
  if (asked.kind == MS_INVARIANT && placed->wanted && (w->replicate[param] || w->spec->divides_samples))
    placed->place = replicate;
  w->result->params[param] = placed->place;
  return MS_OK;
}

static int place_input(ms_walk *w, const ms_value *input, ms_placed_value *placed, int *cuts) {
  for (int i = 0; i < w->spec->n_inputs; i++)
    if (!strcmp(w->spec->inputs[i].name, input->name))
      placed->place = w->spec->inputs[i].placement, *cuts = w->spec->inputs[i].given_whole;
  /* Made of constants and parameters alone is as good as of parameters alone where these are not divided. */
  placed->fixed = w->spec->divides_samples && !input->rows.rows;
  return check_shard(w, "input", input->name, &input->info, placed->place);
}

/* The ranks are given the whole input, and take their part of it. */
static int cut_input(ms_walk *w, ms_placed_value *placed) {
  const ms_placement p = placed->place;
  const ms_op_attrs attrs = {
      .across = {.dim = w->spec->dim, .ranks = w->spec->ranks, .along = p.axis, .outer = p.outer, .folded = p.folded}};
  if (p.kind != MS_SHARD) return MS_OK;
  return ms_graph_emit(w->result->graph, MS_OP_split, 1, &placed->local, &attrs, &placed->local);
}

static int place_leaves(ms_walk *w) {
  ms_graph *local = w->result->graph;
  for (int v = 0; v < w->traced->n_values; v++) {
    const ms_value *value = &w->traced->values[v];
    ms_placed_value *placed = &w->values[v];
    int cuts = 0;
    *placed = (ms_placed_value){.place = invariant, .local = v, .forms = -1};
    if (value->kind == MS_VALUE_PARAM) MS_TRY(place_param(w, value->param, &value->info, placed));
    if (value->kind == MS_VALUE_INPUT) MS_TRY(place_input(w, value, placed, &cuts));
    if (cuts) MS_TRY(cut_input(w, placed));
    else local->values[v].info = ms_placement_local(&value->info, placed->place, w->spec->ranks);
  }
  return MS_OK;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------ */

static int append_node(ms_graph *local, const ms_node *node) {
  MS_TRY(ms_grow((void **)&local->nodes, &local->nodes_capacity, local->n_nodes + 1, sizeof *local->nodes));
  local->nodes[local->n_nodes++] = *node;
  return MS_OK;
}

/* The local node: outputs keep the ids of the traced graph, and get the shapes of the op's rule. */
static int make_local(ms_walk *w, const ms_placed_node *c, const int *in) {
  ms_graph *local = w->result->graph;
  ms_value_info in_info[MS_MAX_INPUTS], out_info[MS_MAX_OUTPUTS];
  ms_node node = *c->node;
  node.scope = local->scope;
  node.attrs = c->attrs;
  if (c->joins) node.op = MS_OP_cross_entropy_join, node.inputs = 3;
  for (int i = 0; i < node.inputs; i++) node.in[i] = in[i], in_info[i] = local->values[in[i]].info;
  MS_TRY(ms_op_row_of(node.op)->infer(&node, in_info, out_info));
  for (int o = 0; o < node.outputs; o++) {
    const ms_value_info wanted = ms_placement_local(&c->out[o], c->makes[o], w->spec->ranks);
    const int is_statistics = c->divided && c->axes.statistics >> o & 1;
    if (!is_statistics && !ms_same_shape(&wanted, &out_info[o]))
      return MS_FAIL(MS_EINTERNAL, "%s: a rank's output %d has another shape than its placement says",
                     ms_node_name(&node), o + 1);
    local->values[node.out[o]].info = out_info[o];
    local->values[node.out[o]].node = local->n_nodes;
  }
  return append_node(local, &node);
}

static void place_outputs(ms_walk *w, const ms_placed_node *c) {
  int wanted = 0, fixed = 1, by_hand = 0;
  for (int i = 0; i < c->node->inputs; i++) {
    wanted |= ms_walk_input(w, c, i)->wanted;
    fixed &= ms_walk_input(w, c, i)->fixed;
    by_hand |= ms_walk_input(w, c, i)->by_hand;
  }
  if (ms_op_row_of(c->node->op)->flags & MS_OP_STOPS_GRADIENT) wanted = 0;
  for (int o = 0; o < c->node->outputs; o++) {
    ms_placed_value *placed = &w->values[c->node->out[o]];
    placed->wanted = wanted && ms_is_float(c->out[o].dtype);
    placed->fixed = (unsigned char)fixed;
    placed->by_hand = (unsigned char)by_hand;
    placed->settled = c->settled && c->makes[o].kind == MS_SHARD;
    placed->spread = c->spread && c->makes[o].kind == MS_SHARD;
    placed->hidden = c->divided && c->axes.statistics >> o & 1;
    placed->place = !placed->wanted && c->makes[o].kind == MS_REPLICATE ? invariant : c->makes[o];
  }
}

/* A mean of parts is a summand of the mean once it is divided by the number of ranks. */
static int average(ms_walk *w, const ms_placed_node *c) {
  ms_placed_value *placed = &w->values[c->node->out[0]];
  const ms_op_attrs attrs = {.scale = {.alpha = 1.0 / (double)w->spec->ranks}};
  return ms_walk_emit(w, c->node, MS_OP_scale, 1, &c->node->out[0], &attrs, &placed->local);
}

/* A hint: the value is converted as it says, and is its own result. */
static int redistribute(ms_walk *w, const ms_node *node) {
  const ms_placed_value *x = &w->values[node->in[0]];
  const int axis = (int)node->attrs.across.along;
  const ms_placement to = axis < 0 ? invariant : w->spec->divides_samples ? ms_shard_folded(axis) : ms_shard(axis, 1);
  ms_placed_value made = {.place = to, .forms = -1, .wanted = x->wanted, .fixed = x->fixed};
  MS_TRY(check_shard(w, "the value of", "redistribute", &w->traced->values[node->in[0]].info, to));
  MS_TRY(ms_walk_convert(w, node->in[0], to, node, &made.local));
  w->values[node->out[0]] = made;
  return MS_OK;
}

static int place_node(ms_walk *w, const ms_node *node) {
  ms_placed_node c = {.node = node};
  int in[MS_MAX_INPUTS];
  for (int i = 0; i < node->inputs; i++) c.in[i] = w->traced->values[node->in[i]].info;
  for (int o = 0; o < node->outputs; o++) c.out[o] = w->traced->values[node->out[o]].info;
  if (ms_op_has_axes(node->op)) MS_TRY(ms_axes_of(node, c.in, c.out, &c.axes));
  MS_TRY(ms_walk_decide(w, &c));
  for (int i = 0; i < node->inputs; i++) {
    if (c.repeats >> i & 1) MS_TRY(ms_walk_repeat(w, node->in[i], c.takes[i].axis, node, &in[i]));
    else MS_TRY(ms_walk_convert(w, node->in[i], c.takes[i], node, &in[i]));
  }
  MS_TRY(ms_graph_set_scope(w->result->graph, node->scope));
  if (c.joins) MS_TRY(ms_walk_gather_loss(w, &c, in));
  MS_TRY(make_local(w, &c, in));
  place_outputs(w, &c);
  if (c.weighs) return ms_walk_weigh_loss(w, &c);
  return c.averages ? average(w, &c) : MS_OK;
}

static int place_nodes(ms_walk *w) {
  ms_graph *local = w->result->graph;
  for (int n = 0; n < w->traced->n_nodes; n++) {
    const ms_node *node = &w->traced->nodes[n];
    const int is_hint = node->op == MS_OP_redistribute && node->attrs.across.dim == w->spec->dim;
    int rc = ms_graph_set_scope(local, node->scope);
    if (!rc && is_hint) rc = redistribute(w, node);
    else if (!rc) rc = ms_walk_crosses(w, node) ? ms_walk_cross(w, node) : place_node(w, node);
    if (rc) return ms_graph_in_scope(local, rc);
  }
  return MS_OK;
}

/* ---- results ---------------------------------------------------------------------------------------------------- */

/* The loss is a number that each rank knows, or a summand of it; outputs and weights are whole. */
static int place_results(ms_walk *w) {
  ms_graph *local = w->result->graph;
  MS_TRY(ms_graph_set_scope(local, ""));
  w->result->loss = invariant;
  if (w->traced->loss >= 0) {
    if (w->spec->divides_samples) w->result->loss = partial;
    MS_TRY(ms_walk_convert(w, w->traced->loss, w->result->loss, NULL, &local->loss));
  }
  if (w->traced->loss_weight >= 0)
    MS_TRY(ms_walk_convert(w, w->traced->loss_weight, invariant, NULL, &local->loss_weight));
  for (int o = 0; o < local->n_outputs; o++) {
    const ms_named_value *output = &w->traced->outputs[o];
    if (w->values[output->value].hidden) return ms_walk_hidden(w, output->name, output->value);
    MS_TRY(ms_walk_convert(w, output->value, invariant, NULL, &local->outputs[o].value));
  }
  return MS_OK;
}

static int walk(ms_walk *w) {
  ms_partition *result = w->result;
  result->params = ms_calloc(w->traced->n_params, sizeof *result->params);
  if (!result->params) return MS_ENOMEM;
  MS_TRY(ms_graph_copy(w->traced, &result->graph));
  result->graph->n_nodes = 0;
  MS_TRY(place_leaves(w));
  MS_TRY(place_nodes(w));
  return place_results(w);
}

/* ---- the pass --------------------------------------------------------------------------------------------------- */

static int is_input(const ms_graph *graph, const char *name) {
  for (int v = 0; v < graph->n_values; v++)
    if (graph->values[v].kind == MS_VALUE_INPUT && !strcmp(graph->values[v].name, name)) return 1;
  return 0;
}

static int check_spec(const ms_graph *traced, const ms_partition_spec *spec) {
  if (spec->ranks < 2)
    return MS_FAIL(MS_EINVAL, "a graph is divided over 2 ranks or more; %s has %lld", spec->name,
                   (long long)spec->ranks);
  for (int i = 0; i < spec->n_inputs; i++)
    if (!is_input(traced, spec->inputs[i].name))
      return MS_FAIL(MS_ENAME, "the graph has no input %s to divide over %s", spec->inputs[i].name, spec->name);
  for (int n = 0; n < traced->n_nodes; n++)
    if (traced->nodes[n].backward) return MS_FAIL(MS_EINVAL, "a differentiated graph cannot be divided");
  return MS_OK;
}

int ms_graph_partition(const ms_graph *traced, const ms_partition_spec *spec, ms_partition *partition) {
  ms_walk w = {.traced = traced, .spec = spec, .result = partition};
  int rc = MS_ENOMEM;
  *partition = (ms_partition){0};
  MS_TRY(check_spec(traced, spec));
  w.values = ms_calloc(traced->n_values, sizeof *w.values);
  w.replicate = ms_calloc(traced->n_params, sizeof *w.replicate);
  if (!w.values || !w.replicate) goto fail;
  do {
    ms_partition_free(partition);
    w.again = w.n_forms = 0;
    MS_GOTO(walk(&w));
  } while (w.again);
fail:
  free(w.values);
  free(w.forms);
  free(w.replicate);
  if (rc) ms_partition_free(partition);
  return rc;
}

void ms_partition_free(ms_partition *partition) {
  ms_free(partition->graph);
  free(partition->params);
  *partition = (ms_partition){0};
}

char *ms_conversion_text(const ms_conversion *c, char *text) {
  char from[MS_PLACEMENT_TEXT], to[MS_PLACEMENT_TEXT], shape[MS_SHAPE_TEXT];
  snprintf(text, MS_CONVERSION_TEXT, "%.128s%s%s %s %s, %s to %s%s%s", c->scope, c->scope[0] ? ": " : "",
           ms_op_row_of(c->op)->name, ms_shape_text(&c->whole, shape), ms_dtype_name(c->whole.dtype),
           ms_placement_text(c->from, from), ms_placement_text(c->to, to), c->backward < 0 ? "" : "; in backward ",
           c->backward < 0 ? "" : ms_op_row_of(c->backward)->name);
  return text;
}
