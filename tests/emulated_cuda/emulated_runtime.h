/* emulated_runtime.h - shared by the files of the emulated runtime and used by the emulated NCCL.
 *
 * One host process is one device. With MOONSHARD_EMULATE_STREAMS=threads every stream is a thread that runs its work in
 * order, which reveals missing waits; MOONSHARD_EMULATE_JITTER=MICROSECONDS delays the start of each piece of work by
 * up to that time. By default, work runs when it is enqueued, before the call returns.
 *
 * MOONSHARD_EMULATE_FAIL="cudaMalloc:3,ncclAllGather:1" lets the third cudaMalloc of the process and the first
 * ncclAllGather fail. MOONSHARD_EMULATE_DEVICES sets the number of devices (8).
 */
#ifndef EMULATED_RUNTIME_H
#define EMULATED_RUNTIME_H

#include "cuda_runtime_api.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* Enqueues work of any kind. `drop` frees the argument when the stream, or a graph that captured it, no longer needs
 * it. */
cudaError_t emulated_submit(cudaStream_t stream, void (*run)(void *), void *argument, void (*drop)(void *));
/* Counts a call of a function and returns 1 if it must fail. */
int emulated_fails(const char *function);
/* Returns 1 if the bytes are inside one allocation of the device's memory. */
int emulated_is_device(const void *data, size_t bytes);
/* Resets the counts of calls. */
void emulated_forget_calls(void);
/* Describes what was not freed, such as "2 allocations, ..."; NULL: nothing. */
const char *emulated_left(void);
/* Reserves device memory without an allocation; negative: releases it. */
void emulated_take(long long bytes);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop

#endif
