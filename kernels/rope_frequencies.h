/* rope_frequencies.h - how fast each pair of a head turns: what every device's rope kernel makes its table of.
**
** Single precision, rounded where Hugging Face's models round it: at position 100,000 an angle in another precision is
** another rotation, and weights were trained with this one. Angles are position times frequency, in single precision too.
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

/* Llama 3.1 (Grattafiori et al. 2024): a frequency whose wave is longer than original / low positions is divided by factor,
** one whose wave is shorter than original / high stays, and between the two the result is blended. */
MS_ROPE_FUNCTION float ms_rope_scaled(float frequency, float original, float factor, float low, float high) {
  const float wave = 6.28318530717958647692f / frequency;
  if (wave > original / low) return frequency / factor;
  if (wave < original / high) return frequency;
  const float share = (original / wave - low) / (high - low);
  return (1.0f - share) * frequency / factor + share * frequency;
}

/* Of pair p of `half`, in radians a position; attrs: of op rope. */
MS_ROPE_FUNCTION float ms_rope_frequency(const ms_attrs *attrs, int64_t p, int64_t half) {
  const float exponent = (float)(2 * p) / (float)(2 * half);
  const float frequency = 1.0f / (float)pow(attrs->f[0], (double)exponent);
  if (!attrs->i[3]) return frequency;
  return ms_rope_scaled(frequency, (float)attrs->i[3], (float)attrs->f[1], (float)attrs->f[2], (float)attrs->f[3]);
}

#endif
