/* lower_step.c - the phase UPDATE.
 *
 * Replicas of a node that share one copy of the state divide the work: each updates the slice of a unit's chunks
 * whose gradients it holds. The update ends with a barrier among them, so that all of the state is updated when a
 * rank continues.
 */
#include "plan/lower/optimizers/owners.h"
#include "plan/layout/state_layout.h"
#include "plan/lower/optimizers/update.h"

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

/* The parameters of a unit whose programs have kernels alone. */
static int update_unit(ms_plan *plan, int unit) {
  const ms_unit *u = &plan->model->unit[unit];
  for (int i = 0; i < u->params; i++) {
    const int param = u->order[i];
    const ms_optimizer *by = ms_param_optimizer(&plan->config, &plan->model->param[param]);
    if (!by || !plan->has_gradient[param]) continue;
    if (ms_optimizer_has(by, MS_STEP_SUM) || ms_optimizer_has(by, MS_STEP_TO_OWNER)) continue;
    const ms_update_item item = ms_update_item_of(plan, param);
    MS_TRY(ms_lower_update_item(plan, MS_PHASE_UPDATE, by, &item, NULL));
  }
  return MS_OK;
}

/* In one pass, unless the segments of the masters are separate. */
int ms_lower_average(ms_plan *plan, int phase, int unit) {
  const int apart = ms_plan_shares_masters(plan, unit);
  const ms_unit *u = &plan->model->unit[unit];
  for (int s = 0; s < (apart ? u->segments : 1) && !u->segment[s].frozen; s++) {
    const int64_t begin = u->segment[s].local, end = apart ? begin + u->segment[s].chunk : u->trainable_count;
    const ms_update_item item = {-1, unit, s, ms_lower_own_part(plan, unit, begin, end)};
    MS_TRY(ms_lower_update_item(plan, phase, &ms_ema, &item, NULL));
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
                            plan->layout->replicas, -1, 0, NULL));
  for (int b = 0; b < plan->buffers; b++)
    if (plan->buffer[b].bytes && is_of_replicas(plan->buffer[b].arena))
      MS_TRY(ms_plan_open(plan, MS_PHASE_UPDATE, plan->phase[MS_PHASE_UPDATE].n - 1,
                          ms_ref_vector(b, 0, MS_U8, plan->buffer[b].bytes)));
  return MS_OK;
}

static int finish_unit(ms_plan *plan, int unit) {
  MS_TRY(ms_lower_clip_logits(plan, unit));
  MS_TRY(ms_lower_keep_divisors(plan, unit));
  if (plan->config.ema_decay > 0 && !ms_outer_applies(plan, unit))
    MS_TRY(ms_lower_average(plan, MS_PHASE_UPDATE, unit));
  return ms_lower_gather_slices(plan, unit);
}

/* Half of the units. */
static int update_half(ms_plan *plan, int half) {
  const int units = plan->model->units, middle = (units + 1) / 2;
  for (int u = half ? middle : 0; u < (half ? units : middle); u++) MS_TRY(update_unit(plan, u));
  return MS_OK;
}

int ms_lower_update(ms_plan *plan) {
  plan->phase[MS_PHASE_UPDATE].present = 1; /* on all ranks, also on one that owns nothing */
  MS_TRY(count_updates(plan));
  MS_TRY(ms_lower_summed_updates(plan));
  MS_TRY(ms_find_owners(plan));
  if (plan->owned_buckets) MS_TRY(ms_lower_owned_updates(plan, update_half));
  for (int u = 0; u < plan->model->units; u++) {
    if (!plan->owned_buckets) MS_TRY(update_unit(plan, u));
    MS_TRY(finish_unit(plan, u));
  }
  return plan->layout->replicas > 1 ? meet_replicas(plan) : MS_OK;
}
