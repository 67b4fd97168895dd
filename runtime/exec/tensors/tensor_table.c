/* tensor_table.c - the rows of the table of tensors, and where this rank has its elements of each. */
#include "exec/tensors/tensor_table.h"

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "exec/tensors/moments.h"
#include "exec/tensors/stored.h"
#include "kernels/formats/storage.h"

int ms_params_is_sliced(const ms_state *state, const ms_param *p) {
  return ms_param_is_sliced(state->model, p, state->layout.replicas);
}

/* The start of a unit's slot. */
static char *at_slot(const ms_state *state, int unit, int slot) {
  return ms_state_block(state, ms_state_arena(state->model, &state->layout, unit, slot)) +
         state->layout.unit[unit].at[slot];
}

/* This rank's slice of the parameter; *place: where it begins in the rank's slice of the unit. */
static void take_slice(const ms_state *state, const ms_param *p, ms_elements *at, int64_t *place) {
  at->count = ms_param_slice(state->model, p, state->layout.replicas, &at->first, place);
}

/* ---- masters ----------------------------------------------------------------------------------------------------- */

void *ms_params_at_master(const ms_state *state, const ms_param *p, int64_t local) {
  const ms_unit *unit = &state->model->unit[p->unit];
  const int shared = state->layout.unit[p->unit].shared;
  return at_slot(state, p->unit, MS_SLOT_MASTER) +
         ms_master_offset(state->model, unit, state->layout.replicas, shared, p->segment, local);
}

static int find_master(const ms_state *state, const ms_param *p, const ms_tensor_row *row, ms_elements *at) {
  int64_t place;
  (void)row;
  if (at->sliced) take_slice(state, p, at, &place);
  else if (!ms_params_has_copy(state, p)) ms_params_find_weights(state, p, at);
  if (!at->data) at->data = ms_params_at_master(state, p, p->local + (at->sliced ? at->first - p->first : 0));
  if (ms_param_is_stored(p)) {
    at->dtype = p->config.storage_dtype;
    at->storage = &p->storage;
  }
  return MS_OK;
}

/* The words of the records that this rank keeps. */
static int find_records(const ms_state *state, const ms_param *p, const ms_tensor_row *row, ms_elements *at) {
  if (!ms_storage_is_coded(p->config.storage_dtype))
    return MS_FAIL(MS_EINVAL, "parameter '%s' has no %s: it is kept in %s", p->name, row->name,
                   ms_dtype_name(p->config.storage_dtype));
  MS_TRY(ms_stored_check_finished(state, at->param));
  MS_TRY(find_master(state, p, row, at));
  at->dtype = MS_F32; /* words are moved as f32 values are */
  at->first = p->first / p->storage.elements * p->storage.words;
  at->count = ms_storage_words(&p->storage, p->owned);
  return MS_OK;
}

/* ---- gradients, and what optimizers and averages keep of trainable elements ---- */

static int check_kept(const ms_state *state, const ms_param *p, const ms_tensor_row *row, int kept) {
  if (kept && state->layout.unit[p->unit].at[row->slot] >= 0 && !p->config.frozen) return MS_OK;
  return MS_FAIL(MS_EINVAL, "parameter '%s' has no %s: %s", p->name, row->name,
                 p->config.frozen ? "it is frozen" : "the state was made for another optimizer, or without training");
}

/* An f32 for each element. Replicas that share one copy of the state have gradients of their slices alone. */
static int find_elements(const ms_state *state, const ms_param *p, const ms_tensor_row *row, ms_elements *at) {
  const int gradient = row->slot == MS_SLOT_GRADIENT;
  int64_t place = p->local;
  MS_TRY(check_kept(state, p, row, 1));
  if (at->sliced || gradient) take_slice(state, p, at, &place);
  if (gradient) at->sliced |= ms_unit_sharers(state->model, &state->model->unit[p->unit], state->layout.replicas) > 1;
  at->data = at_slot(state, p->unit, row->slot) + (int64_t)sizeof(float) * place;
  return MS_OK;
}

static int find_moment(const ms_state *state, const ms_param *p, const ms_tensor_row *row, ms_elements *at) {
  const ms_state_layout *layout = &state->layout;
  int64_t place;
  MS_TRY(check_kept(state, p, row, ms_slot_has(layout, row->slot, p)));
  if (at->sliced) take_slice(state, p, at, &place);
  const ms_slot_form form = ms_slot_form_of(state->model, layout, row->slot, p->unit, p->segment);
  at->dtype = form.records ? MS_U8 : form.dtype;
  if (form.records) at->records = form.records;
  at->data = at_slot(state, p->unit, row->slot) +
             ms_slots[row->slot].at(state->model, layout, p->unit, p->segment, p->local + at->first - p->first);
  return MS_OK;
}

static int find_factors(const ms_state *state, const ms_param *p, const ms_tensor_row *row, ms_elements *at) {
  if (ms_params_find_factors(state, at->param, (int)(row - ms_tensor_rows), at)) return MS_OK;
  return MS_FAIL(MS_EINVAL,
                 "parameter '%s' has no %s: adafactor keeps row_var and col_var of parameters with two axes or more, "
                 "and variance of others, if they train",
                 p->name, row->name);
}

/* ---- the table ---- */

/* SGD's momentum is where AdamW has its first moment. */
const ms_tensor_row ms_tensor_rows[MS_TENSOR_KINDS] = {
    [MS_TENSOR_PARAM] = {.name = "param", .slot = MS_SLOT_MASTER, .find = find_master},
    [MS_TENSOR_GRAD] = {.name = "grad", .slot = MS_SLOT_GRADIENT, .find = find_elements},
    [MS_TENSOR_EXP_AVG] = {.name = "exp_avg (momentum)", .slot = MS_SLOT_MOMENT, .find = find_moment},
    [MS_TENSOR_EXP_AVG_SQ] = {.name = "exp_avg_sq", .slot = MS_SLOT_MOMENT + 1, .find = find_moment},
    [MS_TENSOR_EMA] = {.name = "ema", .slot = MS_SLOT_EMA, .find = find_elements},
    [MS_TENSOR_SYNCED] = {.name = "synced weights", .slot = MS_SLOT_SYNCED, .find = find_elements},
    [MS_TENSOR_OUTER_MOMENTUM] = {.name = "outer momentum", .slot = MS_SLOT_OUTER_MOMENTUM, .find = find_elements},
    [MS_TENSOR_OUTER_SUM] = {.name = "outer sum", .slot = MS_SLOT_OUTER_SUM, .find = find_elements},
    [MS_TENSOR_STORED] = {.name = "stored form", .slot = MS_SLOT_MASTER, .in_words = 1, .find = find_records},
    [MS_TENSOR_ROW_VAR] = {.name = "row_var", .slot = MS_SLOT_FACTORS, .is_whole = 1, .find = find_factors},
    [MS_TENSOR_COL_VAR] = {.name = "col_var", .slot = MS_SLOT_FACTORS, .is_whole = 1, .find = find_factors},
    [MS_TENSOR_VARIANCE] = {.name = "variance", .slot = MS_SLOT_FACTORS, .is_whole = 1, .find = find_factors},
};

int ms_params_find(const ms_state *state, int param, int what, ms_elements *at) {
  if (what < 0 || what >= MS_TENSOR_KINDS)
    return MS_FAIL(MS_EINVAL, "what of a parameter must be one of enum ms_tensor_kind, not %d", what);
  if (param < 0 || param >= state->model->params)
    return MS_FAIL(MS_EINVAL, "parameter %d does not exist; the model has %d", param, state->model->params);
  const ms_param *p = &state->model->param[param];
  *at = (ms_elements){
      .dtype = MS_F32, .param = param, .first = p->first, .count = p->owned, .sliced = ms_params_is_sliced(state, p)};
  return ms_tensor_rows[what].find(state, p, &ms_tensor_rows[what], at);
}
