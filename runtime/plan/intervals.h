/* intervals.h - ranges of bytes cut into intervals, so that two ranges share bytes exactly where they share an
** interval. */
#ifndef MS_PLAN_INTERVALS_H
#define MS_PLAN_INTERVALS_H

#include <stdint.h>

typedef struct ms_range {
  int64_t begin, end; /* 0 <= begin < end */
} ms_range;

/* Cuts at both ends of every range. Then begin and end are no longer bytes but numbers of intervals, which count up
** with the bytes: the range's first, and the one behind its last. *byte: where each begins, the caller's to free. */
int ms_cut_intervals(ms_range *range, int n, int64_t **byte, int *intervals);

#endif
