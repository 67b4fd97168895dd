/* outer_sgd.cu - the outer step of local SGD (DiLoCo), in one pass over a chunk, all f32 [n]: d, the sum over replicas
 * of what their weights moved since the last sync; the local weights w; the synced weights s; the momentum buffer b.
 * Memory traffic: 16 bytes per element, 24 with momentum; 4 more with alpha.
 *
 *   g = share d                          share: 1 / replicas
 *   b = momentum b + g                   b is 0 before the first sync, as in torch.optim.SGD
 *   s = s - lr (nesterov: g + momentum b; else: b)
 *   w = s + alpha (w - s)                alpha 0: exactly s
 *
 * The learning rate is read on the device, so that a captured graph sees new values.
 */
#include "kernels/cuda/vector.h"

namespace {

constexpr int THREADS = 256, V = 4;

struct outer_step {
  float momentum, alpha, share, own, carried; /* s changes by -lr (own g + carried b) */
  __device__ __forceinline__ void operator()(float lr, float d, float &w, float &s, float &b) const {
    const float g = share * d;
    b = fmaf(momentum, b, g);
    s = fmaf(-lr, fmaf(own, g, carried * b), s);
    w = alpha == 0.0f ? s : fmaf(alpha, w - s, s);
  }
};

template <bool MOMENTUM>
__global__ void __launch_bounds__(THREADS) outer_sgd(const float *d, float *w, float *s, float *b, int64_t n,
                                                     int64_t vectors, outer_step step, const ms_scalars *now) {
  const float lr = static_cast<float>(now->lr);
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (thread < vectors) {
    float ds[V], ws[V] = {}, ss[V], bs[V] = {};
    ms_vector_load<V>(d + thread * V, ds);
    ms_vector_load<V>(s + thread * V, ss);
    if (step.alpha != 0.0f) ms_vector_load<V>(w + thread * V, ws);
    if (MOMENTUM) ms_vector_load<V>(b + thread * V, bs);
#pragma unroll
    for (int l = 0; l < V; l++) step(lr, ds[l], ws[l], ss[l], bs[l]);
    ms_vector_store<V>(w + thread * V, ws);
    ms_vector_store<V>(s + thread * V, ss);
    if (MOMENTUM) ms_vector_store<V>(b + thread * V, bs);
  }
  for (int64_t i = vectors * V + thread; i < n; i += static_cast<int64_t>(gridDim.x) * THREADS) {
    float none = 0.0f;
    step(lr, d[i], w[i], s[i], MOMENTUM ? b[i] : none);
  }
}

int run(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->in[0]);
  const float *d = static_cast<const float *>(call->in_data[0]);
  float *w = static_cast<float *>(call->out_data[0]), *s = static_cast<float *>(call->out_data[1]),
        *b = static_cast<float *>(call->out_data[2]);
  const auto &by = call->attrs.outer_sgd;
  const bool has_momentum = by.momentum != 0.0, nesterov = has_momentum && by.nesterov != 0;
  const float momentum = static_cast<float>(by.momentum);
  const outer_step step = {momentum, static_cast<float>(by.alpha), static_cast<float>(by.share), nesterov ? 1.0f : 0.0f,
                           nesterov ? momentum : 1.0f};
  if (n == 0) return MS_OK;
  const int aligned =
      ms_cuda_aligned(d) && ms_cuda_aligned(w) && ms_cuda_aligned(s) && (!has_momentum || ms_cuda_aligned(b));
  const int64_t vectors = aligned ? n / V : 0;
  const unsigned blocks = static_cast<unsigned>(ms_cuda_ceil(n, THREADS * V));
  if (has_momentum)
    return MS_CUDA_LAUNCH(outer_sgd<true>, blocks, THREADS, 0, call->stream, d, w, s, b, n, vectors, step,
                          call->scalars);
  return MS_CUDA_LAUNCH(outer_sgd<false>, blocks, THREADS, 0, call->stream, d, w, s, b, n, vectors, step,
                        call->scalars);
}

} // namespace

extern const ms_kernel ms_cuda_outer_sgd = {nullptr, run, nullptr, MS_CUDA_OVER_outer_sgd};
