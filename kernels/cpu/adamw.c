/* adamw.c - AdamW with decoupled weight decay (Loshchilov & Hutter 2019), as PyTorch computes it, in one pass over a
 * chunk: reads the gradient once, reads and writes the master weights and both moments once.
 *
 *   g = gradient * factor, clipped by value     factor: element 2 of step_norm's output (mean and clipping)
 *   p = p (1 - lr wd)
 *   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
 *   p = p - lr / (1 - beta1^step) m / (sqrt(v) / sqrt(1 - beta2^step) + eps)
 *
 * gradient, p [n] f32; m, v [n] f32 or bf16; step f32 [1] counts the updates of the parameter, including this one.
 *
 * Adam (Kingma & Ba 2015) is the same, but that the decay is in the gradient: g = g + wd p, and p = p.
 *
 * bf16 moments are rounded stochastically (random_rounding.h) when they are stored; the step itself uses the unrounded
 * values. Each element has one 32-bit Philox word: the low half rounds m, the high half v. Moments in 8 bits:
 * adamw_records.c.
 */
#include "kernels/cpu/adamw.h"

#include "base/error.h"
#include "kernels/cpu/random_rounding.h"
#include "kernels/moments.h"

MS_CLONES static void adamw_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const ms_adamw s = ms_adamw_of(call);
  const float *restrict gradient = call->in_data[0];
  float *restrict p = call->out_data[0], *restrict m = call->out_data[1], *restrict v = call->out_data[2];
#pragma omp simd
  for (int64_t i = begin; i < end; i++) {
    float m1 = m[i], v1 = v[i];
    p[i] = ms_adamw_update(&s, gradient[i], p[i], &m1, &v1);
    m[i] = m1;
    v[i] = v1;
  }
}

MS_CLONES static void adamw_part_of_bf16(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const ms_adamw s = ms_adamw_of(call);
  uint32_t words[MS_BLOCK] __attribute__((aligned(64)));
  for (int64_t at = begin; at < end; at += MS_ROUNDED_AT_ONCE) {
    const int64_t n = end - at < MS_ROUNDED_AT_ONCE ? end - at : MS_ROUNDED_AT_ONCE;
    const uint32_t *word = ms_rounding_words(call, at, words);
    const float *restrict gradient = (const float *)call->in_data[0] + at;
    float *restrict p = (float *)call->out_data[0] + at;
    ms_bf16 *restrict m = (ms_bf16 *)call->out_data[1] + at, *restrict v = (ms_bf16 *)call->out_data[2] + at;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
      float m1 = ms_bf16_to_f32(m[i]), v1 = ms_bf16_to_f32(v[i]);
      p[i] = ms_adamw_update(&s, gradient[i], p[i], &m1, &v1);
      m[i] = ms_round_at_random(m1, word[i] & 0xffffu);
      v[i] = ms_round_at_random(v1, word[i] >> 16);
    }
  }
}

static int run(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->in[0]), records = ms_moment_records(n);
  switch (call->attrs.i[3]) {
    case MS_ADAMW_F32: return ms_run_elements(call, n, adamw_part);
    case MS_ADAMW_BF16: return ms_run_elements(call, n, adamw_part_of_bf16);
    case MS_ADAMW_I8:
      ms_run_parts(call, ms_part_count(call, records, ms_call_bytes(call)), records, 1, ms_adamw_of_records);
      return MS_OK;
    default: return MS_FAIL(MS_EINTERNAL, "adamw: no loop keeps moments of form %lld", (long long)call->attrs.i[3]);
  }
}

const ms_kernel ms_cpu_adamw = {.run = run};
