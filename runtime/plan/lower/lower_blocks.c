/* lower_blocks.c - weights that are gathered in blocks (ms_param_config.gather_dtype): a code an element, and an f32
 * scale for each 256 of them.
 *
 *   quantise_pieces   this rank's f32 chunk -> blocks, before each gather of the unit
 *   all_gather        with all other parts of the unit, in words
 *   restore_pieces    -> the parameter's values, before each kernel that reads it
 *
 * Chunks do not cut blocks, so every mesh has the same codes and scales, and a mesh with one shard rounds as others do.
 * What is kept from forward to backward is what `reshard` says, in blocks: no rank holds such a weight in more bits for
 * longer than a kernel runs.
 */
#include "kernels/formats/quantised_sum.h"

#include "base/numbers/dtype.h"
#include "plan/lower/lower.h"

/* The words of a block. */
static int64_t words_of(const ms_segment *seg) { return ms_pieces_each(seg->blocks, MS_PIECE_BLOCK).words; }

int ms_lower_blocks(ms_lowering *l, int unit, int s, ms_ref to) {
  const ms_segment *seg = &l->model->unit[unit].segment[s];
  const ms_ref chunk = ms_plan_weights(l->plan, unit, s, seg->local, seg->chunk);
  const ms_op_attrs attrs = {
      .pieces = {.dtype = seg->blocks, .pieces = seg->wire_chunk / words_of(seg), .stride = MS_PIECE_BLOCK}};
  return ms_plan_kernel(l->plan, l->phase, MS_OP_quantise_pieces, &attrs, 1, &chunk, 1, &to, l->model->unit[unit].name,
                        0);
}

int ms_lower_sent_blocks(ms_lowering *l, int unit, int s, ms_ref *blocks) {
  const ms_segment *seg = &l->model->unit[unit].segment[s];
  *blocks = ms_ref_vector(-1, 0, seg->wire, seg->wire_chunk);
  MS_TRY(ms_plan_buffer(l->plan, l->phase, MS_ARENA_ACTIVATIONS, MS_CAT_ACTIVATIONS, 4 * seg->wire_chunk, "blocks",
                        &blocks->buffer));
  return ms_lower_blocks(l, unit, s, *blocks);
}

int ms_lower_restore_blocks(ms_lowering *l, const ms_param *p, const ms_segment *seg, ms_place *at) {
  const ms_node *reader = l->reader;
  const int64_t blocks = (p->numel + MS_PIECE_BLOCK - 1) / MS_PIECE_BLOCK, words = words_of(seg);
  const ms_place gathered = ms_lower_gathered(l, p->unit, seg);
  const ms_ref in = ms_ref_vector(gathered.buffer, gathered.offset + 4 * (p->offset / MS_PIECE_BLOCK * words),
                                  seg->wire, blocks * words);
  const ms_op_attrs attrs = {
      .out_dtype = 1 + seg->param_dtype,
      .pieces = {.dtype = seg->blocks, .pieces = blocks, .elements = p->numel, .stride = MS_PIECE_BLOCK}};
  ms_ref values = ms_ref_vector(-1, 0, seg->param_dtype, p->numel);
  MS_TRY(ms_plan_buffer(l->plan, l->phase, MS_ARENA_WORKSPACE, MS_CAT_WORKSPACE,
                        p->numel * ms_dtype_size(seg->param_dtype), "restored", &values.buffer));
  *at = (ms_place){values.buffer, 0};
  return ms_plan_kernel(l->plan, l->phase, MS_OP_restore_pieces, &attrs, 1, &in, 1, &values,
                        reader ? reader->scope : "", reader ? reader->backward : 0);
}
