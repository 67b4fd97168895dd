/* fold.h - where the runs of a folded axis (kernels/part.h) are: in the order of the axis, [blocks, ranks, run], in
 * that of the ranks, [ranks, blocks, run], or those of one rank alone, [blocks, 1, run].
 */
#ifndef MS_KERNELS_FOLD_H
#define MS_KERNELS_FOLD_H

#include "kernels/op.h"
#include "kernels/part.h"

/* The attribute `what` of the op: from what to what. */
enum ms_fold {
  MS_FOLD_JOIN = 0, /* of all ranks, to the axis */
  MS_FOLD_PART = 1, /* back */
  MS_FOLD_TAKE = 2, /* of the axis, to one rank's: `place` of `ranks` */
  MS_FOLD_PUT = 3,  /* back, with zeros for the others' */
};

/* The run of the input, whose first two sizes are a and b, that run i of the output is; -1: zeros. */
MS_PART_FUNCTION int64_t ms_fold_source(const ms_op_attrs *attrs, int64_t a, int64_t b, int64_t i) {
  ms_part own = {0, (int)attrs->fold.ranks, (int)attrs->fold.place, 0, 1};
  int64_t block;
  switch (attrs->fold.what) {
    case MS_FOLD_JOIN:
      block = i / a;
      own.ranks = (int)a, own.place = (int)(i % a);
      return ms_part_place(&own, block) * b + block;
    case MS_FOLD_PART:
      block = i % a;
      own.ranks = (int)b, own.place = (int)(i / a);
      return block * b + ms_part_place(&own, block);
    case MS_FOLD_TAKE: return i * b + ms_part_place(&own, i);
    default: block = i / own.ranks; return i % own.ranks == ms_part_place(&own, block) ? block : -1;
  }
}

#endif
