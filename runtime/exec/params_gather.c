/* params_gather.c - whole parameters: gathers elements from the ranks that own them to all ranks, and scatters them
 * back.
 *
 * Elements pass through a window of shared memory that all ranks of the group map, one window's worth per round.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/recorder/flight_recorder.h"
#include "exec/params.h"

/* Elements per round: 32 MiB of shared memory. */
enum { ROUND_ELEMENTS = 8 << 20 };

/* Copies this rank's elements of [begin, end) into window, which begins with element `begin`. */
static int put_owned(ms_state *state, const ms_elements *mine, int64_t begin, int64_t end, float *window) {
  int64_t from = mine->first > begin ? mine->first : begin;
  int64_t to = mine->first + mine->count < end ? mine->first + mine->count : end;
  return to > from ? ms_params_copy_out(state, mine, from - mine->first, to - from, window + (from - begin)) : MS_OK;
}

/* Gathers elements [first, first + count); out NULL: this rank only contributes. */
static int gather(ms_state *state, const ms_elements *mine, int64_t first, int64_t count, float *out) {
  ms_region window;
  int rc = MS_OK;
  int64_t round = count < ROUND_ELEMENTS ? count : ROUND_ELEMENTS, last = first + count;
  MS_TRY(ms_region_map(&state->process_group, (size_t)round * sizeof *out, &window));
  for (int64_t begin = first; begin < last; begin += round) {
    int64_t end = begin + round < last ? begin + round : last;
    /* Replicas hold the same bits, so one of them writes. */
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
static int check_same(ms_state *state, int param, int what, int64_t first, int64_t count) {
  struct asked {
    int64_t first, count;
    int32_t param, what;
  } mine = {first, count, param, what}, *all = ms_calloc(state->process_group.size, sizeof *all);
  int rc = all ? MS_OK : MS_ENOMEM;
  if (!rc) rc = ms_group_all_gather_bytes(&state->process_group, &mine, sizeof mine, all);
  for (int i = 0; !rc && i < state->process_group.size; i++)
    if (all[i].param == param && all[i].what == what && memcmp(&all[i], &mine, sizeof mine))
      rc = MS_FAIL(MS_EMISMATCH, "rank %d gathers other elements of '%s' than rank %d; all ranks gather the same",
                   state->process_group.rank[state->process_group.me], state->model->param[param].name,
                   state->process_group.rank[i]);
    else if (memcmp(&all[i], &mine, sizeof mine))
      rc = MS_FAIL(
          MS_EMISMATCH,
          "rank %d gathers %s of '%s' while rank %d gathers %s of '%s'; all ranks gather the same, in one order",
          state->process_group.rank[state->process_group.me], ms_params_kind_name(what),
          state->model->param[param].name, state->process_group.rank[i], ms_params_kind_name(all[i].what),
          state->model->param[all[i].param].name);
  free(all);
  return rc;
}

int ms_state_gather_range(ms_state *state, int param, int what, int64_t first, int64_t count, float *out) {
  MS_HANDLE(state, STATE);
  ms_elements mine;
  MS_TRY(ms_params_find(state, param, what, &mine));
  const ms_param *p = &state->model->param[param];
  if (first < 0 || count < 1 || first > p->numel || count > p->numel - first)
    return MS_FAIL(
        MS_EINVAL,
        "parameter '%s': cannot gather %lld elements from element %lld: give a range of 1 or more of its %lld", p->name,
        (long long)count, (long long)first, (long long)p->numel);
  if (state->model->shard_size == 1 && !mine.sliced)
    return out ? ms_params_copy_out(state, &mine, first, count, out) : MS_OK;
  ms_recorder *recorder = ms_world_recorder(state->world);
  ms_recorder_enter(recorder, ms_recorder_number(recorder, "gathering a parameter"));
  int rc = check_same(state, param, what, first, count);
  if (!rc) rc = gather(state, &mine, first, count, out);
  ms_recorder_leave(recorder, rc);
  return rc;
}

int ms_state_gather(ms_state *state, int param, int what, float *full) {
  MS_HANDLE(state, STATE);
  ms_elements mine;
  MS_TRY(ms_params_find(state, param, what, &mine));
  return ms_state_gather_range(state, param, what, 0, state->model->param[param].numel, full);
}

/* Every rank copies the elements it owns from each window. The window's first barrier ensures that no peer reads the
 * parameter any more. */
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
      MS_GOTO(ms_params_copy_in(state, mine, first - p->first, last - first, (float *)window.base + (first - begin)));
    if (end < p->numel) MS_GOTO(ms_group_barrier(&state->process_group));
  }
fail:
  ms_region_unmap(&window);
  return rc;
}

int ms_state_scatter(ms_state *state, int param, int from, const float *full) {
  MS_HANDLE(state, STATE);
  ms_elements mine;
  MS_TRY(ms_params_find(state, param, MS_TENSOR_PARAM, &mine));
  if (from < 0 || from >= state->process_group.size)
    return MS_FAIL(MS_EINVAL, "rank %d cannot give a parameter: the model has %d ranks", from,
                   state->process_group.size);
  if (state->process_group.me == from && !full)
    return MS_FAIL(MS_EINVAL, "parameter '%s': this rank scatters it, but full is NULL",
                   state->model->param[param].name);
  ms_recorder *recorder = ms_world_recorder(state->world);
  ms_recorder_enter(recorder, ms_recorder_number(recorder, "scattering a parameter"));
  int rc = scatter(state, &state->model->param[param], from, full, &mine);
  ms_recorder_leave(recorder, rc);
  return rc;
}

int ms_state_write_full(ms_state *state, int param, const float *full) {
  MS_HANDLE(state, STATE);
  MS_GIVEN(full);
  ms_elements mine;
  MS_TRY(ms_params_find(state, param, MS_TENSOR_PARAM, &mine));
  const ms_param *p = &state->model->param[param];
  MS_TRY(ms_group_barrier(&state->process_group));
  return ms_params_copy_in(state, &mine, 0, p->owned, full + p->first);
}
