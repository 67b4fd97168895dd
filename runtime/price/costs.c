/* costs.c - what each instruction of a phase takes, alone on its device and on its links.
 *
 * Layers repeat, and equal kernels of a plan share one prepared call, so each call is timed once.
 */
#include <math.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "price/collective_time.h"
#include "price/price.h"

/* ---- kernels ---------------------------------------------------------------------------------------------------- */

/* A hash table of the calls that were timed; `slots` is a power of two, and at least a quarter of them are free. */
typedef struct timed {
  const ms_kernel_call **call;
  double *seconds;
  int slots;
} timed;

static int open_timed(const ms_plan_phase *phase, timed *t) {
  for (t->slots = 16; t->slots < 2 * phase->n;) t->slots *= 2;
  t->call = ms_calloc(t->slots, sizeof *t->call);
  t->seconds = ms_calloc(t->slots, sizeof *t->seconds);
  return t->call && t->seconds ? MS_OK : MS_ENOMEM;
}

static int kernel_time(const ms_plan *plan, const ms_cluster *cluster, timed *t, const ms_kernel_call *call,
                       double *seconds) {
  unsigned slot = (unsigned)((uintptr_t)call >> 4) * 2654435761u & (unsigned)(t->slots - 1);
  ms_kernel_work work;
  while (t->call[slot] && t->call[slot] != call) slot = (slot + 1) & (unsigned)(t->slots - 1);
  if (!t->call[slot]) {
    MS_TRY(ms_kernel_work_of(plan, call, &work));
    MS_TRY(ms_kernel_time_of(cluster, &work, &t->seconds[slot]));
    t->call[slot] = call;
  }
  *seconds = t->seconds[slot];
  return MS_OK;
}

/* ---- collectives ------------------------------------------------------------------------------------------------ */

/* The ranks of a collective, how many nodes they are on, and how many of them are on this rank's node. */
static int count_ranks(const ms_plan *plan, const ms_plan_coll *coll, ms_collective_work *work, int *here) {
  const ms_topology *topology = &plan->topology;
  int at[MS_GRID_DIMS], *ranks = ms_calloc(plan->model->members, sizeof *ranks);
  char *seen = ms_calloc(topology->nodes, 1);
  const int rc = ranks && seen ? MS_OK : MS_ENOMEM;
  if (rc) goto fail;
  ms_grid_position(plan->model, plan->model->member, at);
  work->ranks = ms_plan_members(plan, coll, at, ranks);
  for (int i = 0; i < work->ranks; i++) {
    const int node = topology->node_of[ranks[i]];
    work->nodes += !seen[node];
    seen[node] = 1;
    *here += node == topology->node_of[plan->model->rank];
  }
fail:
  free(ranks);
  free(seen);
  return rc;
}

/* 1 for an all-gather of what is in place already: its ranks only meet. */
static int moves_nothing(const ms_plan_coll *coll) {
  if (coll->kind != MS_COLL_ALL_GATHER) return 0;
  for (int i = 0; i < coll->parts; i++)
    if (coll->part[i].src.buffer >= 0) return 0;
  return 1;
}

int ms_collective_work_of(const ms_plan *plan, const ms_cluster *cluster, const ms_plan_coll *coll,
                          ms_collective_work *work) {
  static const int kinds[MS_COLL_KINDS] = {[MS_COLL_ALL_GATHER] = MS_LINK_ALL_GATHER,
                                           [MS_COLL_REDUCE_SCATTER] = MS_LINK_REDUCE_SCATTER,
                                           [MS_COLL_ALL_REDUCE] = MS_LINK_ALL_REDUCE,
                                           [MS_COLL_BARRIER] = MS_LINK_ALL_REDUCE,
                                           /* moves as many bytes as a reduce-scatter, to as many ranks */
                                           [MS_COLL_ALL_TO_ALL] = MS_LINK_REDUCE_SCATTER};
  const int node = plan->topology.node_of[plan->model->rank];
  int here = 0;
  *work = (ms_collective_work){.kind = kinds[coll->kind]};
  if (!work->kind)
    return MS_FAIL(MS_EUNSUPPORTED, "%s has no price: a plan with it cannot be priced", ms_coll_name(coll->kind));
  MS_TRY(count_ranks(plan, coll, work, &here));
  const double n = work->ranks, passes = coll->kind == MS_COLL_ALL_REDUCE ? 2 : 1;
  work->bytes = n > 1 ? coll->bytes * n / (passes * (n - 1)) : 0;
  work->groups = plan->topology.node_ranks[node] / here;
  if (cluster->device != MS_DEVICE_CPU) return MS_OK;
  work->inside = moves_nothing(coll) ? 0 : coll->moved.inside + coll->also_bytes;
  work->wire = fmax(coll->moved.sent, coll->moved.received) * plan->topology.node_ranks[node];
  return MS_OK;
}

/* Bytes that the device reads and writes to convert between the buffers of a collective, which its library cannot do:
 * masters to gathered weights, sums to gradients. */
static double converted_bytes(const ms_plan_coll *coll) {
  double bytes = 0;
  for (int i = 0; i < coll->parts; i++) {
    const ms_plan_part *part = &coll->part[i];
    const int gathers = coll->kind == MS_COLL_ALL_GATHER;
    const ms_ref *from = gathers ? &part->src : &part->shared, *to = gathers ? &part->shared : &part->dst;
    if (from->buffer < 0 || to->buffer < 0 || coll->kind == MS_COLL_ALL_TO_ALL) continue;
    if (!gathers && !part->accumulate && from->info.dtype == to->info.dtype) continue;
    bytes += (double)part->count * (ms_dtype_size(from->info.dtype) + ms_dtype_size(to->info.dtype));
  }
  return bytes;
}

static double threads_of_node(const ms_plan *plan) {
  return (double)plan->topology.node_ranks[plan->topology.node_of[plan->model->rank]] * plan->config.threads;
}

/* The part of each computing core that threads take which move bytes, `wanted` cores in all. Those take idle cores
 * first, and of a core that computes at most half, since the system divides it evenly. */
static double taken(const ms_plan *plan, const ms_cluster *cluster, double wanted) {
  const double computing = fmin(threads_of_node(plan), cluster->cores), idle = cluster->cores - computing;
  return fmin(0.5, fmax(0, wanted - idle) / computing);
}

/* On the CPU the rank's thread moves what stays inside its node, and the links the rest while it computes on. A device
 * that executes streams waits first, and then moves bytes. */
static int price_collective(const ms_plan *plan, const ms_cluster *cluster, const ms_plan_coll *coll, ms_cost *cost) {
  ms_collective_work work;
  ms_collective_time whole, inside;
  MS_TRY(ms_collective_work_of(plan, cluster, coll, &work));
  MS_TRY(ms_collective_time_of(cluster, &work, &whole));
  cost->between = whole.between;
  if (cluster->device == MS_DEVICE_CPU) {
    ms_collective_work here = work;
    here.nodes = 1;
    MS_TRY(ms_collective_time_of(cluster, &here, &inside));
    cost->between = work.nodes > 1;
    cost->work = cost->between ? fmin(inside.seconds, whole.seconds) : whole.seconds;
    cost->transfer = whole.seconds - cost->work;
    if (cost->transfer > 0) cost->taken = taken(plan, cluster, whole.processor / cost->transfer);
    return MS_OK;
  }
  const double converted = converted_bytes(coll);
  cost->transfer = whole.transfer;
  cost->work = whole.seconds - whole.transfer;
  if (converted > 0) cost->work += cluster->kernel_start + (converted + cluster->memory_half) / cluster->memory_rate;
  return MS_OK;
}

/* ---- a phase ---------------------------------------------------------------------------------------------------- */

/* How many threads of this rank's node share a core. */
static double crowding(const ms_plan *plan, const ms_cluster *cluster) {
  return cluster->device == MS_DEVICE_CPU ? fmax(1, threads_of_node(plan) / cluster->cores) : 1;
}

int ms_price_costs(const ms_plan *plan, const ms_cluster *cluster, int phase, ms_cost **out) {
  const ms_plan_phase *p = &plan->phase[phase];
  const double crowded = crowding(plan, cluster);
  ms_cost *cost = ms_calloc(p->n, sizeof *cost);
  timed t = {0};
  int rc = cost ? MS_OK : MS_ENOMEM;
  if (rc) goto fail;
  MS_GOTO(open_timed(p, &t));
  for (int i = 0; i < p->n; i++) {
    const ms_instr *instr = &p->instr[i];
    if (instr->kind == MS_INSTR_KERNEL) MS_GOTO(kernel_time(plan, cluster, &t, instr->call, &cost[i].work));
    if (instr->kind == MS_INSTR_COLLECTIVE) MS_GOTO(price_collective(plan, cluster, instr->coll, &cost[i]));
    cost[i].work *= crowded;
  }
  *out = cost;
  cost = NULL;
fail:
  free(cost);
  free(t.call);
  free(t.seconds);
  return rc;
}
