/* lower_logits.c - QK-clip (Kimi K2): after an update, heads whose largest attention score of the step was above
 * ms_plan_config.qk_clip_threshold have their queries and keys scaled (ms_logit_clip).
 *
 *   FIRST, NEXT, LAST   the largest scores, outputs of the graph, f32 [heads] each -> the largest of all micro-batches
 *   NORM                all_reduce max over shards and replicas, of all of them together; their largest, for the host
 *   UPDATE              clip_heads of each parameter, after its update and before averages
 *
 * A maximum has no order, so every rank and every mesh has the same bits of it. Ranks of a tensor dimension have the
 * scores of all heads: outputs are whole.
 */
#include <string.h>

#include "plan/layout/state_layout.h"
#include "plan/lower/lower.h"

/* ---- the largest scores ------------------------------------------------------------------------------------------ */

/* The output of a name that clips read, of those before which number; *at: its first element among all. */
static int is_read(const ms_plan *plan, const char *name) {
  for (int i = 0; i < plan->config.logit_clips; i++)
    if (!strcmp(ms_plan_logit_clip(&plan->config, i)->output, name)) return 1;
  return 0;
}

/* The elements of all outputs that clips read, in the order of the graph's, up to the one of this name. */
static int64_t elements_before(const ms_graph *graph, const ms_plan *plan, const char *name) {
  int64_t n = 0;
  for (int o = 0; o < graph->n_outputs; o++) {
    if (name && !strcmp(graph->outputs[o].name, name)) return n;
    if (is_read(plan, graph->outputs[o].name)) n += ms_numel(&graph->values[graph->outputs[o].value].info);
  }
  return name ? -1 : n;
}

/* Where a clip's scores are: set once, in FIRST. */
static int place_clips(ms_plan *plan, const ms_graph *graph) {
  for (int i = 0; i < plan->config.logit_clips; i++) {
    const ms_logit_clip *c = ms_plan_logit_clip(&plan->config, i);
    const int64_t before = elements_before(graph, plan, c->output), all = elements_before(graph, plan, NULL);
    plan->logit_at[i] = before + c->at;
    if (before < 0 || plan->logit_at[i] + c->heads * c->shared > all)
      return MS_FAIL(MS_EINVAL, "logit_clip of '%s': the graph has no output '%s' with %lld scores from %lld on",
                     plan->model->param[c->param].name, c->output, (long long)(c->heads * c->shared), (long long)c->at);
  }
  return MS_OK;
}

static int open_logits(ms_plan *plan, const ms_graph *graph) {
  const int alone = ms_model_shards(plan->model) * ms_model_replicas(plan->model) == 1;
  const int64_t n = elements_before(graph, plan, NULL);
  int buffer, most;
  plan->logit_at = ms_calloc(plan->config.logit_clips, sizeof *plan->logit_at);
  if (!plan->logit_at) return MS_ENOMEM;
  MS_TRY(place_clips(plan, graph));
  MS_TRY(ms_plan_buffer(plan, -1, alone ? MS_ARENA_ACTIVATIONS : MS_ARENA_COMM,
                        alone ? MS_CAT_ACTIVATIONS : MS_CAT_COMMUNICATION, 4 * n, "attention logits", &buffer));
  MS_TRY(ms_plan_buffer(plan, -1, MS_ARENA_ACTIVATIONS, MS_CAT_ACTIVATIONS, 4, "largest logit", &most));
  plan->logits = ms_ref_vector(buffer, 0, MS_F32, n);
  plan->largest_logit = ms_ref_scalar(most, 0);
  return MS_OK;
}

int ms_lower_take_logits(ms_lowering *l, const char *name, ms_ref scores) {
  ms_plan *plan = l->plan;
  const ms_op_attrs none = {0};
  if (!is_read(plan, name) || l->phase == MS_PHASE_EVALUATE) return MS_OK;
  if (plan->logits.buffer < 0) MS_TRY(open_logits(plan, l->graph));
  const int64_t n = ms_numel(&scores.info);
  const ms_ref all = ms_ref_vector(plan->logits.buffer, 4 * elements_before(l->graph, plan, name), MS_F32, n);
  const ms_ref given[] = {all, ms_ref_vector(scores.buffer, scores.offset, MS_F32, n)};
  if (l->phase == MS_PHASE_FIRST)
    return ms_plan_kernel(plan, l->phase, MS_OP_accumulate, &none, 1, &given[1], 1, &all, name, 0);
  return ms_plan_kernel(plan, l->phase, MS_OP_maximum, &none, 2, given, 1, &all, name, 0);
}

static int join(ms_plan *plan, int stream, int dim) {
  const ms_plan_part part = {
      .count = ms_numel(&plan->logits.info), .src.buffer = -1, .shared = plan->logits, .dst = plan->logits};
  if (plan->model->dim[dim].size == 1) return MS_OK;
  MS_TRY(ms_plan_collective_of(plan, MS_PHASE_NORM, stream, MS_COLL_ALL_REDUCE, dim, "attention logits", &part));
  ms_plan_takes_largest(plan, MS_PHASE_NORM);
  return MS_OK;
}

int ms_lower_join_logits(ms_plan *plan) {
  const ms_op_attrs all = {.reduce = {.all = 1}};
  if (plan->logits.buffer < 0) return MS_OK;
  MS_TRY(join(plan, MS_STREAM_REDUCE, MS_DIM_SHARD));
  MS_TRY(join(plan, MS_STREAM_REPLICATE, MS_DIM_REPLICATE));
  return ms_plan_kernel(plan, MS_PHASE_NORM, MS_OP_max, &all, 1, &plan->logits, 1, &plan->largest_logit,
                        "attention logits", 0);
}
