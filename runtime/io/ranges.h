/* ranges.h - which bytes of a file were written: a sorted list of ranges that do not touch. */
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

/* Adds [begin, end), which must not be empty. *taken: a byte of it was there already, and nothing was added. */
int ms_ranges_add(ms_ranges *ranges, int64_t begin, int64_t end, int *taken);
/* The first byte in [0, end) that is not there, and where that gap ends; 0 when there is none. */
int ms_ranges_gap(const ms_ranges *ranges, int64_t end, ms_range *gap);
void ms_ranges_free(ms_ranges *ranges);

#endif
