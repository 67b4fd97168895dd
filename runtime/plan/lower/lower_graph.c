/* lower_graph.c - turns a graph into the program of one phase: unshards before the nodes that need them, kernels, and
 * the reduction of a unit's gradients as soon as the last one is written.
 *
 * Values are placed, not copied: a parameter is read at its offset in the gathered (or master) buffer, its gradient
 * is written at its offset in the unit's reduce buffer, and a reshape is its input with another shape. sync.c adds
 * synchronisation later.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers/dtype.h"
#include "plan/lower/lower.h"

static int is_alias(const ms_node *node) {
  return (ms_op_row_of(node->op)->flags & MS_OP_ALIAS) || ms_across_is_alias(node);
}

/* Until the end of the phase, where it is read. */
static void keep(ms_lowering *l, int value) {
  l->last_use[l->root[value]] = INT_MAX;
  l->readers[l->root[value]]++;
}

/* 1 when a node is a product that adds itself to another one, which nothing else reads (graph/rewrite/product_sums.c).
 */
static int adds_to_product(const ms_lowering *l, const ms_node *n) {
  if (n->op != MS_OP_matmul_add || l->readers[l->root[n->in[2]]] != 1) return 0;
  const int maker = l->graph->values[l->root[n->in[2]]].node;
  return maker >= 0 && (l->graph->nodes[maker].op == MS_OP_matmul || l->graph->nodes[maker].op == MS_OP_matmul_add);
}

/* Follows aliases to the values that own bytes, and finds the last reader of each. Outputs, gradients and the loss are
 * kept until the end of the phase. */
static void find_roots(ms_lowering *l) {
  const ms_graph *g = l->graph;
  for (int v = 0; v < g->n_values; v++) {
    l->root[v] = v;
    l->last_use[v] = -1;
    l->at[v] = (ms_place){-1, 0};
    l->gather[v] = -1;
  }
  for (int n = 0; n < g->n_nodes; n++)
    if (is_alias(&g->nodes[n])) l->root[g->nodes[n].out[0]] = l->root[g->nodes[n].in[0]];
  for (int n = 0; n < g->n_nodes; n++)
    for (int i = 0; i < g->nodes[n].inputs; i++) {
      int root = l->root[g->nodes[n].in[i]];
      l->last_use[root] = n;
      l->read[root] |= !is_alias(&g->nodes[n]);
      l->readers[root] += !is_alias(&g->nodes[n]);
      if (l->gather[root] < 0 && ms_across_joins_chunks(g, &g->nodes[n])) l->gather[root] = n;
    }
  for (int o = 0; o < g->n_outputs; o++) {
    keep(l, g->outputs[o].value);
    l->read[l->root[g->outputs[o].value]] = 1;
  }
  for (int p = 0; p < g->n_params; p++)
    if (g->param_grads[p] >= 0) keep(l, g->param_grads[p]);
  if (g->loss >= 0) keep(l, g->loss);
  if (g->loss_weight >= 0) keep(l, g->loss_weight);
  for (int n = 0; n < g->n_nodes; n++) {
    const int root = g->nodes[n].inputs ? l->root[g->nodes[n].in[0]] : -1;
    if (root >= 0 && l->readers[root] == 1) l->sent[root] |= ms_across_sends(g, &g->nodes[n]);
  }
  for (int n = g->n_nodes - 1; n >= 0; n--) /* the first of several products is written where their sum is sent from */
    if (adds_to_product(l, &g->nodes[n])) l->sent[l->root[g->nodes[n].in[2]]] |= l->sent[g->nodes[n].out[0]];
}

/* Reserves the minimum that the graph needs, so that lists seldom grow. */
static int reserve(ms_plan *plan, int phase, const ms_graph *g) {
  ms_plan_phase *p = &plan->phase[phase];
  MS_TRY(ms_grow((void **)&p->instr, &p->capacity, g->n_nodes, sizeof *p->instr));
  return ms_grow((void **)&plan->buffer, &plan->buffers_capacity, plan->buffers + g->n_nodes, sizeof *plan->buffer);
}

static int start(ms_lowering *l) {
  const ms_graph *g = l->graph;
  int units = l->model->units;
  l->root = ms_calloc(g->n_values, sizeof *l->root);
  l->last_use = ms_calloc(g->n_values, sizeof *l->last_use);
  l->at = ms_calloc(g->n_values, sizeof *l->at);
  l->read = ms_calloc(g->n_values, 1);
  l->sent = ms_calloc(g->n_values, 1);
  l->gather = ms_calloc(g->n_values, sizeof *l->gather);
  l->chunk = ms_calloc(g->n_values, 1);
  l->begun = ms_calloc(g->n_values, 1);
  l->readers = ms_calloc(g->n_values, sizeof *l->readers);
  l->added = ms_calloc(g->n_values, 1);
  l->use = ms_calloc(units, sizeof *l->use);
  l->ends = ms_calloc(g->n_nodes, 1);
  l->unshard = ms_calloc(2 * units, sizeof *l->unshard);
  l->gathered = ms_calloc(units, sizeof *l->gathered);
  l->slice = ms_calloc(units, sizeof *l->slice);
  l->reduce = ms_calloc(units, sizeof *l->reduce);
  l->part = ms_calloc(ms_model_max_segments(l->model), sizeof *l->part);
  l->scale = ms_calloc(l->model->params, sizeof *l->scale);
  l->quantised = ms_calloc(2 * units, sizeof *l->quantised);
  if (!l->root || !l->last_use || !l->at || !l->read || !l->sent || !l->readers || !l->gather || !l->chunk ||
      !l->begun || !l->added || !l->use || !l->ends || !l->unshard || !l->gathered || !l->slice || !l->reduce ||
      !l->part || !l->scale || !l->quantised)
    return MS_ENOMEM;
  MS_TRY(ms_across_check(l->model, g));
  MS_TRY(reserve(l->plan, l->phase, g));
  find_roots(l);
  int trains = l->phase != MS_PHASE_EVALUATE, stays = trains && !l->plan->config.reshard_after_backward;
  for (int u = 0; u < units; u++) {
    l->reduce[u] = l->slice[u] = -1;
    l->gathered[u] = stays && l->phase != MS_PHASE_FIRST ? l->plan->kept_unsharded[u] : -1;
  }
  l->weights[0].buffer = l->weights[1].buffer = -1;
  for (int d = 0; d < MS_DIMS; d++) l->sending[d] = l->latest[d] = -1;
  MS_TRY(ms_unit_uses(l->model, &l->plan->config, g, l->root, stays, l->use, &l->boundary));
  for (int u = 0; u < units; u++) {
    if (l->use[u].forward_last >= 0) l->ends[l->use[u].forward_last] = 1;
    if (l->use[u].gradient_last >= 0) l->ends[l->use[u].gradient_last] = 1;
  }
  if (stays && l->phase != MS_PHASE_FIRST) return MS_OK;
  l->unshards = ms_unshard_schedule(l->model, l->use, l->boundary, l->plan->config.prefetch, l->unshard);
  return l->unshards < 0 ? MS_ENOMEM : MS_OK;
}

static void finish(ms_lowering *l) {
  free(l->root);
  free(l->last_use);
  free(l->at);
  free(l->read);
  free(l->sent);
  free(l->gather);
  free(l->chunk);
  free(l->begun);
  free(l->readers);
  free(l->added);
  free(l->use);
  free(l->ends);
  free(l->unshard);
  free(l->gathered);
  free(l->slice);
  free(l->reduce);
  free(l->part);
  free(l->scale);
  free(l->quantised);
}

static int64_t value_bytes(const ms_value_info *info) { return ms_numel(info) * ms_dtype_size(info->dtype); }

/* ---- values ----------------------------------------------------------------------------------------------------- */

/* Where the records of a stored parameter are: gathered, or with one shard where they are kept. */
static int place_records(ms_lowering *l, const ms_param *p, const ms_segment *seg, ms_ref *records) {
  const int shards = ms_unit_shards(&l->model->unit[p->unit]);
  const ms_place gathered = ms_lower_gathered(l, p->unit, seg);
  if (shards == 1) *records = ms_plan_weights(l->plan, p->unit, p->segment, seg->local, seg->chunk);
  else *records = ms_ref_vector(gathered.buffer, gathered.offset, seg->wire, seg->chunk * shards);
  if (records->buffer >= 0) return MS_OK;
  return MS_FAIL(MS_EINTERNAL, "unit '%s' is read before it is gathered", l->model->unit[p->unit].name);
}

/* A node that reads a stored parameter does so in memory that lives as long as the node's kernel; one that is stored in
 * the dtype that kernels read, where it is. */
static int place_stored(ms_lowering *l, const ms_param *p, const ms_segment *seg, ms_place *at) {
  ms_ref records, values = {.info = {.dtype = seg->param_dtype, .ndim = p->ndim}};
  MS_TRY(place_records(l, p, seg, &records));
  *at = (ms_place){records.buffer, records.offset};
  if (seg->storage.dtype == seg->param_dtype) return MS_OK;
  memcpy(values.info.dims, p->dims, sizeof values.info.dims);
  MS_TRY(ms_plan_buffer(l->plan, l->phase, MS_ARENA_WORKSPACE, MS_CAT_WORKSPACE,
                        p->numel * ms_dtype_size(seg->param_dtype), "dequantised", &values.buffer));
  const ms_op_attrs attrs = {.stored = {.storage = seg->storage.dtype,
                                        .record = ms_param_is_divided(l->model, p) ? seg->storage.elements : 0}};
  const ms_node *reader = l->reader;
  MS_TRY(ms_plan_kernel(l->plan, l->phase, MS_OP_dequantise, &attrs, 1, &records, 1, &values,
                        reader ? reader->scope : "", reader ? reader->backward : 0));
  *at = (ms_place){values.buffer, 0};
  return MS_OK;
}

static int place_param(ms_lowering *l, int param, ms_place *at) {
  const ms_param *p = &l->model->param[param];
  const ms_segment *seg = &l->model->unit[p->unit].segment[p->segment];
  if (ms_segment_is_stored(seg)) return place_stored(l, p, seg, at);
  if (ms_unit_is_direct(l->model, p->unit)) {
    const ms_ref master = ms_plan_weights(l->plan, p->unit, p->segment, seg->local + p->offset, p->numel);
    *at = (ms_place){master.buffer, master.offset};
    return MS_OK;
  }
  *at = ms_lower_gathered(l, p->unit, seg);
  if (at->buffer < 0)
    return MS_FAIL(MS_EINTERNAL, "unit '%s' is read before it is gathered", l->model->unit[p->unit].name);
  if (seg->blocks) return ms_lower_restore_blocks(l, p, seg, at);
  at->offset += p->offset * ms_dtype_size(seg->wire);
  return MS_OK;
}

/* What a kernel reads of a value: codes of a parameter that is gathered so. */
static int dtype_of(const ms_lowering *l, int value) {
  const ms_value *v = &l->graph->values[l->root[value]];
  const int coded = v->kind == MS_VALUE_PARAM && ms_param_is_coded(&l->model->param[v->param]);
  return coded ? MS_F8E4M3 : l->graph->values[value].info.dtype;
}

static int value_ref(ms_lowering *l, int value, ms_ref *ref) {
  int root = l->root[value];
  const ms_value *v = &l->graph->values[root];
  ms_place at = l->at[root];
  if (v->kind == MS_VALUE_PARAM) MS_TRY(place_param(l, v->param, &at));
  if (at.buffer < 0) return MS_FAIL(MS_EINTERNAL, "value %d is read before it is written", value);
  *ref = (ms_ref){at.buffer, at.offset, l->graph->values[value].info};
  ref->info.dtype = dtype_of(l, value);
  return MS_OK;
}

/* Inputs have one place for all phases: the host writes them before it knows which phase will read them. */
static void place_inputs(ms_lowering *l) {
  ms_plan *plan = l->plan;
  for (int v = 0; v < l->graph->n_values; v++) {
    const ms_value *value = &l->graph->values[v];
    if (value->kind != MS_VALUE_INPUT) continue;
    for (int i = 0; i < plan->inputs; i++)
      if (!strcmp(plan->input[i].name, value->name)) l->at[v] = (ms_place){plan->input[i].at.buffer, 0};
  }
}

/* 1 when output o can overwrite input i: both have the same size, and no later node reads the input. */
static int may_reuse(const ms_lowering *l, int node, int o, int i) {
  const ms_node *n = &l->graph->nodes[node];
  int in = l->root[n->in[i]], out = l->root[n->out[o]];
  const ms_value *source = &l->graph->values[in];
  if (source->kind != MS_VALUE_NODE || l->last_use[in] != node || l->at[in].buffer < 0) return 0;
  if (l->plan->buffer[l->at[in].buffer].arena != MS_ARENA_ACTIVATIONS) return 0;
  if (value_bytes(&source->info) != value_bytes(&l->graph->values[out].info)) return 0;
  for (int other = 0; other < n->outputs; other++)
    if (l->at[l->root[n->out[other]]].buffer == l->at[in].buffer) return 0;
  return 1;
}

/* Places an output over the first input that its kernel can overwrite. */
static int reuse_input(const ms_lowering *l, int node, int o, ms_place *at) {
  const ms_node *n = &l->graph->nodes[node];
  const ms_kernel *kernel = ms_device_kernel(l->plan->config.device, n->op);
  for (int i = 0; kernel && o < MS_OVER_OUTPUTS && i < n->inputs; i++) {
    if (!(kernel->in_place & MS_OVER(o, i)) || !may_reuse(l, node, o, i)) continue;
    *at = l->at[l->root[n->in[i]]];
    return 1;
  }
  return 0;
}

static int place_outputs(ms_lowering *l, int node) {
  const ms_node *n = &l->graph->nodes[node];
  for (int o = 0; o < n->outputs; o++) {
    int root = n->out[o];
    if (l->at[root].buffer >= 0) continue;
    const int sent = l->sent[root];
    if (l->gather[root] >= 0) MS_TRY(ms_lower_chunk(l, root, &l->at[root]));
    if (l->at[root].buffer >= 0) continue;
    if (!sent && reuse_input(l, node, o, &l->at[root])) continue;
    if (sent && adds_to_product(l, n)) {
      l->at[root] = l->at[l->root[n->in[2]]];
      continue;
    }
    MS_TRY(ms_plan_buffer(l->plan, l->phase, sent ? MS_ARENA_COMM : MS_ARENA_ACTIVATIONS,
                          sent ? MS_CAT_COMMUNICATION : MS_CAT_ACTIVATIONS, value_bytes(&l->graph->values[root].info),
                          ms_op_row_of(n->op)->name, &l->at[root].buffer));
  }
  return MS_OK;
}

/* ---- the program ------------------------------------------------------------------------------------------------ */

static int lower_node(ms_lowering *l, int node) {
  const ms_node *n = &l->graph->nodes[node];
  if (is_alias(n)) return MS_OK;
  ms_ref in[MS_MAX_INPUTS], out[MS_MAX_OUTPUTS];
  l->reader = n;
  for (int i = 0; i < n->inputs; i++) MS_TRY(value_ref(l, n->in[i], &in[i]));
  if (ms_is_across(n) && n->op == MS_OP_all_gather) return ms_lower_gather(l, n, in[0], &l->at[n->out[0]]);
  MS_TRY(place_outputs(l, node));
  for (int o = 0; o < n->outputs; o++) MS_TRY(value_ref(l, n->out[o], &out[o]));
  if (ms_is_across(n)) return ms_lower_across(l, n, in[0], out[0]);
  if (!n->recomputed) l->plan->phase[l->phase].flops += ms_node_flops(l->graph, n);
  const int op = l->added[n->out[0]] && n->op == MS_OP_matmul ? MS_OP_matmul_accumulate : n->op;
  const int part = op == n->op ? ms_lower_gathered_part(l, n) : -1;
  for (int i = 0; i < n->inputs; i++) l->begun[l->root[n->in[i]]] = 1;
  if (part >= 0) {
    ms_ref own;
    MS_TRY(value_ref(l, part, &own));
    return ms_lower_product(l, n, own, in, out[0]);
  }
  if (n->op == MS_OP_matmul_f8 && ms_dtype_may(dtype_of(l, n->in[1]), MS_DTYPE_SCALED))
    return ms_lower_coded_product(l, n, in, out[0]);
  int local;
  const ms_op_attrs attrs = ms_across_attrs(l, n, in, out, &local);
  MS_TRY(ms_plan_kernel(l->plan, l->phase, op, &attrs, n->inputs, in, n->outputs, out, n->scope, n->backward));
  if (local) ms_plan_hash_alike(l->plan, l->phase, n->op, &n->attrs);
  return MS_OK;
}

/* Adds a scalar to another, or stores it there. */
static int put(ms_lowering *l, ms_ref from, int buffer, int64_t offset, int adds) {
  const ms_ref to = ms_ref_scalar(buffer, offset);
  const ms_op_attrs attrs = {.add = adds};
  return ms_plan_kernel(l->plan, l->phase, MS_OP_accumulate, &attrs, 1, &from, 1, &to, "loss", 0);
}

/* Stores the weighted loss and its weight in a buffer, or adds them to it; without a weight, only the loss. */
static int put_loss(ms_lowering *l, int buffer, int adds) {
  const ms_op_attrs none = {0};
  ms_ref factor[2];
  int product;
  MS_TRY(value_ref(l, l->graph->loss, &factor[0]));
  if (l->graph->loss_weight < 0) return put(l, factor[0], buffer, 0, adds);
  MS_TRY(value_ref(l, l->graph->loss_weight, &factor[1]));
  MS_TRY(ms_plan_buffer(l->plan, l->phase, MS_ARENA_ACTIVATIONS, MS_CAT_ACTIVATIONS, 4, "weighted loss", &product));
  const ms_ref weighted = ms_ref_scalar(product, 0);
  MS_TRY(ms_plan_kernel(l->plan, l->phase, MS_OP_mul, &none, 2, factor, 1, &weighted, "loss", 0));
  MS_TRY(put(l, weighted, buffer, 0, adds));
  return put(l, factor[1], buffer, 4, adds);
}

static int record_loss(ms_lowering *l) {
  if (l->graph->loss < 0) return MS_OK;
  if (l->phase != MS_PHASE_EVALUATE) return put_loss(l, ms_loss_sum_buffer(l->plan), l->phase != MS_PHASE_FIRST);
  const int numbers = l->graph->loss_weight < 0 ? 1 : 2;
  int sums, buffer;
  MS_TRY(ms_plan_buffer(l->plan, l->phase, MS_ARENA_ACTIVATIONS, MS_CAT_ACTIVATIONS, 4 * numbers, "loss", &sums));
  MS_TRY(put_loss(l, sums, 0));
  MS_TRY(ms_plan_buffer(l->plan, l->phase, MS_ARENA_COMM, MS_CAT_COMMUNICATION, 4 + 4 * numbers, "totals", &buffer));
  const ms_ref in[2] = {ms_ref_vector(sums, 0, MS_F32, 1), ms_ref_vector(sums, 0, MS_F32, numbers)};
  const ms_ref totals = ms_ref_vector(buffer, 0, MS_F32, 1 + numbers);
  const ms_op_attrs attrs = {.step = {.replicas = 1}};
  MS_TRY(ms_plan_kernel(l->plan, l->phase, MS_OP_step_totals, &attrs, 2, in, 1, &totals, "loss", 0));
  l->plan->evaluated = totals;
  MS_TRY(ms_lower_totals(l->plan, l->phase, totals, 1));
  ms_plan_touch(l->plan, buffer, INT_MAX);
  return MS_OK;
}

static int keep_outputs(ms_lowering *l) {
  for (int o = 0; o < l->graph->n_outputs; o++) {
    ms_ref ref;
    MS_TRY(value_ref(l, l->graph->outputs[o].value, &ref));
    MS_TRY(ms_lower_take_logits(l, l->graph->outputs[o].name, ref));
    ms_plan_touch(l->plan, ref.buffer, INT_MAX);
    for (int i = 0; i < l->plan->outputs; i++)
      if (!strcmp(l->plan->output[i].name, l->graph->outputs[o].name)) l->plan->output[i].at[l->phase] = ref;
  }
  return MS_OK;
}

/* Marks the values at which a unit's gradients are opened: a parameter's gradient and, if it is at least half of the
 * unit's gradients, its first summands, which are written where the sum will be. */
static void mark_gradient(const ms_lowering *l, int param, int *grad_unit) {
  int unit = l->model->param[param].unit, gradient = l->root[l->graph->param_grads[param]];
  grad_unit[gradient] = unit;
  if (2 * value_bytes(&l->graph->values[gradient].info) < l->model->unit[unit].reduce_bytes) return;
  for (int v = ms_lower_first_summand(l, gradient); v >= 0; v = ms_lower_first_summand(l, v)) grad_unit[v] = unit;
}

/* The weight of this micro-batch's loss, which is known before backward. */
static int take_weights(ms_lowering *l) {
  ms_ref weight;
  if (l->graph->loss_weight < 0) return MS_OK;
  MS_TRY(value_ref(l, l->graph->loss_weight, &weight));
  return ms_lower_weights(l, weight);
}

int ms_lower_graph(ms_plan *plan, int phase, const ms_graph *graph) {
  ms_lowering l = {.plan = plan, .phase = phase, .graph = graph, .model = plan->model};
  int *grad_unit = ms_calloc(graph->n_values, sizeof *grad_unit);
  int rc = grad_unit ? start(&l) : MS_ENOMEM;
  if (rc) goto fail;
  for (int v = 0; v < graph->n_values; v++) grad_unit[v] = -1;
  for (int p = 0; p < graph->n_params; p++)
    if (graph->param_grads[p] >= 0) mark_gradient(&l, p, grad_unit);
  plan->phase[phase].present = 1;
  place_inputs(&l);
  MS_GOTO(ms_lower_scales(&l));
  MS_GOTO(ms_lower_zero_unreached(&l));
  for (int n = 0; n < graph->n_nodes; n++) {
    if (n == l.boundary) MS_GOTO(take_weights(&l));
    MS_GOTO(ms_lower_unshards(&l, n));
    MS_GOTO(ms_lower_open_gradients_of(&l, n, grad_unit));
    MS_GOTO(lower_node(&l, n));
    MS_GOTO(ms_lower_keep_slices(&l, n));
    MS_GOTO(ms_lower_reduce_completed(&l, n));
  }
  l.reader = NULL;
  while (l.quantised_begun < l.quantised_started) MS_GOTO(ms_lower_advance_quantised(&l));
  MS_GOTO(record_loss(&l));
  MS_GOTO(keep_outputs(&l));
fail:
  free(grad_unit);
  finish(&l);
  return rc;
}
