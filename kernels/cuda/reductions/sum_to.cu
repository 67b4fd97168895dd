/* sum_to.cu - sums x to a shape that broadcasts to x's: the gradient of broadcasting. Memory traffic: s bytes per
 * element of s bytes.
 *
 * Adjacent axes that are all summed, or all kept, are merged; [kept][summed][kept] is a reduction over one axis
 * (axis.cu). Longer alternations are rare: a warp computes one element of the result from elements scattered over x.
 */
extern "C" {
#include "kernels/cuda/plan/partial_sums.h"
}

#include "kernels/cuda/places/axis.h"
#include "kernels/cuda/reductions/reduce.h"
#include "kernels/cuda/vector.h"

namespace {

constexpr int WARPS = 8;

/* Either the kept or the summed axes of x, with their strides, innermost last. */
struct axes {
  int ndim;
  int64_t dims[MS_MAX_DIMS], strides[MS_MAX_DIMS];
};

struct scattered {
  axes kept, summed;
  int64_t results, terms;
};

__device__ __forceinline__ int64_t offset_of(const axes &a, int64_t index) {
  int64_t offset = 0;
  for (int d = a.ndim - 1; d >= 0; d--) {
    offset += index % a.dims[d] * a.strides[d];
    index /= a.dims[d];
  }
  return offset;
}

template <class T, class Y> __global__ void sum_scattered(const T *x, Y *y, scattered s) {
  const int64_t own = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.y, at = min(own, s.results - 1);
  const T *from = x + offset_of(s.kept, at);
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < s.terms; i += MS_WARP) sum += ms_element_load(from + offset_of(s.summed, i));
  sum = ms_warp_reduce(sum, ms_add());
  if (threadIdx.x == 0 && own < s.results) ms_element_store(y + own, sum);
}

scattered scattered_of(const ms_broadcast &runs) {
  scattered s = {};
  int64_t strides[MS_MAX_DIMS], stride = 1;
  for (int d = runs.ndim - 1; d >= 0; d--) {
    strides[d] = stride;
    stride *= runs.dims[d];
  }
  s.results = s.terms = 1;
  for (int d = 0; d < runs.ndim; d++) {
    axes *to = runs.strides[0][d] ? &s.kept : &s.summed;
    to->dims[to->ndim] = runs.dims[d];
    to->strides[to->ndim++] = strides[d];
    *(runs.strides[0][d] ? &s.results : &s.terms) *= runs.dims[d];
  }
  return s;
}

template <class T, class Y> int run_scattered(const ms_kernel_call *call, const scattered &s) {
  if (s.results == 0) return MS_OK;
  return MS_CUDA_LAUNCH((sum_scattered<T, Y>), static_cast<unsigned>(ms_cuda_ceil(s.results, WARPS)),
                        dim3(MS_WARP, WARPS), 0, call->stream, static_cast<const T *>(call->in_data[0]),
                        static_cast<Y *>(call->out_data[0]), s);
}

int run(const ms_kernel_call *call) {
  ms_axis_view view;
  const ms_broadcast runs = ms_sum_to_runs(call);
  if (ms_sum_to_is_axis(&runs, &view)) return ms_axis_run(call, view, MS_REDUCE_SUM, 1.0);
  const scattered s = scattered_of(runs);
  return MS_CUDA_FLOATS(call->in[0].dtype, T, MS_CUDA_FLOATS(call->out[0].dtype, Y, run_scattered<T, Y>(call, s)));
}

} // namespace

extern const ms_kernel ms_cuda_sum_to = {ms_cuda_prepare_sum_to, run, nullptr, MS_CUDA_OVER_sum_to};
