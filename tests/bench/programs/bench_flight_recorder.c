/* bench_flight_recorder.c - what the flight recorder costs: the records of a collective, the mark of a kernel, an
 * activity (a phase, a meeting).
 *
 * One JSON line a figure: {"name", "ns"}; nanoseconds each, the best of many rounds.
 */
#include <stdio.h>
#include <sys/mman.h>

#include "comm/recorder/flight_recorder.h"

enum { TIMES = 10000, ROUNDS = 50 };

static void collectives(ms_recorder *recorder) {
  ms_recorder_ring *ring = ms_recorder_ring_of(recorder, MS_RECORDER_GROUP);
  for (uint64_t i = 1; i <= TIMES; i++) {
    ms_recorder_entered(recorder, ring, i, 1, 2, 4096);
    ms_recorder_target(ring, 3 * i + 1);
    ms_recorder_target(ring, 3 * i + 3);
    ms_recorder_met(ring);
    ms_recorder_left(ring);
  }
}

static void kernels(ms_recorder *recorder) {
  for (int i = 0; i < TIMES; i++) ms_recorder_at(recorder, (uint32_t)i, 1e-6 * i);
}

static void activities(ms_recorder *recorder) {
  for (int i = 0; i < TIMES; i++) {
    ms_recorder_enter(recorder, 3);
    ms_recorder_leave(recorder, 0);
  }
}

static void measure(ms_recorder *recorder, const char *name, void (*body)(ms_recorder *)) {
  double best = 1e9;
  for (int round = 0; round < ROUNDS; round++) {
    double began = ms_clock();
    body(recorder);
    double seconds = ms_clock() - began;
    if (seconds < best) best = seconds;
  }
  printf("{\"name\": \"flight_recorder/%s\", \"ns\": %.2f}\n", name, 1e9 * best / TIMES);
}

int main(void) {
  ms_recorder *recorder = mmap(NULL, sizeof *recorder, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (recorder == MAP_FAILED) {
    perror("bench_flight_recorder: mmap");
    return 3;
  }
  measure(recorder, "collective", collectives);
  measure(recorder, "kernel", kernels);
  measure(recorder, "activity", activities);
  return 0;
}
