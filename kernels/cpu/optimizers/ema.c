/* ema.c - the exponential moving average a of the master weights p, both f32 [n], after the optimizer's pass over the
 * same chunk:
 *
 *   a = p                       in the first step
 *   a = a + (1 - d) (p - a)     afterwards; d = decay, or min(decay, (1 + step) / (10 + step)) during the warm-up
 *
 * The first line and the order of operations in the second match torch.optim.swa_utils.AveragedModel with
 * get_ema_multi_avg_fn; the warm-up matches TensorFlow's ExponentialMovingAverage with the step as num_updates.
 */
#include "kernels/cpu/block.h"

#include <math.h>

#include "kernels/cpu/parallel.h"

MS_CLONES static void ema_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const double step = (double)call->scalars->step, decay = call->attrs.ema.decay;
  const double now = call->attrs.ema.warmup ? fmin(decay, (1.0 + step) / (10.0 + step)) : decay;
  const float rest = (float)(1.0 - now);
  const float *restrict p = call->in_data[0];
  float *restrict average = call->out_data[0];
  if (step <= 1.0) {
    memcpy(average + begin, p + begin, (size_t)(end - begin) * sizeof *p);
    return;
  }
#pragma omp simd
  for (int64_t i = begin; i < end; i++) average[i] += rest * (p[i] - average[i]);
}

static int run(const ms_kernel_call *call) { return ms_run_elements(call, ms_numel(&call->in[0]), ema_part); }

const ms_kernel ms_cpu_ema = {.run = run};
