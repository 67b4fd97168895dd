/* lion.c - Lion (Chen et al. 2023, algorithm 2), in one pass over a chunk.
 *
 *   g = gradient * factor, clipped by value     factor: element 2 of step_norm's output (mean and clipping)
 *   p = p (1 - lr wd) - lr sign(beta1 m + (1 - beta1) g)
 *   m = beta2 m + (1 - beta2) g
 *
 * gradient, p [n] f32; m [n] f32 or bf16 (update.h, which has the loops). The sign of 0 is 0, and that of what is not a
 * number is no number.
 */
#include "base/error.h"
#include "kernels/clip.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/optimizers/update.h"
#include "kernels/formats/moments.h"

typedef struct lion {
  float keep, rate, beta1, rest1, beta2, rest2, factor, most;
} lion;

MS_INLINE lion lion_of(const ms_kernel_call *call) {
  const double rate = call->scalars->lr * call->attrs.update.lr_scale;
  const double beta1 = call->attrs.update.beta1, beta2 = call->attrs.update.beta2;
  return (lion){.keep = (float)(1.0 - rate * call->attrs.update.weight_decay),
                .rate = (float)rate,
                .beta1 = (float)beta1,
                .rest1 = (float)(1.0 - beta1),
                .beta2 = (float)beta2,
                .rest2 = (float)(1.0 - beta2),
                .factor = ((const float *)call->in_data[1])[2],
                .most = ms_clip_of(call->attrs.update.clip)};
}

/* rate times the sign of c. Without branches, so that compilers contract the update alike in vectors and after them.
 */
MS_INLINE float with_sign_of(float rate, float c) {
  uint32_t of_rate, of_c;
  memcpy(&of_rate, &rate, sizeof of_rate);
  memcpy(&of_c, &c, sizeof of_c);
  of_rate = (of_rate & -(uint32_t)(c != 0.0f)) | (of_c & 0x80000000u) | (-(uint32_t)(c != c) & 0x7fc00000u);
  memcpy(&rate, &of_rate, sizeof rate);
  return rate;
}

MS_INLINE float update(const void *setting, float gradient, float p, float *m, float *v) {
  const lion *s = setting;
  const float g = ms_clipped(gradient * s->factor, s->most), c = s->beta1 * *m + s->rest1 * g;
  (void)v;
  *m = s->beta2 * *m + s->rest2 * g;
  return p * s->keep - with_sign_of(s->rate, c);
}

MS_CLONES static void part_of_f32(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const lion s = lion_of(call);
  ms_update_f32(call, begin, end, 1, update, &s);
}

MS_CLONES static void part_of_bf16(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const lion s = lion_of(call);
  ms_update_bf16(call, begin, end, 1, update, &s);
}

static int run(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->in[0]);
  switch (call->attrs.update.moments) {
    case MS_ADAMW_F32: return ms_run_elements(call, n, part_of_f32);
    case MS_ADAMW_BF16: return ms_run_elements(call, n, part_of_bf16);
    default:
      return MS_FAIL(MS_EINTERNAL, "lion: no loop keeps moments of form %lld", (long long)call->attrs.update.moments);
  }
}

const ms_kernel ms_cpu_lion = {.run = run};
