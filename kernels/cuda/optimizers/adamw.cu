/* adamw.cu - AdamW with decoupled weight decay (Loshchilov & Hutter 2019), as PyTorch computes it, in one pass over a
 * chunk.
 *
 *   g = gradient * factor, clipped by value     factor: element 2 of step_norm's output (mean and clipping)
 *   p = p (1 - lr wd)
 *   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
 *   p = p - lr / (1 - beta1^step) m / (sqrt(v) / sqrt(1 - beta2^step) + eps)
 *
 * Adam (Kingma & Ba 2015) is the same, but that the decay is in the gradient: g = g + wd p, and p = p.
 *
 * gradient, p [n] f32; m, v [n] f32 or bf16; step counts the updates of the parameter, including this one. Memory
 * traffic: 28 bytes per element (gradient, p, m and v are read; p, m and v are written), 20 with bf16 moments, and 2
 * more for a copy of p in bf16. update.h has the loop, and the launches of many parameters. Moments in 8 bits:
 * adamw_records.cu.
 */
#include "kernels/cuda/optimizers/adamw.h"
#include "kernels/cuda/optimizers/update.h"

extern "C" {
#include "kernels/formats/moments.h"
}

namespace {

struct adamw {
  static constexpr int MOMENTS = 2;
  using setting = ms_adamw_setting;
  using factors = ms_adamw_factors;
  ms_adamw by;
  static setting setting_of(const ms_kernel_call *call) { return ms_adamw_setting_of(call); }
  static __device__ factors factors_of(const setting &s, const ms_scalars *now, const float *norm,
                                       const float *updates) {
    return ms_adamw_factors_of(s, now, norm, updates);
  }
  static __device__ __forceinline__ adamw element_of(const setting &s, const factors &made) {
    return {ms_adamw_of(s, made)};
  }
  __device__ __forceinline__ void operator()(float gradient, float &p, float (&m)[MOMENTS]) const {
    by(gradient, p, m[0], m[1]);
  }
};

int launches(const ms_kernel_call *const *call, int calls) {
  if (call[0]->attrs.update.moments == MS_ADAMW_I8) return ms_cuda_adamw_records(call[0]); /* each is alone */
  return MS_CUDA_FLOATS(call[0]->out[1].dtype, M, (ms_update_launches<adamw, M>(call, calls)));
}

int run_together(const ms_kernel_call *const *call, int calls) { return ms_update_together(call, calls, launches); }

int run(const ms_kernel_call *call) { return launches(&call, 1); }

} // namespace

extern const ms_kernel ms_cuda_adamw = {nullptr, run,     nullptr,      MS_CUDA_OVER_adamw,
                                        nullptr, nullptr, run_together, ms_cuda_update_joins};
