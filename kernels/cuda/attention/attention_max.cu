/* attention_max.cu - the largest score that each query of an attention has, without a tensor of scores: f32 [B,H,T], of
 * queries that see no key -inf. A block of 256 threads has 64 queries of a head, and takes 64 keys at a time
 * (plain_tile.h). Memory traffic: q once, and k once for each such block. */
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/plain_tile.h"

namespace {

constexpr int TILE = MS_PLAIN_TILE, SIDE = MS_PLAIN_SIDE, ACROSS = MS_PLAIN_ACROSS;

/* A NaN is the largest. */
__device__ __forceinline__ float larger(float a, float b) { return b > a || b != b ? b : a; }

template <class T>
__global__ void __launch_bounds__(MS_PLAIN_THREADS)
    find_largest(ms_cuda_attention a, const T *q, const T *k, float *out) {
  __shared__ float of_thread[TILE][ACROSS];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * TILE, h = blockIdx.y, b = blockIdx.z;
  const int64_t g = h / (a.heads / a.groups), last = min(first + TILE, a.t) - 1;
  const ms_plain_operand<T> queries = {q + (b * a.t * a.heads + h) * a.d, a.t, a.heads * a.d, 1};
  const ms_plain_operand<T> keys = {k + (b * a.s * a.groups + g) * a.d, a.s, a.groups * a.d, 1};
  const int64_t begin = ms_cuda_seen<true>(a, b, first).begin / TILE * TILE, end = ms_cuda_seen<true>(a, b, last).end;
  ms_cuda_range seen[SIDE];
  float most[SIDE];
#pragma unroll
  for (int r = 0; r < SIDE; r++) {
    most[r] = -INFINITY;
    seen[r] = ms_cuda_seen<true>(a, b, min(first + ms_plain_row(r), a.t - 1));
  }
  for (int64_t column = begin; column < end; column += TILE) {
    float sum[SIDE][SIDE] = {};
    ms_plain_multiply(sum, queries, first, keys, column, a.d);
#pragma unroll
    for (int r = 0; r < SIDE; r++)
#pragma unroll
      for (int s = 0; s < SIDE; s++) {
        const int64_t key = column + ms_plain_column(s);
        if (key >= seen[r].begin && key < seen[r].end) most[r] = larger(most[r], sum[r][s] * a.scale);
      }
  }
#pragma unroll
  for (int r = 0; r < SIDE; r++) of_thread[ms_plain_row(r)][ms_plain_column(0)] = most[r];
  __syncthreads();
  const int64_t own = threadIdx.x;
  if (own >= TILE || first + own >= a.t) return;
  float largest = of_thread[own][0];
  for (int i = 1; i < ACROSS; i++) largest = larger(largest, of_thread[own][i]);
  out[(b * a.heads + h) * a.t + first + own] = largest;
}

template <class T> int launch(const ms_kernel_call *call, const ms_cuda_attention &a) {
  const dim3 blocks(static_cast<unsigned>(ms_cuda_ceil(a.t, TILE)), static_cast<unsigned>(a.heads),
                    static_cast<unsigned>(a.batch));
  return MS_CUDA_LAUNCH(find_largest<T>, blocks, MS_PLAIN_THREADS, 0, call->stream, a,
                        static_cast<const T *>(call->in_data[0]), static_cast<const T *>(call->in_data[1]),
                        static_cast<float *>(call->out_data[0]));
}

} // namespace

int ms_cuda_attention_largest(const ms_kernel_call *call, const ms_cuda_attention &a) {
  if (a.batch * a.heads * a.t == 0) return MS_OK;
  return call->in[0].dtype == MS_BF16 ? launch<ms_b16>(call, a) : launch<float>(call, a);
}
