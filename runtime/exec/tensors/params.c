/* params.c - access to the elements of parameters that this rank owns: initial values, reads, writes, update counts.
 *
 * An initial value is a pure function of the model's seed, the parameter's name and the element's index, so every mesh
 * shape starts from the same bits.
 */
#include "exec/tensors/params.h"

#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/numbers/dtype.h"
#include "base/error.h"
#include "base/slice.h"
#include "exec/tensors/tensor_table.h"
#include "kernels/formats/storage.h"
#include "shard/divided.h"
#include "shard/initial_values.h"

/* ---- initial values ---- */

/* Draws elements [first, first + count) of this rank's part of the parameter. */
static void draw(const ms_model *model, const ms_param *p, int64_t first, int64_t count, float *x) {
  const ms_param_config *c = &p->config;
  const ms_division part = ms_param_division(model, p, model->dim[MS_DIM_TENSOR].place);
  for (int64_t n, end = first + count; first < end; first += n, x += n) {
    const int64_t index = ms_division_index(&part, first, &n);
    if (n > end - first) n = end - first;
    ms_fill_initial_values(model->seed, p->name, c->init, c->init_a, c->init_b, index, n, x);
  }
}

/* Elements drawn on the host per copy to the device: 4 MiB. */
enum { DRAWN_ELEMENTS = 1 << 20 };

int64_t ms_params_slice(const ms_state *state, const ms_param *p, int64_t *first) {
  const ms_model *model = state->model;
  const int sharers = ms_unit_sharers(model, &model->unit[p->unit], state->layout.replicas);
  return ms_slice(p->owned, sharers, model->dim[MS_DIM_REPLICATE].place % sharers, first);
}

/* In a sliced unit, every replica draws all that it owns: drawing is cheaper than gathering. Replicas of a host write
 * the same memory then, also of its frozen parameters, so they write only final values, which are equal. The same holds
 * for what is stored in few bits, which is not written in slices. */
static int draw_parameter(ms_state *state, int param, float *drawn) {
  const ms_param *p = &state->model->param[param];
  const int whole =
      ms_unit_is_sliced(state->model, &state->model->unit[p->unit], state->layout.replicas) || ms_param_is_stored(p);
  ms_elements to;
  MS_TRY(ms_params_find_writable(state, param, MS_TENSOR_PARAM, &to));
  int64_t first = 0, count = whole ? p->owned : ms_params_slice(state, p, &first);
  if (!whole && to.data && ms_device_has(state->device, MS_DEVICE_HOST_MEMORY)) {
    draw(state->model, p, p->first + first, count, (float *)to.data + first);
    return MS_OK;
  }
  for (int64_t at = 0; at < count; at += DRAWN_ELEMENTS) {
    int64_t n = count - at < DRAWN_ELEMENTS ? count - at : DRAWN_ELEMENTS;
    draw(state->model, p, p->first + first + at, n, drawn);
    MS_TRY(ms_params_write(state, param, &to, first + at, n, drawn));
  }
  return MS_OK;
}

int ms_params_init(ms_state *state) {
  float *drawn = NULL;
  int rc = MS_OK;
  int in_pieces = state->layout.sliced || !ms_device_has(state->device, MS_DEVICE_HOST_MEMORY);
  for (int i = 0; i < state->model->params; i++)
    in_pieces |= ms_param_is_stored(&state->model->param[i]) || ms_params_has_copy(state, &state->model->param[i]);
  if (in_pieces && !(drawn = ms_calloc(DRAWN_ELEMENTS, sizeof *drawn))) return MS_ENOMEM;
  for (int i = 0; i < state->model->params && !rc; i++) {
    const ms_param *p = &state->model->param[i];
    if (p->owned && p->config.init != MS_INIT_ZEROS) rc = draw_parameter(state, i, drawn);
  }
  free(drawn);
  if (rc || (state->layout.replicas == 1 && !state->layout.sliced)) return rc;
  return ms_group_barrier(&state->process_group); /* afterwards, all of what replicas share is written */
}

/* ---- the owned part ---- */

int ms_params_find_writable(ms_state *state, int param, int what, ms_elements *at) {
  MS_TRY(ms_state_settle(state));
  MS_TRY(ms_params_find(state, param, what, at));
  const ms_param *p = &state->model->param[param];
  if (ms_tensor_rows[what].slot != MS_SLOT_MASTER) return MS_OK;
  ms_resident_note(state, param);
  if (what != MS_TENSOR_PARAM) return MS_OK;
  if (ms_params_has_copy(state, p)) at->data = NULL;
  if (!at->sliced) return MS_OK;
  if (ms_params_find_weights(state, p, at)) at->data = NULL;
  return MS_OK;
}

int ms_params_write(ms_state *state, int param, const ms_elements *to, int64_t first, int64_t count,
                    const float *values) {
  const ms_param *p = &state->model->param[param];
  ms_elements master, weights;
  if (to->data) return ms_params_copy_in(state, to, first, count, values);
  MS_TRY(ms_params_find(state, param, MS_TENSOR_PARAM, &master));
  ms_params_find_weights(state, p, &weights);
  MS_TRY(ms_params_copy_in(state, &weights, first, count, values));
  const int64_t begin = to->first + first > master.first ? to->first + first : master.first;
  int64_t end = to->first + first + count;
  if (master.first + master.count < end) end = master.first + master.count;
  if (end <= begin) return MS_OK;
  return ms_params_copy_in(state, &master, begin - master.first, end - begin, values + (begin - to->first - first));
}

/* Checks that elements [first, first + count) are among those that were found. */
static int check_found(const ms_state *state, int param, const ms_elements *at, int64_t first, int64_t count) {
  const ms_param *p = &state->model->param[param];
  if (first < at->first || count < 0 || first > at->first + at->count || count > at->first + at->count - first)
    return MS_FAIL(MS_EINVAL,
                   "this rank does not have %lld elements from element %lld on of parameter '%s': it owns %lld from "
                   "%lld on",
                   (long long)count, (long long)first, p->name, (long long)at->count, (long long)at->first);
  return MS_OK;
}

/* Finds a tensor of which this rank owns elements [first, first + count). */
static int find_owned(const ms_state *state, int param, int what, int64_t first, int64_t count, ms_elements *at) {
  MS_TRY(ms_params_find(state, param, what, at));
  return check_found(state, param, at, first, count);
}

static float *in_host_memory(const ms_state *state, const ms_elements *e, int64_t i) {
  const int there = e->data && e->dtype == MS_F32 && ms_device_has(state->device, MS_DEVICE_HOST_MEMORY);
  return there ? (float *)e->data + i : NULL;
}

int ms_state_writable(ms_state *state, int param, int what, int64_t first, int64_t count, float **at) {
  ms_elements found;
  MS_TRY(ms_params_find_writable(state, param, what, &found));
  MS_TRY(check_found(state, param, &found, first, count));
  *at = in_host_memory(state, &found, first - found.first);
  return MS_OK;
}

int ms_state_owned(const ms_state *state, int param, int what, int64_t first, int64_t count, float **at) {
  ms_elements found;
  MS_TRY(find_owned(state, param, what, first, count, &found));
  *at = in_host_memory(state, &found, first - found.first);
  return MS_OK;
}

int ms_state_read(const ms_state *state, int param, int what, int64_t first, int64_t count, float *out) {
  MS_HANDLE(state, STATE);
  if (count > 0) MS_GIVEN(out);
  ms_elements at;
  MS_TRY(find_owned(state, param, what, first, count, &at));
  return ms_params_copy_out(state, &at, first - at.first, count, out);
}

int ms_state_write(ms_state *state, int param, int what, int64_t first, int64_t count, const float *values) {
  MS_HANDLE(state, STATE);
  if (count > 0) MS_GIVEN(values);
  ms_elements at;
  MS_TRY(ms_params_find_writable(state, param, what, &at));
  MS_TRY(check_found(state, param, &at, first, count));
  return ms_params_write(state, param, &at, first - at.first, count, values);
}

/* ---- the number of updates of each parameter: an f32 in the STATE arena that kernels increment and read ---- */

/* Exact in f32 up to here. */
static const int64_t MAX_UPDATES = 1 << 24;

static int check_param(const ms_state *state, int param) {
  if (param >= 0 && param < state->model->params) return MS_OK;
  return MS_FAIL(MS_EINVAL, "parameter %d does not exist: the model has %d", param, state->model->params);
}

static char *at_updates(const ms_state *state, int param) {
  return ms_state_block(state, MS_ARENA_STATE) + state->layout.updates + param * (int64_t)sizeof(float);
}

int ms_state_describe(const ms_state *state, int param, int what, ms_tensor_info *info, int size) {
  MS_HANDLE(state, STATE);
  MS_GIVEN(info);
  ms_elements at;
  float updates;
  MS_TRY(ms_params_find(state, param, what, &at));
  MS_TRY(ms_state_copy_out(state, &updates, at_updates(state, param), sizeof updates));
  const ms_model *model = state->model;
  ms_tensor_info own = {.first = at.first,
                        .count = at.count,
                        .sliced = at.sliced,
                        .part = ms_param_division(model, &model->param[param], model->dim[MS_DIM_TENSOR].place),
                        .updates = (int64_t)updates};
  MS_GIVE_INFO(info, size, own);
}

int ms_state_set_updates(ms_state *state, int param, int64_t updates) {
  MS_HANDLE(state, STATE);
  MS_TRY(check_param(state, param));
  if (updates < 0 || updates > MAX_UPDATES)
    return MS_FAIL(MS_EINVAL, "parameter '%s': it cannot have had %lld updates: give a number from 0 to %lld",
                   state->model->param[param].name, (long long)updates, (long long)MAX_UPDATES);
  const float value = (float)updates;
  return ms_state_copy_in(state, at_updates(state, param), &value, sizeof value);
}
