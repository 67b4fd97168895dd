/* inject_delay.h - delays put into a step on purpose, to see that nothing but time depends on who is late. */
#ifndef MS_EXEC_INJECT_DELAY_H
#define MS_EXEC_INJECT_DELAY_H

#include "plan/plan.h"

/* Seconds. All zero: none. */
typedef struct ms_delays {
  double before[MS_STREAMS]; /* a collective of that stream starts */
  double forward;            /* after forward, before the first kernel of backward */
  double update;             /* before the optimizer */
  int any;
} ms_delays;

/* What ms_inject_delay asked for on this rank. */
void ms_delays_get(int rank, ms_delays *delays);
void ms_delay_sleep(double seconds);

#endif
