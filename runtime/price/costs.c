/* costs.c - what each instruction of a phase takes, alone on its device and on its links.
 *
 * Layers repeat, and equal kernels of a plan share one prepared call, so each call is timed once.
 */
#include <math.h>
#include <stdlib.h>

#include "base/numbers/dtype.h"
#include "price/collective_time.h"
#include "price/price.h"

/* A hash table of the calls that were timed; `slots` is a power of two, and at least a quarter of them are free. */
typedef struct timed {
  const ms_kernel_call **call;
  double (*seconds)[2]; /* alone, and in another's launch */
  int slots;
} timed;

/* Collectives of this rank with the same ranks: how many there are, on how many nodes, and how many of them are on this
 * rank's node. */
typedef struct span {
  int dim, ranks, stride, replicas; /* as of the collective */
  int n, nodes, here;
} span;

/* A collective whose time is known. */
typedef struct met {
  ms_collective_work work;
  ms_collective_time time;
} met;

typedef struct costing {
  const ms_plan *plan;
  const ms_cluster *cluster;
  timed kernels;
  span *span;
  met *met;
  int spans, spans_capacity, mets, mets_capacity;
} costing;

/* ---- kernels ---------------------------------------------------------------------------------------------------- */

static int open_timed(const ms_plan_phase *phase, timed *t) {
  for (t->slots = 16; t->slots < 2 * phase->n;) t->slots *= 2;
  t->call = ms_calloc(t->slots, sizeof *t->call);
  t->seconds = ms_calloc(t->slots, sizeof *t->seconds);
  return t->call && t->seconds ? MS_OK : MS_ENOMEM;
}

static int kernel_time(costing *c, const ms_kernel_call *call, int joined, double *seconds) {
  timed *t = &c->kernels;
  unsigned slot = (unsigned)((uintptr_t)call >> 4) * 2654435761u & (unsigned)(t->slots - 1);
  ms_kernel_work work;
  while (t->call[slot] && t->call[slot] != call) slot = (slot + 1) & (unsigned)(t->slots - 1);
  if (!t->call[slot]) {
    MS_TRY(ms_kernel_work_of(c->plan, call, &work));
    MS_TRY(ms_kernel_time_of(c->cluster, &work, &t->seconds[slot][0], &t->seconds[slot][1]));
    t->call[slot] = call;
  }
  *seconds = t->seconds[slot][joined];
  return MS_OK;
}

/* ---- collectives ------------------------------------------------------------------------------------------------ */

static int count_ranks(const ms_plan *plan, const ms_plan_coll *coll, span *counted) {
  const ms_topology *topology = &plan->topology;
  const int most = coll->replicas ? coll->replicas * ms_model_shards(plan->model) : coll->ranks;
  int at[MS_GRID_DIMS], *ranks = ms_calloc(most, sizeof *ranks);
  char *seen = ms_calloc(topology->nodes, 1);
  const int rc = ranks && seen ? MS_OK : MS_ENOMEM;
  if (rc) goto fail;
  ms_grid_position(plan->model, plan->model->member, at);
  counted->n = ms_plan_members(plan, coll, at, ranks);
  for (int i = 0; i < counted->n; i++) {
    const int node = topology->node_of[ranks[i]];
    counted->nodes += !seen[node];
    seen[node] = 1;
    counted->here += node == topology->node_of[plan->model->rank];
  }
fail:
  free(ranks);
  free(seen);
  return rc;
}

static int span_of(costing *c, const ms_plan_coll *coll, const span **found) {
  for (int i = 0; i < c->spans; i++) {
    const span *s = *found = &c->span[i];
    if (s->dim == coll->dim && s->ranks == coll->ranks && s->stride == coll->stride && s->replicas == coll->replicas)
      return MS_OK;
  }
  MS_TRY(ms_grow((void **)&c->span, &c->spans_capacity, c->spans + 1, sizeof *c->span));
  span *made = &c->span[c->spans];
  *made = (span){.dim = coll->dim, .ranks = coll->ranks, .stride = coll->stride, .replicas = coll->replicas};
  MS_TRY(count_ranks(c->plan, coll, made));
  c->spans++;
  *found = made;
  return MS_OK;
}

/* 1 for an all-gather of what is in place already: its ranks only meet. */
static int moves_nothing(const ms_plan_coll *coll) {
  if (coll->kind != MS_COLL_ALL_GATHER) return 0;
  for (int i = 0; i < coll->parts; i++)
    if (coll->part[i].src.buffer >= 0) return 0;
  return 1;
}

static int work_of(costing *c, const ms_plan_coll *coll, ms_collective_work *work) {
  static const int kinds[MS_COLL_KINDS] = {[MS_COLL_ALL_GATHER] = MS_LINK_ALL_GATHER,
                                           [MS_COLL_REDUCE_SCATTER] = MS_LINK_REDUCE_SCATTER,
                                           [MS_COLL_ALL_REDUCE] = MS_LINK_ALL_REDUCE,
                                           [MS_COLL_BARRIER] = MS_LINK_ALL_REDUCE,
                                           [MS_COLL_ALL_TO_ALL] = MS_LINK_ALL_TO_ALL};
  const int node = c->plan->topology.node_of[c->plan->model->rank];
  const span *of;
  if (!kinds[coll->kind])
    return MS_FAIL(MS_EUNSUPPORTED, "%s has no price: a plan with it cannot be priced", ms_coll_name(coll->kind));
  MS_TRY(span_of(c, coll, &of));
  *work = (ms_collective_work){.kind = kinds[coll->kind], .ranks = of->n, .nodes = of->nodes};
  const double n = work->ranks, passes = coll->kind == MS_COLL_ALL_REDUCE ? 2 : 1;
  work->bytes = n > 1 ? coll->bytes * n / (passes * (n - 1)) : 0;
  work->groups = c->plan->topology.node_ranks[node] / of->here;
  if (c->cluster->device != MS_DEVICE_CPU) return MS_OK;
  work->inside = moves_nothing(coll) ? 0 : coll->moved.inside + coll->also_bytes;
  work->wire = fmax(coll->moved.sent, coll->moved.received) * c->plan->topology.node_ranks[node];
  return MS_OK;
}

static int is_same(const ms_collective_work *a, const ms_collective_work *b) {
  return a->kind == b->kind && a->ranks == b->ranks && a->nodes == b->nodes && a->groups == b->groups &&
         a->bytes == b->bytes && a->inside == b->inside && a->wire == b->wire;
}

/* Layers repeat, so a few collectives stand for all of a phase. */
static int time_of(costing *c, const ms_collective_work *work, ms_collective_time *time) {
  for (int i = 0; i < c->mets; i++) {
    *time = c->met[i].time;
    if (is_same(work, &c->met[i].work)) return MS_OK;
  }
  MS_TRY(ms_collective_time_of(c->cluster, work, time));
  MS_TRY(ms_grow((void **)&c->met, &c->mets_capacity, c->mets + 1, sizeof *c->met));
  c->met[c->mets++] = (met){*work, *time};
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
static int price_collective(costing *c, const ms_plan_coll *coll, ms_cost *cost) {
  const ms_cluster *cluster = c->cluster;
  ms_collective_work work;
  ms_collective_time whole, inside;
  MS_TRY(work_of(c, coll, &work));
  MS_TRY(time_of(c, &work, &whole));
  cost->between = whole.between;
  if (cluster->device == MS_DEVICE_CPU) {
    ms_collective_work here = work;
    here.nodes = 1;
    MS_TRY(time_of(c, &here, &inside));
    cost->between = work.nodes > 1;
    cost->work = cost->between ? fmin(inside.seconds, whole.seconds) : whole.seconds;
    cost->transfer = whole.seconds - cost->work;
    if (cost->transfer > 0) cost->taken = taken(c->plan, cluster, whole.processor / cost->transfer);
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

static int mark_joined(const ms_plan *plan, int phase, ms_cost *cost) {
  const int n = plan->phase[phase].n;
  int *together = ms_calloc(n, sizeof *together);
  char *joined = ms_calloc(n, 1);
  const int rc = together && joined ? MS_OK : MS_ENOMEM;
  if (rc) goto fail;
  ms_plan_together(plan, phase, together);
  ms_plan_mark_joined(plan, phase, together, joined);
  for (int i = 0; i < n; i++) cost[i].joined = joined[i];
fail:
  free(together);
  free(joined);
  return rc;
}

int ms_price_costs(const ms_plan *plan, const ms_cluster *cluster, int phase, ms_cost **out) {
  const ms_plan_phase *p = &plan->phase[phase];
  const double crowded = crowding(plan, cluster);
  ms_cost *cost = ms_calloc(p->n, sizeof *cost);
  costing c = {.plan = plan, .cluster = cluster};
  int rc = cost ? MS_OK : MS_ENOMEM;
  if (rc) goto fail;
  MS_GOTO(mark_joined(plan, phase, cost));
  MS_GOTO(open_timed(p, &c.kernels));
  for (int i = 0; i < p->n; i++) {
    const ms_instr *instr = &p->instr[i];
    if (instr->kind == MS_INSTR_KERNEL) MS_GOTO(kernel_time(&c, instr->call, cost[i].joined, &cost[i].work));
    if (instr->kind == MS_INSTR_COLLECTIVE) MS_GOTO(price_collective(&c, instr->coll, &cost[i]));
    cost[i].work *= crowded;
  }
  *out = cost;
  cost = NULL;
fail:
  free(cost);
  free(c.kernels.call);
  free(c.kernels.seconds);
  free(c.span);
  free(c.met);
  return rc;
}
