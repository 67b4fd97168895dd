/* slice.h - divides n elements among ranks that share the work on them: equal slices of whole cache lines, so that no
 * two ranks write to the same line of an aligned array. The last slices are shorter, or empty. */
#ifndef MS_BASE_SLICE_H
#define MS_BASE_SLICE_H

#include <stdint.h>

enum { MS_SLICE_ELEMENTS = 64 }; /* slices begin at multiples of it: at least one 64-byte line for every dtype */

/* Elements of the longest slice. */
static inline int64_t ms_slice_longest(int64_t n, int ranks) {
  int64_t share = (n + ranks - 1) / ranks;
  share = (share + MS_SLICE_ELEMENTS - 1) / MS_SLICE_ELEMENTS * MS_SLICE_ELEMENTS;
  return share < n ? share : n;
}

/* The slice of one rank: returns its number of elements; *first is its first element. */
static inline int64_t ms_slice(int64_t n, int ranks, int rank, int64_t *first) {
  const int64_t share = ms_slice_longest(n, ranks);
  *first = share * rank < n ? share * rank : n;
  return n - *first < share ? n - *first : share;
}

#endif
