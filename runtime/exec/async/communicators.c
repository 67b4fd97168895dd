/* communicators.c - the communicators of a state on a device: one of all members, and of it parts for each stream.
**
** They serialise what they are given, hence one a stream. After a failure they are ended, and made anew by the first phase that
** runs after the ranks have recovered.
*/
#include "base/clock.h"
#include "base/error.h"
#include "exec/async/async.h"

static double nap(double since) { return ms_clock() - since < 0.01 ? 2e-5 : 1e-3; }

int ms_apart_comm_ready(ms_state *state, ms_device_comm *comm) {
  double began = ms_clock(), timeout = ms_world_timeout(state->world);
  for (;;) {
    int ready;
    unsigned seen = ms_world_doorbell(state->world);
    MS_TRY(state->device->api->comm_ready(state->device, comm, &ready));
    if (ready) return MS_OK;
    MS_TRY(ms_world_check(state->world));
    if (ms_clock() > began + timeout)
      return MS_FAIL(MS_ETIMEOUT, "rank %d has waited %g s for the others to open a communicator of the device",
                     ms_world_rank(state->world), timeout);
    ms_world_sleep(state->world, seen, nap(began));
  }
}

static int split(ms_state *state, ms_device_comm *parent, int color, int key, ms_device_comm **comm) {
  MS_TRY(state->device->api->comm_split(state->device, parent, color, key, comm));
  return ms_apart_comm_ready(state, *comm);
}

/* The id is made by the first of the members. */
static int open_all(ms_state *state) {
  ms_apart *apart = state->apart;
  ms_device *device = state->device;
  struct {
    int rc;
    char id[MS_DEVICE_ID_BYTES];
  } mine = {0}, all[MS_MAX_LOCAL_RANKS];
  mine.rc = device->api->comm_id(device, state->process_group.me == 0 ? mine.id : NULL);
  MS_TRY(ms_group_all_gather_bytes(&state->process_group, &mine, sizeof mine, all));
  if (mine.rc) return mine.rc;
  if (all[0].rc)
    return MS_FAIL(all[0].rc, "rank %d could not begin to open communicators of the device",
                   state->process_group.rank[0]);
  MS_TRY(device->api->comm_open(device, all[0].id, state->process_group.size, state->process_group.me, &apart->all));
  return ms_apart_comm_ready(state, apart->all);
}

static int open_parts(ms_state *state) {
  const ms_model *m = state->model;
  ms_apart *apart = state->apart;
  for (int s = MS_STREAM_GATHER; m->shard_size > 1 && s <= MS_STREAM_REDUCE; s++)
    MS_TRY(split(state, apart->all, m->replicate_rank, m->shard_rank, &apart->comm[s]));
  if (m->replicate_size == 1) return MS_OK;
  return split(state, apart->all, m->shard_rank, m->replicate_rank, &apart->comm[MS_STREAM_REPLICATE]);
}

static int open_groups(ms_state *state) {
  ms_apart *apart = state->apart;
  for (int i = 0; i < apart->groups; i++) {
    int s = apart->group[i].stream;
    int place = s == MS_STREAM_REPLICATE ? state->model->replicate_rank : state->model->shard_rank;
    MS_TRY(split(state, apart->comm[s], place / apart->group[i].ranks, place, &apart->group[i].comm));
  }
  return MS_OK;
}

/* ---- windows ---- */

static int is_open(const ms_apart *apart, const ms_device_comm *comm, int arena) {
  for (int i = 0; i < apart->windows; i++)
    if (apart->window[i].comm == comm && apart->window[i].arena == arena) return 1;
  return 0;
}

static int open_window(ms_state *state, ms_device_comm *comm, int arena) {
  ms_apart *apart = state->apart;
  ms_device_window *opened;
  if (!comm || !state->arena[arena].base || is_open(apart, comm, arena)) return MS_OK;
  MS_TRY(ms_grow((void **)&apart->window, &apart->window_capacity, apart->windows + 1, sizeof *apart->window));
  MS_TRY(state->device->api->window_open(state->device, comm, state->arena[arena].base, state->arena_bytes[arena],
                                         &opened));
  MS_TRY(ms_apart_comm_ready(state, comm));
  apart->window[apart->windows++] = (struct ms_apart_window){arena, comm, opened};
  return MS_OK;
}

/* An arena is as large on every rank (plans are compared), and grows on all of them at once: so all come here for the same. */
static int open_windows(ms_state *state) {
  const ms_apart *apart = state->apart;
  if (!state->nccl) return MS_OK;
  for (int s = MS_STREAM_COMPUTE + 1; s < MS_STREAMS; s++) {
    int arena = s == MS_STREAM_GATHER ? MS_ARENA_GATHERED : MS_ARENA_COMM;
    MS_TRY(open_window(state, apart->comm[s], arena));
  }
  for (int i = 0; i < apart->groups; i++)
    MS_TRY(open_window(state, apart->group[i].comm,
                       apart->group[i].stream == MS_STREAM_GATHER ? MS_ARENA_GROUPED : MS_ARENA_COMM));
  return MS_OK;
}

void ms_apart_close_windows(ms_state *state, int arena) {
  ms_apart *apart = state->apart;
  for (int i = apart ? apart->windows - 1 : -1; i >= 0; i--) {
    if (apart->window[i].arena != arena) continue;
    state->device->api->window_close(state->device, apart->window[i].comm, apart->window[i].opened);
    apart->window[i] = apart->window[--apart->windows];
  }
}

/* ---- meeting ---- */

int ms_apart_meet(ms_state *state) {
  ms_apart *apart = state->apart;
  if (!apart || state->process_group.size == 1) return MS_OK;
  if (apart->open && apart->epoch == ms_world_epoch(state->world)) return open_windows(state);
  ms_apart_part(state);
  int rc = open_all(state);
  if (!rc) rc = open_parts(state);
  if (!rc) rc = open_groups(state);
  if (!rc) rc = open_windows(state);
  if (rc) {
    ms_apart_part(state);
    return rc;
  }
  apart->open = 1;
  apart->epoch = ms_world_epoch(state->world);
  return MS_OK;
}

static void end(ms_state *state, ms_device_comm **comm) {
  if (*comm) state->device->api->comm_close(state->device, *comm, MS_APART_ENDING);
  *comm = NULL;
}

void ms_apart_part(ms_state *state) {
  ms_apart *apart = state->apart;
  for (struct ms_exec_apart *exec = apart->execs; exec; exec = exec->next) ms_exec_apart_drop_graphs(exec);
  apart->windows = 0; /* they end with their communicators */
  for (int i = 0; i < apart->groups; i++) end(state, &apart->group[i].comm);
  for (int s = 0; s < MS_STREAMS; s++) end(state, &apart->comm[s]);
  end(state, &apart->all);
  ms_apart_settle(apart); /* without communicators, what was enqueued runs through */
  apart->open = 0;
  apart->done = apart->issued;
  apart->ended = apart->begun;
}

int ms_apart_open_group(ms_state *state, int stream, int place, int ranks) {
  ms_apart *apart = state->apart;
  MS_TRY(ms_grow((void **)&apart->group, &apart->group_capacity, apart->groups + 1, sizeof *apart->group));
  apart->group[apart->groups].comm = NULL;
  MS_TRY(split(state, apart->comm[stream], place / ranks, place, &apart->group[apart->groups].comm));
  apart->group[apart->groups].stream = stream;
  apart->group[apart->groups++].ranks = ranks;
  return MS_OK;
}

ms_device_comm *ms_apart_comm(const ms_state *state, int stream, int ranks) {
  const ms_apart *apart = state->apart;
  for (int i = 0; i < apart->groups; i++)
    if (apart->group[i].stream == stream && apart->group[i].ranks == ranks) return apart->group[i].comm;
  return apart->comm[stream];
}
