/* min.h - the smaller of two counts, sizes or offsets. */
#ifndef MS_BASE_MIN_H
#define MS_BASE_MIN_H

#include <stdint.h>

static inline int64_t ms_min(int64_t a, int64_t b) { return a < b ? a : b; }

#endif
