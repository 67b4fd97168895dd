/* gather.cu - elements of x [outer][n][inner] by an index [outer][m][inner] along the middle axis, and the reverse,
 * which adds elements of src to those that the index names. Memory traffic: the index, and 2 s bytes per element that
 * moves. An index outside of the axis is recorded as the step's fault, and its element gives 0, or is not added.
 *
 * Every element of the result of scatter_add belongs to one thread, which reads the line's whole index and adds what is
 * its own in that order: no atomic additions, so the bits are the same in every run. A line has one owner where there
 * are many lines, and more where there are few. Sums of bf16 are f32 in the workspace, and rounded at the end. */
#include "kernels/cuda/vector.h"

namespace {

constexpr int THREADS = 256;
/* As many threads as keep a GPU busy. */
constexpr int64_t MAX_OWNERS = 1 << 16;

unsigned blocks_of(int64_t threads) { return static_cast<unsigned>(ms_cuda_ceil(threads, THREADS)); }

__device__ __forceinline__ int64_t own_thread() { return static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; }

/* y, index [outer][m][inner]; n is the axis of x. */
template <class U>
__global__ void __launch_bounds__(THREADS)
    gather(const U *x, const int32_t *index, U *y, ms_axis_view view, int64_t m, ms_fault *fault) {
  const int64_t at = own_thread();
  if (at >= view.outer * m * view.inner) return;
  const int64_t row = at / view.inner, i = at - row * view.inner, chosen = index[at];
  U element = U();
  if (chosen < 0 || chosen >= view.n) ms_note_fault(fault, MS_OP_gather, chosen, view.n);
  else element = x[(row / m * view.n + chosen) * view.inner + i];
  y[at] = element;
}

template <class U> int run_units(const ms_kernel_call *call) {
  const int64_t count = ms_numel(&call->out[0]);
  if (count == 0) return MS_OK;
  return MS_CUDA_LAUNCH(gather<U>, blocks_of(count), THREADS, 0, call->stream, static_cast<const U *>(call->in_data[0]),
                        static_cast<const int32_t *>(call->in_data[1]), static_cast<U *>(call->out_data[0]),
                        ms_view_axis(&call->in[0], call->attrs.cut.axis),
                        ms_view_axis(&call->in[1], call->attrs.cut.axis).n, call->fault);
}

int run_gather(const ms_kernel_call *call) {
  switch (ms_dtype_size(call->in[0].dtype)) {
    case 4: return run_units<uint32_t>(call);
    case 2: return run_units<uint16_t>(call);
    default: return run_units<uint8_t>(call);
  }
}

/* ---- scatter_add ------------------------------------------------------------------------------------------------- */

/* sums [outer][n][inner] += src [outer][m][inner]; neighbouring threads have neighbouring columns, then owners. */
template <class T>
__global__ void __launch_bounds__(THREADS) scatter(const int32_t *index, const T *src, float *sums, ms_axis_view view,
                                                   int64_t m, int64_t owners, ms_fault *fault) {
  const int64_t thread = own_thread(), row = thread / view.inner, i = thread - row * view.inner;
  const int64_t outer = row / owners, owner = row - outer * owners;
  if (outer >= view.outer) return;
  for (int64_t j = 0; j < m; j++) {
    const int64_t from = (outer * m + j) * view.inner + i, chosen = index[from];
    if (chosen < 0 || chosen >= view.n) ms_note_fault(fault, MS_OP_scatter_add, chosen, view.n);
    else if ((chosen & (owners - 1)) == owner)
      sums[(outer * view.n + chosen) * view.inner + i] += ms_element_load(src + from);
  }
}

template <class X, class Y> __global__ void __launch_bounds__(THREADS) convert(const X *x, Y *y, int64_t n) {
  const int64_t at = own_thread();
  if (at < n) ms_element_store(y + at, ms_element_load(x + at));
}

template <class T> int add(const ms_kernel_call *call, float *sums) {
  const ms_axis_view view = ms_view_axis(&call->in[0], call->attrs.cut.axis);
  const int64_t lines = view.outer * view.inner, m = ms_view_axis(&call->in[1], call->attrs.cut.axis).n;
  int64_t owners = 1;
  while (owners * 2 <= view.n && owners * 2 <= m && lines * owners * 2 <= MAX_OWNERS) owners *= 2;
  return MS_CUDA_LAUNCH(scatter<T>, blocks_of(lines * owners), THREADS, 0, call->stream,
                        static_cast<const int32_t *>(call->in_data[1]), static_cast<const T *>(call->in_data[2]), sums,
                        view, m, owners, call->fault);
}

int run_f32(const ms_kernel_call *call, int64_t n) {
  const size_t bytes = static_cast<size_t>(n) * sizeof(float);
  if (call->in_data[0] != call->out_data[0])
    MS_TRY(ms_cuda_status(cudaMemcpyAsync(call->out_data[0], call->in_data[0], bytes, cudaMemcpyDeviceToDevice,
                                          static_cast<cudaStream_t>(call->stream)),
                          "cudaMemcpyAsync"));
  return add<float>(call, static_cast<float *>(call->out_data[0]));
}

int run_bf16(const ms_kernel_call *call, int64_t n) {
  float *sums = static_cast<float *>(call->workspace);
  MS_TRY(MS_CUDA_LAUNCH((convert<ms_b16, float>), blocks_of(n), THREADS, 0, call->stream,
                        static_cast<const ms_b16 *>(call->in_data[0]), sums, n));
  MS_TRY(add<ms_b16>(call, sums));
  return MS_CUDA_LAUNCH((convert<float, ms_b16>), blocks_of(n), THREADS, 0, call->stream,
                        static_cast<const float *>(sums), static_cast<ms_b16 *>(call->out_data[0]), n);
}

int run_scatter_add(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->out[0]);
  if (n == 0) return MS_OK;
  return call->out[0].dtype == MS_BF16 ? run_bf16(call, n) : run_f32(call, n);
}

} // namespace

extern const ms_kernel ms_cuda_gather = {nullptr, run_gather, nullptr, MS_CUDA_OVER_gather};
extern const ms_kernel ms_cuda_scatter_add = {ms_cuda_prepare_scatter_add, run_scatter_add, nullptr,
                                              MS_CUDA_OVER_scatter_add};
