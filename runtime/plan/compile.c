/* compile.c - ms_plan_compile: the passes from a traced graph to a verified plan, in order.
 *
 * The caller's graph is not modified: training and evaluation each rewrite their own copy. The passes over graphs
 * depend only on the traced graph and on what is fused, so the graph caches their results (compile_cache.h), and the
 * next plan of the same graph starts with lowering.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/machine/cores.h"
#include "plan/compile_cache.h"
#include "plan/layout/state_layout.h"
#include "plan/lower/lower.h"
#include "plan/optimizer.h"

/* A copy of the traced graph on its way to the form that phases are lowered from. */
typedef struct program {
  int wanted;
  int cached; /* the graph is complete, and the cache owns it */
  enum ms_fusing fusing;
  ms_made_again again; /* where the trace says nothing */
  ms_graph *graph;
  unsigned char *summed; /* [params] 1: each rank of the tensor dimension computes a summand of its gradient */
} program;

typedef struct compilation {
  ms_plan *plan;
  const ms_plan_config *config;
  const ms_graph *traced;
  program training, evaluation;
  int laid_out;
} compilation;

static int is_made(const program *p) { return p->wanted && !p->cached; }
static ms_graph *graph_of(const program *p) { return is_made(p) ? p->graph : NULL; }
static int fuses(const program *p) { return p->fusing != MS_FUSE_NOTHING; }

/* ---- passes over graphs ----------------------------------------------------------------------------------------- */

static int copy_traced(compilation *c) {
  if (is_made(&c->training)) MS_TRY(ms_graph_copy(c->traced, &c->training.graph));
  return is_made(&c->evaluation) ? ms_graph_copy(c->traced, &c->evaluation.graph) : MS_OK;
}

/* Each rank of the tensor and context dimensions runs a program of its own part. */
static int divide_program(const compilation *c, program *p, int evaluate) {
  const ms_model *model = c->plan->model;
  ms_graph *graph = graph_of(p);
  if (!graph || model->dim[MS_DIM_TENSOR].size * model->dim[MS_DIM_CONTEXT].size == 1) return MS_OK;
  p->summed = ms_calloc(graph->n_params, 1);
  if (!p->summed) return MS_ENOMEM;
  MS_TRY(ms_graph_pass_identities(graph, evaluate, 0));
  MS_TRY(ms_graph_prune(graph));
  MS_TRY(ms_graph_fuse_classes(graph));
  return ms_plan_divide(model, &p->graph, p->summed);
}

static int divide(compilation *c) {
  MS_TRY(divide_program(c, &c->training, 0));
  return divide_program(c, &c->evaluation, 1);
}

static int rewrite(compilation *c) {
  ms_graph *training = graph_of(&c->training), *evaluation = graph_of(&c->evaluation);
  if (training) MS_TRY(ms_graph_round_products(training, 1));
  if (training && fuses(&c->training)) MS_TRY(ms_graph_rewrite(training, 0));
  if (!evaluation) return MS_OK;
  MS_TRY(ms_graph_round_products(evaluation, 0));
  return fuses(&c->evaluation) ? ms_graph_rewrite(evaluation, 1) : ms_graph_pass_identities(evaluation, 1, 1);
}

/* A step that cannot change any parameter is a mistake in the loss, for example a loss of the targets only. */
static int check_reached(const ms_graph *graph) {
  int trainable = 0;
  for (int p = 0; p < graph->n_params; p++) {
    ms_param_info info;
    if (graph->param_grads[p] >= 0) return MS_OK;
    MS_TRY(graph->lookup(graph->model, p, &info));
    trainable |= !info.frozen;
  }
  if (!trainable) return MS_OK;
  return MS_FAIL(MS_EINVAL, "the loss depends on no trainable parameter, so a step would change nothing: compute it "
                            "from the model's outputs, with ops that have gradients");
}

static int differentiate(compilation *c) {
  ms_graph *graph = graph_of(&c->training);
  if (!graph) return MS_OK;
  MS_TRY(ms_graph_differentiate(graph));
  if (c->training.summed) MS_TRY(ms_plan_sum_divided(c->plan->model, graph, c->training.summed));
  return check_reached(graph);
}

static int rewrite_backward(compilation *c) {
  ms_graph *graph = graph_of(&c->training);
  return graph && fuses(&c->training) ? ms_graph_rewrite_backward(graph) : MS_OK;
}

static int regather(compilation *c) {
  ms_graph *graph = graph_of(&c->training);
  return graph ? ms_graph_regather(graph, c->training.again.gathered) : MS_OK;
}

/* First what the kernels of gradients compute again, then what recompute regions do. */
static int rematerialize(compilation *c) {
  ms_graph *graph = graph_of(&c->training);
  if (!graph) return MS_OK;
  if (c->training.again.results) MS_TRY(ms_graph_rematerialize(graph));
  return ms_graph_insert_recomputation(graph);
}

static int prune(compilation *c) {
  ms_graph *training = graph_of(&c->training), *evaluation = graph_of(&c->evaluation);
  if (training) MS_TRY(ms_graph_prune(training));
  return evaluation ? ms_graph_prune(evaluation) : MS_OK;
}

static int fuse_epilogues(compilation *c) {
  ms_graph *graph = graph_of(&c->training);
  return graph && c->training.fusing == MS_FUSE_EPILOGUES ? ms_graph_fuse_epilogues(graph) : MS_OK;
}

/* ---- passes over the plan --------------------------------------------------------------------------------------- */

static int lower_training(ms_plan *plan, const ms_graph *graph) {
  for (int p = 0; p < plan->model->params; p++) plan->has_gradient[p] = graph->param_grads[p] >= 0;
  MS_TRY(ms_outer_check(plan));
  MS_TRY(ms_lower_join_gathers(plan));
  MS_TRY(ms_outer_send(plan));
  MS_TRY(ms_lower_graph(plan, MS_PHASE_FIRST, graph));
  ms_outer_keep(plan);
  if (plan->config.accumulate) MS_TRY(ms_lower_graph(plan, MS_PHASE_NEXT, graph));
  if (plan->config.sync != MS_SYNC_EVERY) MS_TRY(ms_lower_graph(plan, MS_PHASE_LAST, graph));
  MS_TRY(ms_lower_norm(plan, graph->loss_weight >= 0));
  if (plan->config.optimizer == MS_OPT_NONE) return MS_OK;
  MS_TRY(ms_lower_update(plan));
  return ms_lower_outer(plan);
}

static int take_state(ms_plan *plan, const ms_plan_config *config) {
  ms_state_layout *layout = ms_calloc(1, sizeof *layout);
  if (!layout) return MS_ENOMEM;
  plan->layout = layout;
  MS_TRY(ms_state_layout_make(plan->model, config, layout));
  memcpy(plan->arena_bytes, layout->bytes, sizeof plan->arena_bytes);
  memcpy(plan->peers_bytes, layout->peers, sizeof plan->peers_bytes);
  memcpy(plan->category_bytes, layout->category_bytes, sizeof plan->category_bytes);
  return ms_plan_state_buffers(plan);
}

static int lower(compilation *c) {
  MS_TRY(take_state(c->plan, c->config));
  MS_TRY(ms_plan_take_slots(c->plan, c->traced));
  MS_TRY(ms_lower_resident(c->plan));
  if (c->training.wanted) MS_TRY(lower_training(c->plan, c->training.graph));
  MS_TRY(ms_lower_graph(c->plan, MS_PHASE_EVALUATE, c->evaluation.graph));
  return ms_plan_count_traffic(c->plan);
}

static int lay_out(compilation *c) {
  c->laid_out = 1;
  return ms_plan_layout(c->plan, c->traced);
}

static int synchronize(compilation *c) {
  for (int phase = 0; phase < MS_PHASES; phase++)
    if (c->plan->phase[phase].present) MS_TRY(ms_plan_synchronize(c->plan, phase));
  for (int phase = 0; phase < MS_PHASES && c->plan->config.sm_carveout; phase++)
    if (c->plan->phase[phase].present) MS_TRY(ms_plan_spare_processors(c->plan, phase));
  return MS_OK;
}

static int verify(compilation *c) {
  for (int phase = 0; phase < MS_PHASES; phase++)
    if (c->plan->phase[phase].present) MS_TRY(ms_plan_verify(c->plan, phase));
  return MS_OK;
}

static int fingerprint(compilation *c) { return ms_plan_fingerprint(c->plan); }

/* ---- all of them ------------------------------------------------------------------------------------------------ */

static const struct {
  const char *name;
  int (*run)(compilation *c);
} passes[MS_COMPILER_PASSES] = {
    {"trace", copy_traced},
    {"divide", divide},
    {"rewrite", rewrite},
    {"differentiate", differentiate},
    {"rewrite backward", rewrite_backward},
    {"regather", regather}, /* before rematerialize: what is gathered again need not be kept, but computed again */
    {"rematerialize", rematerialize},
    {"prune", prune},
    {"fuse epilogues", fuse_epilogues}, /* the last pass over graphs; the cache stores them after it */
    {"lower", lower},
    {"lay out", lay_out},
    {"synchronize", synchronize},
    {"verify", verify},
    {"fingerprint", fingerprint},
};
enum { GRAPH_PASSES = 9 };

/* Measures the plan at [when] of a pass: 0 before it, 1 after it. */
static void measure(const compilation *c, ms_plan_pass *pass, int when) {
  const ms_plan *plan = c->plan;
  if (c->training.graph) pass->nodes[when] += c->training.graph->n_nodes;
  if (c->evaluation.graph) pass->nodes[when] += c->evaluation.graph->n_nodes;
  for (int phase = 0; phase < MS_PHASES; phase++) {
    pass->instructions[when] += plan->phase[phase].n;
    pass->events[when] += plan->phase[phase].events;
  }
  pass->buffers[when] = plan->buffers;
  if (c->laid_out) pass->bytes[when] = ms_plan_peak(plan);
  for (int b = 0; b < plan->buffers && !c->laid_out; b++) pass->bytes[when] += plan->buffer[b].bytes;
}

/* Runs the passes [first, end). */
static int run_passes(compilation *c, int first, int end) {
  for (int i = first; i < end; i++) {
    ms_plan_pass *pass = &c->plan->pass[i];
    pass->name = passes[i].name;
    pass->cached = i < GRAPH_PASSES && !is_made(&c->training) && !is_made(&c->evaluation);
    measure(c, pass, 0);
    const double begin = ms_clock();
    MS_TRY(passes[i].run(c));
    pass->ms = 1e3 * (ms_clock() - begin);
    measure(c, pass, 1);
  }
  return MS_OK;
}

static void find_cached(compilation *c, int evaluate, program *p) {
  p->graph = ms_cached_graph(c->traced, evaluate, p->fusing, &p->again);
  p->cached = p->graph != NULL;
}

static int put_into_cache(compilation *c, int evaluate, program *p) {
  if (!graph_of(p)) return MS_OK;
  MS_TRY(ms_cache_graph(c->traced, evaluate, p->fusing, &p->again, p->graph));
  p->cached = 1;
  return MS_OK;
}

static int compile_all(compilation *c) {
  const ms_plan_config *config = &c->plan->config;
  const int epilogues = ms_device_can(config->device, MS_DEVICE_PRODUCT_EPILOGUES);
  const enum ms_fusing ops = config->fuse ? MS_FUSE_OPS : MS_FUSE_NOTHING;
  c->training.wanted = config->train && c->traced->loss >= 0;
  c->training.fusing = config->fuse && epilogues ? MS_FUSE_EPILOGUES : ops;
  c->evaluation.wanted = 1;
  c->evaluation.fusing = ops;
  int rc;
  c->training.again.results = config->rematerialize && fuses(&c->training);
  for (int dim = 0; dim < MS_DIMS; dim++) c->training.again.gathered[dim] = !ms_plan_gathers_once(c->plan, dim);
  if (c->training.wanted) find_cached(c, 0, &c->training);
  find_cached(c, 1, &c->evaluation);
  MS_GOTO(run_passes(c, 0, GRAPH_PASSES));
  MS_GOTO(put_into_cache(c, 0, &c->training));
  MS_GOTO(put_into_cache(c, 1, &c->evaluation));
  MS_GOTO(ms_plan_keep_conversions(c->plan, c->training.graph ? c->training.graph : c->evaluation.graph));
  return run_passes(c, GRAPH_PASSES, MS_COMPILER_PASSES);
fail:
  ms_free(graph_of(&c->training));
  ms_free(graph_of(&c->evaluation));
  return rc;
}

static int compile(compilation *c) {
  const int rc = compile_all(c);
  free(c->training.summed);
  free(c->evaluation.summed);
  return rc;
}

int ms_plan_compile(const ms_graph *graph, const ms_plan_config *given, ms_plan **out) {
  MS_HANDLE(graph, GRAPH);
  MS_GIVEN(out);
  MS_TAKE_CONFIG(ms_plan_config, own, given);
  const ms_plan_config *config = &own;
  const ms_model *model = graph->model;
  if (!model->sharded) return MS_FAIL(MS_EINVAL, "call ms_model_shard before ms_plan_compile");
  if (graph->loss < 0 && !graph->n_outputs)
    return MS_FAIL(MS_EINVAL, "the graph has neither a loss nor an output: there is nothing to compute");
  if (config->train && graph->loss < 0)
    return MS_FAIL(MS_EINVAL, "training needs a loss: call ms_graph_set_loss, or compile with train = 0");
  MS_TRY(ms_plan_check_config(config));
  MS_TRY(ms_plan_check_updates(model, config));
  MS_TRY(ms_plan_check_logit_clips(model, config));
  MS_TRY(ms_device_find_for_plans(config->device));
  double begin = ms_clock();
  ms_plan *plan;
  int rc = MS_OK, node;
  MS_TRY(ms_plan_new(model, config, &plan));
  MS_GOTO(ms_plan_topology(model, config, &plan->topology));
  node = plan->topology.node_of[model->rank];
  if (!plan->config.threads) MS_GOTO(ms_thread_count(plan->topology.node_ranks[node], &plan->config.threads));
  MS_GOTO(compile(&(compilation){.plan = plan, .config = config, .traced = graph}));
  plan->compile_seconds = ms_clock() - begin;
  plan->config.norm_group = NULL; /* the caller's arrays end with the call */
  plan->config.max_norms = NULL;
  plan->config.logit_clip = NULL;
  *out = plan;
  return MS_OK;
fail:
  ms_free(plan);
  return rc;
}
