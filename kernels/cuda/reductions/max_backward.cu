/* max_backward.cu - the gradient of max and min: dy goes to the element of x that equals the result y (or is NaN if y
 * is NaN); several such elements share it equally; 0 elsewhere. Memory traffic: 3 s bytes per element of s bytes. Over
 * the last axis a block counts the elements of a row and then writes it; over another axis each thread processes one
 * column. dx can overwrite x. */
#include "kernels/cuda/reductions/reduce.h"
#include "kernels/cuda/vector.h"

namespace {

enum { X, Y, DY };
constexpr int THREADS = 256;

__device__ __forceinline__ bool is_largest(float x, float y) { return x == y || (x != x && y != y); }

struct sum_of {
  __device__ __forceinline__ int64_t operator()(int64_t a, int64_t b) const { return a + b; }
};

/* x, dx [rows][n]; y, dy [rows]. One block per row. */
template <class T>
__global__ void __launch_bounds__(THREADS) mark_rows(const T *x, const T *y, const T *dy, T *dx, int64_t n) {
  const int64_t row = blockIdx.x, from = row * n;
  const float largest = ms_element_load(y + row);
  int64_t ties = 0;
  for (int64_t i = threadIdx.x; i < n; i += THREADS) ties += is_largest(ms_element_load(x + from + i), largest);
  ties = ms_row_reduce(ties, static_cast<int64_t>(0), sum_of());
  const float share = ms_element_load(dy + row) / static_cast<float>(ties);
  for (int64_t i = threadIdx.x; i < n; i += THREADS)
    ms_element_store(dx + from + i, is_largest(ms_element_load(x + from + i), largest) ? share : 0.0f);
}

/* x, dx [outer][n][inner]; y, dy [outer][inner]. One thread per column. */
template <class T>
__global__ void __launch_bounds__(THREADS) mark_columns(const T *x, const T *y, const T *dy, T *dx, ms_axis_view view) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (at >= view.outer * view.inner) return;
  const float largest = ms_element_load(y + at), gradient = ms_element_load(dy + at);
  const int64_t first = at / view.inner * view.n * view.inner + at % view.inner;
  int64_t ties = 0;
  for (int64_t i = 0; i < view.n; i++) ties += is_largest(ms_element_load(x + first + i * view.inner), largest);
  const float share = gradient / static_cast<float>(ties);
  for (int64_t i = 0; i < view.n; i++) {
    const bool here = is_largest(ms_element_load(x + first + i * view.inner), largest);
    ms_element_store(dx + first + i * view.inner, here ? share : 0.0f);
  }
}

template <class T> int run_typed(const ms_kernel_call *call) {
  ms_axis_view view = {1, ms_numel(&call->in[X]), 1};
  if (!call->attrs.reduce.all) view = ms_view_axis(&call->in[X], call->attrs.reduce.axis);
  const T *x = static_cast<const T *>(call->in_data[X]), *y = static_cast<const T *>(call->in_data[Y]);
  const T *dy = static_cast<const T *>(call->in_data[DY]);
  T *dx = static_cast<T *>(call->out_data[0]);
  if (view.outer * view.n * view.inner == 0) return MS_OK;
  if (view.inner == 1)
    return MS_CUDA_LAUNCH(mark_rows<T>, static_cast<unsigned>(view.outer), THREADS, 0, call->stream, x, y, dy, dx,
                          view.n);
  return MS_CUDA_LAUNCH(mark_columns<T>, static_cast<unsigned>(ms_cuda_ceil(view.outer * view.inner, THREADS)), THREADS,
                        0, call->stream, x, y, dy, dx, view);
}

int run(const ms_kernel_call *call) { return MS_CUDA_FLOATS(call->in[X].dtype, T, run_typed<T>(call)); }

} // namespace

extern const ms_kernel ms_cuda_max_backward = {ms_cuda_prepare_max_backward, run, nullptr, MS_CUDA_OVER_max_backward};
