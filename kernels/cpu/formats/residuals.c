/* residuals.c - what rounding left of sums of gradients, in the units of another step (kernels/formats/residuals.h). */
#include "kernels/formats/residuals.h"

#include <math.h>

#include "kernels/cpu/block.h"
#include "kernels/cpu/parallel.h"

MS_CLONES static void rescale_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const float factor = ms_residual_factor(call->in_data[0], call->inputs == 2 ? call->in_data[1] : NULL, &call->attrs,
                                          call->scalars->micro_batches);
  float *restrict rest = call->out_data[0];
  if (factor == 1) return;
#pragma omp simd
  for (int64_t i = begin; i < end; i++) rest[i] *= factor;
}

static int run(const ms_kernel_call *call) {
  if (call->op == MS_OP_rescale_residuals) return ms_run_elements(call, ms_numel(&call->out[0]), rescale_part);
  const float divisor = ((const float *)call->in_data[0])[MS_NORM_DIVISOR];
  float *kept = call->out_data[0];
  for (int64_t i = 0; divisor > 0 && i < ms_numel(&call->out[0]); i++) kept[i] = divisor;
  return MS_OK;
}

const ms_kernel ms_cpu_residuals = {.run = run};
