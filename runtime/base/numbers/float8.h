/* float8.h - conversions between float and the 8-bit floating-point types f8e4m3, f8e5m2 and e8m0, whose rules
 * moonshard.h states. Round to nearest, saturate; NaN stays NaN.
 *
 * The functions contain no branch, no table and no product that is followed by a sum, so loops over them vectorise, and
 * the CPU, CUDA and its emulation give the same bits. A bf16 converts through float, which holds it exactly.
 */
#ifndef MS_BASE_FLOAT8_H
#define MS_BASE_FLOAT8_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
  #define MS_FLOAT8_FUNCTION static inline __host__ __device__
#else
  #define MS_FLOAT8_FUNCTION static inline __attribute__((always_inline, unused))
#endif

#define MS_F8E4M3_MAX 448.0f
#define MS_F8E5M2_MAX 57344.0f

/* Powers of two of the formats, also for the exponents of shared scales: the largest number is this power of two, or
 * 1.75 times it. */
enum { MS_F8E4M3_TOP = 8, MS_F8E5M2_TOP = 15 };

MS_FLOAT8_FUNCTION uint32_t ms_float8_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

MS_FLOAT8_FUNCTION float ms_float8_value(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* Normal numbers are rounded as integers; the carry of a fraction increments the exponent, as it should. Subnormal
 * ones are rounded by adding `unit`, whose last bit is worth the format's smallest number. */
MS_FLOAT8_FUNCTION uint8_t ms_float8_round(float x, int fraction, uint32_t bias, float largest, float normal,
                                           float unit) {
  const uint32_t size = ms_float8_bits(x) & 0x7fffffffu, sign = ms_float8_bits(x) >> 24 & 0x80u;
  const uint32_t most = ms_float8_bits(largest), kept = size < most ? size : most;
  const int dropped = 23 - fraction;
  const uint32_t rounded = (kept + (1u << (dropped - 1)) - 1u + (kept >> dropped & 1u)) >> dropped;
  const uint32_t subnormal = ms_float8_bits(ms_float8_value(kept) + unit) - ms_float8_bits(unit);
  const uint32_t code = kept < ms_float8_bits(normal) ? subnormal : rounded - ((127u - bias) << fraction);
  return (uint8_t)(size > 0x7f800000u ? 0x7fu : sign | code);
}

MS_FLOAT8_FUNCTION uint8_t ms_f32_to_f8e4m3(float x) {
  return ms_float8_round(x, 3, 7, MS_F8E4M3_MAX, 0x1p-6f, 0x1p14f);
}

MS_FLOAT8_FUNCTION uint8_t ms_f32_to_f8e5m2(float x) {
  return ms_float8_round(x, 2, 15, MS_F8E5M2_MAX, 0x1p-14f, 0x1p7f);
}

/* A product adjusts the exponent, which also normalises subnormal numbers. */
MS_FLOAT8_FUNCTION float ms_f8e4m3_to_f32(uint8_t code) {
  const uint32_t size = code & 0x7fu, sign = (uint32_t)(code & 0x80u) << 24;
  const uint32_t bits = ms_float8_bits(ms_float8_value(size << 20) * 0x1p120f);
  return ms_float8_value(sign | (size == 0x7fu ? 0x7fc00000u : bits));
}

MS_FLOAT8_FUNCTION float ms_f8e5m2_to_f32(uint8_t code) {
  const uint32_t size = code & 0x7fu, sign = (uint32_t)(code & 0x80u) << 24;
  const uint32_t bits = ms_float8_bits(ms_float8_value(size << 21) * 0x1p112f);
  return ms_float8_value(sign | (size > 0x7cu ? 0x7fc00000u : size == 0x7cu ? 0x7f800000u : bits));
}

MS_FLOAT8_FUNCTION float ms_e8m0_to_f32(uint8_t code) {
  return ms_float8_value(code == 0xffu ? 0x7fc00000u : code ? (uint32_t)code << 23 : 0x00400000u);
}

/* The half of an ulp of a power of two is its highest fraction bit; among subnormal numbers it is the second one. */
MS_FLOAT8_FUNCTION uint8_t ms_f32_to_e8m0(float x) {
  const uint32_t bits = ms_float8_bits(x), size = bits & 0x7fffffffu;
  const uint32_t rounded = (size >> 23) + (size < 0x00800000u ? size >= 0x00600000u : size >> 22 & 1u);
  const uint32_t code = rounded > 0xfeu ? 0xfeu : rounded;
  return (uint8_t)(size >= 0x7f800000u || (bits != size && size) ? 0xffu : code);
}

#endif
