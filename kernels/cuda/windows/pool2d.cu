/* pool2d.cu - maxima and means of windows of planes [H][W], and their gradients. A thread has one element of the result
 * and reads what it needs: the elements of its window, or the windows that see its element, in their order. No atomic
 * additions, so the bits are the same in every run. Memory traffic: every element once from memory, and from cache as
 * often as windows overlap. */
#include "kernels/cuda/vector.h"

extern "C" {
#include "kernels/window.h"
}

namespace {

constexpr int THREADS = 256;

/* Where a thread's element is, of planes [rows][columns]. */
struct place {
  int64_t plane, i, j;
};

__device__ __forceinline__ place place_of(int64_t at, int64_t rows, int64_t columns) {
  const int64_t row = at / columns;
  return {row / rows, row % rows, at - row * columns};
}

__device__ __forceinline__ int64_t own_thread() { return static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; }

template <class T> __global__ void __launch_bounds__(THREADS) largest(const T *x, T *y, int32_t *indices, ms_pool p) {
  const int64_t at = own_thread();
  if (at >= p.planes * p.down.out * p.across.out) return;
  const place o = place_of(at, p.down.out, p.across.out);
  int64_t top, bottom, left, right;
  ms_window_taps(&p.down, o.i, &top, &bottom);
  ms_window_taps(&p.across, o.j, &left, &right);
  const int64_t row = o.i * p.down.stride - p.down.pad, column = o.j * p.across.stride - p.across.pad;
  int64_t found = (row + top) * p.across.in + column + left;
  float best = -INFINITY;
  for (int64_t r = top; r < bottom; r++)
    for (int64_t s = left; s < right; s++) {
      const int64_t from = (row + r) * p.across.in + column + s;
      const float value = ms_element_load(x + o.plane * p.down.in * p.across.in + from);
      if (!(value > best || (value != value && best == best))) continue; /* NaN is the largest */
      best = value;
      found = from;
    }
  ms_element_store(y + at, best);
  indices[at] = static_cast<int32_t>(found);
}

template <class T> __global__ void __launch_bounds__(THREADS) mean(const T *x, T *y, ms_pool p, int count_padding) {
  const int64_t at = own_thread();
  if (at >= p.planes * p.down.out * p.across.out) return;
  const place o = place_of(at, p.down.out, p.across.out);
  int64_t top, bottom, left, right;
  ms_window_taps(&p.down, o.i, &top, &bottom);
  ms_window_taps(&p.across, o.j, &left, &right);
  const int64_t row = o.plane * p.down.in + o.i * p.down.stride - p.down.pad;
  const int64_t column = o.j * p.across.stride - p.across.pad;
  float sum = 0.0f;
  for (int64_t r = top; r < bottom; r++)
    for (int64_t s = left; s < right; s++) sum += ms_element_load(x + (row + r) * p.across.in + column + s);
  ms_element_store(y + at, sum / static_cast<float>(ms_pool_divisor(&p, o.i, o.j, count_padding)));
}

/* Calls f(window of the plane, i, j) for the windows that see an element. */
template <class F> __device__ __forceinline__ void for_windows(const ms_pool &p, place e, F f) {
  int64_t top, bottom, left, right;
  ms_window_seen_by(&p.down, e.i, &top, &bottom);
  ms_window_seen_by(&p.across, e.j, &left, &right);
  for (int64_t i = top; i < bottom; i++)
    for (int64_t j = left; j < right; j++) f((e.plane * p.down.out + i) * p.across.out + j, i, j);
}

template <class T>
__global__ void __launch_bounds__(THREADS) largest_backward(const T *dy, const int32_t *indices, T *dx, ms_pool p) {
  const int64_t at = own_thread();
  if (at >= p.planes * p.down.in * p.across.in) return;
  const place e = place_of(at, p.down.in, p.across.in);
  const int64_t own = e.i * p.across.in + e.j;
  float sum = 0.0f;
  for_windows(p, e, [&](int64_t window, int64_t, int64_t) {
    if (indices[window] == own) sum += ms_element_load(dy + window);
  });
  ms_element_store(dx + at, sum);
}

template <class T>
__global__ void __launch_bounds__(THREADS) mean_backward(const T *dy, T *dx, ms_pool p, int count_padding) {
  const int64_t at = own_thread();
  if (at >= p.planes * p.down.in * p.across.in) return;
  float sum = 0.0f;
  for_windows(p, place_of(at, p.down.in, p.across.in), [&](int64_t window, int64_t i, int64_t j) {
    sum += ms_element_load(dy + window) / static_cast<float>(ms_pool_divisor(&p, i, j, count_padding));
  });
  ms_element_store(dx + at, sum);
}

unsigned blocks_of(const ms_kernel_call *call) {
  return static_cast<unsigned>(ms_cuda_ceil(ms_numel(&call->out[0]), THREADS));
}

template <class T> int run_max_typed(const ms_kernel_call *call) {
  const int backward = call->op == MS_OP_max_pool2d_backward;
  const ms_pool p = ms_pool_of(call, backward);
  if (ms_numel(&call->out[0]) == 0) return MS_OK;
  if (backward)
    return MS_CUDA_LAUNCH(largest_backward<T>, blocks_of(call), THREADS, 0, call->stream,
                          static_cast<const T *>(call->in_data[0]), static_cast<const int32_t *>(call->in_data[1]),
                          static_cast<T *>(call->out_data[0]), p);
  return MS_CUDA_LAUNCH(largest<T>, blocks_of(call), THREADS, 0, call->stream, static_cast<const T *>(call->in_data[0]),
                        static_cast<T *>(call->out_data[0]), static_cast<int32_t *>(call->out_data[1]), p);
}

template <class T> int run_mean_typed(const ms_kernel_call *call) {
  const int backward = call->op == MS_OP_avg_pool2d_backward,
            count_padding = call->attrs.windows.count_include_pad != 0;
  const ms_pool p = ms_pool_of(call, backward);
  const T *from = static_cast<const T *>(call->in_data[0]);
  T *to = static_cast<T *>(call->out_data[0]);
  if (ms_numel(&call->out[0]) == 0) return MS_OK;
  if (backward)
    return MS_CUDA_LAUNCH(mean_backward<T>, blocks_of(call), THREADS, 0, call->stream, from, to, p, count_padding);
  return MS_CUDA_LAUNCH(mean<T>, blocks_of(call), THREADS, 0, call->stream, from, to, p, count_padding);
}

int run_max(const ms_kernel_call *call) { return MS_CUDA_FLOATS(call->in[0].dtype, T, run_max_typed<T>(call)); }

int run_mean(const ms_kernel_call *call) { return MS_CUDA_FLOATS(call->in[0].dtype, T, run_mean_typed<T>(call)); }

} // namespace

extern const ms_kernel ms_cuda_max_pool2d = {nullptr, run_max, nullptr, MS_CUDA_OVER_max_pool2d};
extern const ms_kernel ms_cuda_avg_pool2d = {nullptr, run_mean, nullptr, MS_CUDA_OVER_avg_pool2d};
