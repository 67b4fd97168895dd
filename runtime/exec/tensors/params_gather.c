/* params_gather.c - whole parameters: gathers elements from the ranks that own them to all ranks, and scatters them
 * back.
 *
 * The ranks that hold one copy of the state gather it among themselves: each fills its chunk of a window that the ranks
 * of its host map, one window's worth per round. Replicas with copies of their own hold the same bits, so they send
 * nothing to each other. Replicas have different elements of sliced units (plan/layout/replica_slices.h), and the ranks
 * of a tensor dimension have different elements of a divided parameter: these are gathered by all ranks, or, if
 * replicas take local steps, by all ranks of this replica.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/min.h"
#include "base/slice.h"
#include "comm/collectives/comm.h"
#include "comm/recorder/flight_recorder.h"
#include "exec/state/host_memory.h"
#include "exec/tensors/params.h"
#include "exec/tensors/stored.h"
#include "exec/tensors/tensor_table.h"
#include "shard/divided.h"

/* Elements of a window: 16 MiB. A rank fills one of two windows while its peers can still read the other. */
enum { WINDOW_ELEMENTS = 4 << 20, WINDOWS = 2 };

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* The part of a tensor that a place in the tensor dimension has: elements, or words of a stored form. */
static ms_division division_of(const ms_model *model, int param, int what, int place) {
  const ms_storage *storage = &model->param[param].storage;
  const ms_division part = ms_tensor_part(model, param, what, place);
  if (!ms_tensor_in_words(what)) return part;
  return (ms_division){.run = ms_storage_words(storage, part.run),
                       .stride = ms_storage_words(storage, part.stride),
                       .origin = ms_storage_words(storage, part.origin)};
}

/* The elements, or words, of the whole tensor. */
static int64_t whole_of(const ms_model *model, int param, int what) {
  const int64_t elements = ms_tensor_elements(model, param, what);
  return ms_tensor_in_words(what) ? ms_storage_words(&model->param[param].storage, elements) : elements;
}

/* What a rank asks for, and which elements of it this rank gives. */
typedef struct request {
  int64_t first, count;
  int32_t param, what;
  int64_t gives, given; /* elements [gives, gives + given) of its part of the parameter */
  int32_t place, pad;   /* in the tensor dimension */
} request;

static int is_same(const request *a, const request *b) {
  return a->first == b->first && a->count == b->count && a->param == b->param && a->what == b->what;
}

/* Ranks that ask for different parameters, or parts of one, would be given a mixture of them. */
static int check_same(const ms_state *state, const request *mine, const request *all) {
  const ms_group *group = state->replica;
  for (int i = 0; i < group->size; i++) {
    if (is_same(&all[i], mine)) continue;
    if (all[i].param == mine->param && all[i].what == mine->what)
      return MS_FAIL(MS_EMISMATCH, "rank %d gathers other elements of '%s' than rank %d; all ranks gather the same",
                     group->rank[group->me], state->model->param[mine->param].name, group->rank[i]);
    return MS_FAIL(
        MS_EMISMATCH,
        "rank %d gathers %s of '%s' while rank %d gathers %s of '%s'; all ranks gather the same, in one order",
        group->rank[group->me], ms_tensor_rows[mine->what].name, state->model->param[mine->param].name, group->rank[i],
        ms_tensor_rows[all[i].what].name, state->model->param[all[i].param].name);
  }
  return MS_OK;
}

/* ---- gathering ---- */

typedef struct gathering {
  ms_state *state;
  ms_comm *comm;
  int of_all; /* 1: comm has all ranks of the group `replica`; 0: those of this rank's copy of the state */
  const ms_elements *mine;
  const request *wanted;
  request *sender; /* [n] of the communicator's ranks */
  int n;
  int64_t chunk; /* elements that a rank gives in a round */
  ms_region region;
  float *window; /* [WINDOWS][n][chunk] */
  void **shared; /* [n], as a collective wants it */
} gathering;

/* Elements of a rank in a round; *at: the first, of its part of the parameter. */
static int64_t in_round(const gathering *g, int p, int64_t round, int64_t *at) {
  const request *r = &g->sender[p];
  *at = r->gives + round * g->chunk;
  return most(0, ms_min(g->chunk, r->gives + r->given - *at));
}

/* Puts n elements that a rank gives, from `at` of its part on, where they belong among the wanted ones. */
static void put(const gathering *g, const request *sender, int64_t at, int64_t n, const float *given, float *out) {
  const ms_model *model = g->state->model;
  const ms_division part = division_of(model, g->wanted->param, g->wanted->what, sender->place);
  for (int64_t run, end = at + n; at < end; at += run, given += run) {
    const int64_t index = ms_division_index(&part, at, &run);
    run = ms_min(run, end - at);
    memcpy(out + (index - g->wanted->first), given, (size_t)run * sizeof *out);
  }
}

static int run_round(gathering *g, int64_t round, float *out) {
  float *window = g->window + round % WINDOWS * g->n * g->chunk;
  const int me = ms_comm_rank(g->comm);
  int64_t at, n = in_round(g, me, round, &at);
  if (n) MS_TRY(ms_params_copy_out(g->state, g->mine, at - g->mine->first, n, window + me * g->chunk));
  for (int p = 0; p < g->n; p++) g->shared[p] = window;
  const ms_coll_part part = {.count = g->chunk, .src_dtype = MS_F32, .dst_dtype = MS_F32, .shared = g->shared};
  const ms_coll coll = {.kind = MS_COLL_ALL_GATHER, .parts = 1, .part = &part, .label = "whole parameter"};
  MS_TRY(ms_comm_start(g->comm, &coll));
  MS_TRY(ms_comm_wait(g->comm));
  for (int p = 0; out && p < g->n; p++) {
    n = in_round(g, p, round, &at);
    put(g, &g->sender[p], at, n, window + p * g->chunk, out);
  }
  return MS_OK;
}

/* Each copy of the state has a window on each host. Replicas that differ need not meet: each maps windows of its own.
 */
static int open_window(gathering *g) {
  const ms_state *state = g->state;
  const ms_dim_group *tensor = &state->model->dim[MS_DIM_TENSOR];
  const int of_replica = state->replica == &state->own_replica;
  int windows = of_replica ? tensor->size : ms_host_memory_windows(state);
  int mine = of_replica ? tensor->place : ms_host_memory_window_of(state);
  if (g->of_all) windows = 1, mine = 0;
  const int64_t one = WINDOWS * g->n * g->chunk;
  MS_TRY(ms_region_map(state->replica_here, (size_t)(one * windows) * sizeof *g->window, &g->region));
  g->window = (float *)g->region.base + one * mine;
  return MS_OK;
}

/* The ranges that the communicator's ranks give, from those of all ranks. Returns the length of the longest. */
static int64_t find_senders(gathering *g, const request *all) {
  const ms_group *group = g->state->replica;
  int64_t longest = 0;
  for (int p = 0; p < g->n; p++)
    for (int i = 0; i < group->size; i++)
      if (group->rank[i] == ms_comm_ranks(g->comm)[p]) {
        g->sender[p] = all[i];
        longest = most(longest, all[i].given);
      }
  return longest;
}

/* 1 when all ranks that gather a parameter have elements of it that others lack. */
static int is_of_all(const ms_state *state, const ms_param *p) {
  return ms_params_is_sliced(state, p) || ms_param_is_divided(state->model, p);
}

/* out NULL: this rank only contributes. */
static int gather(ms_state *state, const ms_elements *mine, const request *wanted, const request *all, float *out) {
  int rc = MS_OK;
  gathering g = {.state = state, .mine = mine, .wanted = wanted};
  g.of_all = is_of_all(state, &state->model->param[wanted->param]);
  MS_TRY(g.of_all ? ms_state_open_group(state, state->replica, &g.comm) : ms_state_open_copy(state, &g.comm));
  g.n = ms_comm_size(g.comm);
  g.sender = ms_calloc(g.n, sizeof *g.sender);
  g.shared = ms_calloc(g.n, sizeof *g.shared);
  if (!g.sender || !g.shared) MS_GOTO(MS_ENOMEM);
  const int64_t longest = find_senders(&g, all);
  g.chunk = most(1, ms_min(longest, WINDOW_ELEMENTS / g.n));
  MS_GOTO(open_window(&g));
  for (int64_t round = 0; round * g.chunk < longest; round++) MS_GOTO(run_round(&g, round, out));
fail:
  ms_region_unmap(&g.region);
  free(g.sender);
  free((void *)g.shared);
  return rc;
}

/* Which of the wanted elements this rank gives: where replicas share one copy, only those of its slice; where each has
 * all that another has, and every rank gathers, the first replica's. */
static void find_given(const ms_state *state, const ms_param *p, const ms_elements *mine, request *r) {
  const ms_model *model = state->model;
  const ms_dim_group *replicate = &model->dim[MS_DIM_REPLICATE];
  const ms_unit *unit = &model->unit[p->unit];
  const int replicas = ms_unit_sharers(model, unit, state->layout.replicas);
  int64_t first = 0, n = mine->count;
  if (!mine->sliced) n = ms_slice(mine->count, replicas, replicate->place % replicas, &first);
  r->place = model->dim[MS_DIM_TENSOR].place;
  const ms_division part = division_of(model, r->param, r->what, r->place);
  r->gives = most(mine->first + first, ms_division_below(&part, r->first));
  const int64_t end = ms_division_below(&part, r->first + r->count);
  r->given = most(0, ms_min(mine->first + first + n, end) - r->gives);
  const int again = state->replica == &state->process_group && !mine->sliced && replicate->place >= replicas;
  if ((again || !ms_unit_counts_here(model, unit, 1)) && is_of_all(state, p)) r->given = 0;
}

static int gather_range(ms_state *state, const ms_elements *mine, request *wanted, float *out) {
  ms_group *group = state->replica;
  request *all = ms_calloc(group->size, sizeof *all);
  if (!all) return MS_ENOMEM;
  find_given(state, &state->model->param[wanted->param], mine, wanted);
  int rc = ms_group_all_gather_bytes(group, wanted, sizeof *wanted, all);
  if (!rc) rc = check_same(state, wanted, all);
  if (!rc) rc = gather(state, mine, wanted, all, out);
  free(all);
  return rc;
}

int ms_state_gather(ms_state *state, int param, int what, int64_t first, int64_t count, float *out) {
  MS_HANDLE(state, STATE);
  ms_elements mine;
  MS_TRY(ms_params_find(state, param, what, &mine));
  const ms_param *p = &state->model->param[param];
  const int64_t whole = whole_of(state->model, param, what);
  if (count == -1 && first >= 0 && first < whole) count = whole - first;
  if (first < 0 || count < 1 || first > whole || count > whole - first)
    return MS_FAIL(
        MS_EINVAL,
        "parameter '%s': cannot gather %lld elements from element %lld: give a range of 1 or more of its %lld", p->name,
        (long long)count, (long long)first, (long long)whole);
  const int alone =
      ms_unit_shards(&state->model->unit[p->unit]) == 1 && !mine.sliced && !ms_param_is_divided(state->model, p);
  if (alone || ms_tensor_is_whole(what)) return out ? ms_params_copy_out(state, &mine, first, count, out) : MS_OK;
  ms_recorder *recorder = ms_world_recorder(state->world);
  ms_recorder_enter(recorder, ms_recorder_number(recorder, "train:parameter, which all ranks call"));
  request wanted = {.first = first, .count = count, .param = param, .what = what};
  int rc = gather_range(state, &mine, &wanted, out);
  ms_recorder_leave(recorder, rc);
  return rc;
}

/* ---- scattering ---- */

/* The rank that scatters lays elements into a window that the ranks of its host read; the others receive them. */
typedef struct scattering {
  ms_state *state;
  ms_comm *comm; /* NULL: this rank trains the model alone */
  int from;
  ms_region window;
  float *room;   /* [WINDOW_ELEMENTS] on the ranks that receive */
  void **shared; /* [ranks], as a collective wants it */
} scattering;

static int broadcast(const scattering *s, const float *full, int64_t count) {
  const int sends = s->state->process_group.me == s->from;
  if (sends) memcpy(s->window.base, full, (size_t)count * sizeof *full);
  const ms_coll_part part = {
      .count = count, .src_dtype = MS_F32, .dst_dtype = MS_F32, .shared = s->shared, .dst = sends ? NULL : s->room};
  const ms_coll coll = {
      .kind = MS_COLL_BROADCAST, .parts = 1, .part = &part, .root = s->from, .label = "whole parameter"};
  MS_TRY(ms_comm_start(s->comm, &coll));
  return ms_comm_wait(s->comm);
}

static int open_scattering(scattering *s, int64_t count) {
  const ms_group *group = &s->state->process_group;
  if (group->size == 1) return MS_OK;
  MS_TRY(ms_state_open_group(s->state, group, &s->comm));
  s->shared = ms_calloc(group->size, sizeof *s->shared);
  if (group->me != s->from) s->room = ms_calloc(count, sizeof *s->room);
  if (!s->shared || (group->me != s->from && !s->room)) return MS_ENOMEM;
  MS_TRY(ms_region_map(s->state->host, (size_t)count * sizeof *s->room, &s->window));
  for (int i = 0; i < group->size; i++) s->shared[i] = s->window.base;
  return MS_OK;
}

static int clear(ms_state *state, const ms_elements *to, int64_t first, int64_t count) {
  static const float zeros[1024];
  for (int64_t n, end = first + count; first < end; first += n) {
    n = ms_min((int64_t)(sizeof zeros / sizeof zeros[0]), end - first);
    MS_TRY(ms_params_copy_in(state, to, first, n, zeros));
  }
  return MS_OK;
}

/* Starts again what follows a parameter (ms_tensor_row.follows), at owned elements counted from the first one: so the
 * next outer step of local SGD does not undo that weights were overwritten. The point of the last sync becomes what is
 * written, and a sum that is not applied yet was of what the weights had moved before. */
static int write_followers(ms_state *state, int param, int64_t first, int64_t count, const float *values) {
  const ms_param *p = &state->model->param[param];
  for (int what = 0; what < MS_TENSOR_KINDS; what++) {
    ms_elements to;
    if (!ms_tensor_rows[what].follows || !ms_slot_has(&state->layout, ms_tensor_rows[what].slot, p)) continue;
    MS_TRY(ms_params_find(state, param, what, &to));
    if (ms_tensor_rows[what].starts == MS_STARTS_AT_ZERO) MS_TRY(clear(state, &to, first, count));
    else MS_TRY(ms_params_copy_in(state, &to, first, count, values));
  }
  return MS_OK;
}

int ms_params_take(ms_state *state, int param, const ms_elements *mine, int64_t begin, int64_t end,
                   const float *given) {
  const ms_model *model = state->model;
  const ms_param *p = &model->param[param];
  const ms_division part = ms_param_division(model, p, model->dim[MS_DIM_TENSOR].place);
  int64_t at = most(p->first, ms_division_below(&part, begin)), n;
  const int64_t last = ms_min(p->first + p->owned, ms_division_below(&part, end));
  for (; at < last; at += n) {
    const float *from = given + (ms_division_index(&part, at, &n) - begin);
    n = ms_min(n, last - at);
    MS_TRY(ms_params_write(state, param, mine, at - p->first, n, from));
    if (!ms_progress_has(state, MS_AVERAGES_SWAPPED)) MS_TRY(write_followers(state, param, at - p->first, n, from));
  }
  return MS_OK;
}

/* Every rank copies the elements it owns. The barrier ensures that no peer reads the parameter any more. */
static int scatter(ms_state *state, int param, int from, const float *full, const ms_elements *mine) {
  int rc = MS_OK;
  const int64_t whole = ms_param_whole_numel(state->model, &state->model->param[param]);
  scattering s = {.state = state, .from = from};
  const int64_t round = ms_min(whole, WINDOW_ELEMENTS);
  MS_GOTO(open_scattering(&s, round));
  MS_GOTO(ms_group_barrier(&state->process_group));
  for (int64_t begin = 0; begin < whole; begin += round) {
    const int64_t end = ms_min(begin + round, whole);
    if (s.comm) MS_GOTO(broadcast(&s, full ? full + begin : NULL, end - begin));
    MS_GOTO(ms_params_take(state, param, mine, begin, end, s.room ? s.room : full + begin));
  }
  MS_GOTO(ms_stored_finish(state, param, param + 1));
  ms_resident_forget(state);
fail:
  ms_region_unmap(&s.window);
  free(s.room);
  free((void *)s.shared);
  return rc;
}

/* All ranks have the whole parameter. */
static int take_own(ms_state *state, int param, const float *full, const ms_elements *mine) {
  MS_GIVEN(full);
  MS_TRY(ms_group_barrier(&state->process_group));
  MS_TRY(ms_params_take(state, param, mine, 0, ms_param_whole_numel(state->model, &state->model->param[param]), full));
  ms_resident_forget(state);
  return ms_stored_finish(state, param, param + 1);
}

int ms_state_scatter(ms_state *state, int param, int from, const float *full) {
  MS_HANDLE(state, STATE);
  ms_elements mine;
  MS_TRY(ms_params_find_writable(state, param, MS_TENSOR_PARAM, &mine));
  if (from == -1) return take_own(state, param, full, &mine);
  if (from < 0 || from >= state->process_group.size)
    return MS_FAIL(MS_EINVAL, "rank %d cannot give a parameter: the model has %d ranks", from,
                   state->process_group.size);
  if (state->process_group.me == from && !full)
    return MS_FAIL(MS_EINVAL, "parameter '%s': this rank scatters it, but full is NULL",
                   state->model->param[param].name);
  ms_recorder *recorder = ms_world_recorder(state->world);
  ms_recorder_enter(recorder, ms_recorder_number(recorder, "scattering a parameter"));
  int rc = scatter(state, param, from, full, &mine);
  ms_recorder_leave(recorder, rc);
  return rc;
}
