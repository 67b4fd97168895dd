/* adamw.h - a step of AdamW for one element (adamw.cu), whatever its moments are kept in. */
#ifndef MS_KERNELS_CUDA_ADAMW_H
#define MS_KERNELS_CUDA_ADAMW_H

#include "kernels/cuda/launch.h"

extern "C" {
#include "kernels/clip.h"
}

#include <string.h>

struct ms_adamw_setting {
  double lr_scale, weight_decay, beta1, beta2, eps;
  float most;  /* clips by value */
  int coupled; /* Adam: the decay is in the gradient */
};

struct ms_adamw_factors {
  float keep, step_size, inverse_root, gradient;
};

static __device__ ms_adamw_factors ms_adamw_factors_of(const ms_adamw_setting &s, const ms_scalars *now,
                                                       const float *norm, const float *updates) {
  const double lr = now->lr * s.lr_scale, step = static_cast<double>(*updates);
  ms_adamw_factors f;
  f.keep = s.coupled ? 1.0f : static_cast<float>(1.0 - lr * s.weight_decay);
  f.step_size = static_cast<float>(lr / (1.0 - pow(s.beta1, step)));
  f.inverse_root = static_cast<float>(1.0 / sqrt(1.0 - pow(s.beta2, step)));
  f.gradient = norm[2];
  return f;
}

struct ms_adamw {
  ms_adamw_factors by;
  float beta1, rest1, beta2, rest2, eps, most, coupled;
  __device__ __forceinline__ void operator()(float gradient, float &p, float &m, float &v) const {
    const float g = fmaf(coupled, p, ms_clipped(gradient * by.gradient, most)); /* coupled is 0 in AdamW */
    m = fmaf(beta1, m, rest1 * g);
    v = fmaf(beta2, v, rest2 * (g * g));
    p = fmaf(p, by.keep, -(by.step_size * m / fmaf(sqrtf(v), by.inverse_root, eps)));
  }
};

static inline ms_adamw_setting ms_adamw_setting_of(const ms_kernel_call *call) {
  const auto &by = call->attrs.update;
  return {by.lr_scale, by.weight_decay, by.beta1, by.beta2, by.eps, ms_clip_of(by.clip), by.coupled != 0};
}

/* The update of a step, which one thread of a block makes of the factors. */
static __device__ ms_adamw ms_adamw_of(const ms_adamw_setting &s, const ms_adamw_factors &by) {
  return {by,
          static_cast<float>(s.beta1),
          static_cast<float>(1.0 - s.beta1),
          static_cast<float>(s.beta2),
          static_cast<float>(1.0 - s.beta2),
          static_cast<float>(s.eps),
          s.most,
          s.coupled ? static_cast<float>(s.weight_decay) : 0.0f};
}

/* The op with moments in records (adamw_records.cu). */
int ms_cuda_adamw_records(const ms_kernel_call *call);

#endif
