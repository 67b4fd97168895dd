/* clock.c - the scale of fixed waits, and competition for cores: it counts involuntary context switches, because a
 * process that has its cores to itself has almost none, one that shares them has one every few milliseconds.
 */
#include "base/clock.h"

#include <stdatomic.h>
#include <sys/resource.h>

double ms_wait_scale = 1;

/* Seconds between two samples; switches between samples that count as competition; seconds for which that result is
 * used. */
static const double LOOK_SECONDS = 0.02, BELIEF_SECONDS = 0.2;
enum { SWITCHES = 2 };

static _Atomic double next_look, crowded_until;
static _Atomic long switches_seen;

int ms_crowded(void) {
  const double now = ms_clock();
  double look = atomic_load_explicit(&next_look, memory_order_relaxed);
  if (now >= look && atomic_compare_exchange_strong(&next_look, &look, now + LOOK_SECONDS)) {
    struct rusage usage;
    if (!getrusage(RUSAGE_SELF, &usage)) {
      const long before = atomic_exchange(&switches_seen, usage.ru_nivcsw);
      if (look > 0 && usage.ru_nivcsw - before >= SWITCHES) atomic_store(&crowded_until, now + BELIEF_SECONDS);
    }
  }
  return now < atomic_load_explicit(&crowded_until, memory_order_relaxed);
}
