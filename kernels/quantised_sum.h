/* quantised_sum.h - sums over ranks that travel in few bits: how a vector is cut into pieces, one for each rank, and
 * what a piece looks like between them.
 *
 *   quantise_pieces  x [n] of this rank      -> its pieces, of which piece r goes to rank r
 *   sum_pieces       a piece of every rank   -> their sum in f32, in rank order, as a piece again
 *   restore_pieces   the sums of all ranks   -> the sum of the vectors, or a part of it
 *
 * So each element is rounded twice, for any number of ranks, and all ranks read the same bytes.
 *
 * Pieces have equal numbers of elements, a multiple of 8, so the last ones can end behind the vector: there elements
 * are 0. Of a piece, blocks of 256 elements have an f32 scale each (MS_SCALE_BLOCK of quantise.h: i8 or i4, symmetric);
 * the last one can be shorter. A piece consists of 32-bit words: the scales, then the codes. The CPU and CUDA give the
 * same bits.
 */
#ifndef MS_KERNELS_QUANTISED_SUM_H
#define MS_KERNELS_QUANTISED_SUM_H

#include "kernels/op.h"

enum { MS_PIECE_BLOCK = 256, MS_PIECE_ALIGN = 8 };

typedef struct ms_pieces {
  int64_t elements, blocks, words; /* of a piece; `blocks` is also the number of words before the codes */
} ms_pieces;

/* The pieces of n elements for so many ranks. dtype: MS_I8 or MS_I4. */
static inline ms_pieces ms_pieces_of(int dtype, int64_t n, int64_t ranks) {
  const int64_t most = (n + ranks - 1) / ranks;
  ms_pieces p;
  p.elements = (most + MS_PIECE_ALIGN - 1) / MS_PIECE_ALIGN * MS_PIECE_ALIGN;
  p.blocks = (p.elements + MS_PIECE_BLOCK - 1) / MS_PIECE_BLOCK;
  p.words = p.blocks + p.elements / (dtype == MS_I4 ? 8 : 4);
  return p;
}

#endif
