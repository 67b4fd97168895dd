/* lower_owners.c - the update of parameters whose programs have owners, on which alone their matrices are whole
 * (owners.h). What a bucket goes through:
 *
 *   MAKE    the kernels before TO_OWNER: of this rank's elements of a matrix
 *   OUT     all_to_all over replicate: the owner's replica receives the slices of a chunk, and JOINs them
 *   OUT     all_to_all over shard: the owner's shard receives the chunks, and JOINs them
 *   OUT     all_to_all over tensor: the owner receives the parts
 *   OWN     the kernels after it, on the owner
 *   BACK    over tensor, over shard, over replicate, and a SPLIT before each
 *   APPLY   the kernels after FROM_OWNER: of this rank's elements
 *
 * A dimension with one rank has no exchange, and where replicas have copies of the state, each has all of
 * its chunk, so that only the results are exchanged over replicate. Which elements a rank sends depends on its place,
 * so the kernels are not compared between ranks; owners are (fingerprint.c).
 *
 * A stage is what a bucket does from one exchange to the next. Buckets follow one another as in a pipeline: in tick k,
 * bucket k has its first stage, bucket k - 1 its second one, and so on. So while a bucket is exchanged, others are
 * computed, and only as many buckets as there are stages have buffers.
 */
#include <stdlib.h>

#include "base/min.h"
#include "plan/layout/state_layout.h"
#include "plan/lower/optimizers/owners.h"
#include "plan/lower/optimizers/update.h"
#include "shard/divided.h"

enum kind { MAKE, JOIN, OWN, SPLIT, APPLY, OUT, BACK };

/* dim: that of JOIN, SPLIT, OUT and BACK. */
typedef struct step {
  int kind, dim, stage;
} step;

enum { MAX_STEPS = 3 + 4 * MS_GRID_DIMS };

typedef struct owners {
  ms_plan *plan;
  const char *scope;                           /* of moves and buffers: the first optimizer's */
  int copies;                                  /* 1: each replica has the gradients of whole chunks */
  int last;                                    /* the last dimension with an exchange; -1: none */
  int opens[MS_GRID_DIMS], ends[MS_GRID_DIMS]; /* the stages in which an exchange has buffers */
  step step[MAX_STEPS];
  int steps, stages;
  ms_owner_bucket *bucket;
  int buckets;
} owners;

static int phase_end(const ms_plan *plan) { return plan->phase[MS_PHASE_UPDATE].n - 1; }
static int place_of(const owners *m, int dim) { return m->plan->model->dim[dim].place; }
static int ranks_of(const owners *m, int dim) { return m->plan->model->dim[dim].size; }
static ms_ref vector(int buffer, int64_t first, int64_t n) { return ms_ref_vector(buffer, 4 * first, MS_F32, n); }

/* ---- places ------------------------------------------------------------------------------------------------------ */

/* Where elements [first, first + n) of this rank's part of a matrix are before the exchanges over `dim` and what
 * follows it, and where their results are found after those: where the next exchange sends them from, or in `whole`,
 * the matrix on its owner. */
static ms_ref place(const owners *m, const ms_owner_bucket *b, const ms_owned *o, int dim, int whole, int64_t first,
                    int64_t n) {
  for (int d = dim; d < MS_GRID_DIMS; d++) {
    if (ranks_of(m, d) == 1) continue;
    const int own = place_of(m, d), owner = ms_owner_place(m->plan, o, d);
    ms_ref at = ms_owner_in_piece(m->plan, b, d, b->over[d].sent, o, owner, own);
    at.offset += 4 * (first - ms_owner_sent(m->plan, o, d, own).first);
    at.info.dims[0] = n;
    return at;
  }
  return vector(whole, first, n);
}

static ms_owned_range own_range(const owners *m, const ms_owned *o) {
  return ms_owned_slice(m->plan, o, place_of(m, MS_DIM_REPLICATE), place_of(m, MS_DIM_SHARD));
}

static ms_ref own_place(const owners *m, const ms_owner_bucket *b, const ms_owned *o, int whole) {
  const ms_owned_range own = own_range(m, o);
  return place(m, b, o, MS_DIM_REPLICATE, whole, own.first, own.count);
}

static ms_stretch stretch_of(const owners *m, const ms_owned *o) {
  const ms_owned_range own = own_range(m, o);
  return (ms_stretch){own.local, own.local + own.count};
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Lowers the kernels of the program's section before TO_OWNER, after it, or after FROM_OWNER. whole: the matrix on
 * its owner, and what becomes of it there; else -1. */
enum { BEFORE, ON_OWNER, AFTER };
static int kernels(const owners *m, const ms_owner_bucket *b, const ms_owned *o, int section, int matrix, int result) {
  ms_plan *plan = m->plan;
  const ms_param *p = &plan->model->param[o->param];
  const ms_optimizer *by = ms_param_optimizer(&plan->config, p);
  const ms_update_item item = {o->param, p->unit, p->segment, stretch_of(m, o)};
  if (section != ON_OWNER && item.own.end == item.own.begin) return MS_OK;
  ms_ref vector[MS_VECTORS];
  if (section == ON_OWNER) {
    const ms_value_info shape = ms_owned_shape(plan, o);
    vector[MS_OF_MATRIX - MS_OF_VECTOR] = (ms_ref){matrix, 0, shape};
    vector[MS_OF_RESULT - MS_OF_VECTOR] = (ms_ref){result, 0, shape};
    plan->phase[MS_PHASE_UPDATE].flops += o->flops;
  } else {
    vector[MS_OF_PART - MS_OF_VECTOR] = own_place(m, b, o, section == BEFORE ? matrix : result);
  }
  int at = BEFORE;
  for (const ms_update_step *s = by->step; s->kind; s++) {
    at += s->kind == MS_STEP_TO_OWNER || s->kind == MS_STEP_FROM_OWNER;
    if (s->kind != MS_STEP_KERNEL || at != section) continue;
    MS_TRY(ms_lower_update_kernel(plan, MS_PHASE_UPDATE, by, s, &item, item.own, vector));
  }
  return MS_OK;
}

/* ---- what an exchange brought, and what it takes back -------------------------------------------------------------
 */

static int move(const owners *m, ms_ref from, ms_ref to) {
  const ms_op_attrs none = {0};
  if (!ms_numel(&from.info)) return MS_OK;
  return ms_plan_kernel(m->plan, MS_PHASE_UPDATE, MS_OP_copy_part, &none, 1, &from, 1, &to, m->scope, 0);
}

/* The part of the rank at `of` in the tensor dimension, out of its piece or back there: runs of the whole matrices at
 * equal distances. Matrices that are not divided are the same on all of them: one is enough, and its results go to all.
 */
static int move_part(const owners *m, const ms_owned *o, int whole, int of, ms_ref piece, int back) {
  const ms_param *p = &m->plan->model->param[o->param];
  const int divided = ms_param_is_divided(m->plan->model, p);
  const ms_division part = ms_param_division(m->plan->model, p, of);
  const int64_t run = ms_min(part.run, o->count), runs = o->count / run;
  const int64_t apart = runs > 1 ? part.stride : run, all = (runs - 1) * apart + run;
  const ms_ref at = vector(whole, divided ? part.origin : 0, all);
  const ms_op_attrs attrs = {.runs = {.run = run, .from = back ? apart : run, .to = back ? run : apart}};
  if (!divided && !back && of != place_of(m, MS_DIM_TENSOR)) return MS_OK;
  if (runs == 1) return back ? move(m, at, piece) : move(m, piece, at);
  return ms_plan_kernel(m->plan, MS_PHASE_UPDATE, MS_OP_copy_runs, &attrs, 1, back ? &at : &piece, 1,
                        back ? &piece : &at, m->scope, 0);
}

/* 1 when the owner's replica has these elements from another one: where several copies of the state have the same
 * slices, from the copy that it belongs to. */
static int is_repeated(const owners *m, const ms_owned *o, int replica) {
  const ms_model *model = m->plan->model;
  const int in_copy = m->plan->layout->replicas, own = place_of(m, MS_DIM_REPLICATE);
  const int sliced = ms_unit_is_sliced(model, &model->unit[model->param[o->param].unit], in_copy);
  return !sliced && replica / in_copy != own / in_copy;
}

/* Joins what the ranks of a dimension sent of a matrix. */
static int join(const owners *m, const ms_owner_bucket *b, const ms_owned *o, int dim, int whole) {
  const int made_here = dim == MS_DIM_REPLICATE && m->copies;
  for (int of = 0; of < ranks_of(m, dim); of++) {
    const ms_owned_range range = ms_owner_sent(m->plan, o, dim, of);
    if (dim == MS_DIM_REPLICATE && is_repeated(m, o, of)) continue;
    const ms_ref piece =
        ms_owner_in_piece(m->plan, b, dim, made_here ? b->over[dim].sent : b->over[dim].received, o, of, of);
    if (dim == MS_DIM_TENSOR) MS_TRY(move_part(m, o, whole, of, piece, 0));
    else MS_TRY(move(m, piece, place(m, b, o, dim + 1, whole, range.first, range.count)));
  }
  return MS_OK;
}

/* Gives every rank of a dimension its results. */
static int split(const owners *m, const ms_owner_bucket *b, const ms_owned *o, int dim, int whole) {
  for (int of = 0; of < ranks_of(m, dim); of++) {
    const ms_owned_range range = ms_owner_sent(m->plan, o, dim, of);
    const ms_ref piece = ms_owner_in_piece(m->plan, b, dim, b->over[dim].received, o, of, of);
    if (dim == MS_DIM_TENSOR) MS_TRY(move_part(m, o, whole, of, piece, 1));
    else MS_TRY(move(m, place(m, b, o, dim + 1, whole, range.first, range.count), piece));
  }
  return MS_OK;
}

/* ---- the owner --------------------------------------------------------------------------------------------------- */

/* Workspace, as the kernel's own: the sizes of arenas that peers read must not depend on what a rank owns. */
static int open_whole(const owners *m, const ms_owned *o, int *buffer) {
  const ms_value_info shape = ms_owned_shape(m->plan, o);
  return ms_plan_buffer(m->plan, MS_PHASE_UPDATE, MS_ARENA_WORKSPACE, MS_CAT_WORKSPACE, 4 * ms_numel(&shape), m->scope,
                        buffer);
}

/* All that the owner does with matrices. Those without exchanges are made and applied here, too. */
static int own(const owners *m, const ms_owner_bucket *b, const ms_owned *o) {
  int from, to;
  MS_TRY(open_whole(m, o, &from));
  MS_TRY(open_whole(m, o, &to));
  if (m->last < 0) MS_TRY(kernels(m, b, o, BEFORE, from, -1));
  else MS_TRY(join(m, b, o, m->last, from));
  MS_TRY(kernels(m, b, o, ON_OWNER, from, to));
  return m->last < 0 ? kernels(m, b, o, AFTER, -1, to) : split(m, b, o, m->last, to);
}

/* ---- steps and stages -------------------------------------------------------------------------------------------- */

static void add_step(owners *m, int kind, int dim) {
  m->step[m->steps++] = (step){kind, dim, m->stages - 1};
  if (kind == OUT || kind == BACK) m->stages++;
}

static int dim_before(const owners *m, int dim) {
  do dim--;
  while (dim >= 0 && ranks_of(m, dim) == 1);
  return dim;
}

static void list_steps(owners *m) {
  m->stages = 1;
  m->last = dim_before(m, MS_GRID_DIMS);
  add_step(m, MAKE, -1);
  for (int d = 0; d < MS_GRID_DIMS; d++) {
    if (ranks_of(m, d) == 1) continue;
    m->opens[d] = m->stages - 1;
    if (d != MS_DIM_REPLICATE || !m->copies) add_step(m, OUT, d);
    if (d != m->last) add_step(m, JOIN, d);
  }
  add_step(m, OWN, -1);
  for (int d = m->last; d >= 0; d = dim_before(m, d)) {
    add_step(m, BACK, d);
    m->ends[d] = m->stages - 1;
    add_step(m, dim_before(m, d) < 0 ? APPLY : SPLIT, dim_before(m, d));
  }
}

static int stream_of(int dim) {
  static const int stream[MS_GRID_DIMS] = {MS_STREAM_REPLICATE, MS_STREAM_REDUCE, MS_STREAM_TENSOR};
  return stream[dim];
}

static int trade(const owners *m, const ms_owner_bucket *b, const step *s) {
  const ms_owner_exchange *e = &b->over[s->dim];
  const int from = s->kind == OUT ? e->sent : e->received, to = s->kind == OUT ? e->received : e->sent;
  const int64_t all = ranks_of(m, s->dim) * e->piece;
  const ms_plan_part part = {
      .count = e->piece, .src.buffer = -1, .shared = vector(from, 0, all), .dst = vector(to, 0, all)};
  return ms_plan_collective_of(m->plan, MS_PHASE_UPDATE, stream_of(s->dim), MS_COLL_ALL_TO_ALL, s->dim, m->scope,
                               &part);
}

/* 1 when a matrix that has travelled over the dimensions up to `dim` is here. */
static int is_here(const owners *m, const ms_owned *o, int dim) {
  for (int d = 0; d <= dim; d++)
    if (ms_owner_place(m->plan, o, d) != place_of(m, d)) return 0;
  return 1;
}

static int compute_one(const owners *m, const ms_owner_bucket *b, const step *s, const ms_owned *o) {
  switch (s->kind) {
    case MAKE: return kernels(m, b, o, BEFORE, -1, -1);
    case JOIN: return is_here(m, o, s->dim) ? join(m, b, o, s->dim, -1) : MS_OK;
    case OWN: return is_here(m, o, MS_GRID_DIMS - 1) ? own(m, b, o) : MS_OK;
    case SPLIT: return is_here(m, o, s->dim) ? split(m, b, o, s->dim, -1) : MS_OK;
    default: return kernels(m, b, o, AFTER, -1, -1);
  }
}

/* A stage of a bucket that exists: its kernels, or the exchange at its end. */
enum { KERNELS, EXCHANGE };
static int do_stage(const owners *m, int bucket, int stage, int part) {
  if (bucket < 0 || bucket >= m->buckets) return MS_OK;
  const ms_owner_bucket *b = &m->bucket[bucket];
  for (const step *s = m->step; s < m->step + m->steps; s++) {
    const int trades = s->kind == OUT || s->kind == BACK;
    if (s->stage != stage || trades != part) continue;
    if (trades) MS_TRY(trade(m, b, s));
    for (int i = 0; i < b->n && !trades; i++) MS_TRY(compute_one(m, b, s, &b->owned[i]));
  }
  return MS_OK;
}

/* ---- the pipeline ------------------------------------------------------------------------------------------------ */

/* All ranks must give their buffers the same lifetimes, whatever kernels they have. So buffers begin with what follows
 * the last exchange of a tick, and end with such an exchange: every rank has those. The last ones, after which no
 * others begin, end with the update. */
static int open_buffers(const owners *m, int tick) {
  for (int d = 0; d < MS_GRID_DIMS; d++) {
    const int at = tick - m->opens[d];
    if (ranks_of(m, d) == 1 || at < 0 || at >= m->buckets) continue;
    ms_owner_exchange *e = &m->bucket[at].over[d];
    int *buffer[] = {&e->sent, &e->received};
    for (int i = 0; i < 2; i++) {
      MS_TRY(ms_plan_buffer(m->plan, MS_PHASE_UPDATE, MS_ARENA_COMM, MS_CAT_COMMUNICATION,
                            4 * ranks_of(m, d) * e->piece, m->scope, buffer[i]));
      ms_plan_touch(m->plan, *buffer[i], phase_end(m->plan) + 1);
    }
  }
  return MS_OK;
}

/* first, end: of the buckets. */
static void end_buffers(const owners *m, int d, int first, int end) {
  for (int i = first; i < end; i++) {
    ms_plan_touch(m->plan, m->bucket[i].over[d].sent, phase_end(m->plan));
    ms_plan_touch(m->plan, m->bucket[i].over[d].received, phase_end(m->plan));
  }
}

/* The last kernels of a bucket come before the last exchange, so that its buffers end there. */
static int do_tick(const owners *m, int tick) {
  const int final = m->stages - 1;
  MS_TRY(open_buffers(m, tick));
  for (int stage = 0; stage <= final; stage++) {
    MS_TRY(do_stage(m, tick - stage, stage, KERNELS));
    if (stage < final - 1) MS_TRY(do_stage(m, tick - stage, stage, EXCHANGE));
  }
  return do_stage(m, tick - final + 1, final - 1, EXCHANGE);
}

static int do_ticks(const owners *m, ms_meanwhile *meanwhile) {
  const int ticks = m->buckets + m->stages - 1;
  int last_open = 0, ended[MS_GRID_DIMS] = {0};
  for (int d = 0; d < MS_GRID_DIMS; d++)
    if (ranks_of(m, d) > 1) last_open = m->buckets - 1 + m->opens[d];
  for (int tick = 0; tick < ticks; tick++) {
    if (tick == 1) MS_TRY(meanwhile(m->plan, 0));
    if (tick == ticks - 1) MS_TRY(meanwhile(m->plan, 1));
    MS_TRY(do_tick(m, tick));
    for (int d = 0; d < MS_GRID_DIMS && tick < last_open; d++) {
      if (ranks_of(m, d) == 1 || tick < m->ends[d]) continue;
      end_buffers(m, d, ended[d], tick - m->ends[d] + 1);
      ended[d] = tick - m->ends[d] + 1;
    }
  }
  for (int d = 0; d < MS_GRID_DIMS; d++)
    if (ranks_of(m, d) > 1) end_buffers(m, d, ended[d], m->buckets);
  return MS_OK;
}

static int own_all(const owners *m, ms_meanwhile *meanwhile) {
  for (int b = 0; b < m->buckets; b++)
    for (int i = 0; i < m->bucket[b].n; i++) MS_TRY(own(m, &m->bucket[b], &m->bucket[b].owned[i]));
  MS_TRY(meanwhile(m->plan, 0));
  return meanwhile(m->plan, 1);
}

int ms_lower_owned_updates(ms_plan *plan, ms_meanwhile *meanwhile) {
  const ms_param *first = &plan->model->param[plan->owned[0].param];
  owners m = {.plan = plan,
              .scope = ms_param_optimizer(&plan->config, first)->scope,
              .copies = plan->layout->replicas == 1 && !plan->layout->sliced,
              .buckets = plan->owned_buckets};
  int rc = MS_OK;
  m.bucket = ms_calloc(m.buckets, sizeof *m.bucket);
  if (!m.bucket) return MS_ENOMEM;
  list_steps(&m);
  for (int b = 0; b < m.buckets && !rc; b++) {
    m.bucket[b].owned = &plan->owned[plan->owned_bucket[b]];
    m.bucket[b].n = plan->owned_bucket[b + 1] - plan->owned_bucket[b];
    rc = ms_owner_measure(plan, &m.bucket[b]);
  }
  if (!rc) rc = m.last < 0 ? own_all(&m, meanwhile) : do_ticks(&m, meanwhile);
  free(m.bucket);
  return rc;
}
