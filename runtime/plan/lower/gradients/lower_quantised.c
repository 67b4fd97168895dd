/* lower_quantised.c - sums of gradients over the replicas in few bits (ms_unit_config.replicate_dtype): half of an
 * all-reduce in each direction, as kernels around two collectives that move words.
 *
 *   quantise_pieces  this rank's chunks -> a piece for each replica          (kernels/formats/quantised_sum.h)
 *   all_to_all       replica r receives piece r of all
 *   sum_pieces       their sum, in f32 and in the replicas' order, as a piece
 *   all_gather       all replicas receive all sums
 *   restore_pieces   -> the state's gradients, or the slice of them that this rank updates
 *
 * Which replicas share a host does not matter, so the numbers depend on the mesh alone. Compute would wait for each
 * collective if the kernel after it came at once. So a unit goes one step further whenever another one has its
 * gradients: its bytes move while those are computed. What is left at the end of backward follows there.
 */
#include "plan/lower/gradients/lower_pieces.h"
#include "plan/layout/state_layout.h"
#include "plan/layout/residuals.h"

/* ---- places ---- */

static ms_unit_pieces pieces_of(const ms_lowering *l, int unit) {
  return (ms_unit_pieces){unit, l->model->unit[unit].config.replicate_dtype, ms_model_replicas(l->model)};
}

static int open_sent(ms_lowering *l, const ms_unit_pieces *p, int64_t pieces, int *buffer) {
  return ms_lower_open_pieces(l, p, pieces, MS_ARENA_COMM, MS_CAT_COMMUNICATION, buffer);
}

/* The elements of a segment that this rank's gradients hold. *first: the first one, counted in the chunk. */
static ms_ref own_gradients(const ms_lowering *l, int unit, const ms_segment *seg, int64_t *first) {
  int64_t slice, n = ms_unit_node_slice(l->model, &l->model->unit[unit], l->plan->layout->replicas, &slice);
  int64_t begin = slice > seg->local ? slice : seg->local, end = seg->local + seg->chunk;
  if (slice + n < end) end = slice + n;
  if (end <= begin) begin = end = seg->local;
  *first = begin - seg->local;
  return ms_ref_vector(ms_state_buffer(unit, MS_SLOT_GRADIENT), end > begin ? 4 * (begin - slice) : 0, MS_F32,
                       end - begin);
}

/* ---- steps ---- */

static int collect(ms_lowering *l, int unit, int kind, int parts) {
  return ms_plan_collective(l->plan, l->phase, MS_STREAM_REPLICATE, kind, MS_DIM_REPLICATE, 0, unit, parts, l->part);
}

static int send(ms_lowering *l, ms_quantised *q) {
  const ms_unit *u = &l->model->unit[q->unit];
  const ms_unit_pieces p = pieces_of(l, q->unit);
  const ms_op_attrs attrs = {.pieces = {.dtype = p.dtype, .pieces = p.ranks}};
  int parts = 0;
  int64_t from = 0, to = 0;
  MS_TRY(open_sent(l, &p, p.ranks, &q->sent));
  MS_TRY(open_sent(l, &p, p.ranks, &q->received));
  for (int s = 0; s < u->segments; s++) {
    const ms_segment *seg = &u->segment[s];
    if (seg->frozen) continue;
    const ms_ref chunk = ms_ref_vector(q->from.buffer, ms_gradients_offset(&q->from, seg), q->from.dtype, seg->chunk);
    const ms_ref sent = ms_lower_next_pieces(&p, seg, q->sent, p.ranks, &from);
    MS_TRY(ms_lower_round_off(l, q->unit, seg, MS_OP_quantise_pieces, MS_OP_quantise_pieces_kept, &attrs, chunk, sent,
                              1, ms_residuals_of_chunk(l->model, q->unit, seg), seg->chunk));
    l->part[parts++] = (ms_plan_part){.count = ms_pieces_of_segment(&p, seg).words,
                                      .src.buffer = -1,
                                      .shared = sent,
                                      .dst = ms_lower_next_pieces(&p, seg, q->received, p.ranks, &to)};
  }
  return collect(l, q->unit, MS_COLL_ALL_TO_ALL, parts);
}

static int sum(ms_lowering *l, ms_quantised *q) {
  const ms_unit *u = &l->model->unit[q->unit];
  const ms_unit_pieces p = pieces_of(l, q->unit);
  int parts = 0;
  int64_t from = 0, one = 0, to = 0;
  MS_TRY(open_sent(l, &p, 1, &q->own));
  MS_TRY(ms_lower_open_pieces(l, &p, p.ranks, MS_ARENA_GROUPED, MS_CAT_GATHERED, &q->gathered));
  l->plan->buffer[q->gathered].ranks = (int)p.ranks;
  l->plan->buffer[q->gathered].dim = MS_DIM_REPLICATE;
  for (int s = 0; s < u->segments; s++) {
    const ms_segment *seg = &u->segment[s];
    if (seg->frozen) continue;
    const ms_op_attrs attrs = {.pieces = {.dtype = p.dtype, .pieces = p.ranks, .elements = seg->chunk}};
    const ms_ref own = ms_lower_next_pieces(&p, seg, q->own, 1, &one);
    const ms_ref received = ms_lower_next_pieces(&p, seg, q->received, p.ranks, &from);
    MS_TRY(ms_lower_round_off(l, q->unit, seg, MS_OP_sum_pieces, MS_OP_sum_pieces_kept, &attrs, received, own, 1,
                              ms_residuals_of_sum(l->model, q->unit, seg), ms_pieces_of_segment(&p, seg).elements));
    l->part[parts++] = (ms_plan_part){.count = ms_pieces_of_segment(&p, seg).words,
                                      .src = own,
                                      .shared = ms_lower_next_pieces(&p, seg, q->gathered, p.ranks, &to),
                                      .dst.buffer = -1};
  }
  ms_lower_keep(l, q->sent);
  MS_TRY(collect(l, q->unit, MS_COLL_ALL_GATHER, parts));
  ms_plan_gathers_sums(l->plan, l->phase);
  return MS_OK;
}

static int restore(ms_lowering *l, const ms_quantised *q) {
  const ms_unit *u = &l->model->unit[q->unit];
  const int adds = ms_lower_sync(l, q->unit) == MS_SYNC_EVERY && l->phase != MS_PHASE_FIRST;
  const ms_unit_pieces p = pieces_of(l, q->unit);
  int64_t from = 0, first;
  for (int s = 0; s < u->segments; s++) {
    const ms_segment *seg = &u->segment[s];
    if (seg->frozen) continue;
    const ms_ref sums = ms_lower_next_pieces(&p, seg, q->gathered, p.ranks, &from);
    const ms_ref own = own_gradients(l, q->unit, seg, &first);
    const ms_op_attrs attrs = {.add = adds,
                               .pieces = {.dtype = p.dtype, .pieces = p.ranks, .elements = seg->chunk, .first = first}};
    MS_TRY(ms_plan_kernel(l->plan, l->phase, MS_OP_restore_pieces, &attrs, 1, &sums, 1, &own, u->name, 1));
  }
  ms_lower_keep(l, q->own);
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
