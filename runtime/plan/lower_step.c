/* lower_step.c - the phases without a graph: the step's totals (loss and gradient norm over the mesh), and the update.
**
** The norm is that of the gradient of the mean loss: sums over ranks and micro-batches are divided once, here, and the
** factor goes with the clipping into the optimizer's pass, so no kernel ever scales a gradient in memory.
*/
#include <string.h>

#include "base/hash.h"
#include "plan/lower.h"

int ms_lower_totals(ms_plan *plan, int phase, ms_ref totals) {
  const ms_model *model = plan->model;
  ms_plan_part part = {.count = 2, .src.buffer = -1, .shared = totals, .dst = totals};
  if (model->shard_size > 1)
    MS_TRY(ms_plan_collective(plan, phase, MS_STREAM_REDUCE, MS_COLL_ALL_REDUCE, MS_DIM_SHARD, 0, -1, 1, &part));
  if (model->replicate_size > 1)
    MS_TRY(ms_plan_collective(plan, phase, MS_STREAM_REPLICATE, MS_COLL_ALL_REDUCE, MS_DIM_REPLICATE, 0, -1, 1, &part));
  return MS_OK;
}

int ms_lower_norm(ms_plan *plan) {
  const ms_model *model = plan->model;
  int phase = MS_PHASE_NORM, squares = ms_squares_buffer(plan), buffer;
  ms_attrs none = {{0}, {0}};
  for (int u = 0; u < model->units; u++) {
    const ms_unit *unit = &model->unit[u];
    if (!unit->trainable_count) continue;
    ms_ref in = ms_ref_vector(ms_state_buffer(u, MS_STATE_GRADIENT), 0, MS_F32, unit->trainable_count);
    ms_ref out = ms_ref_scalar(squares, 4 * u);
    MS_TRY(ms_plan_kernel(plan, phase, MS_OP_sum_squares, &none, 1, &in, 1, &out, unit->name, 0));
  }
  MS_TRY(ms_plan_buffer(plan, phase, MS_ARENA_COMM, MS_CAT_COMMUNICATION, 8, "totals", &buffer));
  ms_ref in[2] = {ms_ref_vector(squares, 0, MS_F32, model->units), ms_ref_scalar(ms_loss_sum_buffer(plan), 0)};
  ms_ref totals = ms_ref_vector(buffer, 0, MS_F32, 2);
  ms_attrs attrs = {.i = {model->replicate_size}};
  MS_TRY(ms_plan_kernel(plan, phase, MS_OP_step_totals, &attrs, 2, in, 1, &totals, "step totals", 0));
  MS_TRY(ms_lower_totals(plan, phase, totals));
  plan->norm = ms_ref_vector(ms_norm_buffer(plan), 0, MS_F32, 4);
  attrs = (ms_attrs){.i = {(int64_t)model->shard_size * model->replicate_size}, .f = {plan->config.max_norm}};
  return ms_plan_kernel(plan, phase, MS_OP_step_norm, &attrs, 1, &totals, 1, &plan->norm, "step totals", 0);
}

/* One fused pass over `n` elements of a unit's chunks from segment `s` on, all of one optimizer group. */
static int update_run(ms_plan *plan, int unit, int s, int64_t n) {
  const ms_segment *group = &plan->model->unit[unit].segment[s];
  int64_t first = group->local;
  int shared = ms_unit_shares_masters(plan->model, &plan->config, unit);
  const ms_plan_config *c = &plan->config;
  ms_ref in[2] = {ms_ref_vector(ms_state_buffer(unit, MS_STATE_GRADIENT), 4 * first, MS_F32, n), plan->norm};
  ms_ref master = ms_ref_vector(ms_state_buffer(unit, MS_STATE_MASTER),
                                ms_master_offset(plan->model, &plan->model->unit[unit], shared, s, first), MS_F32, n);
  ms_ref state0 = ms_ref_vector(ms_state_buffer(unit, MS_STATE_FIRST), 4 * first, MS_F32, n);
  ms_ref state1 = ms_ref_vector(ms_state_buffer(unit, MS_STATE_SECOND), 4 * first, MS_F32, n);
  const char *scope = plan->model->unit[unit].name;
  if (c->optimizer == MS_OPT_ADAMW) {
    ms_ref out[3] = {master, state0, state1};
    ms_attrs attrs = {.f = {group->lr_scale, group->weight_decay, c->beta1, c->beta2}};
    memcpy(&attrs.i[0], &c->eps, sizeof c->eps);
    return ms_plan_kernel(plan, MS_PHASE_UPDATE, MS_OP_adamw, &attrs, 2, in, 3, out, scope, 0);
  }
  if (c->momentum == 0) state0 = ms_ref_vector(ms_state_buffer(unit, MS_STATE_FIRST), 0, MS_F32, 0);
  ms_ref out[2] = {master, state0};
  ms_attrs attrs = {.i = {c->nesterov}, .f = {group->lr_scale, group->weight_decay, c->momentum, c->dampening}};
  return ms_plan_kernel(plan, MS_PHASE_UPDATE, MS_OP_sgd, &attrs, 2, in, 2, out, scope, 0);
}

/* AdamW with bf16 moments: a pass over each parameter, since every element is rounded by random numbers of its own, which its place
** in the parameter decides, not its place on this rank. */
static int update_parameter(ms_plan *plan, int unit, const ms_param *p) {
  const ms_model *model = plan->model;
  const ms_unit *u = &model->unit[unit];
  const ms_segment *group = &u->segment[p->segment];
  const ms_plan_config *c = &plan->config;
  const int64_t moments = ms_dtype_size(c->moment_dtype) * p->local;
  const int shared = ms_unit_shares_masters(model, c, unit);
  const ms_ref in[2] = {ms_ref_vector(ms_state_buffer(unit, MS_STATE_GRADIENT), 4 * p->local, MS_F32, p->owned),
                        plan->norm};
  const ms_ref out[3] = {ms_ref_vector(ms_state_buffer(unit, MS_STATE_MASTER),
                                       ms_master_offset(model, u, shared, p->segment, p->local), MS_F32, p->owned),
                         ms_ref_vector(ms_state_buffer(unit, MS_STATE_FIRST), moments, c->moment_dtype, p->owned),
                         ms_ref_vector(ms_state_buffer(unit, MS_STATE_SECOND), moments, c->moment_dtype, p->owned)};
  ms_attrs attrs = {.f = {group->lr_scale, group->weight_decay, c->beta1, c->beta2}};
  memcpy(&attrs.i[0], &c->eps, sizeof c->eps);
  attrs.i[1] = (int64_t)ms_hash_string(ms_hash_int(MS_HASH_INIT, (int64_t)model->seed), p->name);
  attrs.i[2] = p->first;
  attrs.i[3] = 1;
  return ms_plan_kernel(plan, MS_PHASE_UPDATE, MS_OP_adamw, &attrs, 2, in, 3, out, u->name, 0);
}

static int update_parameters(ms_plan *plan, int unit) {
  const ms_unit *u = &plan->model->unit[unit];
  for (int i = 0; i < u->params; i++) {
    const ms_param *p = &plan->model->param[u->order[i]];
    if (p->owned && !p->config.frozen) MS_TRY(update_parameter(plan, unit, p));
  }
  return MS_OK;
}

/* The trainable segments from `s` on that one pass can cover: a private unit's chunks of one optimizer group lie in a row,
** a shared unit's lie each among its peers' chunks. Returns the first segment that is not covered. */
static int same_group_run(const ms_unit *unit, int s, int shared) {
  int end = s + 1;
  while (!shared && end < unit->segments && !unit->segment[end].frozen &&
         unit->segment[end].lr_scale == unit->segment[s].lr_scale &&
         unit->segment[end].weight_decay == unit->segment[s].weight_decay)
    end++;
  return end;
}

/* The averages of a unit's weights, after all of them were updated: of a private unit in one pass. */
static int average(ms_plan *plan, int unit, int shared) {
  const ms_unit *u = &plan->model->unit[unit];
  const ms_attrs attrs = {.i = {plan->config.ema_warmup}, .f = {plan->config.ema_decay}};
  for (int s = 0; s < (shared ? u->segments : 1) && !u->segment[s].frozen; s++) {
    const int64_t first = u->segment[s].local, n = shared ? u->segment[s].chunk : u->trainable_count;
    const ms_ref in = ms_ref_vector(ms_state_buffer(unit, MS_STATE_MASTER),
                                    ms_master_offset(plan->model, u, shared, s, first), MS_F32, n);
    const ms_ref out = ms_ref_vector(ms_state_buffer(unit, MS_STATE_EMA), 4 * first, MS_F32, n);
    MS_TRY(ms_plan_kernel(plan, MS_PHASE_UPDATE, MS_OP_ema, &attrs, 1, &in, 1, &out, u->name, 0));
  }
  return MS_OK;
}

int ms_lower_update(ms_plan *plan) {
  for (int u = 0; u < plan->model->units; u++) {
    const ms_unit *unit = &plan->model->unit[u];
    int shared = ms_unit_shares_masters(plan->model, &plan->config, u);
    const int by_parameter = plan->config.moment_dtype != MS_F32;
    if (by_parameter) MS_TRY(update_parameters(plan, u));
    for (int s = 0, end; !by_parameter && s < unit->segments && !unit->segment[s].frozen; s = end) {
      end = same_group_run(unit, s, shared);
      int trainable_follows = end < unit->segments && !unit->segment[end].frozen;
      int64_t stop = trainable_follows ? unit->segment[end].local : unit->trainable_count;
      MS_TRY(update_run(plan, u, s, shared ? unit->segment[s].chunk : stop - unit->segment[s].local));
    }
    if (plan->config.ema_decay > 0) MS_TRY(average(plan, u, shared));
  }
  return MS_OK;
}
