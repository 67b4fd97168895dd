/* emulated_log.cpp - writes the log of device work; see emulated_log.h. */
#include "emulated_log.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <unistd.h>

#include "emulated_state.h"

namespace {

std::mutex lock;
FILE *file;
int owner; /* the process that opened the file: a forked child opens its own */
std::map<const void *, int> streams, events;

/* The caller holds the lock. */
FILE *log_of_process() {
  const char *folder = getenv("MOONSHARD_EMULATE_LOG");
  if (!folder) return nullptr;
  if (owner == getpid()) return file;
  owner = getpid();
  file = fopen((std::string(folder) + "/" + std::to_string(owner)).c_str(), "w");
  if (file) setvbuf(file, nullptr, _IOLBF, BUFSIZ);
  else perror("emulated_cuda: MOONSHARD_EMULATE_LOG");
  return file;
}

int number_of(std::map<const void *, int> &numbers, const void *of) {
  return numbers.emplace(of, static_cast<int>(numbers.size())).first->second;
}

} // namespace

extern "C" {

void emulated_log_work(cudaStream_t stream, const char *name, int ranges, const emulated_range *range) {
  std::lock_guard<std::mutex> guard(lock);
  FILE *out = emulated::is_captured(stream) ? nullptr : log_of_process();
  if (!out) return;
  std::string line = "work " + std::to_string(number_of(streams, stream)) + " " + name;
  for (int i = 0; i < ranges; i++) {
    if (!range[i].at || !range[i].bytes) continue;
    char text[64];
    snprintf(text, sizeof text, " %c %zu %zu", range[i].kind, reinterpret_cast<size_t>(range[i].at), range[i].bytes);
    line += text;
  }
  fprintf(out, "%s\n", line.c_str());
}

void emulated_log_event(const char *what, cudaStream_t stream, cudaEvent_t event) {
  std::lock_guard<std::mutex> guard(lock);
  FILE *out = emulated::is_captured(stream) ? nullptr : log_of_process();
  if (out) fprintf(out, "%s %d %d\n", what, number_of(streams, stream), number_of(events, event));
}

void emulated_log_product(cudaStream_t stream, int processors) {
  std::lock_guard<std::mutex> guard(lock);
  FILE *out = log_of_process();
  if (out) fprintf(out, "product %d %d\n", number_of(streams, stream), processors);
}

void emulated_log_communicator(int ranks, int blocks) {
  std::lock_guard<std::mutex> guard(lock);
  FILE *out = log_of_process();
  if (out) fprintf(out, "communicator %d %d\n", ranks, blocks);
}

void emulated_log_stream(cudaStream_t stream, int priority) {
  std::lock_guard<std::mutex> guard(lock);
  FILE *out = log_of_process();
  if (out) fprintf(out, "stream %d %d\n", number_of(streams, stream), priority);
}

} // extern "C"
