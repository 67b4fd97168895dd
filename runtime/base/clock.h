/* clock.h - time, and what a wait needs to know: monotonic seconds, cheap enough to read around every instruction; the
 * scale of fixed waits; whether other processes compete for this process's cores. A waiting thread spins as long as it
 * has its core to itself, and otherwise sleeps at once, because spinning would keep the core from the thread it waits
 * for.
 */
#ifndef MS_BASE_CLOCK_H
#define MS_BASE_CLOCK_H

#include <time.h>

/* Factor on fixed waits that no caller can configure, such as the launcher's grace periods. 1 by default; tests set
 * it before they start the code that waits. */
extern double ms_wait_scale;

static inline double ms_clock(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* 1 if the system has recently preempted this process's threads, and for a while afterwards. Takes a few nanoseconds;
 * any thread can call it. */
int ms_crowded(void);

/* Pauses between two polls of a spin loop, which gives the core's other hardware thread more resources. */
static inline void ms_relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

#endif
