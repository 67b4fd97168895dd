/* price_step.c - the price of a step: its phases in simulated time, what kernels wait for in them, and their critical
 * paths.
 */
#include <stdlib.h>
#include <string.h>

#include "price/price.h"

/* ---- a phase ---------------------------------------------------------------------------------------------------- */

void ms_simulated_free(ms_simulated *simulated) {
  free(simulated->moment);
  free(simulated->outlasting);
  *simulated = (ms_simulated){0};
}

/* before: what the phase before left in flight, or NULL. */
static int simulate(const ms_plan *plan, const ms_cluster *cluster, int phase, const ms_simulated *before,
                    ms_simulated *out) {
  ms_cost *cost;
  MS_TRY(ms_price_costs(plan, cluster, phase, &cost));
  const ms_cost *costs[] = {cost};
  const int rc = cluster->device == MS_DEVICE_CPU ? ms_simulate_inline(plan, phase, cost, before, out)
                                                  : ms_simulate_streams(&plan, 1, cluster, phase, costs, out);
  free(cost);
  return rc;
}

static int is_timed(const ms_instr *instr) { return instr->kind != MS_INSTR_RECORD && instr->kind != MS_INSTR_WAIT; }

static int last_of(const ms_plan_phase *phase, const ms_moment *moment) {
  int last = -1;
  for (int i = 0; i < phase->n; i++)
    if (is_timed(&phase->instr[i]) && (last < 0 || moment[i].end > moment[last].end)) last = i;
  return last;
}

/* Marks what ends last, and what let each marked instruction begin. critical: [phase.n] */
static void mark_critical(const ms_plan_phase *phase, const ms_simulated *simulated, char *critical) {
  for (int i = last_of(phase, simulated->moment); i >= 0; i = simulated->moment[i].cause) critical[i] = 1;
}

static int mesh_dim_of(const ms_plan *plan, const ms_instr *instr) {
  return instr->coll ? plan->model->dim[instr->coll->dim].mesh_dim : -1;
}

static void add_up(const ms_plan *plan, int phase, const ms_simulated *simulated, struct ms_price_phase *price) {
  const ms_plan_phase *p = &plan->phase[phase];
  price->seconds = simulated->end;
  price->issuing = simulated->issuing;
  memcpy(price->waiting, simulated->waiting, sizeof simulated->waiting);
  for (int i = 0; i < p->n; i++)
    if (p->instr[i].kind == MS_INSTR_KERNEL) price->computing += simulated->moment[i].end - simulated->moment[i].begin;
  for (int i = 0; i < p->colls; i++) {
    const int dim = plan->model->dim[p->coll[i]->dim].mesh_dim;
    if (dim >= 0) price->comm_bytes[dim] += p->coll[i]->bytes;
  }
}

/* ---- a step ----------------------------------------------------------------------------------------------------- */

static int runs_of(const ms_plan *plan, int phase, int micro_batches) {
  const int has_last = plan->phase[MS_PHASE_LAST].present;
  if (!plan->phase[phase].present || phase == MS_PHASE_EVALUATE || phase == MS_PHASE_GATHER) return 0;
  if (phase != MS_PHASE_NEXT) return 1;
  return micro_batches - 1 - has_last;
}

static int check(const ms_plan *plan, const ms_cluster *cluster, int micro_batches) {
  const int least = 1 + plan->phase[MS_PHASE_LAST].present;
  MS_TRY(ms_cluster_check(cluster));
  if (cluster->device != plan->config.device)
    return MS_FAIL(MS_EINVAL, "the plan is for device %s and the cluster has devices %s: compile it for those",
                   ms_device_name(plan->config.device), ms_device_name(cluster->device));
  if (ms_topology_max_ranks(&plan->topology) > cluster->ranks_per_node)
    return MS_FAIL(MS_EINVAL, "the plan has %d ranks on a node, and a node of the cluster has %d",
                   ms_topology_max_ranks(&plan->topology), cluster->ranks_per_node);
  if (!plan->phase[MS_PHASE_FIRST].present)
    return MS_FAIL(MS_EINVAL, "the plan only evaluates: only a plan that trains has a step to price");
  if (micro_batches < least)
    return MS_FAIL(MS_EINVAL, "%d micro-batches: a step of this plan has at least %d", micro_batches, least);
  if (micro_batches > least && !plan->phase[MS_PHASE_NEXT].present)
    return MS_FAIL(MS_EINVAL, "%d micro-batches: the plan was compiled for one; set accumulate", micro_batches);
  return MS_OK;
}

static double flops_of(const ms_plan_phase *phase) {
  double flops = 0;
  for (int i = 0; i < phase->n; i++) {
    const ms_kernel_call *call = phase->instr[i].call;
    if (phase->instr[i].kind != MS_INSTR_KERNEL) continue;
    const ms_cost_case c = {call->op, &call->attrs, call->inputs, call->outputs, call->in, call->out};
    flops += ms_op_flops(&c);
  }
  return flops;
}

/* On the CPU UPDATE can leave collectives in flight, which FIRST of the next step joins: its price needs that of
 * UPDATE. On devices with streams UPDATE is priced with their ends, which is the most that it can take. */
static int simulate_after(const ms_plan *plan, const ms_cluster *cluster, int phase, ms_simulated *out) {
  ms_simulated before = {0};
  int rc = MS_OK;
  if (cluster->device == MS_DEVICE_CPU && phase == MS_PHASE_FIRST && plan->phase[MS_PHASE_UPDATE].present)
    MS_GOTO(simulate(plan, cluster, MS_PHASE_UPDATE, NULL, &before));
  MS_GOTO(simulate(plan, cluster, phase, &before, out));
fail:
  ms_simulated_free(&before);
  return rc;
}

/* Adds a phase's critical path that was marked; runs: in a step. */
static void add_critical(const ms_plan *plan, int phase, const ms_simulated *simulated, const char *critical,
                         double runs, struct ms_price_critical *sum) {
  const ms_plan_phase *p = &plan->phase[phase];
  for (int i = 0; i < p->n; i++) {
    const double seconds = runs * (simulated->moment[i].end - simulated->moment[i].begin);
    const int dim = mesh_dim_of(plan, &p->instr[i]);
    if (!critical[i]) continue;
    if (p->instr[i].kind == MS_INSTR_KERNEL) sum->kernels += seconds;
    else if (dim >= 0) sum->collectives[dim] += seconds;
    else sum->others += seconds;
  }
}

/* Simulates a phase and marks its critical path; the caller frees both. critical: [phase.n] */
static int simulate_critical(const ms_plan *plan, const ms_cluster *cluster, int phase, ms_simulated *simulated,
                             char **critical) {
  *critical = ms_calloc(plan->phase[phase].n, 1);
  if (!*critical) return MS_ENOMEM;
  MS_TRY(simulate_after(plan, cluster, phase, simulated));
  mark_critical(&plan->phase[phase], simulated, *critical);
  return MS_OK;
}

/* path: the critical path of the step; outer: the part of the steps that have the phase OUTER there. */
static int price_phase(const ms_plan *plan, const ms_cluster *cluster, int phase, double outer,
                       struct ms_price_phase *price, struct ms_price_critical *path) {
  ms_simulated simulated = {0};
  char *critical = NULL;
  int rc;
  MS_GOTO(simulate_critical(plan, cluster, phase, &simulated, &critical));
  add_up(plan, phase, &simulated, price);
  const double runs = phase == MS_PHASE_OUTER ? price->runs * outer : price->runs;
  add_critical(plan, phase, &simulated, critical, runs, path);
fail:
  ms_simulated_free(&simulated);
  free(critical);
  return rc;
}

int ms_plan_price(const ms_plan *plan, const ms_cluster *cluster, int micro_batches, double outer, ms_price *price,
                  int size) {
  MS_HANDLE(plan, PLAN);
  MS_GIVEN(cluster);
  MS_GIVEN(price);
  MS_TAKE_CLUSTER(taken, cluster);
  if (!(outer >= 0 && outer <= 1))
    return MS_FAIL(MS_EINVAL, "outer, the part of the steps that have the phase, must be from 0 to 1, not %g", outer);
  MS_TRY(check(plan, &taken, micro_batches));
  ms_price own = {.gaps = taken.step_gap, .bytes = (double)ms_plan_peak(plan)};
  for (int phase = 0; phase < MS_PHASES; phase++) {
    struct ms_price_phase *of = &own.phase[phase];
    of->runs = runs_of(plan, phase, micro_batches);
    if (!of->runs) continue;
    MS_TRY(price_phase(plan, &taken, phase, outer, of, &own.critical));
    own.step += of->runs * of->seconds;
    own.gaps += of->runs * taken.phase_gap;
    own.flops += of->runs * flops_of(&plan->phase[phase]);
  }
  own.step += own.gaps;
  MS_GIVE_INFO(price, size, own);
}

/* ---- a timeline ------------------------------------------------------------------------------------------------- */

static void describe(const ms_plan *plan, int phase, int i, ms_price_event *event) {
  const ms_instr *instr = &plan->phase[phase].instr[i];
  memset(event, 0, sizeof *event); /* what is between its fields, too: programs compare rows */
  event->instruction = i;
  event->stream = instr->stream;
  event->kind = instr->kind != MS_INSTR_KERNEL;
  event->mesh_dim = mesh_dim_of(plan, instr);
  event->unit = instr->coll ? instr->coll->unit : -1;
  event->cause = -1;
  event->scope = instr->scope;
  if (instr->coll) {
    event->name = ms_coll_name(instr->coll->kind);
    event->bytes = instr->coll->bytes + instr->coll->also_bytes;
    event->also_bytes = instr->coll->also_bytes;
    return;
  }
  const ms_kernel_call *call = instr->call;
  const ms_cost_case c = {call->op, &call->attrs, call->inputs, call->outputs, call->in, call->out};
  event->name = ms_op_row_of(call->op)->name;
  event->flops = ms_op_flops(&c);
  event->bytes = ms_op_bytes(&c);
}

static void add_times(const ms_moment *moment, int critical, ms_price_event *event) {
  event->critical = critical;
  event->cause = moment->cause;
  event->issued = moment->issued;
  event->begin = moment->begin;
  event->end = moment->end;
  event->waited = moment->waited;
}

/* simulated->moment and critical are NULL without a cluster. */
static void add_events(const ms_plan *plan, int phase, const ms_simulated *simulated, const char *critical,
                       const char *exposed, ms_row_list *rows) {
  const ms_plan_phase *p = &plan->phase[phase];
  int backward = 0;
  for (int i = 0; i < p->n; i++) {
    ms_price_event event;
    if (!is_timed(&p->instr[i])) continue;
    describe(plan, phase, i, &event);
    backward |= p->instr[i].backward;
    event.backward = event.kind ? backward : p->instr[i].backward;
    event.exposed = exposed[i];
    if (critical) add_times(&simulated->moment[i], critical[i], &event);
    ms_rows_add(rows, &event, sizeof event);
  }
}

static int add_timeline(const ms_plan *plan, const ms_cluster *cluster, int phase, ms_row_list *rows) {
  ms_simulated simulated = {0};
  char *critical = NULL, *exposed = ms_calloc(plan->phase[phase].n, 1);
  int rc = exposed ? MS_OK : MS_ENOMEM;
  if (rc) return rc;
  MS_GOTO(ms_plan_find_exposed(plan, phase, exposed));
  if (cluster) MS_GOTO(simulate_critical(plan, cluster, phase, &simulated, &critical));
  add_events(plan, phase, &simulated, critical, exposed, rows);
fail:
  ms_simulated_free(&simulated);
  free(critical);
  free(exposed);
  return rc;
}

static int take_cluster(const ms_plan *plan, const ms_cluster *cluster, ms_cluster *own) {
  MS_TAKE_CLUSTER(taken, cluster);
  *own = taken;
  return check(plan, own, 1 + plan->phase[MS_PHASE_LAST].present);
}

int ms_plan_timeline(const ms_plan *plan, const ms_cluster *cluster, int phase, ms_price_event *rows, int size,
                     int capacity, int *n) {
  MS_HANDLE(plan, PLAN);
  MS_GIVEN(n);
  ms_row_list all;
  ms_cluster own;
  MS_TRY(ms_rows_open(&all, rows, size, capacity, __func__));
  if (phase < 0 || phase >= MS_PHASES || !plan->phase[phase].present)
    return MS_FAIL(MS_EINVAL, "the plan has no phase %d", phase);
  if (cluster) MS_TRY(take_cluster(plan, cluster, &own));
  if (capacity) MS_TRY(add_timeline(plan, cluster ? &own : NULL, phase, &all));
  *n = 0;
  for (int i = 0; i < plan->phase[phase].n; i++) *n += is_timed(&plan->phase[phase].instr[i]);
  return MS_OK;
}
