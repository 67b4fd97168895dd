/* lion.cu - Lion (Chen et al. 2023, algorithm 2), in one pass over a chunk. Memory traffic: 20 bytes per element, 16
 * with a bf16 moment.
 *
 *   g = gradient * factor, clipped by value     factor: element 2 of step_norm's output (mean and clipping)
 *   p = p (1 - lr wd) - lr sign(beta1 m + (1 - beta1) g)
 *   m = beta2 m + (1 - beta2) g
 *
 * gradient, p [n] f32; m [n] f32 or bf16. update.h has the loop, and the launches of many parameters.
 */
#include "kernels/cuda/optimizers/update.h"

extern "C" {
#include "kernels/clip.h"
}

namespace {

struct lion {
  static constexpr int MOMENTS = 1;
  struct setting {
    double lr_scale, weight_decay;
    float beta1, rest1, beta2, rest2, most;
  };
  struct factors {
    float keep, rate, gradient;
  };
  setting s;
  factors by;
  static setting setting_of(const ms_kernel_call *call) {
    const auto &by = call->attrs.update;
    return {by.lr_scale,
            by.weight_decay,
            static_cast<float>(by.beta1),
            static_cast<float>(1.0 - by.beta1),
            static_cast<float>(by.beta2),
            static_cast<float>(1.0 - by.beta2),
            ms_clip_of(by.clip)};
  }
  static __device__ factors factors_of(const setting &s, const ms_scalars *now, const float *norm, const float *) {
    const double rate = now->lr * s.lr_scale;
    return {static_cast<float>(1.0 - rate * s.weight_decay), static_cast<float>(rate), norm[2]};
  }
  static __device__ __forceinline__ lion element_of(const setting &s, const factors &made) { return {s, made}; }
  __device__ __forceinline__ void operator()(float gradient, float &p, float (&m)[MOMENTS]) const {
    const float g = ms_clipped(gradient * by.gradient, s.most), c = fmaf(s.beta1, m[0], s.rest1 * g);
    m[0] = fmaf(s.beta2, m[0], s.rest2 * g);
    p = fmaf(p, by.keep, -(c > 0.0f ? by.rate : c < 0.0f ? -by.rate : c));
  }
};

int launches(const ms_kernel_call *const *call, int calls) {
  return MS_CUDA_FLOATS(call[0]->out[1].dtype, M, (ms_update_launches<lion, M>(call, calls)));
}

int run_together(const ms_kernel_call *const *call, int calls) { return ms_update_together(call, calls, launches); }

int run(const ms_kernel_call *call) { return launches(&call, 1); }

} // namespace

extern const ms_kernel ms_cuda_lion = {nullptr, run,     nullptr,      MS_CUDA_OVER_lion,
                                       nullptr, nullptr, run_together, ms_cuda_update_joins};
