/* clock.h - monotonic seconds, cheap enough to call around every instruction; and the scale of fixed waits. */
#ifndef MS_BASE_CLOCK_H
#define MS_BASE_CLOCK_H

#include <time.h>

/* Waits whose seconds no caller chooses, such as the launcher's grace times, last this many times as long: 1, but for tests,
** which set it before they start what waits. */
extern double ms_wait_scale;

static inline double ms_clock(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
