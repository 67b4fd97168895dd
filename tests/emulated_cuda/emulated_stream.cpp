/* emulated_stream.cpp - streams, events and graphs of the emulated runtime. */
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "emulated_log.h"
#include "emulated_state.h"

using emulated::finish;
using Work = std::function<cudaError_t()>;
using Clock = std::chrono::steady_clock;

namespace {

/* For each stream, how much of its work comes before a point. */
using View = std::map<cudaStream_t, size_t>;

/* The captured work of a stream and of those that joined by waiting for it. */
struct Capture {
  cudaStream_t origin;
  std::vector<Work> work;
  std::map<cudaStream_t, View> view; /* the work before each stream's next */
  bool broken = false;
};

/* Owned by the stream and its thread, because the thread can outlive the stream. */
struct Queue {
  std::mutex lock;
  std::condition_variable changed;
  std::deque<Work> work;
  bool busy = false, closed = false;
  unsigned seed = 1;
};

bool threads() {
  const char *mode = getenv("MOONSHARD_EMULATE_STREAMS");
  return mode && !strcmp(mode, "threads");
}

void run(const Work &work) {
  const cudaError_t error = emulated::device_error ? cudaSuccess : work();
  int none = cudaSuccess;
  if (error != cudaSuccess) emulated::device_error.compare_exchange_strong(none, error);
}

void pause(Queue *queue) {
  const char *jitter = getenv("MOONSHARD_EMULATE_JITTER");
  if (jitter) std::this_thread::sleep_for(std::chrono::microseconds(rand_r(&queue->seed) % (atoi(jitter) + 1)));
}

void serve(std::shared_ptr<Queue> queue) {
  std::unique_lock<std::mutex> guard(queue->lock);
  for (;;) {
    queue->changed.wait(guard, [&] { return queue->closed || !queue->work.empty(); });
    if (queue->work.empty()) return;
    Work work = std::move(queue->work.front());
    queue->work.pop_front();
    queue->busy = true;
    guard.unlock();
    pause(queue.get());
    run(work);
    work = nullptr;
    guard.lock();
    queue->busy = false;
    queue->changed.notify_all();
  }
}

void drain(Queue *queue) {
  std::unique_lock<std::mutex> guard(queue->lock);
  queue->changed.wait(guard, [&] { return queue->work.empty() && !queue->busy; });
}

} // namespace

struct CUstream_st {
  std::shared_ptr<Queue> queue = std::make_shared<Queue>();
  std::thread thread;
  std::shared_ptr<Capture> capture;
};

/* How often an event was recorded, and how many of these records streams have passed. */
struct Moments {
  std::mutex lock;
  std::condition_variable changed;
  long long recorded = 0, passed = 0;
  Clock::time_point at;

  /* Waits for the last stream that held the lock. Their order is established inside libstdc++, where a thread sanitizer
   * does not see it. */
  ~Moments() { std::lock_guard<std::mutex> guard(lock); }
};

struct CUevent_st {
  std::shared_ptr<Moments> moments = std::make_shared<Moments>();
  bool timed;
  std::shared_ptr<Capture> capture; /* the capture in which it was recorded, or NULL; view: the work before it */
  View view;
};

struct CUgraph_st {
  std::vector<Work> work;
};

struct CUgraphExec_st {
  std::shared_ptr<std::vector<Work>> work;
};

namespace {

std::mutex alive_lock;
std::set<cudaStream_t> alive;

/* The captures that this thread has begun. */
thread_local std::vector<std::shared_ptr<Capture>> capturing;

cudaError_t enqueue(cudaStream_t stream, Work work) {
  if (!stream || !stream->thread.joinable()) {
    run(work);
    return finish(cudaSuccess);
  }
  std::lock_guard<std::mutex> guard(stream->queue->lock);
  stream->queue->work.push_back(std::move(work));
  stream->queue->changed.notify_all();
  return finish(cudaSuccess);
}

} // namespace

bool emulated::is_captured(cudaStream_t stream) { return stream && stream->capture; }

cudaError_t emulated::check_capture(const char *function) {
  if (capturing.empty()) return cudaSuccess;
  for (const auto &capture : capturing) capture->broken = true;
  fprintf(stderr, "emulated_cuda: %s is called while a stream is captured\n", function);
  return cudaErrorStreamCaptureUnsupported;
}

#define REFUSE_IN_CAPTURE(function)                                \
  do {                                                             \
    const cudaError_t illegal = emulated::check_capture(function); \
    if (illegal != cudaSuccess) return finish(illegal);            \
  } while (0)

cudaError_t emulated::give(cudaStream_t stream, Work work) {
  if (!stream || !stream->capture) return enqueue(stream, std::move(work));
  stream->capture->work.push_back(std::move(work));
  stream->capture->view[stream][stream]++;
  return finish(cudaSuccess);
}

void emulated::drain_all() {
  std::vector<std::shared_ptr<Queue>> queues;
  {
    std::lock_guard<std::mutex> guard(alive_lock);
    for (cudaStream_t stream : alive) queues.push_back(stream->queue);
  }
  for (auto &queue : queues) drain(queue.get());
}

#define FAIL_ON_DEMAND(function) \
  if (emulated_fails(function)) return finish(cudaErrorUnknown)

extern "C" {

cudaError_t emulated_submit(cudaStream_t stream, void (*call)(void *), void *argument, void (*drop)(void *)) {
  std::shared_ptr<void> held(argument, drop);
  return emulated::give(stream, [call, held = std::move(held)] {
    call(held.get());
    return cudaSuccess;
  });
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int, int priority) {
  static std::atomic<unsigned> made;
  FAIL_ON_DEMAND("cudaStreamCreateWithPriority");
  *stream = new CUstream_st;
  (*stream)->queue->seed = ++made;
  if (threads()) (*stream)->thread = std::thread(serve, (*stream)->queue);
  emulated::streams_alive++;
  emulated_log_stream(*stream, priority);
  std::lock_guard<std::mutex> guard(alive_lock);
  alive.insert(*stream);
  return finish(cudaSuccess);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (!stream) return finish(cudaErrorInvalidResourceHandle);
  {
    std::lock_guard<std::mutex> guard(alive_lock);
    alive.erase(stream);
  }
  emulated::streams_alive--;
  bool idle;
  {
    std::lock_guard<std::mutex> guard(stream->queue->lock);
    stream->queue->closed = true;
    idle = stream->queue->work.empty() && !stream->queue->busy;
    stream->queue->changed.notify_all();
  }
  if (stream->thread.joinable()) idle ? stream->thread.join() : stream->thread.detach();
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  FAIL_ON_DEMAND("cudaStreamSynchronize");
  REFUSE_IN_CAPTURE("cudaStreamSynchronize");
  if (stream) drain(stream->queue.get());
  return finish(cudaSuccess);
}

cudaError_t cudaDeviceSynchronize(void) {
  FAIL_ON_DEMAND("cudaDeviceSynchronize");
  REFUSE_IN_CAPTURE("cudaDeviceSynchronize");
  emulated::drain_all();
  return finish(cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  REFUSE_IN_CAPTURE("cudaStreamQuery");
  if (!stream) return finish(cudaSuccess);
  std::lock_guard<std::mutex> guard(stream->queue->lock);
  return finish(stream->queue->work.empty() && !stream->queue->busy ? cudaSuccess : cudaErrorNotReady);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
  FAIL_ON_DEMAND("cudaEventCreateWithFlags");
  *event = new CUevent_st;
  (*event)->timed = !(flags & cudaEventDisableTiming);
  emulated::events_alive++;
  return finish(cudaSuccess);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (!event) return finish(cudaErrorInvalidResourceHandle);
  emulated::events_alive--;
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  FAIL_ON_DEMAND("cudaEventRecord");
  if (!event) return finish(cudaErrorInvalidResourceHandle);
  event->capture = stream ? stream->capture : nullptr;
  if (event->capture) {
    event->view = event->capture->view[stream];
    return finish(cudaSuccess);
  }
  emulated_log_event("record", stream, event);
  std::shared_ptr<Moments> moments = event->moments;
  long long moment;
  {
    std::lock_guard<std::mutex> guard(moments->lock);
    moment = ++moments->recorded;
  }
  return enqueue(stream, [moments, moment] {
    std::lock_guard<std::mutex> guard(moments->lock);
    moments->passed = moment;
    moments->at = Clock::now();
    moments->changed.notify_all();
    return cudaSuccess;
  });
}

/* A stream that waits for a captured event joins the capture, until the origin has waited for it. */
static cudaError_t wait_in_capture(cudaStream_t stream, cudaEvent_t event) {
  if (!event->capture || (stream->capture && stream->capture != event->capture)) {
    stream->capture->broken = true;
    return cudaErrorStreamCaptureIsolation;
  }
  stream->capture = event->capture;
  View &view = stream->capture->view[stream];
  for (const auto &entry : event->view)
    if (entry.second > view[entry.first]) view[entry.first] = entry.second;
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  FAIL_ON_DEMAND("cudaStreamWaitEvent");
  if (!event) return finish(cudaErrorInvalidResourceHandle);
  if (stream->capture || event->capture) return finish(wait_in_capture(stream, event));
  emulated_log_event("wait", stream, event);
  std::shared_ptr<Moments> moments = event->moments;
  long long moment;
  {
    std::lock_guard<std::mutex> guard(moments->lock);
    moment = moments->recorded;
  }
  return enqueue(stream, [moments, moment] {
    std::unique_lock<std::mutex> guard(moments->lock);
    moments->changed.wait(guard, [&] { return moments->passed >= moment; });
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  FAIL_ON_DEMAND("cudaEventQuery");
  REFUSE_IN_CAPTURE("cudaEventQuery");
  if (!event) return finish(cudaErrorInvalidResourceHandle);
  if (event->capture) return finish(cudaErrorCapturedEvent);
  std::lock_guard<std::mutex> guard(event->moments->lock);
  return finish(event->moments->passed == event->moments->recorded ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  FAIL_ON_DEMAND("cudaEventSynchronize");
  REFUSE_IN_CAPTURE("cudaEventSynchronize");
  std::unique_lock<std::mutex> guard(event->moments->lock);
  event->moments->changed.wait(guard, [&] { return event->moments->passed == event->moments->recorded; });
  return finish(cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end) {
  FAIL_ON_DEMAND("cudaEventElapsedTime");
  if (!begin || !end || !begin->timed || !end->timed) return finish(cudaErrorInvalidResourceHandle);
  std::unique_lock<std::mutex> first(begin->moments->lock, std::defer_lock);
  std::unique_lock<std::mutex> second(end->moments->lock, std::defer_lock);
  std::lock(first, second);
  if (begin->moments->passed != begin->moments->recorded || end->moments->passed != end->moments->recorded)
    return finish(cudaErrorNotReady);
  *ms = std::chrono::duration<float, std::milli>(end->moments->at - begin->moments->at).count();
  return finish(cudaSuccess);
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode) {
  FAIL_ON_DEMAND("cudaStreamBeginCapture");
  if (!stream || stream->capture) return finish(cudaErrorStreamCaptureUnsupported);
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream;
  capturing.push_back(stream->capture);
  return finish(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  *graph = nullptr;
  std::shared_ptr<Capture> capture = stream->capture;
  if (!capture || capture->origin != stream) return finish(cudaErrorStreamCaptureUnsupported);
  bool joined = true;
  for (auto &entry : capture->view) {
    entry.first->capture = nullptr;
    if (capture->view[stream][entry.first] != entry.second[entry.first]) joined = false;
  }
  stream->capture = nullptr;
  capturing.erase(std::remove(capturing.begin(), capturing.end(), capture), capturing.end());
  FAIL_ON_DEMAND("cudaStreamEndCapture");
  if (capture->broken) return finish(cudaErrorStreamCaptureIsolation);
  if (!joined) return finish(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st{std::move(capture->work)};
  emulated::graphs_alive++;
  return finish(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long) {
  FAIL_ON_DEMAND("cudaGraphInstantiate");
  *made = new CUgraphExec_st{std::make_shared<std::vector<Work>>(graph->work)};
  emulated::graphs_alive++;
  return finish(cudaSuccess);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  emulated::graphs_alive--;
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  emulated::graphs_alive--;
  delete graph;
  return cudaSuccess;
}

/* Runs the work in the order of capture, one of the orders that its events allow. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  FAIL_ON_DEMAND("cudaGraphLaunch");
  std::shared_ptr<std::vector<Work>> work = graph->work;
  emulated_log_work(stream, "graph", 0, nullptr);
  return emulated::give(stream, [work] {
    for (const Work &piece : *work) {
      const cudaError_t error = piece();
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  });
}

} // extern "C"
