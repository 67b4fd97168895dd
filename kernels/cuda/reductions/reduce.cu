/* reduce.cu - sum, mean, max and min over one axis or all axes: axis.cu on the call's view. */
extern "C" {
#include "kernels/cuda/plan/partial_sums.h"
}

#include "kernels/cuda/places/axis.h"

namespace {

int run(const ms_kernel_call *call) {
  const ms_axis_view view = ms_reduce_view(call);
  switch (call->op) {
    case MS_OP_max: return ms_axis_run(call, view, MS_REDUCE_LARGEST, 1.0);
    case MS_OP_min: return ms_axis_run(call, view, MS_REDUCE_SMALLEST, 1.0);
    case MS_OP_mean: return ms_axis_run(call, view, MS_REDUCE_SUM, static_cast<double>(view.n));
    default: return ms_axis_run(call, view, MS_REDUCE_SUM, 1.0);
  }
}

} // namespace

extern const ms_kernel ms_cuda_reduce = {ms_cuda_prepare_reduce, run, nullptr, MS_CUDA_OVER_reduce};
