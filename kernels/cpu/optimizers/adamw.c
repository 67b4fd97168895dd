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
 * Moments in bf16: update.h, which has the loops. Moments in 8 bits: adamw_records.c.
 */
#include "kernels/cpu/optimizers/adamw.h"

#include "base/error.h"
#include "kernels/cpu/optimizers/update.h"
#include "kernels/formats/moments.h"

MS_INLINE float update(const void *setting, float gradient, float p, float *m, float *v) {
  return ms_adamw_update(setting, gradient, p, m, v);
}

MS_CLONES static void adamw_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const ms_adamw s = ms_adamw_of(call);
  ms_update_f32(call, begin, end, 2, update, &s);
}

MS_CLONES static void adamw_part_of_bf16(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const ms_adamw s = ms_adamw_of(call);
  ms_update_bf16(call, begin, end, 2, update, &s);
}

static int run(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->in[0]), records = ms_moment_records(n);
  switch (call->attrs.update.moments) {
    case MS_ADAMW_F32: return ms_run_elements(call, n, adamw_part);
    case MS_ADAMW_BF16: return ms_run_elements(call, n, adamw_part_of_bf16);
    case MS_ADAMW_I8:
      ms_run_parts(call, ms_part_count(call, records, ms_call_bytes(call)), records, 1, ms_adamw_of_records);
      return MS_OK;
    default:
      return MS_FAIL(MS_EINTERNAL, "adamw: no loop keeps moments of form %lld", (long long)call->attrs.update.moments);
  }
}

const ms_kernel ms_cpu_adamw = {.run = run};
