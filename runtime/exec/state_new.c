/* state_new.c - the training state of a rank: creating and freeing it. */
#include "exec/state/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/error.h"
#include "comm/recorder/flight_recorder.h"
#include "exec/state/compare.h"
#include "exec/async/async.h"
#include "exec/state/host_memory.h"
#include "exec/tensors/params.h"
#include "exec/tensors/record_table.h"
#include "kernels/cpu/instruction_sets.h"
#include "plan/optimizer.h"

static int make_grid(ms_state *state) {
  const ms_model *m = state->model;
  state->grid = ms_calloc(ms_model_replicas(m) * ms_model_shards(m), sizeof *state->grid);
  if (!state->grid) return MS_ENOMEM;
  for (int r = 0, n = 0; r < ms_model_replicas(m); r++)
    for (int s = 0; s < ms_model_shards(m); s++) state->grid[n++] = ms_grid_sibling(m, r, s);
  return MS_OK;
}

static int open_communicators(ms_state *state) {
  for (int stream = MS_STREAM_COMPUTE + 1; stream < MS_NAMED_STREAMS; stream++) {
    const ms_dim_group group = state->model->dim[ms_stream_dim(stream)];
    if (group.size > 1) MS_TRY(ms_comm_open(state->world, group.size, group.ranks, stream, &state->comm[stream]));
  }
  return MS_OK;
}

/* The ranks that keep one set of parameters: their chunks, and the parts that a tensor dimension divides. */
static int open_replica(ms_state *state) {
  const ms_model *m = state->model;
  int n = 0, at[MS_GRID_DIMS];
  state->replica = &state->process_group;
  if (!ms_model_local_units(m) || ms_model_replicas(m) == 1) return MS_OK;
  int *ranks = ms_calloc(m->members, sizeof *ranks);
  if (!ranks) return MS_ENOMEM;
  for (int i = 0; i < m->members; i++) {
    ms_grid_position(m, i, at);
    if (at[MS_DIM_REPLICATE] == m->dim[MS_DIM_REPLICATE].place) ranks[n++] = m->member_rank[i];
  }
  const int rc = ms_group_open(state->world, n, ranks, m->mesh_text, &state->own_replica);
  free(ranks);
  if (!rc) state->replica = &state->own_replica;
  return rc;
}

static int check_place(const ms_world *world, const ms_model *model) {
  if (!model->sharded) return MS_FAIL(MS_EINVAL, "call ms_model_shard before ms_state_new");
  if (model->world == ms_world_size(world) && model->rank == ms_world_rank(world)) return MS_OK;
  return MS_FAIL(MS_EINVAL, "the model is sharded for rank %d of %d (mesh %s), but this process is rank %d of %d",
                 model->rank, model->world, model->mesh_text, ms_world_rank(world), ms_world_size(world));
}

/* The topology that the state is laid out for must not put ranks of several hosts on one node. */
static int check_nodes(const ms_state *state) {
  const ms_world *world = state->world;
  int n;
  const int *holder = ms_state_copy_holders(state, &n);
  for (int i = 1; i < n && (state->layout.replicas > 1 || state->layout.bytes[MS_ARENA_MASTERS]); i++)
    if (ms_world_node_of(world, holder[i]) != ms_world_node_of(world, holder[0]))
      return MS_FAIL(MS_EINVAL,
                     "ranks %d and %d would share one copy of the state, but they are on different hosts: set "
                     "node_of in the config to each rank's node (ms_world_info.node_of)",
                     holder[0], holder[i]);
  return MS_OK;
}

static void destroy_state(void *object) {
  ms_state *state = object;
  ms_async_close(state);
  ms_records_drop(state);
  for (int i = 0; i < state->groups; i++) ms_comm_close(state->group[i].comm);
  free(state->group);
  for (int stream = 0; stream < MS_NAMED_STREAMS; stream++) ms_comm_close(state->comm[stream]);
  for (int arena = 0; arena < MS_ARENAS; arena++) ms_state_free_arena(state, arena);
  ms_host_memory_close(state);
  ms_group_close(&state->own_replica);
  ms_group_close(&state->process_group);
  if (state->device) state->device->api->close(state->device);
  free(state->view);
  free(state->grid);
  ms_state_layout_free(&state->layout);
}

/* Ranks of one host have one processor. Those that only shard have other weights, and need not compute the same bits.
 */
static int compare_processors(ms_state *state) {
  const ms_model *model = state->model;
  const int alike =
      model->dim[MS_DIM_REPLICATE].size > 1 || model->dim[MS_DIM_TENSOR].size > 1 || ms_model_has_whole_units(model);
  char text[128];
  if (!state->process_group.spans || !alike || !ms_device_has(state->device, MS_DEVICE_HOST_MEMORY)) return MS_OK;
  ms_cpu_instruction_sets(text, sizeof text);
  return ms_compare_instruction_sets(&state->process_group, text);
}

static int open_state(ms_world *world, const ms_model *model, const ms_plan_config *config, ms_state **out) {
  MS_TRY(check_place(world, model));
  MS_TRY(ms_plan_check_config(config));
  MS_TRY(ms_plan_check_updates(model, config));
  ms_state *state = ms_handle_new(MS_HANDLE_STATE, sizeof *state, destroy_state);
  if (!state) return MS_ENOMEM;
  int rc = MS_OK;
  ms_recorder *recorder = ms_world_recorder(world);
  ms_recorder_enter(recorder, ms_recorder_number(recorder, "creating the state"));
  state->world = world;
  state->model = model;
  ms_handle_set_on(state, world);
  ms_handle_set_keeps(state, model);
  state->nccl = config->nccl;
  state->sm_carveout = config->sm_carveout;
  const ms_device_api *device;
  MS_GOTO(ms_device_find(config->device, &device));
  MS_GOTO(device->open(ms_world_local_rank(world), config->nccl, config->sm_carveout, &state->device));
  MS_GOTO(ms_group_open(world, model->members, model->member_rank, model->mesh_text, &state->process_group));
  MS_GOTO(ms_compare_models(&state->process_group, model, config));
  MS_GOTO(compare_processors(state));
  MS_GOTO(ms_state_layout_make(model, config, &state->layout));
  MS_GOTO(open_replica(state));
  MS_GOTO(make_grid(state));
  MS_GOTO(check_nodes(state));
  MS_GOTO(ms_host_memory_open(state));
  for (int arena = MS_ARENA_STATE; arena < MS_ARENA_ACTIVATIONS; arena++)
    if (state->layout.bytes[arena]) MS_GOTO(ms_state_map_arena(state, arena, state->layout.bytes[arena]));
  MS_GOTO(open_communicators(state));
  MS_GOTO(ms_async_open(state));
  MS_GOTO(ms_async_connect(state));
  *out = state;
fail:
  ms_recorder_leave(recorder, rc);
  if (rc) ms_free(state);
  return rc;
}

int ms_state_new(ms_world *world, const ms_model *model, const ms_plan_config *given, int draw, ms_state **out) {
  MS_HANDLE(world, WORLD);
  MS_HANDLE(model, MODEL);
  MS_GIVEN(out);
  MS_TAKE_CONFIG(ms_plan_config, config, given);
  ms_state *state;
  MS_TRY(open_state(world, model, &config, &state));
  const int rc = draw ? ms_state_draw(state) : MS_OK;
  if (rc) ms_free(state);
  else *out = state;
  return rc;
}

int ms_state_all_gather_bytes(ms_state *state, const void *mine, int bytes, void *all) {
  MS_HANDLE(state, STATE);
  MS_GIVEN(mine);
  MS_GIVEN(all);
  return ms_group_all_gather_bytes(&state->process_group, mine, bytes, all);
}
