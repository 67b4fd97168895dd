/* reduce.cu - sum, mean, max and min over one axis or all axes: axis.cu on the call's view. */
#include "kernels/cuda/axis.h"

namespace {

ms_axis_view view_of(const ms_kernel_call *call) {
  if (call->attrs.i[2]) return ms_axis_view{1, ms_numel(&call->in[0]), 1};
  return ms_view_axis(&call->in[0], call->attrs.i[0]);
}

int prepare(ms_kernel_call *call) {
  call->workspace_bytes = ms_axis_workspace(call, view_of(call));
  return MS_OK;
}

int run(const ms_kernel_call *call) {
  const ms_axis_view view = view_of(call);
  switch (call->op) {
    case MS_OP_max: return ms_axis_run(call, view, MS_REDUCE_LARGEST, 1.0);
    case MS_OP_min: return ms_axis_run(call, view, MS_REDUCE_SMALLEST, 1.0);
    case MS_OP_mean: return ms_axis_run(call, view, MS_REDUCE_SUM, static_cast<double>(view.n));
    default: return ms_axis_run(call, view, MS_REDUCE_SUM, 1.0);
  }
}

} // namespace

extern const ms_kernel ms_cuda_reduce = {prepare, run, nullptr, 0};
