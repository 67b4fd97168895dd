/* mark.h - how far a stream has come, told to the host while a graph runs: a graph's events cannot be asked for, and what it
** writes to pinned memory can be read.
*/
#ifndef MS_KERNELS_CUDA_MARK_H
#define MS_KERNELS_CUDA_MARK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* *pinned = *value when the stream comes here. pinned: of the host; value: of the device. */
int ms_cuda_mark(int64_t *pinned, const int64_t *value, void *stream);

#ifdef __cplusplus
}
#endif

#endif
