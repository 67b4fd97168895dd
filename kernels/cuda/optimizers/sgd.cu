/* sgd.cu - SGD as PyTorch computes it, in one pass over a chunk of f32 gradient, weights p and momentum b, all [n].
 * Memory traffic: 12 bytes per element, 20 with momentum.
 *
 *   g = clipped(gradient * factor) + wd p       factor: element 2 of step_norm's output (mean and clipping)
 *   b = g in update momentum_from of the parameter, or its first, then momentum b + (1 - dampening) g
 *   p = p - lr (nesterov: g + momentum b; momentum: b; neither: g)
 *
 * update.h has the loop, and the launches of many parameters.
 */
#include "kernels/cuda/optimizers/update.h"

extern "C" {
#include "kernels/clip.h"
}

namespace {

struct sgd_setting {
  double lr_scale, weight_decay, dampening, momentum_from;
  float momentum, most;
  int nesterov;
};

struct sgd_factors {
  float factor, lr, rest;
  int first;
};

/* With momentum or without. */
template <int HAS> struct sgd {
  static constexpr int MOMENTS = HAS;
  using setting = sgd_setting;
  using factors = sgd_factors;
  factors by;
  float most, decay, momentum, own, carried;
  static setting setting_of(const ms_kernel_call *call) {
    const auto &by = call->attrs.update;
    return {by.lr_scale,         by.weight_decay, by.dampening, by.momentum_from, static_cast<float>(by.momentum),
            ms_clip_of(by.clip), by.nesterov != 0};
  }
  static __device__ factors factors_of(const setting &s, const ms_scalars *now, const float *norm,
                                       const float *updates) {
    const int first = *updates == fmax(1.0, s.momentum_from);
    return {norm[2], static_cast<float>(now->lr * s.lr_scale), first ? 1.0f : static_cast<float>(1.0 - s.dampening),
            first};
  }
  static __device__ __forceinline__ sgd element_of(const setting &s, const factors &made) {
    return {made,
            s.most,
            static_cast<float>(s.weight_decay),
            s.momentum,
            !HAS || s.nesterov ? 1.0f : 0.0f,
            !HAS         ? 0.0f
            : s.nesterov ? s.momentum
                         : 1.0f};
  }
  /* p changes by -lr (own g + carried b). */
  __device__ __forceinline__ void operator()(float gradient, float &p, float (&m)[HAS ? HAS : 1]) const {
    const float g = fmaf(decay, p, ms_clipped(gradient * by.factor, most));
    float b = 0.0f;
    if constexpr (HAS) b = m[0] = fmaf(by.rest, g, by.first ? 0.0f : momentum * m[0]);
    p = fmaf(-by.lr, fmaf(own, g, carried * b), p);
  }
};

int launches(const ms_kernel_call *const *call, int calls) {
  return call[0]->attrs.update.momentum != 0.0 ? ms_update_launches<sgd<1>, float>(call, calls)
                                               : ms_update_launches<sgd<0>, float>(call, calls);
}

int run_together(const ms_kernel_call *const *call, int calls) { return ms_update_together(call, calls, launches); }

int run(const ms_kernel_call *call) { return launches(&call, 1); }

} // namespace

extern const ms_kernel ms_cuda_sgd = {nullptr, run,     nullptr,      MS_CUDA_OVER_sgd,
                                      nullptr, nullptr, run_together, ms_cuda_update_joins};
