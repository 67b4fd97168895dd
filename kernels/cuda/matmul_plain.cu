/* matmul_plain.cu - the matrix product without a library or tensor cores: f32 arithmetic on tiles of 64 x 64 x 16 in
 * shared memory, by 256 threads that compute 4 x 4 results each. It supports every transpose, batch, bias, activation
 * and dtype of the op. Arithmetic bounds it, at a fraction of f32 peak. It is the reference for faster implementations,
 * and the fallback for machines without them. */
#include "kernels/cuda/activation.h"
#include "kernels/cuda/vector.h"

extern "C" {
#include "kernels/cuda/matmul.h"
}

namespace {

constexpr int TILE = 64, DEPTH = 16, SIDE = 4, THREADS = 256, ACROSS = TILE / SIDE;

/* The strides of an operand in elements, along rows and columns and from one matrix of the batch to the next. */
struct operand {
  int64_t row, column, matrix;
};

struct task {
  int64_t m, n, k, tiles_down, tiles_across;
  operand a, b;
  int activation, bias_dtype, accumulate;
  const void *added_to; /* [batch][m][n] as c, or c itself */
};

/* tile[j][i] = op(x)[first + i][depth + j]: rows of a, or columns of b; zero outside. Adjacent threads read adjacent
 * addresses. */
template <class T>
__device__ __forceinline__ void load_tile(float (*tile)[TILE + 1], const T *x, int64_t first, int64_t count,
                                          int64_t stride, int64_t depth, int64_t k, int64_t k_stride) {
#pragma unroll
  for (int e = threadIdx.x; e < TILE * DEPTH; e += THREADS) {
    const int i = k_stride == 1 ? e / DEPTH : e % TILE, j = k_stride == 1 ? e % DEPTH : e / TILE;
    const bool inside = first + i < count && depth + j < k;
    tile[j][i] = inside ? ms_element_load(x + (first + i) * stride + (depth + j) * k_stride) : 0.0f;
  }
}

__device__ __forceinline__ float bias_at(const void *bias, int dtype, int64_t column) {
  if (dtype < 0) return 0.0f;
  if (dtype == MS_BF16) return ms_element_load(static_cast<const ms_b16 *>(bias) + column);
  return static_cast<const float *>(bias)[column];
}

/* c [batch][m][n] = act(op(a) op(b) + bias), or added_to + it; op(a) [m][k], op(b) [k][n], bias [n]. One block per tile
 * of c. */
template <class T, class Y>
__global__ void __launch_bounds__(THREADS) matmul(const T *a, const T *b, const void *bias, Y *c, task t) {
  __shared__ float as[DEPTH][TILE + 1], bs[DEPTH][TILE + 1];
  const int64_t column = blockIdx.x % t.tiles_across * TILE, row = blockIdx.x / t.tiles_across % t.tiles_down * TILE;
  const int64_t matrix = blockIdx.x / t.tiles_across / t.tiles_down;
  const int x = threadIdx.x % ACROSS, y = threadIdx.x / ACROSS;
  float sum[SIDE][SIDE] = {};
  for (int64_t depth = 0; depth < t.k; depth += DEPTH) {
    load_tile(as, a + matrix * t.a.matrix, row, t.m, t.a.row, depth, t.k, t.a.column);
    load_tile(bs, b + matrix * t.b.matrix, column, t.n, t.b.column, depth, t.k, t.b.row);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < DEPTH; j++) {
      float p[SIDE], q[SIDE];
#pragma unroll
      for (int i = 0; i < SIDE; i++) p[i] = as[j][y + i * ACROSS], q[i] = bs[j][x + i * ACROSS];
#pragma unroll
      for (int r = 0; r < SIDE; r++)
#pragma unroll
        for (int s = 0; s < SIDE; s++) sum[r][s] = fmaf(p[r], q[s], sum[r][s]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < SIDE; r++)
#pragma unroll
    for (int s = 0; s < SIDE; s++) {
      const int64_t i = row + y + r * ACROSS, j = column + x + s * ACROSS;
      if (i >= t.m || j >= t.n) continue;
      const int64_t at = (matrix * t.m + i) * t.n + j;
      const float value = ms_activate(sum[r][s] + bias_at(bias, t.bias_dtype, j), t.activation);
      ms_element_store(c + at, t.accumulate ? ms_element_load(static_cast<const Y *>(t.added_to) + at) + value : value);
    }
}

template <class T, class Y> int run_typed(const ms_kernel_call *call, const task &t, int64_t batch) {
  const int64_t blocks = batch * t.tiles_down * t.tiles_across;
  if (blocks == 0) return MS_OK;
  return MS_CUDA_LAUNCH((matmul<T, Y>), static_cast<unsigned>(blocks), THREADS, 0, call->stream,
                        static_cast<const T *>(call->in_data[0]), static_cast<const T *>(call->in_data[1]),
                        call->in_data[2], static_cast<Y *>(call->out_data[0]), t);
}

} // namespace

int ms_matmul_plain_run(const ms_kernel_call *call, const ms_product *product) {
  const ms_product &p = *product;
  const operand a = {p.trans_a ? 1 : p.k, p.trans_a ? p.m : 1, p.m * p.k};
  const operand b = {p.trans_b ? 1 : p.n, p.trans_b ? p.k : 1, p.shared_b ? 0 : p.k * p.n};
  const task t = {p.m,          p.n,          p.k,          ms_cuda_ceil(p.m, TILE), ms_cuda_ceil(p.n, TILE), a, b,
                  p.activation, p.bias_dtype, p.accumulate, ms_matmul_added_to(call)};
  return MS_CUDA_FLOATS(p.dtype, T, MS_CUDA_FLOATS(p.c_dtype, Y, run_typed<T, Y>(call, t, p.batch)));
}
