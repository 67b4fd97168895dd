/* philox.h - a counter-based random generator: element i of stream s with seed k is a pure function of (k, s, i), so
 * any rank can draw any part of a tensor. Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2,
 * 3", SC 2011. */
#ifndef MS_BASE_PHILOX_H
#define MS_BASE_PHILOX_H

#include <stdint.h>

/* Four 32-bit words for the counter (block, stream) and the key `seed`. */
void ms_philox4x32(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4]);
/* out: [count]; out[i] is element first + i, standard normal (Box-Muller) or uniform in [0,1). */
void ms_philox_normal(uint64_t seed, uint64_t stream, int64_t first, int64_t count, float *out);
void ms_philox_uniform(uint64_t seed, uint64_t stream, int64_t first, int64_t count, float *out);

#endif
