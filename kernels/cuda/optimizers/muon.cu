/* muon.cu - Muon on chunks of f32, in one pass each, as PyTorch computes it.
 * Memory traffic: 16 bytes per element for the momentum, 12 for the weights.
 *
 *   muon_momentum   g = clipped(gradient * factor)  factor: element 2 of step_norm's output (mean and clipping)
 *                   b = b + (1 - momentum) (g - b)
 *                   u = nesterov: g + momentum (b - g); else b
 *   muon_apply      p = p (1 - lr wd) - lr adjust x         lr: Muon's own, muon_lr, times lr_scale
 *
 * The learning rate is read on the device, so that a captured graph sees new values.
 */
#include "kernels/cuda/vector.h"

extern "C" {
#include "kernels/clip.h"
}

namespace {

constexpr int THREADS = 256, V = 4;

struct momentum_step {
  const float *gradient, *norm;
  float *u, *buffer;
  float most, rest, back; /* back: how far u is from b on the way to g */
  template <int N> __device__ __forceinline__ void at(int64_t i) const {
    const float factor = norm[2];
    float g[N], b[N], direction[N];
    ms_vector_load<N>(gradient + i, g);
    ms_vector_load<N>(buffer + i, b);
#pragma unroll
    for (int l = 0; l < N; l++) {
      g[l] = ms_clipped(g[l] * factor, most);
      b[l] = fmaf(rest, g[l] - b[l], b[l]);
      direction[l] = fmaf(back, g[l] - b[l], b[l]);
    }
    ms_vector_store<N>(buffer + i, b);
    ms_vector_store<N>(u + i, direction);
  }
};

struct weight_step {
  const float *x;
  float *p;
  const ms_scalars *now;
  double lr_scale, weight_decay, adjust;
  template <int N> __device__ __forceinline__ void at(int64_t i) const {
    const double rate = now->muon_lr * lr_scale;
    const float kept = static_cast<float>(1.0 - rate * weight_decay), by = static_cast<float>(rate * adjust);
    float xs[N], ps[N];
    ms_vector_load<N>(x + i, xs);
    ms_vector_load<N>(p + i, ps);
#pragma unroll
    for (int l = 0; l < N; l++) ps[l] = fmaf(-by, xs[l], ps[l] * kept);
    ms_vector_store<N>(p + i, ps);
  }
};

template <typename STEP> __global__ void __launch_bounds__(THREADS) each(STEP step, int64_t n, int64_t vectors) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (thread < vectors) step.template at<V>(thread * V);
  for (int64_t i = vectors * V + thread; i < n; i += static_cast<int64_t>(gridDim.x) * THREADS) step.template at<1>(i);
}

template <typename STEP> int launch(const ms_kernel_call *call, STEP step, int64_t n, bool aligned) {
  const int64_t vectors = aligned ? n / V : 0;
  const unsigned blocks = static_cast<unsigned>(ms_cuda_ceil(n, THREADS * V));
  return MS_CUDA_LAUNCH(each<STEP>, blocks, THREADS, 0, call->stream, step, n, vectors);
}

int run(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->in[0]);
  const float *in = static_cast<const float *>(call->in_data[0]);
  float *out = static_cast<float *>(call->out_data[0]);
  const auto &by = call->attrs.update;
  bool aligned = ms_cuda_aligned(in) && ms_cuda_aligned(out);
  if (n == 0) return MS_OK;
  if (call->op == MS_OP_muon_apply)
    return launch(call, weight_step{in, out, call->scalars, by.lr_scale, by.weight_decay, by.adjust}, n, aligned);
  float *buffer = static_cast<float *>(call->out_data[1]);
  aligned = aligned && ms_cuda_aligned(buffer);
  const float back = by.nesterov ? 1.0f - static_cast<float>(by.momentum) : 0.0f;
  const momentum_step step = {in,
                              static_cast<const float *>(call->in_data[1]),
                              out,
                              buffer,
                              ms_clip_of(by.clip),
                              static_cast<float>(1.0 - by.momentum),
                              back};
  return launch(call, step, n, aligned);
}

} // namespace

extern const ms_kernel ms_cuda_muon = {nullptr, run, nullptr, MS_CUDA_OVER_muon};
