/* random_rounding.h - stochastic rounding to bf16 (Gupta et al. 2015). With the neighbours lo <= |x| <= hi in bf16, the
 * probability of hi is (|x| - lo) / (hi - lo).
 */
#ifndef MS_KERNELS_CPU_RANDOM_ROUNDING_H
#define MS_KERNELS_CPU_RANDOM_ROUNDING_H

#include "base/numbers/bf16.h"
#include "kernels/cpu/block.h"
#include "kernels/cpu/elementwise/draw.h"

/* Elements for which words are drawn at once. */
enum { MS_ROUNDED_AT_ONCE = MS_BLOCK - 4 };

/* Adds 16 random bits below the bits that bf16 keeps, then truncates. Infinity and NaN are kept. */
MS_INLINE ms_bf16 ms_round_at_random(float x, uint32_t random) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint32_t added = (bits & 0x7f800000u) == 0x7f800000u ? bits | (bits & 0xffffu ? 0x400000u : 0) : bits + random;
  return (ms_bf16)(added >> 16);
}

/* The words of the elements of a chunk from `at` on, which are in `drawn` [MS_BLOCK]: of the key (i1, updates), and of
 * element i2 + at of the parameter on. Philox gives them in groups of four elements, of which a chunk can begin inside
 * one. */
MS_INLINE const uint32_t *ms_rounding_words(const ms_kernel_call *call, int64_t at, uint32_t *drawn) {
  const int64_t first = call->attrs.update.first + at;
  const uint64_t updates = (uint64_t)((const float *)call->in_data[2])[0];
  ms_pick_draw()((uint64_t)call->attrs.update.stream, updates, (uint64_t)first / 4, drawn);
  return drawn + first % 4;
}

#endif
