/* pow.c - a^b and its gradients with respect to a and b, all with broadcasting (operand.h). Conventions are those of C
 * and PyTorch: x^0 is 1, even for NaN; the gradient of the base is 0 where the exponent is 0, and that of the exponent
 * is 0 where the base is 0 and the exponent is not negative. */
#include "kernels/cpu/operand.h"

#include <math.h>

#include "kernels/cpu/parallel.h"

MS_INLINE float base_slope(float a, float b) { return b == 0.0f ? 0.0f : b * powf(a, b - 1.0f); }

MS_INLINE float exponent_slope(float a, float b) { return a == 0.0f && b >= 0.0f ? 0.0f : powf(a, b) * logf(a); }

static void pow_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const ms_broadcast broadcast = ms_broadcast_of(&call->out[0], call->inputs, call->in);
  MS_BLOCK_BUFFER(a_buffer);
  MS_BLOCK_BUFFER(b_buffer);
  MS_BLOCK_BUFFER(dy_buffer);
  MS_BLOCK_BUFFER(y_buffer);
  const float *dy = NULL;
  int64_t from[3], n;
  for (int64_t first = begin; first < end; first += n) {
    n = ms_broadcast_run(&broadcast, call->inputs, first, first + ms_block_length(first, end), from);
    const float *a = ms_operand(call, &broadcast, 0, from[0], n, a_buffer);
    const float *b = ms_operand(call, &broadcast, 1, from[1], n, b_buffer);
    float *y = ms_block_out(call->out_data[0], call->out[0].dtype, first, y_buffer);
    if (call->op != MS_OP_pow) dy = ms_operand(call, &broadcast, 2, from[2], n, dy_buffer);
    switch (call->op) {
      case MS_OP_pow:
        for (int64_t i = 0; i < n; i++) y[i] = powf(a[i], b[i]);
        break;
      case MS_OP_pow_backward_base:
        for (int64_t i = 0; i < n; i++) y[i] = dy[i] * base_slope(a[i], b[i]);
        break;
      default:
        for (int64_t i = 0; i < n; i++) y[i] = dy[i] * exponent_slope(a[i], b[i]);
    }
    ms_block_done(call->out_data[0], call->out[0].dtype, first, n, y_buffer);
  }
}

static int run(const ms_kernel_call *call) { return ms_run_elements(call, ms_numel(&call->out[0]), pow_part); }

const ms_kernel ms_cpu_pow = {.run = run, .in_place = MS_OVER(0, 0) | MS_OVER(0, 1) | MS_OVER(0, 2)};
