/* lower_quantised.c - sums of gradients over the replicas in few bits (ms_unit_config.replicate_dtype): half of an
 * all-reduce in each direction, as kernels around two collectives that move words.
 *
 *   quantise_pieces  this rank's chunks -> a piece for each replica          (kernels/quantised_sum.h)
 *   all_to_all       replica r receives piece r of all
 *   sum_pieces       their sum, in f32 and in the replicas' order, as a piece
 *   all_gather       all replicas receive all sums
 *   restore_pieces   -> the state's gradients, or the slice of them that this rank updates
 *
 * Which replicas share a host does not matter, so the numbers depend on the mesh alone. Compute would wait for each
 * collective if the kernel behind it came at once. So a unit goes one step further whenever another one has its
 * gradients: its bytes move while those are computed. What is left at the end of backward follows there.
 */
#include "kernels/quantised_sum.h"

#include "plan/lower.h"
#include "plan/rests.h"

/* ---- places ---- */

static int dtype_of(const ms_lowering *l, int unit) { return l->model->unit[unit].config.replicate_dtype; }

static ms_pieces pieces_of(const ms_lowering *l, int unit, const ms_segment *seg) {
  return ms_pieces_of(dtype_of(l, unit), seg->chunk, ms_model_replicas(l->model));
}

/* A buffer for so many pieces of each trainable segment of a unit. */
static int open_pieces(ms_lowering *l, int unit, int64_t pieces, int arena, int category, int *buffer) {
  const ms_unit *u = &l->model->unit[unit];
  int64_t words = 0;
  for (int s = 0; s < u->segments; s++)
    if (!u->segment[s].frozen) words += ms_pieces_lines(pieces * pieces_of(l, unit, &u->segment[s]).words);
  return ms_plan_buffer(l->plan, l->phase, arena, category, 4 * words, u->name, buffer);
}

static int open_sent(ms_lowering *l, int unit, int64_t pieces, int *buffer) {
  return open_pieces(l, unit, pieces, MS_ARENA_COMM, MS_CAT_COMMUNICATION, buffer);
}

/* The pieces of the next trainable segment in such a buffer. *at: where they begin, in words; moves on. */
static ms_ref next_pieces(const ms_lowering *l, int unit, const ms_segment *seg, int buffer, int64_t pieces,
                          int64_t *at) {
  const int64_t words = pieces * pieces_of(l, unit, seg).words;
  const ms_ref ref = ms_ref_vector(buffer, 4 * *at, MS_I32, words);
  *at += ms_pieces_lines(words);
  return ref;
}

/* The elements of a segment that this rank's gradients hold. *first: the first one, counted in the chunk. */
static ms_ref own_gradients(const ms_lowering *l, int unit, const ms_segment *seg, int64_t *first) {
  int64_t slice, n = ms_unit_node_slice(l->model, &l->model->unit[unit], l->plan->replicas, &slice);
  int64_t begin = slice > seg->local ? slice : seg->local, end = seg->local + seg->chunk;
  if (slice + n < end) end = slice + n;
  if (end <= begin) begin = end = seg->local;
  *first = begin - seg->local;
  return ms_ref_vector(ms_state_buffer(unit, MS_STATE_GRADIENT), end > begin ? 4 * (begin - slice) : 0, MS_F32,
                       end - begin);
}

/* ---- steps ---- */

static int kernel(ms_lowering *l, int unit, int op, const ms_attrs *attrs, ms_ref in, ms_ref out) {
  return ms_plan_kernel(l->plan, l->phase, op, attrs, 1, &in, 1, &out, l->model->unit[unit].name, 1);
}

/* An op that rounds n elements: `kept` if the segment keeps the rests, which begin at byte `rest` of them. */
static int round_off(ms_lowering *l, int unit, const ms_segment *seg, int op, int kept, const ms_attrs *attrs,
                     ms_ref in, ms_ref out, int64_t rest, int64_t n) {
  int keeps;
  MS_TRY(ms_rests_are_kept(l->plan, unit, seg, &keeps));
  const ms_ref both[] = {out, ms_ref_vector(ms_state_buffer(unit, MS_STATE_RESTS), rest, MS_F32, n)};
  if (!keeps) return kernel(l, unit, op, attrs, in, out);
  return ms_plan_kernel(l->plan, l->phase, kept, attrs, 1, &in, 2, both, l->model->unit[unit].name, 1);
}

static int collect(ms_lowering *l, int unit, int kind, int parts) {
  return ms_plan_collective(l->plan, l->phase, MS_STREAM_REPLICATE, kind, MS_DIM_REPLICATE, 0, unit, parts, l->part);
}

/* Until this position no other buffer has its bytes, so that compute does not wait for a collective that has them. */
static void keep(ms_lowering *l, int buffer) { ms_plan_touch(l->plan, buffer, l->plan->phase[l->phase].n - 1); }

static int send(ms_lowering *l, ms_quantised *q) {
  const ms_unit *u = &l->model->unit[q->unit];
  const int64_t replicas = ms_model_replicas(l->model);
  const ms_attrs attrs = {.i = {dtype_of(l, q->unit), replicas}};
  int parts = 0;
  int64_t from = 0, to = 0;
  MS_TRY(open_sent(l, q->unit, replicas, &q->sent));
  MS_TRY(open_sent(l, q->unit, replicas, &q->received));
  for (int s = 0; s < u->segments; s++) {
    const ms_segment *seg = &u->segment[s];
    if (seg->frozen) continue;
    const ms_ref chunk = ms_ref_vector(q->from.buffer, ms_gradients_offset(&q->from, seg), q->from.dtype, seg->chunk);
    const ms_ref sent = next_pieces(l, q->unit, seg, q->sent, replicas, &from);
    MS_TRY(round_off(l, q->unit, seg, MS_OP_quantise_pieces, MS_OP_quantise_pieces_kept, &attrs, chunk, sent,
                     ms_rests_of_chunk(l->model, q->unit, seg), seg->chunk));
    l->part[parts++] = (ms_plan_part){.count = pieces_of(l, q->unit, seg).words,
                                      .src.buffer = -1,
                                      .shared = sent,
                                      .dst = next_pieces(l, q->unit, seg, q->received, replicas, &to)};
  }
  return collect(l, q->unit, MS_COLL_ALL_TO_ALL, parts);
}

static int sum(ms_lowering *l, ms_quantised *q) {
  const ms_unit *u = &l->model->unit[q->unit];
  const int64_t replicas = ms_model_replicas(l->model);
  int parts = 0;
  int64_t from = 0, one = 0, to = 0;
  MS_TRY(open_sent(l, q->unit, 1, &q->own));
  MS_TRY(open_pieces(l, q->unit, replicas, MS_ARENA_GROUPED, MS_CAT_GATHERED, &q->gathered));
  l->plan->buffer[q->gathered].ranks = (int)replicas;
  l->plan->buffer[q->gathered].dim = MS_DIM_REPLICATE;
  for (int s = 0; s < u->segments; s++) {
    const ms_segment *seg = &u->segment[s];
    if (seg->frozen) continue;
    const ms_attrs attrs = {.i = {dtype_of(l, q->unit), replicas, seg->chunk}};
    const ms_ref own = next_pieces(l, q->unit, seg, q->own, 1, &one);
    const ms_ref received = next_pieces(l, q->unit, seg, q->received, replicas, &from);
    MS_TRY(round_off(l, q->unit, seg, MS_OP_sum_pieces, MS_OP_sum_pieces_kept, &attrs, received, own,
                     ms_rests_of_sum(l->model, q->unit, seg), pieces_of(l, q->unit, seg).elements));
    l->part[parts++] = (ms_plan_part){.count = pieces_of(l, q->unit, seg).words,
                                      .src = own,
                                      .shared = next_pieces(l, q->unit, seg, q->gathered, replicas, &to),
                                      .dst.buffer = -1};
  }
  keep(l, q->sent);
  MS_TRY(collect(l, q->unit, MS_COLL_ALL_GATHER, parts));
  ms_plan_gathers_sums(l->plan, l->phase);
  return MS_OK;
}

static int restore(ms_lowering *l, const ms_quantised *q) {
  const ms_unit *u = &l->model->unit[q->unit];
  const int adds = ms_lower_sync(l, q->unit) == MS_SYNC_EVERY && l->phase != MS_PHASE_FIRST;
  const int64_t replicas = ms_model_replicas(l->model);
  int64_t from = 0, first;
  for (int s = 0; s < u->segments; s++) {
    const ms_segment *seg = &u->segment[s];
    if (seg->frozen) continue;
    const ms_ref sums = next_pieces(l, q->unit, seg, q->gathered, replicas, &from);
    const ms_ref own = own_gradients(l, q->unit, seg, &first);
    const ms_attrs attrs = {.i = {adds, dtype_of(l, q->unit), replicas, seg->chunk, first}};
    MS_TRY(kernel(l, q->unit, MS_OP_restore_pieces, &attrs, sums, own));
  }
  keep(l, q->own);
  return ms_lower_zero_between_segments(l, q->unit);
}

/* ---- order ---- */

int ms_lower_quantised(ms_lowering *l, int unit, const ms_gradients *from) {
  /* Gradients that a collective brings from the shards are on their way. */
  const int on_their_way = ms_model_shards(l->model) > 1 && !ms_unit_quantises_shards(l->model, unit);
  const int step = on_their_way ? MS_QUANTISED_WAIT : MS_QUANTISED_SEND;
  l->quantised[l->quantised_started++] = (ms_quantised){.unit = unit, .step = step, .from = *from};
  return MS_OK;
}

int ms_lower_step_quantised(ms_lowering *l, ms_quantised *q) {
  const int step = q->step++;
  if (step == MS_QUANTISED_SEND) return send(l, q);
  if (step == MS_QUANTISED_SUM) return sum(l, q);
  return step == MS_QUANTISED_RESTORE ? restore(l, q) : MS_OK;
}
