/* slots.c - the rows of the table of slots: where each is, and how many bytes. */
#include "plan/layout/slots.h"

#include "plan/layout/factors.h"
#include "plan/layout/moment_layout.h"
#include "plan/layout/residuals.h"
#include "plan/layout/state_layout.h"

static const ms_unit *unit_of(const ms_slot_owner *of) { return &of->model->unit[of->unit]; }

/* ---- arenas ------------------------------------------------------------------------------------------------------ */

static int private_arena(const ms_model *model, const ms_state_layout *layout, int unit) {
  (void)model;
  (void)layout;
  (void)unit;
  return MS_ARENA_STATE;
}

static int optimizer_arena(const ms_model *model, const ms_state_layout *layout, int unit) {
  const ms_unit *u = &model->unit[unit];
  if (ms_unit_is_sliced(model, u, layout->replicas)) return MS_ARENA_STATE;
  return ms_unit_sharers(model, u, layout->replicas) > 1 ? MS_ARENA_REPLICATED : MS_ARENA_STATE;
}

static int master_arena(const ms_model *model, const ms_state_layout *layout, int unit) {
  const ms_unit *u = &model->unit[unit];
  if (layout->unit[unit].shared) return MS_ARENA_MASTERS;
  if (ms_unit_is_sliced(model, u, layout->replicas) && !ms_unit_has_weights(model, u, layout->replicas))
    return MS_ARENA_CHUNKS;
  return optimizer_arena(model, layout, unit);
}

static int weights_arena(const ms_model *model, const ms_state_layout *layout, int unit) {
  if (ms_unit_is_sliced(model, &model->unit[unit], layout->replicas)) return MS_ARENA_CHUNKS;
  return optimizer_arena(model, layout, unit);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static int64_t master_bytes(const ms_slot_owner *of) {
  if (of->layout->unit[of->unit].shared) return unit_of(of)->gathered_bytes;
  return ms_unit_master_bytes(of->model, unit_of(of), of->layout->replicas);
}

static int64_t weights_bytes(const ms_slot_owner *of) {
  const int64_t bytes = ms_unit_weights_bytes(of->model, unit_of(of), of->layout->replicas);
  return bytes && !of->layout->unit[of->unit].shared ? bytes : -1;
}

static int64_t gradient_bytes(const ms_slot_owner *of) {
  const int64_t room = ms_unit_slice_room(of->model, unit_of(of), of->layout->replicas);
  return of->config->train && room ? 4 * room : -1;
}

/* Of trainable elements that this rank updates or shares. */
static int64_t moment_bytes(const ms_slot_owner *of, ms_moment moment) {
  const int64_t bytes = ms_moment_room(of->model, unit_of(of), of->layout->replicas, moment);
  return unit_of(of)->trainable_count && (bytes || moment.index < moment.kept) ? bytes : -1;
}

static int64_t first_moment_bytes(const ms_slot_owner *of) {
  return of->layout->optimizer != MS_OPT_NONE ? moment_bytes(of, ms_moment_of(of->layout, 0)) : -1;
}

static int64_t second_moment_bytes(const ms_slot_owner *of) {
  return of->layout->optimizer != MS_OPT_NONE ? moment_bytes(of, ms_moment_of(of->layout, 1)) : -1;
}

static int64_t ema_bytes(const ms_slot_owner *of) {
  const int averaged = of->config->train && of->config->ema_decay > 0;
  return averaged ? moment_bytes(of, (ms_moment){.dtype = MS_F32, .kept = 1}) : -1;
}

/* What local SGD keeps; replicas do not share it. */
static int64_t synced_bytes(const ms_slot_owner *of) {
  const ms_unit *u = unit_of(of);
  return of->config->train && u->config.fragment && u->trainable_count ? 4 * u->trainable_count : -1;
}

static int64_t outer_momentum_bytes(const ms_slot_owner *of) {
  return of->config->outer_momentum != 0 ? synced_bytes(of) : -1;
}

static int64_t outer_sum_bytes(const ms_slot_owner *of) { return of->config->outer_delay ? synced_bytes(of) : -1; }

static int64_t factor_bytes(const ms_slot_owner *of) {
  const int64_t factors = ms_unit_factors(of->model, unit_of(of), of->layout->optimizer);
  return factors ? 4 * factors : -1;
}

static int64_t residual_bytes(const ms_slot_owner *of) {
  const int64_t bytes = of->config->train ? ms_residuals_bytes(of->model, of->unit, of->layout->inner_shards) : 0;
  return bytes ? bytes : -1;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

const ms_slot_row ms_slots[MS_SLOTS] = {
    [MS_SLOT_MASTER] = {MS_CAT_PARAMETERS, 0, master_arena, master_bytes},
    [MS_SLOT_WEIGHTS] = {MS_CAT_PARAMETERS, 0, weights_arena, weights_bytes},
    [MS_SLOT_GRADIENT] = {MS_CAT_GRADIENTS, 1, private_arena, gradient_bytes},
    [MS_SLOT_MOMENT] = {MS_CAT_OPTIMIZER, 2, optimizer_arena, first_moment_bytes},
    [MS_SLOT_MOMENT + 1] = {MS_CAT_OPTIMIZER, 2, optimizer_arena, second_moment_bytes},
    [MS_SLOT_EMA] = {MS_CAT_OPTIMIZER, 3, optimizer_arena, ema_bytes},
    [MS_SLOT_SYNCED] = {MS_CAT_OPTIMIZER, 4, private_arena, synced_bytes},
    [MS_SLOT_OUTER_MOMENTUM] = {MS_CAT_OPTIMIZER, 4, private_arena, outer_momentum_bytes},
    [MS_SLOT_OUTER_SUM] = {MS_CAT_OPTIMIZER, 4, private_arena, outer_sum_bytes},
    [MS_SLOT_FACTORS] = {MS_CAT_OPTIMIZER, 5, private_arena, factor_bytes},
    [MS_SLOT_RESIDUALS] = {MS_CAT_OPTIMIZER, 6, private_arena, residual_bytes},
};
