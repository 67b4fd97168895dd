/* part.h - which part of an axis a kernel has, where the ranks of a mesh dimension divide the axis: one attribute, 0
 * for all of it.
 *
 * The axis is seen as [blocks, ranks, run], and a rank has one run of each block: the one at its place, or, where the
 * axis is folded, at its place in even blocks and at the mirrored place in odd ones. So a folded axis of two blocks
 * gives each rank a run near the beginning and one near the end, and with them the same work under a causal mask.
 *
 * A plan's attributes have place 0 until lowering sets that of the rank, so all ranks hash the same plan.
 */
#ifndef MS_KERNELS_PART_H
#define MS_KERNELS_PART_H

#include <stdint.h>

#ifdef __CUDACC__
  #define MS_PART_FUNCTION static inline __host__ __device__
#else
  #define MS_PART_FUNCTION static inline
#endif

/* Bits of the attribute, from the lowest; the rest is 0. */
enum {
  MS_PART_RUN_BITS = 36,
  MS_PART_RANKS_BITS = 12,
  MS_PART_RANKS_AT = MS_PART_RUN_BITS,
  MS_PART_PLACE_AT = MS_PART_RANKS_AT + MS_PART_RANKS_BITS,
  MS_PART_DIM_AT = MS_PART_PLACE_AT + MS_PART_RANKS_BITS,
  MS_PART_FOLDED_AT = MS_PART_DIM_AT + 2,
};

typedef struct ms_part {
  int64_t run; /* elements of the axis that follow each other */
  int ranks;   /* 0: the kernel has all of the axis */
  int place, dim, folded;
} ms_part;

MS_PART_FUNCTION int64_t ms_part_attr(ms_part p) {
  return p.run | (int64_t)(p.ranks - 1) << MS_PART_RANKS_AT | (int64_t)p.place << MS_PART_PLACE_AT |
         (int64_t)p.dim << MS_PART_DIM_AT | (int64_t)p.folded << MS_PART_FOLDED_AT;
}

MS_PART_FUNCTION ms_part ms_part_of(int64_t attr) {
  const int64_t ranks = ((int64_t)1 << MS_PART_RANKS_BITS) - 1, run = ((int64_t)1 << MS_PART_RUN_BITS) - 1;
  const ms_part part = {attr & run, attr ? (int)(attr >> MS_PART_RANKS_AT & ranks) + 1 : 0,
                        (int)(attr >> MS_PART_PLACE_AT & ranks), (int)(attr >> MS_PART_DIM_AT & 3),
                        (int)(attr >> MS_PART_FOLDED_AT & 1)};
  return part;
}

/* The place of the part's run in a block. */
MS_PART_FUNCTION int64_t ms_part_place(const ms_part *p, int64_t block) {
  return p->folded && block % 2 ? p->ranks - 1 - p->place : p->place;
}

/* Where index i of the part is in the axis. */
MS_PART_FUNCTION int64_t ms_part_index(const ms_part *p, int64_t i) {
  if (!p->ranks) return i;
  const int64_t block = i / p->run;
  return (block * p->ranks + ms_part_place(p, block)) * p->run + i % p->run;
}

/* How many indices of the part are before `index` of the axis. */
MS_PART_FUNCTION int64_t ms_part_before(const ms_part *p, int64_t index) {
  if (!p->ranks) return index;
  const int64_t block = index / (p->run * p->ranks);
  const int64_t here = index - (block * p->ranks + ms_part_place(p, block)) * p->run;
  return block * p->run + (here < 0 ? 0 : here < p->run ? here : p->run);
}

#endif
