/* muon.c - Muon on chunks of f32, in one pass each, as PyTorch computes it.
 *
 *   muon_momentum   g = clipped(gradient * factor)  factor: element 2 of step_norm's output (mean and clipping)
 *                   b = b + (1 - momentum) (g - b)
 *                   u = nesterov: g + momentum (b - g); else b
 *   muon_apply      p = p (1 - lr wd) - lr adjust x         lr: Muon's own, muon_lr, times lr_scale
 */
#include "kernels/cpu/block.h"

#include "kernels/clip.h"
#include "kernels/cpu/parallel.h"

MS_CLONES static void momentum_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const float momentum = (float)call->attrs.update.momentum, rest = (float)(1.0 - call->attrs.update.momentum);
  const float factor = ((const float *)call->in_data[1])[2], most = ms_clip_of(call->attrs.update.clip);
  const float carried = call->attrs.update.nesterov ? momentum : 1.0f; /* how far u is from g on the way to b */
  const float *restrict gradient = call->in_data[0];
  float *restrict u = call->out_data[0], *restrict buffer = call->out_data[1];
#pragma omp simd
  for (int64_t i = begin; i < end; i++) {
    const float g = ms_clipped(gradient[i] * factor, most), b = buffer[i] + rest * (g - buffer[i]);
    buffer[i] = b;
    u[i] = b + (1.0f - carried) * (g - b);
  }
}

MS_CLONES static void apply_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const double rate = call->scalars->muon_lr * call->attrs.update.lr_scale;
  const float kept = (float)(1.0 - rate * call->attrs.update.weight_decay),
              by = (float)(rate * call->attrs.update.adjust);
  const float *restrict x = call->in_data[0];
  float *restrict p = call->out_data[0];
#pragma omp simd
  for (int64_t i = begin; i < end; i++) p[i] = p[i] * kept - by * x[i];
}

static int run(const ms_kernel_call *call) {
  return ms_run_elements(call, ms_numel(&call->in[0]), call->op == MS_OP_muon_apply ? apply_part : momentum_part);
}

const ms_kernel ms_cpu_muon = {.run = run};
