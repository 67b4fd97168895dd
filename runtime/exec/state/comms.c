/* comms.c - the communicators of a state: of the collectives of its plans, and of the ranks that hold one copy of it.
 * Each is opened at its first use, and shared by all that have the same ranks and stream.
 */
#include "exec/state/state.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

const int *ms_state_copy_holders(const ms_state *state, int *n) {
  const int together = state->layout.replicas, shards = ms_model_shards(state->model);
  *n = together * shards;
  return state->grid + state->model->dim[MS_DIM_REPLICATE].place / together * together * shards;
}

static ms_comm *find_comm(const ms_state *state, int stream, int n, const int *members) {
  const size_t bytes = (size_t)n * sizeof *members;
  ms_comm *whole = state->comm[stream];
  if (whole && ms_comm_size(whole) == n && !memcmp(ms_comm_ranks(whole), members, bytes)) return whole;
  for (int i = 0; i < state->groups; i++) {
    ms_comm *comm = state->group[i].comm;
    if (state->group[i].stream == stream && ms_comm_size(comm) == n && !memcmp(ms_comm_ranks(comm), members, bytes))
      return comm;
  }
  return NULL;
}

/* coll: the collective that an asynchronous device runs with a communicator of its own; NULL: the device runs none. */
static int open_comm(ms_state *state, int stream, int n, const int *members, const ms_plan_coll *coll, ms_comm **comm) {
  if ((*comm = find_comm(state, stream, n, members))) return MS_OK;
  MS_TRY(ms_grow((void **)&state->group, &state->group_capacity, state->groups + 1, sizeof *state->group));
  MS_TRY(ms_comm_open(state->world, n, members, stream, comm));
  const int rc =
      state->queue && coll ? state->queue->open_group(state, stream, coll->ranks, coll->stride, *comm) : MS_OK;
  if (rc) ms_comm_close(*comm);
  else state->group[state->groups++] = (struct ms_state_group){stream, *comm};
  return rc;
}

int ms_state_open_comm(ms_state *state, const ms_plan *plan, const ms_plan_coll *coll, int stream, ms_comm **comm) {
  int at[MS_GRID_DIMS], *members = ms_calloc(state->model->members, sizeof *members);
  if (!members) return MS_ENOMEM;
  ms_grid_position(state->model, state->model->member, at);
  const int n = ms_plan_members(plan, coll, at, members);
  const int rc = open_comm(state, stream, n, members, coll, comm);
  free(members);
  return rc;
}

/* The compute stream has no collectives of its own. */
int ms_state_open_copy(ms_state *state, ms_comm **comm) {
  int n;
  const int *holder = ms_state_copy_holders(state, &n);
  return open_comm(state, MS_STREAM_COMPUTE, n, holder, NULL, comm);
}

int ms_state_open_group(ms_state *state, const ms_group *group, ms_comm **comm) {
  return open_comm(state, MS_STREAM_COMPUTE, group->size, group->rank, NULL, comm);
}
