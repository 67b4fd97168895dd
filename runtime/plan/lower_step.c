/* lower_step.c - the phases without a graph: the step's totals (loss and gradient norm over the mesh), and the update.
**
** Replicas of a host that keep one copy of the state divide the work: each sums and updates its slice of every chunk, and the
** update ends with a barrier among them, so that whoever goes on finds all of it updated.
**
** The norm is that of the gradient of the mean loss: sums over ranks and micro-batches are divided once, here, and the
** factor goes with the clipping into the optimizer's pass, so no kernel ever scales a gradient in memory.
*/
#include <string.h>

#include "base/hash.h"
#include "base/slice.h"
#include "plan/lower.h"

/* What this rank does of n elements that its replicas could all do: a slice where they keep one copy, or all. */
static int64_t own_slice(const ms_plan *plan, int64_t n, int64_t *first) {
  const ms_model *model = plan->model;
  const int share = ms_replicas_share(model, &plan->config);
  return ms_slice(n, share ? model->replicate_size : 1, share ? model->replicate_rank : 0, first);
}

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
    int64_t first, n = own_slice(plan, unit->trainable_count, &first);
    ms_ref in = ms_ref_vector(ms_state_buffer(u, MS_STATE_GRADIENT), 4 * first, MS_F32, n);
    ms_ref out = ms_ref_scalar(squares, 4 * u);
    MS_TRY(ms_plan_kernel(plan, phase, MS_OP_sum_squares, &none, 1, &in, 1, &out, unit->name, 0));
  }
  MS_TRY(ms_plan_buffer(plan, phase, MS_ARENA_COMM, MS_CAT_COMMUNICATION, 8, "totals", &buffer));
  ms_ref in[2] = {ms_ref_vector(squares, 0, MS_F32, model->units), ms_ref_scalar(ms_loss_sum_buffer(plan), 0)};
  ms_ref totals = ms_ref_vector(buffer, 0, MS_F32, 2);
  const int share = ms_replicas_share(model, &plan->config);
  ms_attrs attrs = {.i = {share ? 1 : model->replicate_size}}; /* how often the mesh's sum has each square */
  MS_TRY(ms_plan_kernel(plan, phase, MS_OP_step_totals, &attrs, 2, in, 1, &totals, "step totals", 0));
  MS_TRY(ms_lower_totals(plan, phase, totals));
  plan->norm = ms_ref_vector(ms_norm_buffer(plan), 0, MS_F32, 4);
  attrs = (ms_attrs){.i = {(int64_t)model->shard_size * model->replicate_size}, .f = {plan->config.max_norm}};
  return ms_plan_kernel(plan, phase, MS_OP_step_norm, &attrs, 1, &totals, 1, &plan->norm, "step totals", 0);
}

/* One fused pass over this rank's part of `n` elements of a unit's chunks from segment `s` on, all of one optimizer group. */
static int update_run(ms_plan *plan, int unit, int s, int64_t n) {
  const ms_segment *group = &plan->model->unit[unit].segment[s];
  int64_t first;
  n = own_slice(plan, n, &first);
  if (!n) return MS_OK;
  first += group->local;
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
  int64_t begin, end = own_slice(plan, group->chunk, &begin) + begin;
  begin = begin + group->local > p->local ? begin + group->local : p->local;
  end = end + group->local < p->local + p->owned ? end + group->local : p->local + p->owned;
  if (end <= begin) return MS_OK;
  const int64_t n = end - begin, moments = ms_dtype_size(c->moment_dtype) * begin;
  const int shared = ms_unit_shares_masters(model, c, unit);
  const ms_ref in[2] = {ms_ref_vector(ms_state_buffer(unit, MS_STATE_GRADIENT), 4 * begin, MS_F32, n), plan->norm};
  const ms_ref out[3] = {ms_ref_vector(ms_state_buffer(unit, MS_STATE_MASTER),
                                       ms_master_offset(model, u, shared, p->segment, begin), MS_F32, n),
                         ms_ref_vector(ms_state_buffer(unit, MS_STATE_FIRST), moments, c->moment_dtype, n),
                         ms_ref_vector(ms_state_buffer(unit, MS_STATE_SECOND), moments, c->moment_dtype, n)};
  ms_attrs attrs = {.f = {group->lr_scale, group->weight_decay, c->beta1, c->beta2}};
  memcpy(&attrs.i[0], &c->eps, sizeof c->eps);
  attrs.i[1] = (int64_t)ms_hash_string(ms_hash_int(MS_HASH_INIT, (int64_t)model->seed), p->name);
  attrs.i[2] = p->first + begin - p->local;
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
** a shared unit's lie each among its peers' chunks, and slices are cut segment by segment. Returns the first segment that is
** not covered. */
static int same_group_run(const ms_unit *unit, int s, int apart) {
  int end = s + 1;
  while (!apart && end < unit->segments && !unit->segment[end].frozen &&
         unit->segment[end].lr_scale == unit->segment[s].lr_scale &&
         unit->segment[end].weight_decay == unit->segment[s].weight_decay)
    end++;
  return end;
}

/* The averages of a unit's weights, after all of them were updated: in one pass where segments are not apart. */
static int average(ms_plan *plan, int unit, int apart) {
  const ms_unit *u = &plan->model->unit[unit];
  const int shared = ms_unit_shares_masters(plan->model, &plan->config, unit);
  const ms_attrs attrs = {.i = {plan->config.ema_warmup}, .f = {plan->config.ema_decay}};
  for (int s = 0; s < (apart ? u->segments : 1) && !u->segment[s].frozen; s++) {
    int64_t first, n = own_slice(plan, apart ? u->segment[s].chunk : u->trainable_count, &first);
    if (!n) continue;
    first += u->segment[s].local;
    const ms_ref in = ms_ref_vector(ms_state_buffer(unit, MS_STATE_MASTER),
                                    ms_master_offset(plan->model, u, shared, s, first), MS_F32, n);
    const ms_ref out = ms_ref_vector(ms_state_buffer(unit, MS_STATE_EMA), 4 * first, MS_F32, n);
    MS_TRY(ms_plan_kernel(plan, MS_PHASE_UPDATE, MS_OP_ema, &attrs, 1, &in, 1, &out, u->name, 0));
  }
  return MS_OK;
}

/* Until all replicas have written their slices. Kernels run in order: it waits for the last of them. */
static int meet_replicas(ms_plan *plan) {
  const ms_plan_phase *phase = &plan->phase[MS_PHASE_UPDATE];
  ms_plan_part part = {.src.buffer = -1, .dst.buffer = -1};
  if (phase->n) part.shared = ms_instr_output(&phase->instr[phase->n - 1], 0);
  return ms_plan_collective(plan, MS_PHASE_UPDATE, MS_STREAM_REPLICATE, MS_COLL_BARRIER, MS_DIM_REPLICATE, 0, -1,
                            phase->n > 0, &part);
}

int ms_lower_update(ms_plan *plan) {
  const int slices = ms_replicas_share(plan->model, &plan->config);
  plan->phase[MS_PHASE_UPDATE].present = 1; /* of all ranks, though one may own nothing */
  for (int u = 0; u < plan->model->units; u++) {
    const ms_unit *unit = &plan->model->unit[u];
    const int apart = slices || ms_unit_shares_masters(plan->model, &plan->config, u);
    const int by_parameter = plan->config.moment_dtype != MS_F32;
    if (by_parameter) MS_TRY(update_parameters(plan, u));
    for (int s = 0, end; !by_parameter && s < unit->segments && !unit->segment[s].frozen; s = end) {
      end = same_group_run(unit, s, apart);
      int trainable_follows = end < unit->segments && !unit->segment[end].frozen;
      int64_t stop = trainable_follows ? unit->segment[end].local : unit->trainable_count;
      MS_TRY(update_run(plan, u, s, apart ? unit->segment[s].chunk : stop - unit->segment[s].local));
    }
    if (plan->config.ema_decay > 0) MS_TRY(average(plan, u, apart));
  }
  return slices ? meet_replicas(plan) : MS_OK;
}
