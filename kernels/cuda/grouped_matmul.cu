/* grouped_matmul.cu - a product for each group of rows, and the gradient of its weights: of bf16 on tensor cores
 * (core_tile.h), of f32 in f32 arithmetic (plain_tile.h). The host does not know how many rows a group has, and waits
 * for nothing: there are as many blocks as any groups need, a tile of rows for every 64 and one more for each group's
 * last, and a block finds its group from the offsets. Blocks past the last tile end at once; rows of no group are a
 * last group, of zeros. Arithmetic bounds it.
 *
 * Offsets that do not ascend, or are beyond the rows, are recorded as the step's fault, and read as the one before
 * them. */
#include "kernels/cuda/core_tile.h"
#include "kernels/cuda/plain_tile.h"

namespace {

constexpr int TILE = MS_PLAIN_TILE, SIDE = MS_PLAIN_SIDE, THREADS = MS_PLAIN_THREADS;
static_assert(TILE == MS_CORE_TILE, "one grid fits both");

struct task {
  const int32_t *offsets; /* [groups + 1] */
  int64_t groups, rows;
  int64_t inner, columns; /* of x [rows][inner] and y [rows][columns]; of the gradient [inner][columns] */
  int turned;             /* 1: w [groups][columns][inner] */
  bool whole[2];          /* whether rows of the first operand, and of the second, are whole units in memory */
  ms_fault *fault;
  int op;
};

/* Where a group begins; that of `groups` is the end of the last. */
__device__ __forceinline__ int64_t begin_of(const task &t, int64_t group, int64_t before) {
  const int64_t at = t.offsets[group];
  if (at >= before && at <= t.rows) return at;
  ms_note_fault(t.fault, t.op, at, t.rows + 1, before);
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

/* All rows of a group. */
__device__ __forceinline__ group_rows find_group(const task &t, int64_t group) {
  int64_t begin = begin_of(t, 0, 0);
  for (int64_t g = 1; g <= group; g++) begin = begin_of(t, g, begin);
  return {group, begin, begin_of(t, group + 1, begin), begin};
}

/* y [rows][columns]; a block per tile of rows and of columns. */
template <class T> __global__ void __launch_bounds__(THREADS) multiply(const T *x, const T *w, T *y, task t) {
  const group_rows own = find_tile(t, blockIdx.x);
  if (own.row >= own.end) return;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * TILE;
  const T *weight = w + max(own.group, INT64_C(0)) * t.inner * t.columns;
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
  const group_rows own = find_group(t, blockIdx.z);
  const ms_plain_operand<T> left = {a + own.begin * t.inner, t.inner, 1, t.inner};
  const ms_plain_operand<T> right = {b + own.begin * t.columns, t.columns, 1, t.columns};
  float sum[SIDE][SIDE] = {};
  ms_plain_multiply(sum, left, row, right, column, own.end - own.begin);
  Y *out = dw + max(own.group, INT64_C(0)) * t.inner * t.columns;
#pragma unroll
  for (int r = 0; r < SIDE; r++)
#pragma unroll
    for (int s = 0; s < SIDE; s++) {
      const int64_t i = row + ms_plain_row(r), j = column + ms_plain_column(s);
      if (i < t.inner && j < t.columns) ms_element_store(out + i * t.columns + j, sum[r][s]);
    }
}

/* The same of bf16 on tensor cores. TURNED: w [groups][columns][inner]. */
template <bool TURNED>
__global__ void __launch_bounds__(MS_CORE_THREADS) multiply_cores(const ms_b16 *x, const ms_b16 *w, ms_b16 *y, task t) {
  MS_CUDA_DYNAMIC_SHARED(ms_b16, shared);
  const group_rows own = find_tile(t, blockIdx.x);
  if (own.row >= own.end) return;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * TILE;
  const ms_core_operand left = {x, static_cast<int>(own.end), t.inner, t.whole[0]};
  const ms_core_operand right = {w + max(own.group, INT64_C(0)) * t.inner * t.columns, static_cast<int>(t.columns),
                                 TURNED ? t.inner : t.columns, t.whole[1]};
  float sum[MS_CORE_M][MS_CORE_N][4] = {};
  if (own.group >= 0)
    ms_core_multiply<true, TURNED>(sum, left, static_cast<int>(own.row), right, static_cast<int>(column),
                                   static_cast<int>(t.inner), shared);
  ms_core_results(sum, [&](int r, int s, float value) {
    const int64_t i = own.row + r, j = column + s;
    if (i < own.end && j < t.columns) ms_element_store(y + i * t.columns + j, value);
  });
}

template <class Y>
__global__ void __launch_bounds__(MS_CORE_THREADS) sum_rows_cores(const ms_b16 *a, const ms_b16 *b, Y *dw, task t) {
  MS_CUDA_DYNAMIC_SHARED(ms_b16, shared);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * TILE, column = static_cast<int64_t>(blockIdx.y) * TILE;
  const group_rows own = find_group(t, blockIdx.z);
  const ms_core_operand left = {a + own.begin * t.inner, static_cast<int>(t.inner), t.inner, t.whole[0]};
  const ms_core_operand right = {b + own.begin * t.columns, static_cast<int>(t.columns), t.columns, t.whole[1]};
  float sum[MS_CORE_M][MS_CORE_N][4] = {};
  ms_core_multiply<false, false>(sum, left, static_cast<int>(row), right, static_cast<int>(column),
                                 static_cast<int>(own.end - own.begin), shared);
  Y *out = dw + max(own.group, INT64_C(0)) * t.inner * t.columns;
  ms_core_results(sum, [&](int r, int s, float value) {
    const int64_t i = row + r, j = column + s;
    if (i < t.inner && j < t.columns) ms_element_store(out + i * t.columns + j, value);
  });
}

unsigned tiles_of(int64_t n) { return static_cast<unsigned>(ms_cuda_ceil(n, TILE)); }

int run_multiply(const ms_kernel_call *call, const task &t) {
  /* Groups, and the rows before and behind them, have one tile each that is not full. */
  const dim3 grid(tiles_of(t.rows) + static_cast<unsigned>(t.groups) + 1, tiles_of(t.columns));
  if (call->in[0].dtype == MS_F32)
    return MS_CUDA_LAUNCH(multiply<float>, grid, THREADS, 0, call->stream, static_cast<const float *>(call->in_data[0]),
                          static_cast<const float *>(call->in_data[1]), static_cast<float *>(call->out_data[0]), t);
  const ms_b16 *x = static_cast<const ms_b16 *>(call->in_data[0]), *w = static_cast<const ms_b16 *>(call->in_data[1]);
  ms_b16 *y = static_cast<ms_b16 *>(call->out_data[0]);
  if (t.turned)
    return MS_CUDA_LAUNCH(multiply_cores<true>, grid, MS_CORE_THREADS, MS_CORE_BYTES, call->stream, x, w, y, t);
  return MS_CUDA_LAUNCH(multiply_cores<false>, grid, MS_CORE_THREADS, MS_CORE_BYTES, call->stream, x, w, y, t);
}

template <class Y> int run_sum(const ms_kernel_call *call, const task &t) {
  const dim3 grid(tiles_of(t.inner), tiles_of(t.columns), static_cast<unsigned>(t.groups));
  Y *dw = static_cast<Y *>(call->out_data[0]);
  if (call->in[0].dtype == MS_F32)
    return MS_CUDA_LAUNCH((sum_rows<float, Y>), grid, THREADS, 0, call->stream,
                          static_cast<const float *>(call->in_data[0]), static_cast<const float *>(call->in_data[1]),
                          dw, t);
  return MS_CUDA_LAUNCH(sum_rows_cores<Y>, grid, MS_CORE_THREADS, MS_CORE_BYTES, call->stream,
                        static_cast<const ms_b16 *>(call->in_data[0]), static_cast<const ms_b16 *>(call->in_data[1]),
                        dw, t);
}

int run(const ms_kernel_call *call) {
  const int gradient = call->op == MS_OP_grouped_matmul_backward_weight;
  const int turned = call->attrs.i[1] != 0;
  const int64_t inner = call->in[0].dims[1], columns = gradient ? call->out[0].dims[2] : call->out[0].dims[1];
  constexpr int UNIT = ms_unit<ms_b16>;
  const bool first = inner % UNIT == 0 && ms_cuda_aligned(call->in_data[0]);
  const bool second = (!gradient && turned ? inner : columns) % UNIT == 0 && ms_cuda_aligned(call->in_data[1]);
  const task t = {static_cast<const int32_t *>(call->in_data[2]),
                  call->in[2].dims[0] - 1,
                  call->in[0].dims[0],
                  inner,
                  columns,
                  turned,
                  {first, second},
                  call->fault,
                  call->op};
  if (ms_numel(&call->out[0]) == 0) return MS_OK;
  if (!gradient) return run_multiply(call, t);
  return MS_CUDA_FLOATS(call->out[0].dtype, Y, run_sum<Y>(call, t));
}

} // namespace

extern const ms_kernel ms_cuda_grouped_matmul = {ms_cuda_prepare_grouped_matmul, run, nullptr,
                                                 MS_CUDA_OVER_grouped_matmul};
