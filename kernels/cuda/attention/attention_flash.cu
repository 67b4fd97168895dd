/* attention_flash.cu - softmax(q k' scale) v; flash.h describes how blocks iterate. Each row has a running maximum and
 * sum (Milakov & Gimelshein 2018). Probabilities are rounded as the product with v requires, and their sum is of the
 * unrounded ones. Memory traffic: q, o and lse once; k and v once per block of queries that sees them and per head of
 * their group, mostly from L2. */
#include "kernels/cuda/attention/flash.h"

namespace {

/* A lane's state of its rows: the largest score, and the lane's share of the sum of 2^(score - largest). */
template <int M> struct running { float largest[M][2], sum[M][2]; };

/* Sets scores that their row does not see to -infinity. */
template <bool LIMITED, int M, int N>
__device__ __forceinline__ void hide(float (&score)[M][N][4], const ms_cuda_attention &a, int64_t b, int query,
                                     int key) {
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int64_t i = min(static_cast<int64_t>(query + m * 16 + ms_own_row_of_tile(half)), a.t - 1);
      const ms_flash_range seen = ms_flash_part(ms_flash_of(ms_cuda_seen<LIMITED>(a, b, i)), key, N * 8);
#pragma unroll
      for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int column = n * 8 + ms_own_column() + e;
          if (column < seen.begin || column >= seen.end) score[m][n][half * 2 + e] = -INFINITY;
        }
    }
}

/* Replaces scores by 2^(score scale - base) for the largest score so far, and rescales earlier sums if it has grown.
 * `scale` includes 1 / ln 2. */
template <int M, int N, int D>
__device__ __forceinline__ void soften(float (&score)[M][N][4], float (&o)[M][D][4], running<M> &row, float scale) {
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
      const float shrink = ms_exp2(fmaf(row.largest[m][half], scale, -base));
      row.largest[m][half] = highest;
      float sum = row.sum[m][half] * shrink;
#pragma unroll
      for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = half * 2; e < half * 2 + 2; e++) {
          score[m][n][e] = ms_exp2(fmaf(score[m][n][e], scale, -base));
          sum += score[m][n][e];
        }
      row.sum[m][half] = sum;
#pragma unroll
      for (int n = 0; n < D; n++) o[m][n][half * 2] *= shrink, o[m][n][half * 2 + 1] *= shrink;
    }
}

template <int M, int N> __device__ __forceinline__ void negate(float (&score)[M][N][4]) {
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) score[m][n][e] = -score[m][n][e];
}

template <class A, int DIM> struct shape : ms_flash_forward<DIM *static_cast<int>(sizeof(typename A::T))> {
  using T = typename A::T;
  /* own queries; two tiles each of keys and values */
  static constexpr int BYTES = (shape::OWN + 4 * shape::TILE) * DIM * static_cast<int>(sizeof(T));
  static constexpr int BLOCKS = 2 * BYTES <= 200 * 1024 ? 2 : 1; /* blocks that an SM should hold */
};

/* A block computes OWN rows of o [batch][t][heads][e] and lse [batch][heads][t] of one head. */
template <class A, int DIM, bool LIMITED>
__global__ void __launch_bounds__(shape<A, DIM>::THREADS, shape<A, DIM>::BLOCKS)
    forward(ms_flash_tensors<typename A::T> x, ms_cuda_attention a) {
  using S = shape<A, DIM>;
  using T = typename A::T;
  MS_CUDA_DYNAMIC_SHARED(T, shared);
  constexpr int M = S::M, N = S::N, TILE = S::TILE * DIM;
  T *queries = shared, *keys = queries + S::OWN * DIM, *values = keys + 2 * TILE;
  /* Blocks that see the most keys start first. */
  const int64_t heads = a.batch * a.heads, blocks = ms_cuda_ceil(a.t, S::OWN);
  const int first = static_cast<int>(blocks - 1 - blockIdx.x / heads) * S::OWN, d = static_cast<int>(a.d);
  const int e = static_cast<int>(a.e);
  const int64_t b = blockIdx.x % heads / a.heads, h = blockIdx.x % a.heads, g = h / (a.heads / a.groups);
  const int64_t last = min(static_cast<int64_t>(first) + S::OWN, a.t) - 1;
  const T *q = ms_flash_head(x.q, b, a.t, a.heads, h, a.d), *k = ms_flash_head(x.k, b, a.s, a.groups, g, a.d);
  const T *v = ms_flash_head(x.v, b, a.s, a.groups, g, a.e);
  const ms_flash_range block =
      ms_flash_view_of(ms_cuda_seen<LIMITED>(a, b, first), ms_cuda_seen<LIMITED>(a, b, last)).any;

  const int row = static_cast<int>(threadIdx.x) / MS_WARP * (16 * M), query = first + row;
  ms_flash_view own = {{0, 0}, {0, 0}}; /* empty for a warp after the last query */
  if (query <= last)
    own = ms_flash_view_of(ms_cuda_seen<LIMITED>(a, b, query),
                           ms_cuda_seen<LIMITED>(a, b, min(static_cast<int64_t>(query) + 16 * M - 1, last)));

  const auto load = [&](int key, int stage) {
    ms_load_tile<DIM, S::TILE, S::THREADS>(keys + stage * TILE, k, key, static_cast<int>(a.s), a.groups * a.d, d,
                                           x.whole);
    ms_load_tile<DIM, S::TILE, S::THREADS>(values + stage * TILE, v, key, static_cast<int>(a.s), a.groups * a.e, e,
                                           x.whole);
    ms_commit_copies();
  };
  /* Below, scores are multiplied by the sign of a.scale, or become the tanh of which `size` is a multiple. */
  const bool capped = LIMITED && a.softcap > 0.0f;
  const float size = capped ? a.softcap : fabsf(a.scale), scale = size * MS_LOG2E;
  float o[M][DIM / 8][4] = {};
  running<M> state;
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) state.largest[m][half] = -INFINITY, state.sum[m][half] = 0.0f;

  ms_load_tile<DIM, S::OWN, S::THREADS>(queries, q, first, static_cast<int>(a.t), a.heads * a.d, d, x.whole);
  load(block.begin, 0);
  int stage = 0;
  for (int key = block.begin; key < block.end; key += S::TILE, stage ^= 1) {
    ms_wait_copies<0>();
    __syncthreads(); /* the tile is complete, and no thread still reads the other one */
    if (key + S::TILE < block.end) load(key + S::TILE, stage ^ 1);
    const ms_flash_range part = ms_flash_part(own.any, key, S::TILE);
    if (part.begin == part.end) continue;
    float score[M][N][4] = {};
    ms_multiply_rows<DIM>(A{}, score, queries, row, keys + stage * TILE, 0);
    if (capped) ms_flash_cap(score, a.scale / a.softcap);
    else if (a.scale < 0.0f) negate(score);
    if (key < own.every.begin || key + S::TILE > own.every.end) hide<LIMITED>(score, a, b, query, key);
    soften(score, o, state, scale);
    ms_multiply_columns<DIM>(A{}, o, score, values + stage * TILE, 0, part.begin, part.end);
  }
  ms_wait_copies<0>();
  __syncthreads(); /* needed even without tiles: the rows of queries are overwritten below */

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
      const float top = state.largest[m][half] > -INFINITY ? state.largest[m][half] * size : 0.0f;
      if (ms_lane() % 4 == 0 && i <= last) x.to_lse[(b * a.heads + h) * a.t + i] = top + logf(sum);
    }
  T *to = x.o + (b * a.t * a.heads + h) * a.e;
  ms_store_rows<DIM>(to, query, static_cast<int>(a.t), a.heads * a.e, e, x.whole, queries, row, o, factor);
}

template <class A, int DIM, bool LIMITED>
int launch(const ms_kernel_call *call, const ms_cuda_attention &a, int whole) {
  using S = shape<A, DIM>;
  using T = typename A::T;
  const T *const *in = reinterpret_cast<const T *const *>(call->in_data);
  ms_flash_tensors<T> x = {};
  x.q = in[MS_ATTENTION_Q], x.k = in[MS_ATTENTION_K], x.v = in[MS_ATTENTION_V];
  x.o = static_cast<T *>(call->out_data[0]);
  x.to_lse = static_cast<float *>(call->out_data[1]);
  x.whole = whole;
  const int64_t grid = a.batch * a.heads * ms_cuda_ceil(a.t, S::OWN);
  if (grid == 0) return MS_OK;
  return MS_CUDA_LAUNCH_SHARED((forward<A, DIM, LIMITED>), static_cast<unsigned>(grid), S::THREADS, S::BYTES,
                               call->stream, x, a);
}

} // namespace

int ms_cuda_attention_flash(const ms_kernel_call *call, const ms_cuda_attention &a, int tf32, int whole) {
  return ms_flash_by_arithmetic(call->in[0].dtype, tf32, a, [&](auto arithmetic, auto columns, auto limited) {
    return launch<decltype(arithmetic), decltype(columns)::value, decltype(limited)::value>(call, a, whole);
  });
}
