/* adamw.cu - AdamW with decoupled weight decay (Loshchilov & Hutter 2019), as PyTorch computes it, in one pass over a
 * chunk.
 *
 *   g = gradient * factor                       factor: element 2 of step_norm's output (mean and clipping)
 *   p = p (1 - lr wd)
 *   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
 *   p = p - lr / (1 - beta1^step) m / (sqrt(v) / sqrt(1 - beta2^step) + eps)
 *
 * gradient, p [n] f32; m, v [n] f32 or bf16; step counts the updates of the parameter, including this one. Memory
 * traffic: 28 bytes per element (gradient, p, m and v are read; p, m and v are written), 20 with bf16 moments.
 *
 * Learning rate and step are read on the device, so that a captured graph sees new values. One thread per block
 * computes the factors in double while the block's first loads are in flight. Large chunks use 64 blocks for each of
 * 132 SMs, which stride over the chunk.
 *
 * bf16 moments are rounded stochastically with the Philox words of kernels/cpu/adamw.c. Chunks that begin inside a
 * group of four elements, or that are not aligned, are processed element by element. Moments in 8 bits:
 * adamw_records.cu.
 */
#include "kernels/cuda/adamw.h"
#include "kernels/cuda/philox.h"
#include "kernels/cuda/vector.h"

extern "C" {
#include "kernels/moments.h"
}

namespace {

constexpr int THREADS = 256, V = 4;
constexpr int64_t BLOCKS = 8448;

/* All [n]. */
template <class M> struct arrays {
  const float *gradient;
  float *p;
  M *m, *v;
};

/* The Philox stream, and the index in the parameter of the chunk's first element. */
struct rounding {
  uint64_t stream;
  int64_t first;
};

/* Stochastic rounding to bf16 with 16 random bits. Infinity and NaN are kept. */
__device__ __forceinline__ float round_at_random(float x, unsigned random) {
  const unsigned bits = __float_as_uint(x);
  return (bits & 0x7f800000u) == 0x7f800000u ? x : __uint_as_float((bits + random) & 0xffff0000u);
}

__device__ __forceinline__ void round_moments(const float *, float &, float &, unsigned) {}
__device__ __forceinline__ void round_moments(const ms_b16 *, float &m, float &v, unsigned word) {
  m = round_at_random(m, word & 0xffffu);
  v = round_at_random(v, word >> 16);
}

__device__ __forceinline__ ms_words draw_for(const float *, const rounding &, const float *, int64_t) { return {}; }
__device__ __forceinline__ ms_words draw_for(const ms_b16 *, const rounding &r, const float *updates, int64_t i) {
  return ms_draw(r.stream, static_cast<uint64_t>(*updates), static_cast<uint64_t>(r.first + i) / 4);
}

/* One vector of V elements per array, in a thread's registers. */
template <class M> struct vectors_of {
  float g[V], p[V], m[V], v[V];
  __device__ __forceinline__ void load(const arrays<M> &a, int64_t i) {
    ms_vector_load<V>(a.gradient + i, g);
    ms_vector_load<V>(a.p + i, p);
    ms_vector_load<V>(a.m + i, m);
    ms_vector_load<V>(a.v + i, v);
  }
  __device__ __forceinline__ void store(const arrays<M> &a, int64_t i) const {
    ms_vector_store<V>(a.p + i, p);
    ms_vector_store<V>(a.m + i, m);
    ms_vector_store<V>(a.v + i, v);
  }
};

/* Updates a chunk of n elements, of which the first vectors * V are in whole vectors. norm f32 [4], updates f32 [1]. */
template <class M>
__global__ void __launch_bounds__(THREADS)
    adamw(arrays<M> a, int64_t n, int64_t vectors, ms_adamw_setting s, rounding r, const ms_scalars *now,
          const float *norm, const float *updates) {
  __shared__ ms_adamw_factors made;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * THREADS;
  vectors_of<M> x;
  if (thread < vectors) x.load(a, thread * V);
  if (threadIdx.x == 0) made = ms_adamw_factors_of(s, now, norm, updates);
  __syncthreads();
  const ms_adamw update_of = ms_adamw_of(s, made);
  for (int64_t i = thread; i < vectors; i += threads) {
    if (i != thread) x.load(a, i * V);
    const ms_words w = draw_for(a.m, r, updates, i * V);
#pragma unroll
    for (int l = 0; l < V; l++) {
      update_of(x.g[l], x.p[l], x.m[l], x.v[l]);
      round_moments(a.m, x.m[l], x.v[l], w.word[l]);
    }
    x.store(a, i * V);
  }
  for (int64_t i = vectors * V + thread; i < n; i += threads) {
    float m = ms_element_load(a.m + i), v = ms_element_load(a.v + i);
    update_of(a.gradient[i], a.p[i], m, v);
    round_moments(a.m, m, v, ms_word_of(draw_for(a.m, r, updates, i), r.first + i));
    ms_element_store(a.m + i, m);
    ms_element_store(a.v + i, v);
  }
}

template <class M> int run_typed(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->in[0]);
  const arrays<M> a = {static_cast<const float *>(call->in_data[0]), static_cast<float *>(call->out_data[0]),
                       static_cast<M *>(call->out_data[1]), static_cast<M *>(call->out_data[2])};
  const rounding r = {static_cast<uint64_t>(call->attrs.i[1]), call->attrs.i[2]};
  const ms_adamw_setting s = ms_adamw_setting_of(call);
  if (n == 0) return MS_OK;
  const int aligned =
      ms_cuda_aligned(a.gradient) && ms_cuda_aligned(a.p) && ms_cuda_aligned(a.m) && ms_cuda_aligned(a.v);
  const int64_t wanted = ms_cuda_ceil(n, THREADS * V), blocks = wanted < BLOCKS ? wanted : BLOCKS;
  const int64_t vectors = aligned && r.first % V == 0 ? n / V : 0;
  return MS_CUDA_LAUNCH(adamw<M>, static_cast<unsigned>(blocks), THREADS, 0, call->stream, a, n, vectors, s, r,
                        call->scalars, static_cast<const float *>(call->in_data[1]),
                        static_cast<const float *>(call->in_data[2]));
}

int run(const ms_kernel_call *call) {
  if (call->attrs.i[3] == MS_ADAMW_I8) return ms_cuda_adamw_records(call);
  return MS_CUDA_FLOATS(call->out[1].dtype, M, run_typed<M>(call));
}

} // namespace

extern const ms_kernel ms_cuda_adamw = {nullptr, run, nullptr, MS_CUDA_OVER_adamw};
