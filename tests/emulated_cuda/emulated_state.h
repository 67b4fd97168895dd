/* emulated_state.h - between emulated_runtime.cpp and emulated_stream.cpp. */
#ifndef EMULATED_STATE_H
#define EMULATED_STATE_H

#include <atomic>
#include <functional>

#include "emulated_runtime.h"

namespace emulated {

/* Where what went wrong while work was done stays: every later call returns it. */
extern std::atomic<int> device_error;
extern thread_local cudaError_t last_error;
extern std::atomic<long long> streams_alive, events_alive, graphs_alive;

/* Notes an error for cudaGetLastError, and returns it, or the device's. */
cudaError_t finish(cudaError_t error);
/* Whether what a stream is given becomes part of a graph. */
bool is_captured(cudaStream_t stream);
/* Gives work to a stream, or to the graph that captures it. */
cudaError_t give(cudaStream_t stream, std::function<cudaError_t()> work);
/* Waits until all streams have done what they were given. */
void drain_all();
/* Whether both sides of a copy lie where its kind says; and what the host has of one that it does not wait for, in
 * pinned memory. */
cudaError_t check_copy(const void *to, const void *from, size_t bytes, cudaMemcpyKind kind, bool asynchronous);
/* An error for calls that wait, allocate or use the default stream, while the calling thread captures: what it captures
 * is lost then. */
cudaError_t check_capture(const char *function);
/* Whether what is set lies in one allocation of the device's memory. */
cudaError_t check_set(const void *to, size_t bytes);

} // namespace emulated

#endif
