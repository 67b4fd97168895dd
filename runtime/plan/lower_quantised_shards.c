/* lower_quantised_shards.c - sums of gradients over the shards in few bits (ms_unit_config.shard_dtype): a
 * reduce-scatter as kernels around a collective that moves words.
 *
 *   quantise_pieces  this rank's gradients -> a piece for each shard       (kernels/quantised_sum.h)
 *   all_to_all       shard r receives piece r of all
 *   total_pieces     -> its chunk: their sum, in f32 and in the shards' order
 *
 * So a gradient is rounded once, where a ring that adds in few bits would round it at every hop. The total is lowered
 * one step later than the rest (lower_reductions.c), and with it the sums over the replicas, so that the bytes
 * move while another unit's gradients are computed.
 */
#include "kernels/quantised_sum.h"

#include "plan/lower.h"
#include "plan/rests.h"

static int dtype_of(const ms_lowering *l, int unit) { return l->model->unit[unit].config.shard_dtype; }

static ms_pieces pieces_of(const ms_lowering *l, int unit, const ms_segment *seg) {
  return ms_pieces_each(dtype_of(l, unit), seg->chunk);
}

/* A buffer for the pieces of each trainable segment, one for each shard. */
static int open_pieces(ms_lowering *l, int unit, int *buffer) {
  const ms_unit *u = &l->model->unit[unit];
  int64_t words = 0;
  for (int s = 0; s < u->segments; s++)
    if (!u->segment[s].frozen)
      words += ms_pieces_lines(ms_model_shards(l->model) * pieces_of(l, unit, &u->segment[s]).words);
  return ms_plan_buffer(l->plan, l->phase, MS_ARENA_COMM, MS_CAT_COMMUNICATION, 4 * words, u->name, buffer);
}

/* Those of the next trainable segment. *at: where they begin, in words; moves on. */
static ms_ref next_pieces(const ms_lowering *l, int unit, const ms_segment *seg, int buffer, int64_t *at) {
  const int64_t words = ms_model_shards(l->model) * pieces_of(l, unit, seg).words;
  const ms_ref ref = ms_ref_vector(buffer, 4 * *at, MS_I32, words);
  *at += ms_pieces_lines(words);
  return ref;
}

/* Gradients of all shards to pieces, with what earlier ones left if the unit keeps that. */
static int quantise(ms_lowering *l, int unit, const ms_segment *seg, const ms_gradients *from, ms_ref pieces) {
  const ms_unit *u = &l->model->unit[unit];
  const int64_t shards = ms_model_shards(l->model);
  const ms_attrs attrs = {.i = {dtype_of(l, unit), shards, seg->chunk}};
  const ms_ref whole = ms_ref_vector(from->buffer, ms_gradients_offset(from, seg), from->dtype, seg->chunk * shards);
  const ms_ref rests =
      ms_ref_vector(ms_state_buffer(unit, MS_STATE_RESTS), ms_rests_of_shards(seg), MS_F32, seg->chunk * shards);
  const ms_ref out[] = {pieces, rests};
  int keeps;
  MS_TRY(ms_rests_are_kept(l->plan, unit, seg, &keeps));
  return ms_plan_kernel(l->plan, l->phase, keeps ? MS_OP_quantise_pieces_kept : MS_OP_quantise_pieces, &attrs, 1,
                        &whole, 1 + keeps, out, u->name, 1);
}

int ms_lower_send_to_shards(ms_lowering *l, int unit, const ms_gradients *from, const ms_gradients *to,
                            int accumulate) {
  const ms_unit *u = &l->model->unit[unit];
  ms_quantised q = {.unit = unit, .step = MS_QUANTISED_TOTAL, .from = *to, .adds = accumulate};
  int parts = 0;
  int64_t sent = 0, received = 0;
  MS_TRY(open_pieces(l, unit, &q.sent));
  MS_TRY(open_pieces(l, unit, &q.received));
  for (int s = 0; s < u->segments; s++) {
    const ms_segment *seg = &u->segment[s];
    if (seg->frozen) continue;
    const ms_ref pieces = next_pieces(l, unit, seg, q.sent, &sent);
    MS_TRY(quantise(l, unit, seg, from, pieces));
    l->part[parts++] = (ms_plan_part){.count = pieces_of(l, unit, seg).words,
                                      .src.buffer = -1,
                                      .shared = pieces,
                                      .dst = next_pieces(l, unit, seg, q.received, &received)};
  }
  MS_TRY(ms_plan_collective(l->plan, l->phase, MS_STREAM_REDUCE, MS_COLL_ALL_TO_ALL, MS_DIM_SHARD, 0, unit, parts,
                            l->part));
  l->quantised[l->quantised_started++] = q;
  return MS_OK;
}

int ms_lower_total_of_shards(ms_lowering *l, const ms_quantised *q) {
  const ms_unit *u = &l->model->unit[q->unit];
  int64_t received = 0;
  for (int s = 0; s < u->segments; s++) {
    const ms_segment *seg = &u->segment[s];
    if (seg->frozen) continue;
    const ms_attrs attrs = {.i = {q->adds, dtype_of(l, q->unit), ms_model_shards(l->model), seg->chunk}};
    const ms_ref pieces = next_pieces(l, q->unit, seg, q->received, &received);
    const ms_ref chunk = ms_ref_vector(q->from.buffer, ms_gradients_offset(&q->from, seg), MS_F32, seg->chunk);
    MS_TRY(ms_plan_kernel(l->plan, l->phase, MS_OP_total_pieces, &attrs, 1, &pieces, 1, &chunk, u->name, 1));
  }
  ms_plan_touch(l->plan, q->sent, l->plan->phase[l->phase].n - 1); /* so compute does not wait for the collective */
  return MS_OK;
}
