/* grouped_matmul.cu - a product for each group of rows, and the gradient of its weights: of bf16 on tensor cores
 * (core_tile.h), of f32 in f32 arithmetic (plain_tile.h). The host does not know how many rows a group has, and waits
 * for nothing: there are as many blocks as any groups need, as if all rows were one group's and one more tile for each
 * group's last, and a warp finds the block's group from the offsets (grouped_rows.h). Blocks past the last tile end at
 * once; rows of no group are a last group, of zeros. Arithmetic bounds it.
 *
 * Operands in 8 bits are first rounded to what their codes are worth (grouped_f8.cu), which is then multiplied: without
 * the 8-bit tensor cores, so this is exact but no faster. */
#include "kernels/cuda/core_tile.h"
#include "kernels/cuda/grouped/grouped_rows.h"
#include "kernels/cuda/plain_tile.h"

namespace {

constexpr int TILE = MS_PLAIN_TILE, SIDE = MS_PLAIN_SIDE, THREADS = MS_PLAIN_THREADS;

/* Shapes of a tile on tensor cores: for groups of many rows, and of so few that tiles of these would be half empty. */
using many_rows = ms_core_shape<4, 8, 2, 2, 3>;
using few_rows = ms_core_shape<2, 8, 2, 2, 3>;
constexpr int64_t MANY_ROWS = 96;
constexpr unsigned SQUARE = MS_GROUPED_SQUARE;
static_assert(TILE >= MS_GROUPED_TILE && few_rows::ROWS >= MS_GROUPED_TILE, "plans bound the number of tiles");

struct task : ms_groups {
  int64_t inner, columns; /* of x [rows][inner] and y [rows][columns]; of the gradient [inner][columns] */
  int turned;             /* 1: w [groups][columns][inner] */
  unsigned across;        /* tiles of columns */
  bool whole[3];          /* whether rows of the operands and of the result are whole units in memory */
};

/* Which tile a block computes: by rows, and by columns. */
struct place {
  int row, column;
};
__device__ __forceinline__ place place_of(unsigned block, unsigned across) {
  const unsigned square = block / (SQUARE * across), within = block % (SQUARE * across);
  return {static_cast<int>(square * SQUARE + within % SQUARE), static_cast<int>(within / SQUARE)};
}

/* y [rows][columns]; a block per tile of rows and of columns. */
template <class T, class Y> __global__ void __launch_bounds__(THREADS) multiply(const T *x, const T *w, Y *y, task t) {
  const place at = place_of(blockIdx.x, t.across);
  const ms_group_rows own = ms_find_tile<TILE>(t, at.row);
  if (own.row >= own.end) return;
  const int64_t column = static_cast<int64_t>(at.column) * TILE;
  const T *weight = w + max(own.group, 0) * t.inner * t.columns;
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
  const place at = place_of(blockIdx.x, t.across);
  const int64_t row = static_cast<int64_t>(at.row) * TILE, column = static_cast<int64_t>(at.column) * TILE;
  if (row >= t.inner) return;
  const ms_group_rows own = ms_find_group(t, static_cast<int>(blockIdx.y));
  const ms_plain_operand<T> left = {a + own.begin * t.inner, t.inner, 1, t.inner};
  const ms_plain_operand<T> right = {b + own.begin * t.columns, t.columns, 1, t.columns};
  float sum[SIDE][SIDE] = {};
  ms_plain_multiply(sum, left, row, right, column, own.end - own.begin);
  Y *out = dw + own.group * t.inner * t.columns;
#pragma unroll
  for (int r = 0; r < SIDE; r++)
#pragma unroll
    for (int s = 0; s < SIDE; s++) {
      const int64_t i = row + ms_plain_row(r), j = column + ms_plain_column(s);
      if (i < t.inner && j < t.columns) ms_element_store(out + i * t.columns + j, sum[r][s]);
    }
}

/* The same of bf16 on tensor cores. TURNED: w [groups][columns][inner]. */
template <class S, bool TURNED, class Y>
__global__ void __launch_bounds__(S::THREADS) multiply_cores(const ms_b16 *x, const ms_b16 *w, Y *y, task t) {
  MS_CUDA_DYNAMIC_SHARED(ms_b16, shared);
  const place at = place_of(blockIdx.x, t.across);
  const ms_group_rows own = ms_find_tile<S::ROWS>(t, at.row);
  if (own.row >= own.end) return;
  const int column = at.column * S::COLUMNS;
  const ms_core_operand left = {x, own.end, t.inner, t.whole[0]};
  const ms_core_operand right = {w + max(own.group, 0) * t.inner * t.columns, static_cast<int>(t.columns),
                                 TURNED ? t.inner : t.columns, t.whole[1]};
  ms_core_sums<S> sum = {};
  if (own.group >= 0)
    ms_core_multiply<S, true, TURNED>(sum, left, own.row, right, column, static_cast<int>(t.inner), shared);
  ms_core_store<S>(y, sum, own.row, own.end, column, t.columns, t.whole[2], shared);
}

template <class S, class Y>
__global__ void __launch_bounds__(S::THREADS) sum_rows_cores(const ms_b16 *a, const ms_b16 *b, Y *dw, task t) {
  MS_CUDA_DYNAMIC_SHARED(ms_b16, shared);
  const place at = place_of(blockIdx.x, t.across);
  const int row = at.row * S::ROWS, column = at.column * S::COLUMNS;
  if (row >= t.inner) return;
  const ms_group_rows own = ms_find_group(t, static_cast<int>(blockIdx.y));
  const ms_core_operand left = {a + own.begin * t.inner, static_cast<int>(t.inner), t.inner, t.whole[0]};
  const ms_core_operand right = {b + own.begin * t.columns, static_cast<int>(t.columns), t.columns, t.whole[1]};
  ms_core_sums<S> sum = {};
  ms_core_multiply<S, false, false>(sum, left, row, right, column, own.end - own.begin, shared);
  ms_core_store<S>(dw + own.group * t.inner * t.columns, sum, row, static_cast<int>(t.inner), column, t.columns,
                   t.whole[2], shared);
}

unsigned tiles_of(int64_t n, int tile) { return static_cast<unsigned>(ms_cuda_ceil(n, tile)); }

/* Whole squares of `down` x `across` tiles. */
unsigned blocks_of(unsigned down, unsigned across) { return (down + SQUARE - 1) / SQUARE * SQUARE * across; }

/* Tiles of rows: groups, and the rows before and after them, have one each that is not full. */
unsigned row_tiles_of(const task &t, int rows) { return tiles_of(t.rows, rows) + static_cast<unsigned>(t.groups) + 1; }

template <class S, class Y> int run_multiply_cores(const ms_kernel_call *call, task t) {
  t.across = tiles_of(t.columns, S::COLUMNS);
  const unsigned grid = blocks_of(row_tiles_of(t, S::ROWS), t.across);
  const ms_b16 *x = static_cast<const ms_b16 *>(call->in_data[0]), *w = static_cast<const ms_b16 *>(call->in_data[1]);
  Y *y = static_cast<Y *>(call->out_data[0]);
  if (t.turned)
    return MS_CUDA_LAUNCH_SHARED((multiply_cores<S, true, Y>), grid, S::THREADS, S::BYTES, call->stream, x, w, y, t);
  return MS_CUDA_LAUNCH_SHARED((multiply_cores<S, false, Y>), grid, S::THREADS, S::BYTES, call->stream, x, w, y, t);
}

template <class Y> int run_multiply(const ms_kernel_call *call, task t) {
  if (call->in[0].dtype == MS_BF16)
    return t.rows < t.groups * MANY_ROWS ? run_multiply_cores<few_rows, Y>(call, t)
                                         : run_multiply_cores<many_rows, Y>(call, t);
  t.across = tiles_of(t.columns, TILE);
  return MS_CUDA_LAUNCH((multiply<float, Y>), blocks_of(row_tiles_of(t, TILE), t.across), THREADS, 0, call->stream,
                        static_cast<const float *>(call->in_data[0]), static_cast<const float *>(call->in_data[1]),
                        static_cast<Y *>(call->out_data[0]), t);
}

template <class Y> int run_sum(const ms_kernel_call *call, task t) {
  using S = many_rows;
  const bool cores = call->in[0].dtype == MS_BF16;
  t.across = tiles_of(t.columns, cores ? S::COLUMNS : TILE);
  const dim3 grid(blocks_of(tiles_of(t.inner, cores ? S::ROWS : TILE), t.across), static_cast<unsigned>(t.groups));
  Y *dw = static_cast<Y *>(call->out_data[0]);
  if (!cores)
    return MS_CUDA_LAUNCH((sum_rows<float, Y>), grid, THREADS, 0, call->stream,
                          static_cast<const float *>(call->in_data[0]), static_cast<const float *>(call->in_data[1]),
                          dw, t);
  return MS_CUDA_LAUNCH_SHARED((sum_rows_cores<S, Y>), grid, S::THREADS, S::BYTES, call->stream,
                               static_cast<const ms_b16 *>(call->in_data[0]),
                               static_cast<const ms_b16 *>(call->in_data[1]), dw, t);
}

int run_products(const ms_kernel_call *call) {
  const int gradient = call->out[0].ndim == 3;
  const int turned = call->attrs.product.trans_b != 0;
  const int64_t inner = call->in[0].dims[1], columns = gradient ? call->out[0].dims[2] : call->out[0].dims[1];
  constexpr int UNIT = ms_unit<ms_b16>;
  const bool first = inner % UNIT == 0 && ms_cuda_aligned(call->in_data[0]);
  const bool second = (!gradient && turned ? inner : columns) % UNIT == 0 && ms_cuda_aligned(call->in_data[1]);
  const bool third = columns % UNIT == 0 && ms_cuda_aligned(call->out_data[0]);
  const task t = {ms_groups_of(call), inner, columns, turned, 0, {first, second, third}};
  if (!gradient) return MS_CUDA_FLOATS(call->out[0].dtype, Y, run_multiply<Y>(call, t));
  return MS_CUDA_FLOATS(call->out[0].dtype, Y, run_sum<Y>(call, t));
}

/* The values of rounded operands, in the workspace. */
int run_rounded(const ms_kernel_call *call) {
  ms_grouped_f8 f8;
  MS_TRY(ms_grouped_f8_of(call, &f8));
  ms_kernel_call values = *call;
  for (int i = 0; i < 2; i++) {
    void *to = static_cast<char *>(call->workspace) + f8.values[i];
    MS_TRY(ms_grouped_round_run(call, &f8, i, to));
    values.in_data[i] = to;
    values.in[i].dtype = f8.dtype;
  }
  return run_products(&values);
}

int run(const ms_kernel_call *call) {
  if (ms_numel(&call->out[0]) == 0) return MS_OK;
  return ms_grouped_rounds(call) ? run_rounded(call) : run_products(call);
}

} // namespace

extern const ms_kernel ms_cuda_grouped_matmul = {ms_cuda_prepare_grouped_matmul, run, nullptr,
                                                 MS_CUDA_OVER_grouped_matmul};
