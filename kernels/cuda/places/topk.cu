/* topk.cu - the k largest or smallest elements of each line along one axis, in order (kernels/order_key.h). A warp or a
 * block of 256 threads has a line, and finds the largest key below the one before it, k times: k passes over the line,
 * mostly from cache. That suits the k of samplers and routers; a sort would suit one that is near the line's length. */
#include "kernels/cuda/reductions/reduce.h"
#include "kernels/cuda/vector.h"
#include "kernels/order_key.h"

namespace {

constexpr int THREADS = 256;

struct larger_key {
  __device__ __forceinline__ uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};

/* x [outer][n][inner]; values, indices [outer][k][inner]. One block per line. */
template <class T>
__global__ void __launch_bounds__(THREADS)
    select(const T *x, T *values, int32_t *indices, ms_axis_view view, int64_t k, int largest) {
  const int64_t line = blockIdx.x, outer = line / view.inner, inner = line % view.inner;
  const int64_t first = outer * view.n * view.inner + inner;
  uint64_t found = UINT64_MAX;
  for (int64_t place = 0; place < k; place++) {
    uint64_t best = 0;
    for (int64_t i = threadIdx.x; i < view.n; i += blockDim.x) {
      const uint64_t key = ms_order_key(ms_element_load(x + first + i * view.inner), i, largest);
      if (key < found && key > best) best = key;
    }
    found = ms_row_reduce(best, static_cast<uint64_t>(0), larger_key());
    if (threadIdx.x != 0) continue;
    const int64_t index = ms_order_index(found), to = (outer * k + place) * view.inner + inner;
    values[to] = x[first + index * view.inner];
    indices[to] = static_cast<int32_t>(index);
  }
}

template <class T> int run_typed(const ms_kernel_call *call) {
  const ms_axis_view view = ms_view_axis(&call->in[0], call->attrs.topk.axis);
  if (view.outer * view.n * view.inner == 0) return MS_OK;
  return MS_CUDA_LAUNCH(
      select<T>, static_cast<unsigned>(view.outer * view.inner), view.n <= 4 * MS_WARP ? MS_WARP : THREADS, 0,
      call->stream, static_cast<const T *>(call->in_data[0]), static_cast<T *>(call->out_data[0]),
      static_cast<int32_t *>(call->out_data[1]), view, call->attrs.topk.k, call->attrs.topk.largest != 0);
}

int run(const ms_kernel_call *call) { return MS_CUDA_FLOATS(call->in[0].dtype, T, run_typed<T>(call)); }

} // namespace

extern const ms_kernel ms_cuda_topk = {nullptr, run, nullptr, MS_CUDA_OVER_topk};
