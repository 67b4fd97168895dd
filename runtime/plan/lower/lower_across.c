/* lower_across.c - the ops across the ranks of a mesh dimension: collectives for those that move values between ranks,
 * kernels for those that take this rank's part of a value, and nothing for those that only change how a gradient is
 * computed.
 *
 * Peers read what a collective sends where it is, so its producer writes it to the communicated arena.
 */
#include <limits.h>

#include "base/numbers/dtype.h"
#include "kernels/fold.h"
#include "plan/lower/lower.h"

int ms_across_is_alias(const ms_node *node) {
  return ms_is_across(node) && (node->op == MS_OP_copy_to || node->op == MS_OP_unvary);
}

/* The axis of a value that an op moves is seen as [blocks, ranks, run]. */
static int64_t blocks_of(const ms_value_info *x, int axis, int64_t outer) {
  for (int d = 0; d < axis; d++) outer *= x->dims[d];
  return outer;
}

int ms_across_sends(const ms_graph *graph, const ms_node *node) {
  if (!ms_is_across(node)) return 0;
  const ms_value_info *x = &graph->values[node->in[0]].info;
  if (node->op == MS_OP_all_reduce) return 1;
  return node->op == MS_OP_reduce_scatter && blocks_of(x, (int)node->attrs.across.along, node->attrs.across.outer) == 1;
}

int ms_across_joins_chunks(const ms_graph *graph, const ms_node *node) {
  if (!ms_is_across(node) || node->op != MS_OP_all_gather) return 0;
  return blocks_of(&graph->values[node->in[0]].info, (int)node->attrs.across.along, node->attrs.across.outer) == 1;
}

/* The stream of a dimension; for shard the one that sums gradients, since prefetched gathers would wait on the other.
 */
static int stream_of(int dim) {
  int found = -1;
  for (int s = MS_STREAM_COMPUTE + 1; s < MS_NAMED_STREAMS; s++)
    if (ms_stream_dim(s) == dim) found = s;
  return found;
}

static ms_value_info cube(int dtype, int64_t a, int64_t b, int64_t c) {
  return (ms_value_info){.dtype = dtype, .ndim = 3, .dims = {a, b, c}};
}

static ms_value_info in_blocks(const ms_value_info *x, int64_t blocks, int64_t parts) {
  return cube(x->dtype, blocks, parts, ms_numel(x) / blocks / parts);
}

/* A kernel that depends on the rank's place. */
static int lower_local(ms_lowering *l, const ms_node *n, int op, const ms_op_attrs *attrs, ms_ref in, ms_ref out) {
  MS_TRY(ms_plan_kernel(l->plan, l->phase, op, attrs, 1, &in, 1, &out, n->scope, n->backward));
  ms_plan_hash_alike(l->plan, l->phase, n->op, &n->attrs);
  return MS_OK;
}

/* ---- this rank's part, with zeros around it or without ---- */

typedef struct cut {
  int op; /* MS_OP_split, MS_OP_unsplit */
  int64_t blocks, ranks, place;
  int folded;
} cut;

static int lower_cut(ms_lowering *l, const ms_node *n, cut c, ms_ref in, ms_ref out) {
  const int takes = c.op == MS_OP_split;
  const ms_op_attrs attrs = {.cut = {.axis = 1, .start = c.place, .stop = c.place + 1}};
  const ms_op_attrs around = {.cut = {.axis = 1, .before = c.place, .after = c.ranks - 1 - c.place}};
  const ms_op_attrs runs = {.fold = {.what = takes ? MS_FOLD_TAKE : MS_FOLD_PUT, .place = c.place, .ranks = c.ranks}};
  in.info = in_blocks(&in.info, c.blocks, takes ? c.ranks : 1);
  out.info = in_blocks(&out.info, c.blocks, takes ? 1 : c.ranks);
  if (c.folded) return lower_local(l, n, MS_OP_fold, &runs, in, out);
  return lower_local(l, n, takes ? MS_OP_slice : MS_OP_pad, takes ? &attrs : &around, in, out);
}

static int lower_part(ms_lowering *l, const ms_node *n, ms_ref in, ms_ref out) {
  const int64_t blocks = blocks_of(&in.info, (int)n->attrs.across.along, n->attrs.across.outer);
  const cut c = {n->op, blocks, n->attrs.across.ranks, l->model->dim[n->attrs.across.dim].place,
                 n->attrs.across.folded != 0};
  return lower_cut(l, n, c, in, out);
}

/* ---- collectives ---- */

static int open_buffer(ms_lowering *l, int arena, int category, const ms_node *n, ms_value_info info, ms_ref *ref) {
  *ref = (ms_ref){.info = info};
  return ms_plan_buffer(l->plan, l->phase, arena, category, ms_numel(&info) * ms_dtype_size(info.dtype),
                        ms_op_row_of(n->op)->name, &ref->buffer);
}

static int collect(ms_lowering *l, const ms_node *n, int kind, ms_plan_part part) {
  const int dim = (int)n->attrs.across.dim;
  MS_TRY(ms_plan_collective_of(l->plan, l->phase, stream_of(dim), kind, dim, n->scope, &part));
  l->latest[dim] = l->plan->phase[l->phase].n - 1;
  return MS_OK;
}

/* Swaps the first two axes of [a, b, run]: a collective's parts are rank by rank, an axis has them block by block.
 * what: enum ms_fold, for an axis that is folded. */
static int swap(ms_lowering *l, const ms_node *n, int what, ms_ref in, ms_ref out) {
  const ms_op_attrs attrs = {.permutation = {.p = {1, 0, 2, 3, 4, 5}}}, runs = {.fold = {.what = what}};
  if (n->attrs.across.folded)
    return ms_plan_kernel(l->plan, l->phase, MS_OP_fold, &runs, 1, &in, 1, &out, n->scope, n->backward);
  return ms_plan_kernel(l->plan, l->phase, MS_OP_transpose, &attrs, 1, &in, 1, &out, n->scope, n->backward);
}

/* What is summed must be where peers can read it, and the sum can overwrite it: a parameter, an input, a gradient, or
 * what others read too, is copied there. */
static int take_source(ms_lowering *l, const ms_node *n, ms_ref *in) {
  const ms_op_attrs one_rank = {.across = {.ranks = 1}};
  ms_ref copy;
  if (l->plan->buffer[in->buffer].arena == MS_ARENA_COMM && l->readers[l->root[n->in[0]]] == 1) return MS_OK;
  MS_TRY(open_buffer(l, MS_ARENA_COMM, MS_CAT_COMMUNICATION, n, in->info, &copy));
  MS_TRY(ms_plan_kernel(l->plan, l->phase, MS_OP_copy_to, &one_rank, 1, in, 1, &copy, n->scope, n->backward));
  *in = copy;
  return MS_OK;
}

/* For the ranks' parts [ranks, n], which the ranks of a host have once, in memory that they map. */
static int open_gathered(ms_lowering *l, const ms_node *n, const ms_value_info *part, ms_ref *all) {
  const int64_t ranks = n->attrs.across.ranks;
  MS_TRY(open_buffer(l, MS_ARENA_GROUPED, MS_CAT_GATHERED, n, cube(part->dtype, ranks, 1, ms_numel(part)), all));
  l->plan->buffer[all->buffer].ranks = (int)ranks;
  l->plan->buffer[all->buffer].dim = (int)n->attrs.across.dim;
  return MS_OK;
}

/* A part that is where its chunk of the result is needs no source. */
static int gather(ms_lowering *l, const ms_node *n, ms_ref in, ms_ref *all) {
  const int root = l->root[n->in[0]];
  const int64_t count = ms_numel(&in.info);
  if (l->chunk[root] && &l->graph->nodes[l->gather[root]] == n) {
    *all = (ms_ref){in.buffer, 0, cube(in.info.dtype, n->attrs.across.ranks, 1, count)};
    in.buffer = -1;
  } else MS_TRY(open_gathered(l, n, &in.info, all));
  return collect(l, n, MS_COLL_ALL_GATHER, (ms_plan_part){.count = count, .src = in, .shared = *all, .dst.buffer = -1});
}

/* Peers may still read what was in these bytes, unless an earlier collective has handed them over: the latest one,
 * whose result the producer most often waits for anyway. A part that is read after the whole would keep the whole,
 * which costs nothing where the ranks have it once. */
int ms_lower_chunk(ms_lowering *l, int root, ms_place *at) {
  const ms_node *n = &l->graph->nodes[l->gather[root]];
  const ms_value_info *part = &l->graph->values[root].info;
  const int dim = (int)n->attrs.across.dim, once = ms_plan_gathers_once(l->plan, dim), latest = l->latest[dim];
  const int outlives = l->last_use[root] > l->last_use[l->root[n->out[0]]];
  ms_ref all;
  if (latest < 0 || l->sent[root] || l->last_use[root] == INT_MAX || (outlives && !once)) return MS_OK;
  MS_TRY(open_gathered(l, n, part, &all));
  MS_TRY(ms_plan_open(l->plan, l->phase, latest, all));
  l->chunk[root] = 1;
  *at = (ms_place){all.buffer, l->model->dim[dim].place * ms_numel(part) * ms_dtype_size(part->dtype)};
  return MS_OK;
}

static int lower_all_reduce(ms_lowering *l, const ms_node *n, ms_ref in, ms_ref out) {
  MS_TRY(take_source(l, n, &in));
  MS_TRY(collect(l, n, MS_COLL_ALL_REDUCE,
                 (ms_plan_part){.count = ms_numel(&in.info), .src.buffer = -1, .shared = in, .dst = out}));
  if (n->attrs.across.max) ms_plan_takes_largest(l->plan, l->phase);
  return MS_OK;
}

static int lower_reduce_scatter(ms_lowering *l, const ms_node *n, ms_ref in, ms_ref out) {
  const int64_t ranks = n->attrs.across.ranks,
                blocks = blocks_of(&in.info, (int)n->attrs.across.along, n->attrs.across.outer);
  ms_ref swapped;
  in.info = in_blocks(&in.info, blocks, ranks);
  if (blocks > 1) {
    const ms_value_info by_rank = cube(in.info.dtype, ranks, blocks, in.info.dims[2]);
    MS_TRY(open_buffer(l, MS_ARENA_COMM, MS_CAT_COMMUNICATION, n, by_rank, &swapped));
    MS_TRY(swap(l, n, MS_FOLD_PART, in, swapped));
    in = swapped;
  } else MS_TRY(take_source(l, n, &in));
  return collect(l, n, MS_COLL_REDUCE_SCATTER,
                 (ms_plan_part){.count = ms_numel(&out.info), .src.buffer = -1, .shared = in, .dst = out});
}

/* Without blocks the gathered parts are the result, which is read where they are. */
int ms_lower_gather(ms_lowering *l, const ms_node *n, ms_ref in, ms_place *at) {
  const int64_t ranks = n->attrs.across.ranks,
                blocks = blocks_of(&in.info, (int)n->attrs.across.along, n->attrs.across.outer);
  ms_ref all, out;
  MS_TRY(gather(l, n, in, &all));
  *at = (ms_place){all.buffer, 0};
  if (blocks == 1) return MS_OK;
  all.info = cube(in.info.dtype, ranks, blocks, ms_numel(&in.info) / blocks);
  MS_TRY(open_buffer(l, MS_ARENA_ACTIVATIONS, MS_CAT_ACTIVATIONS, n,
                     cube(in.info.dtype, blocks, ranks, all.info.dims[2]), &out));
  *at = (ms_place){out.buffer, 0};
  return swap(l, n, MS_FOLD_JOIN, all, out);
}

/* The ranks gather all of it, and take their part of the other axis. */
static int lower_all_to_all(ms_lowering *l, const ms_node *n, ms_ref in, ms_ref out) {
  const int64_t ranks = n->attrs.across.ranks;
  const int split = (int)n->attrs.across.split_axis, concat = (int)n->attrs.across.concat_axis;
  ms_node gathers = *n;
  ms_ref whole = {.info = in.info};
  ms_place at;
  gathers.attrs = (ms_op_attrs){.across = {.dim = n->attrs.across.dim, .ranks = ranks, .along = concat, .outer = 1}};
  MS_TRY(ms_lower_gather(l, &gathers, in, &at));
  whole.buffer = at.buffer;
  whole.info.dims[concat] *= ranks;
  const cut c = {MS_OP_split, blocks_of(&whole.info, split, 1), ranks, l->model->dim[n->attrs.across.dim].place, 0};
  return lower_cut(l, n, c, whole, out);
}

/* The ranks gather all of it, and take the part of the rank `by` places before them. */
static int lower_shift(ms_lowering *l, const ms_node *n, ms_ref in, ms_ref out) {
  const int64_t ranks = n->attrs.across.ranks, place = l->model->dim[n->attrs.across.dim].place,
                from = (place - n->attrs.across.by % ranks) % ranks;
  ms_ref all;
  MS_TRY(gather(l, n, in, &all));
  return lower_cut(l, n, (cut){MS_OP_split, 1, ranks, from < 0 ? from + ranks : from, 0}, all, out);
}

int ms_across_check(const ms_model *model, const ms_graph *graph) {
  for (int i = 0; i < graph->n_nodes; i++) {
    const ms_node *n = &graph->nodes[i];
    const int64_t dim = n->attrs.across.dim, ranks = n->attrs.across.ranks;
    if (!ms_is_across(n) || (dim >= 0 && dim < MS_DIMS && model->dim[dim].size == ranks)) continue;
    return MS_FAIL(MS_EINTERNAL, "in %s: %s over %lld ranks of dimension %lld, which mesh %s does not have", n->scope,
                   ms_op_row_of(n->op)->name, (long long)ranks, (long long)dim, model->mesh_text);
  }
  return MS_OK;
}

double ms_across_bytes(int op, const ms_value_info *whole, int64_t ranks) {
  static const int kinds[MS_OP_COUNT] = {[MS_OP_all_reduce] = 1 + MS_COLL_ALL_REDUCE,
                                         [MS_OP_reduce_scatter] = 1 + MS_COLL_REDUCE_SCATTER,
                                         [MS_OP_all_gather] = 1 + MS_COLL_ALL_GATHER,
                                         [MS_OP_all_to_all] = 1 + MS_COLL_ALL_GATHER,
                                         [MS_OP_shift] = 1 + MS_COLL_ALL_GATHER};
  const int kind = kinds[op] - 1;
  const ms_coll_part part = {.count = kind == MS_COLL_ALL_REDUCE ? ms_numel(whole) : ms_numel(whole) / ranks,
                             .src_dtype = whole->dtype,
                             .dst_dtype = whole->dtype};
  return kind < 0 ? 0 : ms_coll_bytes(kind, (int)ranks, &part, 1);
}

int ms_lower_across(ms_lowering *l, const ms_node *n, ms_ref in, ms_ref out) {
  const ms_dim_group *group = &l->model->dim[n->attrs.across.dim];
  const ms_op_attrs once = {.scale = {.alpha = group->place == 0}};
  if (n->op == MS_OP_all_reduce) return lower_all_reduce(l, n, in, out);
  if (n->op == MS_OP_reduce_scatter) return lower_reduce_scatter(l, n, in, out);
  if (n->op == MS_OP_all_to_all) return lower_all_to_all(l, n, in, out);
  if (n->op == MS_OP_shift) return lower_shift(l, n, in, out);
  if (n->op == MS_OP_split || n->op == MS_OP_unsplit) return lower_part(l, n, in, out);
  if (n->op == MS_OP_once) return lower_local(l, n, MS_OP_scale, &once, in, out);
  return MS_FAIL(MS_EINTERNAL, "in %s: %s over %d ranks of dimension %s has no form in plans", n->scope,
                 ms_op_row_of(n->op)->name, group->size, group->name);
}

/* Sets this rank's place in the attributes that say which part of an axis the node has. */
static int place_parts(const ms_lowering *l, int op, ms_op_attrs *attrs) {
  static const char *const names[] = {"part", "inner_part"};
  int placed = 0;
  for (int k = 0; k < 2; k++) {
    int64_t *own = ms_op_integer(op, attrs, names[k]);
    if (!own || !*own) continue;
    ms_part part = ms_part_of(*own);
    part.place = l->model->dim[part.dim].place;
    *own = ms_part_attr(part);
    placed = 1;
  }
  return placed;
}

/* The axis of which a node has one part, and knows which: rows of a table, or classes. */
static int64_t part_size(const ms_node *n, const ms_ref *in, const ms_ref *out) {
  switch (n->op) {
    case MS_OP_embedding: return in->info.dims[0];
    case MS_OP_embedding_backward: return out->info.dims[0];
    case MS_OP_linear_cross_entropy_part:
    case MS_OP_linear_cross_entropy_join:
    case MS_OP_linear_cross_entropy_backward:
    case MS_OP_linear_cross_entropy_backward_x:
    case MS_OP_linear_cross_entropy_backward_bias: return in[1].info.dims[0]; /* w [V,D] */
    default: return in->info.dims[in->info.ndim - 1];                         /* logits */
  }
}

ms_op_attrs ms_across_attrs(const ms_lowering *l, const ms_node *n, const ms_ref *in, const ms_ref *out, int *local) {
  ms_op_attrs attrs = n->attrs;
  *local = place_parts(l, n->op, &attrs);
  const int64_t *parts = ms_op_integer(n->op, &attrs, "parts"), *dim = ms_op_integer(n->op, &attrs, "dim");
  int64_t *first = ms_op_integer(n->op, &attrs, "first");
  if (!first || !parts || *parts < 2) return attrs;
  *local = 1;
  *first = l->model->dim[*dim].place * part_size(n, in, out);
  return attrs;
}
