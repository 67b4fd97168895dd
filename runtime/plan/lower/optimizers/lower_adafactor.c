/* lower_adafactor.c - the updates of parameters by Adafactor (kernels/adafactor.h), whose averages are of whole
 * matrices (factors.h), while every rank has chunks of them. What all parameters go through together:
 *
 *   adafactor_sums      of the squares of this rank's gradients, by row and by column; sum_squares of its weights
 *   all_reduce          of these, in one buffer
 *   adafactor_average   on every rank, of the same sums, so averages are the same bits
 *   adafactor_norm      the squares of this rank's updates
 *   all_reduce          of these: a number for each parameter
 *   adafactor           the step, on this rank's elements
 *
 * Where several ranks have the same elements (replicas with copies of their own, ranks of a tensor dimension that does
 * not divide a parameter), the first one alone adds its own, so all sums are over the whole mesh.
 */
#include <stdlib.h>

#include "kernels/clip.h"
#include "plan/layout/factors.h"
#include "plan/lower/lower.h"
#include "plan/optimizer.h"
#include "plan/layout/replica_slices.h"

static const char scope[] = "adafactor";
enum { UPDATE = MS_PHASE_UPDATE };

/* A parameter that has a gradient in this step. */
typedef struct item {
  int param;
  ms_factored at;
  ms_stretch own;   /* what this rank updates */
  int64_t averages; /* the first of them in its unit's buffer */
  int64_t sums;     /* the first of its rows' in the buffer of sums; the sum of squares of its weights is the last */
  int64_t means;
} item;

typedef struct adafactor {
  ms_plan *plan;
  item *list; /* [n] */
  int n;
  int64_t sums, means;               /* elements of all */
  int sums_at, squares_at, means_at; /* buffers; squares: [n] of the updates */
} adafactor;

static ms_ref vector(int buffer, int64_t first, int64_t n) { return ms_ref_vector(buffer, 4 * first, MS_F32, n); }
static ms_ref number(int buffer, int64_t at) { return ms_ref_scalar(buffer, 4 * at); }
static const ms_param *param_of(const adafactor *a, const item *x) { return &a->plan->model->param[x->param]; }
static int64_t rows_of(const item *x) { return ms_factored_row_count(&x->at); }
static int64_t columns_of(const item *x) { return ms_factored_column_count(&x->at); }

static void add(adafactor *a, int param) {
  ms_plan *plan = a->plan;
  const ms_param *p = &plan->model->param[param];
  item *x = &a->list[a->n++];
  *x = (item){.param = param, .at = ms_factored_param(plan->model, p), .sums = a->sums, .means = a->means};
  if (p->owned) x->own = ms_lower_own_part(plan, p->unit, p->local, p->local + p->owned);
  if (x->own.end <= x->own.begin) x->own = (ms_stretch){0, 0};
  else x->at.first = p->first + x->own.begin - p->local;
  x->averages = ms_param_factors_first(plan->model, param, plan->config.optimizer);
  a->sums += rows_of(x) + columns_of(x) + 1;
  a->means += x->at.matrices + 1;
}

static int list_params(adafactor *a) {
  const ms_plan *plan = a->plan;
  a->list = ms_calloc(plan->model->params, sizeof *a->list);
  if (!a->list) return MS_ENOMEM;
  for (int u = 0; u < plan->model->units; u++)
    for (int i = 0; i < plan->model->unit[u].params; i++) {
      const int param = plan->model->unit[u].order[i];
      if (plan->has_gradient[param] && ms_param_takes_adafactor(&plan->model->param[param], plan->config.optimizer))
        add(a, param);
    }
  return MS_OK;
}

/* 1 when this rank is the first of those that have its elements of a parameter. */
static int adds(const adafactor *a, const item *x) {
  const ms_model *model = a->plan->model;
  const ms_param *p = param_of(a, x);
  const int sliced = ms_unit_is_sliced(model, &model->unit[p->unit], a->plan->replicas);
  return (sliced || model->dim[MS_DIM_REPLICATE].place < a->plan->replicas) &&
         ms_unit_counts_here(model, &model->unit[p->unit], a->plan->replicas) &&
         (ms_param_is_divided(model, p) || model->dim[MS_DIM_TENSOR].place == 0);
}

static ms_stretch added(const adafactor *a, const item *x) {
  return adds(a, x) ? x->own : (ms_stretch){x->own.begin, x->own.begin};
}

static ms_op_attrs attrs_of(const adafactor *a, const item *x) {
  ms_op_attrs attrs = {0};
  ms_factored_set(&attrs, &x->at);
  attrs.factored.clip = a->plan->config.max_value;
  return attrs;
}

static ms_ref row_averages(const adafactor *a, const item *x) {
  return vector(ms_state_buffer(param_of(a, x)->unit, MS_SLOT_FACTORS), x->averages, rows_of(x));
}
static ms_ref column_averages(const adafactor *a, const item *x) {
  return vector(ms_state_buffer(param_of(a, x)->unit, MS_SLOT_FACTORS), x->averages + rows_of(x), columns_of(x));
}
static ms_ref row_sums(const adafactor *a, const item *x) { return vector(a->sums_at, x->sums, rows_of(x)); }
static ms_ref column_sums(const adafactor *a, const item *x) {
  return vector(a->sums_at, x->sums + rows_of(x), columns_of(x));
}
static ms_ref weight_squares(const adafactor *a, const item *x) {
  return number(a->sums_at, x->sums + rows_of(x) + columns_of(x));
}

/* ---- the kernels of a parameter ---------------------------------------------------------------------------------- */

static int sum(const adafactor *a, const item *x) {
  ms_plan *plan = a->plan;
  const ms_param *p = param_of(a, x);
  const ms_stretch own = added(a, x);
  const ms_op_attrs attrs = attrs_of(a, x), none = {0};
  const ms_ref in[] = {ms_lower_gradients_of(plan, p->unit, own), ms_lower_norm_of(plan, x->param)};
  const ms_ref out[] = {row_sums(a, x), column_sums(a, x)};
  const ms_ref weights = ms_lower_masters(plan, p->unit, p->segment, own), squares = weight_squares(a, x);
  MS_TRY(ms_plan_kernel(plan, UPDATE, MS_OP_adafactor_sums, &attrs, 2, in, 2, out, scope, 0));
  return ms_plan_kernel(plan, UPDATE, MS_OP_sum_squares_of_run, &none, 1, &weights, 1, &squares, scope, 0);
}

static int average(const adafactor *a, const item *x) {
  ms_plan *plan = a->plan;
  ms_op_attrs attrs = {.factored = {.beta2_decay = plan->config.adafactor.beta2_decay}};
  const ms_factored whole = {.rows = x->at.rows, .columns = x->at.columns, .matrices = x->at.matrices};
  ms_factored_set(&attrs, &whole);
  const ms_ref in[] = {row_sums(a, x), column_sums(a, x), number(ms_updates_buffer(plan), x->param)};
  const ms_ref out[] = {row_averages(a, x), column_averages(a, x)};
  return ms_plan_kernel(plan, UPDATE, MS_OP_adafactor_average, &attrs, 3, in, 2, out, scope, 0);
}

static int norm(const adafactor *a, const item *x) {
  ms_plan *plan = a->plan;
  const ms_plan_config *c = &plan->config;
  ms_op_attrs attrs = attrs_of(a, x);
  attrs.factored.eps1 = c->adafactor.eps1;
  attrs.factored.eps2 = c->adafactor.eps2;
  attrs.factored.lr_scale = ms_updates_of(c, param_of(a, x)).lr_scale;
  const ms_ref in[] = {ms_lower_gradients_of(plan, param_of(a, x)->unit, added(a, x)),
                       ms_lower_norm_of(plan, x->param),
                       row_averages(a, x),
                       column_averages(a, x),
                       weight_squares(a, x),
                       number(ms_updates_buffer(plan), x->param)};
  const ms_ref out[] = {number(a->squares_at, x - a->list), vector(a->means_at, x->means, x->at.matrices + 1)};
  return ms_plan_kernel(plan, UPDATE, MS_OP_adafactor_norm, &attrs, 6, in, 2, out, scope, 0);
}

/* Of elements that this rank has: a rank without any takes no step, and no place depends on it. */
static int step(const adafactor *a, const item *x) {
  ms_plan *plan = a->plan;
  if (x->own.end <= x->own.begin) return MS_OK;
  const ms_param *p = param_of(a, x);
  const ms_param_group by = ms_updates_of(&plan->config, p);
  ms_op_attrs attrs = attrs_of(a, x);
  attrs.factored.lr_scale = by.lr_scale;
  attrs.factored.weight_decay = by.weight_decay;
  attrs.factored.eps1 = plan->config.adafactor.eps1;
  attrs.factored.d = plan->config.adafactor.d;
  const ms_ref in[] = {ms_lower_gradients_of(plan, p->unit, x->own),
                       ms_lower_norm_of(plan, x->param),
                       row_averages(a, x),
                       column_averages(a, x),
                       vector(a->means_at, x->means, x->at.matrices + 1),
                       number(a->squares_at, x - a->list)};
  const ms_ref out = ms_lower_masters(plan, p->unit, p->segment, x->own);
  MS_TRY(ms_plan_kernel(plan, UPDATE, MS_OP_adafactor, &attrs, 6, in, 1, &out, scope, 0));
  return ms_lower_copy(plan, UPDATE, p->unit, p->segment, x->own, scope);
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

typedef int kernels_of(const adafactor *a, const item *x);

/* Every rank has the kernels of what is exchanged, also of parameters of which it has nothing: so it has the same place
 * on all of them. */
static int for_each(const adafactor *a, kernels_of *lower) {
  for (int i = 0; i < a->n; i++) MS_TRY(lower(a, &a->list[i]));
  return MS_OK;
}

static int sum_over_mesh(const adafactor *a, int buffer, int64_t n) {
  const ms_ref all = vector(buffer, 0, n);
  MS_TRY(ms_lower_totals(a->plan, UPDATE, all, 1));
  if (a->plan->model->dim[MS_DIM_TENSOR].size == 1) return MS_OK;
  const ms_plan_part part = {.count = n, .src.buffer = -1, .shared = all, .dst = all};
  return ms_plan_collective(a->plan, UPDATE, MS_STREAM_TENSOR, MS_COLL_ALL_REDUCE, MS_DIM_TENSOR, 0, -1, 1, &part);
}

static int lower(adafactor *a) {
  MS_TRY(list_params(a));
  if (!a->n) return MS_OK;
  MS_TRY(ms_plan_buffer(a->plan, UPDATE, MS_ARENA_COMM, MS_CAT_COMMUNICATION, 4 * a->sums, scope, &a->sums_at));
  MS_TRY(ms_plan_buffer(a->plan, UPDATE, MS_ARENA_COMM, MS_CAT_COMMUNICATION, 4 * a->n, scope, &a->squares_at));
  MS_TRY(ms_plan_buffer(a->plan, UPDATE, MS_ARENA_ACTIVATIONS, MS_CAT_ACTIVATIONS, 4 * a->means, scope, &a->means_at));
  MS_TRY(for_each(a, sum));
  MS_TRY(sum_over_mesh(a, a->sums_at, a->sums));
  MS_TRY(for_each(a, average));
  MS_TRY(for_each(a, norm));
  MS_TRY(sum_over_mesh(a, a->squares_at, a->n));
  return for_each(a, step);
}

int ms_lower_adafactor(ms_plan *plan) {
  adafactor a = {.plan = plan};
  const int rc = lower(&a);
  free(a.list);
  return rc;
}
