/* transpose.cu - permutes axes; also broadcast_to. Memory traffic: 2 s bytes per element of the result (broadcast_to
 * reads less).
 *
 * Axes that stay adjacent are merged. If the last axis stays last, or is repeated, a thread copies one unit (units.h)
 * of the result. Otherwise the plane of the input's last axis and the output's last axis is transposed in tiles of 32 x
 * 32 in shared memory, by blocks of 32 x 8 threads: both sides access whole sectors, and a column of padding avoids
 * bank conflicts.
 */
#include "kernels/cuda/elementwise/broadcast.h"
#include "kernels/cuda/units.h"

namespace {

constexpr int THREADS = 256, TILE = 32, TILE_ROWS = 8;

/* ---- gathering units --------------------------------------------------------------------------------------------- */

template <class U> __global__ void __launch_bounds__(THREADS) gather(const U *x, U *y, ms_broadcast shape, int64_t n) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  int64_t from[1];
  if (at >= n) return;
  ms_locate(shape, at, n, 1, from);
  y[at] = x[from[0]];
}

template <class U> int launch_gather(const ms_kernel_call *call, const ms_broadcast &shape, int64_t n) {
  return MS_CUDA_LAUNCH(gather<U>, static_cast<unsigned>(ms_cuda_ceil(n, THREADS)), THREADS, 0, call->stream,
                        static_cast<const U *>(call->in_data[0]), static_cast<U *>(call->out_data[0]), shape, n);
}

/* shape: the output's axes and the input's strides along them, in elements; the last stride is 0 or 1. */
int run_gather(const ms_kernel_call *call, ms_broadcast shape) {
  const int64_t size = ms_dtype_size(call->out[0].dtype), bytes = ms_numel(&call->out[0]) * size;
  const int last = shape.ndim - 1;
  int unit = static_cast<int>(size);
  if (bytes == 0) return MS_OK;
  if (shape.strides[0][last] == 1) {
    uint64_t bits = static_cast<uint64_t>(shape.dims[last] * size) | reinterpret_cast<uintptr_t>(call->in_data[0]) |
                    reinterpret_cast<uintptr_t>(call->out_data[0]);
    for (int d = 0; d < last; d++) bits |= static_cast<uint64_t>(shape.strides[0][d] * size);
    unit = ms_unit_of(bits);
    for (int d = 0; d < last; d++) shape.strides[0][d] = shape.strides[0][d] * size / unit;
    shape.dims[last] = shape.dims[last] * size / unit;
  }
  return MS_CUDA_UNITS(unit, U, launch_gather<U>(call, shape, bytes / unit));
}

int run_broadcast_to(const ms_kernel_call *call) {
  return run_gather(call, ms_broadcast_of(&call->out[0], 1, call->in));
}

/* ---- transposing planes ------------------------------------------------------------------------------------------ */

/* The plane, y[r * y_stride + c] = x[c * x_stride + r], r < rows, c < columns, and the axes outside it. */
struct turn {
  int ndim;
  int64_t dims[MS_MAX_DIMS], from[MS_MAX_DIMS], to[MS_MAX_DIMS];
  int64_t rows, columns, x_stride, y_stride, tiles_down, tiles_across;
};

template <class U> __global__ void __launch_bounds__(TILE *TILE_ROWS) turn_tiles(const U *x, U *y, turn t) {
  __shared__ U tile[TILE][TILE + 1];
  int64_t block = blockIdx.x;
  const int64_t column = block % t.tiles_across * TILE, row = block / t.tiles_across % t.tiles_down * TILE;
  block = block / t.tiles_across / t.tiles_down;
  for (int d = t.ndim - 1; d >= 0; d--) {
    x += block % t.dims[d] * t.from[d];
    y += block % t.dims[d] * t.to[d];
    block /= t.dims[d];
  }
#pragma unroll
  for (int k = threadIdx.y; k < TILE; k += TILE_ROWS)
    if (column + k < t.columns && row + threadIdx.x < t.rows)
      tile[k][threadIdx.x] = x[(column + k) * t.x_stride + row + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int k = threadIdx.y; k < TILE; k += TILE_ROWS)
    if (row + k < t.rows && column + threadIdx.x < t.columns)
      y[(row + k) * t.y_stride + column + threadIdx.x] = tile[threadIdx.x][k];
}

template <class U> int launch_turn(const ms_kernel_call *call, const turn &t, int64_t blocks) {
  return MS_CUDA_LAUNCH(turn_tiles<U>, static_cast<unsigned>(blocks), dim3(TILE, TILE_ROWS), 0, call->stream,
                        static_cast<const U *>(call->in_data[0]), static_cast<U *>(call->out_data[0]), t);
}

/* For an input whose last axis, with stride 1, is not the output's last one. */
int run_turn(const ms_kernel_call *call, const ms_broadcast &shape) {
  turn t = {};
  int64_t stride = 1, blocks;
  const int last = shape.ndim - 1;
  for (int d = last; d >= 0; stride *= shape.dims[d--]) {
    if (d == last) {
      t.columns = shape.dims[d];
      t.x_stride = shape.strides[0][d];
    } else if (shape.strides[0][d] == 1) {
      t.rows = shape.dims[d];
      t.y_stride = stride;
    } else {
      t.dims[t.ndim] = shape.dims[d];
      t.from[t.ndim] = shape.strides[0][d];
      t.to[t.ndim++] = stride;
    }
  }
  t.tiles_down = ms_cuda_ceil(t.rows, TILE);
  t.tiles_across = ms_cuda_ceil(t.columns, TILE);
  blocks = t.tiles_down * t.tiles_across;
  for (int d = 0; d < t.ndim; d++) blocks *= t.dims[d];
  switch (ms_dtype_size(call->out[0].dtype)) {
    case 1: return launch_turn<uint8_t>(call, t, blocks);
    case 2: return launch_turn<uint16_t>(call, t, blocks);
    default: return launch_turn<uint32_t>(call, t, blocks);
  }
}

/* The output's axes, outermost first, with adjacent ones merged, and the input's stride along each. */
ms_broadcast axes_of(const ms_kernel_call *call) {
  const ms_value_info *x = &call->in[0];
  int64_t strides[MS_MAX_DIMS], stride = 1;
  for (int d = x->ndim - 1; d >= 0; d--) {
    strides[d] = stride;
    stride *= x->dims[d];
  }
  ms_broadcast t = {};
  for (int d = 0; d < x->ndim; d++) {
    const int axis = ms_axis_of(x, call->attrs.permutation.p[d]);
    int64_t *from = t.strides[0];
    if (x->dims[axis] == 1) continue;
    if (t.ndim && from[t.ndim - 1] == strides[axis] * x->dims[axis]) {
      t.dims[t.ndim - 1] *= x->dims[axis];
      from[t.ndim - 1] = strides[axis];
      continue;
    }
    t.dims[t.ndim] = x->dims[axis];
    from[t.ndim++] = strides[axis];
  }
  if (t.ndim == 0) {
    t.ndim = 1;
    t.dims[0] = t.strides[0][0] = 1;
  }
  return t;
}

int run_transpose(const ms_kernel_call *call) {
  const ms_broadcast shape = axes_of(call);
  if (ms_numel(&call->out[0]) == 0) return MS_OK;
  return shape.strides[0][shape.ndim - 1] == 1 ? run_gather(call, shape) : run_turn(call, shape);
}

} // namespace

extern const ms_kernel ms_cuda_transpose = {nullptr, run_transpose, nullptr, MS_CUDA_OVER_transpose};
extern const ms_kernel ms_cuda_broadcast_to = {nullptr, run_broadcast_to, nullptr, MS_CUDA_OVER_broadcast_to};
