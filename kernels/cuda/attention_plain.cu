/* attention_plain.cu - softmax(q k' scale) v and its gradients without a tensor of scores and without tensor cores: f32
** arithmetic, simple and exact, the reference for faster ones and what computes where they cannot. Heads of up to 256.
**
** A warp has two rows of its own (queries, or keys for the gradients of k and v) and walks over the other side in tiles of 16
** that the block holds in shared memory: a lane makes the product of one own row and one row of the tile. What follows is
** added up with each lane holding every 32nd column. Forward keeps a running maximum and sum (Dao et al. 2022). Backward
** computes scores again from the saved log-sums; the gradients of a key are summed by one warp over all queries of all heads
** of its group, so nothing is added atomically.
*/
#include "kernels/cuda/attention.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/vector.h"

namespace {

constexpr int TILE = 16, PAIR = 2, WARPS = 4, BACKWARD_WARPS = 2, MOST = 256, COLUMNS = MOST / MS_WARP;

/* Rows of `count` of x from `first` on as f32, `stride` elements apart, at to[row * pitch]; zeros beyond the last. */
template <class T>
__device__ __forceinline__ void load_rows(float *to, int pitch, const T *x, int64_t first, int rows, int64_t count,
                                          int64_t stride, int d) {
  for (int e = threadIdx.x; e < rows * d; e += blockDim.x) {
    const int row = e / d, column = e % d;
    to[row * pitch + column] = first + row < count ? ms_load_one(x + (first + row) * stride + column) : 0.0f;
  }
}

__device__ __forceinline__ float dot(const float *a, const float *b, int d) {
  float sum = 0.0f;
#pragma unroll 4
  for (int i = 0; i < d; i++) sum += a[i] * b[i];
  return sum;
}

/* Among the 16 lanes of one own row. */
template <class Join> __device__ __forceinline__ float half_reduce(float value, Join join) {
#pragma unroll
  for (int bits = TILE / 2; bits > 0; bits /= 2) value = join(value, __shfl_xor_sync(0xffffffffu, value, bits));
  return value;
}

__device__ __forceinline__ int64_t query_row(const ms_cuda_attention &a, int64_t b, int64_t h) {
  return (b * a.t * a.heads + h) * a.d;
}

__device__ __forceinline__ int64_t key_row(const ms_cuda_attention &a, int64_t b, int64_t g) {
  return (b * a.s * a.groups + g) * a.d;
}

/* total[c] += sum over j of weight[j] rows[j][column], j from begin to end. */
__device__ __forceinline__ void add_rows(float (&total)[COLUMNS], const float *weight, const float *rows, int pitch,
                                         int begin, int end, int d) {
  const int lane = static_cast<int>(threadIdx.x) % MS_WARP;
#pragma unroll 2
  for (int j = begin; j < end; j++) {
    const float w = weight[j];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
      if (c * MS_WARP + lane < d) total[c] += w * rows[j * pitch + c * MS_WARP + lane];
  }
}

/* What of a range lies in the tile from `tile` on. */
struct tile_part {
  int begin, end;
};

__device__ __forceinline__ tile_part part_of(const ms_cuda_range &range, int64_t tile) {
  const int64_t zero = 0, whole = TILE;
  return {static_cast<int>(min(max(range.begin - tile, zero), whole)),
          static_cast<int>(min(max(range.end - tile, zero), whole))};
}

/* ---- forward ---------------------------------------------------------------------------------------------------------- */

template <class T>
__global__ void __launch_bounds__(WARPS *MS_WARP)
    forward(const T *q, const T *k, const T *v, T *o, float *lse, ms_cuda_attention a, int64_t query_blocks) {
  MS_CUDA_DYNAMIC_SHARED(float, shared);
  __shared__ float weight[WARPS][PAIR * TILE];
  const int d = static_cast<int>(a.d), pitch = d + 1, lane = threadIdx.x % MS_WARP, warp = threadIdx.x / MS_WARP;
  float *queries = shared, *keys = queries + WARPS * PAIR * pitch, *values = keys + TILE * pitch;
  const int64_t first = blockIdx.x % query_blocks * (WARPS * PAIR), h = blockIdx.x / query_blocks % a.heads;
  const int64_t b = blockIdx.x / query_blocks / a.heads, kv = key_row(a, b, h / (a.heads / a.groups));
  load_rows(queries, pitch, q + query_row(a, b, h), first, WARPS * PAIR, a.t, a.heads * a.d, d);
  __syncthreads();

  const int half = lane / TILE, own = warp * PAIR + half;
  const int64_t last = min(first + WARPS * PAIR, a.t) - 1;
  const ms_cuda_range seen = ms_cuda_seen(a, b, min(first + own, last));
  float largest = -INFINITY, sum = 0.0f, out[PAIR][COLUMNS] = {};
  for (int64_t tile = ms_cuda_seen(a, b, first).begin; tile < ms_cuda_seen(a, b, last).end; tile += TILE) {
    load_rows(keys, pitch, k + kv, tile, TILE, a.s, a.groups * a.d, d);
    load_rows(values, pitch, v + kv, tile, TILE, a.s, a.groups * a.d, d);
    __syncthreads();
    const int64_t key = tile + lane % TILE;
    float score = -INFINITY;
    const bool visible = key >= seen.begin && key < seen.end;
    if (visible) score = a.scale * dot(queries + own * pitch, keys + lane % TILE * pitch, d);
    const float highest = fmaxf(largest, half_reduce(score, ms_maximum()));
    const float base = highest > -INFINITY ? highest : 0.0f,
                shrink = largest > -INFINITY ? __expf(largest - base) : 0.0f;
    const float p = visible ? __expf(score - base) : 0.0f;
    largest = highest;
    sum = sum * shrink + half_reduce(p, ms_add());
    weight[warp][lane] = p;
    __syncwarp();
#pragma unroll
    for (int r = 0; r < PAIR; r++) {
      const float keep = __shfl_sync(0xffffffffu, shrink, r * TILE);
      const tile_part part = part_of(ms_cuda_seen(a, b, min(first + warp * PAIR + r, last)), tile);
#pragma unroll
      for (int c = 0; c < COLUMNS; c++) out[r][c] *= keep;
      add_rows(out[r], weight[warp] + r * TILE, values, pitch, part.begin, part.end, d);
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < PAIR; r++) {
    const int64_t i = first + warp * PAIR + r;
    const float total = __shfl_sync(0xffffffffu, sum, r * TILE), top = __shfl_sync(0xffffffffu, largest, r * TILE);
    if (i >= a.t) continue;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
      if (c * MS_WARP + lane < d)
        ms_store_one(o + query_row(a, b, h) + i * a.heads * a.d + c * MS_WARP + lane,
                     total == 0.0f ? 0.0f : out[r][c] / total);
    if (lane == 0) lse[(b * a.heads + h) * a.t + i] = (top > -INFINITY ? top : 0.0f) + logf(total);
  }
}

/* ---- backward ------------------------------------------------------------------------------------------------------------ */

template <class T> struct tensors {
  const T *q, *k, *v, *gradient;
  const float *lse, *delta;
  T *dq, *dk, *dv;
};

/* p and ds = p (dp - delta) scale of one query and one key; zeros where the query does not see the key. */
struct pair_value {
  float p, ds;
};

__device__ __forceinline__ pair_value pair_of(const ms_cuda_attention &a, int64_t b, int64_t query, int64_t key,
                                              const float *q, const float *k, const float *gradient, const float *v,
                                              float lse, float delta) {
  if (query >= a.t) return {0.0f, 0.0f};
  const ms_cuda_range seen = ms_cuda_seen(a, b, query);
  if (key < seen.begin || key >= seen.end) return {0.0f, 0.0f};
  const int d = static_cast<int>(a.d);
  const float p = __expf(a.scale * dot(q, k, d) - lse);
  return {p, p * (dot(gradient, v, d) - delta) * a.scale};
}

template <class T> __device__ __forceinline__ void store_columns(T *to, const float (&total)[COLUMNS], int d) {
#pragma unroll
  for (int c = 0; c < COLUMNS; c++) {
    const int column = c * MS_WARP + static_cast<int>(threadIdx.x) % MS_WARP;
    if (column < d) ms_store_one(to + column, total[c]);
  }
}

/* Own rows are queries, tiles are keys. */
template <class T>
__global__ void __launch_bounds__(BACKWARD_WARPS *MS_WARP)
    query_gradients(tensors<T> x, ms_cuda_attention a, int64_t blocks) {
  MS_CUDA_DYNAMIC_SHARED(float, shared);
  __shared__ float weight[BACKWARD_WARPS][PAIR * TILE];
  constexpr int OWN = BACKWARD_WARPS * PAIR;
  const int d = static_cast<int>(a.d), pitch = d + 1, lane = threadIdx.x % MS_WARP, warp = threadIdx.x / MS_WARP;
  float *queries = shared, *gradients = queries + OWN * pitch, *keys = gradients + OWN * pitch,
        *values = keys + TILE * pitch;
  const int64_t first = blockIdx.x % blocks * OWN, h = blockIdx.x / blocks % a.heads, b = blockIdx.x / blocks / a.heads;
  const int64_t kv = key_row(a, b, h / (a.heads / a.groups)), at = query_row(a, b, h), stride = a.heads * a.d;
  load_rows(queries, pitch, x.q + at, first, OWN, a.t, stride, d);
  load_rows(gradients, pitch, x.gradient + at, first, OWN, a.t, stride, d);
  __syncthreads();

  const int own = warp * PAIR + lane / TILE;
  const int64_t query = min(first + own, a.t - 1), last = min(first + OWN, a.t) - 1;
  const float lse = x.lse[(b * a.heads + h) * a.t + query], delta = x.delta[(b * a.heads + h) * a.t + query];
  float dq[PAIR][COLUMNS] = {};
  for (int64_t tile = ms_cuda_seen(a, b, first).begin; tile < ms_cuda_seen(a, b, last).end; tile += TILE) {
    load_rows(keys, pitch, x.k + kv, tile, TILE, a.s, a.groups * a.d, d);
    load_rows(values, pitch, x.v + kv, tile, TILE, a.s, a.groups * a.d, d);
    __syncthreads();
    const int j = lane % TILE;
    weight[warp][lane] = pair_of(a, b, first + own, tile + j, queries + own * pitch, keys + j * pitch,
                                 gradients + own * pitch, values + j * pitch, lse, delta)
                             .ds;
    __syncwarp();
#pragma unroll
    for (int r = 0; r < PAIR; r++) {
      const tile_part part = part_of(ms_cuda_seen(a, b, min(first + warp * PAIR + r, last)), tile);
      add_rows(dq[r], weight[warp] + r * TILE, keys, pitch, part.begin, part.end, d);
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < PAIR; r++) {
    const int64_t i = first + warp * PAIR + r;
    if (i < a.t) store_columns(x.dq + at + i * stride, dq[r], d);
  }
}

/* Own rows are keys, tiles are the queries of each head of the group. */
template <class T>
__global__ void __launch_bounds__(BACKWARD_WARPS *MS_WARP)
    key_gradients(tensors<T> x, ms_cuda_attention a, int64_t blocks) {
  MS_CUDA_DYNAMIC_SHARED(float, shared);
  __shared__ float weight[BACKWARD_WARPS][PAIR * TILE], share[BACKWARD_WARPS][PAIR * TILE];
  constexpr int OWN = BACKWARD_WARPS * PAIR;
  const int d = static_cast<int>(a.d), pitch = d + 1, lane = threadIdx.x % MS_WARP, warp = threadIdx.x / MS_WARP;
  float *keys = shared, *values = keys + OWN * pitch, *queries = values + OWN * pitch,
        *gradients = queries + TILE * pitch;
  const int64_t first = blockIdx.x % blocks * OWN, g = blockIdx.x / blocks % a.groups,
                b = blockIdx.x / blocks / a.groups;
  const int64_t kv = key_row(a, b, g), stride = a.groups * a.d, heads = a.heads / a.groups;
  load_rows(keys, pitch, x.k + kv, first, OWN, a.s, stride, d);
  load_rows(values, pitch, x.v + kv, first, OWN, a.s, stride, d);
  __syncthreads();

  const int own = warp * PAIR + lane / TILE, j = lane % TILE;
  const int64_t last = min(first + OWN, a.s) - 1, begin = ms_cuda_seeing(a, b, first).begin;
  const int64_t end = ms_cuda_seeing(a, b, last).end;
  float dk[PAIR][COLUMNS] = {}, dv[PAIR][COLUMNS] = {};
  for (int64_t h = g * heads; h < (g + 1) * heads; h++)
    for (int64_t tile = begin; tile < end; tile += TILE) {
      const int64_t at = query_row(a, b, h), row = (b * a.heads + h) * a.t + min(tile + j, a.t - 1);
      load_rows(queries, pitch, x.q + at, tile, TILE, a.t, a.heads * a.d, d);
      load_rows(gradients, pitch, x.gradient + at, tile, TILE, a.t, a.heads * a.d, d);
      __syncthreads();
      const pair_value value = pair_of(a, b, tile + j, first + own, queries + j * pitch, keys + own * pitch,
                                       gradients + j * pitch, values + own * pitch, x.lse[row], x.delta[row]);
      weight[warp][lane] = value.ds;
      share[warp][lane] = value.p;
      __syncwarp();
#pragma unroll
      for (int r = 0; r < PAIR; r++) {
        const tile_part part = part_of(ms_cuda_seeing(a, b, min(first + warp * PAIR + r, last)), tile);
        add_rows(dk[r], weight[warp] + r * TILE, queries, pitch, part.begin, part.end, d);
        add_rows(dv[r], share[warp] + r * TILE, gradients, pitch, part.begin, part.end, d);
      }
      __syncthreads();
    }
#pragma unroll
  for (int r = 0; r < PAIR; r++) {
    const int64_t i = first + warp * PAIR + r;
    if (i >= a.s) continue;
    store_columns(x.dk + kv + i * stride, dk[r], d);
    store_columns(x.dv + kv + i * stride, dv[r], d);
  }
}

/* ---- calls ------------------------------------------------------------------------------------------------------------------ */

int64_t rows_bytes(int rows, int64_t d) { return rows * (d + 1) * static_cast<int64_t>(sizeof(float)); }

template <class T> int forward_typed(const ms_kernel_call *call, const ms_cuda_attention &a) {
  const int64_t blocks = ms_cuda_ceil(a.t, WARPS * PAIR), grid = a.batch * a.heads * blocks;
  if (grid == 0) return MS_OK;
  return MS_CUDA_LAUNCH(forward<T>, static_cast<unsigned>(grid), WARPS * MS_WARP,
                        rows_bytes(WARPS * PAIR + 2 * TILE, a.d), call->stream,
                        static_cast<const T *>(call->in_data[0]), static_cast<const T *>(call->in_data[1]),
                        static_cast<const T *>(call->in_data[2]), static_cast<T *>(call->out_data[0]),
                        static_cast<float *>(call->out_data[1]), a, blocks);
}

template <class T> int backward_typed(const ms_kernel_call *call, const ms_cuda_attention &a, const float *delta) {
  constexpr int OWN = BACKWARD_WARPS * PAIR;
  const T *const *in = reinterpret_cast<const T *const *>(call->in_data);
  const tensors<T> x = {in[MS_ATTENTION_Q],
                        in[MS_ATTENTION_K],
                        in[MS_ATTENTION_V],
                        in[MS_ATTENTION_DO],
                        static_cast<const float *>(call->in_data[MS_ATTENTION_LSE]),
                        delta,
                        static_cast<T *>(call->out_data[0]),
                        static_cast<T *>(call->out_data[1]),
                        static_cast<T *>(call->out_data[2])};
  const int64_t rows = a.batch * a.heads * a.t, shared = rows_bytes(2 * OWN + 2 * TILE, a.d);
  const int64_t query_blocks = ms_cuda_ceil(a.t, OWN), key_blocks = ms_cuda_ceil(a.s, OWN);
  if (rows)
    MS_TRY(MS_CUDA_LAUNCH(query_gradients<T>, static_cast<unsigned>(a.batch * a.heads * query_blocks),
                          BACKWARD_WARPS * MS_WARP, shared, call->stream, x, a, query_blocks));
  if (a.batch * a.groups * key_blocks == 0) return MS_OK;
  return MS_CUDA_LAUNCH(key_gradients<T>, static_cast<unsigned>(a.batch * a.groups * key_blocks),
                        BACKWARD_WARPS * MS_WARP, shared, call->stream, x, a, key_blocks);
}

} // namespace

int ms_cuda_attention_plain(const ms_kernel_call *call, const ms_cuda_attention &a) {
  return MS_CUDA_FLOATS(call->in[0].dtype, T, forward_typed<T>(call, a));
}

int ms_cuda_attention_plain_backward(const ms_kernel_call *call, const ms_cuda_attention &a, const float *delta) {
  return MS_CUDA_FLOATS(call->in[0].dtype, T, backward_typed<T>(call, a, delta));
}
