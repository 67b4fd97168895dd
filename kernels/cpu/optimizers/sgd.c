/* sgd.c - SGD as PyTorch computes it, in one pass over a chunk of f32 gradient, weights p and momentum b, all [n].
 *
 *   g = clipped(gradient * factor) + wd p       factor: element 2 of step_norm's output (mean and clipping)
 *   b = g in update momentum_from of the parameter, or its first, then momentum b + (1 - dampening) g
 *   p = p - lr (nesterov: g + momentum b; momentum: b; neither: g)
 */
#include <math.h>

#include "kernels/clip.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/optimizers/update.h"

MS_CLONES static void plain_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const float lr = (float)(call->scalars->lr * call->attrs.update.lr_scale),
              decay = (float)call->attrs.update.weight_decay;
  const float factor = ((const float *)call->in_data[1])[2], most = ms_clip_of(call->attrs.update.clip);
  const float *restrict gradient = call->in_data[0];
  float *restrict p = call->out_data[0];
  ms_bf16 *restrict copy = ms_call_copy(call);
  for (int64_t at = begin, n; at < end; at += n) {
    n = ms_update_length(copy, at, end);
#pragma omp simd
    for (int64_t i = at; i < at + n; i++) p[i] -= lr * (ms_clipped(gradient[i] * factor, most) + decay * p[i]);
    if (copy) ms_narrow(copy + at, p + at, n);
  }
}

MS_CLONES static void momentum_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const int first = ((const float *)call->in_data[2])[0] == fmax(1.0, call->attrs.update.momentum_from);
  const int nesterov = call->attrs.update.nesterov != 0;
  const float lr = (float)(call->scalars->lr * call->attrs.update.lr_scale),
              decay = (float)call->attrs.update.weight_decay;
  const float momentum = (float)call->attrs.update.momentum,
              rest = first ? 1.0f : (float)(1.0 - call->attrs.update.dampening);
  const float factor = ((const float *)call->in_data[1])[2], most = ms_clip_of(call->attrs.update.clip);
  /* p changes by -lr (own g + carried b). */
  const float own = nesterov ? 1.0f : 0.0f, carried = nesterov ? momentum : 1.0f;
  const float *restrict gradient = call->in_data[0];
  float *restrict p = call->out_data[0], *restrict buffer = call->out_data[1];
  ms_bf16 *restrict copy = ms_call_copy(call);
  for (int64_t at = begin, n; at < end; at += n) {
    n = ms_update_length(copy, at, end);
#pragma omp simd
    for (int64_t i = at; i < at + n; i++) {
      float g = ms_clipped(gradient[i] * factor, most) + decay * p[i];
      float b = (first ? 0.0f : momentum * buffer[i]) + rest * g;
      buffer[i] = b;
      p[i] -= lr * (own * g + carried * b);
    }
    if (copy) ms_narrow(copy + at, p + at, n);
  }
}

static int run(const ms_kernel_call *call) {
  return ms_run_elements(call, ms_numel(&call->in[0]), call->attrs.update.momentum == 0.0 ? plain_part : momentum_part);
}

const ms_kernel ms_cpu_sgd = {.run = run};
