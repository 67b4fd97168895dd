/* streams.c - simulates a phase on devices that execute streams by themselves, such as GPUs: of one rank that stands
 * for all, or of every rank of a world.
 *
 * A thread of the host issues the instructions in program order. A stream runs its instructions one after another, each
 * once it is issued and what it waits for is done. A collective begins when all its ranks have reached it; then its
 * ranks' latencies pass, and its bytes move. Collectives of a rank that use links of the same kind at once share them
 * equally, and a kernel computes slower while bytes move, since moving them takes processors and memory bandwidth.
 * Time advances from one end to the next: between two ends all rates are constant.
 */
#include <math.h>
#include <stdlib.h>

#include "price/price.h"

enum lane_state { IDLE = 0, ARRIVED = 1, RUNNING = 2 };

/* A stream of a rank. */
typedef struct lane {
  int at;                /* phase->n: all is done */
  int state;             /* of the instruction `at` */
  int before, because;   /* the latest kernel or collective that is done; that of the latest wait; -1: none */
  double work, transfer; /* what is left of the running instruction */
} lane;

typedef struct rank {
  const ms_plan *plan;
  const ms_plan_phase *phase;
  const ms_cost *cost;
  lane *lane;     /* [streams] */
  int *following; /* [phase->n + streams] the next instruction of the same stream; then the first one of each stream */
  char *recorded; /* [events] */
  int *recorder;  /* [events] */
  int moving[2];  /* collectives that move bytes now: inside a node, between nodes */
  ms_simulated *out;
} rank;

typedef struct simulation {
  const ms_cluster *cluster;
  rank *rank; /* [ranks] */
  int ranks, streams, *members;
  double now;
} simulation;

static int first_of(const rank *r, int stream) { return r->following[r->phase->n + stream]; }

static void find_following(rank *r, int streams) {
  int *first = &r->following[r->phase->n];
  for (int s = 0; s < streams; s++) first[s] = r->phase->n;
  for (int i = r->phase->n - 1; i >= 0; i--) {
    r->following[i] = first[r->phase->instr[i].stream];
    first[r->phase->instr[i].stream] = i;
  }
}

/* When the host has issued an instruction: events cost it nothing that counts, nor do kernels of a launch that it has
 * issued. */
static void issue(const simulation *sim, rank *r) {
  double at = 0;
  for (int i = 0; i < r->phase->n; i++) {
    const int kind = r->phase->instr[i].kind;
    if ((kind == MS_INSTR_KERNEL || kind == MS_INSTR_COLLECTIVE) && !r->cost[i].joined) at += sim->cluster->issue;
    r->out->moment[i].issued = at;
  }
}

/* ---- beginning -------------------------------------------------------------------------------------------------- */

/* Where the ranks of a collective are: their lanes must all have arrived at it. The k-th instruction of one rank is
 * that of all, because their plans have equal fingerprints; a rank that stands for all is its only member. */
static int members_of(simulation *sim, const rank *r, int i) {
  int at[MS_GRID_DIMS];
  if (sim->ranks == 1) {
    sim->members[0] = 0;
    return 1;
  }
  ms_grid_position(r->plan->model, r->plan->model->member, at);
  return ms_plan_members(r->plan, r->phase->instr[i].coll, at, sim->members);
}

static int collective_number(const rank *r, int stream, int i) {
  int n = 0;
  for (int k = 0; k < i; k++)
    n += r->phase->instr[k].stream == stream && r->phase->instr[k].kind == MS_INSTR_COLLECTIVE;
  return n;
}

static void run_at(simulation *sim, rank *r, int stream) {
  lane *l = &r->lane[stream];
  ms_moment *moment = &r->out->moment[l->at];
  moment->begin = sim->now;
  /* Between what came before on the stream and what it waited for, the later one let it begin. */
  const double end_before = l->before < 0 ? 0 : r->out->moment[l->before].end;
  const double end_waited = l->because < 0 ? -1 : r->out->moment[l->because].end;
  moment->cause = end_waited >= end_before ? l->because : l->before;
  if (moment->issued > fmax(end_before, end_waited)) moment->cause = -1;
  l->state = RUNNING;
  l->work = r->cost[l->at].work;
  l->transfer = r->cost[l->at].transfer;
}

/* Begins a collective if all its ranks have arrived at it. */
static int meet(simulation *sim, rank *r, int stream) {
  const int i = r->lane[stream].at, n = members_of(sim, r, i);
  const int number = n > 1 ? collective_number(r, stream, i) : 0;
  for (int m = 0; m < n && n > 1; m++) {
    const rank *other = &sim->rank[sim->members[m]];
    const lane *l = &other->lane[stream];
    if (l->state != ARRIVED || other->phase->instr[l->at].kind != MS_INSTR_COLLECTIVE ||
        collective_number(other, stream, l->at) != number)
      return 0;
  }
  for (int m = 0; m < n; m++) run_at(sim, &sim->rank[sim->members[m]], stream);
  return 1;
}

static void next(rank *r, int stream) {
  r->lane[stream].at = r->following[r->lane[stream].at];
  r->lane[stream].state = IDLE;
}

/* Begins what a stream can begin now; 1 if it did anything. */
static int advance(simulation *sim, rank *r, int stream) {
  lane *l = &r->lane[stream];
  if (l->at == r->phase->n || l->state == RUNNING) return 0;
  const ms_instr *instr = &r->phase->instr[l->at];
  if (instr->kind == MS_INSTR_RECORD) {
    r->recorded[instr->event] = 1;
    r->recorder[instr->event] = l->before;
    next(r, stream);
    return 1;
  }
  if (instr->kind == MS_INSTR_WAIT) {
    if (!r->recorded[instr->event]) return 0;
    const int recorder = r->recorder[instr->event];
    if (recorder >= 0 && (l->because < 0 || r->out->moment[recorder].end > r->out->moment[l->because].end))
      l->because = recorder;
    next(r, stream);
    return 1;
  }
  if (r->out->moment[l->at].issued > sim->now) return 0;
  if (instr->kind != MS_INSTR_COLLECTIVE) {
    run_at(sim, r, stream);
    return 1;
  }
  l->state = ARRIVED;
  return meet(sim, r, stream);
}

static void begin_all(simulation *sim) {
  for (int moved = 1; moved;) {
    moved = 0;
    for (int k = 0; k < sim->ranks; k++)
      for (int s = 0; s < sim->streams; s++) moved |= advance(sim, &sim->rank[k], s);
  }
}

/* ---- rates ------------------------------------------------------------------------------------------------------ */

static int moves(const lane *l) { return l->state == RUNNING && l->work <= 0 && l->transfer > 0; }

static void count_moving(simulation *sim) {
  for (int k = 0; k < sim->ranks; k++) {
    rank *r = &sim->rank[k];
    r->moving[0] = r->moving[1] = 0;
    for (int s = 0; s < sim->streams; s++)
      if (moves(&r->lane[s])) r->moving[r->cost[r->lane[s].at].between]++;
  }
}

/* The rate at which a running instruction progresses, as a part of its rate when it is alone. */
static double rate_of(simulation *sim, const rank *r, int stream) {
  const lane *l = &r->lane[stream];
  if (r->phase->instr[l->at].kind == MS_INSTR_KERNEL)
    return r->moving[0] + r->moving[1] ? 1 - sim->cluster->overlap : 1;
  if (!moves(l)) return 1;
  int most = 1; /* the fullest link among its ranks: a ring is as slow as its slowest */
  const int n = members_of(sim, r, l->at), between = r->cost[l->at].between;
  for (int m = 0; m < n; m++)
    if (sim->rank[sim->members[m]].moving[between] > most) most = sim->rank[sim->members[m]].moving[between];
  return 1.0 / most;
}

/* The time until something ends, changes its rate, or is issued; infinity: nothing will. */
static double until_next(simulation *sim) {
  double least = INFINITY;
  for (int k = 0; k < sim->ranks; k++) {
    rank *r = &sim->rank[k];
    for (int s = 0; s < sim->streams; s++) {
      const lane *l = &r->lane[s];
      if (l->at == r->phase->n) continue;
      if (l->state == RUNNING) least = fmin(least, (l->work > 0 ? l->work : l->transfer) / rate_of(sim, r, s));
      else if (r->out->moment[l->at].issued > sim->now) least = fmin(least, r->out->moment[l->at].issued - sim->now);
    }
  }
  return least;
}

static void end(simulation *sim, rank *r, int stream) {
  lane *l = &r->lane[stream];
  r->out->moment[l->at].end = sim->now;
  l->before = l->at;
  l->because = -1;
  next(r, stream);
}

/* Lets time pass. `left` absorbs what rounding leaves of an instruction that must end now. */
static void pass(simulation *sim, double seconds) {
  const double left = 1e-12 * (1 + sim->now);
  sim->now += seconds;
  for (int k = 0; k < sim->ranks; k++)
    for (int s = 0; s < sim->streams; s++) {
      rank *r = &sim->rank[k];
      lane *l = &r->lane[s];
      if (l->at == r->phase->n || l->state != RUNNING) continue;
      double *of = l->work > 0 ? &l->work : &l->transfer;
      *of -= seconds * rate_of(sim, r, s);
      if (*of < left) *of = 0;
    }
  for (int k = 0; k < sim->ranks; k++)
    for (int s = 0; s < sim->streams; s++) {
      rank *r = &sim->rank[k];
      lane *l = &r->lane[s];
      if (l->at < r->phase->n && l->state == RUNNING && l->work <= 0 && l->transfer <= 0) end(sim, r, s);
    }
}

/* ---- what kernels wait for --------------------------------------------------------------------------------------- */

/* Adds a time in which no kernel ran to the dimension of the collective that let the next one begin, or to the host. */
static void add_gap(const rank *r, double gap, int cause) {
  const ms_plan_coll *coll = cause < 0 ? NULL : r->phase->instr[cause].coll;
  const int dim = coll ? r->plan->model->dim[coll->dim].mesh_dim : -1;
  if (gap <= 0) return;
  if (coll) r->out->moment[cause].waited += gap;
  if (dim >= 0) r->out->waiting[dim] += gap;
  else r->out->issuing += gap;
}

static void add_gaps(const rank *r) {
  double now = 0;
  int last = -1;
  for (int i = 0; i < r->phase->n; i++) {
    const ms_moment *moment = &r->out->moment[i];
    if (moment->end > 0 && (last < 0 || moment->end > r->out->moment[last].end)) last = i;
    if (r->phase->instr[i].kind != MS_INSTR_KERNEL) continue;
    add_gap(r, moment->begin - now, moment->cause);
    now = moment->end;
  }
  add_gap(r, r->out->end - now, last);
}

/* ---- a phase ---------------------------------------------------------------------------------------------------- */

static int open_rank(const ms_plan *plan, int phase, const ms_cost *cost, ms_simulated *out, rank *r) {
  *r = (rank){.plan = plan, .phase = &plan->phase[phase], .cost = cost, .out = out};
  r->lane = ms_calloc(plan->streams, sizeof *r->lane);
  r->recorded = ms_calloc(r->phase->events, 1);
  r->recorder = ms_calloc(r->phase->events, sizeof *r->recorder);
  out->moment = ms_calloc(r->phase->n, sizeof *out->moment);
  r->following = ms_calloc(r->phase->n + plan->streams, sizeof *r->following);
  if (!r->lane || !r->recorded || !r->recorder || !r->following || !out->moment) return MS_ENOMEM;
  find_following(r, plan->streams);
  for (int s = 0; s < plan->streams; s++) r->lane[s] = (lane){.at = first_of(r, s), .before = -1, .because = -1};
  return MS_OK;
}

static int is_done(const simulation *sim) {
  for (int k = 0; k < sim->ranks; k++)
    for (int s = 0; s < sim->streams; s++)
      if (sim->rank[k].lane[s].at < sim->rank[k].phase->n) return 0;
  return 1;
}

static int run(simulation *sim) {
  for (int k = 0; k < sim->ranks; k++) issue(sim, &sim->rank[k]);
  for (;;) {
    begin_all(sim);
    if (is_done(sim)) return MS_OK;
    count_moving(sim);
    const double seconds = until_next(sim);
    if (isinf(seconds)) return MS_FAIL(MS_EINTERNAL, "the plan's streams wait for each other");
    pass(sim, seconds);
  }
}

int ms_simulate_streams(const ms_plan *const *plans, int ranks, const ms_cluster *cluster, int phase,
                        const ms_cost *const *costs, ms_simulated *out) {
  simulation sim = {.cluster = cluster, .ranks = ranks, .streams = plans[0]->streams};
  int rc;
  sim.rank = ms_calloc(ranks, sizeof *sim.rank);
  sim.members = ms_calloc(plans[0]->model->members + 1, sizeof *sim.members);
  if (!sim.rank || !sim.members) {
    rc = MS_ENOMEM;
    goto fail;
  }
  for (int k = 0; k < ranks; k++) MS_GOTO(open_rank(plans[k], phase, costs[k], &out[k], &sim.rank[k]));
  MS_GOTO(run(&sim));
  for (int k = 0; k < ranks; k++) {
    out[k].end = sim.now;
    add_gaps(&sim.rank[k]);
  }
fail:
  for (int k = 0; k < ranks && sim.rank; k++) {
    free(sim.rank[k].lane);
    free(sim.rank[k].recorded);
    free(sim.rank[k].recorder);
    free(sim.rank[k].following);
  }
  free(sim.rank);
  free(sim.members);
  return rc;
}
