/* dropout.cu - y = x mask / (1 - p), x and y [n]. Memory traffic: 2 s bytes per element of s bytes. An element is kept
 * if its uniform random number is at least p. Philox computes that number from (step seed, stream, position in the
 * global batch) with the bits of base/numbers/philox.h, so the mask equals the CPU's. Backward is the same kernel
 * applied to dy.
 *
 * A thread draws four words at a time: ten rounds of two multiplications, about 25 instructions per element, which in
 * bf16 takes nearly as long as the memory access. If the four elements are not in one group of the generator (row
 * lengths that are not a multiple of 4), each word is drawn separately. y can overwrite x.
 */
#include "kernels/cuda/elementwise/philox.h"
#include "kernels/cuda/vector.h"
#include "kernels/batch_place.h"

namespace {

constexpr int THREADS = 256;

struct mask {
  uint64_t stream;
  ms_batch_place place; /* in the first micro-batch */
  unsigned limit;       /* elements with words below it are dropped */
  float scale;
};

__device__ __forceinline__ unsigned draw_one(uint64_t seed, uint64_t stream, uint64_t key) {
  return ms_word_of(ms_draw(seed, stream, key / 4), static_cast<int64_t>(key % 4));
}

/* The words of elements i to i + 3. */
__device__ __forceinline__ ms_words draw_four(uint64_t seed, uint64_t stream, const ms_batch_place &place, int64_t i) {
  const uint64_t key = ms_batch_place_key(&place, i);
  if (key % 4 == 0 && ms_batch_place_run(&place, i) >= 4) return ms_draw(seed, stream, key / 4);
  ms_words words;
#pragma unroll
  for (int l = 0; l < 4; l++) words.word[l] = draw_one(seed, stream, ms_batch_place_key(&place, i + l));
  return words;
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    dropout(const T *x, T *y, int64_t n, int64_t vectors, mask m, const ms_scalars *scalars) {
  constexpr int V = ms_lanes<T>;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  const uint64_t seed = scalars->seed;
  const ms_batch_place place = ms_batch_place_at(m.place, &scalars->rows);
  if (thread < vectors) {
    float v[V];
    ms_vector_load<V>(x + thread * V, v);
#pragma unroll
    for (int q = 0; q < V; q += 4) {
      const ms_words w = draw_four(seed, m.stream, place, thread * V + q);
#pragma unroll
      for (int l = 0; l < 4; l++) v[q + l] = w.word[l] < m.limit ? 0.0f : v[q + l] * m.scale;
    }
    ms_vector_store<V>(y + thread * V, v);
  }
  for (int64_t i = vectors * V + thread; i < n; i += static_cast<int64_t>(gridDim.x) * THREADS) {
    const unsigned word = draw_one(seed, m.stream, ms_batch_place_key(&place, i));
    ms_element_store(y + i, word < m.limit ? 0.0f : ms_element_load(x + i) * m.scale);
  }
}

template <class T> int run_typed(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->out[0]);
  const T *x = static_cast<const T *>(call->in_data[0]);
  T *y = static_cast<T *>(call->out_data[0]);
  const float p = static_cast<float>(call->attrs.mask.p);
  const mask m = {static_cast<uint64_t>(call->attrs.mask.stream), ms_batch_place_of(&call->attrs, n),
                  static_cast<unsigned>(ceilf(p * 16777216.0f)) << 8,
                  static_cast<float>(1.0 / (1.0 - call->attrs.mask.p))};
  if (n == 0) return MS_OK;
  const int64_t vectors = ms_cuda_aligned(x) && ms_cuda_aligned(y) ? n / ms_lanes<T> : 0;
  const int64_t blocks = ms_cuda_ceil(n, static_cast<int64_t>(THREADS) * ms_lanes<T>);
  return MS_CUDA_LAUNCH(dropout<T>, static_cast<unsigned>(blocks), THREADS, 0, call->stream, x, y, n, vectors, m,
                        call->scalars);
}

int run(const ms_kernel_call *call) { return MS_CUDA_FLOATS(call->in[0].dtype, T, run_typed<T>(call)); }

} // namespace

extern const ms_kernel ms_cuda_dropout = {nullptr, run, nullptr, MS_CUDA_OVER_dropout};
