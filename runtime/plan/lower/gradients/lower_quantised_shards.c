/* lower_quantised_shards.c - sums of gradients over the shards in few bits (ms_unit_config.shard_dtype): a
 * reduce-scatter as kernels around a collective that moves words.
 *
 *   quantise_pieces  this rank's gradients -> a piece for each shard       (kernels/formats/quantised_sum.h)
 *   all_to_all       shard r receives piece r of all
 *   total_pieces     -> its chunk: their sum, in f32 and in the shards' order
 *
 * So a gradient is rounded once, where a ring that adds in few bits would round it at every hop. Where each of several
 * nodes has `inner_shards` neighbours, there are two hops, and each node sends every other one its sums only:
 *
 *   quantise_pieces  -> the same pieces, those for the same place of every node together
 *   all_to_all       inside the node: rank i receives all pieces for the ranks at place i
 *   sum_pieces       -> their sums over the node, in f32 and in the shards' order, as a piece for each node
 *   all_to_all       between the ranks at the same place of every node
 *   total_pieces     -> the chunk: the sum over the nodes, in their order
 *
 * What follows a collective is lowered one step later (lower_reductions.c), and the sums over the replicas with the
 * total, so that the bytes move while another unit's gradients are computed.
 */
#include "plan/lower/gradients/lower_pieces.h"
#include "plan/layout/state_layout.h"
#include "plan/layout/residuals.h"

/* The ranks of the last exchange, which is the only one without nodes in between. */
static int64_t last_ranks(const ms_lowering *l) { return ms_model_shards(l->model) / l->plan->layout->inner_shards; }

static ms_unit_pieces pieces_of(const ms_lowering *l, int unit) {
  return (ms_unit_pieces){unit, l->model->unit[unit].config.shard_dtype, 1};
}

static int open_pieces(ms_lowering *l, const ms_unit_pieces *p, int64_t pieces, int *buffer) {
  return ms_lower_open_pieces(l, p, pieces, MS_ARENA_COMM, MS_CAT_COMMUNICATION, buffer);
}

/* Gradients of all shards to pieces. */
static int quantise(ms_lowering *l, const ms_unit_pieces *p, const ms_segment *seg, const ms_gradients *from,
                    ms_ref pieces) {
  const int64_t shards = ms_model_shards(l->model), n = seg->chunk * shards, inner = l->plan->layout->inner_shards;
  const ms_op_attrs attrs = {
      .pieces = {.dtype = p->dtype, .pieces = shards, .stride = seg->chunk, .group = inner > 1 ? inner : 0}};
  const ms_ref whole = ms_ref_vector(from->buffer, ms_gradients_offset(from, seg), from->dtype, n);
  return ms_lower_round_off(l, p->unit, seg, MS_OP_quantise_pieces, MS_OP_quantise_pieces_kept, &attrs, whole, pieces,
                            0, ms_residuals_of_shards(seg), n);
}

/* What the shards of a node have sent, to a piece of their sum for each node. */
static int sum(ms_lowering *l, const ms_unit_pieces *p, const ms_segment *seg, ms_ref received, ms_ref passed) {
  const int64_t n = last_ranks(l) * ms_pieces_of_segment(p, seg).elements;
  const ms_op_attrs attrs = {
      .pieces = {
          .dtype = p->dtype, .pieces = l->plan->layout->inner_shards, .elements = seg->chunk, .each = last_ranks(l)}};
  return ms_lower_round_off(l, p->unit, seg, MS_OP_sum_pieces, MS_OP_sum_pieces_kept, &attrs, received, passed, 0,
                            ms_residuals_of_passed(l->model, p->unit, seg, l->plan->layout->inner_shards), n);
}

/* A part of an all_to_all in which every rank has so many pieces for each other one. */
static ms_plan_part part_of(const ms_unit_pieces *p, const ms_segment *seg, int64_t pieces, ms_ref sent,
                            ms_ref received) {
  return (ms_plan_part){
      .count = pieces * ms_pieces_of_segment(p, seg).words, .src.buffer = -1, .shared = sent, .dst = received};
}

static int exchange(ms_lowering *l, int unit, int64_t ranks, int stride, int parts) {
  MS_TRY(ms_plan_collective(l->plan, l->phase, MS_STREAM_REDUCE, MS_COLL_ALL_TO_ALL, MS_DIM_SHARD, (int)ranks, unit,
                            parts, l->part));
  ms_plan_set_stride(l->plan, l->phase, stride);
  return MS_OK;
}

int ms_lower_send_to_shards(ms_lowering *l, int unit, const ms_gradients *from, const ms_gradients *to,
                            int accumulate) {
  const ms_unit *u = &l->model->unit[unit];
  const ms_unit_pieces p = pieces_of(l, unit);
  const int64_t shards = ms_model_shards(l->model), inner = l->plan->layout->inner_shards,
                ranks = inner > 1 ? inner : shards;
  ms_quantised q = {
      .unit = unit, .step = inner > 1 ? MS_QUANTISED_PASS_ON : MS_QUANTISED_TOTAL, .from = *to, .adds = accumulate};
  int parts = 0;
  int64_t sent = 0, received = 0;
  MS_TRY(open_pieces(l, &p, shards, &q.sent));
  MS_TRY(open_pieces(l, &p, shards, &q.received));
  for (int s = 0; s < u->segments; s++) {
    const ms_segment *seg = &u->segment[s];
    if (seg->frozen) continue;
    const ms_ref pieces = ms_lower_next_pieces(&p, seg, q.sent, shards, &sent);
    MS_TRY(quantise(l, &p, seg, from, pieces));
    l->part[parts++] =
        part_of(&p, seg, shards / ranks, pieces, ms_lower_next_pieces(&p, seg, q.received, shards, &received));
  }
  MS_TRY(exchange(l, unit, ranks, 1, parts));
  l->quantised[l->quantised_started++] = q;
  return MS_OK;
}

int ms_lower_pass_on(ms_lowering *l, ms_quantised *q) {
  const ms_unit *u = &l->model->unit[q->unit];
  const ms_unit_pieces p = pieces_of(l, q->unit);
  const int64_t shards = ms_model_shards(l->model), ranks = last_ranks(l);
  int parts = 0, passed, arrived;
  int64_t from = 0, to = 0, back = 0;
  MS_TRY(open_pieces(l, &p, ranks, &passed));
  MS_TRY(open_pieces(l, &p, ranks, &arrived));
  for (int s = 0; s < u->segments; s++) {
    const ms_segment *seg = &u->segment[s];
    if (seg->frozen) continue;
    const ms_ref pieces = ms_lower_next_pieces(&p, seg, passed, ranks, &to);
    MS_TRY(sum(l, &p, seg, ms_lower_next_pieces(&p, seg, q->received, shards, &from), pieces));
    l->part[parts++] = part_of(&p, seg, 1, pieces, ms_lower_next_pieces(&p, seg, arrived, ranks, &back));
  }
  ms_lower_keep(l, q->sent);
  MS_TRY(exchange(l, q->unit, ranks, l->plan->layout->inner_shards, parts));
  q->sent = passed;
  q->received = arrived;
  q->step = MS_QUANTISED_TOTAL;
  return MS_OK;
}

int ms_lower_total_of_shards(ms_lowering *l, const ms_quantised *q) {
  const ms_unit *u = &l->model->unit[q->unit];
  const ms_unit_pieces p = pieces_of(l, q->unit);
  int64_t received = 0;
  for (int s = 0; s < u->segments; s++) {
    const ms_segment *seg = &u->segment[s];
    if (seg->frozen) continue;
    const ms_op_attrs attrs = {.add = q->adds,
                               .pieces = {.dtype = p.dtype, .pieces = last_ranks(l), .elements = seg->chunk}};
    const ms_ref pieces = ms_lower_next_pieces(&p, seg, q->received, last_ranks(l), &received);
    const ms_ref chunk = ms_ref_vector(q->from.buffer, ms_gradients_offset(&q->from, seg), MS_F32, seg->chunk);
    MS_TRY(ms_plan_kernel(l->plan, l->phase, MS_OP_total_pieces, &attrs, 1, &pieces, 1, &chunk, u->name, 1));
  }
  ms_lower_keep(l, q->sent);
  return MS_OK;
}
