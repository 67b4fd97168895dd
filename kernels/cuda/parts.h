/* parts.h - several tensors copied, cast or added in one launch: the chunks of a unit on their way into the segments that
** are gathered, and from those that were reduced into the f32 gradients. Also what casts one tensor.
*/
#ifndef MS_KERNELS_CUDA_PARTS_H
#define MS_KERNELS_CUDA_PARTS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ms_cuda_part {
  const void *from;
  void *to;
  int64_t n; /* elements */
} ms_cuda_part;

/* to = from, or to += from when add, for each part, enqueued on the stream. Dtypes are MS_F32 or MS_BF16; sums are f32, so
** add wants to_dtype MS_F32. Any number of parts; each launch takes 32. */
int ms_cuda_run_parts(const ms_cuda_part *part, int parts, int from_dtype, int to_dtype, int add, void *stream);

#ifdef __cplusplus
}
#endif

#endif
