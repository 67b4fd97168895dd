/* attention_cap.h - capped scores: c tanh(s / c), in place of s. Gemma 2 caps them, so that none outweighs all others
 * by more than e^2c. */
#ifndef MS_KERNELS_CPU_ATTENTION_CAP_H
#define MS_KERNELS_CPU_ATTENTION_CAP_H

#include "kernels/cpu/simd.h"

#define MS_LN_2 0.69314718055994530942

/* x [n] = cap tanh(factor x) */
static inline void ms_cap_scores(float *restrict x, int64_t n, float factor, float cap) {
  for (int64_t i = 0; i < n; i++) x[i] = cap * ms_tanh(factor * x[i]);
}

#endif
