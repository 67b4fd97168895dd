/* divided.c - see divided.h. */
#include "shard/divided.h"

int64_t ms_param_whole_numel(const ms_model *model, const ms_param *p) {
  return ms_param_is_divided(model, p) ? p->numel * model->dim[MS_DIM_TENSOR].size : p->numel;
}

/* Elements of the part from one cut to the next. */
static int64_t run_of(const ms_model *model, const ms_param *p) {
  int64_t run = 1;
  if (!ms_param_is_divided(model, p)) return p->numel;
  for (int d = p->config.tensor_axis; d < p->ndim; d++) run *= p->dims[d];
  return run;
}

int64_t ms_param_whole_index(const ms_model *model, const ms_param *p, int place, int64_t element, int64_t *run) {
  const int64_t all = run_of(model, p), block = element / all, within = element % all;
  *run = all - within;
  if (!ms_param_is_divided(model, p)) return element;
  return (block * model->dim[MS_DIM_TENSOR].size + place) * all + within;
}

int ms_model_whole_index(const ms_model *model, int param, int64_t element, int64_t *index, int64_t *run) {
  MS_HANDLE(model, MODEL);
  MS_GIVEN(index);
  MS_GIVEN(run);
  if (!model->sharded) return MS_FAIL(MS_EINVAL, "call ms_model_shard before ms_model_whole_index");
  if (param < 0 || param >= model->params)
    return MS_FAIL(MS_EINVAL, "parameter %d: the model has parameters 0 to %d", param, model->params - 1);
  const ms_param *p = &model->param[param];
  if (element < 0 || element >= p->numel)
    return MS_FAIL(MS_EINVAL, "parameter '%s': this rank's part has elements 0 to %lld, not %lld", p->name,
                   (long long)p->numel - 1, (long long)element);
  *index = ms_param_whole_index(model, p, model->dim[MS_DIM_TENSOR].place, element, run);
  return MS_OK;
}

int64_t ms_param_part_below(const ms_model *model, const ms_param *p, int place, int64_t index) {
  if (!ms_param_is_divided(model, p)) return index;
  const int64_t run = run_of(model, p), whole = run * model->dim[MS_DIM_TENSOR].size;
  const int64_t within = index % whole - place * run;
  return index / whole * run + (within < 0 ? 0 : within > run ? run : within);
}
