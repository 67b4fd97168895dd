/* check_configs.c - whether a unit or a parameter that is added to a model can be as its config says. What depends on
 * the mesh is checked when the model is divided (model.c, check_muon.c).
 */
#include <math.h>

#include "base/numbers/dtype.h"
#include "kernels/formats/storage.h"
#include "shard/model.h"
#include "shard/param_group.h"

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

int ms_model_check_unit(const char *name, const ms_unit_config *config) {
  MS_TRY(check_dtype("unit", name, "param_dtype", config->param_dtype, MS_DTYPE_PARAM));
  MS_TRY(check_dtype("unit", name, "reduce_dtype", config->reduce_dtype, MS_DTYPE_REDUCE));
  MS_TRY(check_sums(name, config));
  if (config->layout != MS_LAYOUT_ROWS && config->layout != MS_LAYOUT_RAGGED)
    return MS_FAIL(MS_EINVAL, "unit '%s': layout must be rows (0) or ragged (1), not %d", name, config->layout);
  if (config->reshard < MS_RESHARD_KEEP || config->reshard > MS_RESHARD_DEFAULT)
    return MS_FAIL(MS_EINVAL, "unit '%s': reshard must be keep (0), always (1) or default (2), not %d", name,
                   config->reshard);
  if (config->param_copy != 0 && config->param_copy != 1)
    return MS_FAIL(MS_EINVAL, "unit '%s': param_copy must be 0 or 1, not %d", name, config->param_copy);
  if (config->fragment < 0)
    return MS_FAIL(MS_EINVAL, "unit '%s': fragment must be 0 (none) or more, not %d", name, config->fragment);
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
  if (!ms_storage_has(config->storage_dtype))
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

static int check_balance(const char *name, const ms_param_config *config) {
  if (!(config->balance >= 0 && isfinite(config->balance)))
    return MS_FAIL(MS_EINVAL, "parameter '%s': balance must be 0 or more, not %g", name, config->balance);
  if (config->balance > 0 && config->tensor_axis >= 0)
    return MS_FAIL(MS_EUNSUPPORTED,
                   "parameter '%s': it is balanced, which every rank of the tensor dimension does with "
                   "all of it: leave tensor_axis at -1",
                   name);
  return MS_OK;
}

int ms_model_check_param(const ms_model *model, int unit, const char *name, int ndim, const int64_t *dims,
                         const ms_param_config *config) {
  if (unit < 0 || unit >= model->units)
    return MS_FAIL(MS_EINVAL, "parameter '%s': unit %d does not exist; the model has %d units", name, unit,
                   model->units);
  if (ndim < 0 || ndim > MS_MAX_DIMS)
    return MS_FAIL(MS_ESHAPE, "parameter '%s': it has %d dimensions; 0 to %d are supported", name, ndim, MS_MAX_DIMS);
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
  MS_TRY(ms_copies_check_param(model, unit, name, config));
  MS_TRY(check_balance(name, config));
  MS_TRY(ms_muon_check_param(name, ndim, config));
  if (config->fp8 < MS_FP8_NONE || config->fp8 > MS_FP8_MXFP8)
    return MS_FAIL(MS_EINVAL, "parameter '%s': fp8 must be one of enum ms_fp8, not %d", name, config->fp8);
  MS_TRY(check_initial(name, config));
  return ms_group_check(name, &config->group);
}
