/* lower_across.c - the ops across the ranks of a mesh dimension: collectives for those that move values between ranks,
 * kernels for those that take this rank's part of a value, and nothing for those that only change how a gradient is
 * computed.
 *
 * Peers read what a collective sends where it is, so its producer writes it to the communicated arena.
 */
#include "plan/lower.h"

static int is_across(const ms_node *node) {
  return (ms_op_row_of(node->op)->flags & MS_OP_COLLECTIVE) && node->attrs.i[1] > 1;
}

int ms_across_is_alias(const ms_node *node) {
  return is_across(node) && (node->op == MS_OP_copy || node->op == MS_OP_unvary);
}

static int collective_of(int op) { return op == MS_OP_all_reduce ? MS_COLL_ALL_REDUCE : -1; }

int ms_across_sends(const ms_node *node) { return is_across(node) && collective_of(node->op) >= 0; }

static int stream_of(int dim) {
  for (int s = MS_STREAM_COMPUTE + 1; s < MS_NAMED_STREAMS; s++)
    if (ms_stream_dim(s) == dim) return s;
  return -1;
}

/* A value seen as [blocks, parts, run], of which part `place` is [:, place, :]. */
static ms_value_info in_blocks(const ms_value_info *x, int axis, int64_t outer, int64_t parts) {
  int64_t blocks = outer;
  for (int d = 0; d < axis; d++) blocks *= x->dims[d];
  return (ms_value_info){.dtype = x->dtype, .ndim = 3, .dims = {blocks, parts, ms_numel(x) / blocks / parts}};
}

/* A kernel that depends on the rank's place. */
static int lower_local(ms_lowering *l, const ms_node *n, int op, const ms_attrs *attrs, ms_ref in, ms_ref out) {
  MS_TRY(ms_plan_kernel(l->plan, l->phase, op, attrs, 1, &in, 1, &out, n->scope, n->backward));
  ms_plan_mark_local(l->plan, l->phase);
  return MS_OK;
}

/* The part of a value that is this rank's, or a value of zeros around it. */
static int lower_part(ms_lowering *l, const ms_node *n, int64_t place, ms_ref in, ms_ref out) {
  const int64_t ranks = n->attrs.i[1], outer = n->attrs.i[3];
  const int axis = (int)n->attrs.i[2], takes = n->op == MS_OP_split;
  in.info = in_blocks(&in.info, axis, outer, takes ? ranks : 1);
  out.info = in_blocks(&out.info, axis, outer, takes ? 1 : ranks);
  const ms_attrs attrs = {.i = {1, place, takes ? place + 1 : ranks - 1 - place}};
  return lower_local(l, n, takes ? MS_OP_slice : MS_OP_pad, &attrs, in, out);
}

/* What is sent must be where peers can read it: a parameter, an input or a gradient is copied there. */
static int take_source(ms_lowering *l, const ms_node *n, ms_ref *in) {
  const ms_attrs one_rank = {.i = {0, 1}};
  ms_ref copy = {.info = in->info};
  if (l->plan->buffer[in->buffer].arena == MS_ARENA_COMM) return MS_OK;
  MS_TRY(ms_plan_buffer(l->plan, l->phase, MS_ARENA_COMM, MS_CAT_COMMUNICATION,
                        ms_numel(&in->info) * ms_dtype_size(in->info.dtype), ms_op_row_of(n->op)->name, &copy.buffer));
  MS_TRY(ms_plan_kernel(l->plan, l->phase, MS_OP_copy, &one_rank, 1, in, 1, &copy, n->scope, n->backward));
  *in = copy;
  return MS_OK;
}

static int lower_moving(ms_lowering *l, const ms_node *n, ms_ref in, ms_ref out) {
  const int dim = (int)n->attrs.i[0];
  MS_TRY(take_source(l, n, &in));
  const ms_plan_part part = {.count = ms_numel(&in.info), .src.buffer = -1, .shared = in, .dst = out};
  return ms_plan_collective_of(l->plan, l->phase, stream_of(dim), collective_of(n->op), dim, n->scope, &part);
}

int ms_across_check(const ms_model *model, const ms_graph *graph) {
  for (int i = 0; i < graph->n_nodes; i++) {
    const ms_node *n = &graph->nodes[i];
    const int64_t dim = n->attrs.i[0], ranks = n->attrs.i[1];
    if (!is_across(n) || (dim >= 0 && dim < MS_DIMS && model->dim[dim].size == ranks)) continue;
    return MS_FAIL(MS_EINTERNAL, "in %s: %s over %lld ranks of dimension %lld, which mesh %s does not have", n->scope,
                   ms_op_row_of(n->op)->name, (long long)ranks, (long long)dim, model->mesh_text);
  }
  return MS_OK;
}

int ms_lower_across(ms_lowering *l, const ms_node *n, ms_ref in, ms_ref out) {
  const ms_dim_group *group = &l->model->dim[n->attrs.i[0]];
  if (collective_of(n->op) >= 0) return lower_moving(l, n, in, out);
  if (n->op == MS_OP_split || n->op == MS_OP_unsplit) return lower_part(l, n, group->place, in, out);
  if (n->op == MS_OP_once) {
    const ms_attrs attrs = {.f = {group->place == 0, 0}};
    return lower_local(l, n, MS_OP_scale, &attrs, in, out);
  }
  return MS_FAIL(MS_EUNSUPPORTED, "in %s: %s over %d ranks of dimension %s: plans do not have this collective yet",
                 n->scope, ms_op_row_of(n->op)->name, group->size, group->name);
}

ms_attrs ms_across_attrs(const ms_lowering *l, const ms_node *n, const ms_ref *in, const ms_ref *out, int *local) {
  ms_attrs attrs = n->attrs;
  *local = ms_op_has(n->op, "first:i3") && ms_op_has(n->op, "parts:i1") && attrs.i[1] > 1;
  if (*local) attrs.i[3] = l->model->dim[attrs.i[2]].place * (n->op == MS_OP_embedding ? in : out)->info.dims[0];
  return attrs;
}
