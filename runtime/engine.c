/* engine.c - public functions that belong to no single floor: those that join two floors that do not include each
 * other, and those of the lowest floor, in the public header's types.
 */
#include "base/config.h"
#include "base/text/hash.h"
#include "comm/collectives/hosts/progress_thread.h"
#include "comm/group/world_state.h"
#include "graph/graph.h"
#include "shard/model.h"

int ms_world_describe(const ms_world *world, ms_world_info *info, int size) {
  MS_HANDLE(world, WORLD);
  MS_GIVEN(info);
  const ms_topology *topology = &world->topology;
  ms_world_info own = {.rank = world->rank,
                       .size = world->size,
                       .nodes = topology->nodes,
                       .local_rank = ms_world_local_rank(world),
                       .node_of = topology->node_of,
                       .node_ranks = topology->node_ranks,
                       .node_name = (const char(*)[MS_HOST_NAME])(world->node_name ? world->node_name : &world->host)};
  if (world->progress) {
    const ms_transport_counts counts = ms_progress_counts(world->progress);
    own.sent = counts.sent;
    own.received = counts.received;
  }
  MS_GIVE_INFO(info, size, own);
}

int ms_graph_new(const ms_model *model, ms_graph **graph) {
  MS_HANDLE(model, MODEL);
  MS_GIVEN(graph);
  MS_TRY(ms_graph_create(model, ms_model_param_info, model->params, graph));
  ms_handle_set_keeps(*graph, model);
  return MS_OK;
}

void ms_hash(const void *data, int64_t bytes, uint32_t *hash) {
  MS_GIVEN_OR(, hash);
  hash[0] = hash[1] = 0;
  if (bytes != 0) MS_GIVEN_OR(, data);
  if (bytes < 0) {
    MS_FAIL(MS_EINVAL, "ms_hash: bytes is %lld; it must be 0 or more", (long long)bytes);
    return;
  }
  uint64_t of_all = ms_hash_bytes(MS_HASH_INIT, data, (size_t)bytes);
  hash[0] = (uint32_t)(of_all >> 32);
  hash[1] = (uint32_t)of_all;
}
