/* bf16.h - conversions between bfloat16 and float, round to nearest even; NaN stays NaN. */
#ifndef MS_BASE_BF16_H
#define MS_BASE_BF16_H

#include <stdint.h>
#include <string.h>

typedef uint16_t ms_bf16;

static inline float ms_bf16_to_f32(ms_bf16 x) {
  uint32_t bits = (uint32_t)x << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

static inline ms_bf16 ms_f32_to_bf16(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  uint32_t quiet_nan = (bits >> 16) | 0x40u;
  return (ms_bf16)((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
}

#endif
