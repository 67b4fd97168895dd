/* block.h - elementwise kernels written once for f32 and bf16.
 *
 * A kernel processes its range in blocks of MS_BLOCK elements that stay in L1. A block of f32 is used in place; a
 * block of bf16 is widened to a buffer on the stack, and results are narrowed from one. The inner loop therefore sees
 * plain f32 arrays, each kernel is compiled once per instruction set instead of once per combination of dtypes, and
 * memory is still read and written only once. Loops over blocks carry `omp simd`, because an output block can be an
 * input block (in place).
 */
#ifndef MS_KERNELS_CPU_BLOCK_H
#define MS_KERNELS_CPU_BLOCK_H

#include "kernels/cpu/simd.h"

#include "kernels/op.h"

enum { MS_BLOCK = 512 };

#define MS_BLOCK_BUFFER(name) float name[MS_BLOCK] __attribute__((aligned(64)))

/* Widens data[first .. first + n) to buffer. */
MS_INLINE void ms_widen(const void *data, int dtype, int64_t first, int64_t n, float *buffer) {
  if (dtype == MS_F32) {
    memcpy(buffer, (const float *)data + first, (size_t)n * sizeof *buffer);
    return;
  }
  const ms_bf16 *x = (const ms_bf16 *)data + first;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) buffer[i] = ms_from_bf16(x[i]);
}

/* data[first .. first + n) as f32: a pointer into data, or to buffer after widening. */
MS_INLINE const float *ms_block_in(const void *data, int dtype, int64_t first, int64_t n, float *buffer) {
  if (dtype == MS_F32) return (const float *)data + first;
  ms_widen(data, dtype, first, n, buffer);
  return buffer;
}

/* Where to write elements from `first` on: in data, or in buffer, which ms_block_done then narrows. */
MS_INLINE float *ms_block_out(void *data, int dtype, int64_t first, float *buffer) {
  return dtype == MS_F32 ? (float *)data + first : buffer;
}

/* y = x rounded to bf16; both [n]. */
MS_INLINE void ms_narrow(ms_bf16 *y, const float *x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = ms_to_bf16(x[i]);
}

MS_INLINE void ms_block_done(void *data, int dtype, int64_t first, int64_t n, const float *buffer) {
  if (dtype != MS_F32) ms_narrow((ms_bf16 *)data + first, buffer, n);
}

MS_INLINE void ms_block_fill(float *buffer, float value, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) buffer[i] = value;
}

/* One element of either dtype, as f32; for use outside hot loops. */
MS_INLINE float ms_scalar_at(const void *data, int dtype, int64_t i) { return ms_simd_load(data, i, dtype == MS_BF16); }

MS_INLINE int64_t ms_block_length(int64_t first, int64_t end) {
  return end - first < MS_BLOCK ? end - first : MS_BLOCK;
}

#endif
