/* compile.c - ms_plan_compile: the steps from a traced graph to a verified plan, in order.
**
** The caller's graph is left as it was traced: training and evaluation each rewrite a copy of their own, which the
** graph keeps for the next compile (compile_cache.h).
*/
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread_count.h"
#include "plan/compile_cache.h"
#include "plan/lower.h"

static int take_slots(ms_plan *plan, const ms_graph *graph) {
  plan->input = ms_calloc(graph->n_values, sizeof *plan->input);
  plan->output = ms_calloc(graph->n_outputs, sizeof *plan->output);
  if (!plan->input || !plan->output) return MS_ENOMEM;
  for (int v = 0; v < graph->n_values; v++) {
    const ms_value *value = &graph->values[v];
    if (value->kind != MS_VALUE_INPUT) continue;
    ms_plan_input *input = &plan->input[plan->inputs];
    int buffer;
    MS_TRY(ms_plan_buffer(plan, -1, MS_ARENA_ACTIVATIONS, MS_CAT_ACTIVATIONS,
                          ms_numel(&value->info) * ms_dtype_size(value->info.dtype), "input", &buffer));
    input->at = (ms_ref){buffer, 0, value->info};
    input->name = ms_strdup(value->name);
    if (!input->name) return MS_ENOMEM;
    plan->inputs++;
  }
  for (int o = 0; o < graph->n_outputs; o++) {
    ms_plan_output *output = &plan->output[o];
    for (int p = 0; p < MS_PHASES; p++) output->at[p].buffer = -1;
    output->name = ms_strdup(graph->outputs[o].name);
    if (!output->name) return MS_ENOMEM;
    plan->outputs++;
  }
  return MS_OK;
}

static int lower_training(ms_plan *plan, const ms_graph *traced) {
  const ms_graph *graph;
  const enum ms_fusing fusing = !plan->config.fuse                      ? MS_FUSE_NOTHING
                                : plan->config.device == MS_DEVICE_CUDA ? MS_FUSE_EPILOGUES
                                                                        : MS_FUSE_OPS;
  MS_TRY(ms_cached_graph(traced, 0, fusing, &graph));
  for (int p = 0; p < plan->model->params; p++) plan->has_gradient[p] = graph->param_grads[p] >= 0;
  MS_TRY(ms_lower_graph(plan, MS_PHASE_FIRST, graph));
  if (plan->config.accumulate) MS_TRY(ms_lower_graph(plan, MS_PHASE_NEXT, graph));
  if (plan->config.sync != MS_SYNC_EVERY) MS_TRY(ms_lower_graph(plan, MS_PHASE_LAST, graph));
  MS_TRY(ms_lower_norm(plan, graph->loss_weight >= 0));
  return plan->config.optimizer != MS_OPT_NONE ? ms_lower_update(plan) : MS_OK;
}

static int lower_evaluation(ms_plan *plan, const ms_graph *traced) {
  const ms_graph *graph;
  MS_TRY(ms_cached_graph(traced, 1, plan->config.fuse ? MS_FUSE_OPS : MS_FUSE_NOTHING, &graph));
  return ms_lower_graph(plan, MS_PHASE_EVALUATE, graph);
}

static int finish_phases(ms_plan *plan, const ms_graph *traced) {
  MS_TRY(ms_plan_layout(plan, traced));
  for (int phase = 0; phase < MS_PHASES; phase++) {
    if (!plan->phase[phase].present) continue;
    MS_TRY(ms_plan_synchronize(plan, phase));
    MS_TRY(ms_plan_verify(plan, phase));
  }
  return ms_plan_fingerprint(plan);
}

/* Nothing stays between micro-batches until lowering finds what does. */
static int start_between(ms_plan *plan) {
  int units = plan->model->units;
  plan->kept_unsharded = ms_calloc(units, sizeof *plan->kept_unsharded);
  plan->deferred_gradients = ms_calloc(units, sizeof *plan->deferred_gradients);
  plan->has_gradient = ms_calloc(plan->model->params, 1);
  if (!plan->kept_unsharded || !plan->deferred_gradients || !plan->has_gradient) return MS_ENOMEM;
  for (int u = 0; u < units; u++) plan->kept_unsharded[u] = plan->deferred_gradients[u] = -1;
  return MS_OK;
}

static int compile(ms_plan *plan, const ms_graph *graph) {
  ms_state_layout layout;
  int rc = ms_state_layout_make(plan->model, &plan->config, &layout);
  if (rc) return rc;
  plan->replicas = layout.replicas;
  memcpy(plan->arena_bytes, layout.bytes, sizeof plan->arena_bytes);
  memcpy(plan->peers_bytes, layout.peers, sizeof plan->peers_bytes);
  memcpy(plan->category_bytes, layout.category_bytes, sizeof plan->category_bytes);
  MS_GOTO(ms_plan_state_buffers(plan, &layout));
  MS_GOTO(start_between(plan));
  MS_GOTO(take_slots(plan, graph));
  if (plan->config.train && graph->loss >= 0) MS_GOTO(lower_training(plan, graph));
  MS_GOTO(lower_evaluation(plan, graph));
  MS_GOTO(finish_phases(plan, graph));
fail:
  ms_state_layout_free(&layout);
  return rc;
}

int ms_plan_compile(const ms_graph *graph, const ms_plan_config *config, ms_plan **out) {
  MS_HANDLE(graph, GRAPH);
  const ms_model *model = graph->model;
  const ms_device_api *device;
  if (!model->sharded) return MS_FAIL(MS_EINVAL, "call ms_model_shard before ms_plan_compile");
  if (graph->loss < 0 && !graph->n_outputs)
    return MS_FAIL(MS_EINVAL, "the graph has neither a loss nor an output: there is nothing to compute");
  if (config->train && graph->loss < 0)
    return MS_FAIL(MS_EINVAL, "training needs a loss: call ms_graph_set_loss, or compile with train = 0");
  MS_TRY(ms_plan_check_config(config));
  MS_TRY(ms_plan_check_nodes(model, config));
  MS_TRY(ms_device_find(config->device, &device));
  double begin = ms_clock();
  ms_plan *plan;
  int rc = MS_OK;
  MS_TRY(ms_plan_new(model, config, &plan));
  if (!plan->config.threads) MS_GOTO(ms_thread_count(ms_plan_node_ranks(model, config), &plan->config.threads));
  MS_GOTO(compile(plan, graph));
  plan->compile_seconds = ms_clock() - begin;
  *out = plan;
  return MS_OK;
fail:
  ms_plan_free(plan);
  return rc;
}
