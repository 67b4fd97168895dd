/* moments.h - records of moments (kernels/formats/moments.h) in the loops of CPU kernels, which read and make whole
 * records. A kernel that makes many fills the tables of each map once.
 */
#ifndef MS_KERNELS_CPU_MOMENTS_H
#define MS_KERNELS_CPU_MOMENTS_H

#include "kernels/cpu/simd.h"

#include "kernels/formats/moment_code.h"

typedef struct ms_moment_tables {
  float number[256], border[257]; /* by code; nothing reaches the last border */
} ms_moment_tables;

MS_INLINE void ms_moment_fill_tables(int map, ms_moment_tables *tables) {
  for (int code = 0; code < 256; code++) {
    tables->number[code] = ms_moment_number(map, code);
    tables->border[code] = ms_moment_border(map, code);
  }
  tables->border[256] = ms_float_of_bits(0x7f800000u);
}

/* x [MS_MOMENT_BLOCK] */
MS_INLINE void ms_moment_read(const ms_moment_tables *tables, const uint8_t *restrict record, float *restrict x) {
  float scale;
  memcpy(&scale, record + MS_MOMENT_BLOCK, sizeof scale);
#pragma omp simd
  for (int i = 0; i < MS_MOMENT_BLOCK; i++) x[i] = tables->number[record[i]] * scale;
}

/* A code that is at most one off: that of the part of its decade that a quotient is in. */
MS_INLINE int ms_moment_guess(int map, float quotient) {
  static const float decade[7] = {1e-7f, 1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f};
  const int first = map == MS_MOMENT_FIRST;
  const float size = quotient < 0 ? -quotient : quotient;
  float low = decade[0], wide = 9.0f * decade[0], parts = first ? 1.0f : 2.0f;
#pragma GCC unroll 7
  for (int i = 1; i < 7; i++) {
    low = size >= decade[i] ? decade[i] : low;
    wide = size >= decade[i] ? 9.0f * decade[i] : wide;
    parts = size >= decade[i] ? (float)((first ? 1 : 2) << i) : parts;
  }
  const float part = (size - low) / wide * parts, kept = part < 0 ? 0 : part > parts - 1 ? parts - 1 : part;
  const int index = (int)kept + (int)parts - (first ? 1 : 2); /* among the numbers between 0 and 1 */
  return !first ? 1 + index : quotient < 0 ? MS_DYNAMIC_ZERO - 1 - index : MS_DYNAMIC_ZERO + 1 + index;
}

/* ms_moment_code of all elements: guesses, which are vectors, and one look at their borders. */
MS_INLINE void ms_moment_search(int map, const ms_moment_tables *tables, const float *restrict x, float scale,
                                uint8_t *restrict record) {
  float quotient[MS_MOMENT_BLOCK] __attribute__((aligned(64)));
  int code[MS_MOMENT_BLOCK] __attribute__((aligned(64)));
#pragma omp simd
  for (int i = 0; i < MS_MOMENT_BLOCK; i++) {
    quotient[i] = ms_block_quotient(x[i], scale);
    code[i] = ms_moment_guess(map, quotient[i]);
  }
  for (int i = 0; i < MS_MOMENT_BLOCK; i++) {
    const float *border = tables->border + code[i];
    record[i] = (uint8_t)(code[i] + (quotient[i] >= border[1]) - (quotient[i] < border[0]));
  }
}

MS_INLINE void ms_moment_write(int map, const ms_moment_tables *tables, const float *restrict x,
                               uint8_t *restrict record) {
  uint32_t most = 0, positive = 0;
#pragma omp simd reduction(max : most, positive)
  for (int i = 0; i < MS_MOMENT_BLOCK; i++) {
    const uint32_t magnitude = ms_magnitude(x[i]), above = ms_moment_positive(x[i]);
    most = magnitude > most ? magnitude : most;
    positive = above > positive ? above : positive;
  }
  const float scale = ms_moment_scale(most, positive);
  ms_moment_search(map, tables, x, scale, record);
  memcpy(record + MS_MOMENT_BLOCK, &scale, sizeof scale);
}

#endif
