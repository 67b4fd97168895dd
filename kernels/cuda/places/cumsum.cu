/* cumsum.cu - sums up to each element of one axis, from its start or from its end. Memory traffic: 2 s bytes per
 * element of s bytes. Along the last axis a warp or a block of 256 threads has a row: it scans tiles of an element a
 * thread, in warps and then over the warps, and carries the sum to the next tile; sums are double, as on the CPU. Along
 * another axis a thread has a column. An element is read before its place is written. */
#include "kernels/cuda/reductions/reduce.h"
#include "kernels/cuda/vector.h"

namespace {

constexpr int THREADS = 256;

/* The sum of the lanes up to this one. */
__device__ __forceinline__ double scan_warp(double value) {
  const int lane = threadIdx.x % MS_WARP;
#pragma unroll
  for (unsigned by = 1; by < MS_WARP; by *= 2) {
    const double before = __shfl_up_sync(0xffffffffu, value, by);
    if (lane >= static_cast<int>(by)) value += before;
  }
  return value;
}

/* x, y [rows][n]; one block per row. */
template <class T> __global__ void __launch_bounds__(THREADS) sum_rows(const T *x, T *y, int64_t n, int reverse) {
  __shared__ double of_warp[MS_MAX_WARPS];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * n;
  const int warp = threadIdx.x / MS_WARP, lane = threadIdx.x % MS_WARP, warps = blockDim.x / MS_WARP;
  double carried = 0;
  for (int64_t tile = 0; tile < n; tile += blockDim.x) {
    const int64_t i = tile + threadIdx.x, at = row + (reverse ? n - 1 - i : i);
    const double sum = scan_warp(i < n ? static_cast<double>(ms_element_load(x + at)) : 0.0);
    if (lane == MS_WARP - 1) of_warp[warp] = sum;
    __syncthreads();
    double before = carried;
    for (int w = 0; w < warps; w++) {
      if (w < warp) before += of_warp[w];
      carried += of_warp[w];
    }
    if (i < n) ms_element_store(y + at, static_cast<float>(before + sum));
    __syncthreads();
  }
}

/* x, y [outer][n][inner]; one thread per column. */
template <class T>
__global__ void __launch_bounds__(THREADS) sum_columns(const T *x, T *y, ms_axis_view view, int reverse) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (column >= view.outer * view.inner) return;
  const int64_t first = column / view.inner * view.n * view.inner + column % view.inner;
  double total = 0;
  for (int64_t i = 0; i < view.n; i++) {
    const int64_t at = first + (reverse ? view.n - 1 - i : i) * view.inner;
    total += static_cast<double>(ms_element_load(x + at));
    ms_element_store(y + at, static_cast<float>(total));
  }
}

template <class T> int run_typed(const ms_kernel_call *call) {
  const ms_axis_view view = ms_view_axis(&call->in[0], call->attrs.cumsum.axis);
  const T *x = static_cast<const T *>(call->in_data[0]);
  T *y = static_cast<T *>(call->out_data[0]);
  const int reverse = call->attrs.cumsum.reverse != 0;
  if (view.outer * view.n * view.inner == 0) return MS_OK;
  if (view.inner == 1)
    return MS_CUDA_LAUNCH(sum_rows<T>, static_cast<unsigned>(view.outer), view.n <= 2 * MS_WARP ? MS_WARP : THREADS, 0,
                          call->stream, x, y, view.n, reverse);
  return MS_CUDA_LAUNCH(sum_columns<T>, static_cast<unsigned>(ms_cuda_ceil(view.outer * view.inner, THREADS)), THREADS,
                        0, call->stream, x, y, view, reverse);
}

int run(const ms_kernel_call *call) { return MS_CUDA_FLOATS(call->in[0].dtype, T, run_typed<T>(call)); }

} // namespace

extern const ms_kernel ms_cuda_cumsum = {nullptr, run, nullptr, MS_CUDA_OVER_cumsum};
