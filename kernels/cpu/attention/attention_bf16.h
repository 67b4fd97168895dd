/* attention_bf16.h - shared by forward and backward of attention with bf16 products: padding, packing, capped scores
 * and powers of 2. */
#ifndef MS_KERNELS_CPU_ATTENTION_BF16_H
#define MS_KERNELS_CPU_ATTENTION_BF16_H

#include "kernels/cpu/attention/attention_cap.h"

#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/matmul/bf16_block.h"

static inline int64_t ms_bf16_round_up(int64_t n) { return (n + MS_BF16_GRAIN - 1) / MS_BF16_GRAIN * MS_BF16_GRAIN; }

/* Takes `bytes` of scratch from memory + *used, rounded up to whole cache lines. */
static inline void *ms_bf16_take(char *memory, int64_t *used, int64_t bytes) {
  void *at = memory + *used;
  *used += (bytes + 63) / 64 * 64;
  return at;
}

/* 2^x for x <= 0 with relative error 3e-6, less than bf16's rounding error; 0 on underflow, NaN for NaN. */
static inline __m512 ms_bf16_power_of_two(__m512 x) {
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), r = _mm512_sub_ps(x, n);
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(9.582868777e-03f), r, _mm512_set1_ps(5.590641499e-02f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.402409762e-01f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.931241751e-01f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}

/* What makes products of q and k scores in units of ln 2; capped ones are such scores already. */
static inline __m512 ms_bf16_scale(const ms_attention *a) {
  return _mm512_set1_ps(a->options.softcap > 0.0f ? 1.0f : (float)(a->options.scale / MS_LN_2));
}

/* Caps scores [rows][columns], which are `stride` apart and not scaled yet. */
static inline void ms_bf16_cap(const ms_attention *a, float *scores, int64_t stride, int64_t rows, int64_t columns) {
  if (!(a->options.softcap > 0.0f)) return;
  for (int64_t r = 0; r < rows; r++)
    ms_cap_scores(scores + r * stride, columns, a->options.scale / a->options.softcap,
                  (float)(a->options.softcap / MS_LN_2));
}

/* y [padded_rows][y_stride] = x [rows][d], padded with zeros; the rows of x are `stride` elements apart. */
static inline void ms_bf16_pack(ms_bf16 *y, int64_t y_stride, const ms_bf16 *x, int64_t stride, int64_t rows,
                                int64_t padded_rows, int64_t d) {
  for (int64_t r = 0; r < rows; r++) {
    memcpy(y + r * y_stride, x + r * stride, (size_t)d * sizeof *y);
    memset(y + r * y_stride + d, 0, (size_t)(y_stride - d) * sizeof *y);
  }
  memset(y + rows * y_stride, 0, (size_t)((padded_rows - rows) * y_stride) * sizeof *y);
}

/* y [d] bf16 = scale x [d] f32 */
static inline void ms_bf16_unpack(ms_bf16 *y, const float *x, float scale, int64_t d) {
  for (int64_t i = 0; i < d; i += 16) {
    const __mmask16 lanes = d - i < 16 ? (__mmask16)((1u << (d - i)) - 1) : 0xffff;
    const __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x + i), _mm512_set1_ps(scale));
    _mm256_mask_storeu_epi16(y + i, lanes, (__m256i)_mm512_cvtneps_pbh(scaled));
  }
}

#endif
