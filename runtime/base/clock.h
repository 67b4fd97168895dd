/* clock.h - monotonic time in seconds, cheap enough to read around every instruction; and the scale of fixed waits. */
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

#endif
