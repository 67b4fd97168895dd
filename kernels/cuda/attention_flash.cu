/* attention_flash.cu - softmax(q k' scale) v of bf16 on tensor cores: flash.h tells how a block walks. A running maximum and sum a row
** (Milakov & Gimelshein 2018); probabilities are rounded to bf16 for their product with v, and their sum is of those not rounded.
*/
#include "kernels/cuda/flash.h"

namespace {

constexpr int WARPS = 4, THREADS = WARPS * MS_WARP, M = MS_FLASH_OWN / WARPS / 16, N = MS_FLASH_TILE / 8;

/* What a lane keeps of its rows: the largest score, and its own share of the sum of powers of it. */
struct running {
  float largest[M][2], sum[M][2];
};

/* Scores that their row does not see become -infinity. */
__device__ __forceinline__ void hide(float (&score)[M][N][4], const ms_cuda_attention &a, int64_t b, int query,
                                     int key) {
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int64_t i = min(static_cast<int64_t>(query + m * 16 + ms_own_row_of_tile(half)), a.t - 1);
      const ms_flash_range seen = ms_flash_part(ms_flash_of(ms_cuda_seen(a, b, i)), key, MS_FLASH_TILE);
#pragma unroll
      for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int column = n * 8 + ms_own_column() + e;
          if (column < seen.begin || column >= seen.end) score[m][n][half * 2 + e] = -INFINITY;
        }
    }
}

/* Scores become powers of the largest so far; what was summed with another largest is scaled. `scale` is for powers of 2. */
template <int D>
__device__ __forceinline__ void soften(float (&score)[M][N][4], float (&o)[M][D][4], running &row, float scale) {
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float highest = row.largest[m][half];
#pragma unroll
      for (int n = 0; n < N; n++) highest = fmaxf(highest, fmaxf(score[m][n][half * 2], score[m][n][half * 2 + 1]));
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
      const float base = highest > -INFINITY ? highest * scale : 0.0f;
      const float shrink = ms_exp2(row.largest[m][half] * scale - base);
      row.largest[m][half] = highest;
      float sum = row.sum[m][half] * shrink;
#pragma unroll
      for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = half * 2; e < half * 2 + 2; e++) {
          score[m][n][e] = ms_exp2(score[m][n][e] * scale - base);
          sum += score[m][n][e];
        }
      row.sum[m][half] = sum;
#pragma unroll
      for (int n = 0; n < D; n++) o[m][n][half * 2] *= shrink, o[m][n][half * 2 + 1] *= shrink;
    }
}

template <int DIM>
constexpr int shared_bytes = (MS_FLASH_OWN + 4 * MS_FLASH_TILE) * DIM *static_cast<int>(sizeof(ms_b16));

template <int DIM> __global__ void __launch_bounds__(THREADS, 2) forward(ms_flash_tensors x, ms_cuda_attention a) {
  MS_CUDA_DYNAMIC_SHARED(ms_b16, shared);
  constexpr int TILE = MS_FLASH_TILE * DIM;
  ms_b16 *queries = shared, *keys = queries + MS_FLASH_OWN * DIM, *values = keys + 2 * TILE;
  /* Blocks that see the most begin first. */
  const int64_t heads = a.batch * a.heads, blocks = ms_cuda_ceil(a.t, MS_FLASH_OWN);
  const int first = static_cast<int>(blocks - 1 - blockIdx.x / heads) * MS_FLASH_OWN, d = static_cast<int>(a.d);
  const int64_t b = blockIdx.x % heads / a.heads, h = blockIdx.x % a.heads, g = h / (a.heads / a.groups);
  const int64_t last = min(static_cast<int64_t>(first) + MS_FLASH_OWN, a.t) - 1;
  const ms_b16 *q = ms_flash_head(x.q, b, a.t, a.heads, h, a.d), *k = ms_flash_head(x.k, b, a.s, a.groups, g, a.d);
  const ms_b16 *v = ms_flash_head(x.v, b, a.s, a.groups, g, a.d);
  const ms_flash_range block = ms_flash_view_of(ms_cuda_seen(a, b, first), ms_cuda_seen(a, b, last)).any;

  const int row = static_cast<int>(threadIdx.x) / MS_WARP * (16 * M), query = first + row;
  ms_flash_view own = {{0, 0}, {0, 0}}; /* of a warp beyond the last query: nothing */
  if (query <= last)
    own = ms_flash_view_of(ms_cuda_seen(a, b, query),
                           ms_cuda_seen(a, b, min(static_cast<int64_t>(query) + 16 * M - 1, last)));

  const auto load = [&](int key, int stage) {
    ms_load_tile<DIM, MS_FLASH_TILE, THREADS>(keys + stage * TILE, k, key, static_cast<int>(a.s), a.groups * a.d, d);
    ms_load_tile<DIM, MS_FLASH_TILE, THREADS>(values + stage * TILE, v, key, static_cast<int>(a.s), a.groups * a.d, d);
    ms_commit_copies();
  };
  const float scale = a.scale * MS_LOG2E;
  float o[M][DIM / 8][4] = {};
  running state;
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) state.largest[m][half] = -INFINITY, state.sum[m][half] = 0.0f;

  ms_load_tile<DIM, MS_FLASH_OWN, THREADS>(queries, q, first, static_cast<int>(a.t), a.heads * a.d, d);
  load(block.begin, 0);
  int stage = 0;
  for (int key = block.begin; key < block.end; key += MS_FLASH_TILE, stage ^= 1) {
    ms_wait_copies<0>();
    __syncthreads(); /* the tile is there for all, and nobody reads the other one any more */
    if (key + MS_FLASH_TILE < block.end) load(key + MS_FLASH_TILE, stage ^ 1);
    const ms_flash_range part = ms_flash_part(own.any, key, MS_FLASH_TILE);
    if (part.begin == part.end) continue;
    float score[M][N][4] = {};
    ms_multiply_rows<DIM>(score, queries, row, keys + stage * TILE, 0);
    if (key < own.every.begin || key + MS_FLASH_TILE > own.every.end) hide(score, a, b, query, key);
    soften(score, o, state, scale);
    unsigned share[M][N / 2][4];
    ms_as_operand(share, score);
    ms_multiply_columns<DIM>(o, share, values + stage * TILE, 0, part.begin, part.end);
  }
  ms_wait_copies<0>();
  __syncthreads(); /* also where there was no tile: the rows of queries are written over now */

  float factor[M][2];
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float sum = state.sum[m][half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      factor[m][half] = sum == 0.0f ? 0.0f : 1.0f / sum;
      const int i = query + m * 16 + ms_own_row_of_tile(half);
      const float top = state.largest[m][half] > -INFINITY ? state.largest[m][half] * a.scale : 0.0f;
      if (ms_lane() % 4 == 0 && i <= last) x.to_lse[(b * a.heads + h) * a.t + i] = top + logf(sum);
    }
  ms_store_rows<DIM>(x.o + (q - x.q), query, static_cast<int>(a.t), a.heads * a.d, d, queries, row, o, factor);
}

template <int DIM> int launch(const ms_kernel_call *call, const ms_flash_tensors &x, const ms_cuda_attention &a) {
  const int64_t grid = a.batch * a.heads * ms_cuda_ceil(a.t, MS_FLASH_OWN);
  if (grid == 0) return MS_OK;
  return MS_FLASH_LAUNCH(forward<DIM>, grid, THREADS, shared_bytes<DIM>, call, x, a);
}

} // namespace

int ms_cuda_flash_suits(const ms_kernel_call *call, const ms_cuda_attention &a) {
  constexpr int64_t MOST = 128, POSITIONS = int64_t{1} << 30;
  if (call->in[0].dtype != MS_BF16 || a.d > MOST || a.d % MS_UNIT || !(a.scale > 0.0f)) return 0;
  return a.t <= POSITIONS && a.s <= POSITIONS;
}

int ms_cuda_attention_flash(const ms_kernel_call *call, const ms_cuda_attention &a) {
  const ms_b16 *const *in = reinterpret_cast<const ms_b16 *const *>(call->in_data);
  ms_flash_tensors x = {};
  x.q = in[MS_ATTENTION_Q], x.k = in[MS_ATTENTION_K], x.v = in[MS_ATTENTION_V];
  x.o = static_cast<ms_b16 *>(call->out_data[0]);
  x.to_lse = static_cast<float *>(call->out_data[1]);
  return a.d <= 64 ? launch<64>(call, x, a) : launch<128>(call, x, a);
}
