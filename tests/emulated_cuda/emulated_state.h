/* emulated_state.h - shared by emulated_runtime.cpp and emulated_stream.cpp. */
#ifndef EMULATED_STATE_H
#define EMULATED_STATE_H

#include <atomic>
#include <functional>

#include "emulated_runtime.h"

namespace emulated {

/* The first error of asynchronous work; every later call returns it. */
extern std::atomic<int> device_error;
extern thread_local cudaError_t last_error;
extern std::atomic<long long> streams_alive, events_alive, graphs_alive;

/* Stores an error for cudaGetLastError and returns it; on success, returns the device's error if there is one. */
cudaError_t finish(cudaError_t error);
/* Whether the stream's work is recorded into a graph. */
bool is_captured(cudaStream_t stream);
/* Enqueues work on a stream, or adds it to the graph that captures the stream. */
cudaError_t give(cudaStream_t stream, std::function<cudaError_t()> work);
/* Waits until all streams are idle. */
void drain_all();
/* Checks that both sides of a copy are in the memory that its kind names and, if it is asynchronous, that its host
 * memory is pinned. */
cudaError_t check_copy(const void *to, const void *from, size_t bytes, cudaMemcpyKind kind, bool asynchronous);
/* Returns an error for calls that wait, allocate or use the default stream while the calling thread captures; the
 * capture then becomes invalid. */
cudaError_t check_capture(const char *function);
/* Checks that the memory to set is inside one allocation of the device. */
cudaError_t check_set(const void *to, size_t bytes);

} // namespace emulated

#endif
