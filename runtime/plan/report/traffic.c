/* traffic.c - what the collectives of a plan move inside a node, through its memory, and between nodes, over links.
 *
 * A collective whose ranks are on several nodes moves what comm/collectives/hosts/hosts_plan.c says, which also tells
 * the run who sends what to whom. This can differ between the ranks of a node, so the sums for a node count for each of
 * its ranks.
 */
#include <stdlib.h>
#include <string.h>

#include "base/slice.h"
#include "comm/collectives/hosts/hosts_plan.h"
#include "plan/layout/state_layout.h"
#include "plan/report/dump.h"

/* ---- the ranks of a collective ---------------------------------------------------------------------------------- */

/* The dimension of the grid that a collective's ranks differ in: context is the end of shard. */
static int digit_of(const ms_plan_coll *coll) { return coll->dim == MS_DIM_CONTEXT ? MS_DIM_SHARD : coll->dim; }

/* The place of the rank at a position among the ranks of its collective. */
static int place_in(const ms_plan_coll *coll, const int *at) { return at[digit_of(coll)] / coll->stride % coll->ranks; }

int ms_plan_members(const ms_plan *plan, const ms_plan_coll *coll, const int *at, int *ranks) {
  const ms_model *m = plan->model;
  const int together = plan->layout->replicas;
  int n = 0, member[MS_GRID_DIMS];
  memcpy(member, at, sizeof member);
  if (coll->replicas) {
    const int first = at[MS_DIM_REPLICATE] / together * together;
    for (int i = 0; i < coll->replicas * ms_model_shards(m); i++) {
      member[MS_DIM_REPLICATE] = first + i / ms_model_shards(m);
      member[MS_DIM_SHARD] = i % ms_model_shards(m);
      ranks[n++] = ms_grid_rank(m, member);
    }
    return n;
  }
  const int digit = digit_of(coll), start = at[digit] - place_in(coll, at) * coll->stride;
  while (n < coll->ranks) {
    member[digit] = start + n * coll->stride;
    ranks[n++] = ms_grid_rank(m, member);
  }
  return n;
}

/* The latest collective of a kind that was counted. Layers repeat their collectives, and counting visits all ranks. */
typedef struct counted {
  int place, parts;
  ms_coll_part *part; /* [the most parts of a collective]; NULL: none was counted */
  ms_traffic moved;
} counted;

/* Collectives along one dimension with the same ranks, on several nodes. */
typedef struct span {
  int dim, ranks, stride, leader;
  ms_hosts_shape shape;
  counted latest[MS_COLL_KINDS];
} span;

typedef struct counting {
  const ms_plan *plan;
  int *ranks, *node;  /* [members] scratch */
  ms_coll_part *part; /* [max_parts] scratch */
  int max_parts;      /* of a collective */
  span *span;
  int spans, capacity;
} counting;

static int max_parts(const ms_plan *plan) {
  int most = 0;
  for (int p = 0; p < MS_PHASES; p++)
    for (int i = 0; i < plan->phase[p].colls; i++)
      if (plan->phase[p].coll[i]->parts > most) most = plan->phase[p].coll[i]->parts;
  return most;
}

static int open_counting(const ms_plan *plan, counting *c) {
  *c = (counting){.plan = plan};
  c->ranks = ms_calloc(plan->model->members, sizeof *c->ranks);
  c->node = ms_calloc(plan->model->members, sizeof *c->node);
  c->max_parts = max_parts(plan);
  c->part = ms_calloc(c->max_parts, sizeof *c->part);
  return c->ranks && c->node && c->part ? MS_OK : MS_ENOMEM;
}

static void close_counting(counting *c) {
  for (int i = 0; i < c->spans; i++) {
    ms_hosts_shape_free(&c->span[i].shape);
    for (int kind = 0; kind < MS_COLL_KINDS; kind++) free(c->span[i].latest[kind].part);
  }
  free(c->span);
  free(c->ranks);
  free(c->node);
  free(c->part);
}

/* The first rank of a collective in which the rank at a position takes part, and the place of that one among them: as
 * ms_plan_members lists them, of a collective without `replicas`. */
static int leader_of(const ms_plan *plan, const ms_plan_coll *coll, const int *at, int *place) {
  int member[MS_GRID_DIMS];
  memcpy(member, at, sizeof member);
  *place = place_in(coll, at);
  member[digit_of(coll)] -= *place * coll->stride;
  return ms_grid_rank(plan->model, member);
}

/* Finds the ranks of a collective in which the rank at a position takes part, and its place among them. */
static int find_span(counting *c, const ms_plan_coll *coll, const int *at, span **found, int *place) {
  const int leader = leader_of(c->plan, coll, at, place);
  for (int i = 0; i < c->spans; i++) {
    *found = &c->span[i];
    if ((*found)->dim == coll->dim && (*found)->ranks == coll->ranks && (*found)->stride == coll->stride &&
        (*found)->leader == leader)
      return MS_OK;
  }
  const int n = ms_plan_members(c->plan, coll, at, c->ranks);
  for (int i = 0; i < n; i++) c->node[i] = c->plan->topology.node_of[c->ranks[i]];
  MS_TRY(ms_grow((void **)&c->span, &c->capacity, c->spans + 1, sizeof *c->span));
  span *made = &c->span[c->spans++];
  *made = (span){.dim = coll->dim, .ranks = n, .stride = coll->stride, .leader = leader};
  *found = made;
  return ms_hosts_shape_make(n, *place, c->node, &made->shape);
}

/* ---- counting --------------------------------------------------------------------------------------------------- */

/* Replicas that share their state are on one node, and so are all their shards. */
static int is_inside(const ms_plan *plan, const ms_plan_coll *coll) {
  return plan->topology.nodes == 1 || coll->replicas || coll->kind == MS_COLL_BARRIER || !coll->parts;
}

/* The elements of a segment that the rank at a position sums between nodes: those in its slice of the chunks. */
static int64_t count_in_slice(const ms_plan *plan, int unit, int segment, const int *at) {
  const ms_unit *u = &plan->model->unit[unit];
  int64_t first,
      n = ms_slice(u->trainable_count, plan->layout->replicas, at[MS_DIM_REPLICATE] % plan->layout->replicas, &first);
  const int64_t from = u->segment[segment].local, to = from + u->segment[segment].chunk;
  const int64_t begin = from > first ? from : first, end = to < first + n ? to : first + n;
  return end > begin ? end - begin : 0;
}

/* Fills c->part with the sizes of a collective as the rank at a position runs it. */
static void take_sizes(counting *c, const ms_plan_coll *coll, const int *at) {
  for (int i = 0; i < coll->parts; i++) c->part[i] = ms_plan_part_sizes(coll, &coll->part[i]);
  if (!ms_plan_coll_is_of_slices(coll)) return;
  const ms_unit *u = &c->plan->model->unit[coll->unit];
  if (ms_unit_is_sliced(c->plan->model, u, c->plan->layout->replicas)) return; /* whole slices, of one size */
  for (int s = 0, i = 0; s < u->segments; s++)
    if (!u->segment[s].frozen) c->part[i++].count = count_in_slice(c->plan, coll->unit, s, at);
}

static int is_like(const counted *latest, int place, const ms_coll_part *part, int parts) {
  if (!latest->part || latest->place != place || latest->parts != parts) return 0;
  for (int i = 0; i < parts; i++) {
    const ms_coll_part *a = &latest->part[i], *b = &part[i];
    if (a->count != b->count || a->src_dtype != b->src_dtype || a->dst_dtype != b->dst_dtype) return 0;
  }
  return 1;
}

static int keep(const counting *c, counted *latest, int place, int parts, const ms_traffic *moved) {
  if (!latest->part) latest->part = ms_calloc(c->max_parts, sizeof *latest->part);
  if (!latest->part) return MS_ENOMEM;
  memcpy(latest->part, c->part, (size_t)parts * sizeof *c->part);
  latest->place = place;
  latest->parts = parts;
  latest->moved = *moved;
  return MS_OK;
}

/* Counts a collective of several nodes whose sizes are in c->part. */
static int count_between_nodes(const counting *c, span *s, const ms_plan_coll *coll, int place, ms_traffic *traffic) {
  const ms_coll sizes = {.kind = coll->kind, .parts = coll->parts, .part = c->part};
  counted *latest = &s->latest[coll->kind];
  int64_t sent, received;
  if (is_like(latest, place, c->part, coll->parts)) {
    *traffic = latest->moved;
    return MS_OK;
  }
  ms_hosts_bytes(&s->shape, &sizes, place, &sent, &received);
  traffic->inside = (double)ms_hosts_bytes_inside(&s->shape, &sizes, place);
  traffic->sent = (double)sent;
  traffic->received = (double)received;
  return keep(c, latest, place, coll->parts, traffic);
}

/* What the rank at a position of the grid moves in a collective like `coll`. */
static int count(counting *c, const ms_plan_coll *coll, const int *at, ms_traffic *traffic) {
  span *s;
  int place;
  *traffic = (ms_traffic){.inside = coll->bytes};
  if (is_inside(c->plan, coll)) return MS_OK;
  MS_TRY(find_span(c, coll, at, &s, &place));
  take_sizes(c, coll, at);
  if (s->shape.hosts > 1) return count_between_nodes(c, s, coll, place, traffic);
  traffic->inside = ms_coll_bytes(coll->kind, coll->ranks, c->part, coll->parts);
  return MS_OK;
}

int ms_plan_count_traffic(ms_plan *plan) {
  counting c;
  int at[MS_GRID_DIMS], rc;
  ms_grid_position(plan->model, plan->model->member, at);
  MS_GOTO(open_counting(plan, &c));
  for (int p = 0; p < MS_PHASES; p++)
    for (int i = 0; i < plan->phase[p].colls; i++)
      MS_GOTO(count(&c, plan->phase[p].coll[i], at, &plan->phase[p].coll[i]->moved));
fail:
  close_counting(&c);
  return rc;
}

/* ---- sums ------------------------------------------------------------------------------------------------------- */

/* Adds what the rank at a position moves in a step over a dimension. */
static int add_step(counting *c, int mesh_dim, const int *at, ms_traffic *sum) {
  for (int p = 0; p < MS_PHASES; p++) {
    const ms_plan_phase *phase = &c->plan->phase[p];
    const int runs = ms_plan_runs(c->plan, p);
    for (int i = 0; i < phase->colls && runs; i++) {
      ms_traffic moved;
      if (c->plan->model->dim[phase->coll[i]->dim].mesh_dim != mesh_dim) continue;
      MS_TRY(count(c, phase->coll[i], at, &moved));
      ms_traffic_add(sum, &(ms_traffic){runs * moved.inside, runs * moved.sent, runs * moved.received});
    }
  }
  return MS_OK;
}

/* MS_EINVAL if the mesh does not have the dimension. */
static int check_mesh_dim(const ms_plan *plan, int mesh_dim) {
  const ms_model *m = plan->model;
  if (mesh_dim >= 0 && mesh_dim < m->mesh_ndim) return MS_OK;
  return MS_FAIL(MS_EINVAL, "dimension %d: the mesh %s has dimensions 0 to %d", mesh_dim, m->mesh_text,
                 m->mesh_ndim - 1);
}

int ms_plan_traffic_of(const ms_plan *plan, int mesh_dim, ms_traffic *rank, ms_traffic *node) {
  const ms_model *m = plan->model;
  const int *node_of = plan->topology.node_of;
  *rank = *node = (ms_traffic){0};
  counting c;
  int rc;
  MS_GOTO(open_counting(plan, &c));
  for (int i = 0; i < m->members; i++) {
    int at[MS_GRID_DIMS];
    ms_traffic one = {0};
    if (node_of[m->member_rank[i]] != node_of[m->rank]) continue;
    ms_grid_position(m, i, at);
    MS_GOTO(add_step(&c, mesh_dim, at, &one));
    if (i == m->member) *rank = one;
    ms_traffic_add(node, &one);
  }
fail:
  close_counting(&c);
  return rc;
}

int ms_plan_traffic(const ms_plan *plan, int mesh_dim, ms_traffic *rank, ms_traffic *node, int size) {
  MS_HANDLE(plan, PLAN);
  MS_GIVEN(rank);
  MS_GIVEN(node);
  ms_traffic of_rank, of_node;
  MS_TRY(check_mesh_dim(plan, mesh_dim));
  MS_TRY(ms_plan_traffic_of(plan, mesh_dim, &of_rank, &of_node));
  MS_TRY(ms_info_give(rank, size, &of_rank, sizeof of_rank, __func__));
  MS_GIVE_INFO(node, size, of_node);
}

void ms_plan_unit_traffic(const ms_plan *plan, int phase, int unit, ms_unit_cost *cost) {
  for (int i = 0, gathered = 0; i < plan->phase[phase].colls; i++) {
    const ms_plan_coll *coll = plan->phase[phase].coll[i];
    const int is_gather = coll->kind == MS_COLL_ALL_GATHER && !coll->of_sums;
    if (coll->unit != unit) continue;
    ms_traffic_add(is_gather ? &cost->gathered : &cost->reduced, &coll->moved);
    if (is_gather && gathered++) ms_traffic_add(&cost->gathered_again, &coll->moved);
  }
}
