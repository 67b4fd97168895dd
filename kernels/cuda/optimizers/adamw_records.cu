/* adamw_records.cu - AdamW with moments in 8 bits (kernels/formats/moments.h). Memory traffic: 16.06 bytes per element
 * (gradient, p, both moments are read; p and both moments are written), and 2 more for a copy of p in bf16.
 *
 * A warp has a record: each lane twice four consecutive elements, whose codes are a word. It decodes them, updates them
 * as adamw.cu does, finds the largest magnitudes with the other lanes, and encodes them by a binary search among the
 * borders of the codes. The tables of both maps are in shared memory, filled by the block's threads.
 */
#include "kernels/cuda/optimizers/adamw.h"
#include "kernels/cuda/reductions/reduce.h"
#include "kernels/cuda/vector.h"

extern "C" {
#include "kernels/formats/moments.h"
}

#include "kernels/formats/moment_code.h"

namespace {

constexpr int THREADS = 256, WARPS = THREADS / MS_WARP, V = 4;
constexpr int HALVES = MS_MOMENT_BLOCK / (MS_WARP * V), SCALE = MS_MOMENT_BLOCK / 4; /* the word of the scale */
constexpr int64_t BLOCKS = 1056;

struct tables {
  float number[2][256], border[2][256]; /* by map and code */
};

/* The lane's elements of a moment. */
using elements = float[HALVES][V];

__device__ __forceinline__ void decode(const tables &t, int map, const uint32_t *record, int lane, elements &x) {
  const float scale = ms_float8_value(record[SCALE]);
#pragma unroll
  for (int h = 0; h < HALVES; h++) {
    const uint32_t codes = record[h * MS_WARP + lane];
#pragma unroll
    for (int l = 0; l < V; l++) x[h][l] = t.number[map][codes >> 8 * l & 0xffu] * scale;
  }
}

/* All lanes of the warp call it, after all have decoded. */
__device__ __forceinline__ void encode(const tables &t, int map, const elements &x, uint32_t *record, int lane) {
  uint32_t most = 0, positive = 0;
#pragma unroll
  for (int h = 0; h < HALVES; h++)
#pragma unroll
    for (int l = 0; l < V; l++) {
      most = ms_larger_bits()(most, ms_magnitude(x[h][l]));
      positive = ms_larger_bits()(positive, ms_moment_positive(x[h][l]));
    }
  const float scale =
      ms_moment_scale(ms_warp_reduce(most, ms_larger_bits()), ms_warp_reduce(positive, ms_larger_bits()));
#pragma unroll
  for (int h = 0; h < HALVES; h++) {
    uint32_t codes = 0;
#pragma unroll
    for (int l = 0; l < V; l++)
      codes |= static_cast<uint32_t>(ms_moment_code(t.border[map], ms_block_quotient(x[h][l], scale))) << 8 * l;
    record[h * MS_WARP + lane] = codes;
  }
  if (lane == 0) record[SCALE] = ms_float8_bits(scale);
}

/* Loads and stores elements [i, i + V) of n. `whole`: as a vector. */
__device__ __forceinline__ void load(const float *at, int64_t i, int64_t n, bool whole, float (&x)[V]) {
  if (whole) {
    ms_vector_load<V>(at + i, x);
    return;
  }
#pragma unroll
  for (int l = 0; l < V; l++) x[l] = i + l < n ? at[i + l] : 0.0f;
}

template <class T> __device__ __forceinline__ void store(T *at, int64_t i, int64_t n, bool whole, const float (&x)[V]) {
  if (whole) {
    ms_vector_store<V>(at + i, x);
    return;
  }
#pragma unroll
  for (int l = 0; l < V; l++)
    if (i + l < n) ms_element_store(at + i + l, x[l]);
}

/* gradient, p [n] f32; copy [n] bf16, or NULL; m, v: records. After the elements of the last record, moments become 0.
 */
__global__ void __launch_bounds__(THREADS)
    adamw_records(const float *gradient, float *p, ms_b16 *copy, uint32_t *m, uint32_t *v, int64_t n, bool aligned,
                  ms_adamw_setting s, const ms_scalars *now, const float *norm, const float *updates) {
  __shared__ ms_adamw_factors made;
  __shared__ tables t;
  for (int code = threadIdx.x; code < 256; code += THREADS)
    for (int map = 0; map < 2; map++) {
      t.number[map][code] = ms_moment_number(map, code);
      t.border[map][code] = ms_moment_border(map, code);
    }
  if (threadIdx.x == 0) made = ms_adamw_factors_of(s, now, norm, updates);
  __syncthreads();
  const ms_adamw update_of = ms_adamw_of(s, made);
  const int lane = threadIdx.x % MS_WARP;
  const int64_t records = ms_moment_records(n), warps = static_cast<int64_t>(gridDim.x) * WARPS;
  for (int64_t r = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / MS_WARP; r < records; r += warps) {
    elements g, w, m1, v1;
    decode(t, MS_MOMENT_FIRST, m + r * MS_MOMENT_WORDS, lane, m1);
    decode(t, MS_MOMENT_SECOND, v + r * MS_MOMENT_WORDS, lane, v1);
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
      const int64_t i = r * MS_MOMENT_BLOCK + (h * MS_WARP + lane) * V;
      const bool whole = aligned && i + V <= n;
      load(gradient, i, n, whole, g[h]);
      load(p, i, n, whole, w[h]);
#pragma unroll
      for (int l = 0; l < V; l++) {
        update_of(g[h][l], w[h][l], m1[h][l], v1[h][l]);
        if (i + l >= n) m1[h][l] = v1[h][l] = 0.0f;
      }
      store(p, i, n, whole, w[h]);
      if (copy) store(copy, i, n, whole, w[h]);
    }
    encode(t, MS_MOMENT_FIRST, m1, m + r * MS_MOMENT_WORDS, lane);
    encode(t, MS_MOMENT_SECOND, v1, v + r * MS_MOMENT_WORDS, lane);
  }
}

} // namespace

int ms_cuda_adamw_records(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->in[0]);
  if (n == 0) return MS_OK;
  const float *gradient = static_cast<const float *>(call->in_data[0]);
  float *p = static_cast<float *>(call->out_data[0]);
  ms_b16 *copy = static_cast<ms_b16 *>(ms_call_copy(call));
  const int64_t wanted = ms_cuda_ceil(ms_moment_records(n), WARPS), blocks = wanted < BLOCKS ? wanted : BLOCKS;
  return MS_CUDA_LAUNCH(adamw_records, static_cast<unsigned>(blocks), THREADS, 0, call->stream, gradient, p, copy,
                        static_cast<uint32_t *>(call->out_data[1]), static_cast<uint32_t *>(call->out_data[2]), n,
                        ms_cuda_aligned(gradient) && ms_cuda_aligned(p) && ms_cuda_aligned(copy),
                        ms_adamw_setting_of(call), call->scalars, static_cast<const float *>(call->in_data[1]),
                        static_cast<const float *>(call->in_data[2]));
}
