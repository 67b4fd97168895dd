/* lower_residuals.c - residuals of sums in few bits (error_feedback) in the units of the step that adds them
 * (kernels/formats/residuals.h).
 *
 *   forward's end   the weights of all micro-batches so far, summed over the mesh; nothing where losses have no weights
 *   a first sum     rescale_residuals, before the kernel that adds them to this step's gradients
 *   UPDATE          residual_divisor keeps what the step divided its sums by, with the residuals
 *
 * The total moves while backward's first kernels run. Sums of every micro-batch begin before the last one's weights are
 * known: there the first micro-batch's, times the number of micro-batches, stand for the step's.
 */
#include "plan/layout/residuals.h"
#include "plan/layout/state_layout.h"
#include "plan/lower/lower.h"

/* Whether this phase is the first of a step in which a unit's sums over the shards, or over the replicas, begin. */
static int begins(const ms_lowering *l, int unit, int over_replicas) {
  const int sync = ms_lower_sync(l, unit);
  const int late = over_replicas ? sync != MS_SYNC_EVERY : sync == MS_SYNC_LAST;
  return l->phase == (late ? MS_PHASE_LAST : MS_PHASE_FIRST);
}

static int is_of_replica(const ms_lowering *l, int unit) { return l->model->unit[unit].config.fragment != 0; }

/* Whether units with this scope of their norm, all replicas or one, add residuals in this phase. */
static int are_wanted(const ms_lowering *l, int of_replica) {
  for (int u = 0; u < l->model->units; u++) {
    if (!l->model->unit[u].config.error_feedback || is_of_replica(l, u) != of_replica) continue;
    if (ms_unit_quantises_shards(l->model, u) && begins(l, u, 0)) return 1;
    if (ms_unit_is_quantised(l->model, u) && begins(l, u, 1)) return 1;
  }
  return 0;
}

/* weight: of this micro-batch. */
static int total_of(ms_lowering *l, ms_ref weight, int of_replica) {
  const ms_op_attrs store = {0}, add = {.add = 1};
  const ms_ref earlier = ms_ref_scalar(ms_loss_sum_buffer(l->plan), 4);
  int buffer;
  MS_TRY(ms_plan_buffer(l->plan, l->phase, MS_ARENA_COMM, MS_CAT_COMMUNICATION, 4, "weights", &buffer));
  const ms_ref total = ms_ref_vector(buffer, 0, MS_F32, 1);
  MS_TRY(ms_plan_kernel(l->plan, l->phase, MS_OP_accumulate, &store, 1, &weight, 1, &total, "weights", 0));
  if (l->phase != MS_PHASE_FIRST)
    MS_TRY(ms_plan_kernel(l->plan, l->phase, MS_OP_accumulate, &add, 1, &earlier, 1, &total, "weights", 0));
  MS_TRY(ms_lower_totals(l->plan, l->phase, total, !of_replica));
  l->weights[of_replica] = total;
  return MS_OK;
}

int ms_lower_weights(ms_lowering *l, ms_ref weight) {
  for (int of_replica = 0; of_replica < 2 && l->phase != MS_PHASE_EVALUATE; of_replica++)
    if (are_wanted(l, of_replica)) MS_TRY(total_of(l, weight, of_replica));
  return MS_OK;
}

int ms_lower_rescale(ms_lowering *l, int unit, const ms_segment *seg, int over_replicas, ms_ref rest) {
  const ms_model *model = l->model;
  const int of_replica = is_of_replica(l, unit), weighted = l->weights[of_replica].buffer >= 0;
  const int64_t ranks = (int64_t)ms_model_shards(model) * (of_replica ? 1 : ms_model_replicas(model));
  const int estimate = l->phase == MS_PHASE_FIRST && l->plan->config.accumulate;
  const ms_op_attrs attrs = {.residuals = {.ranks = ranks, .estimate = estimate, .elements = ms_numel(&rest.info)}};
  const ms_ref in[] = {
      ms_ref_vector(ms_state_buffer(unit, MS_SLOT_RESIDUALS), ms_residuals_of_divisor(l->plan, unit, seg), MS_F32, 1),
      l->weights[of_replica]};
  if (!begins(l, unit, over_replicas)) return MS_OK;
  return ms_plan_kernel(l->plan, l->phase, MS_OP_rescale_residuals, &attrs, 1 + weighted, in, 1, &rest,
                        model->unit[unit].name, 1);
}

/* Segments without a gradient in this step leave theirs alone. Neighbours are one kernel. */
int ms_lower_keep_divisors(ms_plan *plan, int unit) {
  const ms_unit *u = &plan->model->unit[unit];
  for (int s = 0, end; s < u->segments && !u->segment[s].frozen; s = end) {
    int adds;
    MS_TRY(ms_residuals_are_added(plan, unit, &u->segment[s], &adds));
    end = s + 1;
    if (!adds || !ms_residuals_bytes(plan->model, unit, plan->layout->inner_shards)) continue;
    for (int more = 1; end < u->segments && !u->segment[end].frozen; end++) {
      MS_TRY(ms_residuals_are_added(plan, unit, &u->segment[end], &more));
      if (!more) break;
    }
    const ms_op_attrs attrs = {.residuals = {.elements = end - s}};
    const ms_ref norm = ms_lower_norm_of(plan, u->order[u->segment[s].first_param]);
    const ms_ref kept = ms_ref_vector(ms_state_buffer(unit, MS_SLOT_RESIDUALS),
                                      ms_residuals_of_divisor(plan, unit, &u->segment[s]), MS_F32, end - s);
    MS_TRY(ms_plan_kernel(plan, MS_PHASE_UPDATE, MS_OP_residual_divisor, &attrs, 1, &norm, 1, &kept, u->name, 0));
  }
  return MS_OK;
}
