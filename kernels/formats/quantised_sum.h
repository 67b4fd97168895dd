/* quantised_sum.h - numbers that travel between ranks in few bits: how a vector is cut into pieces, one for each rank,
 * what a piece looks like, and the sum of pieces.
 *
 *   quantise_pieces  x [n] of this rank      -> its pieces, of which piece r goes to rank r
 *   total_pieces     a piece of every rank   -> their sum in f32, in rank order
 *   sum_pieces       the same, as a piece again
 *   restore_pieces   the pieces of a vector  -> the vector, or a part of it
 *
 * So each element of a sum over shards is rounded once, of one over replicas twice, for any number of ranks, and all
 * ranks read the same bytes. Where the shards of several hosts sum, it is rounded once for the ranks of its host, and
 * their sum once for the other hosts: quantise_pieces then puts the pieces for the ranks at the same place of all hosts
 * together, and sum_pieces makes a piece for each of them.
 *
 * The two forms that make pieces can keep what they round off (quantise_pieces_kept, sum_pieces_kept): they add to each
 * element what is left of the last time, and leave its own rest. A sum over many steps then misses one rest, not one a
 * step. The rest of a block that is not finite is 0, or no later step would be.
 *
 * Pieces have `stride` elements of the vector each. If that is not given, it is as many as there are for each rank,
 * rounded up to a multiple of 8. A piece has a multiple of 8 elements; those after its stride, or after the vector,
 * are 0. Blocks of 256 of them have an f32 scale each (MS_SCALE_BLOCK of quantise.h); the last one can be
 * shorter. A piece consists of 32-bit words: the scales, then the codes. The CPU and CUDA give the same bits.
 *
 * Weights that are gathered in blocks are pieces of one block each, MS_PIECE_BLOCK elements, which chunks do not cut.
 */
#ifndef MS_KERNELS_QUANTISED_SUM_H
#define MS_KERNELS_QUANTISED_SUM_H

#include "base/numbers/dtype.h"
#include "kernels/op.h"

#ifdef __CUDACC__
  #define MS_PIECES_FUNCTION static inline __host__ __device__
#else
  #define MS_PIECES_FUNCTION static inline
#endif

enum { MS_PIECE_BLOCK = 256, MS_PIECE_ALIGN = 8 };

typedef struct ms_pieces {
  int64_t stride;                  /* elements of the vector in a piece */
  int64_t elements, blocks, words; /* of a piece; `blocks` is also the number of words before the codes */
} ms_pieces;

/* Pieces of so many elements each. dtype: one with MS_DTYPE_PIECES. */
static inline ms_pieces ms_pieces_each(int dtype, int64_t stride) {
  ms_pieces p = {.stride = stride};
  p.elements = (stride + MS_PIECE_ALIGN - 1) / MS_PIECE_ALIGN * MS_PIECE_ALIGN;
  p.blocks = (p.elements + MS_PIECE_BLOCK - 1) / MS_PIECE_BLOCK;
  p.words = p.blocks + p.elements / (ms_dtype_size(dtype) ? 4 : 8);
  return p;
}

/* The pieces of n elements for so many ranks. */
static inline ms_pieces ms_pieces_of(int dtype, int64_t n, int64_t ranks) {
  const int64_t most = (n + ranks - 1) / ranks;
  return ms_pieces_each(dtype, (most + MS_PIECE_ALIGN - 1) / MS_PIECE_ALIGN * MS_PIECE_ALIGN);
}

/* Where a vector's piece for a rank is among the pieces. group: 0: in the order of ranks; else ranks are in groups of
 * so many, and the pieces for those at the same place of every group are together, in the order of groups. */
MS_PIECES_FUNCTION int64_t ms_piece_place(int64_t rank, int64_t ranks, int64_t group) {
  return group ? rank % group * (ranks / group) + rank / group : rank;
}

/* As a call asks for them: stride 0 is that of n elements for so many ranks. */
static inline ms_pieces ms_pieces_asked(int dtype, int64_t n, int64_t ranks, int64_t stride) {
  return stride ? ms_pieces_each(dtype, stride) : ms_pieces_of(dtype, n, ranks);
}

/* Those that a call sums: each rank's piece of n elements for so many ranks, or `given` pieces of n elements of each
 * rank. *each: how many a rank has. */
static inline ms_pieces ms_pieces_to_sum(int dtype, int64_t n, int64_t ranks, int64_t given, int64_t *each) {
  *each = given ? given : 1;
  return given ? ms_pieces_each(dtype, n) : ms_pieces_of(dtype, n, ranks);
}

/* The words of n weights that are gathered in a dtype. */
static inline int64_t ms_weight_words(int dtype, int64_t n) {
  return (n + MS_PIECE_BLOCK - 1) / MS_PIECE_BLOCK * ms_pieces_each(dtype, MS_PIECE_BLOCK).words;
}

#endif
