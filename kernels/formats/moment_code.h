/* moment_code.h - the arithmetic of moments.h: the scale of a record, and the tables in which codes are looked up.
 * Shared by the CPU and CUDA, which therefore give the same bits for the same numbers.
 */
#ifndef MS_KERNELS_MOMENT_CODE_H
#define MS_KERNELS_MOMENT_CODE_H

#include "kernels/formats/dynamic_map.h"
#include "kernels/formats/moments.h"
#include "kernels/formats/quantise_code.h"

/* Bits of 2^-100, infinity, NaN, and the sign. */
#define MS_MIN_MOMENT 0x0d800000u
#define MS_MOMENT_INFINITE 0x7f800000u
#define MS_MOMENT_NAN 0x7fc00000u
#define MS_MOMENT_SIGN 0x80000000u

/* The magnitude of a number that is not negative; else 0. */
MS_QUANTISE_FUNCTION uint32_t ms_moment_positive(float x) {
  const uint32_t bits = ms_float8_bits(x);
  return bits & MS_MOMENT_SIGN ? 0u : bits;
}

/* The scale of elements with these largest magnitudes: of all, and of those that are not negative. */
MS_QUANTISE_FUNCTION float ms_moment_scale(uint32_t most, uint32_t positive) {
  const uint32_t bits = positive == most ? most : most | MS_MOMENT_SIGN;
  return ms_float8_value(most >= MS_MOMENT_INFINITE ? MS_MOMENT_NAN : most < MS_MIN_MOMENT ? 0u : bits);
}

MS_QUANTISE_FUNCTION float ms_moment_number(int map, int code) {
  return map == MS_MOMENT_FIRST ? ms_dynamic_to_f32((uint8_t)code) : ms_dynamic_unsigned_to_f32((uint8_t)code);
}

/* The least quotient that has the code, or one above it: the middle between its number and the one below. Nothing is
 * below code 0. In the unsigned map, whatever is above 0 has a code above 0. */
MS_QUANTISE_FUNCTION float ms_moment_border(int map, int code) {
  if (code == 0) return ms_float8_value(MS_MOMENT_SIGN | MS_MOMENT_INFINITE);
  if (map == MS_MOMENT_SECOND && code == 1) return ms_float8_value(1u);
  return (ms_moment_number(map, code - 1) + ms_moment_number(map, code)) * 0.5f;
}

/* The code of a quotient, by the borders of all codes, [256]. */
MS_QUANTISE_FUNCTION int ms_moment_code(const float *border, float quotient) {
  int code = 0;
#ifdef __CUDA_ARCH__
  #pragma unroll
#elif !defined(__CUDACC__)
  #pragma GCC unroll 8
#endif
  for (int step = 128; step > 0; step /= 2) code += quotient >= border[code + step] ? step : 0;
  return code;
}

#endif
