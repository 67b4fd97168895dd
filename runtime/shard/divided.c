/* divided.c - see divided.h. */
#include "shard/divided.h"

int64_t ms_param_whole_numel(const ms_model *model, const ms_param *p) {
  return ms_param_is_divided(model, p) ? p->numel * model->dim[MS_DIM_TENSOR].size : p->numel;
}

ms_division ms_param_division(const ms_model *model, const ms_param *p, int place) {
  int64_t run = 1;
  if (!ms_param_is_divided(model, p)) return (ms_division){.run = p->numel, .stride = p->numel};
  for (int d = p->config.tensor_axis; d < p->ndim; d++) run *= p->dims[d];
  return (ms_division){.run = run, .stride = run * model->dim[MS_DIM_TENSOR].size, .origin = run * place};
}

int64_t ms_division_index(const ms_division *part, int64_t element, int64_t *run) {
  const int64_t within = element % part->run;
  *run = part->run - within;
  return element / part->run * part->stride + part->origin + within;
}

int64_t ms_division_below(const ms_division *part, int64_t index) {
  const int64_t within = index % part->stride - part->origin;
  return index / part->stride * part->run + (within < 0 ? 0 : within > part->run ? part->run : within);
}
