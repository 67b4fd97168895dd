/* emulated_runtime.h - what the files of the emulated runtime share, and what the emulated NCCL asks of it.
 *
 * One host process is one device. With MOONSHARD_EMULATE_STREAMS=threads every stream is a thread that does in order
 * what it was given, so that whatever a program forgot to wait for shows; MOONSHARD_EMULATE_JITTER=MICROSECONDS lets
 * each piece of work start up to that much later. Otherwise work is done when it is given, before the call returns.
 *
 * MOONSHARD_EMULATE_FAIL="cudaMalloc:3,ncclAllGather:1" lets the third cudaMalloc of the process and the first
 * ncclAllGather fail. MOONSHARD_EMULATE_DEVICES says how many devices there seem to be (8).
 */
#ifndef EMULATED_RUNTIME_H
#define EMULATED_RUNTIME_H

#include "cuda_runtime_api.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* Gives a stream work of any kind. It is freed with `drop` where the stream, or a graph that captured it, is done with
 * it. */
cudaError_t emulated_submit(cudaStream_t stream, void (*run)(void *), void *argument, void (*drop)(void *));
/* 1 when this call of a function is to fail. */
int emulated_fails(const char *function);
/* 1 when so many bytes lie in one allocation of the device's memory. */
int emulated_is_device(const void *data, size_t bytes);
/* Counts calls anew. */
void emulated_forget_calls(void);
/* What was not given back: "2 allocations, ..."; NULL: nothing. */
const char *emulated_left(void);
/* Takes device memory that no allocation has, or gives it back. */
void emulated_take(long long bytes);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop

#endif
