/* lower_step.c - the phases without a graph: the step totals (loss and gradient norm over the mesh), and the update.
 *
 * Replicas of a node that share one copy of the state divide the work: each updates the slice of a unit's chunks
 * whose gradients it holds. The update ends with a barrier among them, so that all of the state is updated when a
 * rank continues.
 *
 * The norm is the norm of the gradient of the mean loss. Sums over ranks and micro-batches are divided once, here,
 * by the number of terms or by the sum of their weights. The optimizer's pass applies this factor together with
 * clipping, so no kernel scales gradients in memory.
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "plan/lower.h"
#include "plan/moment_layout.h"
#include "plan/muon.h"
#include "plan/optimizer.h"

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* For each replica, the first one whose rank of a shard is on the same node: first [replicas]; seen [nodes] is scratch.
 */
static void find_first_on_nodes(const ms_plan *plan, int shard, int *first, int *seen) {
  for (int n = 0; n < plan->topology.nodes; n++) seen[n] = -1;
  for (int r = 0; r < ms_model_replicas(plan->model); r++) {
    int *of_node = &seen[plan->topology.node_of[ms_grid_sibling(plan->model, r, shard)]];
    if (*of_node < 0) *of_node = r;
    first[r] = *of_node;
  }
}

/* Between nodes the order of a sum follows from which of its ranks share a node. Two terms have the same sum in any
 * order. The ranks of a tensor dimension sum in one order (nodes.c). */
static int sums_in_one_order(const ms_plan *plan, int *one) {
  const int replicas = ms_model_replicas(plan->model);
  *one = 1;
  if (plan->topology.nodes == 1 || replicas < 3) return MS_OK;
  int *first = ms_calloc(2 * (int64_t)replicas + plan->topology.nodes, sizeof *first);
  if (!first) return MS_ENOMEM;
  find_first_on_nodes(plan, 0, first, first + 2 * replicas);
  for (int s = 1; s < ms_model_shards(plan->model) && *one; s++) {
    find_first_on_nodes(plan, s, first + replicas, first + 2 * replicas);
    *one = !memcmp(first, first + replicas, replicas * sizeof *first);
  }
  free(first);
  return MS_OK;
}

/* Every rank takes the totals of its replica's first shard. */
static int take_totals_of_first_shard(ms_plan *plan, int phase, ms_ref totals) {
  const int64_t n = ms_numel(&totals.info), all = n * ms_model_shards(plan->model);
  const ms_attrs overwrite = {{0}, {0}};
  int buffer;
  MS_TRY(ms_plan_buffer(plan, phase, MS_ARENA_GATHERED, MS_CAT_GATHERED, 4 * all, "totals of all shards", &buffer));
  const ms_plan_part part = {
      .count = n, .src = totals, .shared = ms_ref_vector(buffer, 0, MS_F32, all), .dst.buffer = -1};
  const ms_ref first = ms_ref_vector(buffer, 0, MS_F32, n);
  MS_TRY(ms_plan_collective(plan, phase, MS_STREAM_REDUCE, MS_COLL_ALL_GATHER, MS_DIM_SHARD, 0, -1, 1, &part));
  return ms_plan_kernel(plan, phase, MS_OP_accumulate, &overwrite, 1, &first, 1, &totals, "step totals", 0);
}

int ms_lower_totals(ms_plan *plan, int phase, ms_ref totals, int over_replicas) {
  const ms_model *model = plan->model;
  ms_plan_part part = {.count = ms_numel(&totals.info), .src.buffer = -1, .shared = totals, .dst = totals};
  if (ms_model_shards(model) > 1)
    MS_TRY(ms_plan_collective(plan, phase, MS_STREAM_REDUCE, MS_COLL_ALL_REDUCE, MS_DIM_SHARD, 0, -1, 1, &part));
  const int both = ms_model_shards(model) > 1 && plan->replicas > 1;
  if (both) MS_TRY(ms_plan_take_replicas(plan, phase));
  if (both) return ms_plan_between_copies(plan, phase, MS_COLL_ALL_REDUCE, -1, 1, &part);
  if (ms_model_replicas(model) == 1 || !over_replicas) return MS_OK;
  MS_TRY(ms_plan_collective(plan, phase, MS_STREAM_REPLICATE, MS_COLL_ALL_REDUCE, MS_DIM_REPLICATE, 0, -1, 1, &part));
  int one_order;
  MS_TRY(sums_in_one_order(plan, &one_order));
  return one_order ? MS_OK : take_totals_of_first_shard(plan, phase, totals);
}

/* Only the squares, which come first: the ranks of the tensor dimension have the same loss. */
static int sum_squares_over_tensor(ms_plan *plan, ms_ref totals) {
  if (plan->model->dim[MS_DIM_TENSOR].size == 1) return MS_OK;
  totals.info.dims[0] = 1;
  const ms_plan_part part = {.count = 1, .src.buffer = -1, .shared = totals, .dst = totals};
  return ms_plan_collective(plan, MS_PHASE_NORM, MS_STREAM_TENSOR, MS_COLL_ALL_REDUCE, MS_DIM_TENSOR, 0, -1, 1, &part);
}

/* Totals and norm of the units whose squares begin at `squares`: over all ranks, or over those of this replica. */
static int norm_of(ms_plan *plan, int weighted, int64_t squares, int over_replicas, ms_ref norm) {
  const ms_model *model = plan->model;
  const int phase = MS_PHASE_NORM, numbers = weighted ? 2 : 1; /* of the loss: its sum, and the sum of its weights */
  const int replicas = over_replicas ? ms_model_replicas(model) : 1;
  int buffer;
  MS_TRY(ms_plan_buffer(plan, phase, MS_ARENA_COMM, MS_CAT_COMMUNICATION, 4 + 4 * numbers, "totals", &buffer));
  ms_ref in[2] = {ms_ref_vector(ms_squares_buffer(plan), squares, MS_F32, model->units),
                  ms_ref_vector(ms_loss_sum_buffer(plan), 0, MS_F32, numbers)};
  ms_ref totals = ms_ref_vector(buffer, 0, MS_F32, 1 + numbers);
  ms_attrs attrs = {.i = {replicas / plan->replicas}}; /* how many times the sum over the mesh counts each square */
  MS_TRY(ms_plan_kernel(plan, phase, MS_OP_step_totals, &attrs, 2, in, 1, &totals, "step totals", 0));
  MS_TRY(ms_lower_totals(plan, phase, totals, over_replicas));
  MS_TRY(sum_squares_over_tensor(plan, totals));
  attrs = (ms_attrs){.i = {(int64_t)ms_model_shards(model) * replicas}, .f = {plan->config.max_norm}};
  return ms_plan_kernel(plan, phase, MS_OP_step_norm, &attrs, 1, &totals, 1, &norm, "step totals", 0);
}

static int sum_squares_of(ms_plan *plan, int unit, int64_t begin, int64_t end, ms_ref out) {
  const ms_attrs none = {{0}, {0}};
  const ms_stretch own = ms_lower_own_part(plan, unit, begin, end);
  const ms_ref in = ms_lower_gradients_of(plan, unit, (ms_stretch){own.begin, most(own.begin, own.end)});
  return ms_plan_kernel(plan, MS_PHASE_NORM, MS_OP_sum_squares, &none, 1, &in, 1, &out, plan->model->unit[unit].name,
                        0);
}

/* Parameters that every rank of the tensor dimension has whole count on the first one alone. */
static int sum_squares(ms_plan *plan, int unit, ms_ref out) {
  const ms_unit *u = &plan->model->unit[unit];
  const ms_dim_group *tensor = &plan->model->dim[MS_DIM_TENSOR];
  if (tensor->size == 1) return sum_squares_of(plan, unit, 0, u->normed_count, out);
  const ms_attrs once = {.f = {tensor->place == 0, 0}}, none = {0}, add = {.i = {1}};
  int buffer;
  MS_TRY(ms_plan_buffer(plan, MS_PHASE_NORM, MS_ARENA_ACTIVATIONS, MS_CAT_ACTIVATIONS, 4, "squares", &buffer));
  const ms_ref whole = ms_ref_scalar(buffer, 0);
  MS_TRY(sum_squares_of(plan, unit, 0, u->divided_count, out));
  MS_TRY(sum_squares_of(plan, unit, u->divided_count, u->normed_count, whole));
  MS_TRY(ms_plan_kernel(plan, MS_PHASE_NORM, MS_OP_scale, &once, 1, &whole, 1, &whole, u->name, 0));
  ms_plan_hash_alike(plan, MS_PHASE_NORM, MS_OP_once, &none);
  return ms_plan_kernel(plan, MS_PHASE_NORM, MS_OP_accumulate, &add, 1, &whole, 1, &out, u->name, 0);
}

/* Units with a fragment have a norm of this replica alone, so that no replica waits for another. Units that are equal
 * on all replicas must be clipped alike there: they have a norm of their own. */
int ms_lower_norm(ms_plan *plan, int weighted) {
  const ms_model *model = plan->model;
  const int splits = ms_model_splits_norm(model);
  for (int u = 0; u < model->units; u++) {
    const ms_unit *unit = &model->unit[u];
    if (!unit->trainable_count) continue;
    MS_TRY(ms_lower_clear_slice(plan, u));
    ms_ref out = ms_ref_scalar(ms_squares_buffer(plan), 4 * (splits && !unit->config.fragment ? model->units + u : u));
    MS_TRY(sum_squares(plan, u, out));
    MS_TRY(ms_lower_weigh_squares(plan, u, out));
  }
  plan->norm = ms_ref_vector(ms_norm_buffer(plan), 0, MS_F32, 4);
  MS_TRY(norm_of(plan, weighted, 0, !ms_model_local_units(model), plan->norm));
  if (!splits) return MS_OK;
  plan->norm_of_synced = ms_ref_vector(ms_norm_buffer(plan), 16, MS_F32, 4);
  return norm_of(plan, weighted, 4 * model->units, 1, plan->norm_of_synced);
}

/* One fused pass over the elements of a parameter that this rank updates. Each parameter has its own count of
 * updates, and its own random numbers for rounding bf16 moments: these depend on an element's index in the
 * parameter, not on the rank, so every mesh draws the same. Of a parameter that a tensor dimension divides, elements
 * are numbered part by part, which along the first axis is the same. */
static int update_parameter(ms_plan *plan, int param) {
  const ms_model *model = plan->model;
  const ms_param *p = &model->param[param];
  const ms_plan_config *c = &plan->config;
  const ms_stretch own = ms_lower_own_part(plan, p->unit, p->local, p->local + p->owned);
  const char *scope = model->unit[p->unit].name;
  if (own.end <= own.begin) return MS_OK;
  const int synced = plan->norm_of_synced.buffer >= 0 && !model->unit[p->unit].config.fragment;
  const ms_ref in[3] = {ms_lower_gradients_of(plan, p->unit, own), synced ? plan->norm_of_synced : plan->norm,
                        ms_ref_scalar(ms_updates_buffer(plan), 4 * param)};
  const ms_optimizer *optimizer = ms_optimizer_of(c);
  const int kept = ms_moments_kept(c);
  ms_ref out[1 + MS_MOMENTS] = {ms_lower_masters(plan, p->unit, p->segment, own)};
  if (ms_param_is_balanced(p)) {
    const ms_attrs rate = {.f = {p->config.balance}};
    return ms_plan_kernel(plan, MS_PHASE_UPDATE, MS_OP_balance, &rate, 3, in, 1, out, scope, 0);
  }
  for (int m = 0; m < optimizer->outputs; m++)
    out[1 + m] = m < kept ? ms_lower_moment(plan, p, m, own)
                          : ms_ref_vector(ms_state_buffer(p->unit, MS_STATE_MOMENT + m), 0, MS_F32, 0);
  const int64_t before = ms_param_is_divided(model, p) ? model->dim[MS_DIM_TENSOR].place * p->numel : 0;
  const ms_updated updated = {.by = ms_updates_of(c, p),
                              .key = ms_hash_string(ms_hash_int(MS_HASH_INIT, (int64_t)model->seed), p->name),
                              .first = before + p->first + own.begin - p->local,
                              .moments = ms_moment_dtype(p, c->moment_dtype)};
  const ms_attrs attrs = optimizer->attrs(c, &updated);
  return ms_plan_kernel(plan, MS_PHASE_UPDATE, optimizer->op, &attrs, 3, in, 1 + optimizer->outputs, out, scope, 0);
}

/* A parameter without a gradient in this step keeps its value and its optimizer state, and its count of updates does
 * not increase. Every rank counts for all parameters, including those of which it owns nothing. */
static int count_updates(ms_plan *plan) {
  const ms_attrs one_more = {.f = {1, 1}};
  for (int first = 0, end; first < plan->model->params; first = end) {
    end = first + 1;
    if (!plan->has_gradient[first]) continue;
    while (end < plan->model->params && plan->has_gradient[end]) end++;
    const ms_ref updates = ms_ref_vector(ms_updates_buffer(plan), 4 * first, MS_F32, end - first);
    MS_TRY(ms_plan_kernel(plan, MS_PHASE_UPDATE, MS_OP_scale, &one_more, 1, &updates, 1, &updates, "updates", 0));
  }
  return MS_OK;
}

static int update_unit(ms_plan *plan, int unit) {
  const ms_unit *u = &plan->model->unit[unit];
  for (int i = 0; i < u->params; i++) {
    const ms_param *p = &plan->model->param[u->order[i]];
    if (!p->owned || p->config.frozen || !plan->has_gradient[u->order[i]] || ms_param_takes_muon(p)) continue;
    MS_TRY(update_parameter(plan, u->order[i]));
  }
  return MS_OK;
}

/* In one pass, unless the segments of the masters are separate. */
int ms_lower_average(ms_plan *plan, int phase, int unit) {
  const int apart = ms_plan_shares_masters(plan, unit);
  const ms_unit *u = &plan->model->unit[unit];
  const ms_attrs attrs = {.i = {plan->config.ema_warmup}, .f = {plan->config.ema_decay}};
  for (int s = 0; s < (apart ? u->segments : 1) && !u->segment[s].frozen; s++) {
    const int64_t begin = u->segment[s].local;
    const ms_stretch own =
        ms_lower_own_part(plan, unit, begin, apart ? begin + u->segment[s].chunk : u->trainable_count);
    if (own.end <= own.begin) continue;
    const ms_ref in = ms_lower_masters(plan, unit, s, own), out = ms_lower_kept(plan, unit, MS_STATE_EMA, MS_F32, own);
    MS_TRY(ms_plan_kernel(plan, phase, MS_OP_ema, &attrs, 1, &in, 1, &out, u->name, 0));
  }
  return MS_OK;
}

/* Waits until all replicas have written their slices. Kernels run in order, so waiting for the last one is enough. */
static int meet_replicas(ms_plan *plan) {
  const ms_plan_phase *phase = &plan->phase[MS_PHASE_UPDATE];
  ms_plan_part part = {.src.buffer = -1, .dst.buffer = -1};
  int last = phase->n - 1;
  while (last >= 0 && phase->instr[last].kind != MS_INSTR_KERNEL) last--;
  if (last >= 0) part.shared = ms_instr_output(&phase->instr[last], 0);
  return ms_plan_collective(plan, MS_PHASE_UPDATE, MS_STREAM_REPLICATE, MS_COLL_BARRIER, MS_DIM_REPLICATE,
                            plan->replicas, -1, last >= 0, &part);
}

static int finish_unit(ms_plan *plan, int unit) {
  if (plan->config.ema_decay > 0 && !ms_outer_applies(plan, unit))
    MS_TRY(ms_lower_average(plan, MS_PHASE_UPDATE, unit));
  return ms_lower_gather_slices(plan, unit);
}

/* The parameters of half of the units that do not take Muon. */
static int update_half(ms_plan *plan, int half) {
  const int units = plan->model->units, middle = (units + 1) / 2;
  for (int u = half ? middle : 0; u < (half ? units : middle); u++) MS_TRY(update_unit(plan, u));
  return MS_OK;
}

int ms_lower_update(ms_plan *plan) {
  plan->phase[MS_PHASE_UPDATE].present = 1; /* on all ranks, also on one that owns nothing */
  MS_TRY(count_updates(plan));
  MS_TRY(ms_muon_find_owners(plan));
  if (plan->muon_buckets) MS_TRY(ms_lower_muon(plan, update_half));
  for (int u = 0; u < plan->model->units; u++) {
    if (!plan->muon_buckets) MS_TRY(update_unit(plan, u));
    MS_TRY(finish_unit(plan, u));
  }
  return plan->replicas > 1 ? meet_replicas(plan) : MS_OK;
}
