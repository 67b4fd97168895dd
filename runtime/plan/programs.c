/* programs.c - the updates that have several steps, and those of what moves weights besides optimizers. Each is a list
 * of steps (optimizer.h), and the attributes that depend on the parameter.
 */
#include <math.h>

#include "base/text/hash.h"
#include "kernels/formats/moments.h"
#include "kernels/products/orthogonalise.h"
#include "plan/layout/factors.h"
#include "plan/layout/moment_layout.h"
#include "plan/optimizer.h"

static const ms_param *param_of(const ms_plan *plan, const ms_update_item *item) {
  return &plan->model->param[item->param];
}

/* ---- one kernel -------------------------------------------------------------------------------------------------- */

/* Each parameter has its own random numbers for rounding bf16 moments: these depend on an element's index in the
 * parameter, not on the rank, so every mesh draws the same, with one exception: of a parameter that a tensor dimension
 * divides, elements are numbered part by part, which is the same along the first axis alone. */
void ms_update_set_moments(const ms_plan *plan, const ms_optimizer *by, const ms_update_item *item,
                           ms_op_attrs *attrs) {
  const ms_model *model = plan->model;
  const ms_param *p = param_of(plan, item);
  const ms_moment_form *form = ms_moment_form_for(plan->layout, &model->unit[p->unit].segment[p->segment]);
  attrs->update.coupled = by->coupled;
  attrs->update.moments = form->kernel;
  if (!form->rounds_at_random) return;
  const int64_t before = ms_param_is_divided(model, p) ? model->dim[MS_DIM_TENSOR].place * p->numel : 0;
  attrs->update.stream = (int64_t)ms_hash_string(ms_hash_int(MS_HASH_INIT, (int64_t)model->seed), p->name);
  attrs->update.first = before + p->first + item->own.begin - p->local;
}

/* ---- Muon (Jordan et al. 2024) ----------------------------------------------------------------------------------- */

/* A plan without another optimizer has none for parameters that do not say muon. */
int ms_muon_check_others(const ms_model *model) {
  for (int i = 0; i < model->params; i++) {
    const ms_param *p = &model->param[i];
    if (!p->config.frozen && !ms_param_takes_muon(p) && !ms_param_is_balanced(p))
      return MS_FAIL(MS_EINVAL,
                     "parameter '%s' trains and does not take muon, and the plan has no other optimizer: give it adamw",
                     p->name);
  }
  return MS_OK;
}

double ms_muon_flops(const ms_plan_config *config, const ms_value_info *matrix) {
  return ms_orthogonalise_flops(config->muon.steps, matrix);
}

static void set_products(const ms_plan *plan, const ms_optimizer *by, const ms_update_item *item, ms_op_attrs *attrs) {
  (void)by, (void)item;
  attrs->orthogonalise.dtype = plan->config.muon.dtype == MS_BF16;
}

/* How much longer a step is for matrices of this shape. */
static void set_adjustment(const ms_plan *plan, const ms_optimizer *by, const ms_update_item *item,
                           ms_op_attrs *attrs) {
  (void)by;
  const ms_param *p = param_of(plan, item);
  const double rows = (double)p->whole[p->ndim - 2] / attrs->update.heads, columns = (double)p->whole[p->ndim - 1];
  const double factor[] = {[MS_MUON_ORIGINAL] = sqrt(fmax(1, rows / columns)),
                           [MS_MUON_MATCH_RMS_ADAMW] = 0.2 * sqrt(fmax(rows, columns)),
                           [MS_MUON_SPECTRAL] = sqrt(fmax(rows, columns))};
  attrs->update.adjust = factor[plan->config.muon.adjust];
}

const ms_update_step ms_muon_steps[] = {
    {MS_STEP_KERNEL, MS_OP_muon_momentum, 0, {MS_OF_GRADIENT, MS_OF_NORM}, {MS_OF_PART, MS_OF_MOMENT}, NULL},
    {.kind = MS_STEP_TO_OWNER},
    {MS_STEP_KERNEL, MS_OP_muon_orthogonalise, 0, {MS_OF_MATRIX}, {MS_OF_RESULT}, set_products},
    {.kind = MS_STEP_FROM_OWNER},
    {MS_STEP_KERNEL, MS_OP_muon_apply, 0, {MS_OF_PART}, {MS_OF_WEIGHT}, set_adjustment},
    {MS_STEP_END}};

/* ---- Adafactor (kernels/adafactor.h), whose averages are of whole parameters (factors.h), while every rank has chunks
 * of them. Every rank averages the same sums, so averages are the same bits. ---- */

static ms_factored factored(const ms_plan *plan, int param) {
  return ms_factored_param(plan->model, &plan->model->param[param]);
}

static int64_t rows(const ms_plan *plan, int param) {
  const ms_factored f = factored(plan, param);
  return ms_factored_row_count(&f);
}
static int64_t columns(const ms_plan *plan, int param) {
  const ms_factored f = factored(plan, param);
  return ms_factored_column_count(&f);
}
/* The mean of the rows' averages of each matrix; then the size of the step. */
static int64_t means(const ms_plan *plan, int param) { return factored(plan, param).matrices + 1; }

enum { SUMS = 1, UPDATES, MEANS }; /* buffers */
const ms_update_vector ms_adafactor_vectors[] = {{SUMS, rows},    {SUMS, columns}, {SUMS, NULL},
                                                 {UPDATES, NULL}, {MEANS, means},  {0}};
/* weights, updates: sums of squares */
enum { OF_ROW_SUMS = MS_OF_VECTOR, OF_COLUMN_SUMS, OF_WEIGHTS, OF_UPDATES, OF_MEANS };

static void set_part(const ms_plan *plan, const ms_optimizer *by, const ms_update_item *item, ms_op_attrs *attrs) {
  (void)by;
  const ms_param *p = param_of(plan, item);
  ms_factored f = factored(plan, item->param);
  if (item->own.end > item->own.begin) f.first = p->first + item->own.begin - p->local;
  ms_factored_set(attrs, &f);
}

static void set_whole(const ms_plan *plan, const ms_optimizer *by, const ms_update_item *item, ms_op_attrs *attrs) {
  (void)by;
  const ms_factored f = factored(plan, item->param);
  ms_factored_set(attrs, &(ms_factored){.rows = f.rows, .columns = f.columns, .matrices = f.matrices});
}

const ms_update_step ms_adafactor_steps[] = {
    {MS_STEP_CONTRIBUTE,
     MS_OP_adafactor_sums,
     0,
     {MS_OF_GRADIENT, MS_OF_NORM},
     {OF_ROW_SUMS, OF_COLUMN_SUMS},
     set_part},
    {MS_STEP_CONTRIBUTE, MS_OP_sum_squares_of_run, 0, {MS_OF_WEIGHT}, {OF_WEIGHTS}, NULL},
    {.kind = MS_STEP_SUM, .buffer = SUMS},
    {MS_STEP_CONTRIBUTE,
     MS_OP_adafactor_average,
     0,
     {OF_ROW_SUMS, OF_COLUMN_SUMS, MS_OF_UPDATES},
     {MS_OF_ROW_AVERAGES, MS_OF_COLUMN_AVERAGES},
     set_whole},
    {MS_STEP_CONTRIBUTE,
     MS_OP_adafactor_norm,
     0,
     {MS_OF_GRADIENT, MS_OF_NORM, MS_OF_ROW_AVERAGES, MS_OF_COLUMN_AVERAGES, OF_WEIGHTS, MS_OF_UPDATES},
     {OF_UPDATES, OF_MEANS},
     set_part},
    {.kind = MS_STEP_SUM, .buffer = UPDATES},
    {MS_STEP_KERNEL,
     MS_OP_adafactor,
     0,
     {MS_OF_GRADIENT, MS_OF_NORM, MS_OF_ROW_AVERAGES, MS_OF_COLUMN_AVERAGES, OF_MEANS, OF_UPDATES},
     {MS_OF_WEIGHT},
     set_part},
    {MS_STEP_END}};

/* ---- what moves weights besides optimizers ----------------------------------------------------------------------- */

static void set_rate(const ms_plan *plan, const ms_optimizer *by, const ms_update_item *item, ms_op_attrs *attrs) {
  (void)by;
  attrs->balance.rate = param_of(plan, item)->config.balance;
}

static const ms_update_step balance_steps[] = {
    {MS_STEP_KERNEL, MS_OP_balance, 0, {MS_OF_GRADIENT, MS_OF_NORM, MS_OF_UPDATES}, {MS_OF_WEIGHT}, set_rate},
    {MS_STEP_END}};
const ms_optimizer ms_balance = {.name = "balance", .step = balance_steps};

static const ms_update_step ema_steps[] = {{MS_STEP_KERNEL, MS_OP_ema, 0, {MS_OF_WEIGHT}, {MS_OF_EMA}, NULL},
                                           {MS_STEP_END}};
const ms_optimizer ms_ema = {.name = "ema", .step = ema_steps, .updates_units = 1};

static const ms_logit_clip *clip_of(const ms_plan *plan, int param) {
  for (int i = 0; i < plan->config.logit_clips; i++) {
    const ms_logit_clip *clip = ms_plan_logit_clip(&plan->config, i);
    if (clip->param == param) return clip;
  }
  return NULL;
}

static void set_heads(const ms_plan *plan, const ms_optimizer *by, const ms_update_item *item, ms_op_attrs *attrs) {
  (void)by;
  const ms_model *model = plan->model;
  const ms_param *p = &model->param[item->param];
  const ms_logit_clip *c = clip_of(plan, item->param);
  const int by_rows = ms_param_is_divided(model, p) && p->config.tensor_axis == 0;
  const int64_t columns = p->ndim > 1 ? p->dims[p->ndim - 1] : 1, whole_rows = p->whole[0];
  attrs->heads.first = p->first + item->own.begin - p->local;
  if (by_rows) attrs->heads.first += model->dim[MS_DIM_TENSOR].place * p->numel;
  attrs->heads.elements = item->own.end - item->own.begin;
  attrs->heads.columns = columns;
  attrs->heads.head = whole_rows / c->heads;
  attrs->heads.from = c->from;
  attrs->heads.middle = c->middle;
  attrs->heads.to = c->to;
  attrs->heads.shared = c->shared;
  attrs->heads.power = c->power;
  attrs->heads.rest_power = c->rest_power;
}

static const ms_update_step qk_clip_steps[] = {
    {MS_STEP_KERNEL, MS_OP_clip_heads, 0, {MS_OF_VECTOR}, {MS_OF_WEIGHT}, set_heads}, {MS_STEP_END}};
const ms_optimizer ms_qk_clip = {.name = "qk_clip", .step = qk_clip_steps};

/* The vector is what moved since the last sync, of this replica and then of all. */
static void set_share(const ms_plan *plan, const ms_optimizer *by, const ms_update_item *item, ms_op_attrs *attrs) {
  (void)by, (void)item;
  attrs->outer_sgd.share = 1.0 / ms_model_replicas(plan->model);
}

static const ms_update_step difference_steps[] = {
    {MS_STEP_KERNEL, MS_OP_sub, 0, {MS_OF_SYNCED, MS_OF_WEIGHT}, {MS_OF_VECTOR}, NULL}, {MS_STEP_END}};
static const ms_update_step outer_steps[] = {
    {MS_STEP_KERNEL, MS_OP_outer_sgd, 0, {MS_OF_VECTOR}, {MS_OF_WEIGHT, MS_OF_SYNCED, MS_OF_OUTER_MOMENTUM}, set_share},
    {MS_STEP_END}};
const ms_optimizer ms_outer_difference = {.name = "outer", .step = difference_steps, .updates_units = 1};
const ms_optimizer ms_outer_step = {.name = "outer", .step = outer_steps, .updates_units = 1};
