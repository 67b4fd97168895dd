/* parts.h - copies, casts or adds several tensors in one launch: the chunks of a unit into the segments to be gathered,
 * some of them as codes, and reduced gradients into the f32 accumulators. cast.cu uses it for a single tensor. */
#ifndef MS_KERNELS_CUDA_PARTS_H
#define MS_KERNELS_CUDA_PARTS_H

#include "kernels/op.h"

/* Most tensors per launch; a longer list takes several launches. */
enum { MS_CUDA_PARTS = 64 };

#ifdef __cplusplus
extern "C" {
#endif

/* Moves any number of tensors, with any mix of dtypes; enqueued on the stream. */
int ms_cuda_move(const ms_move *move, int moves, void *stream);

#ifdef __cplusplus
}
#endif

#endif
