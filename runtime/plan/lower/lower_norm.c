/* lower_norm.c - the phase NORM: the mean loss, and the norm of the gradient over the mesh.
 *
 * The norm is the norm of the gradient of the mean loss. Sums over ranks and micro-batches are divided once, here,
 * by the number of terms or by the sum of their weights. The optimizer's pass applies this factor together with
 * clipping, so no kernel scales gradients in memory.
 *
 * Groups of parameters can have norms of their own (ms_plan_config.norm_groups). Their squares travel in the same
 * all-reduce as the loss: a number more for each group.
 */
#include "plan/lower/lower.h"
#include "plan/layout/state_layout.h"

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* How many replicas the norm is over. */
static int replicas_of(const ms_plan *plan, int over_replicas) {
  return over_replicas ? ms_model_replicas(plan->model) : 1;
}

/* The attribute of the ops, whose default stands for one. */
static int more_than_one(int groups) { return groups > 1 ? groups : 0; }

/* Only the squares, which come first: the ranks of the tensor dimension have the same loss. */
static int sum_squares_over_tensor(ms_plan *plan, ms_ref totals, int groups) {
  if (plan->model->dim[MS_DIM_TENSOR].size == 1) return MS_OK;
  totals.info.dims[0] = groups;
  const ms_plan_part part = {.count = groups, .src.buffer = -1, .shared = totals, .dst = totals};
  return ms_plan_collective(plan, MS_PHASE_NORM, MS_STREAM_TENSOR, MS_COLL_ALL_REDUCE, MS_DIM_TENSOR, 0, -1, 1, &part);
}

/* *totals = the sums of squares of each group, and the loss, over all ranks or over those of this replica. squares:
 * [groups n], group by group. */
static int totals_of(ms_plan *plan, int weighted, ms_ref squares, int groups, int over_replicas, ms_ref *totals) {
  const int phase = MS_PHASE_NORM, numbers = weighted ? 2 : 1; /* of the loss: its sum, and the sum of its weights */
  int buffer;
  MS_TRY(ms_plan_buffer(plan, phase, MS_ARENA_COMM, MS_CAT_COMMUNICATION, 4 * (groups + numbers), "totals", &buffer));
  const ms_ref in[2] = {squares, ms_ref_vector(ms_loss_sum_buffer(plan), 0, MS_F32, numbers)};
  *totals = ms_ref_vector(buffer, 0, MS_F32, groups + numbers);
  /* how many times the sum over the mesh counts each square */
  const ms_op_attrs attrs = {
      .step = {.replicas = replicas_of(plan, over_replicas) / plan->layout->replicas, .groups = more_than_one(groups)}};
  MS_TRY(ms_plan_kernel(plan, phase, MS_OP_step_totals, &attrs, 2, in, 1, totals, "step totals", 0));
  MS_TRY(ms_lower_totals(plan, phase, *totals, over_replicas));
  return sum_squares_over_tensor(plan, *totals, groups);
}

/* norm [4] of the squares of one group, or with group -1 of all of them. */
static int norm_from(ms_plan *plan, ms_ref totals, int groups, int group, int over_replicas, double max_norm,
                     ms_ref norm) {
  const int64_t ranks = (int64_t)ms_model_shards(plan->model) * replicas_of(plan, over_replicas);
  const ms_op_attrs attrs = {
      .step = {.ranks = ranks, .groups = more_than_one(groups), .group = group + 1, .max_norm = max_norm}};
  return ms_plan_kernel(plan, MS_PHASE_NORM, MS_OP_step_norm, &attrs, 1, &totals, 1, &norm, "step totals", 0);
}

/* Totals and norm of the units whose squares begin at `squares`: over all ranks, or over those of this replica. */
static int norm_of(ms_plan *plan, int weighted, int64_t squares, int over_replicas, ms_ref norm) {
  const ms_ref in = ms_ref_vector(ms_squares_buffer(plan), squares, MS_F32, plan->model->units);
  ms_ref totals;
  MS_TRY(totals_of(plan, weighted, in, 1, over_replicas, &totals));
  return norm_from(plan, totals, 1, -1, over_replicas, plan->config.max_norm, norm);
}

static int square(ms_plan *plan, int op, int unit, int64_t begin, int64_t end, ms_ref out) {
  const ms_op_attrs none = {0};
  const ms_stretch own = ms_lower_own_part(plan, unit, begin, end);
  const ms_ref in = ms_lower_slot(plan, MS_SLOT_GRADIENT, unit, 0, (ms_stretch){own.begin, most(own.begin, own.end)});
  return ms_plan_kernel(plan, MS_PHASE_NORM, op, &none, 1, &in, 1, &out, plan->model->unit[unit].name, 0);
}

static int sum_squares_of(ms_plan *plan, int unit, int64_t begin, int64_t end, ms_ref out) {
  return square(plan, MS_OP_sum_squares, unit, begin, end, out);
}

/* Parameters that every rank of the tensor dimension has whole count on the first one alone. */
static int count_once(ms_plan *plan, int unit, ms_ref squares) {
  const ms_op_attrs once = {.scale = {.alpha = plan->model->dim[MS_DIM_TENSOR].place == 0}}, none = {0};
  MS_TRY(ms_plan_kernel(plan, MS_PHASE_NORM, MS_OP_scale, &once, 1, &squares, 1, &squares, plan->model->unit[unit].name,
                        0));
  ms_plan_hash_alike(plan, MS_PHASE_NORM, MS_OP_once, &none);
  return MS_OK;
}

static int sum_squares(ms_plan *plan, int unit, ms_ref out) {
  const ms_unit *u = &plan->model->unit[unit];
  const ms_op_attrs add = {.add = 1};
  int buffer;
  if (plan->model->dim[MS_DIM_TENSOR].size == 1) return sum_squares_of(plan, unit, 0, u->normed_count, out);
  MS_TRY(ms_plan_buffer(plan, MS_PHASE_NORM, MS_ARENA_ACTIVATIONS, MS_CAT_ACTIVATIONS, 4, "squares", &buffer));
  const ms_ref whole = ms_ref_scalar(buffer, 0);
  MS_TRY(sum_squares_of(plan, unit, 0, u->divided_count, out));
  MS_TRY(sum_squares_of(plan, unit, u->divided_count, u->normed_count, whole));
  MS_TRY(count_once(plan, unit, whole));
  return ms_plan_kernel(plan, MS_PHASE_NORM, MS_OP_accumulate, &add, 1, &whole, 1, &out, u->name, 0);
}

/* ---- norms of groups ---- */

/* The number of a parameter's group in the totals; 0: it has none. */
static int group_of(const ms_plan *plan, int param) { return plan->config.norm_group[param] + 1; }

/* Parameters [first, end) of a unit's order, which are of one group, and alike divided by the tensor dimension. They
 * are the same on all ranks, also where a rank owns nothing of some. */
typedef struct run {
  int first, end;
} run;

/* The run after another one; empty at the end of the parameters that count, after which come those of balances. */
static run next_run(const ms_plan *plan, const ms_unit *u, int first) {
  const ms_model *model = plan->model;
  run r = {first, first};
  for (; r.end < u->params; r.end++) {
    const ms_param *head = &model->param[u->order[first]], *p = &model->param[u->order[r.end]];
    if (p->config.frozen || ms_param_is_balanced(p) ||
        group_of(plan, u->order[r.end]) != group_of(plan, u->order[first]) ||
        ms_param_is_divided(model, p) != ms_param_is_divided(model, head))
      break;
  }
  return r;
}

/* The elements of a run that this rank owns. Between them is only padding, which is zero. */
static ms_stretch owned_of(const ms_plan *plan, const ms_unit *u, run r) {
  ms_stretch owned = {0, 0};
  for (int i = r.first; i < r.end; i++) {
    const ms_param *p = &plan->model->param[u->order[i]];
    if (!p->owned) continue;
    if (owned.end == owned.begin) owned.begin = p->local;
    owned.end = p->local + p->owned;
  }
  return owned;
}

/* The most runs of a group, and the number of groups in the totals. */
static int64_t max_runs(const ms_plan *plan) {
  int64_t runs[MS_MAX_NORM_GROUPS + 1] = {0}, all = 1;
  for (int unit = 0; unit < plan->model->units; unit++) {
    const ms_unit *u = &plan->model->unit[unit];
    for (run r = next_run(plan, u, 0); r.end > r.first; r = next_run(plan, u, r.end)) {
      const int group = group_of(plan, u->order[r.first]);
      all = most(all, ++runs[group]);
    }
  }
  return all;
}

/* Each run's squares have a place of their own: squares is [1 + groups][runs]. */
static int square_runs(ms_plan *plan, ms_ref squares, int64_t runs) {
  const ms_model *model = plan->model;
  int64_t used[MS_MAX_NORM_GROUPS + 1] = {0};
  for (int unit = 0; unit < model->units; unit++) {
    const ms_unit *u = &model->unit[unit];
    if (u->trainable_count) MS_TRY(ms_lower_clear_slice(plan, unit));
    for (run r = next_run(plan, u, 0); r.end > r.first; r = next_run(plan, u, r.end)) {
      const int param = u->order[r.first], group = group_of(plan, param);
      const ms_stretch owned = owned_of(plan, u, r);
      const ms_ref out = ms_ref_scalar(squares.buffer, 4 * (group * runs + used[group]++));
      MS_TRY(square(plan, MS_OP_sum_squares_of_run, unit, owned.begin, owned.end, out));
      if (model->dim[MS_DIM_TENSOR].size > 1 && !ms_param_is_divided(model, &model->param[param]))
        MS_TRY(count_once(plan, unit, out));
      MS_TRY(ms_lower_weigh_squares(plan, unit, out));
    }
  }
  return MS_OK;
}

static int norms_of_groups(ms_plan *plan, int weighted) {
  const int groups = plan->config.norm_groups + 1;
  const int64_t runs = max_runs(plan);
  const ms_op_attrs zeros = {.out_dtype = 1 + MS_F32, .shape = {.d = {groups * runs}, .ndim = 1}};
  int squares, norms;
  MS_TRY(ms_plan_buffer(plan, MS_PHASE_NORM, MS_ARENA_ACTIVATIONS, MS_CAT_ACTIVATIONS, 4 * groups * runs, "squares",
                        &squares));
  MS_TRY(ms_plan_buffer(plan, -1, MS_ARENA_ACTIVATIONS, MS_CAT_ACTIVATIONS, 16 * plan->config.norm_groups,
                        "norms of groups", &norms));
  const ms_ref all = ms_ref_vector(squares, 0, MS_F32, groups * runs);
  MS_TRY(ms_plan_kernel(plan, MS_PHASE_NORM, MS_OP_fill, &zeros, 0, NULL, 1, &all, "squares", 0));
  MS_TRY(square_runs(plan, all, runs));
  ms_ref totals;
  MS_TRY(totals_of(plan, weighted, all, groups, 1, &totals));
  MS_TRY(norm_from(plan, totals, groups, -1, 1, 0, plan->norm));
  plan->norms_of_groups = ms_ref_vector(norms, 0, MS_F32, 4 * (int64_t)plan->config.norm_groups);
  for (int g = 0; g < plan->config.norm_groups; g++)
    MS_TRY(norm_from(plan, totals, groups, g + 1, 1, plan->config.max_norms[g],
                     ms_ref_vector(norms, 16 * (int64_t)g, MS_F32, 4)));
  return MS_OK;
}

ms_ref ms_lower_norm_of(const ms_plan *plan, int param) {
  const int group = plan->config.norm_groups ? group_of(plan, param) - 1 : -1;
  if (group >= 0) return ms_ref_vector(plan->norms_of_groups.buffer, 16 * (int64_t)group, MS_F32, 4);
  const int local = plan->model->unit[plan->model->param[param].unit].config.fragment;
  return plan->norm_of_synced.buffer >= 0 && !local ? plan->norm_of_synced : plan->norm;
}

static int check_groups(const ms_plan *plan) {
  const ms_plan_config *c = &plan->config;
  if (!c->norm_groups) return MS_OK;
  if (ms_model_local_units(plan->model))
    return MS_FAIL(MS_EUNSUPPORTED, "norm_groups do not go with units that take local steps (fragment): give max_norm");
  for (int p = 0; p < plan->model->params; p++)
    if (c->norm_group[p] < -1 || c->norm_group[p] >= c->norm_groups)
      return MS_FAIL(MS_EINVAL, "parameter '%s': norm_group is %d; it must be a group below %d, or -1 (none)",
                     plan->model->param[p].name, c->norm_group[p], c->norm_groups);
  return MS_OK;
}

/* Units with a fragment have a norm of this replica alone, so that no replica waits for another. Units that are equal
 * on all replicas must be clipped alike there: they have a norm of their own. */
int ms_lower_norm(ms_plan *plan, int weighted) {
  const ms_model *model = plan->model;
  const int splits = ms_model_splits_norm(model);
  plan->norm = ms_ref_vector(ms_norm_buffer(plan), 0, MS_F32, 4);
  MS_TRY(check_groups(plan));
  MS_TRY(ms_lower_join_logits(plan));
  if (plan->config.norm_groups) return norms_of_groups(plan, weighted);
  for (int u = 0; u < model->units; u++) {
    const ms_unit *unit = &model->unit[u];
    if (!unit->trainable_count) continue;
    MS_TRY(ms_lower_clear_slice(plan, u));
    ms_ref out = ms_ref_scalar(ms_squares_buffer(plan), 4 * (splits && !unit->config.fragment ? model->units + u : u));
    MS_TRY(sum_squares(plan, u, out));
    MS_TRY(ms_lower_weigh_squares(plan, u, out));
  }
  MS_TRY(norm_of(plan, weighted, 0, !ms_model_local_units(model), plan->norm));
  if (!splits) return MS_OK;
  plan->norm_of_synced = ms_ref_vector(ms_norm_buffer(plan), 16, MS_F32, 4);
  return norm_of(plan, weighted, 4 * model->units, 1, plan->norm_of_synced);
}
