/* muon_owners.c - owners of matrices, by the work of their iterations, and the elements that ranks have of them. */
#include <stdlib.h>

#include "kernels/orthogonalise.h"
#include "base/least.h"
#include "plan/muon.h"

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static double flops_of(const ms_plan *plan, const ms_param *p) {
  const ms_value_info shape = {.dtype = MS_F32, .ndim = 2, .dims = {p->dims[0], p->dims[1]}};
  return ms_orthogonalise_flops(plan->config.muon_steps, &shape);
}

/* The parameter with the most work that has no owner yet, of equal ones the first; -1: none. */
static int next_param(const ms_plan *plan) {
  int found = -1;
  for (int i = 0; i < plan->model->params; i++) {
    const ms_param *p = &plan->model->param[i];
    if (!ms_param_takes_muon(p) || !plan->has_gradient[i] || plan->muon_owner[i] >= 0) continue;
    if (found < 0 || flops_of(plan, p) > flops_of(plan, &plan->model->param[found])) found = i;
  }
  return found;
}

/* A plan without another optimizer has none for parameters that do not say muon. */
static int check_all_take_it(const ms_plan *plan) {
  if (plan->config.optimizer != MS_OPT_MUON) return MS_OK;
  for (int i = 0; i < plan->model->params; i++) {
    const ms_param *p = &plan->model->param[i];
    if (!p->config.frozen && !ms_param_takes_muon(p))
      return MS_FAIL(MS_EINVAL,
                     "parameter '%s' trains and does not take muon, and the plan has no other optimizer: give it adamw",
                     p->name);
  }
  return MS_OK;
}

int ms_muon_find_owners(ms_plan *plan) {
  const int ranks = ms_model_replicas(plan->model) * ms_model_shards(plan->model);
  int any = 0;
  MS_TRY(check_all_take_it(plan));
  for (int i = 0; i < plan->model->params; i++) any |= ms_param_takes_muon(&plan->model->param[i]);
  if (!any) return MS_OK;
  double *work = ms_calloc(ranks, sizeof *work);
  plan->muon_owner = ms_calloc(plan->model->params, sizeof *plan->muon_owner);
  if (!work || !plan->muon_owner) {
    free(work);
    return MS_ENOMEM;
  }
  for (int i = 0; i < plan->model->params; i++) plan->muon_owner[i] = -1;
  for (int p = next_param(plan); p >= 0; p = next_param(plan)) {
    int owner = 0;
    for (int r = 1; r < ranks; r++)
      if (work[r] < work[owner]) owner = r;
    plan->muon_owner[p] = owner;
    work[owner] += flops_of(plan, &plan->model->param[p]);
  }
  free(work);
  return MS_OK;
}

int ms_muon_any(const ms_plan *plan) {
  for (int i = 0; i < plan->model->params; i++)
    if (ms_muon_is_taken(plan, i)) return 1;
  return 0;
}

ms_muon_range ms_muon_chunk(const ms_plan *plan, int param, int shard) {
  const ms_param *p = &plan->model->param[param];
  const ms_segment *segment = &plan->model->unit[p->unit].segment[p->segment];
  const int64_t chunk = segment->chunk * shard;
  const int64_t begin = most(p->offset, chunk), end = ms_least(p->offset + p->numel, chunk + segment->chunk);
  if (end <= begin) return (ms_muon_range){.local = segment->local};
  return (ms_muon_range){begin - p->offset, end - begin, segment->local + begin - chunk};
}

ms_muon_range ms_muon_slice(const ms_plan *plan, int param, int replica, int shard) {
  const ms_unit *unit = &plan->model->unit[plan->model->param[param].unit];
  const ms_muon_range chunk = ms_muon_chunk(plan, param, shard);
  int64_t first;
  const int64_t n = ms_unit_slice_of(plan->model, unit, plan->replicas, replica, &first);
  const int64_t begin = most(chunk.local, first), end = ms_least(chunk.local + chunk.count, first + n);
  if (end <= begin) return (ms_muon_range){.first = chunk.first, .local = chunk.local};
  return (ms_muon_range){chunk.first + begin - chunk.local, end - begin, begin};
}

int ms_plan_muon(const ms_plan *plan, int param, int *owner, double *flops) {
  MS_HANDLE(plan, PLAN);
  MS_GIVEN(owner);
  MS_GIVEN(flops);
  if (param < 0 || param >= plan->model->params)
    return MS_FAIL(MS_EINVAL, "parameter %d does not exist; the model has %d", param, plan->model->params);
  *owner = -1;
  *flops = 0;
  if (!ms_muon_is_taken(plan, param)) return MS_OK;
  *owner = ms_grid_sibling(plan->model, ms_muon_replica(plan, param), ms_muon_shard(plan, param));
  *flops = flops_of(plan, &plan->model->param[param]);
  return MS_OK;
}
