/* parts.h - several tensors copied, cast or added in one launch: the chunks of a unit on their way into the segments that
** are gathered, and from those that were reduced into the f32 gradients. cast.cu casts one tensor by it.
*/
#ifndef MS_KERNELS_CUDA_PARTS_H
#define MS_KERNELS_CUDA_PARTS_H

#include "kernels/op.h"

/* How many tensors one launch takes: more are moved by several. */
enum { MS_CUDA_PARTS = 64 };

#ifdef __cplusplus
extern "C" {
#endif

/* Any number of tensors, of any dtypes side by side, enqueued on the stream. */
int ms_cuda_move(const ms_move *move, int moves, void *stream);

#ifdef __cplusplus
}
#endif

#endif
