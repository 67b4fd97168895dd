/* params.c - parameters as elements: initial values, the shard that a rank owns, and the whole, gathered.
**
** An initial value is a pure function of the model's seed, the parameter's name and the element's index, so every mesh
** shape starts from the same bits.
*/
#include "exec/params.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/slice.h"
#include "comm/recorder/flight_recorder.h"
#include "shard/initial_values.h"

/* ---- initial values ---- */

/* Elements [first, first + count) of the parameter. */
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

/* Elements that are drawn on the host before they go to the device: 4 MiB. */
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
  return ms_group_barrier(&state->process_group); /* nobody else's slice is written once this rank goes on */
}

/* ---- the owned part ---- */

/* What of a parameter's owned elements lies in the slice of its unit that this rank sums. */
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

int ms_params_find(const ms_state *state, int param, const char *what, ms_elements *at) {
  if (param < 0 || param >= state->model->params)
    return MS_FAIL(MS_EINVAL, "parameter %d does not exist; the model has %d", param, state->model->params);
  const ms_param *p = &state->model->param[param];
  int64_t offset;
  int arena = ms_state_optimizer_arena(&state->layout);
  *at = (ms_elements){.dtype = MS_F32, .first = p->first, .count = p->owned};
  if (!strcmp(what, "param")) {
    at->data = at_master(state, p);
    return MS_OK;
  }
  if (!strcmp(what, "grad")) offset = state->layout.unit[p->unit].gradient;
  else if (!strcmp(what, "exp_avg")) offset = state->layout.unit[p->unit].exp_avg;
  else if (!strcmp(what, "exp_avg_sq")) offset = state->layout.unit[p->unit].exp_avg_sq;
  else if (!strcmp(what, "ema")) offset = state->layout.unit[p->unit].ema;
  else return MS_FAIL(MS_ENAME, "'%s' of a parameter: it must be param, grad, exp_avg, exp_avg_sq or ema", what);
  if (offset < 0 || p->config.frozen)
    return MS_FAIL(MS_EINVAL, "parameter '%s' has no %s: %s", p->name, what,
                   p->config.frozen ? "it is frozen" : "the state was made for another optimizer, or without training");
  if (!strncmp(what, "exp_avg", 7)) at->dtype = state->layout.moment_dtype;
  if (!strcmp(what, "grad")) find_gradients(state, p, at);
  else at->data = at_state(state, arena, offset, ms_dtype_size(at->dtype), p);
  return MS_OK;
}

static void *element(const ms_elements *e, int64_t i) { return (char *)e->data + ms_dtype_size(e->dtype) * i; }

/* Elements [first, first + count), as f32. */
static int copy_out(const ms_state *state, const ms_elements *from, int64_t first, int64_t count, float *out) {
  const int64_t bytes = ms_dtype_size(from->dtype) * count;
  if (!count) return MS_OK;
  if (from->dtype == MS_F32) return ms_state_copy_out(state, out, element(from, first), bytes);
  ms_bf16 *half =
      (ms_bf16 *)(void *)out + count; /* the second half of their place, from which they are widened upwards */
  MS_TRY(ms_state_copy_out(state, half, element(from, first), bytes));
  for (int64_t i = 0; i < count; i++) {
    const float x = ms_bf16_to_f32(half[i]);
    memcpy(out + i, &x, sizeof x);
  }
  return MS_OK;
}

/* bf16 elements are the nearest to what is given. */
static int copy_in(ms_state *state, const ms_elements *to, int64_t first, int64_t count, const float *values) {
  enum { AT_ONCE = 1 << 18 };
  int rc = MS_OK;
  if (!count) return MS_OK;
  if (to->dtype == MS_F32) return ms_state_copy_in(state, element(to, first), values, count * (int64_t)sizeof *values);
  ms_bf16 *rounded = ms_calloc(count < AT_ONCE ? count : AT_ONCE, sizeof *rounded);
  if (!rounded) return MS_ENOMEM;
  for (int64_t at = 0; at < count && !rc; at += AT_ONCE) {
    const int64_t n = count - at < AT_ONCE ? count - at : AT_ONCE;
    for (int64_t i = 0; i < n; i++) rounded[i] = ms_f32_to_bf16(values[at + i]);
    rc = ms_state_copy_in(state, element(to, first + at), rounded, n * (int64_t)sizeof *rounded);
  }
  free(rounded);
  return rc;
}

int ms_state_shard(ms_state *state, int param, const char *what, double *first, double *count, float **data) {
  MS_HANDLE(state, STATE);
  ms_elements at;
  void *view;
  MS_TRY(ms_params_find(state, param, what, &at));
  const int64_t bytes = at.count * (int64_t)sizeof **data;
  if (at.dtype == MS_F32) {
    MS_TRY(ms_state_view(state, at.data, bytes, &view));
  } else {
    MS_TRY(ms_state_room(state, bytes, &view));
    MS_TRY(copy_out(state, &at, 0, at.count, view));
  }
  *data = view;
  *first = (double)at.first;
  *count = (double)at.count;
  return MS_OK;
}

/* Where elements [first, first + count) lie; they must be owned. */
static int find_owned(const ms_state *state, int param, const char *what, int64_t first, int64_t count,
                      ms_elements *at) {
  MS_TRY(ms_params_find(state, param, what, at));
  const ms_param *p = &state->model->param[param];
  if (first < at->first || count < 0 || first > at->first + at->count || count > at->first + at->count - first)
    return MS_FAIL(MS_EINVAL, "elements %lld to %lld of parameter '%s': this rank owns %lld from %lld",
                   (long long)first, (long long)(first + count), p->name, (long long)at->count, (long long)at->first);
  at->data = element(at, first - at->first);
  return MS_OK;
}

int ms_state_owned(const ms_state *state, int param, const char *what, int64_t first, int64_t count, float **at) {
  ms_elements found;
  MS_TRY(find_owned(state, param, what, first, count, &found));
  *at = ms_device_has(state->device, MS_DEVICE_HOST_MEMORY) && found.dtype == MS_F32 ? found.data : NULL;
  return MS_OK;
}

int ms_state_read(const ms_state *state, int param, const char *what, int64_t first, int64_t count, float *out) {
  MS_HANDLE(state, STATE);
  ms_elements at;
  MS_TRY(find_owned(state, param, what, first, count, &at));
  return copy_out(state, &at, 0, count, out);
}

int ms_state_write(ms_state *state, int param, const char *what, int64_t first, int64_t count, const float *values) {
  MS_HANDLE(state, STATE);
  ms_elements at;
  MS_TRY(find_owned(state, param, what, first, count, &at));
  return copy_in(state, &at, 0, count, values);
}

int ms_state_set(ms_state *state, int param, const float *full) {
  MS_HANDLE(state, STATE);
  ms_elements mine;
  MS_TRY(ms_params_find(state, param, "param", &mine));
  const ms_param *p = &state->model->param[param];
  MS_TRY(ms_group_barrier(&state->process_group));
  return copy_in(state, &mine, 0, p->owned, full + p->first);
}

void ms_hash(const void *data, double bytes, double *hash) {
  uint64_t of_all = ms_hash_bytes(MS_HASH_INIT, data, (size_t)bytes);
  hash[0] = (double)(of_all >> 32);
  hash[1] = (double)(of_all & 0xffffffffu);
}

/* ---- the whole ---- */

/* Elements that one round of a gather moves through shared memory: 32 MiB. */
enum { ROUND_ELEMENTS = 8 << 20 };

/* This rank's elements of [begin, end) into window, which starts at element begin. */
static int put_owned(ms_state *state, const ms_elements *mine, int64_t begin, int64_t end, float *window) {
  int64_t from = mine->first > begin ? mine->first : begin;
  int64_t to = mine->first + mine->count < end ? mine->first + mine->count : end;
  return to > from ? copy_out(state, mine, from - mine->first, to - from, window + (from - begin)) : MS_OK;
}

/* Elements [first, first + count); out NULL: this rank only gives. */
static int gather(ms_state *state, const ms_elements *mine, int64_t first, int64_t count, float *out) {
  ms_region window;
  int rc = MS_OK;
  int64_t round = count < ROUND_ELEMENTS ? count : ROUND_ELEMENTS, last = first + count;
  MS_TRY(ms_region_map(&state->process_group, (size_t)round * sizeof *out, &window));
  for (int64_t begin = first; begin < last; begin += round) {
    int64_t end = begin + round < last ? begin + round : last;
    /* Of replicas that hold the same bits one is enough. */
    if (mine->sliced || state->model->replicate_rank == 0) MS_GOTO(put_owned(state, mine, begin, end, window.base));
    MS_GOTO(ms_group_barrier(&state->process_group));
    if (out) memcpy(out + (begin - first), window.base, (size_t)(end - begin) * sizeof *out);
    if (end < last) MS_GOTO(ms_group_barrier(&state->process_group));
  }
fail:
  ms_region_unmap(&window);
  return rc;
}

/* Ranks that ask for different parameters, or parts of one, would be given a mixture of them. */
static int check_same(ms_state *state, int param, const char *what, int64_t first, int64_t count) {
  struct asked {
    int64_t first, count;
    int32_t param;
    char what[12];
  } mine = {first, count, param, {0}}, *all = ms_calloc(state->process_group.size, sizeof *all);
  int rc = all ? MS_OK : MS_ENOMEM;
  snprintf(mine.what, sizeof mine.what, "%s", what);
  if (!rc) rc = ms_group_all_gather_bytes(&state->process_group, &mine, sizeof mine, all);
  for (int i = 0; !rc && i < state->process_group.size; i++)
    if (all[i].param == param && !strcmp(all[i].what, mine.what) && memcmp(&all[i], &mine, sizeof mine))
      rc = MS_FAIL(MS_EMISMATCH, "rank %d gathers other elements of '%s' than rank %d; all ranks gather the same",
                   state->process_group.rank[state->process_group.me], state->model->param[param].name,
                   state->process_group.rank[i]);
    else if (memcmp(&all[i], &mine, sizeof mine))
      rc = MS_FAIL(
          MS_EMISMATCH,
          "rank %d gathers %s of '%s' while rank %d gathers %s of '%s'; all ranks gather the same, in one order",
          state->process_group.rank[state->process_group.me], what, state->model->param[param].name,
          state->process_group.rank[i], all[i].what, state->model->param[all[i].param].name);
  free(all);
  return rc;
}

int ms_state_gather_range(ms_state *state, int param, const char *what, int64_t first, int64_t count, float *out) {
  MS_HANDLE(state, STATE);
  ms_elements mine;
  MS_TRY(ms_params_find(state, param, what, &mine));
  const ms_param *p = &state->model->param[param];
  if (first < 0 || count < 1 || first > p->numel || count > p->numel - first)
    return MS_FAIL(MS_EINVAL,
                   "parameter '%s': %lld elements from element %lld: it has %lld, and 1 at least is gathered", p->name,
                   (long long)count, (long long)first, (long long)p->numel);
  if (state->model->shard_size == 1 && !mine.sliced) return out ? copy_out(state, &mine, first, count, out) : MS_OK;
  ms_recorder *recorder = ms_world_recorder(state->world);
  ms_recorder_enter(recorder, ms_recorder_number(recorder, "gathering a parameter"));
  int rc = check_same(state, param, what, first, count);
  if (!rc) rc = gather(state, &mine, first, count, out);
  ms_recorder_leave(recorder, rc);
  return rc;
}

int ms_state_gather(ms_state *state, int param, const char *what, float *full) {
  MS_HANDLE(state, STATE);
  ms_elements mine;
  MS_TRY(ms_params_find(state, param, what, &mine));
  return ms_state_gather_range(state, param, what, 0, state->model->param[param].numel, full);
}

/* Every rank takes what it owns of each window: it is written when no peer reads the parameter any more, which the window's
** first barrier says. */
static int scatter(ms_state *state, const ms_param *p, int from, const float *full, const ms_elements *mine) {
  ms_region window;
  int rc = MS_OK;
  int64_t round = p->numel < ROUND_ELEMENTS ? p->numel : ROUND_ELEMENTS;
  MS_TRY(ms_region_map(&state->process_group, (size_t)round * sizeof *full, &window));
  for (int64_t begin = 0; begin < p->numel; begin += round) {
    int64_t end = begin + round < p->numel ? begin + round : p->numel;
    if (state->process_group.me == from) memcpy(window.base, full + begin, (size_t)(end - begin) * sizeof *full);
    MS_GOTO(ms_group_barrier(&state->process_group));
    int64_t first = p->first > begin ? p->first : begin;
    int64_t last = p->first + p->owned < end ? p->first + p->owned : end;
    if (last > first)
      MS_GOTO(copy_in(state, mine, first - p->first, last - first, (float *)window.base + (first - begin)));
    if (end < p->numel) MS_GOTO(ms_group_barrier(&state->process_group));
  }
fail:
  ms_region_unmap(&window);
  return rc;
}

int ms_state_scatter(ms_state *state, int param, int from, const float *full) {
  MS_HANDLE(state, STATE);
  ms_elements mine;
  MS_TRY(ms_params_find(state, param, "param", &mine));
  if (from < 0 || from >= state->process_group.size)
    return MS_FAIL(MS_EINVAL, "rank %d of the model's %d ranks shall give a parameter", from,
                   state->process_group.size);
  if (state->process_group.me == from && !full)
    return MS_FAIL(MS_EINVAL, "parameter '%s': the rank that gives it gave nothing", state->model->param[param].name);
  ms_recorder *recorder = ms_world_recorder(state->world);
  ms_recorder_enter(recorder, ms_recorder_number(recorder, "scattering a parameter"));
  int rc = scatter(state, &state->model->param[param], from, full, &mine);
  ms_recorder_leave(recorder, rc);
  return rc;
}
