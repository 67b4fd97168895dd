/* initial_values.h - initial values: element i of a parameter is a pure function of seed, name, distribution and i. */
#ifndef MS_SHARD_INITIAL_VALUES_H
#define MS_SHARD_INITIAL_VALUES_H

#include "moonshard.h"

/* ms_initial_values without its checks: writes elements [first, first + n) to x. */
void ms_fill_initial_values(uint64_t seed, const char *name, int init, double a, double b, int64_t first, int64_t n,
                            float *x);

#endif
