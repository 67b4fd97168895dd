/* intervals.c - cuts ranges at the ends of all ranges: sorts the ends, and numbers the intervals that begin there. */
#include "plan/layout/intervals.h"

#include <stdlib.h>

#include "base/error.h"

/* Ends of ranges, each packed into one number: the byte offset in the high bits, and in the `low` low bits which end
 * it is: 2i for the beginning of range i, 2i + 1 for its end. */
typedef struct ends {
  uint64_t *list, *space;
  int n, low;
} ends;

/* Radix sort by the byte offsets, eleven bits at a time from the lowest, alternating between list and space. */
static void sort_ends(ends *e) {
  enum { BITS = 11, DIGITS = 1 << BITS };
  uint64_t all = 0;
  for (int i = 0; i < e->n; i++) all |= e->list[i];
  for (int shift = e->low; shift < 64 && all >> shift; shift += BITS) {
    int count[DIGITS + 1] = {0};
    for (int i = 0; i < e->n; i++) count[1 + (e->list[i] >> shift & (DIGITS - 1))]++;
    for (int d = 0; d < DIGITS; d++) count[d + 1] += count[d];
    for (int i = 0; i < e->n; i++) e->space[count[e->list[i] >> shift & (DIGITS - 1)]++] = e->list[i];
    uint64_t *sorted = e->space;
    e->space = e->list;
    e->list = sorted;
  }
}

static int fill(ends *e, const ms_range *range, int n) {
  while (e->n > 1 << e->low) e->low++;
  for (int i = 0; i < n; i++) {
    if (range[i].end >> (63 - e->low))
      return MS_FAIL(MS_EUNSUPPORTED, "a plan of %d accesses cannot be verified beyond byte %lld", n,
                     (long long)(INT64_MAX >> e->low));
    e->list[2 * i] = (uint64_t)range[i].begin << e->low | (uint64_t)(2 * i);
    e->list[2 * i + 1] = (uint64_t)range[i].end << e->low | (uint64_t)(2 * i + 1);
  }
  return MS_OK;
}

static int count_intervals(const ends *e) {
  int intervals = e->n > 0;
  for (int i = 1; i < e->n; i++) intervals += e->list[i] >> e->low != e->list[i - 1] >> e->low;
  return intervals;
}

static void number_intervals(const ends *e, ms_range *range, int64_t *byte) {
  int interval = -1;
  for (int i = 0; i < e->n; i++) {
    const int64_t at = (int64_t)(e->list[i] >> e->low);
    const uint64_t end = e->list[i] & ((UINT64_C(1) << e->low) - 1);
    if (interval < 0 || at != byte[interval]) byte[++interval] = at;
    if (end % 2) range[end / 2].end = interval;
    else range[end / 2].begin = interval;
  }
}

int ms_cut_intervals(ms_range *range, int n, int64_t **byte, int *intervals) {
  ends e = {.n = 2 * n};
  int capacity = 0, rc;
  uint64_t *room = NULL;
  *byte = NULL;
  MS_TRY(ms_grow((void **)&room, &capacity, 4 * n, sizeof *room));
  e.list = room;
  e.space = room + 2 * n;
  MS_GOTO(fill(&e, range, n));
  sort_ends(&e);
  *intervals = count_intervals(&e);
  *byte = ms_calloc(*intervals, sizeof **byte);
  if (*byte) number_intervals(&e, range, *byte);
  else rc = MS_ENOMEM;
fail:
  free(room);
  return rc;
}
