/* tensor_table.c - the rows of the table of tensors, and where this rank has its elements of each. */
#include "exec/tensors/tensor_table.h"

#include "base/error.h"
#include "base/numbers/dtype.h"
#include "exec/tensors/stored.h"
#include "kernels/formats/storage.h"
#include "plan/layout/factors.h"
#include "plan/layout/replica_slices.h"
#include "shard/divided.h"

/* ---- the table --------------------------------------------------------------------------------------------------- */

static int64_t row_averages(const ms_model *model, const ms_param *p) {
  const ms_factored f = ms_factored_param(model, p);
  return f.matrices ? ms_factored_row_count(&f) : 0;
}

static int64_t column_averages(const ms_model *model, const ms_param *p) {
  const ms_factored f = ms_factored_param(model, p);
  return ms_factored_column_count(&f);
}

static int64_t variances(const ms_model *model, const ms_param *p) {
  const ms_factored f = ms_factored_param(model, p);
  return f.matrices ? 0 : ms_factored_row_count(&f);
}

#define OF_ADAFACTOR "adafactor keeps row_var and col_var of parameters with two axes or more, and variance of others"

#define MOMENT_ROW(index, TENSOR, text, records) [MS_TENSOR_##TENSOR] = {.name = text, .slot = MS_SLOT_MOMENT + index},

const ms_tensor_row ms_tensor_rows[MS_TENSOR_KINDS] = {
    [MS_TENSOR_PARAM] = {.name = "param", .slot = MS_SLOT_MASTER},
    [MS_TENSOR_GRAD] = {.name = "grad", .slot = MS_SLOT_GRADIENT},
    [MS_TENSOR_EMA] = {.name = "ema",
                       .slot = MS_SLOT_EMA,
                       .starts = MS_STARTS_AS_WEIGHTS,
                       .starts_with = MS_TENSOR_EMA},
    [MS_TENSOR_SYNCED] = {.name = "synced weights",
                          .slot = MS_SLOT_SYNCED,
                          .starts = MS_STARTS_AS_WEIGHTS,
                          .starts_with = MS_TENSOR_SYNCED,
                          .follows = 1},
    [MS_TENSOR_OUTER_MOMENTUM] = {.name = "outer momentum",
                                  .slot = MS_SLOT_OUTER_MOMENTUM,
                                  .starts = MS_STARTS_AT_ZERO,
                                  .starts_with = MS_TENSOR_SYNCED},
    [MS_TENSOR_OUTER_SUM] = {.name = "outer sum",
                             .slot = MS_SLOT_OUTER_SUM,
                             .starts = MS_STARTS_AT_ZERO,
                             .starts_with = MS_TENSOR_SYNCED,
                             .follows = 1},
    [MS_TENSOR_STORED] = {.name = "stored form", .slot = MS_SLOT_MASTER, .in_words = 1},
    [MS_TENSOR_ROW_VAR] = {.name = "row_var",
                           .slot = MS_SLOT_FACTORS,
                           .elements = row_averages,
                           .otherwise = OF_ADAFACTOR},
    [MS_TENSOR_COL_VAR] = {.name = "col_var",
                           .slot = MS_SLOT_FACTORS,
                           .elements = column_averages,
                           .otherwise = OF_ADAFACTOR},
    [MS_TENSOR_VARIANCE] = {.name = "variance",
                            .slot = MS_SLOT_FACTORS,
                            .elements = variances,
                            .otherwise = OF_ADAFACTOR},
    MS_EACH_MOMENT(MOMENT_ROW)};

int64_t ms_tensor_elements(const ms_model *model, int param, int what) {
  const ms_param *p = &model->param[param];
  return ms_tensor_is_whole(what) ? ms_tensor_rows[what].elements(model, p) : ms_param_whole_numel(model, p);
}

ms_division ms_tensor_part(const ms_model *model, int param, int what, int place) {
  if (!ms_tensor_is_whole(what)) return ms_param_division(model, &model->param[param], place);
  const int64_t whole = ms_tensor_elements(model, param, what);
  return (ms_division){.run = whole, .stride = whole};
}

/* ---- where elements are ------------------------------------------------------------------------------------------ */

int ms_params_is_sliced(const ms_state *state, const ms_param *p) {
  return ms_param_is_sliced(state->model, p, state->layout.replicas);
}

/* The start of a unit's slot. */
static char *start_of(const ms_state *state, int unit, int slot) {
  return ms_state_block(state, ms_state_arena(state->model, &state->layout, unit, slot)) +
         state->layout.unit[unit].at[slot];
}

/* This rank's elements of a parameter in a slot that has elements of chunks. rank_has: as if its row said so. */
static void find_in(const ms_state *state, const ms_param *p, int slot, int rank_has, ms_elements *at) {
  const ms_model *model = state->model;
  const ms_state_layout *layout = &state->layout;
  const ms_slot_form form = ms_slot_form_of(model, layout, slot, p->unit, p->segment);
  const int is_slice = rank_has == MS_RANK_HAS_SLICE, is_sliced = ms_params_is_sliced(state, p);
  *at = (ms_elements){.data = start_of(state, p->unit, slot),
                      .dtype = form.dtype,
                      .records = form.records,
                      .storage = form.records == MS_STORED_RECORDS ? &p->storage : NULL,
                      .param = (int)(p - model->param),
                      .first = p->first,
                      .count = p->owned,
                      .sliced = rank_has != MS_RANK_HAS_CHUNK && is_sliced};
  if (at->sliced || is_slice) {
    int64_t place;
    at->count = ms_param_slice(model, p, layout->replicas, &at->first, &place);
  }
  if (is_slice) at->sliced |= ms_unit_sharers(model, &model->unit[p->unit], layout->replicas) > 1;
  if (at->count)
    at->data =
        (char *)at->data + ms_slots[slot].at(model, layout, p->unit, p->segment, p->local + at->first - p->first);
}

static int has_weights(const ms_state *state, const ms_param *p) {
  return ms_segment_has_weights(state->model, &state->model->unit[p->unit], state->layout.replicas, p->segment);
}

int ms_params_has_copy(const ms_state *state, const ms_param *p) {
  return has_weights(state, p) &&
         !ms_unit_is_sliced(state->model, &state->model->unit[p->unit], state->layout.replicas);
}

int ms_params_find_weights(const ms_state *state, const ms_param *p, ms_elements *at) {
  const int has = has_weights(state, p);
  find_in(state, p, has ? MS_SLOT_WEIGHTS : MS_SLOT_MASTER, MS_RANK_HAS_CHUNK, at);
  return has;
}

/* What ranks have whole, after what the slot has of the parameter before it. */
static void find_whole(const ms_state *state, const ms_param *p, int what, ms_elements *at) {
  const ms_model *model = state->model;
  const int slot = ms_tensor_rows[what].slot;
  int64_t before = 0;
  for (int i = 0; i < what; i++)
    if (ms_tensor_rows[i].slot == slot) before += ms_tensor_rows[i].elements(model, p);
  *at = (ms_elements){.data = start_of(state, p->unit, slot) + ms_slots[slot].whole_at(model, &state->layout, p) +
                              (int64_t)sizeof(float) * before,
                      .dtype = MS_F32,
                      .param = (int)(p - model->param),
                      .count = ms_tensor_rows[what].elements(model, p)};
}

/* Makes of found records the words that they consist of, which are moved as f32 values are. */
static int count_words(const ms_state *state, const ms_param *p, ms_elements *at) {
  MS_TRY(ms_stored_check_finished(state, at->param));
  at->dtype = MS_F32;
  at->records = MS_ELEMENTS;
  at->first = ms_storage_words(&p->storage, p->first);
  at->count = ms_storage_words(&p->storage, p->owned);
  return MS_OK;
}

static int refuse(const ms_state *state, const ms_param *p, const ms_tensor_row *row) {
  const int lacks = state->layout.unit[p->unit].at[row->slot] < 0;
  const char *why = row->in_words    ? ms_dtype_name(p->config.storage_dtype)
                    : row->otherwise ? row->otherwise
                    : lacks          ? "the state was made for another optimizer, or without training"
                                     : "its optimizer does not keep it";
  if (p->config.frozen && !row->in_words) why = "it is frozen";
  return MS_FAIL(MS_EINVAL, "parameter '%s' has no %s: %s%s", p->name, row->name, row->in_words ? "it is kept in " : "",
                 why);
}

int ms_params_find(const ms_state *state, int param, int what, ms_elements *at) {
  if (what < 0 || what >= MS_TENSOR_KINDS)
    return MS_FAIL(MS_EINVAL, "what of a parameter must be one of enum ms_tensor_kind, not %d", what);
  if (param < 0 || param >= state->model->params)
    return MS_FAIL(MS_EINVAL, "parameter %d does not exist; the model has %d", param, state->model->params);
  const ms_param *p = &state->model->param[param];
  const ms_tensor_row *row = &ms_tensor_rows[what];
  if (!ms_slot_has(&state->layout, row->slot, p) || (row->elements && !row->elements(state->model, p)) ||
      (row->in_words && !ms_storage_is_coded(p->config.storage_dtype)))
    return refuse(state, p, row);
  /* Frozen parameters of a sliced unit are among its weights, if it has any. */
  const int among_weights = row->slot == MS_SLOT_MASTER && p->config.frozen && !ms_params_has_copy(state, p);
  if (row->elements) find_whole(state, p, what, at);
  else if (among_weights) ms_params_find_weights(state, p, at);
  else find_in(state, p, row->slot, ms_slots[row->slot].rank_has, at);
  at->what = what;
  return row->in_words ? count_words(state, p, at) : MS_OK;
}
