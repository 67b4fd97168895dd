/* model_shard.c - builds a model: its units, its parameters, and the mesh over which it is sharded. Configs are checked
 * in check_configs.c.
 *
 * This is bookkeeping by name and shape; it allocates no memory of the parameters' size, so a model of any size can
 * be described, sharded and planned on any machine.
 */
#include "base/config.h"
#include "base/settings/settings.h"
#include "shard/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers/dtype.h"
#include "base/text/xxh3.h"
#include "graph/partition/placement.h"
#include "shard/divided.h"

/* What ms_model_shard makes: also the parts that one which failed has made. */
static void release_shards(ms_model *model) {
  for (int i = 0; i < model->units; i++) {
    ms_unit *unit = &model->unit[i];
    free(unit->segment);
    unit->segment = NULL;
    unit->segments = 0;
    unit->master_count = unit->trainable_count = unit->divided_count = unit->normed_count = 0;
    unit->gathered_bytes = unit->reduce_bytes = unit->copy_bytes = 0;
  }
  ms_model_leave_mesh(model);
}

static void destroy_model(void *object) {
  ms_model *model = object;
  release_shards(model);
  for (int i = 0; i < model->params; i++) free(model->param[i].name);
  for (int i = 0; i < model->units; i++) {
    free(model->unit[i].name);
    free(model->unit[i].order);
    for (int direction = 0; direction < 2; direction++) free(model->unit[i].ahead[direction].unit);
  }
  free(model->param);
  free(model->unit);
}

int ms_model_new(uint64_t seed, ms_model **out) {
  MS_GIVEN(out);
  ms_model *model = ms_handle_new(MS_HANDLE_MODEL, sizeof *model, destroy_model);
  if (!model) return MS_ENOMEM;
  model->seed = seed;
  *out = model;
  return MS_OK;
}

int ms_storage_record(int dtype, int64_t run, int64_t *elements, int64_t *words) {
  MS_GIVEN(elements);
  MS_GIVEN(words);
  ms_storage storage;
  MS_TRY(ms_storage_of_runs(dtype, run, &storage));
  *elements = storage.elements;
  *words = storage.words;
  return MS_OK;
}

static int check_range(int dtype, int64_t first, int64_t count) {
  if (first >= 0 && count >= 0) return MS_OK;
  return MS_FAIL(MS_EINVAL, "records of %s: cannot read %lld elements from element %lld on", ms_dtype_name(dtype),
                 (long long)count, (long long)first);
}

int ms_storage_read(int dtype, int64_t elements, const void *records, int64_t first, int64_t count, float *out) {
  MS_GIVEN(records);
  MS_GIVEN(out);
  ms_storage storage;
  MS_TRY(ms_storage_find(dtype, elements, &storage));
  MS_TRY(check_range(dtype, first, count));
  ms_storage_decode(&storage, records, first, count, out);
  return MS_OK;
}

int ms_storage_copy(int dtype, int64_t elements, const void *records, int64_t first, int64_t count, int64_t to_elements,
                    void *to, int64_t to_first) {
  MS_GIVEN(records);
  MS_GIVEN(to);
  ms_storage from, into;
  MS_TRY(ms_storage_find(dtype, elements, &from));
  MS_TRY(ms_storage_find(dtype, to_elements, &into));
  MS_TRY(check_range(dtype, first, count));
  if (!from.block || first % from.block || to_first < 0 || to_first % from.block)
    return MS_FAIL(MS_EINVAL, "records of %s: elements %lld to %lld do not begin with a block", ms_dtype_name(dtype),
                   (long long)first, (long long)to_first);
  ms_storage_convert(&from, records, first, count, &into, to, to_first);
  return MS_OK;
}

/* ms_model_shard fixes all offsets, so nothing can be added after it. */
static int check_open(const ms_model *model, const char *what, const char *name) {
  if (!model->sharded) return MS_OK;
  return MS_FAIL(MS_EINVAL, "%s '%s' cannot be added after ms_model_shard: add all units and parameters before it",
                 what, name);
}

int ms_model_add_unit(ms_model *model, const char *name, const ms_unit_config *given, int *unit) {
  MS_HANDLE(model, MODEL);
  MS_GIVEN(name);
  MS_GIVEN(unit);
  MS_TAKE_CONFIG(ms_unit_config, own, given);
  const ms_unit_config *config = &own;
  MS_TRY(check_open(model, "unit", name));
  MS_TRY(ms_model_check_unit(name, config));
  for (int i = 0; i < model->units; i++)
    if (!strcmp(model->unit[i].name, name)) return MS_FAIL(MS_ENAME, "unit '%s' already exists", name);
  MS_TRY(ms_grow((void **)&model->unit, &model->unit_capacity, model->units + 1, sizeof *model->unit));
  ms_unit *u = &model->unit[model->units];
  memset(u, 0, sizeof *u);
  u->ahead[0] = u->ahead[1] = (ms_ahead){.n = -1, .depth = -1};
  u->config = *config;
  u->name = ms_strdup(name);
  if (!u->name) return MS_ENOMEM;
  *unit = model->units++;
  return MS_OK;
}

static uint64_t hash_of(const char *name) { return XXH3_64bits(name, strlen(name)); }

int ms_model_find_param(const ms_model *model, const char *name) {
  const uint64_t hash = hash_of(name);
  for (int i = 0; i < model->params; i++)
    if (model->param[i].name_hash == hash && !strcmp(model->param[i].name, name)) return i;
  return -1;
}

int ms_model_add_param(ms_model *model, int unit, const char *name, int ndim, const int64_t *dims,
                       const ms_param_config *given, int *param) {
  MS_HANDLE(model, MODEL);
  MS_GIVEN(name);
  if (ndim > 0) MS_GIVEN(dims);
  MS_GIVEN(param);
  MS_TAKE_CONFIG(ms_param_config, own, given);
  const ms_param_config *config = &own;
  MS_TRY(check_open(model, "parameter", name));
  MS_TRY(ms_model_check_param(model, unit, name, ndim, dims, config));
  if (ms_model_find_param(model, name) >= 0)
    return MS_FAIL(MS_ENAME, "parameter '%s' already exists; a parameter belongs to exactly one unit", name);
  MS_TRY(ms_grow((void **)&model->param, &model->param_capacity, model->params + 1, sizeof *model->param));
  ms_unit *u = &model->unit[unit];
  MS_TRY(ms_grow((void **)&u->order, &u->order_capacity, u->params + 1, sizeof *u->order));
  ms_param *p = &model->param[model->params];
  memset(p, 0, sizeof *p);
  p->unit = unit;
  p->ndim = ndim;
  p->config = *config;
  if (p->config.param_dtype < 0) p->config.param_dtype = u->config.param_dtype;
  p->numel = p->dims[0] = p->whole[0] = 1; /* a scalar is a row of one element */
  for (int d = 0; d < ndim; d++) {
    p->dims[d] = p->whole[d] = dims[d];
    p->numel *= dims[d];
  }
  p->name_hash = hash_of(name);
  p->name = ms_strdup(name);
  if (!p->name) return MS_ENOMEM;
  model->elements += p->numel;
  u->order[u->params++] = model->params;
  *param = model->params++;
  return MS_OK;
}

int ms_model_describe(const ms_model *model, int param, ms_tensor_info *info, int size) {
  MS_HANDLE(model, MODEL);
  MS_GIVEN(info);
  if (!model->sharded) return MS_FAIL(MS_EINVAL, "call ms_model_shard before ms_model_describe");
  if (param < 0 || param >= model->params)
    return MS_FAIL(MS_EINVAL, "parameter %d: the model has parameters 0 to %d", param, model->params - 1);
  const ms_param *p = &model->param[param];
  ms_tensor_info own = {
      .first = p->first, .count = p->owned, .part = ms_param_division(model, p, model->dim[MS_DIM_TENSOR].place)};
  MS_GIVE_INFO(info, size, own);
}

static int refuse_uneven(const ms_model *model, const ms_param *p) {
  const ms_dim_group *group = &model->dim[MS_DIM_TENSOR];
  char what[192];
  ms_value_info whole = {.ndim = p->ndim};
  for (int d = 0; d < p->ndim; d++) whole.dims[d] = p->whole[d];
  snprintf(what, sizeof what, "parameter '%.160s'", p->name);
  return ms_placement_uneven(what, &whole, p->config.tensor_axis, 1, group->name, group->size);
}

/* Its records consist of whole blocks, and so must the runs of its elements that the ranks of a tensor dimension have.
 */
static int choose_records(const ms_model *model, ms_param *p) {
  const ms_dim_group *tensor = &model->dim[MS_DIM_TENSOR];
  const int dtype = p->config.storage_dtype;
  char fitting[MS_DTYPE_LIST];
  p->storage = (ms_storage){.dtype = MS_F32};
  if (dtype == MS_F32) return MS_OK;
  MS_TRY(ms_storage_find(dtype, 0, &p->storage));
  const int64_t run = ms_param_is_divided(model, p) ? ms_param_division(model, p, 0).run : 0;
  if (!p->storage.block || run % p->storage.block == 0) return ms_storage_of_runs(dtype, run, &p->storage);
  return MS_FAIL(
      MS_EUNSUPPORTED,
      "parameter '%s' is stored in %s, in blocks of %lld elements, which the %d ranks of the dimension %s of "
      "the mesh would cut: along axis %d each has runs of %lld elements; store it in %s, leave it whole "
      "on each rank of %s, or use a mesh whose ranks have multiples of %lld",
      p->name, ms_dtype_name(dtype), (long long)p->storage.block, tensor->size, tensor->label, p->config.tensor_axis,
      (long long)run, ms_storage_fitting(run, fitting), tensor->label, (long long)p->storage.block);
}

/* Gives each parameter the shape of this rank's part, and its records. */
static int divide_params(ms_model *model) {
  const int64_t ranks = model->dim[MS_DIM_TENSOR].size;
  for (int i = 0; i < model->params; i++) {
    ms_param *p = &model->param[i];
    const int axis = p->config.tensor_axis;
    if (axis >= 0 && p->whole[axis] % ranks) return refuse_uneven(model, p);
    p->numel = 1;
    for (int d = 0; d < p->ndim; d++) p->numel *= p->dims[d] = d == axis ? p->whole[d] / ranks : p->whole[d];
    MS_TRY(choose_records(model, p));
  }
  return MS_OK;
}

/* A gathered weight that trains would be a copy of what the last step had. */
static int check_resident(const ms_model *model, int unit) {
  const ms_unit *u = &model->unit[unit];
  int frozen = 0;
  for (int i = 0; i < u->params; i++) {
    const ms_param *p = &model->param[u->order[i]];
    frozen += p->config.frozen;
    if (p->config.frozen && ms_param_is_coded(p))
      return MS_FAIL(MS_EUNSUPPORTED,
                     "unit '%s': reshard = run keeps weights gathered, and '%s' is gathered as 8-bit codes whose scale "
                     "belongs to a step: use reshard = never, or another fp8 recipe than tensorwise",
                     u->name, p->name);
  }
  if (frozen) return MS_OK;
  return MS_FAIL(MS_EINVAL,
                 "unit '%s': reshard = run keeps weights gathered for the whole run, but all its parameters train: "
                 "use it for units with frozen parameters, and never for this one",
                 u->name);
}

int ms_unit_check_reshard(const ms_model *model, int unit, int reshard, int size) {
  const char *name = model->unit[unit].name;
  if (reshard == MS_RESHARD_RUN) MS_TRY(check_resident(model, unit));
  if (size < 0 || (size > 0 && reshard != MS_RESHARD_ALWAYS))
    return MS_FAIL(MS_EINVAL, "unit '%s': reshard_size %d must not be negative, and needs reshard = always", name,
                   size);
  if (size && ms_model_shards(model) % size)
    return MS_FAIL(MS_EINVAL,
                   "unit '%s' cannot be in groups of %d ranks: %d shards are not a multiple of the group size", name,
                   size, ms_model_shards(model));
  return MS_OK;
}

static int check_reshard(const ms_model *model) {
  for (int u = 0; u < model->units; u++) {
    const ms_unit_config *config = &model->unit[u].config;
    MS_TRY(ms_unit_check_reshard(model, u, config->reshard, config->reshard_size));
  }
  return MS_OK;
}

int ms_unit_backward_ranks(const ms_model *model, int unit) {
  const ms_unit_config *config = &model->unit[unit].config;
  if (ms_unit_is_whole(model, &model->unit[unit])) return 1;
  return config->reshard == MS_RESHARD_ALWAYS && config->reshard_size ? config->reshard_size : ms_model_shards(model);
}

/* Replicas that take local steps update all of their weights themselves, without each other. */
static int check_replicas(const ms_model *model) {
  for (int u = 0; u < model->units && ms_model_local_units(model); u++)
    if (model->unit[u].config.shard_over_replicate)
      return MS_FAIL(MS_EINVAL,
                     "unit '%s' has shard_over_replicate, but other units of the model, or it, have a "
                     "fragment: a model has one of the two",
                     model->unit[u].name);
  return MS_OK;
}

int ms_model_shard(ms_model *model, const ms_mesh *mesh, int rank, const ms_model_dims *given) {
  MS_HANDLE(model, MODEL);
  MS_HANDLE(mesh, MESH);
  MS_TAKE_CONFIG(ms_model_dims, own, given);
  if (model->sharded) return MS_FAIL(MS_EINVAL, "the model is already sharded");
  release_shards(model);
  MS_TRY(ms_model_join_mesh(model, mesh, rank, &own));
  MS_TRY(divide_params(model));
  MS_TRY(check_reshard(model));
  MS_TRY(check_replicas(model));
  MS_TRY(ms_muon_check_model(model));
  model->sequence_parallel = own.sequence_parallel;
  MS_TRY(ms_model_segment(model));
  MS_TRY(ms_copies_check_model(model));
  model->sharded = 1;
  return MS_OK;
}

int ms_model_param_info(const void *opaque, int param, ms_param_info *info) {
  const ms_model *model = opaque;
  const ms_param *p = &model->param[param];
  const ms_unit_config *unit = &model->unit[p->unit].config;
  info->name = p->name;
  info->info.dtype = p->config.param_dtype;
  info->info.ndim = p->ndim;
  memcpy(info->info.dims, p->whole, sizeof info->info.dims);
  info->grad_dtype = unit->reduce_dtype;
  info->frozen = p->config.frozen;
  info->fp8 = p->config.fp8;
  return MS_OK;
}
