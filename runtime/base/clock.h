/* clock.h - monotonic seconds, cheap enough to call around every instruction. */
#ifndef MS_BASE_CLOCK_H
#define MS_BASE_CLOCK_H

#include <time.h>

static inline double ms_clock(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
