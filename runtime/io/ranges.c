/* ranges.c - ranges of bytes. Sequential writes form one range, so the list is short. */
#include "io/ranges.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

/* The index of the first range that ends at or after `begin`. */
static int find(const ms_ranges *ranges, int64_t begin) {
  int low = 0, high = ranges->n;
  while (low < high) {
    int middle = low + (high - low) / 2;
    if (ranges->range[middle].end < begin) low = middle + 1;
    else high = middle;
  }
  return low;
}

static void remove_at(ms_ranges *ranges, int i) {
  ranges->n--;
  memmove(&ranges->range[i], &ranges->range[i + 1], (size_t)(ranges->n - i) * sizeof *ranges->range);
}

int ms_ranges_add(ms_ranges *ranges, int64_t begin, int64_t end, int *taken) {
  int i = find(ranges, begin);
  int joins_left = i < ranges->n && ranges->range[i].end == begin, right = joins_left ? i + 1 : i;
  *taken = right < ranges->n && ranges->range[right].begin < end;
  if (*taken) return MS_OK;
  int joins_right = right < ranges->n && ranges->range[right].begin == end;
  if (joins_left && joins_right) {
    ranges->range[i].end = ranges->range[right].end;
    remove_at(ranges, right);
  } else if (joins_left) {
    ranges->range[i].end = end;
  } else if (joins_right) {
    ranges->range[right].begin = begin;
  } else {
    MS_TRY(ms_grow((void **)&ranges->range, &ranges->capacity, ranges->n + 1, sizeof *ranges->range));
    memmove(&ranges->range[i + 1], &ranges->range[i], (size_t)(ranges->n - i) * sizeof *ranges->range);
    ranges->range[i] = (ms_range){begin, end};
    ranges->n++;
  }
  return MS_OK;
}

int ms_ranges_gap(const ms_ranges *ranges, int64_t end, ms_range *gap) {
  int from_start = ranges->n && !ranges->range[0].begin;
  int next = from_start ? 1 : 0;
  gap->begin = from_start ? ranges->range[0].end : 0;
  gap->end = next < ranges->n ? ranges->range[next].begin : end;
  return gap->begin < end;
}

void ms_ranges_free(ms_ranges *ranges) {
  free(ranges->range);
  *ranges = (ms_ranges){0};
}
