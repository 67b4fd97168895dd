/* owners.c - buckets of matrices, their owners by the work that each takes, and the elements that ranks have of them.
 */
#include <stdlib.h>

#include "base/config.h"
#include "base/min.h"
#include "plan/layout/replica_slices.h"
#include "plan/layout/state_layout.h"
#include "plan/lower/optimizers/owners.h"
#include "plan/optimizer.h"
#include "shard/divided.h"

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static const ms_param *param_of(const ms_plan *plan, const ms_owned *o) { return &plan->model->param[o->param]; }

static int is_wanted(const ms_plan *plan, int param) {
  const ms_optimizer *by = ms_param_optimizer(&plan->config, &plan->model->param[param]);
  return by && plan->has_gradient[param] && ms_optimizer_has(by, MS_STEP_TO_OWNER);
}

static int ranks_of(const ms_model *model) {
  int ranks = 1;
  for (int d = 0; d < MS_GRID_DIMS; d++) ranks *= model->dim[d].size;
  return ranks;
}

/* ---- what has one owner ------------------------------------------------------------------------------------------ */

/* In how many runs of whole matrices a parameter can be cut such that ranks of tensor have parts of each. */
static int64_t cuts_of(const ms_plan *plan, const ms_param *p) {
  const int64_t matrices = ms_matrices_of(&plan->config, p).dims[0];
  const int64_t blocks = p->numel / ms_param_division(plan->model, p, 0).run;
  return ms_param_is_divided(plan->model, p) ? ms_min(matrices, blocks) : matrices;
}

static int64_t runs_of(const ms_plan *plan, int param) {
  return is_wanted(plan, param) ? ms_min(cuts_of(plan, &plan->model->param[param]), ranks_of(plan->model)) : 0;
}

static ms_owned run_of(const ms_plan *plan, int param, int64_t i, int64_t runs) {
  const ms_param *p = &plan->model->param[param];
  const ms_value_info all = ms_matrices_of(&plan->config, p);
  const int64_t cuts = cuts_of(plan, p), begin = i * cuts / runs, end = (i + 1) * cuts / runs;
  ms_owned o = {.param = param, .owner = -1, .matrices = (end - begin) * (all.dims[0] / cuts)};
  o.first = begin * (p->numel / cuts);
  o.count = (end - begin) * (p->numel / cuts);
  const ms_value_info shape = ms_owned_shape(plan, &o);
  o.flops = ms_param_optimizer(&plan->config, p)->flops(&plan->config, &shape);
  return o;
}

ms_value_info ms_owned_shape(const ms_plan *plan, const ms_owned *o) {
  const ms_value_info all = ms_matrices_of(&plan->config, param_of(plan, o));
  if (o->matrices > 1)
    return (ms_value_info){.dtype = MS_F32, .ndim = 3, .dims = {o->matrices, all.dims[1], all.dims[2]}};
  return (ms_value_info){.dtype = MS_F32, .ndim = 2, .dims = {all.dims[1], all.dims[2]}};
}

/* ---- buckets and owners ------------------------------------------------------------------------------------------ */

/* Lists the matrices unit by unit. A bucket ends with a unit when its work, evenly divided, takes as long as its
 * largest matrix: then it can keep all ranks at work, and a smaller one could not. */
static void fill_buckets(ms_plan *plan) {
  const ms_model *model = plan->model;
  double work = 0, largest = 0;
  int n = 0, *begin = plan->owned_bucket;
  for (int u = 0; u < model->units; u++) {
    for (int i = 0; i < model->unit[u].params; i++) {
      const int param = model->unit[u].order[i];
      const int64_t runs = runs_of(plan, param);
      for (int64_t r = 0; r < runs; r++) {
        const ms_owned o = run_of(plan, param, r, runs);
        work += o.flops;
        if (o.flops > largest) largest = o.flops;
        plan->owned[n++] = o;
      }
    }
    if (n == begin[plan->owned_buckets] || work < ranks_of(model) * largest) continue;
    begin[++plan->owned_buckets] = n;
    work = largest = 0;
  }
  if (n > begin[plan->owned_buckets]) begin[++plan->owned_buckets] = n;
}

/* What has the most work of a bucket and no owner yet, of equals the first; NULL: nothing. */
static ms_owned *next_of(const ms_plan *plan, int bucket) {
  ms_owned *found = NULL;
  for (int i = plan->owned_bucket[bucket]; i < plan->owned_bucket[bucket + 1]; i++) {
    ms_owned *o = &plan->owned[i];
    if (o->owner < 0 && (!found || o->flops > found->flops)) found = o;
  }
  return found;
}

static void choose_owners(ms_plan *plan, double *work) {
  const int ranks = ranks_of(plan->model);
  for (int b = 0; b < plan->owned_buckets; b++)
    for (ms_owned *o = next_of(plan, b); o; o = next_of(plan, b)) {
      int owner = 0;
      for (int r = 1; r < ranks; r++)
        if (work[r] < work[owner]) owner = r;
      o->owner = owner;
      work[owner] += o->flops;
    }
}

int ms_find_owners(ms_plan *plan) {
  const ms_model *model = plan->model;
  int64_t all = 0;
  for (int i = 0; i < model->params; i++) all += runs_of(plan, i);
  if (!all) return MS_OK;
  double *work = ms_calloc(ranks_of(model), sizeof *work);
  plan->owned = ms_calloc(all, sizeof *plan->owned);
  plan->owned_bucket = ms_calloc(model->units + 1, sizeof *plan->owned_bucket);
  if (!work || !plan->owned || !plan->owned_bucket) {
    free(work);
    return MS_ENOMEM;
  }
  fill_buckets(plan);
  choose_owners(plan, work);
  free(work);
  return MS_OK;
}

int ms_owner_place(const ms_plan *plan, const ms_owned *o, int dim) {
  int inner = 1;
  for (int d = dim + 1; d < MS_GRID_DIMS; d++) inner *= plan->model->dim[d].size;
  return o->owner / inner % plan->model->dim[dim].size;
}

/* ---- what ranks have of it --------------------------------------------------------------------------------------- */

ms_owned_range ms_owned_chunk(const ms_plan *plan, const ms_owned *o, int shard) {
  const ms_param *p = param_of(plan, o);
  const ms_segment *segment = &plan->model->unit[p->unit].segment[p->segment];
  const int64_t chunk = segment->chunk * shard, own = p->offset + o->first;
  const int64_t begin = most(own, chunk), end = ms_min(own + o->count, chunk + segment->chunk);
  if (end <= begin) return (ms_owned_range){.local = segment->local};
  return (ms_owned_range){begin - own, end - begin, segment->local + begin - chunk};
}

ms_owned_range ms_owned_slice(const ms_plan *plan, const ms_owned *o, int replica, int shard) {
  const ms_unit *unit = &plan->model->unit[param_of(plan, o)->unit];
  const ms_owned_range chunk = ms_owned_chunk(plan, o, shard);
  int64_t first;
  const int64_t n = ms_unit_slice_of(plan->model, unit, plan->layout->replicas, replica, &first);
  const int64_t begin = most(chunk.local, first), end = ms_min(chunk.local + chunk.count, first + n);
  if (end <= begin) return (ms_owned_range){.first = chunk.first, .local = chunk.local};
  return (ms_owned_range){chunk.first + begin - chunk.local, end - begin, begin};
}

/* ---- for the public header --------------------------------------------------------------------------------------- */

static int check_param(const ms_plan *plan, int param) {
  const int params = plan->model->params;
  if (param >= 0 && param < params) return MS_OK;
  return MS_FAIL(MS_EINVAL, "parameter %d does not exist; the model has %d", param, params);
}

int ms_plan_describe(const ms_plan *plan, int param, ms_tensor_info *info, int size) {
  MS_HANDLE(plan, PLAN);
  MS_GIVEN(info);
  MS_TRY(check_param(plan, param));
  const ms_model *model = plan->model;
  const ms_param *p = &model->param[param];
  ms_tensor_info own = {.first = p->first,
                        .count = p->owned,
                        .sliced = ms_param_is_sliced(model, p, plan->layout->replicas),
                        .part = ms_param_division(model, p, model->dim[MS_DIM_TENSOR].place)};
  int64_t place;
  if (own.sliced) own.count = ms_param_slice(model, p, plan->layout->replicas, &own.first, &place);
  MS_GIVE_INFO(info, size, own);
}

int ms_plan_owner(const ms_plan *plan, int param, int part, int *rank, double *flops) {
  MS_HANDLE(plan, PLAN);
  MS_GIVEN(rank);
  MS_GIVEN(flops);
  MS_TRY(check_param(plan, param));
  *rank = -1;
  *flops = 0;
  for (int i = 0; i < ms_owned_count(plan); i++) {
    const ms_owned *o = &plan->owned[i];
    if (o->param != param || part-- != 0) continue;
    int at[MS_GRID_DIMS];
    for (int d = 0; d < MS_GRID_DIMS; d++) at[d] = ms_owner_place(plan, o, d);
    *rank = ms_grid_rank(plan->model, at);
    *flops = o->flops;
  }
  return MS_OK;
}
