/* adamw.c - AdamW with decoupled weight decay (Loshchilov & Hutter 2019), as PyTorch computes it, in one pass over a
** chunk: each of gradient, master weights and both moments crosses memory once.
**
**   g = gradient * factor                       factor: the step norm's third number (mean and clipping)
**   p = p (1 - lr wd)
**   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
**   p = p - lr / (1 - beta1^step) m / (sqrt(v) / sqrt(1 - beta2^step) + eps)
*/
#include "kernels/cpu/block.h"

#include <math.h>

#include "kernels/cpu/parallel.h"

MS_CLONES static void adamw_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const ms_scalars *now = call->scalars;
  const double *f = call->attrs.f;
  double eps_value;
  memcpy(&eps_value, &call->attrs.i[0], sizeof eps_value);
  const double lr_value = now->lr * f[0], correction1 = 1.0 - pow(f[2], (double)now->step),
               correction2 = 1.0 - pow(f[3], (double)now->step);
  const float keep = (float)(1.0 - lr_value * f[1]), step_size = (float)(lr_value / correction1);
  const float inverse_root = (float)(1.0 / sqrt(correction2)), eps = (float)eps_value;
  const float beta1 = (float)f[2], rest1 = (float)(1.0 - f[2]), beta2 = (float)f[3], rest2 = (float)(1.0 - f[3]);
  const float factor = ((const float *)call->in_data[1])[2];

  const float *restrict gradient = call->in_data[0];
  float *restrict p = call->out_data[0], *restrict m = call->out_data[1], *restrict v = call->out_data[2];
#pragma omp simd
  for (int64_t i = begin; i < end; i++) {
    float g = gradient[i] * factor;
    float m1 = beta1 * m[i] + rest1 * g;
    float v1 = beta2 * v[i] + rest2 * (g * g);
    m[i] = m1;
    v[i] = v1;
    p[i] = p[i] * keep - step_size * m1 / (sqrtf(v1) * inverse_root + eps);
  }
}

static int run(const ms_kernel_call *call) { return ms_run_elements(call, ms_numel(&call->in[0]), adamw_part); }

const ms_kernel ms_cpu_adamw = {.run = run};
