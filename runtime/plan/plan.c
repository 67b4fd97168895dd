/* plan.c - the plan object: its memory, its total size, and the names that plans, reports and errors use for its
 * parts.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/lower/lower.h"

static void free_phase(ms_plan_phase *phase) {
  for (int i = 0; i < phase->colls; i++) {
    free(phase->coll[i]->part);
    free(phase->coll[i]->opens);
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
  free(plan->conversion);
  free(plan->kept_unsharded);
  free(plan->resident);
  free(plan->deferred_gradients);
  free(plan->has_gradient);
  free(plan->owned);
  free(plan->logit_at);
  free(plan->owned_bucket);
  free(plan->buffer);
  if (plan->layout) ms_state_layout_free(plan->layout);
  free(plan->layout);
  ms_topology_free(&plan->topology);
  free(plan->manifest);
  free(plan->dump);
}

static int64_t phase_bytes(const ms_plan_phase *phase) {
  int64_t bytes =
      phase->capacity * (int64_t)sizeof *phase->instr + phase->colls_capacity * (int64_t)sizeof *phase->coll;
  for (int i = 0; i < phase->colls; i++) {
    const ms_plan_coll *coll = phase->coll[i];
    bytes += (int64_t)sizeof *coll + coll->parts * (int64_t)sizeof *coll->part +
             coll->opens_capacity * (int64_t)sizeof *coll->opens;
  }
  return bytes;
}

int64_t ms_plan_bytes(const ms_plan *plan) {
  int64_t bytes = sizeof *plan;
  for (int p = 0; p < MS_PHASES; p++) bytes += phase_bytes(&plan->phase[p]);
  bytes += ms_plan_prepared_bytes(plan) + plan->inputs * (int64_t)sizeof *plan->input +
           plan->outputs * (int64_t)sizeof *plan->output + plan->scope_slots * (int64_t)sizeof *plan->scope +
           plan->conversions * (int64_t)sizeof *plan->conversion +
           plan->buffers_capacity * (int64_t)sizeof *plan->buffer;
  for (const ms_scope_texts *t = plan->scope_texts; t; t = t->next) bytes += (int64_t)sizeof *t + t->bytes;
  for (const ms_places *p = plan->places; p; p = p->next) bytes += sizeof *p;
  return bytes + (plan->manifest ? (int64_t)strlen(plan->manifest) : 0) +
         (plan->dump ? (int64_t)strlen(plan->dump) : 0);
}

/* Initially no buffer is kept between micro-batches; lowering adds those that are. */
static int start_between(ms_plan *plan) {
  int units = plan->model->units;
  plan->kept_unsharded = ms_calloc(units, sizeof *plan->kept_unsharded);
  plan->resident = ms_calloc(units, sizeof *plan->resident);
  plan->deferred_gradients = ms_calloc(units, sizeof *plan->deferred_gradients);
  plan->has_gradient = ms_calloc(plan->model->params, 1);
  if (!plan->kept_unsharded || !plan->resident || !plan->deferred_gradients || !plan->has_gradient) return MS_ENOMEM;
  plan->weight_scales = -1;
  for (int u = 0; u < units; u++) {
    plan->kept_unsharded[u] = plan->deferred_gradients[u] = -1;
    plan->resident[u].buffer = -1;
  }
  return MS_OK;
}

int ms_plan_new(const ms_model *model, const ms_plan_config *config, ms_plan **out) {
  ms_plan *plan = ms_handle_new(MS_HANDLE_PLAN, sizeof *plan, destroy_plan);
  if (!plan) return MS_ENOMEM;
  plan->model = model;
  ms_handle_set_keeps(plan, model);
  plan->config = *config;
  plan->config.node_of = NULL;
  plan->streams = 1;
  plan->evaluated.buffer = plan->norm.buffer = plan->norm_of_synced.buffer = plan->norms_of_groups.buffer = -1;
  plan->logits.buffer = plan->largest_logit.buffer = -1;
  int rc = start_between(plan);
  if (rc) ms_free(plan);
  else *out = plan;
  return rc;
}

int64_t ms_plan_peak(const ms_plan *plan) {
  int64_t bytes = 0;
  for (int a = 0; a < MS_ARENAS; a++) bytes += plan->arena_bytes[a] - plan->peers_bytes[a];
  return bytes;
}

static const struct {
  const char *name;
  int dim;
} named_streams[MS_NAMED_STREAMS] = {
    [MS_STREAM_COMPUTE] = {"compute", -1},          [MS_STREAM_GATHER] = {"gather", MS_DIM_SHARD},
    [MS_STREAM_REDUCE] = {"reduce", MS_DIM_SHARD},  [MS_STREAM_REPLICATE] = {"replicate", MS_DIM_REPLICATE},
    [MS_STREAM_TENSOR] = {"tensor", MS_DIM_TENSOR}, [MS_STREAM_CONTEXT] = {"context", MS_DIM_CONTEXT}};

const char *ms_stream_name(int stream) { return stream < MS_NAMED_STREAMS ? named_streams[stream].name : "further"; }

int ms_stream_dim(int stream) { return named_streams[stream].dim; }

const char *ms_phase_name(int phase) {
  static const char *const names[MS_PHASES] = {"first",  "next",     "last",  "norm",
                                               "update", "evaluate", "outer", "gather"};
  return names[phase];
}

const char *ms_category_name(int category) {
  static const char *const names[MS_CATEGORIES] = {"parameters",  "optimizer", "gradients",    "gathered",
                                                   "activations", "workspace", "communication"};
  return names[category];
}

const char *ms_arena_name(int arena) {
  static const char *const names[MS_ARENAS] = {"state",     "masters",       "replicated", "chunks",  "activations",
                                               "workspace", "communication", "gathered",   "grouped", "resident"};
  return names[arena];
}

const char *ms_coll_name(int kind) {
  static const char *const names[MS_COLL_KINDS] = {"all_gather", "reduce_scatter", "all_reduce", "broadcast",
                                                   "barrier",    "send",           "recv",       "all_to_all"};
  return names[kind];
}

const char *ms_instr_describe(const ms_instr *instr, char *text) {
  const char *what = instr->kind == MS_INSTR_KERNEL ? ms_op_row_of(instr->call->op)->name
                     : instr->coll                  ? ms_coll_name(instr->coll->kind)
                                                    : "event";
  snprintf(text, MS_INSTR_TEXT, "%s %s on stream %s", what, instr->scope ? instr->scope : "",
           ms_stream_name(instr->stream));
  return text;
}
