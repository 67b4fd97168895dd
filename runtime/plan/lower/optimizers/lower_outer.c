/* lower_outer.c - the outer step of local SGD (DiLoCo): units with a fragment train without the other replicas, and
 * now and then move to a common point.
 *
 * A rank's chunk of what its weights moved since the last sync, synced - local, is summed over the replicas; then one
 * pass takes the outer optimizer's step with it, and sets the local weights. OUTER does this unit by unit, so that one
 * sum runs while the next difference is computed, and two buffers suffice. With a delay FIRST computes the differences,
 * before any update changes the weights, and their sums run after its kernels; the state keeps them until OUTER.
 *
 * All replicas compute the same bits from the same sums, so the synced weights and the outer momentum stay equal.
 */
#include <stdlib.h>

#include "plan/lower/optimizers/update.h"

int ms_outer_check(const ms_plan *plan) {
  const ms_plan_config *c = &plan->config;
  const int both = MS_OUTER_SEND | MS_OUTER_APPLY;
  if (c->outer_parts < 0 || c->outer_parts > both || (c->outer_fragment > 0) != (c->outer_parts != 0))
    return MS_FAIL(MS_EINVAL,
                   "outer_parts must be flags of enum ms_outer if there is an outer_fragment, not %d with %d",
                   c->outer_parts, c->outer_fragment);
  if (c->outer_parts && c->outer_parts != both && !c->outer_delay)
    return MS_FAIL(MS_EINVAL, "outer_parts must be send and apply (3) without outer_delay, not %d", c->outer_parts);
  if (c->outer_parts && c->optimizer == MS_OPT_NONE)
    return MS_FAIL(MS_EINVAL, "outer_fragment %d needs an optimizer for the local steps", c->outer_fragment);
  if (!c->outer_fragment) return MS_OK;
  for (int u = 0; u < plan->model->units; u++)
    if (plan->model->unit[u].config.fragment == c->outer_fragment) return MS_OK;
  return MS_FAIL(MS_EINVAL, "outer_fragment %d: no unit has this fragment", c->outer_fragment);
}

/* ---- the stretches of a unit: all chunks in one, or one for each segment where masters are not contiguous ---------
 */

static int stretches(const ms_plan *plan, int unit) {
  const ms_unit *u = &plan->model->unit[unit];
  int n = 0;
  while (n < u->segments && !u->segment[n].frozen) n++;
  return ms_plan_shares_masters(plan, unit) ? n : 1;
}

/* Padding is zero, and stays so; all ranks take it along, so that their calls are the same. */
static ms_stretch stretch_of(const ms_plan *plan, int unit, int s) {
  const ms_unit *u = &plan->model->unit[unit];
  const int64_t begin = u->segment[s].local;
  if (!ms_plan_shares_masters(plan, unit)) return (ms_stretch){0, u->trainable_count};
  return (ms_stretch){begin, begin + u->segment[s].chunk};
}

/* ---- sending --------------------------------------------------------------------------------------------------------
 */

/* Writes the differences of a unit to a buffer, at the offsets of its chunks. */
static int subtract(ms_plan *plan, int phase, int unit, int buffer) {
  for (int s = 0; s < stretches(plan, unit); s++) {
    const ms_stretch own = stretch_of(plan, unit, s);
    const ms_ref difference = ms_ref_vector(buffer, 4 * own.begin, MS_F32, own.end - own.begin);
    const ms_update_item item = {-1, unit, s, own};
    MS_TRY(ms_lower_update_item(plan, phase, &ms_outer_difference, &item, &difference));
  }
  return MS_OK;
}

/* Sums the chunks of a unit over the replicas, without the gaps between segments, which stay zero. */
static int sum_over_replicas(ms_plan *plan, int phase, int unit, int buffer, int sum) {
  const ms_unit *u = &plan->model->unit[unit];
  ms_plan_part *part = ms_calloc(u->segments, sizeof *part);
  int parts = 0, rc = part ? MS_OK : MS_ENOMEM;
  for (int s = 0; s < u->segments && !rc && !u->segment[s].frozen; s++) {
    const ms_segment *seg = &u->segment[s];
    part[parts++] = (ms_plan_part){.count = seg->chunk,
                                   .src.buffer = -1,
                                   .shared = ms_ref_vector(buffer, 4 * seg->local, MS_F32, seg->chunk),
                                   .dst = ms_ref_vector(sum, 4 * seg->local, MS_F32, seg->chunk)};
  }
  if (!rc)
    rc = ms_plan_collective(plan, phase, MS_STREAM_REPLICATE, MS_COLL_ALL_REDUCE, MS_DIM_REPLICATE, 0, unit, parts,
                            part);
  free(part);
  return rc;
}

/* Computes a unit's differences and sums them over the replicas. *sum: where they are; with a delay in the state. */
static int send_unit(ms_plan *plan, int phase, int unit, int *sum) {
  const ms_unit *u = &plan->model->unit[unit];
  const int alone = ms_model_replicas(plan->model) == 1, delayed = plan->config.outer_delay;
  int buffer = ms_state_buffer(unit, MS_SLOT_OUTER_SUM);
  if (!alone || !delayed)
    MS_TRY(ms_plan_buffer(plan, phase, MS_ARENA_COMM, MS_CAT_COMMUNICATION, 4 * u->trainable_count, u->name, &buffer));
  *sum = delayed ? ms_state_buffer(unit, MS_SLOT_OUTER_SUM) : buffer;
  MS_TRY(subtract(plan, phase, unit, buffer));
  return alone ? MS_OK : sum_over_replicas(plan, phase, unit, buffer, *sum);
}

static int sends_in_first(const ms_plan *plan) {
  return plan->config.outer_delay && (plan->config.outer_parts & MS_OUTER_SEND);
}

int ms_outer_send(ms_plan *plan) {
  int sum;
  for (int u = 0; u < plan->model->units && sends_in_first(plan); u++)
    if (ms_outer_has(plan, u)) MS_TRY(send_unit(plan, MS_PHASE_FIRST, u, &sum));
  return MS_OK;
}

void ms_outer_keep(ms_plan *plan) {
  const ms_plan_phase *first = &plan->phase[MS_PHASE_FIRST];
  for (int i = 0; i < first->n && sends_in_first(plan); i++) {
    const ms_plan_coll *coll = first->instr[i].coll;
    if (first->instr[i].kind != MS_INSTR_COLLECTIVE || first->instr[i].stream != MS_STREAM_REPLICATE ||
        coll->dim != MS_DIM_REPLICATE || !ms_outer_has(plan, coll->unit))
      continue;
    ms_plan_touch(plan, coll->part[0].shared.buffer, first->n - 1);
  }
}

/* ---- applying -------------------------------------------------------------------------------------------------------
 */

/* What the unit keeps of its masters in bf16, of all that this rank owns. */
static int copy_unit(ms_plan *plan, int unit) {
  const ms_unit *u = &plan->model->unit[unit];
  for (int s = 0; s < u->segments && !u->segment[s].frozen; s++) {
    const int64_t begin = u->segment[s].local;
    const ms_stretch own = {begin, begin + u->segment[s].chunk};
    MS_TRY(ms_lower_copy(plan, MS_PHASE_OUTER, unit, s, own, u->name));
  }
  return MS_OK;
}

static int apply_unit(ms_plan *plan, int unit, int sum) {
  for (int s = 0; s < stretches(plan, unit); s++) {
    const ms_stretch own = stretch_of(plan, unit, s);
    const ms_ref moved = ms_ref_vector(sum, 4 * own.begin, MS_F32, own.end - own.begin);
    const ms_update_item item = {-1, unit, s, own};
    MS_TRY(ms_lower_update_item(plan, MS_PHASE_OUTER, &ms_outer_step, &item, &moved));
  }
  MS_TRY(copy_unit(plan, unit));
  return plan->config.ema_decay > 0 ? ms_lower_average(plan, MS_PHASE_OUTER, unit) : MS_OK;
}

/* The next unit's differences are sent before a unit's sum is applied, which waits for it. */
int ms_lower_outer(ms_plan *plan) {
  const int sends = !plan->config.outer_delay;
  int before = -1, sum_before = -1;
  if (!(plan->config.outer_parts & MS_OUTER_APPLY)) return MS_OK;
  plan->phase[MS_PHASE_OUTER].present = 1; /* on all ranks, also on one that owns nothing */
  for (int u = 0; u < plan->model->units; u++) {
    if (!ms_outer_has(plan, u)) continue;
    int sum = ms_state_buffer(u, MS_SLOT_OUTER_SUM);
    if (sends) MS_TRY(send_unit(plan, MS_PHASE_OUTER, u, &sum));
    if (before >= 0) MS_TRY(apply_unit(plan, before, sum_before));
    before = u;
    sum_before = sum;
  }
  return before >= 0 ? apply_unit(plan, before, sum_before) : MS_OK;
}

/* ---- memory --------------------------------------------------------------------------------------------------------
 */

static int64_t buffer_bytes(const ms_unit *unit, int64_t alignment) {
  return (4 * unit->trainable_count + alignment - 1) / alignment * alignment;
}

int64_t ms_outer_bytes(const ms_plan *plan, int64_t alignment) {
  const ms_model *model = plan->model;
  int64_t most = 0;
  if (!plan->config.train || plan->config.outer_delay) return 0;
  for (int u = 0; u < model->units; u++) {
    const int fragment = model->unit[u].config.fragment;
    if (!fragment || !model->unit[u].trainable_count) continue;
    int next = u + 1;
    while (next < model->units && (model->unit[next].config.fragment != fragment || !model->unit[next].trainable_count))
      next++;
    int64_t both = buffer_bytes(&model->unit[u], alignment);
    if (next < model->units) both += buffer_bytes(&model->unit[next], alignment);
    if (both > most) most = both;
  }
  return most;
}
