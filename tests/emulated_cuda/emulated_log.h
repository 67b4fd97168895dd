/* emulated_log.h - logs the work that the host gives to the device, in order, for tests that count launches or check
 * what orders two streams.
 *
 * With MOONSHARD_EMULATE_LOG=FOLDER every process writes FOLDER/PID with the lines
 *
 *   work STREAM NAME [r|w ADDRESS BYTES]...   a kernel, copy or collective, with what it reads and writes if known
 *   record STREAM EVENT
 *   wait STREAM EVENT
 *   stream STREAM PRIORITY                    a new stream
 *   product STREAM PROCESSORS                 a product of cuBLASLt that may use only so many multiprocessors
 *   communicator RANKS BLOCKS                 a new one of NCCL, or one that such a communicator is split into, and the
 *                                             most thread blocks of its collectives
 *
 * Streams and events are numbers. Captured work is not logged, but for products; the launch of a graph is one piece of
 * work.
 */
#ifndef EMULATED_LOG_H
#define EMULATED_LOG_H

#include "cuda_runtime_api.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef struct emulated_range {
  char kind; /* 'r': read, 'w': written */
  const void *at;
  size_t bytes;
} emulated_range;

/* These do nothing unless MOONSHARD_EMULATE_LOG is set. */
void emulated_log_work(cudaStream_t stream, const char *name, int ranges, const emulated_range *range);
void emulated_log_event(const char *what, cudaStream_t stream, cudaEvent_t event);
void emulated_log_product(cudaStream_t stream, int processors);
void emulated_log_communicator(int ranks, int blocks);
void emulated_log_stream(cudaStream_t stream, int priority);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop

#endif
