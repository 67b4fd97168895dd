/* random_rounding.h - stochastic rounding to bf16 (Gupta et al. 2015). With the neighbours lo <= |x| <= hi in bf16, the
 * probability of hi is (|x| - lo) / (hi - lo).
 */
#ifndef MS_KERNELS_CPU_RANDOM_ROUNDING_H
#define MS_KERNELS_CPU_RANDOM_ROUNDING_H

#include "base/bf16.h"
#include "kernels/cpu/block.h"

/* Adds 16 random bits below the bits that bf16 keeps, then truncates. Infinity and NaN are kept. */
MS_INLINE ms_bf16 ms_round_at_random(float x, uint32_t random) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint32_t added = (bits & 0x7f800000u) == 0x7f800000u ? bits | (bits & 0xffffu ? 0x400000u : 0) : bits + random;
  return (ms_bf16)(added >> 16);
}

#endif
