/* lion.cu - Lion (Chen et al. 2023, algorithm 2), in one pass over a chunk. Memory traffic: 20 bytes per element, 16
 * with a bf16 moment.
 *
 *   g = gradient * factor, clipped by value     factor: element 2 of step_norm's output (mean and clipping)
 *   p = p (1 - lr wd) - lr sign(beta1 m + (1 - beta1) g)
 *   m = beta2 m + (1 - beta2) g
 *
 * gradient, p [n] f32; m [n] f32 or bf16, rounded stochastically with the Philox words of kernels/cpu/lion.c. The
 * learning rate is read on the device, so that a captured graph sees new values.
 */
#include "kernels/cuda/philox.h"
#include "kernels/cuda/random_rounding.h"
#include "kernels/cuda/vector.h"

extern "C" {
#include "kernels/clip.h"
#include "kernels/moments.h"
}

namespace {

constexpr int THREADS = 256, V = 4;

struct setting {
  double lr_scale, weight_decay;
  float beta1, rest1, beta2, rest2, most;
  uint64_t stream;
  int64_t first;
};

struct update {
  float keep, rate, factor;
  __device__ __forceinline__ void operator()(const setting &s, float gradient, float &p, float &m) const {
    const float g = ms_clipped(gradient * factor, s.most), c = fmaf(s.beta1, m, s.rest1 * g);
    m = fmaf(s.beta2, m, s.rest2 * g);
    p = fmaf(p, keep, -(c > 0.0f ? rate : c < 0.0f ? -rate : c));
  }
};

__device__ __forceinline__ ms_words draw_for(const float *, const setting &, const float *, int64_t) { return {}; }
__device__ __forceinline__ ms_words draw_for(const ms_b16 *, const setting &s, const float *updates, int64_t i) {
  return ms_draw(s.stream, static_cast<uint64_t>(*updates), static_cast<uint64_t>(s.first + i) / 4);
}
__device__ __forceinline__ float rounded(const float *, float m, unsigned) { return m; }
__device__ __forceinline__ float rounded(const ms_b16 *, float m, unsigned word) {
  return ms_round_at_random(m, word & 0xffffu);
}

template <class M>
__global__ void __launch_bounds__(THREADS)
    lion(const float *gradient, float *p, M *m, int64_t n, int64_t vectors, setting s, const ms_scalars *now,
         const float *norm, const float *updates) {
  const double rate = now->lr * s.lr_scale;
  const update u = {static_cast<float>(1.0 - rate * s.weight_decay), static_cast<float>(rate), norm[2]};
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (thread < vectors) {
    float gs[V], ps[V], ms[V];
    ms_vector_load<V>(gradient + thread * V, gs);
    ms_vector_load<V>(p + thread * V, ps);
    ms_vector_load<V>(m + thread * V, ms);
    const ms_words w = draw_for(m, s, updates, thread * V);
#pragma unroll
    for (int l = 0; l < V; l++) {
      u(s, gs[l], ps[l], ms[l]);
      ms[l] = rounded(m, ms[l], w.word[l]);
    }
    ms_vector_store<V>(p + thread * V, ps);
    ms_vector_store<V>(m + thread * V, ms);
  }
  for (int64_t i = vectors * V + thread; i < n; i += static_cast<int64_t>(gridDim.x) * THREADS) {
    float m1 = ms_element_load(m + i);
    u(s, gradient[i], p[i], m1);
    ms_element_store(m + i, rounded(m, m1, ms_word_of(draw_for(m, s, updates, i), s.first + i)));
  }
}

int run(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->in[0]);
  const float *gradient = static_cast<const float *>(call->in_data[0]),
              *norm = static_cast<const float *>(call->in_data[1]),
              *updates = static_cast<const float *>(call->in_data[2]);
  float *p = static_cast<float *>(call->out_data[0]);
  void *m = call->out_data[1];
  const double *f = call->attrs.f;
  const setting s = {f[0],
                     f[1],
                     static_cast<float>(f[2]),
                     static_cast<float>(1.0 - f[2]),
                     static_cast<float>(f[3]),
                     static_cast<float>(1.0 - f[3]),
                     ms_clip_of(&call->attrs),
                     static_cast<uint64_t>(call->attrs.i[1]),
                     call->attrs.i[2]};
  if (n == 0) return MS_OK;
  /* A vector is a group of the Philox stream. */
  const bool whole = ms_cuda_aligned(gradient) && ms_cuda_aligned(p) && ms_cuda_aligned(m) && s.first % V == 0;
  const int64_t vectors = whole ? n / V : 0;
  const unsigned blocks = static_cast<unsigned>(ms_cuda_ceil(n, THREADS * V));
  return MS_CUDA_FLOATS(call->out[1].dtype, M,
                        MS_CUDA_LAUNCH(lion<M>, blocks, THREADS, 0, call->stream, gradient, p, static_cast<M *>(m), n,
                                       vectors, s, call->scalars, norm, updates));
}

} // namespace

extern const ms_kernel ms_cuda_lion = {nullptr, run, nullptr, MS_CUDA_OVER_lion};
