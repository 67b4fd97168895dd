/* attention_flash_backward.cu - the gradients of softmax(q k' scale) v; flash.h describes how blocks iterate.
 *
 * Scores are recomputed and normalised with the saved log-sums: p = e^(s - lse), ds = p (do v' - delta); then dv = p'
 * do, dk = ds' q scale, dq = ds k scale. If scores are capped, ds is also multiplied by the slope of the cap. Blocks of
 * keys compute their scores transposed, so that p' and ds' can be left operands directly; they sum over all heads of a
 * group, in order. For heads above 128, whose dk and dv need more registers than a thread has, two passes compute one
 * gradient each. Memory traffic: tensors and gradients of the own side once; of the other side, two tensors per block
 * that sees them, mostly from L2.
 */
#include "kernels/cuda/attention/flash.h"

namespace {

template <class A, int DIM> struct shape : ms_flash_backward<DIM *static_cast<int>(sizeof(typename A::T))> {
  using T = typename A::T;
  /* two tensors of own rows; two stages of two tiles, with two numbers per row of a tile */
  static constexpr int BYTES = (2 * shape::OWN + 4 * shape::TILE) * DIM * static_cast<int>(sizeof(T)) +
                               4 * shape::TILE * static_cast<int>(sizeof(float));
};

template <int M> __device__ __forceinline__ void fill(float (&factor)[M][2], float value) {
#pragma unroll
  for (int m = 0; m < M; m++) factor[m][0] = factor[m][1] = value;
}

/* ---- queries ----------------------------------------------------------------------------------------------------- */

/* A block computes OWN rows of dq [batch][t][heads][d] of one head. */
template <class A, int DIM, bool LIMITED>
__global__ void __launch_bounds__(shape<A, DIM>::THREADS)
    query_gradients(ms_flash_tensors<typename A::T> x, ms_cuda_attention a) {
  using S = shape<A, DIM>;
  using T = typename A::T;
  MS_CUDA_DYNAMIC_SHARED(T, shared);
  constexpr int M = S::M, N = S::N, TILE = S::TILE * DIM;
  T *queries = shared, *gradients = queries + S::OWN * DIM, *keys = gradients + S::OWN * DIM;
  T *values = keys + 2 * TILE;
  /* Blocks that see the most keys start first. */
  const int64_t heads = a.batch * a.heads, blocks = ms_cuda_ceil(a.t, S::OWN);
  const int first = static_cast<int>(blocks - 1 - blockIdx.x / heads) * S::OWN, d = static_cast<int>(a.d);
  const int e = static_cast<int>(a.e);
  const int64_t b = blockIdx.x % heads / a.heads, h = blockIdx.x % a.heads, g = h / (a.heads / a.groups);
  const int64_t last = min(static_cast<int64_t>(first) + S::OWN, a.t) - 1;
  const T *q = ms_flash_head(x.q, b, a.t, a.heads, h, a.d), *k = ms_flash_head(x.k, b, a.s, a.groups, g, a.d);
  const T *v = ms_flash_head(x.v, b, a.s, a.groups, g, a.e);
  const T *gradient = ms_flash_head(x.gradient, b, a.t, a.heads, h, a.e);
  const ms_flash_range block =
      ms_flash_view_of(ms_cuda_seen<LIMITED>(a, b, first), ms_cuda_seen<LIMITED>(a, b, last)).any;

  const int row = static_cast<int>(threadIdx.x) / MS_WARP * (16 * M), query = first + row;
  ms_flash_view own = {{0, 0}, {0, 0}};
  if (query <= last)
    own = ms_flash_view_of(ms_cuda_seen<LIMITED>(a, b, query),
                           ms_cuda_seen<LIMITED>(a, b, min(static_cast<int64_t>(query) + 16 * M - 1, last)));
  float lse[M][2], delta[M][2]; /* lse converted to base 2 */
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int64_t i = min(static_cast<int64_t>(query + m * 16 + ms_own_row_of_tile(half)), a.t - 1);
      lse[m][half] = x.lse[(b * a.heads + h) * a.t + i] * MS_LOG2E;
      delta[m][half] = x.delta[(b * a.heads + h) * a.t + i];
    }

  const auto load = [&](int key, int stage) {
    ms_load_tile<DIM, S::TILE, S::THREADS>(keys + stage * TILE, k, key, static_cast<int>(a.s), a.groups * a.d, d,
                                           x.whole);
    ms_load_tile<DIM, S::TILE, S::THREADS>(values + stage * TILE, v, key, static_cast<int>(a.s), a.groups * a.e, e,
                                           x.whole);
    ms_commit_copies();
  };
  const bool capped = LIMITED && a.softcap > 0.0f; /* then scores are the tanh of which a.softcap is a multiple */
  const float scale = (capped ? a.softcap : a.scale) * MS_LOG2E;
  float dq[M][DIM / 8][4] = {};
  ms_load_tile<DIM, S::OWN, S::THREADS>(queries, q, first, static_cast<int>(a.t), a.heads * a.d, d, x.whole);
  ms_load_tile<DIM, S::OWN, S::THREADS>(gradients, gradient, first, static_cast<int>(a.t), a.heads * a.e, e, x.whole);
  load(block.begin, 0);
  int stage = 0;
  for (int tile = block.begin; tile < block.end; tile += S::TILE, stage ^= 1) {
    ms_wait_copies<0>();
    __syncthreads(); /* the tile is complete, and no thread still reads the other one */
    if (tile + S::TILE < block.end) load(tile + S::TILE, stage ^ 1);
    for (int at = 0; at < S::TILE; at += S::STEP) {
      const int key = tile + at;
      const ms_flash_range part = ms_flash_part(own.any, key, S::STEP);
      if (part.begin == part.end) continue;
      const bool masked = key < own.every.begin || key + S::STEP > own.every.end;
      float score[M][N][4] = {}, dp[M][N][4] = {};
      ms_multiply_rows<DIM>(A{}, score, queries, row, keys + stage * TILE, at);
      if (capped) ms_flash_cap(score, a.scale / a.softcap);
      ms_multiply_rows<DIM>(A{}, dp, gradients, row, values + stage * TILE, at);
#pragma unroll
      for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          ms_flash_range seen = {0, S::STEP};
          if (masked) {
            const int64_t i = min(static_cast<int64_t>(query + m * 16 + ms_own_row_of_tile(half)), a.t - 1);
            seen = ms_flash_part(ms_flash_of(ms_cuda_seen<LIMITED>(a, b, i)), key, S::STEP);
          }
#pragma unroll
          for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = half * 2; e < half * 2 + 2; e++) {
              const int column = n * 8 + ms_own_column() + e % 2;
              const float p = ms_exp2(fmaf(score[m][n][e], scale, -lse[m][half]));
              const float slope = capped ? fmaf(-score[m][n][e], score[m][n][e], 1.0f) : 1.0f;
              const bool hidden = column < seen.begin || column >= seen.end;
              score[m][n][e] = hidden ? 0.0f : p * (dp[m][n][e] - delta[m][half]) * slope;
            }
        }
      ms_multiply_columns<DIM>(A{}, dq, score, keys + stage * TILE, at, part.begin, part.end);
    }
  }
  ms_wait_copies<0>();
  __syncthreads(); /* needed even without tiles: the rows of queries are overwritten below */
  float factor[M][2];
  fill(factor, a.scale);
  ms_store_rows<DIM>(x.dq + (q - x.q), query, static_cast<int>(a.t), a.heads * a.d, d, x.whole, queries, row, dq,
                     factor);
}

/* ---- keys and values --------------------------------------------------------------------------------------------- */

/* The gradients that a pass computes. */
enum { DK = 1, DV = 2 };

/* A block computes OWN rows of dk [batch][s][groups][d] and dv [batch][s][groups][e] of one key head. */
template <class A, int DIM, int MADE, bool LIMITED>
__global__ void __launch_bounds__(shape<A, DIM>::THREADS)
    key_gradients(ms_flash_tensors<typename A::T> x, ms_cuda_attention a) {
  using S = shape<A, DIM>;
  using T = typename A::T;
  MS_CUDA_DYNAMIC_SHARED(T, shared);
  constexpr int M = S::M, N = S::N, TILE = S::TILE * DIM;
  T *keys = shared, *values = keys + S::OWN * DIM, *queries = values + S::OWN * DIM;
  T *gradients = queries + 2 * TILE;
  float *sums = reinterpret_cast<float *>(gradients + 2 * TILE), *deltas = sums + 2 * S::TILE;
  /* Blocks start in the order of keys, because the first keys are seen by the most queries. */
  const int64_t groups = a.batch * a.groups, heads = a.heads / a.groups;
  const int first = static_cast<int>(blockIdx.x / groups) * S::OWN, d = static_cast<int>(a.d);
  const int e = static_cast<int>(a.e);
  const int64_t b = blockIdx.x % groups / a.groups, g = blockIdx.x % a.groups;
  const int64_t last = min(static_cast<int64_t>(first) + S::OWN, a.s) - 1;
  const T *k = ms_flash_head(x.k, b, a.s, a.groups, g, a.d), *v = ms_flash_head(x.v, b, a.s, a.groups, g, a.e);
  const ms_flash_range block =
      ms_flash_view_of(ms_cuda_seeing<LIMITED>(a, b, first), ms_cuda_seeing<LIMITED>(a, b, last)).any;

  const int row = static_cast<int>(threadIdx.x) / MS_WARP * (16 * M), key = first + row;
  ms_flash_view own = {{0, 0}, {0, 0}};
  if (key <= last)
    own = ms_flash_view_of(ms_cuda_seeing<LIMITED>(a, b, key),
                           ms_cuda_seeing<LIMITED>(a, b, min(static_cast<int64_t>(key) + 16 * M - 1, last)));

  const auto load = [&](int64_t h, int tile, int stage) {
    const T *q = ms_flash_head(x.q, b, a.t, a.heads, h, a.d);
    const T *gradient = ms_flash_head(x.gradient, b, a.t, a.heads, h, a.e);
    const int t = static_cast<int>(a.t), thread = static_cast<int>(threadIdx.x);
    ms_load_tile<DIM, S::TILE, S::THREADS>(queries + stage * TILE, q, tile, t, a.heads * a.d, d, x.whole);
    ms_load_tile<DIM, S::TILE, S::THREADS>(gradients + stage * TILE, gradient, tile, t, a.heads * a.e, e, x.whole);
    if (thread < 2 * S::TILE) {
      const float *from = (thread < S::TILE ? x.lse : x.delta) + (b * a.heads + h) * a.t;
      float *to = (thread < S::TILE ? sums : deltas) + stage * S::TILE;
      const int i = thread % S::TILE;
      const bool there = tile + i < t;
      ms_copy_async<4>(ms_shared_at(to + i), there ? from + tile + i : from, there);
    }
    ms_commit_copies();
  };
  const bool capped = LIMITED && a.softcap > 0.0f; /* then scores are the tanh of which a.softcap is a multiple */
  const float scale = (capped ? a.softcap : a.scale) * MS_LOG2E;
  float dk[M][DIM / 8][4] = {}, dv[M][DIM / 8][4] = {};
  ms_load_tile<DIM, S::OWN, S::THREADS>(keys, k, first, static_cast<int>(a.s), a.groups * a.d, d, x.whole);
  if constexpr (MADE & DK)
    ms_load_tile<DIM, S::OWN, S::THREADS>(values, v, first, static_cast<int>(a.s), a.groups * a.e, e, x.whole);
  int tile = block.begin, stage = 0;
  int64_t h = block.begin < block.end ? g * heads : (g + 1) * heads;
  load(g * heads, tile, 0);
  for (; h < (g + 1) * heads; stage ^= 1) {
    ms_wait_copies<0>();
    __syncthreads(); /* the tile is complete, and no thread still reads the other one */
    const int now = tile;
    tile += S::TILE;
    if (tile >= block.end) tile = block.begin, h++;
    if (h < (g + 1) * heads) load(h, tile, stage ^ 1);
    for (int at = 0; at < S::TILE; at += S::STEP) {
      const int query = now + at;
      const ms_flash_range part = ms_flash_part(own.any, query, S::STEP);
      if (part.begin == part.end) continue;
      const bool masked = query < own.every.begin || query + S::STEP > own.every.end;
      float score[M][N][4] = {}, dp[M][N][4] = {};
      ms_multiply_rows<DIM>(A{}, score, keys, row, queries + stage * TILE, at);
      if (capped) ms_flash_cap(score, a.scale / a.softcap);
      if constexpr (MADE & DK) ms_multiply_rows<DIM>(A{}, dp, values, row, gradients + stage * TILE, at);
      const float *lse = sums + stage * S::TILE + at, *delta = deltas + stage * S::TILE + at;
#pragma unroll
      for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          ms_flash_range seeing = {0, S::STEP};
          if (masked) {
            const int64_t j = min(static_cast<int64_t>(key + m * 16 + ms_own_row_of_tile(half)), a.s - 1);
            seeing = ms_flash_part(ms_flash_of(ms_cuda_seeing<LIMITED>(a, b, j)), query, S::STEP);
          }
#pragma unroll
          for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = half * 2; e < half * 2 + 2; e++) {
              const int column = n * 8 + ms_own_column() + e % 2;
              const bool hidden = column < seeing.begin || column >= seeing.end;
              const float p = ms_exp2(fmaf(score[m][n][e], scale, -(lse[column] * MS_LOG2E)));
              const float slope = capped ? fmaf(-score[m][n][e], score[m][n][e], 1.0f) : 1.0f;
              score[m][n][e] = hidden ? 0.0f : p;
              dp[m][n][e] = hidden ? 0.0f : p * (dp[m][n][e] - delta[column]) * slope;
            }
        }
      if constexpr (MADE & DV)
        ms_multiply_columns<DIM>(A{}, dv, score, gradients + stage * TILE, at, part.begin, part.end);
      if constexpr (MADE & DK) ms_multiply_columns<DIM>(A{}, dk, dp, queries + stage * TILE, at, part.begin, part.end);
    }
  }
  ms_wait_copies<0>();
  __syncthreads(); /* needed even without tiles: the own rows are overwritten below */
  const auto store = [&](T *gradient, int width, T *through, const float(&sum)[M][DIM / 8][4], float times) {
    float factor[M][2];
    fill(factor, times);
    T *to = gradient + (b * a.s * a.groups + g) * width;
    ms_store_rows<DIM>(to, key, static_cast<int>(a.s), a.groups * width, width, x.whole, through, row, sum, factor);
  };
  if constexpr (MADE & DK) store(x.dk, d, keys, dk, a.scale);
  if constexpr (MADE & DV) store(x.dv, e, values, dv, 1.0f);
}

template <class A, int DIM, bool LIMITED>
int launch(const ms_kernel_call *call, const ms_cuda_attention &a, const float *delta, int whole) {
  using S = shape<A, DIM>;
  using T = typename A::T;
  const T *const *in = reinterpret_cast<const T *const *>(call->in_data);
  T *const *out = reinterpret_cast<T *const *>(call->out_data);
  ms_flash_tensors<T> x = {};
  x.q = in[MS_ATTENTION_Q], x.k = in[MS_ATTENTION_K], x.v = in[MS_ATTENTION_V], x.gradient = in[MS_ATTENTION_DO];
  x.lse = static_cast<const float *>(call->in_data[MS_ATTENTION_LSE]);
  x.delta = delta;
  x.dq = out[0], x.dk = out[1], x.dv = out[2];
  x.whole = whole;
  const int64_t queries = a.batch * a.heads * ms_cuda_ceil(a.t, S::OWN);
  const int64_t keys = a.batch * a.groups * ms_cuda_ceil(a.s, S::OWN);
  if (queries)
    MS_TRY(MS_CUDA_LAUNCH_SHARED((query_gradients<A, DIM, LIMITED>), static_cast<unsigned>(queries), S::THREADS,
                                 S::BYTES, call->stream, x, a));
  if (keys == 0) return MS_OK;
  if constexpr (DIM <= 128) {
    return MS_CUDA_LAUNCH_SHARED((key_gradients<A, DIM, DK | DV, LIMITED>), static_cast<unsigned>(keys), S::THREADS,
                                 S::BYTES, call->stream, x, a);
  } else {
    MS_TRY(MS_CUDA_LAUNCH_SHARED((key_gradients<A, DIM, DK, LIMITED>), static_cast<unsigned>(keys), S::THREADS,
                                 S::BYTES, call->stream, x, a));
    return MS_CUDA_LAUNCH_SHARED((key_gradients<A, DIM, DV, LIMITED>), static_cast<unsigned>(keys), S::THREADS,
                                 S::BYTES, call->stream, x, a);
  }
}

} // namespace

int ms_cuda_attention_flash_backward(const ms_kernel_call *call, const ms_cuda_attention &a, const float *delta,
                                     int tf32, int whole) {
  return ms_flash_by_arithmetic(call->in[0].dtype, tf32, a, [&](auto arithmetic, auto columns, auto limited) {
    return launch<decltype(arithmetic), decltype(columns)::value, decltype(limited)::value>(call, a, delta, whole);
  });
}
