/* slots.c - the rows of the table of slots: where each is, how many bytes it has, and in which form. */
#include "plan/layout/slots.h"

#include "base/min.h"
#include "base/numbers/dtype.h"
#include "plan/layout/factors.h"
#include "plan/layout/moment_layout.h"
#include "plan/layout/replica_slices.h"
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
  const int64_t room = ms_unit_slice_capacity(of->model, unit_of(of), of->layout->replicas);
  return of->config->train && room ? 4 * room : -1;
}

/* Of trainable elements that this rank updates or shares. */
static int64_t moment_bytes(const ms_slot_owner *of, int index) {
  const int64_t bytes = ms_moment_bytes(of->model, of->layout, unit_of(of), index);
  return unit_of(of)->trainable_count && (bytes || index < of->layout->optimizer[MS_OPT_NONE].moments) ? bytes : -1;
}

static int64_t ema_bytes(const ms_slot_owner *of) {
  const ms_unit *u = unit_of(of);
  const int sliced = ms_unit_is_sliced(of->model, u, of->layout->replicas);
  const int64_t slice = sliced ? ms_unit_slice_capacity(of->model, u, of->layout->replicas) : u->trainable_count;
  return of->config->train && of->config->ema_decay > 0 && slice ? 4 * ms_min(slice, u->trainable_count) : -1;
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
  const int64_t factors = ms_unit_factors(of->model, of->layout, unit_of(of));
  return factors ? 4 * factors : -1;
}

static int64_t residual_bytes(const ms_slot_owner *of) {
  const int64_t bytes = of->config->train ? ms_residuals_bytes(of->model, of->unit, of->layout->inner_shards) : 0;
  return bytes ? bytes : -1;
}

/* ---- where elements are, and in which form ------------------------------------------------------------------------
 */

static int64_t master_at(const ms_model *model, const ms_state_layout *layout, int unit, int s, int64_t local) {
  return ms_master_offset(model, &model->unit[unit], layout->replicas, layout->unit[unit].shared, s, local);
}

static int64_t weights_at(const ms_model *model, const ms_state_layout *layout, int unit, int s, int64_t local) {
  int dtype;
  return ms_weights_offset(model, &model->unit[unit], layout->replicas, s, local, &dtype);
}

static int64_t gradient_at(const ms_model *model, const ms_state_layout *layout, int unit, int s, int64_t local) {
  int64_t first;
  (void)s;
  ms_unit_slice(model, &model->unit[unit], layout->replicas, &first);
  return 4 * (local - first);
}

static int64_t element_at(const ms_model *model, const ms_state_layout *layout, int unit, int s, int64_t local) {
  return ms_unit_is_sliced(model, &model->unit[unit], layout->replicas) ? gradient_at(model, layout, unit, s, local)
                                                                        : 4 * local;
}

static int64_t factors_at(const ms_model *model, const ms_state_layout *layout, const ms_param *p) {
  return 4 * ms_param_factors_first(model, layout, p);
}

static ms_slot_form elements_of(int dtype) { return (ms_slot_form){dtype, MS_ELEMENTS, 1, 1}; }

static ms_slot_form master_form(const ms_model *model, const ms_state_layout *layout, int unit, int s) {
  const ms_storage *storage = &model->unit[unit].segment[s].storage;
  (void)layout;
  if (!ms_storage_is_coded(storage->dtype)) return elements_of(storage->dtype);
  return (ms_slot_form){storage->dtype, MS_STORED_RECORDS, storage->elements, storage->words};
}

static ms_slot_form weights_form(const ms_model *model, const ms_state_layout *layout, int unit, int s) {
  const ms_unit *u = &model->unit[unit];
  if (!ms_unit_has_weights(model, u, layout->replicas)) return elements_of(u->segment[s].wire);
  return u->segment[s].frozen ? master_form(model, layout, unit, s) : elements_of(ms_unit_chunk_dtype(u));
}

static ms_slot_form moment_form(const ms_model *model, const ms_state_layout *layout, int unit, int s, int records) {
  const ms_moment_form *form = ms_moment_form_for(layout, &model->unit[unit].segment[s]);
  return form->block ? (ms_slot_form){form->in_state, records, form->block, form->words} : elements_of(form->in_state);
}

ms_slot_form ms_slot_form_of(const ms_model *model, const ms_state_layout *layout, int slot, int unit, int s) {
  return ms_slots[slot].form ? ms_slots[slot].form(model, layout, unit, s) : elements_of(MS_F32);
}

/* ---- which parameters it has ---------------------------------------------------------------------------------------
 */

static int has_any(const ms_state_layout *layout, const ms_param *p) {
  (void)layout;
  (void)p;
  return 1;
}

static int has_moment(const ms_state_layout *layout, const ms_param *p, int index) {
  return !p->config.frozen && index < layout->optimizer[ms_param_chosen(p)].moments;
}

int ms_slot_has(const ms_state_layout *layout, int slot, const ms_param *p) {
  const ms_slot_row *row = &ms_slots[slot];
  return layout->unit[p->unit].at[slot] >= 0 && (row->has ? row->has(layout, p) : !p->config.frozen);
}

/* ---- moments: the functions above for each ----------------------------------------------------------------------- */

#define MOMENT_FUNCTIONS(index, TENSOR, name, records)                                                          \
  static int64_t bytes_of_##TENSOR(const ms_slot_owner *of) { return moment_bytes(of, index); }                 \
  static int64_t at_in_##TENSOR(const ms_model *model, const ms_state_layout *layout, int unit, int s,          \
                                int64_t local) {                                                                \
    (void)s;                                                                                                    \
    return ms_moment_offset(model, layout, &model->unit[unit], index, local);                                   \
  }                                                                                                             \
  static ms_slot_form form_of_##TENSOR(const ms_model *model, const ms_state_layout *layout, int unit, int s) { \
    return moment_form(model, layout, unit, s, records);                                                        \
  }                                                                                                             \
  static int has_##TENSOR(const ms_state_layout *layout, const ms_param *p) { return has_moment(layout, p, index); }
MS_EACH_MOMENT(MOMENT_FUNCTIONS)

/* ---- the table --------------------------------------------------------------------------------------------------- */

#define MOMENT_ROW(index, TENSOR, name, records)                                                              \
  [MS_SLOT_MOMENT + index] = {MS_CAT_OPTIMIZER, 2,    MS_RANK_HAS_MASTER, optimizer_arena, bytes_of_##TENSOR, \
                              at_in_##TENSOR,   NULL, form_of_##TENSOR,   has_##TENSOR},

/* Category, turn, rank_has, arena, bytes; at, whole_at, form, has. */
const ms_slot_row ms_slots[MS_SLOTS] = {
    [MS_SLOT_MASTER] = {MS_CAT_PARAMETERS, 0, MS_RANK_HAS_MASTER, master_arena, master_bytes, master_at, NULL,
                        master_form, has_any},
    [MS_SLOT_WEIGHTS] = {MS_CAT_PARAMETERS, 0, MS_RANK_HAS_CHUNK, weights_arena, weights_bytes, weights_at, NULL,
                         weights_form, has_any},
    [MS_SLOT_GRADIENT] = {MS_CAT_GRADIENTS, 1, MS_RANK_HAS_SLICE, private_arena, gradient_bytes, gradient_at},
    [MS_SLOT_EMA] = {MS_CAT_OPTIMIZER, 3, MS_RANK_HAS_MASTER, optimizer_arena, ema_bytes, element_at},
    [MS_SLOT_SYNCED] = {MS_CAT_OPTIMIZER, 4, MS_RANK_HAS_MASTER, private_arena, synced_bytes, element_at},
    [MS_SLOT_OUTER_MOMENTUM] = {MS_CAT_OPTIMIZER, 4, MS_RANK_HAS_MASTER, private_arena, outer_momentum_bytes,
                                element_at},
    [MS_SLOT_OUTER_SUM] = {MS_CAT_OPTIMIZER, 4, MS_RANK_HAS_MASTER, private_arena, outer_sum_bytes, element_at},
    [MS_SLOT_FACTORS] = {MS_CAT_OPTIMIZER, 5, MS_RANK_HAS_WHOLE, private_arena, factor_bytes, NULL, factors_at, NULL,
                         ms_param_has_factors},
    [MS_SLOT_RESIDUALS] = {MS_CAT_OPTIMIZER, 6, MS_RANK_HAS_UNIT, private_arena, residual_bytes},
    MS_EACH_MOMENT(MOMENT_ROW)};
