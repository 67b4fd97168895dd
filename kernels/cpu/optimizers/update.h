/* update.h - the loops over a chunk of an optimizer with one or two moments, which are kept in f32, or in bf16 that is
 * rounded stochastically: each element has one 32-bit Philox word (random_rounding.h), whose low half rounds the first
 * moment and whose high half the second. The update itself uses the unrounded values.
 *
 * If the call has one output more than weights and moments, that becomes the new weights rounded to bf16, block by
 * block, while a block is in the first-level cache. */
#ifndef MS_KERNELS_CPU_UPDATE_H
#define MS_KERNELS_CPU_UPDATE_H

#include "kernels/cpu/optimizers/random_rounding.h"
#include "kernels/op.h"

/* Updates one element, always inline: stores the new moments in *m and *v and returns the new weight. v points to 0 if
 * there is one moment. */
typedef float ms_update_fn(const void *setting, float gradient, float p, float *m, float *v);

/* How many elements from `at` on a pass updates. */
MS_INLINE int64_t ms_update_length(const ms_bf16 *copy, int64_t at, int64_t end) {
  return copy && end - at > MS_BLOCK ? MS_BLOCK : end - at;
}

/* Elements [begin, end), from MS_CLONES functions. moments: 1 or 2, a constant. */
MS_INLINE void ms_update_f32(const ms_kernel_call *call, int64_t begin, int64_t end, int moments, ms_update_fn *update,
                             const void *setting) {
  const float *restrict gradient = call->in_data[0];
  float *restrict p = call->out_data[0], *restrict m = call->out_data[1];
  float *restrict v = moments == 2 ? call->out_data[2] : NULL;
  ms_bf16 *restrict copy = ms_call_copy(call);
  for (int64_t at = begin, n; at < end; at += n) {
    n = ms_update_length(copy, at, end);
#pragma omp simd
    for (int64_t i = at; i < at + n; i++) {
      float m1 = m[i], v1 = moments == 2 ? v[i] : 0.0f;
      p[i] = update(setting, gradient[i], p[i], &m1, &v1);
      m[i] = m1;
      if (moments == 2) v[i] = v1;
    }
    if (copy) ms_narrow(copy + at, p + at, n);
  }
}

MS_INLINE void ms_update_bf16(const ms_kernel_call *call, int64_t begin, int64_t end, int moments, ms_update_fn *update,
                              const void *setting) {
  uint32_t words[MS_BLOCK] __attribute__((aligned(64)));
  ms_bf16 *copy = ms_call_copy(call);
  for (int64_t at = begin; at < end; at += MS_ROUNDED_AT_ONCE) {
    const int64_t n = end - at < MS_ROUNDED_AT_ONCE ? end - at : MS_ROUNDED_AT_ONCE;
    const uint32_t *word = ms_rounding_words(call, at, words);
    const float *restrict gradient = (const float *)call->in_data[0] + at;
    float *restrict p = (float *)call->out_data[0] + at;
    ms_bf16 *restrict m = (ms_bf16 *)call->out_data[1] + at;
    ms_bf16 *restrict v = moments == 2 ? (ms_bf16 *)call->out_data[2] + at : NULL;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
      float m1 = ms_bf16_to_f32(m[i]), v1 = moments == 2 ? ms_bf16_to_f32(v[i]) : 0.0f;
      p[i] = update(setting, gradient[i], p[i], &m1, &v1);
      m[i] = ms_round_at_random(m1, word[i] & 0xffffu);
      if (moments == 2) v[i] = ms_round_at_random(v1, word[i] >> 16);
    }
    if (copy) ms_narrow(copy + at, p, n);
  }
}

#endif
