/* state.c - the training state of one rank: arenas and communicators.
**
** What peers read in place is mapped by all ranks that train the model; everything else is private memory of the device.
*/
#include "exec/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/sysinfo.h>

#include "base/error.h"
#include "comm/recorder/flight_recorder.h"
#include "exec/compare.h"
#include "exec/async/async.h"
#include "exec/params.h"

enum { PAGE_BYTES = 4096 };

static int64_t whole_pages(int64_t bytes) { return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES; }

static int is_communicated(int arena) {
  return arena == MS_ARENA_COMM || arena == MS_ARENA_GATHERED || arena == MS_ARENA_GROUPED;
}

static int allocate(const ms_state *state, int arena, int64_t bytes, ms_region *region) {
  char label[64];
  void *base;
  snprintf(label, sizeof label, "the arena of %s", ms_arena_name(arena));
  MS_TRY(state->device->api->allocate(state->device, bytes, is_communicated(arena), label, &base));
  *region = (ms_region){base, (size_t)bytes};
  return MS_OK;
}

static int has_block_a_rank(int arena) { return arena == MS_ARENA_COMM || arena == MS_ARENA_GROUPED; }

/* How many blocks of an arena all members map together; 0: it is private. */
static int shared_blocks(const ms_state *state, int arena) {
  const ms_model *model = state->model;
  if (state->process_group.size == 1 || !ms_device_has(state->device, MS_DEVICE_HOST_MEMORY)) return 0;
  if (has_block_a_rank(arena)) return state->process_group.size;
  if (arena == MS_ARENA_REPLICATED) return model->shard_size;
  if (model->shard_size == 1) return 0;
  const int of_shards = arena == MS_ARENA_GATHERED || arena == MS_ARENA_MASTERS;
  return !of_shards ? 0 : state->layout.replicas > 1 ? 1 : model->replicate_size;
}

/* Which of them is this rank's. */
static int own_block(const ms_state *state, int arena) {
  if (has_block_a_rank(arena)) return state->process_group.me;
  if (arena == MS_ARENA_REPLICATED) return state->model->shard_rank;
  return state->layout.replicas > 1 ? 0 : state->model->replicate_rank;
}

static void free_arena(ms_state *state, int arena) {
  ms_region *region = &state->arena[arena];
  if (!region->base) return;
  if (state->blocks[arena]) ms_region_unmap(region);
  else state->device->api->release(state->device, region->base, (int64_t)region->bytes, is_communicated(arena));
  *region = (ms_region){NULL, 0};
}

/* Pages are committed when they are touched, so memory that no machine has would be mapped, and the rank be killed in
** the middle of filling it. */
static int check_host_memory(const ms_state *state, int arena, int64_t bytes) {
  static const double GIB = 1024.0 * 1024 * 1024;
  struct sysinfo host;
  double mapped = (double)bytes;
  if (!ms_device_has(state->device, MS_DEVICE_HOST_MEMORY) || sysinfo(&host)) return MS_OK; /* the kernel judges then */
  for (int other = 0; other < MS_ARENAS; other++)
    if (other != arena) mapped += (double)state->arena[other].bytes;
  double total = ((double)host.totalram + (double)host.totalswap) * host.mem_unit;
  if (mapped <= total) return MS_OK;
  return MS_FAIL(
      MS_ENOMEM,
      "the arena of %s takes %.1f GiB, so this rank would map %.1f GiB, and this machine has %.1f GiB: shard "
      "over more machines, or make the model or the batch smaller; moonshard plan tells what takes how much",
      ms_arena_name(arena), (double)bytes / GIB, mapped / GIB, total / GIB);
}

/* The old memory goes only when the new is there: a failure leaves everything as it was. */
static int map_arena(ms_state *state, int arena, int64_t bytes) {
  ms_region mapped;
  int blocks = shared_blocks(state, arena);
  int64_t stride = whole_pages(bytes);
  MS_TRY(check_host_memory(state, arena, blocks ? stride * blocks : bytes));
  if (blocks) MS_TRY(ms_region_map(&state->process_group, (size_t)(stride * blocks), &mapped));
  else MS_TRY(allocate(state, arena, bytes, &mapped));
  ms_async_close_windows(state, arena);
  free_arena(state, arena);
  state->arena[arena] = mapped;
  state->blocks[arena] = blocks;
  state->arena_bytes[arena] = bytes;
  state->stride[arena] = stride;
  state->generation++;
  state->mapped++;
  return MS_OK;
}

int ms_state_reserve(ms_state *state, const int64_t *bytes) {
  MS_TRY(ms_async_drain(state)); /* what is under way uses the arenas as they are */
  for (int arena = MS_ARENA_ACTIVATIONS; arena < MS_ARENAS; arena++)
    if (bytes[arena] > state->arena_bytes[arena]) MS_TRY(map_arena(state, arena, bytes[arena]));
  return MS_OK;
}

double ms_state_bytes(const ms_state *state) {
  MS_HANDLE_OR(0, state, STATE);
  double bytes = 0;
  for (int arena = 0; arena < MS_ARENAS; arena++)
    bytes += (double)(state->arena_bytes[arena] - state->layout.peers[arena]);
  return bytes;
}

double ms_state_growth(const ms_state *state, const ms_plan *plan) {
  MS_HANDLE_OR(0, state, STATE);
  MS_HANDLE_OR(0, plan, PLAN);
  double growth = 0;
  for (int arena = MS_ARENA_ACTIVATIONS; arena < MS_ARENAS; arena++) {
    double more = (double)(plan->arena_bytes[arena] - state->arena_bytes[arena]);
    int blocks = arena == MS_ARENA_GATHERED ? shared_blocks(state, arena) : 0;
    if (more > 0) growth += blocks ? more * blocks / state->process_group.size : more;
  }
  return growth;
}

int ms_state_memory(const ms_state *state, ms_device_memory *memory) {
  MS_HANDLE(state, STATE);
  ms_device_usage usage;
  *memory = (ms_device_memory){0};
  if (ms_device_has(state->device, MS_DEVICE_HOST_MEMORY)) return MS_OK;
  MS_TRY(state->device->api->usage(state->device, &usage));
  *memory = (ms_device_memory){.total = (double)usage.total,
                               .free = (double)usage.free,
                               .arenas = (double)usage.arenas,
                               .context = (double)usage.context,
                               .communicators = (double)usage.communicators,
                               .pinned = (double)usage.pinned};
  return MS_OK;
}

void ms_state_set_interrupted(ms_state *state) {
  if (state->process_group.size > 1) state->interrupted = 1 + ms_world_epoch(state->world);
}

int ms_state_interrupted(const ms_state *state) { return state->interrupted == 1 + ms_world_epoch(state->world); }

char *ms_state_block(const ms_state *state, int arena) {
  char *base = state->arena[arena].base;
  if (!base || !shared_blocks(state, arena)) return base;
  return base + own_block(state, arena) * state->stride[arena];
}

int ms_state_copy_out(const ms_state *state, void *host, const void *at, int64_t bytes) {
  MS_TRY(ms_async_drain(state));
  return state->device->api->read(state->device, host, at, bytes);
}

int ms_state_copy_in(ms_state *state, void *at, const void *host, int64_t bytes) {
  MS_TRY(ms_async_drain(state));
  return state->device->api->write(state->device, at, host, bytes);
}

int ms_state_room(ms_state *state, int64_t bytes, void **room) {
  if (bytes > state->view_bytes) {
    void *grown = ms_calloc(bytes, 1);
    if (!grown) return MS_ENOMEM;
    free(state->view);
    state->view = grown;
    state->view_bytes = bytes;
  }
  *room = state->view;
  return MS_OK;
}

int ms_state_view(ms_state *state, void *at, int64_t bytes, void **view) {
  *view = at;
  if (ms_device_has(state->device, MS_DEVICE_HOST_MEMORY)) return MS_OK;
  MS_TRY(ms_state_room(state, bytes, view));
  return ms_state_copy_out(state, *view, at, bytes);
}

char *ms_state_peer_block(const ms_state *state, int arena, int rank) {
  int place = 0;
  if (!shared_blocks(state, arena)) return state->arena[arena].base;
  while (state->process_group.rank[place] != rank) place++;
  return (char *)state->arena[arena].base + place * state->stride[arena];
}

ms_comm *ms_state_comm(const ms_state *state, int stream, int ranks) {
  ms_comm *whole = state->comm[stream];
  if (whole && ms_comm_size(whole) == ranks) return whole;
  for (int i = 0; i < state->groups; i++)
    if (state->group[i].stream == stream && state->group[i].ranks == ranks) return state->group[i].comm;
  return NULL;
}

int ms_state_grid(const ms_state *state, int *ranks) {
  const ms_model *m = state->model;
  for (int r = 0, n = 0; r < m->replicate_size; r++)
    for (int s = 0; s < m->shard_size; s++)
      ranks[n++] = m->member_rank[m->replicate_dim < m->shard_dim ? r * m->shard_size + s : s * m->replicate_size + r];
  return m->replicate_size * m->shard_size;
}

/* A further communicator of a stream; NULL: it is there. */
static int open_group(ms_state *state, int stream, int ranks, const int *members, ms_comm **opened) {
  *opened = NULL;
  if (ms_state_comm(state, stream, ranks)) return MS_OK;
  MS_TRY(ms_grow((void **)&state->group, &state->group_capacity, state->groups + 1, sizeof *state->group));
  MS_TRY(ms_comm_open(state->world, ranks, members, stream, opened));
  state->group[state->groups].comm = *opened;
  state->group[state->groups].stream = stream;
  state->group[state->groups++].ranks = ranks;
  return MS_OK;
}

int ms_state_open_replicas(ms_state *state, int stream) {
  int ranks[MS_MAX_LOCAL_RANKS];
  int n = ms_state_grid(state, ranks);
  ms_comm *opened;
  return open_group(state, stream, n, ranks, &opened);
}

int ms_state_open_group(ms_state *state, const ms_plan *plan, int stream, int dim, int ranks) {
  const int *whole = dim == MS_DIM_SHARD ? state->model->shard_group : state->model->replicate_group;
  ms_comm *opened;
  MS_TRY(open_group(state, stream, ranks, whole + ms_plan_group_start(plan, dim, ranks), &opened));
  if (!opened || !state->async) return MS_OK;
  int place = dim == MS_DIM_SHARD ? state->model->shard_rank : state->model->replicate_rank;
  int rc = ms_async_open_group(state, stream, place, ranks);
  if (!rc) return MS_OK;
  ms_comm_close(opened);
  state->groups--;
  return rc;
}

static int open_communicators(ms_state *state) {
  const ms_model *m = state->model;
  if (m->shard_size > 1) {
    for (int stream = MS_STREAM_GATHER; stream <= MS_STREAM_REDUCE; stream++)
      MS_TRY(ms_comm_open(state->world, m->shard_size, m->shard_group, stream, &state->comm[stream]));
  }
  if (m->replicate_size == 1) return MS_OK;
  return ms_comm_open(state->world, m->replicate_size, m->replicate_group, MS_STREAM_REPLICATE,
                      &state->comm[MS_STREAM_REPLICATE]);
}

static int check_place(const ms_world *world, const ms_model *model) {
  if (!model->sharded) return MS_FAIL(MS_EINVAL, "call ms_model_shard before ms_state_new");
  if (model->world == ms_world_size(world) && model->rank == ms_world_rank(world)) return MS_OK;
  return MS_FAIL(MS_EINVAL, "the model is sharded for rank %d of %d (mesh %s), but this process is rank %d of %d",
                 model->rank, model->world, model->mesh_text, ms_world_rank(world), ms_world_size(world));
}

/* Nothing in this version moves bytes between the nodes of replicas that share within theirs. */
static int check_nodes(const ms_state *state) {
  const int together = state->layout.replicas, all = state->model->replicate_size;
  if (together == 1 || together == all) return MS_OK;
  return MS_FAIL(MS_EUNSUPPORTED,
                 "of %d replicas, each %d on a node would share their state (ranks_per_node): such ranks "
                 "can be planned, not run, in this version",
                 all, together);
}

static void destroy_state(void *object) {
  ms_state *state = object;
  ms_async_close(state);
  for (int i = 0; i < state->groups; i++) ms_comm_close(state->group[i].comm);
  free(state->group);
  for (int stream = 0; stream < MS_STREAMS; stream++) ms_comm_close(state->comm[stream]);
  for (int arena = 0; arena < MS_ARENAS; arena++) free_arena(state, arena);
  ms_group_close(&state->process_group);
  if (state->device) state->device->api->close(state->device);
  free(state->view);
  ms_state_layout_free(&state->layout);
}

int ms_state_new(ms_world *world, const ms_model *model, const ms_plan_config *config, ms_state **out) {
  MS_HANDLE(world, WORLD);
  MS_HANDLE(model, MODEL);
  MS_TRY(check_place(world, model));
  MS_TRY(ms_plan_check_optimizer(config));
  ms_state *state = ms_handle_new(MS_HANDLE_STATE, sizeof *state, destroy_state);
  if (!state) return MS_ENOMEM;
  int rc = MS_OK;
  ms_recorder *recorder = ms_world_recorder(world);
  ms_recorder_enter(recorder, ms_recorder_number(recorder, "making the state"));
  state->world = world;
  state->model = model;
  ms_handle_set_on(state, world);
  ms_handle_set_keeps(state, model);
  state->nccl = config->nccl;
  const ms_device_api *device;
  MS_GOTO(ms_device_find(config->device, &device));
  MS_GOTO(device->open(ms_world_local_rank(world), config->nccl, &state->device));
  MS_GOTO(ms_group_open(world, model->members, model->member_rank, model->mesh_text, &state->process_group));
  MS_GOTO(ms_compare_models(&state->process_group, model, config));
  MS_GOTO(ms_state_layout_make(model, config, &state->layout));
  MS_GOTO(check_nodes(state));
  for (int arena = MS_ARENA_STATE; arena < MS_ARENA_ACTIVATIONS; arena++)
    if (state->layout.bytes[arena]) MS_GOTO(map_arena(state, arena, state->layout.bytes[arena]));
  MS_GOTO(ms_params_init(state));
  MS_GOTO(open_communicators(state));
  MS_GOTO(ms_async_open(state));
  MS_GOTO(ms_async_connect(state));
  *out = state;
fail:
  ms_recorder_leave(recorder, rc);
  if (rc) ms_state_free(state);
  return rc;
}

void ms_state_free(ms_state *state) { ms_handle_release(state, MS_HANDLE_STATE); }

int ms_state_all_gather_bytes(ms_state *state, const void *mine, int bytes, void *all) {
  MS_HANDLE(state, STATE);
  return ms_group_all_gather_bytes(&state->process_group, mine, bytes, all);
}
