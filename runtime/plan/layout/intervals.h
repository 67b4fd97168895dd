/* intervals.h - cuts byte ranges into intervals, so that two ranges overlap exactly when they share an interval. */
#ifndef MS_PLAN_INTERVALS_H
#define MS_PLAN_INTERVALS_H

#include <stdint.h>

typedef struct ms_range {
  int64_t begin, end; /* 0 <= begin < end */
} ms_range;

/* Cuts at both ends of every range, then replaces begin and end (bytes) by interval numbers, which increase with the
 * address: the first interval of the range, and the one after its last. *byte: first byte of each interval; the
 * caller frees it. */
int ms_cut_intervals(ms_range *range, int n, int64_t **byte, int *intervals);

#endif
