/* bench_flight_recorder.c - what the ledger costs: the records of a collective, the mark of a kernel, an activity (a phase, a meeting).
**
** One JSON line a figure: {"name", "ns"}; nanoseconds each, the best of many rounds.
*/
#include <stdio.h>
#include <sys/mman.h>

#include "comm/recorder/flight_recorder.h"

enum { TIMES = 10000, ROUNDS = 50 };

static void collectives(ms_ledger *ledger) {
  ms_ledger_ring *ring = ms_ledger_ring_of(ledger, MS_LEDGER_GROUP);
  for (uint64_t i = 1; i <= TIMES; i++) {
    ms_ledger_entered(ledger, ring, i, 1, 2, 4096);
    ms_ledger_target(ring, 3 * i + 1);
    ms_ledger_target(ring, 3 * i + 3);
    ms_ledger_met(ring);
    ms_ledger_left(ring);
  }
}

static void kernels(ms_ledger *ledger) {
  for (int i = 0; i < TIMES; i++) ms_ledger_at(ledger, (uint32_t)i, 1e-6 * i);
}

static void activities(ms_ledger *ledger) {
  for (int i = 0; i < TIMES; i++) {
    ms_ledger_enter(ledger, 3);
    ms_ledger_leave(ledger, 0);
  }
}

static void measure(ms_ledger *ledger, const char *name, void (*body)(ms_ledger *)) {
  double best = 1e9;
  for (int round = 0; round < ROUNDS; round++) {
    double began = ms_clock();
    body(ledger);
    double seconds = ms_clock() - began;
    if (seconds < best) best = seconds;
  }
  printf("{\"name\": \"ledger/%s\", \"ns\": %.2f}\n", name, 1e9 * best / TIMES);
}

int main(void) {
  ms_ledger *ledger = mmap(NULL, sizeof *ledger, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (ledger == MAP_FAILED) {
    perror("bench_flight_recorder: mmap");
    return 3;
  }
  measure(ledger, "collective", collectives);
  measure(ledger, "kernel", kernels);
  measure(ledger, "activity", activities);
  return 0;
}
