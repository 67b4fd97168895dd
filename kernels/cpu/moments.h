/* moments.h - records of moments (kernels/moments.h) in the loops of CPU kernels, which read and make whole records.
 * A kernel that makes many fills the tables of each map once.
 */
#ifndef MS_KERNELS_CPU_MOMENTS_H
#define MS_KERNELS_CPU_MOMENTS_H

#include "kernels/cpu/simd.h"

#include "kernels/moment_code.h"

typedef struct ms_moment_tables {
  float number[256], border[256]; /* by code */
} ms_moment_tables;

MS_INLINE void ms_moment_fill_tables(int map, ms_moment_tables *tables) {
  for (int code = 0; code < 256; code++) {
    tables->number[code] = ms_moment_number(map, code);
    tables->border[code] = ms_moment_border(map, code);
  }
}

/* x [MS_MOMENT_BLOCK] */
MS_INLINE void ms_moment_read(const ms_moment_tables *tables, const uint8_t *restrict record, float *restrict x) {
  float scale;
  memcpy(&scale, record + MS_MOMENT_BLOCK, sizeof scale);
#pragma omp simd
  for (int i = 0; i < MS_MOMENT_BLOCK; i++) x[i] = tables->number[record[i]] * scale;
}

/* ms_moment_code of all elements, step by step, so that the search is gathers and no branches. */
MS_INLINE void ms_moment_search(const ms_moment_tables *tables, const float *restrict x, float scale,
                                uint8_t *restrict record) {
  float quotient[MS_MOMENT_BLOCK] __attribute__((aligned(64)));
  int code[MS_MOMENT_BLOCK] __attribute__((aligned(64)));
#pragma omp simd
  for (int i = 0; i < MS_MOMENT_BLOCK; i++) {
    quotient[i] = ms_block_quotient(x[i], scale);
    code[i] = 0;
  }
  for (int step = 128; step > 0; step /= 2) {
#pragma omp simd
    for (int i = 0; i < MS_MOMENT_BLOCK; i++) code[i] += (quotient[i] >= tables->border[code[i] + step]) * step;
  }
#pragma omp simd
  for (int i = 0; i < MS_MOMENT_BLOCK; i++) record[i] = (uint8_t)code[i];
}

MS_INLINE void ms_moment_write(const ms_moment_tables *tables, const float *restrict x, uint8_t *restrict record) {
  uint32_t most = 0, positive = 0;
#pragma omp simd reduction(max : most, positive)
  for (int i = 0; i < MS_MOMENT_BLOCK; i++) {
    const uint32_t magnitude = ms_magnitude(x[i]), above = ms_moment_positive(x[i]);
    most = magnitude > most ? magnitude : most;
    positive = above > positive ? above : positive;
  }
  const float scale = ms_moment_scale(most, positive);
  ms_moment_search(tables, x, scale, record);
  memcpy(record + MS_MOMENT_BLOCK, &scale, sizeof scale);
}

#endif
