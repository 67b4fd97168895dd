/* compile.c - ms_plan_compile: the steps from a traced graph to a verified plan, in order, and what a plan tells of
** itself.
**
** The caller's graph is left as it was traced: training and evaluation each rewrite a copy of their own, which the
** graph keeps for the next compile (compile_cache.h).
*/
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread_count.h"
#include "plan/compile_cache.h"
#include "plan/lower.h"

enum { MOST_THREADS = 1024 };

void ms_plan_config_default(ms_plan_config *config) {
  *config = (ms_plan_config){.optimizer = MS_OPT_ADAMW,
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .eps = 1e-8,
                             .prefetch = 1,
                             .reshard_after_backward = 1,
                             .train = 1,
                             .fuse = 1,
                             .shared_masters = 1};
}

static int check_adamw(const ms_plan_config *c) {
  if (!(c->beta1 >= 0 && c->beta1 < 1))
    return MS_FAIL(MS_EINVAL, "beta1 must be 0 or above, and below 1, not %g", c->beta1);
  if (!(c->beta2 >= 0 && c->beta2 < 1))
    return MS_FAIL(MS_EINVAL, "beta2 must be 0 or above, and below 1, not %g", c->beta2);
  if (!(c->eps > 0 && isfinite(c->eps))) return MS_FAIL(MS_EINVAL, "eps must be above 0, not %g", c->eps);
  return MS_OK;
}

static int check_sgd(const ms_plan_config *c) {
  if (!(c->momentum >= 0 && c->momentum < 1))
    return MS_FAIL(MS_EINVAL, "momentum must be 0 or above, and below 1, not %g", c->momentum);
  if (!isfinite(c->dampening)) return MS_FAIL(MS_EINVAL, "dampening must be finite, not %g", c->dampening);
  return MS_OK;
}

int ms_plan_check_optimizer(const ms_plan_config *c) {
  if (c->optimizer < MS_OPT_NONE || c->optimizer > MS_OPT_ADAMW)
    return MS_FAIL(MS_EINVAL, "optimizer must be none (0), sgd (1) or adamw (2), not %d", c->optimizer);
  if (c->optimizer == MS_OPT_ADAMW) MS_TRY(check_adamw(c));
  if (c->optimizer == MS_OPT_SGD) MS_TRY(check_sgd(c));
  if (c->nesterov && (c->momentum <= 0 || c->dampening != 0))
    return MS_FAIL(MS_EINVAL, "nesterov needs momentum above 0 and dampening 0, not %g and %g", c->momentum,
                   c->dampening);
  if (c->moment_dtype != MS_F32 && (c->moment_dtype != MS_BF16 || c->optimizer != MS_OPT_ADAMW))
    return MS_FAIL(MS_EINVAL, "moment_dtype must be f32 (0), or with adamw bf16 (1), not %d", c->moment_dtype);
  if (!(c->max_norm >= 0)) return MS_FAIL(MS_EINVAL, "max_norm must be 0 (no clipping) or more, not %g", c->max_norm);
  if (!(c->ema_decay >= 0 && c->ema_decay < 1))
    return MS_FAIL(MS_EINVAL, "ema_decay must be 0 (no averages) or above, and below 1, not %g", c->ema_decay);
  return MS_OK;
}

static int check_config(const ms_plan_config *c) {
  MS_TRY(ms_plan_check_optimizer(c));
  if (c->threads < 0 || c->threads > MOST_THREADS)
    return MS_FAIL(MS_EINVAL, "threads must be 0 (as the environment says) to %d, not %d", MOST_THREADS, c->threads);
  if (c->prefetch < 0) return MS_FAIL(MS_EINVAL, "prefetch must be 0 or more units, not %d", c->prefetch);
  if (c->sync < MS_SYNC_EVERY || c->sync > MS_SYNC_LAST)
    return MS_FAIL(MS_EINVAL, "sync must be every (0), shard (1) or last (2), not %d", c->sync);
  if (c->sync != MS_SYNC_EVERY && !c->accumulate)
    return MS_FAIL(MS_EINVAL, "gradients that wait for the last micro-batch need accumulate = 1");
  return MS_OK;
}

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

static void free_phase(ms_plan_phase *phase) {
  for (int i = 0; i < phase->colls; i++) {
    free(phase->coll[i]->part);
    free(phase->coll[i]);
  }
  free(phase->coll);
  free(phase->instr);
}

static void destroy_plan(void *object) {
  ms_plan *plan = object;
  for (int p = 0; p < MS_PHASES; p++) free_phase(&plan->phase[p]);
  ms_plan_release_prepared(plan);
  for (int i = 0; i < plan->inputs; i++) free(plan->input[i].name);
  for (int i = 0; i < plan->outputs; i++) free(plan->output[i].name);
  free(plan->input);
  free(plan->output);
  free(plan->scope);
  for (ms_scope_texts *next; plan->scope_texts; plan->scope_texts = next) {
    next = plan->scope_texts->next;
    free(plan->scope_texts);
  }
  for (ms_places *next; plan->places; plan->places = next) {
    next = plan->places->next;
    free(plan->places);
  }
  free(plan->kept_unsharded);
  free(plan->deferred_gradients);
  free(plan->has_gradient);
  free(plan->buffer);
  free(plan->manifest);
  free(plan->dump);
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
  MS_TRY(check_config(config));
  MS_TRY(ms_plan_check_nodes(model, config));
  MS_TRY(ms_device_find(config->device, &device));
  double begin = ms_clock();
  ms_plan *plan = ms_handle_new(MS_HANDLE_PLAN, sizeof *plan, destroy_plan);
  if (!plan) return MS_ENOMEM;
  int rc = MS_OK;
  plan->model = model;
  ms_handle_set_keeps(plan, model);
  plan->config = *config;
  plan->evaluated.buffer = plan->norm.buffer = -1;
  if (!plan->config.threads) MS_GOTO(ms_thread_count(ms_plan_node_ranks(model, config), &plan->config.threads));
  MS_GOTO(compile(plan, graph));
  plan->compile_seconds = ms_clock() - begin;
  *out = plan;
  return MS_OK;
fail:
  ms_plan_free(plan);
  return rc;
}

void ms_plan_free(ms_plan *plan) { ms_handle_release(plan, MS_HANDLE_PLAN); }

int64_t ms_plan_peak(const ms_plan *plan) {
  int64_t bytes = 0;
  for (int a = 0; a < MS_ARENAS; a++) bytes += plan->arena_bytes[a] - plan->peers_bytes[a];
  return bytes;
}

int ms_plan_summarize(const ms_plan *plan, ms_plan_summary *s) {
  MS_HANDLE(plan, PLAN);
  *s = (ms_plan_summary){0};
  for (int p = 0; p < MS_PHASES; p++) {
    const ms_plan_phase *phase = &plan->phase[p];
    s->instructions += phase->n;
    s->collectives[p] = phase->colls;
    for (int i = 0; i < phase->colls && p <= MS_PHASE_UPDATE && p != MS_PHASE_NEXT; i++) {
      int dim = phase->coll[i]->dim == MS_DIM_SHARD ? plan->model->shard_dim : plan->model->replicate_dim;
      s->comm_bytes[dim] += phase->coll[i]->bytes;
    }
  }
  for (int c = 0; c < MS_CATEGORIES; c++) s->bytes[c] = (double)plan->category_bytes[c];
  MS_TRY(ms_plan_category_peaks(plan, s->fullest));
  s->peak_bytes = (double)ms_plan_peak(plan);
  s->fingerprint_high = (double)(plan->fingerprint >> 32);
  s->fingerprint_low = (double)(plan->fingerprint & 0xffffffffu);
  s->flops = plan->phase[plan->phase[MS_PHASE_FIRST].present ? MS_PHASE_FIRST : MS_PHASE_EVALUATE].flops;
  s->compile_ms = 1e3 * plan->compile_seconds;
  return MS_OK;
}

int ms_plan_dump(ms_plan *plan, int json, const char **out) {
  MS_HANDLE(plan, PLAN);
  ms_text text = {0};
  int rc = json ? ms_plan_json(plan, &text) : ms_plan_text(plan, &text);
  if (rc) {
    ms_text_free(&text);
    return rc;
  }
  free(plan->dump);
  plan->dump = text.data;
  *out = plan->dump;
  return MS_OK;
}
