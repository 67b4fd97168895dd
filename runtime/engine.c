/* engine.c - public functions that belong to no single floor: those that join two floors that do not include each
 * other, and those of the lowest floor, in the public header's types.
 */
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/numbers/dtype.h"
#include "base/settings/settings.h"
#include "base/text/hash.h"
#include "comm/collectives/hosts/progress_thread.h"
#include "comm/group/world_state.h"
#include "graph/graph.h"
#include "price/price.h"
#include "shard/model.h"

int ms_dtype_describe(int dtype, ms_dtype_info *info, int size) {
  MS_GIVEN(info);
  const ms_dtype_row *row = ms_dtype_row_of(dtype);
  if (!row) return MS_FAIL(MS_EDTYPE, "unknown element type %d; they are 0 to %d", dtype, MS_DTYPES - 1);
  MS_GIVE_INFO(info, size, row->info);
}

/* The caller's struct as this library knows it. A group has no struct_size. */
static int take_settings(const ms_settings *of, const void *config, int size, void *own) {
  const int known = (int)of->bytes;
  ms_settings_default(of, own);
  return of->row[0].kind == MS_SETTING_SIZE ? ms_config_take(own, known, config, of->type)
                                            : ms_info_take(own, known, config, size, "ms_config_check");
}

int ms_config_check(const char *type, const void *config, int size) {
  MS_GIVEN(type);
  MS_GIVEN(config);
  const ms_settings *of = ms_settings_of(type);
  const int is_cluster = !strcmp(type, "ms_cluster");
  if (!of && !is_cluster) return MS_FAIL(MS_ENAME, "no struct of settings is called '%s'", type);
  int given = size;
  if (is_cluster || of->row[0].kind == MS_SETTING_SIZE) memcpy(&given, config, sizeof given);
  if (given != size || size < 1)
    return MS_FAIL(MS_EINVAL, "the struct_size of a %s is %d, and its size %d: call ms_config_default first", type,
                   given, size);
  if (is_cluster) return ms_cluster_check(config);
  void *own = ms_calloc((int64_t)of->bytes, 1);
  int rc = own ? take_settings(of, config, size, own) : MS_ENOMEM;
  if (!rc) rc = ms_settings_check(type, own);
  free(own);
  return rc;
}

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

int ms_op_describe(int op, ms_op_info *info, int size) {
  MS_GIVEN(info);
  const ms_op_row *row = ms_op_row_of(op);
  if (!row) return MS_FAIL(MS_EINVAL, "op %d: there are ops 0 to %d", op, MS_OP_COUNT - 1);
  const ms_op_info own = {
      .name = row->name,
      .attrs = row->attrs,
      .doc = row->doc,
      .min_inputs = row->min_inputs,
      .max_inputs = row->max_inputs,
      .outputs = row->outputs,
      .differentiable = row->grad != NULL,
      .internal = (row->flags & MS_OP_INTERNAL) != 0,
      .kernel_shape = ms_op_kernel_shape(op),
  };
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
