/* params.c - access to the elements of parameters that this rank owns: initial values, reads, writes, update counts.
 *
 * An initial value is a pure function of the model's seed, the parameter's name and the element's index, so every mesh
 * shape starts from the same bits.
 */
#include "exec/params.h"

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/slice.h"
#include "shard/initial_values.h"

/* ---- initial values ---- */

/* Draws elements [first, first + count) of the parameter. */
static void draw(const ms_model *model, const ms_param *p, int64_t first, int64_t count, float *x) {
  const ms_param_config *c = &p->config;
  ms_fill_initial_values(model->seed, p->name, c->init, c->init_a, c->init_b, first, count, x);
}

static void *at_state(const ms_state *state, int arena, int64_t unit_offset, int64_t size, const ms_param *p) {
  return ms_state_block(state, arena) + unit_offset + size * p->local;
}

static float *at_master(const ms_state *state, const ms_param *p) {
  int shared = state->layout.unit[p->unit].shared;
  const ms_unit *unit = &state->model->unit[p->unit];
  return (float *)(void *)(ms_state_block(state, ms_state_master_arena(&state->layout, p->unit)) +
                           state->layout.unit[p->unit].master +
                           ms_master_offset(state->model, unit, shared, p->segment, p->local));
}

/* Elements drawn on the host per copy to the device: 4 MiB. */
enum { DRAWN_ELEMENTS = 1 << 20 };

int64_t ms_params_slice(const ms_state *state, const ms_param *p, int64_t *first) {
  const ms_model *model = state->model;
  return ms_slice(p->owned, state->layout.replicas, model->replicate_rank % state->layout.replicas, first);
}

static int draw_parameter(ms_state *state, const ms_param *p, float *drawn) {
  int64_t first, count = ms_params_slice(state, p, &first);
  float *x = at_master(state, p) + first;
  if (!drawn) draw(state->model, p, p->first + first, count, x);
  for (int64_t at = 0; drawn && at < count; at += DRAWN_ELEMENTS) {
    int64_t n = count - at < DRAWN_ELEMENTS ? count - at : DRAWN_ELEMENTS;
    draw(state->model, p, p->first + first + at, n, drawn);
    MS_TRY(ms_state_copy_in(state, x + at, drawn, n * (int64_t)sizeof *x));
  }
  return MS_OK;
}

int ms_params_init(ms_state *state) {
  float *drawn = NULL;
  int rc = MS_OK;
  if (!ms_device_has(state->device, MS_DEVICE_HOST_MEMORY) && !(drawn = ms_calloc(DRAWN_ELEMENTS, sizeof *drawn)))
    return MS_ENOMEM;
  for (int i = 0; i < state->model->params && !rc; i++) {
    const ms_param *p = &state->model->param[i];
    if (p->owned && p->config.init != MS_INIT_ZEROS) rc = draw_parameter(state, p, drawn);
  }
  free(drawn);
  if (rc || state->layout.replicas == 1) return rc;
  return ms_group_barrier(&state->process_group); /* afterwards, all slices are written */
}

/* ---- the owned part ---- */

/* The owned elements that are in the slice of the unit whose gradient this rank sums. */
static void find_gradients(const ms_state *state, const ms_param *p, ms_elements *at) {
  int64_t first, n = ms_unit_slice(state->model, &state->model->unit[p->unit], state->layout.replicas, &first);
  int64_t begin = p->local > first ? p->local : first, end = p->local + p->owned;
  if (first + n < end) end = first + n;
  if (end < begin) end = begin = first;
  at->sliced = state->layout.replicas > 1;
  at->first = end > begin ? p->first + begin - p->local : p->first;
  at->count = end - begin;
  at->data = ms_state_block(state, MS_ARENA_STATE) + state->layout.unit[p->unit].gradient +
             (int64_t)sizeof(float) * (begin - first);
}

/* SGD's momentum is where AdamW has its first moment. */
static const char *const tensor_kinds[MS_TENSOR_KINDS] = {[MS_TENSOR_PARAM] = "param",
                                                          [MS_TENSOR_GRAD] = "grad",
                                                          [MS_TENSOR_EXP_AVG] = "exp_avg (momentum)",
                                                          [MS_TENSOR_EXP_AVG_SQ] = "exp_avg_sq",
                                                          [MS_TENSOR_EMA] = "ema"};

/* In the arena that optimizer state is in; -1: the state has none. */
static int64_t offset_of(const ms_state_layout *layout, int unit, int what) {
  if (what == MS_TENSOR_GRAD) return layout->unit[unit].gradient;
  if (what == MS_TENSOR_EXP_AVG) return layout->unit[unit].moment[0];
  return what == MS_TENSOR_EXP_AVG_SQ ? layout->unit[unit].moment[1] : layout->unit[unit].ema;
}

const char *ms_params_kind_name(int what) { return tensor_kinds[what]; }

int ms_params_find(const ms_state *state, int param, int what, ms_elements *at) {
  if (what < 0 || what >= MS_TENSOR_KINDS)
    return MS_FAIL(MS_EINVAL, "what of a parameter must be one of enum ms_tensor_kind, not %d", what);
  if (param < 0 || param >= state->model->params)
    return MS_FAIL(MS_EINVAL, "parameter %d does not exist; the model has %d", param, state->model->params);
  const ms_param *p = &state->model->param[param];
  int64_t offset;
  int arena = ms_state_optimizer_arena(&state->layout);
  *at = (ms_elements){.dtype = MS_F32, .first = p->first, .count = p->owned};
  if (what == MS_TENSOR_PARAM) {
    at->data = at_master(state, p);
    return MS_OK;
  }
  offset = offset_of(&state->layout, p->unit, what);
  if (offset < 0 || p->config.frozen)
    return MS_FAIL(MS_EINVAL, "parameter '%s' has no %s: %s", p->name, tensor_kinds[what],
                   p->config.frozen ? "it is frozen" : "the state was made for another optimizer, or without training");
  if (what == MS_TENSOR_EXP_AVG || what == MS_TENSOR_EXP_AVG_SQ) at->dtype = state->layout.moment_dtype;
  if (what == MS_TENSOR_GRAD) find_gradients(state, p, at);
  else at->data = at_state(state, arena, offset, ms_dtype_size(at->dtype), p);
  return MS_OK;
}

static void *element(const ms_elements *e, int64_t i) { return (char *)e->data + ms_dtype_size(e->dtype) * i; }

int ms_params_copy_out(const ms_state *state, const ms_elements *from, int64_t first, int64_t count, float *out) {
  const int64_t bytes = ms_dtype_size(from->dtype) * count;
  if (!count) return MS_OK;
  if (from->dtype == MS_F32) return ms_state_copy_out(state, out, element(from, first), bytes);
  void *packed =
      (char *)(out + count) - bytes; /* at the end of `out`, so that widening upwards never overwrites unread input */
  MS_TRY(ms_state_copy_out(state, packed, element(from, first), bytes));
  ms_dtype_row_of(from->dtype)->widen(packed, count, out);
  return MS_OK;
}

int ms_params_copy_in(ms_state *state, const ms_elements *to, int64_t first, int64_t count, const float *values) {
  enum { AT_ONCE = 1 << 18 };
  int rc = MS_OK;
  if (!count) return MS_OK;
  if (to->dtype == MS_F32) return ms_state_copy_in(state, element(to, first), values, count * (int64_t)sizeof *values);
  const ms_dtype_row *row = ms_dtype_row_of(to->dtype);
  void *rounded = ms_calloc(count < AT_ONCE ? count : AT_ONCE, row->info.size);
  if (!rounded) return MS_ENOMEM;
  for (int64_t at = 0; at < count && !rc; at += AT_ONCE) {
    const int64_t n = count - at < AT_ONCE ? count - at : AT_ONCE;
    row->narrow(values + at, n, rounded);
    rc = ms_state_copy_in(state, element(to, first + at), rounded, n * row->info.size);
  }
  free(rounded);
  return rc;
}

int ms_state_shard(ms_state *state, int param, int what, int64_t *first, int64_t *count, float **data) {
  MS_HANDLE(state, STATE);
  MS_GIVEN(first);
  MS_GIVEN(count);
  MS_GIVEN(data);
  ms_elements at;
  void *view;
  MS_TRY(ms_params_find(state, param, what, &at));
  const int64_t bytes = at.count * (int64_t)sizeof **data;
  if (at.dtype == MS_F32) {
    MS_TRY(ms_state_view(state, at.data, bytes, &view));
  } else {
    MS_TRY(ms_state_room(state, bytes, &view));
    MS_TRY(ms_params_copy_out(state, &at, 0, at.count, view));
  }
  *data = view;
  *first = at.first;
  *count = at.count;
  return MS_OK;
}

/* Where elements [first, first + count) lie; they must be owned. */
static int find_owned(const ms_state *state, int param, int what, int64_t first, int64_t count, ms_elements *at) {
  MS_TRY(ms_params_find(state, param, what, at));
  const ms_param *p = &state->model->param[param];
  if (first < at->first || count < 0 || first > at->first + at->count || count > at->first + at->count - first)
    return MS_FAIL(MS_EINVAL,
                   "this rank does not have %lld elements from element %lld on of parameter '%s': it owns %lld from "
                   "%lld on",
                   (long long)count, (long long)first, p->name, (long long)at->count, (long long)at->first);
  at->data = element(at, first - at->first);
  return MS_OK;
}

int ms_state_owned(const ms_state *state, int param, int what, int64_t first, int64_t count, float **at) {
  ms_elements found;
  MS_TRY(find_owned(state, param, what, first, count, &found));
  *at = ms_device_has(state->device, MS_DEVICE_HOST_MEMORY) && found.dtype == MS_F32 ? found.data : NULL;
  return MS_OK;
}

int ms_state_read(const ms_state *state, int param, int what, int64_t first, int64_t count, float *out) {
  MS_HANDLE(state, STATE);
  if (count > 0) MS_GIVEN(out);
  ms_elements at;
  MS_TRY(find_owned(state, param, what, first, count, &at));
  return ms_params_copy_out(state, &at, 0, count, out);
}

int ms_state_write(ms_state *state, int param, int what, int64_t first, int64_t count, const float *values) {
  MS_HANDLE(state, STATE);
  if (count > 0) MS_GIVEN(values);
  ms_elements at;
  MS_TRY(find_owned(state, param, what, first, count, &at));
  return ms_params_copy_in(state, &at, 0, count, values);
}

/* ---- the number of updates of each parameter: an f32 in the STATE arena that kernels increment and read ---- */

/* Exact in f32 up to here. */
static const int64_t MOST_UPDATES = 1 << 24;

static int check_param(const ms_state *state, int param) {
  if (param >= 0 && param < state->model->params) return MS_OK;
  return MS_FAIL(MS_EINVAL, "parameter %d does not exist: the model has %d", param, state->model->params);
}

static char *at_updates(const ms_state *state, int param) {
  return ms_state_block(state, MS_ARENA_STATE) + state->layout.updates + param * (int64_t)sizeof(float);
}

int ms_state_updates(const ms_state *state, int param, int64_t *updates) {
  MS_GIVEN(updates);
  float value;
  MS_HANDLE(state, STATE);
  MS_TRY(check_param(state, param));
  MS_TRY(ms_state_copy_out(state, &value, at_updates(state, param), sizeof value));
  *updates = (int64_t)value;
  return MS_OK;
}

int ms_state_set_updates(ms_state *state, int param, int64_t updates) {
  MS_HANDLE(state, STATE);
  MS_TRY(check_param(state, param));
  if (updates < 0 || updates > MOST_UPDATES)
    return MS_FAIL(MS_EINVAL, "parameter '%s': it cannot have had %lld updates: give a number from 0 to %lld",
                   state->model->param[param].name, (long long)updates, (long long)MOST_UPDATES);
  const float value = (float)updates;
  return ms_state_copy_in(state, at_updates(state, param), &value, sizeof value);
}
