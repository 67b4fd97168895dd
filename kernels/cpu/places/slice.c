/* slice.c - slice, pad and roll on one axis: for each index of the axes before it, copies one contiguous range of
 * bytes, or two to roll; pad also zeroes the bytes around it. Elements of any dtype. copy_runs copies runs at equal
 * distances. */
#include <string.h>

#include "base/numbers/dtype.h"
#include "kernels/cpu/parallel.h"
#include "kernels/shape.h"

static void slice_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  ms_axis_view from = ms_view_axis(&call->in[0], call->attrs.cut.axis),
               to = ms_view_axis(&call->out[0], call->attrs.cut.axis);
  int64_t start = call->attrs.cut.start < 0 ? call->attrs.cut.start + from.n : call->attrs.cut.start;
  int64_t bytes = from.inner * ms_dtype_size(call->in[0].dtype);
  const char *x = call->in_data[0];
  char *y = call->out_data[0];
  for (int64_t o = begin; o < end; o++)
    memcpy(y + o * to.n * bytes, x + (o * from.n + start) * bytes, (size_t)(to.n * bytes));
}

static void pad_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  ms_axis_view from = ms_view_axis(&call->in[0], call->attrs.cut.axis),
               to = ms_view_axis(&call->out[0], call->attrs.cut.axis);
  int64_t bytes = from.inner * ms_dtype_size(call->in[0].dtype);
  int64_t before = call->attrs.cut.before * bytes, middle = from.n * bytes, all = to.n * bytes;
  const char *x = call->in_data[0];
  char *y = call->out_data[0];
  for (int64_t o = begin; o < end; o++) {
    char *row = y + o * all;
    memset(row, 0, (size_t)before);
    if (middle) memcpy(row + before, x + o * middle, (size_t)middle);
    memset(row + before + middle, 0, (size_t)(all - before - middle));
  }
}

static void roll_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const ms_axis_view view = ms_view_axis(&call->in[0], call->attrs.cut.axis);
  const int64_t unit = view.inner * ms_dtype_size(call->in[0].dtype), all = view.n * unit;
  const int64_t front = ms_rolled(view.n, call->attrs.cut.by) * unit;
  for (int64_t o = begin; o < end; o++) {
    const char *x = (const char *)call->in_data[0] + o * all;
    char *y = (char *)call->out_data[0] + o * all;
    memcpy(y, x + all - front, (size_t)front);
    memcpy(y + front, x, (size_t)(all - front));
  }
}

static int64_t runs_of(const ms_kernel_call *call) {
  return (ms_numel(&call->in[0]) - call->attrs.runs.run) / call->attrs.runs.from + 1;
}

static void runs_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const float *x = call->in_data[0];
  float *y = call->out_data[0];
  for (int64_t i = begin; i < end; i++)
    memcpy(y + i * call->attrs.runs.to, x + i * call->attrs.runs.from, (size_t)call->attrs.runs.run * sizeof *x);
}

static int run(const ms_kernel_call *call) {
  if (ms_numel(&call->out[0]) == 0) return MS_OK;
  if (call->op == MS_OP_copy_runs) {
    const int64_t runs = runs_of(call), moved = 2 * runs * call->attrs.runs.run * (int64_t)sizeof(float);
    ms_run_parts(call, ms_part_count(call, runs, moved), runs, 1, runs_part);
    return MS_OK;
  }
  ms_part_fn *part = call->op == MS_OP_pad ? pad_part : call->op == MS_OP_roll ? roll_part : slice_part;
  int64_t outer = ms_view_axis(&call->out[0], call->attrs.cut.axis).outer;
  int64_t bytes = 2 * ms_numel(&call->out[0]) * ms_dtype_size(call->out[0].dtype);
  ms_run_parts(call, ms_part_count(call, outer, bytes), outer, 1, part);
  return MS_OK;
}

const ms_kernel ms_cpu_slice = {.run = run};
