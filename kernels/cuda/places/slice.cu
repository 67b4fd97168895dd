/* slice.cu - slice, pad, roll and concat on one axis, and copy_runs, viewed as rows of units (units.h). Memory traffic:
 * 2 s bytes per element of the result. A thread copies one unit. */
#include "kernels/cuda/units.h"

namespace {

constexpr int THREADS = 256;

/* In units: y[o][y_first + j] = x[o][j - shift] for o < rows and j < length; zero if j - shift is outside x's row. */
struct cut {
  int64_t rows, length, y_row, y_first, x_row, shift;
};

template <class U> __global__ void __launch_bounds__(THREADS) move(const U *x, U *y, cut c) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (i >= c.rows * c.length) return;
  const int64_t row = i / c.length, at = i - row * c.length, from = at - c.shift;
  U unit = U();
  if (from >= 0 && from < c.x_row) unit = x[row * c.x_row + from];
  y[row * c.y_row + c.y_first + at] = unit;
}

template <class U> int launch_cut(const ms_kernel_call *call, int input, const cut &c) {
  return MS_CUDA_LAUNCH(move<U>, static_cast<unsigned>(ms_cuda_ceil(c.rows * c.length, THREADS)), THREADS, 0,
                        call->stream, static_cast<const U *>(call->in_data[input]), static_cast<U *>(call->out_data[0]),
                        c);
}

/* c in bytes. */
int run_cut(const ms_kernel_call *call, int input, cut c) {
  if (c.rows * c.length == 0) return MS_OK;
  const int unit =
      ms_unit_of(static_cast<uint64_t>(c.length | c.y_row | c.y_first | c.x_row | c.shift) |
                 reinterpret_cast<uintptr_t>(call->in_data[input]) | reinterpret_cast<uintptr_t>(call->out_data[0]));
  c.length /= unit, c.y_row /= unit, c.y_first /= unit, c.x_row /= unit, c.shift /= unit;
  return MS_CUDA_UNITS(unit, U, launch_cut<U>(call, input, c));
}

/* What leaves at the end enters in front; then comes the rest. */
int run_roll(const ms_kernel_call *call) {
  const ms_axis_view view = ms_view_axis(&call->in[0], call->attrs.cut.axis);
  const int64_t unit = view.inner * ms_dtype_size(call->in[0].dtype), all = view.n * unit;
  if (all == 0) return MS_OK;
  const int64_t front = ms_rolled(view.n, call->attrs.cut.by) * unit, rest = all - front;
  MS_TRY(run_cut(call, 0, {view.outer, front, all, 0, all, -rest}));
  return run_cut(call, 0, {view.outer, rest, all, front, all, 0});
}

int run_runs(const ms_kernel_call *call) {
  const auto &by = call->attrs.runs;
  const int64_t size = sizeof(float), runs = (ms_numel(&call->in[0]) - by.run) / by.from + 1;
  return run_cut(call, 0, {runs, by.run * size, by.to * size, 0, by.from * size, 0});
}

int run_slice(const ms_kernel_call *call) {
  if (call->op == MS_OP_copy_runs) return run_runs(call);
  if (call->op == MS_OP_roll) return run_roll(call);
  const ms_axis_view from = ms_view_axis(&call->in[0], call->attrs.cut.axis),
                     to = ms_view_axis(&call->out[0], call->attrs.cut.axis);
  const int64_t bytes = from.inner * ms_dtype_size(call->in[0].dtype);
  const int64_t start = call->attrs.cut.start < 0 ? call->attrs.cut.start + from.n : call->attrs.cut.start;
  const int64_t shift = call->op == MS_OP_pad ? call->attrs.cut.before : -start;
  return run_cut(call, 0, {to.outer, to.n * bytes, to.n * bytes, 0, from.n * bytes, shift * bytes});
}

int run_concat(const ms_kernel_call *call) {
  const ms_axis_view to = ms_view_axis(&call->out[0], call->attrs.cut.axis);
  const int64_t bytes = to.inner * ms_dtype_size(call->out[0].dtype);
  int64_t first = 0;
  for (int i = 0; i < call->inputs; i++) {
    const int64_t length = ms_view_axis(&call->in[i], call->attrs.cut.axis).n * bytes;
    MS_TRY(run_cut(call, i, {to.outer, length, to.n * bytes, first, length, 0}));
    first += length;
  }
  return MS_OK;
}

} // namespace

extern const ms_kernel ms_cuda_slice = {nullptr, run_slice, nullptr, MS_CUDA_OVER_slice};
extern const ms_kernel ms_cuda_concat = {nullptr, run_concat, nullptr, MS_CUDA_OVER_concat};
