/* lower_step.c - the phase UPDATE.
 *
 * Replicas of a node that share one copy of the state divide the work: each updates the slice of a unit's chunks
 * whose gradients it holds. The update ends with a barrier among them, so that all of the state is updated when a
 * rank continues.
 */
#include <stdlib.h>
#include <string.h>

#include "base/text/hash.h"
#include "kernels/clip.h"
#include "plan/layout/factors.h"
#include "plan/lower/lower.h"
#include "plan/layout/moment_layout.h"
#include "plan/lower/optimizers/muon.h"
#include "plan/optimizer.h"

/* One fused pass over the elements of a parameter that this rank updates, which also writes their copy if there is one.
 * Each parameter has its own count of updates, and its own random numbers for rounding bf16 moments: these depend on an
 * element's index in the parameter, not on the rank, so every mesh draws the same, with one exception: of a parameter
 * that a tensor dimension divides, elements are numbered part by part, which is the same along the first axis alone. */
static int update_parameter(ms_plan *plan, int param) {
  const ms_model *model = plan->model;
  const ms_param *p = &model->param[param];
  const ms_plan_config *c = &plan->config;
  const ms_stretch own = ms_lower_own_part(plan, p->unit, p->local, p->local + p->owned);
  const char *scope = model->unit[p->unit].name;
  if (own.end <= own.begin) return MS_OK;
  const ms_ref in[3] = {ms_lower_gradients_of(plan, p->unit, own), ms_lower_norm_of(plan, param),
                        ms_ref_scalar(ms_updates_buffer(plan), 4 * param)};
  const ms_optimizer *optimizer = ms_optimizer_of(c);
  ms_ref out[1 + MS_MOMENTS + 1] = {ms_lower_masters(plan, p->unit, p->segment, own)};
  if (ms_param_is_balanced(p)) {
    const ms_op_attrs rate = {.balance = {.rate = p->config.balance}};
    MS_TRY(ms_plan_kernel(plan, MS_PHASE_UPDATE, MS_OP_balance, &rate, 3, in, 1, out, scope, 0));
    return ms_lower_copy(plan, MS_PHASE_UPDATE, p->unit, p->segment, own, scope);
  }
  const ms_param_group by = ms_updates_of(c, p);
  const int kept = ms_moments_updated(optimizer, &by);
  for (int m = 0; m < optimizer->moments; m++)
    out[1 + m] = m < kept ? ms_lower_moment(plan, p, m, own)
                          : ms_ref_vector(ms_state_buffer(p->unit, MS_SLOT_MOMENT + m), 0, MS_F32, 0);
  const int64_t before = ms_param_is_divided(model, p) ? model->dim[MS_DIM_TENSOR].place * p->numel : 0;
  const ms_updated updated = {.by = by,
                              .key = ms_hash_string(ms_hash_int(MS_HASH_INIT, (int64_t)model->seed), p->name),
                              .first = before + p->first + own.begin - p->local,
                              .moments = ms_moment_dtype(p, ms_moment_dtype_of(c))};
  ms_op_attrs attrs = ms_update_attrs(c, &updated);
  attrs.update.clip = c->max_value;
  int outputs = 1 + optimizer->moments;
  const int copies = ms_op_row_of(optimizer->op)->flags & MS_OP_COPIES;
  if (copies && ms_lower_has_copy(plan, p->unit, p->segment))
    out[outputs++] = ms_plan_weights(plan, p->unit, p->segment, own.begin, own.end - own.begin);
  MS_TRY(ms_plan_kernel(plan, MS_PHASE_UPDATE, optimizer->op, &attrs, 3, in, outputs, out, scope, 0));
  return copies ? MS_OK : ms_lower_copy(plan, MS_PHASE_UPDATE, p->unit, p->segment, own, scope);
}

/* A parameter without a gradient in this step keeps its value and its optimizer state, and its count of updates does
 * not increase. Every rank counts for all parameters, including those of which it owns nothing. */
static int count_updates(ms_plan *plan) {
  const ms_op_attrs one_more = {.scale = {.alpha = 1, .beta = 1}};
  for (int first = 0, end; first < plan->model->params; first = end) {
    end = first + 1;
    if (!plan->has_gradient[first]) continue;
    while (end < plan->model->params && plan->has_gradient[end]) end++;
    const ms_ref updates = ms_ref_vector(ms_updates_buffer(plan), 4 * first, MS_F32, end - first);
    MS_TRY(ms_plan_kernel(plan, MS_PHASE_UPDATE, MS_OP_scale, &one_more, 1, &updates, 1, &updates, "updates", 0));
  }
  return MS_OK;
}

static int update_unit(ms_plan *plan, int unit) {
  const ms_unit *u = &plan->model->unit[unit];
  for (int i = 0; i < u->params; i++) {
    const ms_param *p = &plan->model->param[u->order[i]];
    if (!p->owned || p->config.frozen || !plan->has_gradient[u->order[i]] || ms_param_takes_muon(p)) continue;
    if (ms_param_takes_adafactor(p, plan->config.optimizer)) continue;
    MS_TRY(update_parameter(plan, u->order[i]));
  }
  return MS_OK;
}

/* In one pass, unless the segments of the masters are separate. */
int ms_lower_average(ms_plan *plan, int phase, int unit) {
  const int apart = ms_plan_shares_masters(plan, unit);
  const ms_unit *u = &plan->model->unit[unit];
  const ms_op_attrs attrs = {.ema = {.decay = plan->config.ema_decay, .warmup = plan->config.ema_warmup}};
  for (int s = 0; s < (apart ? u->segments : 1) && !u->segment[s].frozen; s++) {
    const int64_t begin = u->segment[s].local;
    const ms_stretch own =
        ms_lower_own_part(plan, unit, begin, apart ? begin + u->segment[s].chunk : u->trainable_count);
    if (own.end <= own.begin) continue;
    const ms_ref in = ms_lower_masters(plan, unit, s, own), out = ms_lower_kept(plan, unit, MS_SLOT_EMA, MS_F32, own);
    MS_TRY(ms_plan_kernel(plan, phase, MS_OP_ema, &attrs, 1, &in, 1, &out, u->name, 0));
  }
  return MS_OK;
}

/* 1 for the arenas of which replicas that share a copy of the state have one. */
static int is_of_replicas(int arena) {
  return arena == MS_ARENA_MASTERS || arena == MS_ARENA_REPLICATED || arena == MS_ARENA_CHUNKS;
}

/* Waits until all replicas have written their slices of all the memory that they share: the barrier hands over every
 * buffer of it, whichever instructions of this rank write there. */
static int meet_replicas(ms_plan *plan) {
  MS_TRY(ms_plan_collective(plan, MS_PHASE_UPDATE, MS_STREAM_REPLICATE, MS_COLL_BARRIER, MS_DIM_REPLICATE,
                            plan->replicas, -1, 0, NULL));
  for (int b = 0; b < plan->buffers; b++)
    if (plan->buffer[b].bytes && is_of_replicas(plan->buffer[b].arena))
      MS_TRY(ms_plan_open(plan, MS_PHASE_UPDATE, plan->phase[MS_PHASE_UPDATE].n - 1,
                          ms_ref_vector(b, 0, MS_U8, plan->buffer[b].bytes)));
  return MS_OK;
}

static int finish_unit(ms_plan *plan, int unit) {
  if (plan->config.ema_decay > 0 && !ms_outer_applies(plan, unit))
    MS_TRY(ms_lower_average(plan, MS_PHASE_UPDATE, unit));
  return ms_lower_gather_slices(plan, unit);
}

/* The parameters of half of the units that take neither Muon nor Adafactor. */
static int update_half(ms_plan *plan, int half) {
  const int units = plan->model->units, middle = (units + 1) / 2;
  for (int u = half ? middle : 0; u < (half ? units : middle); u++) MS_TRY(update_unit(plan, u));
  return MS_OK;
}

int ms_lower_update(ms_plan *plan) {
  plan->phase[MS_PHASE_UPDATE].present = 1; /* on all ranks, also on one that owns nothing */
  MS_TRY(count_updates(plan));
  MS_TRY(ms_lower_adafactor(plan));
  MS_TRY(ms_muon_find_owners(plan));
  if (plan->muon_buckets) MS_TRY(ms_lower_muon(plan, update_half));
  for (int u = 0; u < plan->model->units; u++) {
    if (!plan->muon_buckets) MS_TRY(update_unit(plan, u));
    MS_TRY(finish_unit(plan, u));
  }
  return plan->replicas > 1 ? meet_replicas(plan) : MS_OK;
}
