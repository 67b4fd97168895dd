/* balance.c - moves the biases of a router by the sign of their gradient, which is how far the load of an expert is
 * above the mean: p [n] -= rate sign(gradient [n]). A NaN stays one. */
#include "kernels/cpu/block.h"

#include "kernels/cpu/parallel.h"

MS_CLONES static void balance_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const float rate = (float)call->attrs.balance.rate;
  const float *restrict gradient = call->in_data[0];
  float *restrict p = call->out_data[0];
#pragma omp simd
  for (int64_t i = begin; i < end; i++) {
    const float g = gradient[i];
    p[i] -= g > 0 ? rate : g < 0 ? -rate : g;
  }
}

static int run(const ms_kernel_call *call) { return ms_run_elements(call, ms_numel(&call->in[0]), balance_part); }

const ms_kernel ms_cpu_balance = {.run = run};
