/* emulated_log.h - what the host gave to the device, line by line in the order in which it gave it, for tests that
 * count launches or ask what orders two streams.
 *
 * MOONSHARD_EMULATE_LOG=FOLDER: every process writes FOLDER/PID. Its lines are
 *
 *   work STREAM NAME [r|w ADDRESS BYTES]...   a kernel, a copy or a collective, with what it reads and writes where
 * that is known record STREAM EVENT wait STREAM EVENT stream STREAM PRIORITY                    one that is made
 *
 * Streams and events are numbers. What is captured is not logged; a graph that is launched is one piece of work.
 */
#ifndef EMULATED_LOG_H
#define EMULATED_LOG_H

#include "cuda_runtime_api.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef struct emulated_range {
  char kind; /* 'r': it is read, 'w': written */
  const void *at;
  size_t bytes;
} emulated_range;

/* All do nothing unless a log is asked for. */
void emulated_log_work(cudaStream_t stream, const char *name, int ranges, const emulated_range *range);
void emulated_log_event(const char *what, cudaStream_t stream, cudaEvent_t event);
void emulated_log_stream(cudaStream_t stream, int priority);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop

#endif
