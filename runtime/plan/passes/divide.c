/* divide.c - the program of one rank of the dimensions that divide layers and samples: what the model says of its
 * parameters and inputs goes to the partition pass, once for each dimension, outer ones first.
 *
 * Along context, ranks have parts of each sample, so their gradients are summands, which are summed with those of the
 * shard dimension: for weights they are more ranks of it. A rank's summand of the loss, times the number of ranks, is
 * then a loss like that of any rank: the mean over all of them is the loss. Along tensor, the gradients that each rank
 * has a summand of are summed at the end of the graph.
 */
#include "base/error.h"
#include "graph/grad/grad.h"
#include "graph/partition/partition.h"
#include "plan/lower/lower.h"

#include <stdlib.h>
#include <string.h>

typedef struct division {
  ms_placement *params;    /* [n_params of the graph] */
  unsigned char *splits;   /* the same */
  ms_placed_input *inputs; /* [values of the graph] */
  int n_inputs;
} division;

static int open_division(const ms_graph *graph, division *d) {
  *d = (division){0};
  d->params = ms_calloc(graph->n_params, sizeof *d->params);
  d->splits = ms_calloc(graph->n_params, sizeof *d->splits);
  d->inputs = ms_calloc(graph->n_values, sizeof *d->inputs);
  return d->params && d->splits && d->inputs ? MS_OK : MS_ENOMEM;
}

static void close_division(division *d) {
  free(d->params);
  free(d->splits);
  free(d->inputs);
}

static void place_for_tensor(const ms_model *model, const ms_graph *graph, division *d) {
  for (int p = 0; p < graph->n_params; p++) {
    const ms_param_config *config = &model->param[p].config;
    if (config->tensor_axis >= 0) d->params[p] = ms_shard(config->tensor_axis, 1);
    d->splits[p] = config->tensor_splits != 0;
  }
}

/* Positions are axis 1 of the inputs that have rows of the batch. What has none, such as a constant of the recipe or a
 * mask [B,1,T,T] for all heads, is whole on every rank, and divided only where it meets a divided value. */
static void place_for_context(const ms_graph *graph, division *d) {
  for (int v = 0; v < graph->n_values; v++) {
    const ms_value *x = &graph->values[v];
    if (x->kind == MS_VALUE_INPUT && x->rows.rows && x->info.ndim > 1 && x->info.dims[1] > 1)
      d->inputs[d->n_inputs++] = (ms_placed_input){x->name, ms_shard_folded(1), 1};
  }
}

static int partition(const ms_model *model, int dim, ms_graph *graph, ms_partition *result) {
  const ms_dim_group *group = &model->dim[dim];
  division d;
  int rc;
  MS_GOTO(open_division(graph, &d));
  if (dim == MS_DIM_CONTEXT) place_for_context(graph, &d);
  else place_for_tensor(model, graph, &d);
  const ms_partition_spec spec = {
      .dim = dim,
      .name = group->name,
      .ranks = group->size,
      .sequence_parallel = dim == MS_DIM_TENSOR && model->sequence_parallel,
      .divides_samples = dim == MS_DIM_CONTEXT,
      .splits = d.splits,
      .params = d.params,
      .inputs = d.inputs,
      .n_inputs = d.n_inputs,
  };
  rc = ms_graph_partition(graph, &spec, result);
fail:
  close_division(&d);
  return rc;
}

static int divide_along(const ms_model *model, int dim, ms_graph **graph, unsigned char *summed) {
  ms_partition result = {0};
  int rc = partition(model, dim, *graph, &result);
  if (rc) return rc;
  for (int p = 0; p < (*graph)->n_params && dim == MS_DIM_TENSOR; p++)
    summed[p] = result.params[p].kind == MS_REPLICATE;
  if (dim == MS_DIM_CONTEXT)
    rc = ms_emit_scale(result.graph, result.graph->loss, model->dim[dim].size, &result.graph->loss);
  if (!rc) {
    ms_free(*graph);
    *graph = result.graph;
    result.graph = NULL;
  }
  ms_partition_free(&result);
  return rc;
}

/* Without a loss, as for generation, inputs of any length come, and every rank of context computes all positions. */
int ms_plan_divide(const ms_model *model, ms_graph **graph, unsigned char *summed) {
  if (model->dim[MS_DIM_CONTEXT].size > 1 && (*graph)->loss >= 0)
    MS_TRY(divide_along(model, MS_DIM_CONTEXT, graph, summed));
  return model->dim[MS_DIM_TENSOR].size > 1 ? divide_along(model, MS_DIM_TENSOR, graph, summed) : MS_OK;
}

int ms_plan_sum_divided(const ms_model *model, ms_graph *graph, const unsigned char *summed) {
  if (model->dim[MS_DIM_TENSOR].size == 1) return MS_OK;
  int *unit = ms_calloc(graph->n_params, sizeof *unit);
  if (!unit) return MS_ENOMEM;
  for (int p = 0; p < graph->n_params; p++) unit[p] = summed[p] ? model->param[p].unit : -1;
  const int rc = ms_partition_sum_gradients(graph, MS_DIM_TENSOR, model->dim[MS_DIM_TENSOR].size, unit);
  free(unit);
  return rc;
}
