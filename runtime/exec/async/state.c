/* state.c - a state's resources on an asynchronous device: streams, events, control words and communicators.
 *
 * One communicator spans the process group; each stream has its own, split from it, because a communicator serialises
 * its operations. A failure aborts them, and the first phase after the ranks have recovered opens them again.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "exec/async/async.h"

/* ---- communicators ---- */

int ms_async_comm_ready(ms_state *state, ms_device_comm *comm) {
  double began = ms_clock(), timeout = ms_world_timeout(state->world);
  for (;;) {
    int ready;
    unsigned seen = ms_world_doorbell(state->world);
    MS_TRY(state->device->api->comm_ready(state->device, comm, &ready));
    if (ready) return MS_OK;
    MS_TRY(ms_world_check(state->world));
    if (ms_clock() > began + timeout)
      return MS_FAIL(MS_ETIMEOUT, "rank %d has waited %g s for the other ranks to open a communicator of the device",
                     ms_world_rank(state->world), timeout);
    ms_async_turn(state, seen, began);
  }
}

static int split(ms_state *state, ms_device_comm *parent, int color, int key, ms_device_comm **comm) {
  MS_TRY(state->device->api->comm_split(state->device, parent, color, key, comm));
  return ms_async_comm_ready(state, *comm);
}

/* What ranks tell each other before they open communicators. */
typedef struct introduction {
  int rc, node;
  char id[MS_DEVICE_ID_BYTES]; /* of the first rank */
  char place[64];              /* of the device on its host */
} introduction;

/* Streams with peers: each runs one collective at a time. */
static int streams_with_peers(const ms_state *state) {
  int n = 0;
  for (int s = MS_STREAM_COMPUTE + 1; s < MS_NAMED_STREAMS; s++) n += state->model->dim[ms_stream_dim(s)].size > 1;
  return n;
}

static int exchange_introductions(const ms_state *state, introduction *mine) {
  ms_device *device = state->device;
  const int me = state->process_group.me;
  mine->node = ms_world_node_of(state->world, state->process_group.rank[me]);
  MS_TRY(device->api->comm_id(device, streams_with_peers(state), me == 0 ? mine->id : NULL));
  return device->api->place(device, mine->place, sizeof mine->place);
}

static int refuse_one_device(const ms_state *state, const introduction *all) {
  for (int i = 1; i < state->process_group.size; i++)
    for (int k = 0; k < i; k++)
      if (*all[i].place && all[i].node == all[k].node && !strcmp(all[i].place, all[k].place))
        return MS_FAIL(
            MS_EINVAL,
            "device %s: ranks %d and %d use the same GPU, %s: start at most one rank per GPU, and let each see "
            "all GPUs of its host, or only its own (CUDA_VISIBLE_DEVICES)",
            state->device->api->name, state->process_group.rank[k], state->process_group.rank[i], all[i].place);
  return MS_OK;
}

/* The first rank of the group makes the id. */
static int open_all(ms_state *state) {
  ms_async *async = state->async;
  ms_device *device = state->device;
  introduction mine = {0}, *all = ms_calloc(state->process_group.size, sizeof *all);
  if (!all) return MS_ENOMEM;
  int rc = MS_OK;
  mine.rc = exchange_introductions(state, &mine);
  MS_GOTO(ms_group_all_gather_bytes(&state->process_group, &mine, sizeof mine, all));
  MS_GOTO(mine.rc);
  if (all[0].rc)
    MS_GOTO(MS_FAIL(all[0].rc, "rank %d could not create the id of the device's communicators",
                    state->process_group.rank[0]));
  MS_GOTO(refuse_one_device(state, all));
  MS_GOTO(device->api->comm_open(device, all[0].id, state->process_group.size, state->process_group.me, &async->all));
  MS_GOTO(ms_async_comm_ready(state, async->all));
fail:
  free(all);
  return rc;
}

static int open_parts(ms_state *state) {
  for (int s = MS_STREAM_COMPUTE + 1; s < MS_NAMED_STREAMS; s++) {
    const ms_dim_group group = state->model->dim[ms_stream_dim(s)];
    if (group.size > 1) MS_TRY(split(state, state->async->all, group.number, group.place, &state->async->comm[s]));
  }
  return MS_OK;
}

static int split_group(ms_state *state, int stream, int ranks, int stride, ms_device_comm **comm) {
  const int place = state->model->dim[ms_stream_dim(stream)].place, first = place - place / stride % ranks * stride;
  return split(state, state->async->comm[stream], first, place, comm);
}

static int open_groups(ms_state *state) {
  ms_async *async = state->async;
  for (int i = 0; i < async->groups; i++)
    MS_TRY(split_group(state, async->group[i].stream, async->group[i].ranks, async->group[i].stride,
                       &async->group[i].comm));
  return MS_OK;
}

/* ---- windows ---- */

static int is_open(const ms_async *async, const ms_device_comm *comm, int arena) {
  for (int i = 0; i < async->windows; i++)
    if (async->window[i].comm == comm && async->window[i].arena == arena) return 1;
  return 0;
}

static int open_window(ms_state *state, ms_device_comm *comm, int arena) {
  ms_async *async = state->async;
  ms_device_window *opened = NULL;
  if (!comm || !state->arena[arena].base || is_open(async, comm, arena)) return MS_OK;
  MS_TRY(ms_grow((void **)&async->window, &async->window_capacity, async->windows + 1, sizeof *async->window));
  MS_TRY(state->device->api->window_open(state->device, comm, state->arena[arena].base, state->arena_bytes[arena],
                                         &opened));
  MS_TRY(ms_async_comm_ready(state, comm));
  async->window[async->windows++] = (struct ms_async_window){arena, comm, opened};
  return MS_OK;
}

/* What a stream's collectives use: gathered weights, resident ones among them, in smaller groups those of another
 * arena, or what gradients are summed from; over the replicas also the chunks of sliced units. Streams but that of
 * weights gather values, too. */
static int open_windows_of(ms_state *state, int stream, int gathered, ms_device_comm *comm) {
  MS_TRY(open_window(state, comm, stream == MS_STREAM_GATHER ? gathered : MS_ARENA_COMM));
  if (stream == MS_STREAM_GATHER && gathered == MS_ARENA_GATHERED) MS_TRY(open_window(state, comm, MS_ARENA_RESIDENT));
  return stream == MS_STREAM_REPLICATE ? open_window(state, comm, MS_ARENA_CHUNKS) : MS_OK;
}

/* An arena has the same size on every rank (plans are compared) and grows on all of them together, so all ranks call
 * this for the same windows. */
static int open_windows(ms_state *state) {
  const ms_async *async = state->async;
  if (!state->nccl) return MS_OK;
  for (int s = MS_STREAM_COMPUTE + 1; s < MS_NAMED_STREAMS; s++) {
    MS_TRY(open_windows_of(state, s, MS_ARENA_GATHERED, async->comm[s]));
    if (s != MS_STREAM_GATHER) MS_TRY(open_window(state, async->comm[s], MS_ARENA_GROUPED));
  }
  for (int i = 0; i < async->groups; i++)
    MS_TRY(open_windows_of(state, async->group[i].stream, MS_ARENA_GROUPED, async->group[i].comm));
  return MS_OK;
}

void ms_async_close_windows(ms_state *state, int arena) {
  ms_async *async = state->async;
  for (int i = async ? async->windows - 1 : -1; i >= 0; i--) {
    if (async->window[i].arena != arena) continue;
    state->device->api->window_close(state->device, async->window[i].comm, async->window[i].opened);
    async->window[i] = async->window[--async->windows];
  }
}

/* ---- connecting, once per epoch of the world ---- */

int ms_async_connect(ms_state *state) {
  ms_async *async = state->async;
  if (!async || state->process_group.size == 1) return MS_OK;
  if (async->open && async->epoch == ms_world_epoch(state->world)) return open_windows(state);
  ms_async_disconnect(state);
  int rc = open_all(state);
  if (!rc) rc = open_parts(state);
  if (!rc) rc = open_groups(state);
  if (!rc) rc = open_windows(state);
  if (rc) {
    ms_async_disconnect(state);
    return rc;
  }
  async->open = 1;
  async->epoch = ms_world_epoch(state->world);
  return MS_OK;
}

/* Calls a function for every communicator, for splits before what they were split from. */
static void each_comm(ms_state *state, void (*call)(ms_state *state, ms_device_comm **comm, double until),
                      double until) {
  ms_async *async = state->async;
  for (int i = 0; i < async->groups; i++) call(state, &async->group[i].comm, until);
  for (int s = 0; s < MS_NAMED_STREAMS; s++) call(state, &async->comm[s], until);
  call(state, &async->all, until);
}

static void begin_to_end(ms_state *state, ms_device_comm **comm, double until) {
  (void)until;
  if (*comm) state->device->api->comm_abort(state->device, comm);
}

static void end(ms_state *state, ms_device_comm **comm, double until) {
  const double left = until - ms_clock();
  if (*comm) state->device->api->comm_close(state->device, *comm, left > 0 ? left : 0);
  *comm = NULL;
}

void ms_async_exec_drop_graphs(const ms_state *state, struct ms_async_exec *async) {
  ms_device *device = state->device;
  for (int p = 0; p < MS_PHASES; p++) {
    if (async->phase[p].graph) device->api->graph_close(device, async->phase[p].graph);
    async->phase[p].graph = NULL;
  }
}

void ms_async_disconnect(ms_state *state) {
  ms_async *async = state->async;
  for (struct ms_async_exec *exec = async->execs; exec; exec = exec->next) ms_async_exec_drop_graphs(state, exec);
  async->windows = 0; /* closing a communicator closes its windows */
  each_comm(state, begin_to_end, 0);
  each_comm(state, end, ms_clock() + MS_ASYNC_CLOSE_SECONDS);
  ms_async_settle(state); /* aborted collectives no longer block enqueued work */
  async->open = 0;
  async->done = async->issued;
  async->ended = async->begun;
}

/* Splits a communicator of `ranks` ranks that are `stride` places apart from the stream's; of: that of the host, which
 * lives as long. Collective over the stream's group. */
static int split_of_stream(ms_state *state, int stream, int ranks, int stride, const ms_comm *of) {
  ms_async *async = state->async;
  MS_TRY(ms_grow((void **)&async->group, &async->group_capacity, async->groups + 1, sizeof *async->group));
  async->group[async->groups].comm = NULL;
  MS_TRY(split_group(state, stream, ranks, stride, &async->group[async->groups].comm));
  async->group[async->groups].stream = stream;
  async->group[async->groups].ranks = ranks;
  async->group[async->groups].stride = stride;
  async->group[async->groups++].of = of;
  return MS_OK;
}

ms_device_comm *ms_async_comm(const ms_state *state, int stream, const ms_comm *of) {
  const ms_async *async = state->async;
  for (int i = 0; i < async->groups; i++)
    if (async->group[i].of == of) return async->group[i].comm;
  return async->comm[stream];
}

/* ---- streams, events, control words ---- */

enum { CONTROL_BYTES = 4096, FAULT_AT = 256 };

static int open_streams(ms_device *d, ms_async *async) {
  const ms_device_api *api = d->api;
  for (int s = 0; s < MS_NAMED_STREAMS; s++) {
    MS_TRY(api->stream_open(d, s != MS_STREAM_COMPUTE, &async->stream[s]));
    if (s != MS_STREAM_COMPUTE) MS_TRY(api->event_open(d, 0, &async->join[s]));
  }
  MS_TRY(api->event_open(d, 0, &async->fork));
  for (int r = 0; r < MS_ASYNC_RUNS; r++) MS_TRY(api->event_open(d, 0, &async->run[r].end));
  return MS_OK;
}

static const ms_state_queue queue = {
    .drain = ms_async_drain, .close_windows = ms_async_close_windows, .open_group = split_of_stream};

int ms_async_open(ms_state *state) {
  ms_device *device = state->device;
  if (!ms_device_has(device, MS_DEVICE_ASYNCHRONOUS)) return MS_OK;
  ms_async *async = ms_calloc(1, sizeof *async);
  if (!async) return MS_ENOMEM;
  state->async = async;
  state->queue = &queue;
  void *pinned;
  MS_TRY(device->api->pin(device, sizeof *async->words, &pinned));
  async->words = pinned;
  MS_TRY(device->api->allocate(device, CONTROL_BYTES, 0, "control words", &async->control));
  async->args = async->control;
  async->fault = (ms_fault *)(void *)((char *)async->control + FAULT_AT);
  MS_TRY(open_streams(device, async));
  return ms_async_reserve(state, 0);
}

static void close_event(ms_device *device, ms_device_event *event) {
  if (event) device->api->event_close(device, event);
}

void ms_async_close(ms_state *state) {
  ms_async *async = state->async;
  if (!async) return;
  ms_device *device = state->device;
  ms_async_settle(state);
  ms_async_disconnect(state);
  for (int i = 0; i < async->ring_size; i++) {
    close_event(device, async->ring[i].before);
    close_event(device, async->ring[i].after);
  }
  for (int r = 0; r < MS_ASYNC_RUNS; r++) close_event(device, async->run[r].end);
  close_event(device, async->fork);
  for (int s = 0; s < MS_NAMED_STREAMS; s++) {
    close_event(device, async->join[s]);
    if (async->stream[s]) device->api->stream_close(device, async->stream[s]);
  }
  if (async->control) device->api->release(device, async->control, CONTROL_BYTES, 0);
  if (async->words) device->api->unpin(device, async->words, sizeof *async->words);
  free(async->ring);
  free(async->window);
  free(async->group);
  free(async);
  state->async = NULL;
  state->queue = NULL;
}
