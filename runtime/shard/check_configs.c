/* check_configs.c - whether a unit or a parameter that is added to a model can be as its config says: what its shape
 * decides, besides the rows of settings.def. What depends on the mesh is checked when the model is divided
 * (model_shard.c, check_muon.c).
 */
#include "base/settings/settings.h"
#include "shard/model.h"

int ms_model_check_unit(const char *name, const ms_unit_config *config) {
  return ms_settings_check("ms_unit_config", config) ? ms_error_prefix("unit '%s'", name) : MS_OK;
}

int ms_model_check_group(const char *name, const ms_param_group *group) {
  return ms_settings_check("ms_param_group", group) ? ms_error_prefix("parameter '%s'", name) : MS_OK;
}

/* Counts are reported as doubles, which are exact up to here; the bytes of a few tensors then also fit into 63 bits. */
static const int64_t max_elements = (int64_t)1 << 53;

static int check_elements(const ms_model *model, const char *name, int ndim, const int64_t *dims) {
  int64_t elements = 1, all = 0;
  for (int d = 0; d < ndim; d++)
    if (__builtin_mul_overflow(elements, dims[d], &elements) || elements > max_elements)
      return MS_FAIL(MS_ESHAPE, "parameter '%s': its shape has more than 2^53 elements", name);
  if (__builtin_add_overflow(model->elements, elements, &all) || all > max_elements)
    return MS_FAIL(MS_ESHAPE, "parameter '%s': with this parameter the model has more than 2^53 elements", name);
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
  if (ms_settings_check("ms_param_config", config)) return ms_error_prefix("parameter '%s'", name);
  if (config->tensor_axis >= ndim)
    return MS_FAIL(MS_EINVAL, "parameter '%s': tensor_axis is %d; it must be an axis below %d, or -1", name,
                   config->tensor_axis, ndim);
  MS_TRY(ms_copies_check_param(model, unit, name, ndim, config));
  return ms_muon_check_param(name, ndim, config);
}
