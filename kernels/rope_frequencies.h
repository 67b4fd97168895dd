/* rope_frequencies.h - how fast each pair of a head turns: what every device's rope kernel makes its table of.
**
** Single precision, rounded where Hugging Face's models round it: at position 100,000 an angle in another precision is
** another rotation, and weights were trained with this one. Angles are position times frequency, in single precision too.
*/
#ifndef MS_KERNELS_ROPE_FREQUENCIES_H
#define MS_KERNELS_ROPE_FREQUENCIES_H

#include "moonshard.h"

#include <math.h>

/* Llama 3.1 (Grattafiori et al. 2024): a frequency whose wave is longer than original / low positions is divided by factor,
** one whose wave is shorter than original / high stays, and between the two the result is blended. */
static inline float ms_rope_scaled(float frequency, float original, float factor, float low, float high) {
  const float wave = 6.28318530717958647692f / frequency;
  if (wave > original / low) return frequency / factor;
  if (wave < original / high) return frequency;
  const float share = (original / wave - low) / (high - low);
  return (1.0f - share) * frequency / factor + share * frequency;
}

/* attrs: of op rope; frequency: [half], in radians a position. */
static inline void ms_rope_frequencies(const ms_attrs *attrs, int64_t half, float *frequency) {
  for (int64_t p = 0; p < half; p++) {
    const float exponent = (float)(2 * p) / (float)(2 * half);
    frequency[p] = 1.0f / (float)pow(attrs->f[0], (double)exponent);
    if (attrs->i[3])
      frequency[p] =
          ms_rope_scaled(frequency[p], (float)attrs->i[3], (float)attrs->f[1], (float)attrs->f[2], (float)attrs->f[3]);
  }
}

#endif
