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

int64_t ms_param_part_below(const ms_model *model, const ms_param *p, int place, int64_t index) {
  if (!ms_param_is_divided(model, p)) return index;
  const int64_t run = run_of(model, p), whole = run * model->dim[MS_DIM_TENSOR].size;
  const int64_t within = index % whole - place * run;
  return index / whole * run + (within < 0 ? 0 : within > run ? run : within);
}
