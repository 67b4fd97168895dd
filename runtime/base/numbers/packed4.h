/* packed4.h - the 4-bit element types i4 and nf4, and how two of them share a byte: the first one is in the high four
 * bits, as bitsandbytes and torchao store them.
 *
 * nf4 is the table of QLoRA (Dettmers et al., 2023, appendix E): quantiles of a normal distribution, scaled to [-1, 1],
 * with an exact 0. A number gets the nearest entry; one in the middle of two gets the lower one, as in bitsandbytes,
 * whose thresholds these are: the middles, rounded to f32. NaN gets entry 0, so callers keep it in the scale.
 */
#ifndef MS_BASE_PACKED4_H
#define MS_BASE_PACKED4_H

#include <stdint.h>

#ifdef __CUDACC__
  #define MS_PACKED4_FUNCTION static inline __host__ __device__
#else
  #define MS_PACKED4_FUNCTION static inline __attribute__((always_inline, unused))
#endif

enum { MS_NF4_ZERO = 7 }; /* the entry 0 */

/* Codes are 0 to 15. */
MS_PACKED4_FUNCTION uint8_t ms_pack4(uint8_t first, uint8_t second) { return (uint8_t)(first << 4 | (second & 15)); }
MS_PACKED4_FUNCTION uint8_t ms_first4(uint8_t byte) { return byte >> 4; }
MS_PACKED4_FUNCTION uint8_t ms_second4(uint8_t byte) { return byte & 15; }

/* The number of an i4, extended from its sign. */
MS_PACKED4_FUNCTION int ms_i4_to_int(uint8_t code) { return (code ^ 8) - 8; }

MS_PACKED4_FUNCTION float ms_nf4_to_f32(uint8_t code) {
  const float value[16] = {-1.0f,
                           -0.6961928009986877f,
                           -0.5250730514526367f,
                           -0.39491748809814453f,
                           -0.28444138169288635f,
                           -0.18477343022823334f,
                           -0.09105003625154495f,
                           0.0f,
                           0.07958029955625534f,
                           0.16093020141124725f,
                           0.24611230194568634f,
                           0.33791524171829224f,
                           0.44070982933044434f,
                           0.5626170039176941f,
                           0.7229568362236023f,
                           1.0f};
  return value[code & 15];
}

/* The number of thresholds below x. */
MS_PACKED4_FUNCTION uint8_t ms_f32_to_nf4(float x) {
  return (uint8_t)((x > -0.8480964004993439f) + (x > -0.6106329262256622f) + (x > -0.4599952697753906f) +
                   (x > -0.33967943489551544f) + (x > -0.23460740596055984f) + (x > -0.13791173323988914f) +
                   (x > -0.045525018125772476f) + (x > 0.03979014977812767f) + (x > 0.1202552504837513f) +
                   (x > 0.2035212516784668f) + (x > 0.2920137718319893f) + (x > 0.3893125355243683f) +
                   (x > 0.5016634166240692f) + (x > 0.6427869200706482f) + (x > 0.8614784181118011f));
}

#endif
