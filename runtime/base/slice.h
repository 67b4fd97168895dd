/* slice.h - n elements cut among ranks that share the work on them: equal slices of whole cache lines, so that of an array
** that begins on one no two ranks write to the same; the last are shorter, or empty. */
#ifndef MS_BASE_SLICE_H
#define MS_BASE_SLICE_H

#include <stdint.h>

enum { MS_SLICE_ELEMENTS = 64 }; /* slices begin at multiples of it: lines of 64 bytes of every element type */

/* Elements of the longest slice. */
static inline int64_t ms_slice_longest(int64_t n, int ranks) {
  int64_t share = (n + ranks - 1) / ranks;
  share = (share + MS_SLICE_ELEMENTS - 1) / MS_SLICE_ELEMENTS * MS_SLICE_ELEMENTS;
  return share < n ? share : n;
}

/* The slice of `rank` of `ranks`: returns how many elements it has, *first where it begins. */
static inline int64_t ms_slice(int64_t n, int ranks, int rank, int64_t *first) {
  const int64_t share = ms_slice_longest(n, ranks);
  *first = share * rank < n ? share * rank : n;
  return n - *first < share ? n - *first : share;
}

#endif
