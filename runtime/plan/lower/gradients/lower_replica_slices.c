/* lower_replica_slices.c - the collectives of sliced units (replica_slices.h): gradients are reduce-scattered over the
 * replicas, and updated weights gathered.
 *
 * Both have one part, which is all slices in a row. The gather of a unit moves weights in the dtype in which the shards
 * gather them in the next step. Afterwards, nothing depends on which replica updated them.
 *
 * Gathers between hosts take longer than everything else in UPDATE, but only the next forward pass reads what they
 * bring, unit by unit, while the links have nothing else to carry. UPDATE therefore leaves them in flight, and FIRST
 * joins each of them before the unit's weights are read. Where replicas of a host share one copy of the chunks, each
 * gathers a part of them, and all meet at the end of UPDATE instead. The streams of an accelerator always end with
 * their phase.
 */
#include "base/numbers/dtype.h"
#include "plan/layout/state_layout.h"
#include "plan/lower/lower.h"

/* A reduce-scatter or an all-gather of the slices that the copies of the state divide: this rank's node slice. */
static int move_slices(ms_plan *plan, int phase, int kind, int unit, ms_ref all, ms_ref src, ms_ref dst,
                       int accumulate) {
  const ms_plan_part part = {.count =
                                 ms_unit_slice_capacity(plan->model, &plan->model->unit[unit], plan->layout->replicas),
                             .src = src,
                             .shared = all,
                             .dst = dst,
                             .accumulate = accumulate};
  return ms_plan_between_copies(plan, phase, kind, unit, 1, &part);
}

int ms_lower_scatter_slices(ms_lowering *l, int unit, const ms_gradients *from, int accumulate) {
  const ms_unit *u = &l->model->unit[unit];
  const int replicas = l->plan->layout->replicas;
  const ms_ref none = {.buffer = -1};
  const ms_ref all = ms_ref_vector(from->buffer, 0, from->dtype, ms_unit_node_slice_capacity(l->model, u, replicas));
  const ms_ref own =
      ms_ref_vector(ms_state_buffer(unit, MS_SLOT_GRADIENT), 0, MS_F32, ms_unit_slice_capacity(l->model, u, replicas));
  MS_TRY(move_slices(l->plan, l->phase, MS_COLL_REDUCE_SCATTER, unit, all, none, own, accumulate));
  ms_plan_touch(l->plan, l->sending[MS_DIM_REPLICATE], l->plan->phase[l->phase].n - 1);
  l->sending[MS_DIM_REPLICATE] = from->buffer;
  return MS_OK;
}

/* The sums of bytes between the segments are of whatever the ranks have there. Only the norm reads whole slices: to
 * clear the gaps here keeps compute from waiting for the sums in backward. */
int ms_lower_clear_slice(ms_plan *plan, int unit) {
  const ms_unit *u = &plan->model->unit[unit];
  int64_t first, n = ms_unit_slice(plan->model, u, plan->layout->replicas, &first), end = first;
  if (!ms_unit_is_sliced(plan->model, u, plan->layout->replicas)) return MS_OK;
  for (int s = 0; s <= u->segments && end < first + n; s++) {
    const ms_segment *seg = &u->segment[s];
    const int last = s == u->segments || seg->frozen;
    const int64_t begin = last || seg->local > first + n ? first + n : seg->local;
    if (begin > end) {
      const ms_ref gap = ms_ref_vector(ms_state_buffer(unit, MS_SLOT_GRADIENT), 4 * (end - first), MS_F32, begin - end);
      const ms_op_attrs attrs = {.out_dtype = 1 + MS_F32, .shape = {.d = {begin - end, 1, 1, 1, 1, 1}, .ndim = 1}};
      MS_TRY(ms_plan_kernel(plan, MS_PHASE_NORM, MS_OP_fill, &attrs, 0, NULL, 1, &gap, u->name, 0));
    }
    if (last) break;
    if (seg->local + seg->chunk > end) end = seg->local + seg->chunk;
  }
  return MS_OK;
}

int ms_lower_weigh_squares(ms_plan *plan, int unit, ms_ref squares) {
  const ms_unit *u = &plan->model->unit[unit];
  const int copies = ms_replica_copies(plan->model, plan->layout->replicas), whole = ms_unit_is_whole(plan->model, u);
  const ms_op_attrs attrs = {.scale = {.alpha = whole ? ms_unit_counts_here(plan->model, u, plan->layout->replicas)
                                                      : copies}},
                    none = {0};
  if (!whole && !ms_unit_is_sliced(plan->model, u, plan->layout->replicas)) return MS_OK;
  MS_TRY(ms_plan_kernel(plan, MS_PHASE_NORM, MS_OP_scale, &attrs, 1, &squares, 1, &squares, u->name, 0));
  if (whole) ms_plan_hash_alike(plan, MS_PHASE_NORM, MS_OP_once, &none);
  return MS_OK;
}

static int is_updated(const ms_plan *plan, const ms_unit *u) {
  for (int i = 0; i < u->params; i++)
    if (!plan->model->param[u->order[i]].config.frozen && plan->has_gradient[u->order[i]]) return 1;
  return 0;
}

/* 1 when FIRST joins the gather of a unit. */
static int stays_in_flight(const ms_plan *plan, int unit) {
  const ms_unit *u = &plan->model->unit[unit];
  return plan->config.optimizer != MS_OPT_NONE && plan->layout->replicas == 1 &&
         !ms_device_can(plan->config.device, MS_DEVICE_ASYNCHRONOUS) &&
         ms_unit_is_sliced(plan->model, u, plan->layout->replicas) && is_updated(plan, u);
}

int ms_lower_join_gathers(ms_plan *plan) {
  for (int u = 0; u < plan->model->units; u++)
    if (stays_in_flight(plan, u)) MS_TRY(ms_plan_join(plan, MS_PHASE_FIRST, MS_STREAM_REPLICATE, u));
  return MS_OK;
}

/* The collective just lowered is what the unit's join waits for. */
static void leave_in_flight(const ms_plan *plan, int unit) {
  const ms_plan_phase *first = &plan->phase[MS_PHASE_FIRST], *update = &plan->phase[MS_PHASE_UPDATE];
  ms_plan_coll *gather = update->instr[update->n - 1].coll;
  ms_instr *join = first->instr;
  while (join->scope != plan->model->unit[unit].name) join++;
  join->coll = gather;
  gather->in_flight = 1;
}

int ms_lower_gather_slices(ms_plan *plan, int unit) {
  const ms_model *model = plan->model;
  const ms_unit *u = &model->unit[unit];
  const int replicas = plan->layout->replicas, weights = ms_unit_has_weights(model, u, replicas);
  if (!ms_unit_is_sliced(model, u, replicas) || !is_updated(plan, u)) return MS_OK;
  const int64_t all = ms_unit_node_slice_capacity(model, u, replicas),
                first = model->dim[MS_DIM_REPLICATE].place % replicas * all;
  const int dtype = weights ? ms_unit_chunk_dtype(u) : MS_F32;
  const ms_ref none = {.buffer = -1};
  const ms_ref chunks = ms_ref_vector(ms_state_buffer(unit, weights ? MS_SLOT_WEIGHTS : MS_SLOT_MASTER),
                                      ms_dtype_size(dtype) * first, dtype, all);
  /* Cast from the masters, unless the update has written the slice. */
  const int casts = weights && !ms_unit_keeps_copies(u);
  const ms_ref own = ms_ref_vector(casts ? ms_state_buffer(unit, MS_SLOT_MASTER) : -1, 0, casts ? MS_F32 : dtype,
                                   ms_unit_slice_capacity(model, u, replicas));
  MS_TRY(move_slices(plan, MS_PHASE_UPDATE, MS_COLL_ALL_GATHER, unit, chunks, own, none, 0));
  if (stays_in_flight(plan, unit)) leave_in_flight(plan, unit);
  return MS_OK;
}
