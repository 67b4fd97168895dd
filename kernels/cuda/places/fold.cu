/* fold.cu - moves the runs of a folded axis (kernels/fold.h). Memory traffic: 2 s bytes per element of the result. A
 * thread copies one unit. */
#include "kernels/cuda/units.h"
#include "kernels/fold.h"

namespace {

constexpr int THREADS = 256;

/* y [runs][length] of x [a b][length], in units. */
template <class U>
__global__ void __launch_bounds__(THREADS)
    fold(const U *x, U *y, int64_t runs, int64_t length, int64_t a, int64_t b, ms_op_attrs attrs) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (i >= runs * length) return;
  const int64_t from = ms_fold_source(&attrs, a, b, i / length);
  U unit = U();
  if (from >= 0) unit = x[from * length + i % length];
  y[i] = unit;
}

template <class U> int launch(const ms_kernel_call *call, int64_t runs, int64_t length) {
  return MS_CUDA_LAUNCH(fold<U>, static_cast<unsigned>(ms_cuda_ceil(runs * length, THREADS)), THREADS, 0, call->stream,
                        static_cast<const U *>(call->in_data[0]), static_cast<U *>(call->out_data[0]), runs, length,
                        call->in[0].dims[0], call->in[0].dims[1], call->attrs);
}

int run(const ms_kernel_call *call) {
  const int64_t runs = call->out[0].dims[0] * call->out[0].dims[1];
  const int64_t bytes = call->in[0].dims[2] * ms_dtype_size(call->in[0].dtype);
  if (runs * bytes == 0) return MS_OK;
  const int unit = ms_unit_of(static_cast<uint64_t>(bytes) | reinterpret_cast<uintptr_t>(call->in_data[0]) |
                              reinterpret_cast<uintptr_t>(call->out_data[0]));
  return MS_CUDA_UNITS(unit, U, launch<U>(call, runs, bytes / unit));
}

} // namespace

extern const ms_kernel ms_cuda_fold = {nullptr, run, nullptr, MS_CUDA_OVER_fold};
