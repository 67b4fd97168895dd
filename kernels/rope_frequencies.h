/* rope_frequencies.h - the rotation frequency of each pair of a head, from which the rope kernels of all devices build
 * their tables.
 *
 * It is computed in single precision and rounded at the same points as in Hugging Face's models, because pretrained
 * weights expect exactly these rotations: at position 100,000 a different rounding turns a pair by a visibly different
 * angle. Angles are position times frequency, also in single precision.
 */
#ifndef MS_KERNELS_ROPE_FREQUENCIES_H
#define MS_KERNELS_ROPE_FREQUENCIES_H

#include "moonshard.h"

#include <math.h>

#ifdef __CUDACC__
  #define MS_ROPE_FUNCTION static inline __host__ __device__
#else
  #define MS_ROPE_FUNCTION static inline
#endif

/* Llama 3.1 (Grattafiori et al. 2024): frequencies with wavelengths above original / low positions are divided by
 * factor, those with wavelengths below original / high are kept, and between the two the result is blended. Equal low
 * and high (Llama 4) leave nothing between. */
MS_ROPE_FUNCTION float ms_rope_scaled(float frequency, float original, float factor, float low, float high) {
  const float wave = 6.28318530717958647692f / frequency;
  if (wave > original / low) return frequency / factor;
  if (wave < original / high || high == low) return frequency;
  const float share = (original / wave - low) / (high - low);
  return (1.0f - share) * frequency / factor + share * frequency;
}

/* The frequency of pair p (0 <= p < half) in radians per position; attrs: those of op rope. */
MS_ROPE_FUNCTION float ms_rope_frequency(const ms_op_attrs *attrs, int64_t p, int64_t half) {
  const float exponent = (float)(2 * p) / (float)(2 * half);
  const float frequency = 1.0f / (float)pow(attrs->rope.theta, (double)exponent);
  if (!attrs->rope.original) return frequency;
  return ms_rope_scaled(frequency, (float)attrs->rope.original, (float)attrs->rope.factor, (float)attrs->rope.low,
                        (float)attrs->rope.high);
}

#endif
