/* emulated_cuda.h - lets this process, and those that it forks, take emulated libraries for CUDA's
 * (tests/emulated_cuda). */
#ifndef MS_TESTS_EMULATED_CUDA_H
#define MS_TESTS_EMULATED_CUDA_H

/* streams: "threads", or "inline". The libraries are in the folder `emulated` next to the test program. */
void emulate_cuda(const char *streams);
/* The same with the kernels of CUDA, emulated, and the emulated cuBLASLt, whose algorithms are not timed. */
void emulate_cuda_kernels(const char *streams);
/* From here on, as MOONSHARD_EMULATE_FAIL: calls are counted anew. */
void emulate_failure(const char *spec);
/* What of the device was not given back: "2 allocations, ..."; NULL: nothing. */
const char *emulated_left(void);

#endif
