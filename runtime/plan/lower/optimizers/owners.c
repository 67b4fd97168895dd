/* owners.c - buckets of matrices, their owners by the work that each takes, and the elements that ranks have of them.
 */
#include <stdlib.h>

#include "base/config.h"
#include "base/least.h"
#include "plan/layout/replica_slices.h"
#include "plan/layout/state_layout.h"
#include "plan/lower/optimizers/owners.h"
#include "plan/optimizer.h"
#include "shard/divided.h"

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
/* The work of a matrix' owner. */
static double flops_of(const ms_plan *plan, const ms_param *p) {
  const ms_value_info shape = {.dtype = MS_F32, .ndim = 2, .dims = {p->whole[0], p->whole[1]}};
  return ms_param_optimizer(&plan->config, p)->flops(&plan->config, &shape);
}

static int is_wanted(const ms_plan *plan, int param) {
  const ms_optimizer *by = ms_param_optimizer(&plan->config, &plan->model->param[param]);
  return by && plan->has_gradient[param] && ms_optimizer_has(by, MS_STEP_TO_OWNER);
}

static int ranks_of(const ms_model *model) {
  int ranks = 1;
  for (int d = 0; d < MS_GRID_DIMS; d++) ranks *= model->dim[d].size;
  return ranks;
}

/* Lists the matrices unit by unit. A bucket ends with a unit when its work, evenly divided, takes as long as its
 * largest matrix: then it can keep all ranks at work, and a smaller one could not. */
static void fill_buckets(ms_plan *plan) {
  const ms_model *model = plan->model;
  double work = 0, largest = 0;
  int n = 0, *begin = plan->owned_bucket;
  for (int u = 0; u < model->units; u++) {
    for (int i = 0; i < model->unit[u].params; i++) {
      const int param = model->unit[u].order[i];
      if (!is_wanted(plan, param)) continue;
      const double flops = flops_of(plan, &model->param[param]);
      work += flops;
      if (flops > largest) largest = flops;
      plan->owned[n++] = param;
    }
    if (n == begin[plan->owned_buckets] || work < ranks_of(model) * largest) continue;
    begin[++plan->owned_buckets] = n;
    work = largest = 0;
  }
  if (n > begin[plan->owned_buckets]) begin[++plan->owned_buckets] = n;
}

/* The matrix of a bucket with the most work that has no owner yet, of equal ones the first; -1: none. */
static int next_param(const ms_plan *plan, int bucket) {
  int found = -1;
  for (int i = plan->owned_bucket[bucket]; i < plan->owned_bucket[bucket + 1]; i++) {
    const int param = plan->owned[i];
    if (plan->owner[param] >= 0) continue;
    if (found < 0 || flops_of(plan, &plan->model->param[param]) > flops_of(plan, &plan->model->param[found]))
      found = param;
  }
  return found;
}

static void choose_owners(ms_plan *plan, double *work) {
  const int ranks = ranks_of(plan->model);
  for (int b = 0; b < plan->owned_buckets; b++)
    for (int p = next_param(plan, b); p >= 0; p = next_param(plan, b)) {
      int owner = 0;
      for (int r = 1; r < ranks; r++)
        if (work[r] < work[owner]) owner = r;
      plan->owner[p] = owner;
      work[owner] += flops_of(plan, &plan->model->param[p]);
    }
}

int ms_find_owners(ms_plan *plan) {
  const ms_model *model = plan->model;
  int any = 0;
  for (int i = 0; i < model->params; i++) any |= is_wanted(plan, i);
  if (!any) return MS_OK;
  double *work = ms_calloc(ranks_of(model), sizeof *work);
  plan->owner = ms_calloc(model->params, sizeof *plan->owner);
  plan->owned = ms_calloc(model->params, sizeof *plan->owned);
  plan->owned_bucket = ms_calloc(model->units + 1, sizeof *plan->owned_bucket);
  if (!work || !plan->owner || !plan->owned || !plan->owned_bucket) {
    free(work);
    return MS_ENOMEM;
  }
  for (int i = 0; i < model->params; i++) plan->owner[i] = -1;
  fill_buckets(plan);
  choose_owners(plan, work);
  free(work);
  return MS_OK;
}

int ms_owner_place(const ms_plan *plan, int param, int dim) {
  int inner = 1;
  for (int d = dim + 1; d < MS_GRID_DIMS; d++) inner *= plan->model->dim[d].size;
  return plan->owner[param] / inner % plan->model->dim[dim].size;
}

ms_owned_range ms_owned_chunk(const ms_plan *plan, int param, int shard) {
  const ms_param *p = &plan->model->param[param];
  const ms_segment *segment = &plan->model->unit[p->unit].segment[p->segment];
  const int64_t chunk = segment->chunk * shard;
  const int64_t begin = most(p->offset, chunk), end = ms_least(p->offset + p->numel, chunk + segment->chunk);
  if (end <= begin) return (ms_owned_range){.local = segment->local};
  return (ms_owned_range){begin - p->offset, end - begin, segment->local + begin - chunk};
}

ms_owned_range ms_owned_slice(const ms_plan *plan, int param, int replica, int shard) {
  const ms_unit *unit = &plan->model->unit[plan->model->param[param].unit];
  const ms_owned_range chunk = ms_owned_chunk(plan, param, shard);
  int64_t first;
  const int64_t n = ms_unit_slice_of(plan->model, unit, plan->layout->replicas, replica, &first);
  const int64_t begin = most(chunk.local, first), end = ms_least(chunk.local + chunk.count, first + n);
  if (end <= begin) return (ms_owned_range){.first = chunk.first, .local = chunk.local};
  return (ms_owned_range){chunk.first + begin - chunk.local, end - begin, begin};
}

int ms_plan_describe(const ms_plan *plan, int param, ms_tensor_info *info, int size) {
  MS_HANDLE(plan, PLAN);
  MS_GIVEN(info);
  const ms_model *model = plan->model;
  if (param < 0 || param >= model->params)
    return MS_FAIL(MS_EINVAL, "parameter %d does not exist; the model has %d", param, model->params);
  const ms_param *p = &model->param[param];
  ms_tensor_info own = {.first = p->first,
                        .count = p->owned,
                        .sliced = ms_param_is_sliced(model, p, plan->layout->replicas),
                        .part = ms_param_division(model, p, model->dim[MS_DIM_TENSOR].place),
                        .muon_owner = -1};
  int64_t place;
  if (own.sliced) own.count = ms_param_slice(model, p, plan->layout->replicas, &own.first, &place);
  if (ms_has_owner(plan, param)) {
    int at[MS_GRID_DIMS];
    for (int d = 0; d < MS_GRID_DIMS; d++) at[d] = ms_owner_place(plan, param, d);
    own.muon_owner = ms_grid_rank(model, at);
    own.muon_flops = flops_of(plan, p);
  }
  MS_GIVE_INFO(info, size, own);
}
