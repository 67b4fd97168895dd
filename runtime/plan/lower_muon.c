/* lower_muon.c - the update of parameters that take Muon, whose matrices are whole only on their owners (muon.h).
 *
 *   muon_momentum      this rank's elements of a matrix -> their directions u
 *   all_to_all         over replicate: the owner's replica receives the slices of a chunk
 *   all_to_all         over shard: the owner receives the chunks
 *   muon_orthogonalise on the owner
 *   all_to_all         back over shard, and over replicate
 *   muon_apply         to this rank's elements of the weights
 *
 * A dimension with one rank has no exchange, and where replicas have copies of the state, each has all directions of
 * its chunk, so that only the results are exchanged over replicate.
 *
 * An exchange has two buffers of a piece for each rank of the dimension: `sent` and `received`. A matrix has the same
 * place in both, and on the way back, where results take the places of their directions in what was received, the two
 * change roles. All pieces have the size of the longest one, so that ranks agree on it. Which elements a rank sends
 * depends on its place, so the kernels are not compared between ranks; owners are (fingerprint.c).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/orthogonalise.h"
#include "plan/lower.h"
#include "plan/muon.h"

/* Elements of which places in a piece are multiples: a cache line. */
enum { ALIGN = 16 };

static const char scope[] = "muon";

/* The exchange over a dimension. */
typedef struct exchange {
  int ranks;          /* 1: there is none */
  int dim, stream;    /* enum ms_model_dim; enum ms_stream */
  int64_t piece;      /* elements */
  int sent, received; /* buffers of [ranks][piece] f32 */
} exchange;

typedef struct muon {
  ms_plan *plan;
  int replica, shard; /* this rank's place */
  int copies;         /* 1: each replica has the gradients of whole chunks */
  exchange across;    /* over replicate */
  exchange along;     /* over shard */
} muon;

static int64_t align_up(int64_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

static int phase_end(const ms_plan *plan) { return plan->phase[MS_PHASE_UPDATE].n - 1; }

/* ---- places ------------------------------------------------------------------------------------------------------ */

/* 1 when two matrices are in the same piece: their owners are in the same replica, or also at the same shard. */
static int shares_piece(const ms_plan *plan, int a, int b, int whole_owner) {
  if (!ms_muon_is_taken(plan, a)) return 0;
  return whole_owner ? plan->muon_owner[a] == plan->muon_owner[b]
                     : ms_muon_replica(plan, a) == ms_muon_replica(plan, b);
}

/* Elements before a matrix in the piece that the rank at `shard` exchanges with its owner, over the shards; with param
 * behind all of them, those of the piece of `like`. */
static int64_t before_along(const ms_plan *plan, int param, int like, int shard) {
  int64_t n = 0;
  for (int i = 0; i < param; i++)
    if (shares_piece(plan, i, like, 1)) n += align_up(ms_muon_chunk(plan, i, shard).count);
  return n;
}

/* The same over the replicas: what the one at `replica` exchanges with the owner's. */
static int64_t before_across(const ms_plan *plan, int param, int like, int replica, int shard) {
  int64_t n = 0;
  for (int i = 0; i < param; i++)
    if (shares_piece(plan, i, like, 0)) n += align_up(ms_muon_slice(plan, i, replica, shard).count);
  return n;
}

/* Adds to the piece of one owner, and returns its elements so far. */
static int64_t lengthen(int64_t *sum, int owner, int64_t elements) { return sum[owner] += align_up(elements); }

/* The longest piece over the shards. sum: [ranks], scratch: elements by owner. */
static int64_t longest_along(const ms_plan *plan, int64_t *sum) {
  const int shards = ms_model_shards(plan->model), ranks = shards * ms_model_replicas(plan->model);
  int64_t longest = 0, n;
  for (int s = 0; s < shards; s++) {
    memset(sum, 0, (size_t)ranks * sizeof *sum);
    for (int i = 0; i < plan->model->params; i++)
      if (ms_muon_is_taken(plan, i) &&
          (n = lengthen(sum, plan->muon_owner[i], ms_muon_chunk(plan, i, s).count)) > longest)
        longest = n;
  }
  return longest;
}

/* The same over the replicas, by the owner's replica. */
static int64_t longest_across(const ms_plan *plan, int64_t *sum) {
  const int shards = ms_model_shards(plan->model), replicas = ms_model_replicas(plan->model);
  int64_t longest = 0, n;
  for (int rank = 0; rank < replicas * shards; rank++) {
    const int r = rank / shards, s = rank % shards;
    memset(sum, 0, (size_t)replicas * sizeof *sum);
    for (int i = 0; i < plan->model->params; i++)
      if (ms_muon_is_taken(plan, i) &&
          (n = lengthen(sum, ms_muon_replica(plan, i), ms_muon_slice(plan, i, r, s).count)) > longest)
        longest = n;
  }
  return longest;
}

static ms_ref vector(int buffer, int64_t first, int64_t n) { return ms_ref_vector(buffer, 4 * first, MS_F32, n); }

/* Elements [first, first + n) of a matrix in the piece of an exchange over the shards, with the rank at `with`: `of` is
 * the rank whose chunk they are in. */
static ms_ref in_along(const muon *m, int buffer, int param, int with, int of, int64_t first, int64_t n) {
  const int64_t before = before_along(m->plan, param, param, of);
  return vector(buffer, with * m->along.piece + before + first - ms_muon_chunk(m->plan, param, of).first, n);
}

/* The slice that the replica `of` has of this rank's chunk, in the piece exchanged with replica `with`. */
static ms_ref in_across(const muon *m, int buffer, int param, int with, int of) {
  return vector(buffer, with * m->across.piece + before_across(m->plan, param, param, of, m->shard),
                ms_muon_slice(m->plan, param, of, m->shard).count);
}

static int open(muon *m, exchange *e, int64_t piece) {
  e->piece = piece;
  if (e->ranks == 1) return MS_OK;
  const int64_t bytes = 4 * e->ranks * piece;
  int *buffer[] = {&e->sent, &e->received};
  for (int i = 0; i < 2; i++) {
    MS_TRY(ms_plan_buffer(m->plan, MS_PHASE_UPDATE, MS_ARENA_COMM, MS_CAT_COMMUNICATION, bytes, scope, buffer[i]));
    ms_plan_touch(m->plan, *buffer[i], phase_end(m->plan));
  }
  return MS_OK;
}

/* Every rank has them until here, whatever its kernels are, so that all lay them out alike. */
static void keep(const muon *m, const exchange *e) {
  if (e->ranks == 1) return;
  ms_plan_touch(m->plan, e->sent, phase_end(m->plan));
  ms_plan_touch(m->plan, e->received, phase_end(m->plan));
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static int move(const muon *m, ms_ref from, ms_ref to) {
  const ms_attrs none = {{0}, {0}};
  if (!ms_numel(&from.info)) return MS_OK;
  return ms_plan_kernel(m->plan, MS_PHASE_UPDATE, MS_OP_muon_move, &none, 1, &from, 1, &to, scope, 0);
}

static int trade(const muon *m, const exchange *e, int from, int to) {
  const ms_plan_part part = {.count = e->piece,
                             .src.buffer = -1,
                             .shared = vector(from, 0, e->ranks * e->piece),
                             .dst = vector(to, 0, e->ranks * e->piece)};
  return ms_plan_collective_of(m->plan, MS_PHASE_UPDATE, e->stream, MS_COLL_ALL_TO_ALL, e->dim, scope, &part);
}

/* Where this rank's directions of a matrix are made, and where it finds its results: `whole` is the matrix on one
 * rank. */
static ms_ref own_place(const muon *m, int param, int whole) {
  const ms_muon_range own = ms_muon_slice(m->plan, param, m->replica, m->shard);
  if (m->across.ranks > 1) return in_across(m, m->across.sent, param, ms_muon_replica(m->plan, param), m->replica);
  if (m->along.ranks > 1)
    return in_along(m, m->along.sent, param, ms_muon_shard(m->plan, param), m->shard, own.first, own.count);
  return vector(whole, own.first, own.count);
}

static ms_stretch stretch_of(const muon *m, int param) {
  const ms_muon_range own = ms_muon_slice(m->plan, param, m->replica, m->shard);
  return (ms_stretch){own.local, own.local + own.count};
}

static int make_direction(const muon *m, int param, int whole) {
  ms_plan *plan = m->plan;
  const ms_param *p = &plan->model->param[param];
  const ms_stretch own = stretch_of(m, param);
  if (own.end == own.begin) return MS_OK;
  const int synced = plan->norm_of_synced.buffer >= 0;
  const ms_attrs attrs = {.i = {plan->config.muon_nesterov}, .f = {plan->config.muon_momentum}};
  const ms_ref in[] = {ms_lower_gradients_of(plan, p->unit, own), synced ? plan->norm_of_synced : plan->norm};
  const ms_ref out[] = {own_place(m, param, whole), ms_lower_moment(plan, p, 0, own)};
  return ms_plan_kernel(plan, MS_PHASE_UPDATE, MS_OP_muon_momentum, &attrs, 2, in, 2, out, scope, 0);
}

/* How much longer a step is for a matrix of this shape. */
static double adjustment(const ms_plan_config *c, const ms_param *p) {
  const double rows = (double)p->dims[0], columns = (double)p->dims[1];
  if (c->muon_adjust == MS_MUON_MATCH_RMS_ADAMW) return 0.2 * sqrt(fmax(rows, columns));
  return sqrt(fmax(1, rows / columns));
}

static int apply(const muon *m, int param, int whole) {
  ms_plan *plan = m->plan;
  const ms_param *p = &plan->model->param[param];
  const ms_segment *group = &plan->model->unit[p->unit].segment[p->segment];
  const ms_stretch own = stretch_of(m, param);
  if (own.end == own.begin) return MS_OK;
  const ms_attrs attrs = {.f = {group->lr_scale, group->weight_decay, adjustment(&plan->config, p)}};
  const ms_ref in = own_place(m, param, whole), out = ms_lower_masters(plan, p->unit, p->segment, own);
  return ms_plan_kernel(plan, MS_PHASE_UPDATE, MS_OP_muon_apply, &attrs, 1, &in, 1, &out, scope, 0);
}

/* A chunk of a matrix on the owner's replica: where it is sent to the owner, or in the whole matrix. */
static ms_ref in_chunk(const muon *m, int param, int whole, int64_t first, int64_t n) {
  if (m->along.ranks == 1) return vector(whole, first, n);
  return in_along(m, m->along.sent, param, ms_muon_shard(m->plan, param), m->shard, first, n);
}

/* Joins the slices that replicas have of a chunk. With copies of the state this rank's own has all of it, and of
 * several copies the one that this rank belongs to sends its slices. */
static int join_slices(const muon *m, int param, int whole) {
  const int in_copy = m->plan->replicas, copies = m->across.ranks / in_copy;
  for (int r = 0; r < m->across.ranks; r++) {
    const ms_muon_range slice = ms_muon_slice(m->plan, param, r, m->shard);
    const int sliced =
        ms_unit_is_sliced(m->plan->model, &m->plan->model->unit[m->plan->model->param[param].unit], in_copy);
    if (!sliced && copies > 1 && r / in_copy != m->replica / in_copy) continue;
    const ms_ref from = in_across(m, m->copies ? m->across.sent : m->across.received, param, r, r);
    MS_TRY(move(m, from, in_chunk(m, param, whole, slice.first, slice.count)));
  }
  return MS_OK;
}

/* Every replica receives the results of its slice. */
static int give_slices(const muon *m, int param, int whole) {
  for (int r = 0; r < m->across.ranks; r++) {
    const ms_muon_range slice = ms_muon_slice(m->plan, param, r, m->shard);
    MS_TRY(move(m, in_chunk(m, param, whole, slice.first, slice.count), in_across(m, m->across.received, param, r, r)));
  }
  return MS_OK;
}

/* Moves the chunks of a matrix out of what the shards sent its owner, or back there. */
static int move_chunks(const muon *m, int param, int whole, int back) {
  for (int s = 0; s < m->along.ranks; s++) {
    const ms_muon_range chunk = ms_muon_chunk(m->plan, param, s);
    const ms_ref there = in_along(m, m->along.received, param, s, s, chunk.first, chunk.count);
    const ms_ref here = vector(whole, chunk.first, chunk.count);
    MS_TRY(move(m, back ? here : there, back ? there : here));
  }
  return MS_OK;
}

/* Workspace, as the kernel's own: the sizes of arenas that peers read must not depend on what a rank owns. */
static int open_whole(const muon *m, int param, int *buffer) {
  return ms_plan_buffer(m->plan, MS_PHASE_UPDATE, MS_ARENA_WORKSPACE, MS_CAT_WORKSPACE,
                        4 * m->plan->model->param[param].numel, scope, buffer);
}

static int orthogonalise(const muon *m, int param, int from, int to) {
  const ms_plan_config *c = &m->plan->config;
  const ms_param *p = &m->plan->model->param[param];
  const ms_attrs attrs = {.i = {c->muon_steps, c->muon_dtype == MS_BF16}};
  const ms_value_info shape = {.dtype = MS_F32, .ndim = 2, .dims = {p->dims[0], p->dims[1]}};
  const ms_ref in = {from, 0, shape}, out = {to, 0, shape};
  m->plan->phase[MS_PHASE_UPDATE].flops += ms_orthogonalise_flops(c->muon_steps, &shape);
  return ms_plan_kernel(m->plan, MS_PHASE_UPDATE, MS_OP_muon_orthogonalise, &attrs, 1, &in, 1, &out, scope, 0);
}

/* All that the owner does with a matrix. One whose directions are whole on every rank is made and applied here, too. */
static int own(const muon *m, int param) {
  const int alone = m->along.ranks == 1 && m->across.ranks == 1;
  int from, to;
  MS_TRY(open_whole(m, param, &from));
  MS_TRY(open_whole(m, param, &to));
  if (alone) MS_TRY(make_direction(m, param, from));
  if (m->along.ranks > 1) MS_TRY(move_chunks(m, param, from, 0));
  else if (m->across.ranks > 1) MS_TRY(join_slices(m, param, from));
  MS_TRY(orthogonalise(m, param, from, to));
  if (alone) return apply(m, param, to);
  return m->along.ranks > 1 ? move_chunks(m, param, to, 1) : give_slices(m, param, to);
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

typedef int step(const muon *m, int param, int whole);

/* For the matrices of all owners, or of those in this rank's replica. */
enum { ALL, OF_REPLICA };
static int each(const muon *m, int of, step *do_it) {
  for (int i = 0; i < m->plan->model->params; i++) {
    if (!ms_muon_is_taken(m->plan, i) || (of == OF_REPLICA && ms_muon_replica(m->plan, i) != m->replica)) continue;
    MS_TRY(do_it(m, i, -1));
  }
  return MS_OK;
}

static int own_all(const muon *m) {
  for (int i = 0; i < m->plan->model->params; i++)
    if (ms_muon_is_taken(m->plan, i) && ms_muon_replica(m->plan, i) == m->replica &&
        ms_muon_shard(m->plan, i) == m->shard)
      MS_TRY(own(m, i));
  return MS_OK;
}

/* Between the two exchanges over the replicas. */
static int lower_replica(const muon *m) {
  if (m->along.ranks == 1) return own_all(m);
  if (m->across.ranks > 1) MS_TRY(each(m, OF_REPLICA, join_slices));
  MS_TRY(trade(m, &m->along, m->along.sent, m->along.received));
  MS_TRY(own_all(m));
  MS_TRY(trade(m, &m->along, m->along.received, m->along.sent));
  return m->across.ranks > 1 ? each(m, OF_REPLICA, give_slices) : MS_OK;
}

/* Of the longest pieces. */
static int open_exchanges(muon *m) {
  const size_t ranks = (size_t)m->across.ranks * (size_t)m->along.ranks;
  int64_t *sum = ms_calloc(ranks, sizeof *sum);
  if (!sum) return MS_ENOMEM;
  const int64_t across = longest_across(m->plan, sum), along = longest_along(m->plan, sum);
  free(sum);
  MS_TRY(open(m, &m->across, across));
  return open(m, &m->along, along);
}

static int has_slices(const ms_plan *plan) { return plan->replicas > 1 || plan->sliced; }

int ms_lower_muon(ms_plan *plan) {
  const ms_model *model = plan->model;
  muon m = {.plan = plan,
            .replica = model->dim[MS_DIM_REPLICATE].place,
            .shard = model->dim[MS_DIM_SHARD].place,
            .copies = !has_slices(plan),
            .across = {.ranks = ms_model_replicas(model), .dim = MS_DIM_REPLICATE, .stream = MS_STREAM_REPLICATE},
            .along = {.ranks = ms_model_shards(model), .dim = MS_DIM_SHARD, .stream = MS_STREAM_REDUCE}};
  MS_TRY(ms_muon_find_owners(plan));
  if (!ms_muon_any(plan)) return MS_OK;
  MS_TRY(open_exchanges(&m));
  if (m.across.ranks == 1 && m.along.ranks == 1) return own_all(&m);
  MS_TRY(each(&m, ALL, make_direction));
  if (m.across.ranks > 1 && !m.copies) MS_TRY(trade(&m, &m.across, m.across.sent, m.across.received));
  MS_TRY(lower_replica(&m));
  if (m.across.ranks > 1) MS_TRY(trade(&m, &m.across, m.across.received, m.across.sent));
  MS_TRY(each(&m, ALL, apply));
  keep(&m, &m.across);
  keep(&m, &m.along);
  return MS_OK;
}
