/* lower_pieces.h - pieces of a unit's gradients on their way between ranks, which sums over the shards
 * (lower_quantised_shards.c) and over the replicas (lower_quantised.c) lower alike: buffers for them, their places in
 * these, and the ops that make them. kernels/formats/quantised_sum.h has what a piece is.
 */
#ifndef MS_PLAN_LOWER_PIECES_H
#define MS_PLAN_LOWER_PIECES_H

#include "kernels/formats/quantised_sum.h"
#include "plan/lower/lower.h"

typedef struct ms_unit_pieces {
  int unit, dtype;
  int64_t ranks; /* a segment's chunk is cut for so many */
} ms_unit_pieces;

ms_pieces ms_pieces_of_segment(const ms_unit_pieces *p, const ms_segment *seg);

/* A buffer for so many pieces of each trainable segment. */
int ms_lower_open_pieces(ms_lowering *l, const ms_unit_pieces *p, int64_t pieces, int arena, int category, int *buffer);
/* Those of the next trainable segment in such a buffer. *at: where they begin, in words; moves on. */
ms_ref ms_lower_next_pieces(const ms_unit_pieces *p, const ms_segment *seg, int buffer, int64_t pieces, int64_t *at);

/* Emits an op that rounds n elements to pieces: `adding` if the segment adds residuals, which begin at byte `rest`
 * of them, after these are in the units of this step. */
int ms_lower_round_off(ms_lowering *l, int unit, const ms_segment *seg, int op, int adding, const ms_op_attrs *attrs,
                       ms_ref in, ms_ref pieces, int over_replicas, int64_t rest, int64_t n);

/* Until this position no other buffer has its bytes, so that compute does not wait for a collective that has them. */
void ms_lower_keep(ms_lowering *l, int buffer);

#endif
