/* model.c - builds a model: its units, its parameters, and the mesh over which it is sharded.
 *
 * This is bookkeeping by name and shape; it allocates no memory of the parameters' size, so a model of any size can
 * be described, sharded and planned on any machine.
 */
#include "base/config.h"
#include "shard/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "graph/placement.h"
#include "kernels/storage.h"

/* What ms_model_shard makes: also the parts that one which failed has made. */
static void release_shards(ms_model *model) {
  for (int i = 0; i < model->units; i++) {
    free(model->unit[i].segment);
    model->unit[i].segment = NULL;
    model->unit[i].segments = 0;
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

int ms_storage_record(int dtype, int64_t *elements, int64_t *words) {
  MS_GIVEN(elements);
  MS_GIVEN(words);
  const ms_storage *storage;
  MS_TRY(ms_storage_find(dtype, &storage));
  *elements = storage->elements;
  *words = storage->words;
  return MS_OK;
}

int ms_storage_read(int dtype, const void *records, int64_t first, int64_t count, float *out) {
  MS_GIVEN(records);
  MS_GIVEN(out);
  const ms_storage *storage;
  MS_TRY(ms_storage_find(dtype, &storage));
  if (first < 0 || count < 0)
    return MS_FAIL(MS_EINVAL, "records of %s: cannot read %lld elements from element %lld on", ms_dtype_name(dtype),
                   (long long)count, (long long)first);
  ms_storage_decode(dtype, records, first, count, out);
  return MS_OK;
}

void ms_model_free(ms_model *model) { ms_handle_release(model, MS_HANDLE_MODEL); }

void ms_unit_config_default(ms_unit_config *config, int size) {
  static const ms_unit_config defaults = {.param_dtype = MS_F32,
                                          .reduce_dtype = MS_F32,
                                          .layout = MS_LAYOUT_ROWS,
                                          .reshard = MS_RESHARD_DEFAULT,
                                          .replicate_dtype = MS_F32,
                                          .shard_dtype = MS_F32};
  ms_config_give(config, size, &defaults, sizeof defaults, "ms_unit_config");
}

void ms_param_config_default(ms_param_config *config, int size) {
  static const ms_param_config defaults = {.init = MS_INIT_NORMAL,
                                           .init_a = 0,
                                           .init_b = 0.02,
                                           .param_dtype = -1,
                                           .lr_scale = 1,
                                           .tensor_axis = -1,
                                           .storage_dtype = MS_F32,
                                           .gather_dtype = -1};
  ms_config_give(config, size, &defaults, sizeof defaults, "ms_param_config");
}

void ms_model_dims_default(ms_model_dims *dims, int size) {
  static const ms_model_dims defaults = {.replicate = -1, .shard = -1, .tensor = -1, .context = -1};
  ms_config_give(dims, size, &defaults, sizeof defaults, "ms_model_dims");
}

static int check_dtype(const char *kind, const char *name, const char *field, int dtype, int uses) {
  char allowed[MS_DTYPE_LIST];
  if (ms_dtype_may(dtype, uses)) return MS_OK;
  return MS_FAIL(MS_EDTYPE, "%s '%s': %s must be %s, not %s", kind, name, field, ms_dtype_list(uses, allowed),
                 ms_dtype_name(dtype));
}

static int check_sum_dtype(const char *name, const char *field, int dtype) {
  if (dtype == MS_F32 || dtype == MS_I8 || dtype == MS_I4) return MS_OK;
  return MS_FAIL(MS_EDTYPE, "unit '%s': %s must be f32 (as reduce_dtype says), i8 or i4, not %s", name, field,
                 ms_dtype_name(dtype));
}

static int check_sums(const char *name, const ms_unit_config *config) {
  const int replicate = config->replicate_dtype, shard = config->shard_dtype;
  MS_TRY(check_sum_dtype(name, "replicate_dtype", replicate));
  MS_TRY(check_sum_dtype(name, "shard_dtype", shard));
  if (config->error_feedback != 0 && config->error_feedback != 1)
    return MS_FAIL(MS_EINVAL, "unit '%s': error_feedback must be 0 or 1, not %d", name, config->error_feedback);
  if (config->error_feedback && replicate == MS_F32 && shard == MS_F32)
    return MS_FAIL(MS_EINVAL,
                   "unit '%s': error_feedback keeps what sums in i8 or i4 round off, but neither shard_dtype nor "
                   "replicate_dtype is one of these",
                   name);
  if (replicate != MS_F32 && config->fragment)
    return MS_FAIL(MS_EUNSUPPORTED,
                   "unit '%s': replicate_dtype %s with fragment %d: replicas that take local steps send no gradients",
                   name, ms_dtype_name(replicate), config->fragment);
  if ((replicate != MS_F32 || shard != MS_F32) && config->shard_over_replicate)
    return MS_FAIL(MS_EUNSUPPORTED,
                   "unit '%s': %s %s with shard_over_replicate: such units sum gradients only in reduce_dtype", name,
                   replicate != MS_F32 ? "replicate_dtype" : "shard_dtype",
                   ms_dtype_name(replicate != MS_F32 ? replicate : shard));
  return MS_OK;
}

static int check_unit_config(const char *name, const ms_unit_config *config) {
  MS_TRY(check_dtype("unit", name, "param_dtype", config->param_dtype, MS_DTYPE_PARAM));
  MS_TRY(check_dtype("unit", name, "reduce_dtype", config->reduce_dtype, MS_DTYPE_REDUCE));
  MS_TRY(check_sums(name, config));
  if (config->layout != MS_LAYOUT_ROWS && config->layout != MS_LAYOUT_RAGGED)
    return MS_FAIL(MS_EINVAL, "unit '%s': layout must be rows (0) or ragged (1), not %d", name, config->layout);
  if (config->reshard < MS_RESHARD_KEEP || config->reshard > MS_RESHARD_DEFAULT)
    return MS_FAIL(MS_EINVAL, "unit '%s': reshard must be keep (0), always (1) or default (2), not %d", name,
                   config->reshard);
  if (config->fragment < 0)
    return MS_FAIL(MS_EINVAL, "unit '%s': fragment must be 0 (none) or more, not %d", name, config->fragment);
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
  MS_TRY(check_unit_config(name, config));
  for (int i = 0; i < model->units; i++)
    if (!strcmp(model->unit[i].name, name)) return MS_FAIL(MS_ENAME, "unit '%s' already exists", name);
  MS_TRY(ms_grow((void **)&model->unit, &model->unit_capacity, model->units + 1, sizeof *model->unit));
  ms_unit *u = &model->unit[model->units];
  memset(u, 0, sizeof *u);
  u->prefetch = u->ahead[0].n = u->ahead[1].n = -1;
  u->config = *config;
  u->name = ms_strdup(name);
  if (!u->name) return MS_ENOMEM;
  *unit = model->units++;
  return MS_OK;
}

int ms_model_find_param(const ms_model *model, const char *name) {
  for (int i = 0; i < model->params; i++)
    if (!strcmp(model->param[i].name, name)) return i;
  return -1;
}

int ms_model_check_group(const char *name, double lr_scale, double weight_decay) {
  if (!(lr_scale >= 0 && isfinite(lr_scale)))
    return MS_FAIL(MS_EINVAL, "parameter '%s': lr_scale must be 0 or more, not %g", name, lr_scale);
  if (!(weight_decay >= 0 && isfinite(weight_decay)))
    return MS_FAIL(MS_EINVAL, "parameter '%s': weight_decay must be 0 or more, not %g", name, weight_decay);
  return MS_OK;
}

static int check_initial(const char *name, const ms_param_config *config) {
  if (config->init < MS_INIT_ZEROS || config->init > MS_INIT_CONSTANT)
    return MS_FAIL(MS_EINVAL, "parameter '%s': init must be one of enum ms_init, not %d", name, config->init);
  if (!isfinite(config->init_a) || !isfinite(config->init_b))
    return MS_FAIL(MS_EINVAL, "parameter '%s': init_a and init_b must be finite, not %g and %g", name, config->init_a,
                   config->init_b);
  return MS_OK;
}

/* Counts are reported as doubles, which are exact up to here; the bytes of a few tensors then also fit into 63 bits. */
static const int64_t most_elements = (int64_t)1 << 53;

static int check_elements(const ms_model *model, const char *name, int ndim, const int64_t *dims) {
  int64_t elements = 1, all = 0;
  for (int d = 0; d < ndim; d++)
    if (__builtin_mul_overflow(elements, dims[d], &elements) || elements > most_elements)
      return MS_FAIL(MS_ESHAPE, "parameter '%s': its shape has more than 2^53 elements", name);
  if (__builtin_add_overflow(model->elements, elements, &all) || all > most_elements)
    return MS_FAIL(MS_ESHAPE, "parameter '%s': with this parameter the model has more than 2^53 elements", name);
  return MS_OK;
}

static int check_storage(const char *name, const ms_param_config *config) {
  char stored[MS_DTYPE_LIST];
  if (config->storage_dtype == MS_F32) return MS_OK;
  if (!ms_storage_of(config->storage_dtype))
    return MS_FAIL(MS_EDTYPE, "parameter '%s': storage_dtype must be f32, %s, not %s", name,
                   ms_dtype_list(MS_DTYPE_STORED, stored), ms_dtype_name(config->storage_dtype));
  if (config->frozen) return MS_OK;
  return MS_FAIL(MS_EINVAL,
                 "parameter '%s': it trains, so it has an f32 master and cannot be stored in %s: freeze it, or store "
                 "it in f32",
                 name, ms_dtype_name(config->storage_dtype));
}

static int check_gather(const char *name, const ms_param_config *config) {
  const int dtype = config->gather_dtype;
  if (dtype == -1) return MS_OK;
  if (dtype != MS_I8)
    return MS_FAIL(MS_EDTYPE, "parameter '%s': gather_dtype must be i8, or -1 (what it is read in), not %s", name,
                   ms_dtype_name(dtype));
  if (config->storage_dtype != MS_F32)
    return MS_FAIL(MS_EUNSUPPORTED,
                   "parameter '%s': it is stored in %s and gathered as it is stored: leave gather_dtype out, or store "
                   "it in f32",
                   name, ms_dtype_name(config->storage_dtype));
  if (config->fp8 == MS_FP8_TENSORWISE)
    return MS_FAIL(MS_EUNSUPPORTED,
                   "parameter '%s': fp8 tensorwise gathers it as codes of f8e4m3: leave gather_dtype out, or take a "
                   "rowwise recipe",
                   name);
  return MS_OK;
}

static int check_moments(const char *name, const ms_param_config *config) {
  if (config->packed_moments != 0 && config->packed_moments != 1)
    return MS_FAIL(MS_EINVAL, "parameter '%s': packed_moments must be 0 or 1, not %d", name, config->packed_moments);
  if (!config->packed_moments || !config->frozen) return MS_OK;
  return MS_FAIL(MS_EINVAL, "parameter '%s': it is frozen and has no moments: leave packed_moments at 0", name);
}

static int check_param(const ms_model *model, int unit, const char *name, int ndim, const int64_t *dims,
                       const ms_param_config *config) {
  if (unit < 0 || unit >= model->units)
    return MS_FAIL(MS_EINVAL, "parameter '%s': unit %d does not exist; the model has %d units", name, unit,
                   model->units);
  if (ndim < 1 || ndim > MS_MAX_DIMS)
    return MS_FAIL(MS_ESHAPE, "parameter '%s': it has %d dimensions; 1 to %d are supported", name, ndim, MS_MAX_DIMS);
  for (int d = 0; d < ndim; d++)
    if (dims[d] < 1)
      return MS_FAIL(MS_ESHAPE, "parameter '%s': dimension %d has size %lld; sizes must be at least 1", name, d,
                     (long long)dims[d]);
  MS_TRY(check_elements(model, name, ndim, dims));
  if (config->param_dtype != -1) /* -1: the unit's dtype */
    MS_TRY(check_dtype("parameter", name, "param_dtype", config->param_dtype, MS_DTYPE_PARAM));
  if (config->tensor_axis < -1 || config->tensor_axis >= ndim)
    return MS_FAIL(MS_EINVAL, "parameter '%s': tensor_axis is %d; it must be an axis below %d, or -1", name,
                   config->tensor_axis, ndim);
  MS_TRY(check_storage(name, config));
  MS_TRY(check_moments(name, config));
  MS_TRY(check_gather(name, config));
  MS_TRY(ms_muon_check_param(name, ndim, config));
  if (config->fp8 < MS_FP8_NONE || config->fp8 > MS_FP8_MXFP8)
    return MS_FAIL(MS_EINVAL, "parameter '%s': fp8 must be one of enum ms_fp8, not %d", name, config->fp8);
  MS_TRY(check_initial(name, config));
  MS_TRY(ms_model_check_group(name, config->lr_scale, config->weight_decay));
  if (ms_model_find_param(model, name) >= 0)
    return MS_FAIL(MS_ENAME, "parameter '%s' already exists; a parameter belongs to exactly one unit", name);
  return MS_OK;
}

int ms_model_add_param(ms_model *model, int unit, const char *name, int ndim, const int64_t *dims,
                       const ms_param_config *given, int *param) {
  MS_HANDLE(model, MODEL);
  MS_GIVEN(name);
  MS_GIVEN(dims);
  MS_GIVEN(param);
  MS_TAKE_CONFIG(ms_param_config, own, given);
  const ms_param_config *config = &own;
  MS_TRY(check_open(model, "parameter", name));
  MS_TRY(check_param(model, unit, name, ndim, dims, config));
  MS_TRY(ms_grow((void **)&model->param, &model->param_capacity, model->params + 1, sizeof *model->param));
  ms_unit *u = &model->unit[unit];
  MS_TRY(ms_grow((void **)&u->order, &u->order_capacity, u->params + 1, sizeof *u->order));
  ms_param *p = &model->param[model->params];
  memset(p, 0, sizeof *p);
  p->unit = unit;
  p->ndim = ndim;
  p->config = *config;
  if (p->config.param_dtype < 0) p->config.param_dtype = u->config.param_dtype;
  p->numel = 1;
  for (int d = 0; d < ndim; d++) {
    p->dims[d] = p->whole[d] = dims[d];
    p->numel *= dims[d];
  }
  p->name = ms_strdup(name);
  if (!p->name) return MS_ENOMEM;
  model->elements += p->numel;
  u->order[u->params++] = model->params;
  *param = model->params++;
  return MS_OK;
}

int ms_model_params(const ms_model *model) {
  MS_HANDLE_OR(0, model, MODEL);
  return model->params;
}
int ms_model_units(const ms_model *model) {
  MS_HANDLE_OR(0, model, MODEL);
  return model->units;
}

int ms_model_owned(const ms_model *model, int param, int64_t *first, int64_t *count) {
  MS_HANDLE(model, MODEL);
  MS_GIVEN(first);
  MS_GIVEN(count);
  if (!model->sharded) return MS_FAIL(MS_EINVAL, "call ms_model_shard before ms_model_owned");
  if (param < 0 || param >= model->params)
    return MS_FAIL(MS_EINVAL, "parameter %d: the model has parameters 0 to %d", param, model->params - 1);
  *first = model->param[param].first;
  *count = model->param[param].owned;
  return MS_OK;
}

static int refuse_uneven(const ms_model *model, const ms_param *p) {
  const ms_dim_group *group = &model->dim[MS_DIM_TENSOR];
  char what[192];
  ms_value_info whole = {.ndim = p->ndim};
  for (int d = 0; d < p->ndim; d++) whole.dims[d] = p->whole[d];
  snprintf(what, sizeof what, "parameter '%.160s'", p->name);
  return ms_placement_uneven(what, &whole, p->config.tensor_axis, 1, group->name, group->size);
}

static int refuse_divided(const ms_model *model, const ms_param *p) {
  return MS_FAIL(MS_EUNSUPPORTED,
                 "parameter '%s' is stored in %s, whose records the dimension %s of the mesh would cut along axis %d: "
                 "store it in f32, leave it whole on each rank of %s, or use a mesh without that dimension",
                 p->name, ms_dtype_name(p->config.storage_dtype), model->dim[MS_DIM_TENSOR].label,
                 p->config.tensor_axis, model->dim[MS_DIM_TENSOR].label);
}

/* Gives each parameter the shape of this rank's part. */
static int divide_params(ms_model *model) {
  const int64_t ranks = model->dim[MS_DIM_TENSOR].size;
  for (int i = 0; i < model->params; i++) {
    ms_param *p = &model->param[i];
    const int axis = p->config.tensor_axis;
    if (axis >= 0 && p->whole[axis] % ranks) return refuse_uneven(model, p);
    if (axis >= 0 && ranks > 1 && p->config.storage_dtype != MS_F32) return refuse_divided(model, p);
    p->numel = 1;
    for (int d = 0; d < p->ndim; d++) p->numel *= p->dims[d] = d == axis ? p->whole[d] / ranks : p->whole[d];
  }
  return MS_OK;
}

int ms_unit_check_reshard_size(const ms_model *model, int unit, int reshard, int size) {
  const char *name = model->unit[unit].name;
  if (size < 0 || (size > 0 && reshard != MS_RESHARD_ALWAYS))
    return MS_FAIL(MS_EINVAL, "unit '%s': reshard_size %d must not be negative, and needs reshard = always", name,
                   size);
  if (size && ms_model_shards(model) % size)
    return MS_FAIL(MS_EINVAL,
                   "unit '%s': cannot reshard to groups of %d ranks: %d shards are not a multiple of the group size",
                   name, size, ms_model_shards(model));
  return MS_OK;
}

static int check_reshard_sizes(const ms_model *model) {
  for (int u = 0; u < model->units; u++) {
    const ms_unit_config *config = &model->unit[u].config;
    MS_TRY(ms_unit_check_reshard_size(model, u, config->reshard, config->reshard_size));
  }
  return MS_OK;
}

int ms_unit_backward_ranks(const ms_model *model, int unit) {
  const ms_unit_config *config = &model->unit[unit].config;
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
  MS_TRY(check_reshard_sizes(model));
  MS_TRY(check_replicas(model));
  MS_TRY(ms_muon_check_model(model));
  model->sequence_parallel = own.sequence_parallel;
  MS_TRY(ms_model_segment(model));
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
