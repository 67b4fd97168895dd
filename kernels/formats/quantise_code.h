/* quantise_code.h - the arithmetic of quantise.h: scales from magnitudes, codes from numbers, and back. Shared by the
 * CPU and CUDA, which therefore give the same bits: there is no product followed by a sum that a compiler could fuse.
 *
 * Magnitudes are compared as the bits of |x|, an order in which NaN is above infinity; so a maximum keeps NaN, and does
 * not depend on the order of the elements.
 */
#ifndef MS_KERNELS_QUANTISE_CODE_H
#define MS_KERNELS_QUANTISE_CODE_H

#include "base/numbers/float8.h"
#include "base/numbers/packed4.h"
#include "kernels/formats/quantise.h"

#ifdef __CUDACC__
  #define MS_QUANTISE_FUNCTION static inline __host__ __device__
#else
  #define MS_QUANTISE_FUNCTION static inline __attribute__((always_inline, unused))
#endif

/* C++ also evaluates these at compile time. */
#ifdef __cplusplus
  #define MS_QUANTISE_CONSTANT constexpr MS_QUANTISE_FUNCTION
#else
  #define MS_QUANTISE_CONSTANT MS_QUANTISE_FUNCTION
#endif

#define MS_MIN_AMAX 1e-12

MS_QUANTISE_FUNCTION uint32_t ms_magnitude(float x) { return ms_float8_bits(x) & 0x7fffffffu; }

/* Pass constant dtypes to these functions, or loops over them do not vectorise. They cannot fail: for a dtype without
 * codes, which callers refuse, scales and values are NaN, so that no result looks right.
 */
MS_QUANTISE_FUNCTION float ms_largest_code(int dtype) {
#define MS_CODES(NAME, largest, ...) \
  if (dtype == MS_##NAME) return largest;
#include "base/numbers/formats.def"
  return ms_float8_value(0x7fc00000u);
}

/* The exponent of the largest number of a type with scales of e8m0. */
MS_QUANTISE_FUNCTION int ms_top_of(int dtype) {
#define MS_CODES(NAME, largest, top, ...) \
  if (dtype == MS_##NAME) return top;
#include "base/numbers/formats.def"
  return 0;
}

/* ---- scales from the largest magnitude --------------------------------------------------------------------------- */

MS_QUANTISE_FUNCTION float ms_tensor_scale(uint32_t magnitude, int dtype) {
  const double amax = (double)ms_float8_value(magnitude);
  return (float)((double)ms_largest_code(dtype) / (amax < MS_MIN_AMAX ? MS_MIN_AMAX : amax));
}

/* The largest power of two that is not above a scale; NaN, infinity and 0 stay. */
MS_QUANTISE_FUNCTION float ms_power_below(float scale) {
  const uint32_t bits = ms_float8_bits(scale);
  return ms_float8_value(bits >= 0x7f800000u ? bits : bits & 0x7f800000u);
}

MS_QUANTISE_FUNCTION float ms_block_scale(uint32_t magnitude, int dtype) {
  return ms_float8_value(magnitude) / ms_largest_code(dtype);
}

/* Subnormal magnitudes have the exponent of 2^-127 here, which is the least scale. */
MS_QUANTISE_FUNCTION uint8_t ms_mx_scale_floor(uint32_t magnitude, int dtype) {
  const int exponent = (int)(magnitude >> 23) - ms_top_of(dtype);
  return (uint8_t)(magnitude >= 0x7f800000u ? 0xff : exponent < 0 ? 0 : exponent);
}

/* The exponent of the quotient, one more unless it is a power of two. */
MS_QUANTISE_FUNCTION uint8_t ms_mx_scale_rceil(uint32_t magnitude, int dtype) {
  const uint32_t ratio = ms_float8_bits(ms_float8_value(magnitude) / ms_largest_code(dtype));
  const uint32_t up = ratio < 0x00800000u ? ratio > 0x00400000u : (ratio & 0x007fffffu) != 0;
  return (uint8_t)(magnitude >= 0x7f800000u ? 0xffu : (ratio >> 23) + up);
}

MS_QUANTISE_FUNCTION uint8_t ms_mx_scale(uint32_t magnitude, int dtype, int rounding) {
  return rounding == MS_MX_FLOOR ? ms_mx_scale_floor(magnitude, dtype) : ms_mx_scale_rceil(magnitude, dtype);
}

/* 1 / scale, which is exact: 2^127 of 2^-127, 2^-127 of 2^127. */
MS_QUANTISE_FUNCTION float ms_mx_inverse(uint8_t scale) {
  return ms_e8m0_to_f32((uint8_t)(scale == 0xffu ? 0xffu : 254u - scale));
}

/* x / scale of a block; 0 where the scale is 0, infinite or NaN. */
MS_QUANTISE_FUNCTION float ms_block_quotient(float x, float scale) {
  return ms_magnitude(scale) - 1u < 0x7f7fffffu ? x / scale : 0.0f;
}

/* ---- codes ------------------------------------------------------------------------------------------------------- */

/* The nearest integer, ties to even, of at most `most`: adding 1.5 * 2^23 leaves it in the low bits. */
MS_QUANTISE_FUNCTION int ms_nearest_int(float x, float most) {
  const float low = x < -most ? -most : x, kept = low > most ? most : low;
  return (int)(ms_float8_bits(kept + 12582912.0f) - ms_float8_bits(12582912.0f));
}

MS_QUANTISE_FUNCTION uint8_t ms_f32_to_i8(float x) { return (uint8_t)ms_nearest_int(x, ms_largest_code(MS_I8)); }
MS_QUANTISE_FUNCTION float ms_i8_to_f32(uint8_t code) { return (float)(int8_t)code; }
MS_QUANTISE_FUNCTION uint8_t ms_f32_to_i4(float x) { return (uint8_t)(ms_nearest_int(x, ms_largest_code(MS_I4)) & 15); }
MS_QUANTISE_FUNCTION float ms_i4_to_f32(uint8_t code) { return (float)ms_i4_to_int(code); }

MS_QUANTISE_FUNCTION uint8_t ms_code_of(float x, int dtype) {
#define MS_CODES(NAME, largest, top, encode, ...) \
  if (dtype == MS_##NAME) return encode(x);
#include "base/numbers/formats.def"
  return 0;
}

MS_QUANTISE_FUNCTION float ms_value_of(uint8_t code, int dtype) {
#define MS_CODES(NAME, largest, top, encode, decode) \
  if (dtype == MS_##NAME) return decode(code);
#include "base/numbers/formats.def"
  return ms_float8_value(0x7fc00000u);
}

/* 1: two codes share a byte. */
MS_QUANTISE_CONSTANT int ms_code_is_packed(int dtype) {
#define MS_DTYPE(NAME, name, long_name, c_type, stored, bits, ...) \
  if (dtype == MS_##NAME) return (bits) < 8;
#include "base/numbers/formats.def"
  return 0;
}

#endif
