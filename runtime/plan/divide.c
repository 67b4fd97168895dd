/* divide.c - the program of one rank of the tensor dimension: what the model says of its parameters goes to the
 * partition pass, and the gradients that each rank has a summand of are summed.
 */
#include "graph/partition.h"
#include "plan/lower.h"

#include <stdlib.h>
#include <string.h>

/* parameters: [n_params of the graph]; splits: the same. */
static int partition(const ms_model *model, const ms_graph *traced, ms_placement *params, unsigned char *splits,
                     ms_partition *result) {
  const ms_dim_group *group = &model->dim[MS_DIM_TENSOR];
  for (int p = 0; p < traced->n_params; p++) {
    const ms_param_config *config = &model->param[p].config;
    if (config->tensor_axis >= 0) params[p] = ms_shard(config->tensor_axis, 1);
    splits[p] = config->tensor_splits != 0;
  }
  const ms_partition_spec spec = {
      .dim = MS_DIM_TENSOR,
      .name = group->name,
      .ranks = group->size,
      .sequence_parallel = model->sequence_parallel,
      .splits = splits,
      .params = params,
  };
  return ms_graph_partition(traced, &spec, result);
}

int ms_plan_divide(const ms_model *model, ms_graph **graph, unsigned char *summed) {
  ms_partition result = {0};
  int rc = MS_ENOMEM;
  const int n = (*graph)->n_params;
  ms_placement *params = ms_calloc(n, sizeof *params);
  unsigned char *splits = ms_calloc(n, sizeof *splits);
  if (!params || !splits) goto fail;
  MS_GOTO(partition(model, *graph, params, splits, &result));
  for (int p = 0; p < n; p++) summed[p] = result.params[p].kind == MS_REPLICATE;
  ms_graph_free(*graph);
  *graph = result.graph;
  result.graph = NULL;
  ms_partition_free(&result);
fail:
  free(params);
  free(splits);
  return rc;
}

int ms_plan_sum_divided(const ms_model *model, ms_graph *graph, const unsigned char *summed) {
  int *unit = ms_calloc(graph->n_params, sizeof *unit);
  if (!unit) return MS_ENOMEM;
  for (int p = 0; p < graph->n_params; p++) unit[p] = summed[p] ? model->param[p].unit : -1;
  const int rc = ms_partition_sum_gradients(graph, MS_DIM_TENSOR, model->dim[MS_DIM_TENSOR].size, unit);
  free(unit);
  return rc;
}
