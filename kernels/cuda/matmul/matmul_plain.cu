/* matmul_plain.cu - the matrix product without a library or tensor cores: f32 arithmetic on tiles in shared memory
 * (plain_tile.h). It supports every transpose, batch, bias, activation and dtype of the op. Arithmetic bounds it, at a
 * fraction of f32 peak. It is the reference for faster implementations, and the fallback for machines without them. */
#include "kernels/cuda/elementwise/activation.h"
#include "kernels/cuda/plain_tile.h"

extern "C" {
#include "kernels/cuda/matmul/matmul.h"
}

namespace {

constexpr int TILE = MS_PLAIN_TILE, SIDE = MS_PLAIN_SIDE, THREADS = MS_PLAIN_THREADS;

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

__device__ __forceinline__ float bias_at(const void *bias, int dtype, int64_t column) {
  if (dtype < 0) return 0.0f;
  if (dtype == MS_BF16) return ms_element_load(static_cast<const ms_b16 *>(bias) + column);
  return static_cast<const float *>(bias)[column];
}

/* c [batch][m][n] = act(op(a) op(b) + bias), or added_to + it; op(a) [m][k], op(b) [k][n], bias [n]. One block per tile
 * of c. */
template <class T, class Y>
__global__ void __launch_bounds__(THREADS) matmul(const T *a, const T *b, const void *bias, Y *c, task t) {
  const int64_t column = blockIdx.x % t.tiles_across * TILE, row = blockIdx.x / t.tiles_across % t.tiles_down * TILE;
  const int64_t matrix = blockIdx.x / t.tiles_across / t.tiles_down;
  const ms_plain_operand<T> left = {a + matrix * t.a.matrix, t.m, t.a.row, t.a.column};
  const ms_plain_operand<T> right = {b + matrix * t.b.matrix, t.n, t.b.column, t.b.row};
  float sum[SIDE][SIDE] = {};
  ms_plain_multiply(sum, left, row, right, column, t.k);
#pragma unroll
  for (int r = 0; r < SIDE; r++)
#pragma unroll
    for (int s = 0; s < SIDE; s++) {
      const int64_t i = row + ms_plain_row(r), j = column + ms_plain_column(s);
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
