/* stand_in.h - the function of libstand_in.so. */
#ifndef MS_TESTS_GPU_STAND_IN_H
#define MS_TESTS_GPU_STAND_IN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueues a kernel of so many blocks that copies `bytes` bytes of device memory `rounds` times. Returns CUDA's error,
 * or 0. */
__attribute__((visibility("default"))) int ms_stand_in(void *to, const void *from, int64_t bytes, int blocks,
                                                       int rounds, void *stream);

#ifdef __cplusplus
}
#endif

#endif
