/* mark.h - reports a stream's progress to the host while a graph runs. Events of a graph cannot be queried, but the
 * host can read pinned memory that the graph writes. */
#ifndef MS_KERNELS_CUDA_MARK_H
#define MS_KERNELS_CUDA_MARK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueues *pinned = *value. pinned: host memory; value: device memory. */
int ms_cuda_mark(int64_t *pinned, const int64_t *value, void *stream);

#ifdef __cplusplus
}
#endif

#endif
