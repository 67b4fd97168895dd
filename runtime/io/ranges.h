/* ranges.h - which bytes of a file have been written: a sorted list of ranges that do not touch. */
#ifndef MS_IO_RANGES_H
#define MS_IO_RANGES_H

#include <stdint.h>

typedef struct ms_range {
  int64_t begin, end;
} ms_range;

typedef struct ms_ranges {
  ms_range *range;
  int n, capacity;
} ms_ranges;

/* Adds [begin, end), which must not be empty. *taken = 1: it overlaps a range in the list, and nothing was added. */
int ms_ranges_add(ms_ranges *ranges, int64_t begin, int64_t end, int *taken);
/* Finds the first gap in [0, end); returns 0 if there is none. */
int ms_ranges_gap(const ms_ranges *ranges, int64_t end, ms_range *gap);
void ms_ranges_free(ms_ranges *ranges);

#endif
