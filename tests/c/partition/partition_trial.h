/* partition_trial.h - a model divided over simulated ranks, compared with the model as written: both are differentiated
 * and run by the same kernels, and the ranks' parts of parameters and inputs are cut from the same numbers.
 *
 * A test builds its graph in t->f, says how it is divided in t->spec, one for each dimension of the mesh, outer ones
 * first, and calls trial_divide.
 */
#ifndef MS_TESTS_PARTITION_TRIAL_H
#define MS_TESTS_PARTITION_TRIAL_H

#include <float.h>

#include "base/numbers/dtype.h"
#include "graph/infer/infer.h"
#include "graph/partition/partition.h"
#include "kernels/part.h"
#include "tests/c/graph/graph_interpreter.h"
#include "tests/c/partition/simulated_ranks.h"

enum { TRIAL_DIMS = 2, TRIAL_RANKS = 8 };

typedef struct trial {
  fixture f;
  int dims, ranks; /* ranks: of all dimensions together, row-major */
  ms_partition_spec spec[TRIAL_DIMS];
  ms_placement params[TRIAL_DIMS][FIXTURE_PARAMS];
  ms_partition part[TRIAL_DIMS]; /* the last one's graph is the ranks' */
  interpreter whole, rank[TRIAL_RANKS];
} trial;

/* A trial on a mesh with one dimension more than it has. Parameters lie as t->params of that dimension says. */
static inline ms_partition_spec *trial_add_dimension(trial *t, const char *name, int ranks) {
  const int d = t->dims++;
  t->ranks = d ? t->ranks * ranks : ranks;
  assert_true(t->dims <= TRIAL_DIMS && t->ranks <= TRIAL_RANKS);
  t->spec[d] = (ms_partition_spec){.dim = 3 - d, .name = name, .ranks = ranks, .params = t->params[d]};
  return &t->spec[d];
}

static inline void trial_start(trial *t) {
  memset(t, 0, sizeof *t);
  fixture_start(&t->f);
}

/* Divides the graph along every dimension in turn; the first status that is not MS_OK. */
static inline int trial_partition(trial *t) {
  const ms_graph *graph = t->f.graph;
  for (int d = 0; d < t->dims; d++) {
    const int rc = ms_graph_partition(graph, &t->spec[d], &t->part[d]);
    if (rc) return rc;
    graph = t->part[d].graph;
  }
  return MS_OK;
}

static inline ms_graph *trial_local(const trial *t) { return t->part[t->dims - 1].graph; }

/* ---- parts ------------------------------------------------------------------------------------------------------ */

/* The ranks from which the dimension's coordinate counts, by their distance: 1 for the innermost. */
static inline int trial_stride(const trial *t, int dim) {
  int stride = 1;
  for (int d = dim + 1; d < t->dims; d++) stride *= (int)t->spec[d].ranks;
  return stride;
}

static inline int trial_coordinate(const trial *t, int dim, int rank) {
  return rank / trial_stride(t, dim) % (int)t->spec[dim].ranks;
}

/* A rank's part of a value: divided along the outer dimension, then along the inner one. */
static inline void trial_cut(const trial *t, int rank, const ms_value_info *x, const char *data,
                             const ms_placement *placements, char *part) {
  ms_value_info now = *x;
  int64_t bytes = ms_numel(&now) * ms_dtype_size(now.dtype);
  char *rest = interpreter_allocate(bytes);
  memcpy(rest, data, (size_t)bytes);
  for (int d = 0; d < t->dims; d++) {
    if (placements[d].kind == MS_SHARD) {
      char *cut = interpreter_allocate(bytes);
      const division by = {placements[d].axis, placements[d].outer, placements[d].folded};
      move_part(rest, cut, &now, by, t->spec[d].ranks, trial_coordinate(t, d, rank), 0);
      now = ms_placement_local(&now, placements[d], t->spec[d].ranks);
      free(rest);
      rest = cut;
    }
  }
  memcpy(part, rest, (size_t)(ms_numel(&now) * ms_dtype_size(now.dtype)));
  free(rest);
}

static inline ms_placement trial_input_placement(const trial *t, int dim, const char *name) {
  for (int i = 0; i < t->spec[dim].n_inputs; i++)
    if (!strcmp(t->spec[dim].inputs[i].name, name) && !t->spec[dim].inputs[i].given_whole)
      return t->spec[dim].inputs[i].placement;
  return (ms_placement){0};
}

static inline void trial_cut_leaves(trial *t) {
  const ms_graph *g = t->f.graph;
  for (int v = 0; v < g->n_values; v++) {
    const ms_value *value = &g->values[v];
    ms_placement placements[TRIAL_DIMS];
    if (value->kind == MS_VALUE_NODE) continue;
    for (int d = 0; d < t->dims; d++)
      placements[d] =
          value->kind == MS_VALUE_PARAM ? t->params[d][value->param] : trial_input_placement(t, d, value->name);
    for (int r = 0; r < t->ranks; r++) trial_cut(t, r, &value->info, t->whole.data[v], placements, t->rank[r].data[v]);
  }
}

/* ---- runs ------------------------------------------------------------------------------------------------------- */

/* Parameters and float inputs, standard normal times 0.4; vectors around 0.5, so that gains and biases are seen.
 * Integer inputs below limit. */
static inline void trial_draw(trial *t, int limit) {
  const ms_graph *g = t->f.graph;
  for (int v = 0; v < g->n_values; v++) {
    const ms_value *value = &g->values[v];
    if (value->kind == MS_VALUE_NODE) continue;
    if (ms_is_float(value->info.dtype))
      interpreter_draw(&t->whole, v, (uint64_t)v, value->info.ndim == 1 ? 0.5 : 0, value->info.ndim == 1 ? 0.2 : 0.4);
    else interpreter_draw_integers(&t->whole, v, (uint64_t)v, limit);
  }
}

/* One node on all ranks of the mesh: groups along the node's dimension, if it is a collective. */
static inline void trial_run_collective(trial *t, const ms_node *node) {
  int dim = 0;
  while (t->spec[dim].dim != node->attrs.across.dim) dim++;
  const int n = (int)t->spec[dim].ranks, stride = trial_stride(t, dim);
  for (int r = 0; r < t->ranks; r++) {
    interpreter *group[TRIAL_RANKS];
    if (trial_coordinate(t, dim, r)) continue;
    for (int k = 0; k < n; k++) group[k] = &t->rank[r + k * stride];
    simulate_collective(group, n, node);
  }
}

static inline void trial_run_ranks(trial *t) {
  const ms_graph *local = trial_local(t);
  for (int n = 0; n < local->n_nodes; n++) {
    if (is_collective(&local->nodes[n])) trial_run_collective(t, &local->nodes[n]);
    else
      for (int r = 0; r < t->ranks; r++) interpreter_run(&t->rank[r], n, n + 1);
  }
}

/* Sets the place in each attribute that says which part of an axis a node has. */
static inline void trial_place_parts(trial *t) {
  static const char *const names[] = {"part", "inner_part"};
  const ms_graph *local = trial_local(t);
  for (int n = 0; n < local->n_nodes; n++) {
    for (int k = 0; k < 2; k++) {
      const int op = local->nodes[n].op;
      ms_op_attrs attrs = local->nodes[n].attrs;
      const int64_t *given = ms_op_integer(op, &attrs, names[k]);
      if (!given || !*given) continue;
      ms_part part = ms_part_of(*given);
      int dim = 0;
      while (t->spec[dim].dim != part.dim) dim++;
      for (int r = 0; r < t->ranks; r++) {
        part.place = trial_coordinate(t, dim, r);
        *ms_op_integer(op, &t->rank[r].call[n].attrs, names[k]) = ms_part_attr(part);
      }
    }
  }
}

/* A part of an embedding's table begins at the coordinate times its rows; a part of the classes at that times its
 * columns. */
static inline void trial_place_tables(trial *t) {
  const ms_graph *local = trial_local(t);
  for (int n = 0; n < local->n_nodes; n++) {
    const ms_node *node = &local->nodes[n];
    int dim = 0;
    ms_op_attrs attrs = node->attrs;
    const int64_t *parts = ms_op_integer(node->op, &attrs, "parts"), *of = ms_op_integer(node->op, &attrs, "dim");
    if (!ms_op_has(node->op, "first") || !parts || *parts < 2) continue;
    const int is_table = node->op == MS_OP_embedding || node->op == MS_OP_embedding_backward;
    const ms_value_info *x = &local->values[node->op == MS_OP_embedding_backward ? node->out[0] : node->in[0]].info;
    const int64_t size = x->dims[is_table ? 0 : x->ndim - 1];
    while (t->spec[dim].dim != *of) dim++;
    for (int r = 0; r < t->ranks; r++)
      *ms_op_integer(node->op, &t->rank[r].call[n].attrs, "first") = trial_coordinate(t, dim, r) * size;
  }
}

/* Divides, differentiates and runs both. */
static inline void trial_run(trial *t, int limit) {
  ms_graph *local = trial_local(t);
  assert_well_formed(local);
  must(ms_graph_differentiate(t->f.graph));
  must(ms_graph_differentiate(local));
  must(ms_graph_prune(local));
  assert_well_formed(local);
  interpreter_start(&t->whole, t->f.graph);
  for (int r = 0; r < t->ranks; r++) interpreter_open(&t->rank[r], local);
  trial_place_tables(t);
  trial_place_parts(t);
  for (int r = 0; r < t->ranks; r++) interpreter_prepare(&t->rank[r]);
  trial_draw(t, limit);
  trial_cut_leaves(t);
  interpreter_run(&t->whole, 0, t->f.graph->n_nodes);
  trial_run_ranks(t);
}

static inline void trial_end(trial *t) {
  if (t->whole.graph) interpreter_end(&t->whole);
  for (int r = 0; r < t->ranks; r++)
    if (t->rank[r].graph) interpreter_end(&t->rank[r]);
  for (int d = 0; d < t->dims; d++) ms_partition_free(&t->part[d]);
  fixture_end(&t->f);
}

/* ---- comparison ------------------------------------------------------------------------------------------------- */

/* The largest distance between any rank's elements and what they must be, when the ranks hold `placements` of a value
 * that is `wanted` [f32] as a whole: shards and equal values by themselves, summands by their sum. A rank without the
 * value (-1) holds zeros. */
static inline double trial_distance(const trial *t, int value, const ms_value_info *x, const float *wanted,
                                    const ms_placement *placements) {
  ms_value_info local = *x;
  for (int d = 0; d < t->dims; d++) local = ms_placement_local(&local, placements[d], t->spec[d].ranks);
  const int64_t n = ms_numel(&local);
  float *part = interpreter_allocate(ms_numel(x) * (int64_t)sizeof *part);
  double worst = 0;
  for (int r = 0; r < t->ranks; r++) {
    trial_cut(t, r, x, (const char *)wanted, placements, (char *)part);
    for (int64_t i = 0; i < n; i++) {
      double sum = 0;
      for (int k = 0; k < t->ranks; k++) {
        int adds = value >= 0;
        for (int d = 0; d < t->dims; d++)
          adds &= placements[d].kind == MS_PARTIAL || trial_coordinate(t, d, k) == trial_coordinate(t, d, r);
        if (adds) sum += interpreter_get(&t->rank[k], value, i);
      }
      worst = fmax(worst, fabs(sum - part[i]));
      if (isnan(sum)) worst = INFINITY;
    }
  }
  free(part);
  return worst;
}

/* How a gradient lies: replicate values have partial gradients. */
static inline void trial_gradient_placement(const trial *t, int param, ms_placement *placements) {
  for (int d = 0; d < t->dims; d++) {
    placements[d] = t->part[d].params[param];
    if (placements[d].kind == MS_REPLICATE) placements[d].kind = MS_PARTIAL;
  }
}

static inline double trial_largest(const trial *t, int value, double largest) {
  for (int64_t i = 0; value >= 0 && i < interpreter_numel(&t->whole, value); i++)
    largest = fmax(largest, fabs(interpreter_get(&t->whole, value, i)));
  return largest;
}

static inline double trial_largest_gradient(const trial *t) {
  double largest = 0;
  for (int p = 0; p < t->f.params; p++) largest = trial_largest(t, t->f.graph->param_grads[p], largest);
  return largest;
}

/* ... of what backward computes from the gradient of the loss, 1. Where terms cancel, as gradients of logits do in a
 * sum over classes, what is left is their rounding, which has their size, not the gradient's. */
static inline double trial_largest_term(const trial *t) {
  const ms_graph *g = t->f.graph;
  double largest = 0;
  for (int n = 0; n < g->n_nodes; n++)
    for (int o = 0; o < g->nodes[n].outputs && g->nodes[n].backward && g->nodes[n].inputs; o++)
      if (g->values[g->nodes[n].out[o]].info.dtype == MS_F32) largest = trial_largest(t, g->nodes[n].out[o], largest);
  return largest;
}

/* The loss, outputs and the gradients of all parameters; what: for messages. */
static inline void trial_compare(const trial *t, double tolerance, const char *what) {
  const ms_graph *g = t->f.graph, *local = trial_local(t);
  const double largest = trial_largest_gradient(t), rounding = 64 * FLT_EPSILON * trial_largest_term(t);
  ms_placement placements[TRIAL_DIMS] = {{0}};
  for (int d = 0; d < t->dims; d++) placements[d] = t->part[d].loss;
  const double loss = interpreter_get(&t->whole, g->loss, 0);
  double apart = trial_distance(t, local->loss, &g->values[g->loss].info, t->whole.data[g->loss], placements);
  if (!(apart <= tolerance * (1 + fabs(loss)))) fail_msg("%s: the loss %g is off by %g", what, loss, apart);
  for (int p = 0; p < t->f.params; p++) {
    ms_value_info x = t->f.param[p].info;
    x.dtype = MS_F32; /* as gradients are */
    const int gradient = g->param_grads[p];
    float *zeros = calloc((size_t)ms_numel(&x), sizeof *zeros);
    trial_gradient_placement(t, p, placements);
    if (g->param_values[p] >= 0)
      apart = trial_distance(t, local->param_grads[p], &x, gradient >= 0 ? t->whole.data[gradient] : zeros, placements);
    free(zeros);
    if (!(apart <= tolerance * (largest + 1e-3) + rounding))
      fail_msg("%s: the gradient of p%d is off by %g; the largest gradient is %g", what, p, apart, largest);
  }
  memset(placements, 0, sizeof placements);
  for (int o = 0; o < g->n_outputs; o++) {
    const int v = g->outputs[o].value;
    if (g->values[v].info.dtype != MS_F32) continue;
    apart = trial_distance(t, local->outputs[o].value, &g->values[v].info, t->whole.data[v], placements);
    if (!(apart <= 20 * tolerance)) fail_msg("%s: output %s is off by %g", what, g->outputs[o].name, apart);
  }
}

/* The number of nodes of an op, in forward or in backward. */
static inline int trial_count(const ms_graph *graph, int op, int backward) {
  int n = 0;
  for (int i = 0; i < graph->n_nodes; i++) n += graph->nodes[i].op == op && graph->nodes[i].backward == backward;
  return n;
}

#endif
