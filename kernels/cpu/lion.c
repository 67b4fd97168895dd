/* lion.c - Lion (Chen et al. 2023, algorithm 2), in one pass over a chunk.
 *
 *   g = gradient * factor, clipped by value     factor: element 2 of step_norm's output (mean and clipping)
 *   p = p (1 - lr wd) - lr sign(beta1 m + (1 - beta1) g)
 *   m = beta2 m + (1 - beta2) g
 *
 * gradient, p [n] f32; m [n] f32 or bf16, which is rounded stochastically with the low half of the Philox word that
 * AdamW rounds its first moment with (adamw.c). The sign of 0 is 0, and that of what is not a number is no number.
 */
#include "base/error.h"
#include "kernels/clip.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/random_rounding.h"
#include "kernels/moments.h"

typedef struct lion {
  float keep, rate, beta1, rest1, beta2, rest2, factor, most;
} lion;

MS_INLINE lion lion_of(const ms_kernel_call *call) {
  const double *f = call->attrs.f, rate = call->scalars->lr * f[0];
  return (lion){.keep = (float)(1.0 - rate * f[1]),
                .rate = (float)rate,
                .beta1 = (float)f[2],
                .rest1 = (float)(1.0 - f[2]),
                .beta2 = (float)f[3],
                .rest2 = (float)(1.0 - f[3]),
                .factor = ((const float *)call->in_data[1])[2],
                .most = ms_clip_of(&call->attrs)};
}

/* rate times the sign of c. Without branches, so that compilers contract the update alike in vectors and behind them.
 */
MS_INLINE float with_sign_of(float rate, float c) {
  uint32_t of_rate, of_c;
  memcpy(&of_rate, &rate, sizeof of_rate);
  memcpy(&of_c, &c, sizeof of_c);
  of_rate = (of_rate & -(uint32_t)(c != 0.0f)) | (of_c & 0x80000000u) | (-(uint32_t)(c != c) & 0x7fc00000u);
  memcpy(&rate, &of_rate, sizeof rate);
  return rate;
}

/* Stores the new moment in *m and returns the new weight. */
MS_INLINE float update(const lion *s, float gradient, float p, float *m) {
  const float g = ms_clipped(gradient * s->factor, s->most), c = s->beta1 * *m + s->rest1 * g;
  *m = s->beta2 * *m + s->rest2 * g;
  return p * s->keep - with_sign_of(s->rate, c);
}

MS_CLONES static void part_of_f32(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const lion s = lion_of(call);
  const float *restrict gradient = call->in_data[0];
  float *restrict p = call->out_data[0], *restrict m = call->out_data[1];
#pragma omp simd
  for (int64_t i = begin; i < end; i++) {
    float m1 = m[i];
    p[i] = update(&s, gradient[i], p[i], &m1);
    m[i] = m1;
  }
}

MS_CLONES static void part_of_bf16(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const lion s = lion_of(call);
  uint32_t words[MS_BLOCK] __attribute__((aligned(64)));
  for (int64_t at = begin; at < end; at += MS_ROUNDED_AT_ONCE) {
    const int64_t n = end - at < MS_ROUNDED_AT_ONCE ? end - at : MS_ROUNDED_AT_ONCE;
    const uint32_t *word = ms_rounding_words(call, at, words);
    const float *restrict gradient = (const float *)call->in_data[0] + at;
    float *restrict p = (float *)call->out_data[0] + at;
    ms_bf16 *restrict m = (ms_bf16 *)call->out_data[1] + at;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
      float m1 = ms_bf16_to_f32(m[i]);
      p[i] = update(&s, gradient[i], p[i], &m1);
      m[i] = ms_round_at_random(m1, word[i] & 0xffffu);
    }
  }
}

static int run(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->in[0]);
  switch (call->attrs.i[3]) {
    case MS_ADAMW_F32: return ms_run_elements(call, n, part_of_f32);
    case MS_ADAMW_BF16: return ms_run_elements(call, n, part_of_bf16);
    default: return MS_FAIL(MS_EINTERNAL, "lion: no loop keeps moments of form %lld", (long long)call->attrs.i[3]);
  }
}

const ms_kernel ms_cpu_lion = {.run = run};
