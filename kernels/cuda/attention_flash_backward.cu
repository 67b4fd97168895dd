/* attention_flash_backward.cu - the gradients of softmax(q k' scale) v in bf16 on tensor cores: flash.h tells how blocks walk.
**
** Scores are made again and their powers taken against the saved log-sums: p = e^(s - lse), ds = p (do v' - delta), then
** dv = p' do, dk = ds' q scale, dq = ds k scale. Blocks of keys make their scores transposed, so that p' and ds' are left
** operands as they are; they add up all heads of a group, in order.
*/
#include "kernels/cuda/flash.h"

namespace {

/* 128 rows a block; 8 warps where two results of 128 columns leave a warp 16 rows' registers. STEP rows at a time. */
template <int DIM> struct shape {
  static constexpr int WARPS = DIM > 64 ? 8 : 4, THREADS = WARPS * MS_WARP, M = MS_FLASH_OWN / WARPS / 16;
  static constexpr int STEP = M == 1 ? 64 : 32, N = STEP / 8, TILE = MS_FLASH_TILE * DIM;
  /* two tensors of own rows; two of tiles, and two numbers for each row of them, twice */
  static constexpr int BYTES = (2 * MS_FLASH_OWN + 4 * MS_FLASH_TILE) * DIM * static_cast<int>(sizeof(ms_b16)) +
                               4 * MS_FLASH_TILE * static_cast<int>(sizeof(float));
};

template <int M> __device__ __forceinline__ void fill(float (&factor)[M][2], float value) {
#pragma unroll
  for (int m = 0; m < M; m++) factor[m][0] = factor[m][1] = value;
}

/* ---- queries --------------------------------------------------------------------------------------------------------------- */

template <int DIM>
__global__ void __launch_bounds__(shape<DIM>::THREADS) query_gradients(ms_flash_tensors x, ms_cuda_attention a) {
  MS_CUDA_DYNAMIC_SHARED(ms_b16, shared);
  using S = shape<DIM>;
  constexpr int M = S::M, N = S::N;
  ms_b16 *queries = shared, *gradients = queries + MS_FLASH_OWN * DIM, *keys = gradients + MS_FLASH_OWN * DIM;
  ms_b16 *values = keys + 2 * S::TILE;
  /* Blocks that see the most begin first. */
  const int64_t heads = a.batch * a.heads, blocks = ms_cuda_ceil(a.t, MS_FLASH_OWN);
  const int first = static_cast<int>(blocks - 1 - blockIdx.x / heads) * MS_FLASH_OWN, d = static_cast<int>(a.d);
  const int64_t b = blockIdx.x % heads / a.heads, h = blockIdx.x % a.heads, g = h / (a.heads / a.groups);
  const int64_t last = min(static_cast<int64_t>(first) + MS_FLASH_OWN, a.t) - 1;
  const ms_b16 *q = ms_flash_head(x.q, b, a.t, a.heads, h, a.d), *k = ms_flash_head(x.k, b, a.s, a.groups, g, a.d);
  const ms_b16 *v = x.v + (k - x.k), *gradient = x.gradient + (q - x.q);
  const ms_flash_range block = ms_flash_view_of(ms_cuda_seen(a, b, first), ms_cuda_seen(a, b, last)).any;

  const int row = static_cast<int>(threadIdx.x) / MS_WARP * (16 * M), query = first + row;
  ms_flash_view own = {{0, 0}, {0, 0}};
  if (query <= last)
    own = ms_flash_view_of(ms_cuda_seen(a, b, query),
                           ms_cuda_seen(a, b, min(static_cast<int64_t>(query) + 16 * M - 1, last)));
  float lse[M][2], delta[M][2]; /* lse for powers of 2 */
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int64_t i = min(static_cast<int64_t>(query + m * 16 + ms_own_row_of_tile(half)), a.t - 1);
      lse[m][half] = x.lse[(b * a.heads + h) * a.t + i] * MS_LOG2E;
      delta[m][half] = x.delta[(b * a.heads + h) * a.t + i];
    }

  const auto load = [&](int key, int stage) {
    ms_load_tile<DIM, MS_FLASH_TILE, S::THREADS>(keys + stage * S::TILE, k, key, static_cast<int>(a.s), a.groups * a.d,
                                                 d);
    ms_load_tile<DIM, MS_FLASH_TILE, S::THREADS>(values + stage * S::TILE, v, key, static_cast<int>(a.s),
                                                 a.groups * a.d, d);
    ms_commit_copies();
  };
  const float scale = a.scale * MS_LOG2E;
  float dq[M][DIM / 8][4] = {};
  ms_load_tile<DIM, MS_FLASH_OWN, S::THREADS>(queries, q, first, static_cast<int>(a.t), a.heads * a.d, d);
  ms_load_tile<DIM, MS_FLASH_OWN, S::THREADS>(gradients, gradient, first, static_cast<int>(a.t), a.heads * a.d, d);
  load(block.begin, 0);
  int stage = 0;
  for (int tile = block.begin; tile < block.end; tile += MS_FLASH_TILE, stage ^= 1) {
    ms_wait_copies<0>();
    __syncthreads(); /* the tile is there for all, and nobody reads the other one any more */
    if (tile + MS_FLASH_TILE < block.end) load(tile + MS_FLASH_TILE, stage ^ 1);
    for (int at = 0; at < MS_FLASH_TILE; at += S::STEP) {
      const int key = tile + at;
      const ms_flash_range part = ms_flash_part(own.any, key, S::STEP);
      if (part.begin == part.end) continue;
      const bool masked = key < own.every.begin || key + S::STEP > own.every.end;
      float score[M][N][4] = {}, dp[M][N][4] = {};
      ms_multiply_rows<DIM>(score, queries, row, keys + stage * S::TILE, at);
      ms_multiply_rows<DIM>(dp, gradients, row, values + stage * S::TILE, at);
#pragma unroll
      for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          ms_flash_range seen = {0, S::STEP};
          if (masked) {
            const int64_t i = min(static_cast<int64_t>(query + m * 16 + ms_own_row_of_tile(half)), a.t - 1);
            seen = ms_flash_part(ms_flash_of(ms_cuda_seen(a, b, i)), key, S::STEP);
          }
#pragma unroll
          for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = half * 2; e < half * 2 + 2; e++) {
              const int column = n * 8 + ms_own_column() + e % 2;
              const float p = ms_exp2(score[m][n][e] * scale - lse[m][half]);
              const bool hidden = column < seen.begin || column >= seen.end;
              score[m][n][e] = hidden ? 0.0f : p * (dp[m][n][e] - delta[m][half]);
            }
        }
      unsigned ds[M][N / 2][4];
      ms_as_operand(ds, score);
      ms_multiply_columns<DIM>(dq, ds, keys + stage * S::TILE, at, part.begin, part.end);
    }
  }
  ms_wait_copies<0>();
  __syncthreads(); /* also where there was no tile: the rows of queries are written over now */
  float factor[M][2];
  fill(factor, a.scale);
  ms_store_rows<DIM>(x.dq + (q - x.q), query, static_cast<int>(a.t), a.heads * a.d, d, queries, row, dq, factor);
}

/* ---- keys and values --------------------------------------------------------------------------------------------------------- */

template <int DIM>
__global__ void __launch_bounds__(shape<DIM>::THREADS) key_gradients(ms_flash_tensors x, ms_cuda_attention a) {
  MS_CUDA_DYNAMIC_SHARED(ms_b16, shared);
  using S = shape<DIM>;
  constexpr int M = S::M, N = S::N;
  ms_b16 *keys = shared, *values = keys + MS_FLASH_OWN * DIM, *queries = values + MS_FLASH_OWN * DIM;
  ms_b16 *gradients = queries + 2 * S::TILE;
  float *sums = reinterpret_cast<float *>(gradients + 2 * S::TILE), *deltas = sums + 2 * MS_FLASH_TILE;
  /* The first keys are seen by the most queries. */
  const int64_t groups = a.batch * a.groups, heads = a.heads / a.groups;
  const int first = static_cast<int>(blockIdx.x / groups) * MS_FLASH_OWN, d = static_cast<int>(a.d);
  const int64_t b = blockIdx.x % groups / a.groups, g = blockIdx.x % a.groups;
  const int64_t last = min(static_cast<int64_t>(first) + MS_FLASH_OWN, a.s) - 1;
  const ms_b16 *k = ms_flash_head(x.k, b, a.s, a.groups, g, a.d), *v = x.v + (k - x.k);
  const ms_flash_range block = ms_flash_view_of(ms_cuda_seeing(a, b, first), ms_cuda_seeing(a, b, last)).any;

  const int row = static_cast<int>(threadIdx.x) / MS_WARP * (16 * M), key = first + row;
  ms_flash_view own = {{0, 0}, {0, 0}};
  if (key <= last)
    own = ms_flash_view_of(ms_cuda_seeing(a, b, key),
                           ms_cuda_seeing(a, b, min(static_cast<int64_t>(key) + 16 * M - 1, last)));

  const auto load = [&](int64_t h, int tile, int stage) {
    const ms_b16 *q = ms_flash_head(x.q, b, a.t, a.heads, h, a.d), *gradient = x.gradient + (q - x.q);
    const int t = static_cast<int>(a.t), thread = static_cast<int>(threadIdx.x);
    ms_load_tile<DIM, MS_FLASH_TILE, S::THREADS>(queries + stage * S::TILE, q, tile, t, a.heads * a.d, d);
    ms_load_tile<DIM, MS_FLASH_TILE, S::THREADS>(gradients + stage * S::TILE, gradient, tile, t, a.heads * a.d, d);
    if (thread < 2 * MS_FLASH_TILE) {
      const float *from = (thread < MS_FLASH_TILE ? x.lse : x.delta) + (b * a.heads + h) * a.t;
      float *to = (thread < MS_FLASH_TILE ? sums : deltas) + stage * MS_FLASH_TILE;
      const int i = thread % MS_FLASH_TILE;
      const bool there = tile + i < t;
      ms_copy_async<4>(ms_shared_at(to + i), there ? from + tile + i : from, there);
    }
    ms_commit_copies();
  };
  const float scale = a.scale * MS_LOG2E;
  float dk[M][DIM / 8][4] = {}, dv[M][DIM / 8][4] = {};
  ms_load_tile<DIM, MS_FLASH_OWN, S::THREADS>(keys, k, first, static_cast<int>(a.s), a.groups * a.d, d);
  ms_load_tile<DIM, MS_FLASH_OWN, S::THREADS>(values, v, first, static_cast<int>(a.s), a.groups * a.d, d);
  int tile = block.begin, stage = 0;
  int64_t h = block.begin < block.end ? g * heads : (g + 1) * heads;
  load(g * heads, tile, 0);
  for (; h < (g + 1) * heads; stage ^= 1) {
    ms_wait_copies<0>();
    __syncthreads(); /* the tile is there for all, and nobody reads the other one any more */
    const int now = tile;
    tile += MS_FLASH_TILE;
    if (tile >= block.end) tile = block.begin, h++;
    if (h < (g + 1) * heads) load(h, tile, stage ^ 1);
    for (int at = 0; at < MS_FLASH_TILE; at += S::STEP) {
      const int query = now + at;
      const ms_flash_range part = ms_flash_part(own.any, query, S::STEP);
      if (part.begin == part.end) continue;
      const bool masked = query < own.every.begin || query + S::STEP > own.every.end;
      float score[M][N][4] = {}, dp[M][N][4] = {};
      ms_multiply_rows<DIM>(score, keys, row, queries + stage * S::TILE, at);
      ms_multiply_rows<DIM>(dp, values, row, gradients + stage * S::TILE, at);
      const float *lse = sums + stage * MS_FLASH_TILE + at, *delta = deltas + stage * MS_FLASH_TILE + at;
#pragma unroll
      for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          ms_flash_range seeing = {0, S::STEP};
          if (masked) {
            const int64_t j = min(static_cast<int64_t>(key + m * 16 + ms_own_row_of_tile(half)), a.s - 1);
            seeing = ms_flash_part(ms_flash_of(ms_cuda_seeing(a, b, j)), query, S::STEP);
          }
#pragma unroll
          for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = half * 2; e < half * 2 + 2; e++) {
              const int column = n * 8 + ms_own_column() + e % 2;
              const bool hidden = column < seeing.begin || column >= seeing.end;
              const float p = ms_exp2(score[m][n][e] * scale - lse[column] * MS_LOG2E);
              score[m][n][e] = hidden ? 0.0f : p;
              dp[m][n][e] = hidden ? 0.0f : p * (dp[m][n][e] - delta[column]);
            }
        }
      unsigned operand[M][N / 2][4];
      ms_as_operand(operand, score);
      ms_multiply_columns<DIM>(dv, operand, gradients + stage * S::TILE, at, part.begin, part.end);
      ms_as_operand(operand, dp);
      ms_multiply_columns<DIM>(dk, operand, queries + stage * S::TILE, at, part.begin, part.end);
    }
  }
  ms_wait_copies<0>();
  __syncthreads(); /* also where there was no tile: the own rows are written over now */
  float factor[M][2];
  fill(factor, a.scale);
  ms_store_rows<DIM>(x.dk + (k - x.k), key, static_cast<int>(a.s), a.groups * a.d, d, keys, row, dk, factor);
  fill(factor, 1.0f);
  ms_store_rows<DIM>(x.dv + (k - x.k), key, static_cast<int>(a.s), a.groups * a.d, d, values, row, dv, factor);
}

template <int DIM> int launch(const ms_kernel_call *call, const ms_flash_tensors &x, const ms_cuda_attention &a) {
  const int64_t queries = a.batch * a.heads * ms_cuda_ceil(a.t, MS_FLASH_OWN);
  const int64_t keys = a.batch * a.groups * ms_cuda_ceil(a.s, MS_FLASH_OWN);
  using S = shape<DIM>;
  if (queries) MS_TRY(MS_FLASH_LAUNCH(query_gradients<DIM>, queries, S::THREADS, S::BYTES, call, x, a));
  if (keys == 0) return MS_OK;
  return MS_FLASH_LAUNCH(key_gradients<DIM>, keys, S::THREADS, S::BYTES, call, x, a);
}

} // namespace

int ms_cuda_attention_flash_backward(const ms_kernel_call *call, const ms_cuda_attention &a, const float *delta) {
  const ms_b16 *const *in = reinterpret_cast<const ms_b16 *const *>(call->in_data);
  ms_b16 *const *out = reinterpret_cast<ms_b16 *const *>(call->out_data);
  ms_flash_tensors x = {};
  x.q = in[MS_ATTENTION_Q], x.k = in[MS_ATTENTION_K], x.v = in[MS_ATTENTION_V], x.gradient = in[MS_ATTENTION_DO];
  x.lse = static_cast<const float *>(call->in_data[MS_ATTENTION_LSE]);
  x.delta = delta;
  x.dq = out[0], x.dk = out[1], x.dv = out[2];
  return a.d <= 64 ? launch<64>(call, x, a) : launch<128>(call, x, a);
}
