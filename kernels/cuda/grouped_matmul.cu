/* grouped_matmul.cu - a product for each group of rows, and the gradient of its weights, in f32 arithmetic on tiles
 * (plain_tile.h). The host does not know how many rows a group has, and waits for nothing: there are as many blocks as
 * any groups need, a tile of rows for every 64 and one more for each group's last, and a block finds its group from the
 * offsets. Blocks past the last tile end at once; rows of no group are a last group, of zeros. Arithmetic bounds it.
 *
 * Offsets that do not ascend, or are beyond the rows, are recorded as the step's fault, and read as the nearest that
 * do. */
#include "kernels/cuda/plain_tile.h"

namespace {

constexpr int TILE = MS_PLAIN_TILE, SIDE = MS_PLAIN_SIDE, THREADS = MS_PLAIN_THREADS;

struct task {
  const int32_t *offsets; /* [groups + 1] */
  int64_t groups, rows;
  int64_t inner, columns; /* of x [rows][inner] and y [rows][columns]; of the gradient [inner][columns] */
  int turned;             /* 1: w [groups][columns][inner] */
  ms_fault *fault;
};

/* Where a group begins; that of `groups` is the end of the last. */
__device__ __forceinline__ int64_t begin_of(const task &t, int64_t group, int64_t before) {
  const int64_t at = t.offsets[group];
  if (at >= before && at <= t.rows) return at;
  ms_note_fault(t.fault, MS_OP_grouped_matmul, at, t.rows + 1);
  return before;
}

/* The rows [begin, end) of a group; `group` is -1 for rows of none. */
struct group_rows {
  int64_t group, begin, end, row; /* row: the first of this block's tile */
};

/* The tile of rows with this number: tiles of the rows before the first group come first, then those of each group,
 * then those behind the last. */
__device__ __forceinline__ group_rows find_tile(const task &t, int64_t tile) {
  int64_t begin = 0, tiles = 0;
  for (int64_t g = -1; g <= t.groups; g++) {
    const int64_t end = g < t.groups ? begin_of(t, g + 1, begin) : t.rows, own = ms_cuda_ceil(end - begin, TILE);
    if (tile < tiles + own) return {g < t.groups ? g : -1, begin, end, begin + (tile - tiles) * TILE};
    tiles += own;
    begin = end;
  }
  return {-1, t.rows, t.rows, t.rows};
}

/* y [rows][columns]; a block per tile of rows and of columns. */
template <class T> __global__ void __launch_bounds__(THREADS) multiply(const T *x, const T *w, T *y, task t) {
  const group_rows own = find_tile(t, blockIdx.x);
  if (own.row >= own.end) return;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * TILE;
  const T *weight = w + own.group * t.inner * t.columns;
  const ms_plain_operand<T> left = {x, own.end, t.inner, 1};
  const ms_plain_operand<T> right = {weight, t.columns, t.turned ? t.inner : 1, t.turned ? 1 : t.columns};
  float sum[SIDE][SIDE] = {};
  if (own.group >= 0) ms_plain_multiply(sum, left, own.row, right, column, t.inner);
#pragma unroll
  for (int r = 0; r < SIDE; r++)
#pragma unroll
    for (int s = 0; s < SIDE; s++) {
      const int64_t i = own.row + ms_plain_row(r), j = column + ms_plain_column(s);
      if (i < own.end && j < t.columns) ms_element_store(y + i * t.columns + j, sum[r][s]);
    }
}

/* dw [groups][inner][columns] = a' b of each group's rows of a [rows][inner] and b [rows][columns]; a block per tile.
 */
template <class T, class Y> __global__ void __launch_bounds__(THREADS) sum_rows(const T *a, const T *b, Y *dw, task t) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * TILE, column = static_cast<int64_t>(blockIdx.y) * TILE;
  const int64_t group = blockIdx.z;
  int64_t begin = begin_of(t, 0, 0);
  for (int64_t g = 1; g <= group; g++) begin = begin_of(t, g, begin);
  const int64_t end = begin_of(t, group + 1, begin);
  const ms_plain_operand<T> left = {a + begin * t.inner, t.inner, 1, t.inner};
  const ms_plain_operand<T> right = {b + begin * t.columns, t.columns, 1, t.columns};
  float sum[SIDE][SIDE] = {};
  ms_plain_multiply(sum, left, row, right, column, end - begin);
  Y *own = dw + group * t.inner * t.columns;
#pragma unroll
  for (int r = 0; r < SIDE; r++)
#pragma unroll
    for (int s = 0; s < SIDE; s++) {
      const int64_t i = row + ms_plain_row(r), j = column + ms_plain_column(s);
      if (i < t.inner && j < t.columns) ms_element_store(own + i * t.columns + j, sum[r][s]);
    }
}

unsigned tiles_of(int64_t n) { return static_cast<unsigned>(ms_cuda_ceil(n, TILE)); }

template <class T> int run_multiply(const ms_kernel_call *call, const task &t) {
  /* Groups, and the rows before and behind them, have one tile each that is not full. */
  const dim3 grid(tiles_of(t.rows) + static_cast<unsigned>(t.groups) + 1, tiles_of(t.columns));
  return MS_CUDA_LAUNCH(multiply<T>, grid, THREADS, 0, call->stream, static_cast<const T *>(call->in_data[0]),
                        static_cast<const T *>(call->in_data[1]), static_cast<T *>(call->out_data[0]), t);
}

template <class T, class Y> int run_sum(const ms_kernel_call *call, const task &t) {
  const dim3 grid(tiles_of(t.inner), tiles_of(t.columns), static_cast<unsigned>(t.groups));
  return MS_CUDA_LAUNCH((sum_rows<T, Y>), grid, THREADS, 0, call->stream, static_cast<const T *>(call->in_data[0]),
                        static_cast<const T *>(call->in_data[1]), static_cast<Y *>(call->out_data[0]), t);
}

int run(const ms_kernel_call *call) {
  const int gradient = call->op == MS_OP_grouped_matmul_backward_weight;
  const task t = {static_cast<const int32_t *>(call->in_data[2]),
                  call->in[2].dims[0] - 1,
                  call->in[0].dims[0],
                  call->in[0].dims[1],
                  gradient ? call->out[0].dims[2] : call->out[0].dims[1],
                  call->attrs.i[1] != 0,
                  call->fault};
  const int dtype = call->in[0].dtype;
  if (ms_numel(&call->out[0]) == 0) return MS_OK;
  if (!gradient) return MS_CUDA_FLOATS(dtype, T, run_multiply<T>(call, t));
  return MS_CUDA_FLOATS(dtype, T, MS_CUDA_FLOATS(call->out[0].dtype, Y, run_sum<T, Y>(call, t)));
}

} // namespace

extern const ms_kernel ms_cuda_grouped_matmul = {ms_cuda_prepare_grouped_matmul, run, nullptr,
                                                 MS_CUDA_OVER_grouped_matmul};
