/* sgd.cu - SGD as PyTorch computes it, in one pass over a chunk of f32 gradient, weights p and momentum b, all [n].
 * Memory traffic: 12 bytes per element, 20 with momentum.
 *
 *   g = clipped(gradient * factor) + wd p       factor: element 2 of step_norm's output (mean and clipping)
 *   b = g in the parameter's first update, then momentum b + (1 - dampening) g
 *   p = p - lr (nesterov: g + momentum b; momentum: b; neither: g)
 *
 * Learning rate and step are read on the device, so that a captured graph sees new values.
 */
#include "kernels/cuda/vector.h"

extern "C" {
#include "kernels/clip.h"
}

namespace {

constexpr int THREADS = 256, V = 4;

struct setting {
  double lr_scale, dampening;
  float weight_decay, momentum, most;
  int has_momentum, nesterov;
};

struct update {
  float factor, most, lr, decay, momentum, rest, own, carried;
  bool first;
  /* p changes by -lr (own g + carried b). */
  __device__ __forceinline__ void operator()(float gradient, float &p, float &b) const {
    const float g = fmaf(decay, p, ms_clipped(gradient * factor, most));
    b = fmaf(rest, g, first ? 0.0f : momentum * b);
    p = fmaf(-lr, fmaf(own, g, carried * b), p);
  }
};

__device__ __forceinline__ update update_of(const setting &s, const ms_scalars *now, const float *norm,
                                            const float *updates) {
  const bool first = *updates == 1.0f;
  update u;
  u.factor = norm[2];
  u.most = s.most;
  u.lr = static_cast<float>(now->lr * s.lr_scale);
  u.decay = s.weight_decay;
  u.momentum = s.momentum;
  u.rest = first ? 1.0f : static_cast<float>(1.0 - s.dampening);
  u.own = !s.has_momentum || s.nesterov ? 1.0f : 0.0f;
  u.carried = !s.has_momentum ? 0.0f : s.nesterov ? s.momentum : 1.0f;
  u.first = first;
  return u;
}

template <bool MOMENTUM>
__global__ void __launch_bounds__(THREADS)
    sgd(const float *gradient, float *p, float *buffer, int64_t n, int64_t vectors, setting s, const ms_scalars *now,
        const float *norm, const float *updates) {
  const update u = update_of(s, now, norm, updates);
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  float none = 0.0f;
  if (thread < vectors) {
    float gs[V], ps[V], bs[V] = {};
    ms_vector_load<V>(gradient + thread * V, gs);
    ms_vector_load<V>(p + thread * V, ps);
    if (MOMENTUM) ms_vector_load<V>(buffer + thread * V, bs);
#pragma unroll
    for (int l = 0; l < V; l++) u(gs[l], ps[l], bs[l]);
    ms_vector_store<V>(p + thread * V, ps);
    if (MOMENTUM) ms_vector_store<V>(buffer + thread * V, bs);
  }
  for (int64_t i = vectors * V + thread; i < n; i += static_cast<int64_t>(gridDim.x) * THREADS)
    u(gradient[i], p[i], MOMENTUM ? buffer[i] : none);
}

int run(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->in[0]);
  const float *gradient = static_cast<const float *>(call->in_data[0]),
              *norm = static_cast<const float *>(call->in_data[1]),
              *updates = static_cast<const float *>(call->in_data[2]);
  float *p = static_cast<float *>(call->out_data[0]), *buffer = static_cast<float *>(call->out_data[1]);
  const double *f = call->attrs.f;
  const setting s = {f[0],
                     f[3],
                     static_cast<float>(f[1]),
                     static_cast<float>(f[2]),
                     ms_clip_of(&call->attrs),
                     f[2] != 0.0,
                     call->attrs.i[0] != 0};
  if (n == 0) return MS_OK;
  const int aligned = ms_cuda_aligned(gradient) && ms_cuda_aligned(p) && (!s.has_momentum || ms_cuda_aligned(buffer));
  const int64_t vectors = aligned ? n / V : 0;
  const unsigned blocks = static_cast<unsigned>(ms_cuda_ceil(n, THREADS * V));
  if (s.has_momentum)
    return MS_CUDA_LAUNCH(sgd<true>, blocks, THREADS, 0, call->stream, gradient, p, buffer, n, vectors, s,
                          call->scalars, norm, updates);
  return MS_CUDA_LAUNCH(sgd<false>, blocks, THREADS, 0, call->stream, gradient, p, buffer, n, vectors, s, call->scalars,
                        norm, updates);
}

} // namespace

extern const ms_kernel ms_cuda_sgd = {nullptr, run, nullptr, MS_CUDA_OVER_sgd};
