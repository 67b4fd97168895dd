/* stream.c - streams, events, copies and graphs: a thin layer over CUDA. */
#include "device/cuda/cuda.h"

static cudaStream_t stream_of(ms_device_stream *stream) { return (cudaStream_t)(void *)stream; }

static cudaEvent_t event_of(ms_device_event *event) { return (cudaEvent_t)(void *)event; }

int ms_cuda_stream_open(ms_device *device, int urgent, ms_device_stream **stream) {
  int least, greatest;
  cudaStream_t made;
  MS_TRY(ms_cuda_attach(device));
  MS_TRY(MS_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest)));
  MS_TRY(MS_CUDA(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, urgent ? greatest : least)));
  atomic_fetch_add(&ms_cuda_totals.allocations, 1);
  *stream = (ms_device_stream *)(void *)made;
  return MS_OK;
}

void ms_cuda_stream_close(ms_device *device, ms_device_stream *stream) {
  (void)device;
  ms_cuda_ignore(cudaStreamDestroy(stream_of(stream)));
}

int ms_cuda_event_open(ms_device *device, int timed, ms_device_event **event) {
  cudaEvent_t made;
  MS_TRY(ms_cuda_attach(device));
  MS_TRY(MS_CUDA(cudaEventCreateWithFlags(&made, timed ? cudaEventDefault : cudaEventDisableTiming)));
  atomic_fetch_add(&ms_cuda_totals.allocations, 1);
  *event = (ms_device_event *)(void *)made;
  return MS_OK;
}

void ms_cuda_event_close(ms_device *device, ms_device_event *event) {
  (void)device;
  ms_cuda_ignore(cudaEventDestroy(event_of(event)));
}

int ms_cuda_record(ms_device *device, ms_device_event *event, ms_device_stream *stream) {
  (void)device;
  return MS_CUDA(cudaEventRecord(event_of(event), stream_of(stream)));
}

int ms_cuda_wait(ms_device *device, ms_device_stream *stream, ms_device_event *event) {
  (void)device;
  return MS_CUDA(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0));
}

int ms_cuda_query(ms_device *device, ms_device_event *event, int *done) {
  (void)device;
  cudaError_t error = cudaEventQuery(event_of(event));
  *done = error == cudaSuccess;
  if (error == cudaErrorNotReady) {
    ms_cuda_ignore(cudaGetLastError());
    return MS_OK;
  }
  return ms_cuda_check(error, "cudaEventQuery", __FILE__, __LINE__);
}

int ms_cuda_elapsed(ms_device *device, ms_device_event *from, ms_device_event *to, double *seconds) {
  (void)device;
  float milliseconds;
  MS_TRY(MS_CUDA(cudaEventElapsedTime(&milliseconds, event_of(from), event_of(to))));
  *seconds = 1e-3 * (double)milliseconds;
  return MS_OK;
}

int ms_cuda_copy_in(ms_device *device, ms_device_stream *stream, void *at, const void *pinned, int64_t bytes) {
  (void)device;
  return MS_CUDA(cudaMemcpyAsync(at, pinned, (size_t)bytes, cudaMemcpyHostToDevice, stream_of(stream)));
}

int ms_cuda_copy_out(ms_device *device, ms_device_stream *stream, void *pinned, const void *at, int64_t bytes) {
  (void)device;
  return MS_CUDA(cudaMemcpyAsync(pinned, at, (size_t)bytes, cudaMemcpyDeviceToHost, stream_of(stream)));
}

int ms_cuda_copy_within(ms_device *device, ms_device_stream *stream, void *to, const void *from, int64_t bytes) {
  (void)device;
  return MS_CUDA(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToDevice, stream_of(stream)));
}

int ms_cuda_move_on(ms_device *device, ms_device_stream *stream, int moves, const ms_move *move) {
  (void)device;
  return ms_cuda_move(move, moves, stream);
}

/* ---- graphs ---- */

int ms_cuda_mark_on(ms_device *device, ms_device_stream *stream, int64_t *pinned, const int64_t *value) {
  (void)device;
  return ms_cuda_mark(pinned, value, stream);
}

/* Thread-local mode: other threads of the process can continue to use the device. */
int ms_cuda_capture_begin(ms_device *device, ms_device_stream *stream) {
  (void)device;
  return MS_CUDA(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal));
}

int ms_cuda_capture_end(ms_device *device, ms_device_stream *stream, ms_device_graph **graph) {
  cudaGraph_t captured = NULL;
  cudaGraphExec_t made;
  (void)device;
  cudaError_t error = cudaStreamEndCapture(stream_of(stream), &captured);
  if (!graph) {
    ms_cuda_ignore(error == cudaSuccess ? cudaGraphDestroy(captured) : cudaGetLastError());
    return MS_OK;
  }
  MS_TRY(ms_cuda_check(error, "cudaStreamEndCapture", __FILE__, __LINE__));
  int rc = MS_CUDA(cudaGraphInstantiate(&made, captured, 0));
  ms_cuda_ignore(cudaGraphDestroy(captured));
  if (rc) return rc;
  atomic_fetch_add(&ms_cuda_totals.allocations, 1);
  *graph = (ms_device_graph *)(void *)made;
  return MS_OK;
}

int ms_cuda_graph_run(ms_device *device, ms_device_graph *graph, ms_device_stream *stream) {
  (void)device;
  return MS_CUDA(cudaGraphLaunch((cudaGraphExec_t)(void *)graph, stream_of(stream)));
}

void ms_cuda_graph_close(ms_device *device, ms_device_graph *graph) {
  (void)device;
  ms_cuda_ignore(cudaGraphExecDestroy((cudaGraphExec_t)(void *)graph));
}
