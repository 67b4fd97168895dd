/* inject_delay.h - artificial delays inside a step, for tests that results do not depend on which rank is late. */
#ifndef MS_EXEC_INJECT_DELAY_H
#define MS_EXEC_INJECT_DELAY_H

#include "plan/plan.h"

/* In seconds; 0: no delay. */
typedef struct ms_delays {
  double before[MS_NAMED_STREAMS]; /* before each collective of that stream */
  double forward;                  /* between forward and the first kernel of backward */
  double update;                   /* before the optimizer */
  double update_kernel;            /* before each kernel of the optimizer */
  int any;                         /* at least one is not 0 */
} ms_delays;

/* The delays that ms_inject_delay set for this rank. */
void ms_delays_get(int rank, ms_delays *delays);
/* Sleeps on the calling thread. */
void ms_delay_sleep(double seconds);

#endif
