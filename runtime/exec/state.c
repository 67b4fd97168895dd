/* state.c - the training state of one rank: arenas and communicators.
**
** What peers read in place is mapped by all ranks that train the model; everything else is private memory of the device.
*/
#include "exec/state.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "comm/ledger.h"
#include "exec/agree.h"
#include "exec/apart.h"
#include "exec/master.h"

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
  if (state->members.size == 1 || !state->device->api->host_memory) return 0;
  if (has_block_a_rank(arena)) return state->members.size;
  int of_group = arena == MS_ARENA_GATHERED || arena == MS_ARENA_MASTERS;
  return of_group && state->model->shard_size > 1 ? state->model->replicate_size : 0;
}

static void free_arena(ms_state *state, int arena) {
  ms_region *region = &state->arena[arena];
  if (!region->base) return;
  if (state->blocks[arena]) ms_region_unmap(region);
  else state->device->api->release(state->device, region->base, (int64_t)region->bytes, is_communicated(arena));
  *region = (ms_region){NULL, 0};
}

/* The old memory goes only when the new is there: a failure leaves everything as it was. */
static int map_arena(ms_state *state, int arena, int64_t bytes) {
  ms_region mapped;
  int blocks = shared_blocks(state, arena);
  int64_t stride = whole_pages(bytes);
  if (blocks) MS_TRY(ms_members_region(&state->members, (size_t)(stride * blocks), &mapped));
  else MS_TRY(allocate(state, arena, bytes, &mapped));
  ms_apart_close_windows(state, arena);
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
  MS_TRY(ms_apart_drain(state)); /* what is under way uses the arenas as they are */
  for (int arena = MS_ARENA_ACTIVATIONS; arena < MS_ARENAS; arena++)
    if (bytes[arena] > state->arena_bytes[arena]) MS_TRY(map_arena(state, arena, bytes[arena]));
  return MS_OK;
}

double ms_state_bytes(const ms_state *state) {
  double bytes = 0;
  for (int arena = 0; arena < MS_ARENAS; arena++) bytes += (double)state->arena_bytes[arena];
  return bytes - (double)(state->layout.masters - state->layout.owned_masters); /* the rest are peers' bytes */
}

double ms_state_growth(const ms_state *state, const ms_plan *plan) {
  double growth = 0;
  for (int arena = MS_ARENA_ACTIVATIONS; arena < MS_ARENAS; arena++) {
    double more = (double)(plan->arena_bytes[arena] - state->arena_bytes[arena]);
    int one_for_all = arena == MS_ARENA_GATHERED && shared_blocks(state, arena);
    if (more > 0) growth += one_for_all ? more / state->model->shard_size : more;
  }
  return growth;
}

int ms_state_memory(const ms_state *state, ms_device_memory *memory) {
  ms_device_usage usage;
  *memory = (ms_device_memory){0};
  if (state->device->api->host_memory) return MS_OK;
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
  if (state->members.size > 1) state->interrupted = 1 + ms_world_epoch(state->world);
}

int ms_state_interrupted(const ms_state *state) { return state->interrupted == 1 + ms_world_epoch(state->world); }

char *ms_state_block(const ms_state *state, int arena) {
  char *base = state->arena[arena].base;
  if (!base || !shared_blocks(state, arena)) return base;
  int index = has_block_a_rank(arena) ? state->members.me : state->model->replicate_rank;
  return base + index * state->stride[arena];
}

int ms_state_copy_out(const ms_state *state, void *host, const void *at, int64_t bytes) {
  MS_TRY(ms_apart_drain(state));
  return state->device->api->read(state->device, host, at, bytes);
}

int ms_state_copy_in(ms_state *state, void *at, const void *host, int64_t bytes) {
  MS_TRY(ms_apart_drain(state));
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
  if (state->device->api->host_memory) return MS_OK;
  MS_TRY(ms_state_room(state, bytes, view));
  return ms_state_copy_out(state, *view, at, bytes);
}

char *ms_state_peer_block(const ms_state *state, int arena, int rank) {
  int place = 0;
  if (!shared_blocks(state, arena)) return state->arena[arena].base;
  while (state->members.rank[place] != rank) place++;
  return (char *)state->arena[arena].base + place * state->stride[arena];
}

ms_comm *ms_state_comm(const ms_state *state, int stream, int ranks) {
  ms_comm *whole = state->comm[stream];
  if (whole && ms_comm_size(whole) == ranks) return whole;
  for (int i = 0; i < state->groups; i++)
    if (state->group[i].stream == stream && state->group[i].ranks == ranks) return state->group[i].comm;
  return NULL;
}

int ms_state_open_group(ms_state *state, const ms_plan *plan, int stream, int dim, int ranks) {
  if (ms_state_comm(state, stream, ranks)) return MS_OK;
  const int *whole = dim == MS_DIM_SHARD ? state->model->shard_group : state->model->replicate_group;
  const int *members = whole + ms_plan_group_start(plan, dim, ranks);
  MS_TRY(ms_grow((void **)&state->group, &state->group_capacity, state->groups + 1, sizeof *state->group));
  MS_TRY(ms_comm_open(state->world, ranks, members, stream, &state->group[state->groups].comm));
  if (state->apart) {
    int place = dim == MS_DIM_SHARD ? state->model->shard_rank : state->model->replicate_rank;
    int rc = ms_apart_open_group(state, stream, place, ranks);
    if (rc) {
      ms_comm_close(state->group[state->groups].comm);
      return rc;
    }
  }
  state->group[state->groups].stream = stream;
  state->group[state->groups++].ranks = ranks;
  return MS_OK;
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

int ms_state_new(ms_world *world, const ms_model *model, const ms_plan_config *config, ms_state **out) {
  MS_TRY(check_place(world, model));
  ms_state *state = ms_calloc(1, sizeof *state);
  if (!state) return MS_ENOMEM;
  int rc = MS_OK;
  ms_ledger *ledger = ms_world_ledger(world);
  ms_ledger_enter(ledger, ms_ledger_number(ledger, "making the state"));
  state->world = world;
  state->model = model;
  state->nccl = config->nccl;
  const ms_device_api *device;
  MS_GOTO(ms_device_find(config->device, &device));
  MS_GOTO(device->open(ms_world_local_rank(world), config->nccl, &state->device));
  MS_GOTO(ms_members_open(world, model->members, model->member_rank, model->mesh_text, &state->members));
  MS_GOTO(ms_agree_on_model(&state->members, model, config));
  MS_GOTO(ms_state_layout_make(model, config, &state->layout));
  MS_GOTO(map_arena(state, MS_ARENA_STATE, state->layout.bytes));
  if (state->layout.masters) MS_GOTO(map_arena(state, MS_ARENA_MASTERS, state->layout.masters));
  MS_GOTO(ms_master_draw(state));
  MS_GOTO(open_communicators(state));
  MS_GOTO(ms_apart_open(state));
  MS_GOTO(ms_apart_meet(state));
  *out = state;
fail:
  ms_ledger_leave(ledger, rc);
  if (rc) ms_state_free(state);
  return rc;
}

int ms_state_exchange(ms_state *state, const void *mine, int bytes, void *all) {
  return ms_members_exchange(&state->members, mine, bytes, all);
}

void ms_state_free(ms_state *state) {
  if (!state) return;
  ms_apart_leave(state);
  for (int i = 0; i < state->groups; i++) ms_comm_close(state->group[i].comm);
  free(state->group);
  for (int stream = 0; stream < MS_STREAMS; stream++) ms_comm_close(state->comm[stream]);
  for (int arena = 0; arena < MS_ARENAS; arena++) free_arena(state, arena);
  ms_members_close(&state->members);
  if (state->apart) ms_apart_release(state->apart);
  else if (state->device) state->device->api->close(state->device);
  free(state->view);
  ms_state_layout_free(&state->layout);
  free(state);
}
