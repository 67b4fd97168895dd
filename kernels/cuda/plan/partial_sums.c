/* partial_sums.c - see the header; and the workspaces of the kernels that sum in parts. */
#include "kernels/cuda/plan/partial_sums.h"

#include "kernels/adafactor.h"
#include "kernels/cuda/plan/plan.h"
#include "kernels/cuda/plan/sizes.h"

/* Enough parts for about this many blocks, four for each of 132 SMs, with at least so many rows, or elements of a row,
 * each: twice as many parts take longer to join than they save. */
enum { BLOCKS = 528, MIN_ROWS = 64, MIN_OF_ROW = 16384 };
/* Two blocks for each of 132 SMs. */
enum { NORM_BLOCKS = 264 };
enum { SQUARES_PART = 16384, MAX_SQUARES_PARTS = 512 };

static int64_t parts_of(int64_t wanted, int64_t most) {
  const int64_t parts = wanted < most ? wanted : most;
  return parts < 1 ? 1 : parts;
}

/* lanes: columns of a vector. */
static ms_columns make_columns(int64_t outer, int64_t rows, int64_t columns, int lanes) {
  ms_columns c = {outer, rows, columns, 1, ms_cuda_ceil(columns, (int64_t)lanes * MS_COLUMN_LANES)};
  const int64_t blocks = outer * c.strips > 0 ? outer * c.strips : 1;
  c.parts = parts_of(ms_cuda_ceil(BLOCKS, blocks), ms_cuda_ceil(rows, MIN_ROWS));
  return c;
}

static int64_t bytes_of(const ms_columns *c, int sums) {
  return sums * c->outer * c->parts * c->columns * (int64_t)sizeof(float);
}

/* ---- gradients of biases and gains ---- */

ms_columns ms_activation_columns(const ms_kernel_call *call) {
  const ms_value_info *x = &call->in[0];
  return make_columns(1, ms_row_count(x), ms_row_length(x), ms_cuda_lanes(x->dtype));
}

int ms_cuda_prepare_activation_backward_bias(ms_kernel_call *call) {
  const ms_columns c = ms_activation_columns(call);
  call->workspace_bytes = bytes_of(&c, 1);
  return MS_OK;
}

ms_columns ms_norm_held_columns(int64_t rows, int64_t n) {
  return (ms_columns){1, rows, n, parts_of(rows, NORM_BLOCKS), 1};
}

ms_columns ms_norm_streamed_columns(int64_t rows, int64_t n) { return make_columns(1, rows, n, 1); }

int ms_cuda_prepare_norm_backward(ms_kernel_call *call) {
  const int64_t rows = ms_row_count(&call->in[0]), n = ms_row_length(&call->in[0]);
  const ms_columns held = ms_norm_held_columns(rows, n), streamed = ms_norm_streamed_columns(rows, n);
  const int64_t one = bytes_of(&held, 2), other = bytes_of(&streamed, 2);
  call->workspace_bytes = one > other ? one : other;
  return MS_OK;
}

/* The gradient keeps the sums of dy and of dy h over the pixels of each image's channels. */
int ms_cuda_prepare_group_norm(ms_kernel_call *call) {
  const int64_t channels = call->in[0].dims[0] * call->in[0].dims[1];
  call->workspace_bytes = call->op == MS_OP_group_norm_backward ? 2 * channels * (int64_t)sizeof(float) : 0;
  return MS_OK;
}

/* ---- reductions ---- */

ms_columns ms_axis_columns(const ms_kernel_call *call, ms_axis_view view) {
  if (view.inner != 1) return make_columns(view.outer, view.n, view.inner, ms_cuda_lanes(call->in[0].dtype));
  const int64_t wanted = ms_cuda_ceil(BLOCKS, view.outer > 0 ? view.outer : 1);
  return (ms_columns){view.outer, view.n, 1, parts_of(wanted, ms_cuda_ceil(view.n, MIN_OF_ROW)), 1};
}

ms_axis_view ms_reduce_view(const ms_kernel_call *call) {
  if (call->attrs.reduce.all) return (ms_axis_view){1, ms_numel(&call->in[0]), 1};
  return ms_view_axis(&call->in[0], call->attrs.reduce.axis);
}

int ms_cuda_prepare_reduce(ms_kernel_call *call) {
  const ms_columns c = ms_axis_columns(call, ms_reduce_view(call));
  call->workspace_bytes = bytes_of(&c, 1);
  return MS_OK;
}

ms_broadcast ms_sum_to_runs(const ms_kernel_call *call) { return ms_broadcast_of(&call->in[0], 1, &call->out[0]); }

int ms_sum_to_is_axis(const ms_broadcast *runs, ms_axis_view *view) {
  int d = 0;
  *view = (ms_axis_view){1, 1, 1};
  if (d < runs->ndim && runs->strides[0][d] != 0) view->outer = runs->dims[d++];
  if (d < runs->ndim && runs->strides[0][d] == 0) view->n = runs->dims[d++];
  if (d < runs->ndim && runs->strides[0][d] != 0) view->inner = runs->dims[d++];
  if (view->n == 1) *view = (ms_axis_view){1, 1, view->outer * view->inner}; /* nothing is summed: one row */
  return d == runs->ndim;
}

int ms_cuda_prepare_sum_to(ms_kernel_call *call) {
  ms_axis_view view;
  const ms_broadcast runs = ms_sum_to_runs(call);
  if (!ms_sum_to_is_axis(&runs, &view)) return MS_OK;
  const ms_columns c = ms_axis_columns(call, view);
  call->workspace_bytes = bytes_of(&c, 1);
  return MS_OK;
}

/* ---- sums in f64 ---- */

int64_t ms_square_parts(const ms_kernel_call *call) {
  const int64_t parts = ms_cuda_ceil(ms_numel(&call->in[0]), SQUARES_PART);
  return parts < MAX_SQUARES_PARTS ? parts : MAX_SQUARES_PARTS;
}

int ms_cuda_prepare_sum_squares(ms_kernel_call *call) {
  call->workspace_bytes = ms_square_parts(call) * (int64_t)sizeof(double);
  return MS_OK;
}

ms_columns ms_adafactor_columns(const ms_kernel_call *call) {
  const ms_factored f = ms_factored_of(&call->attrs);
  return make_columns(f.matrices, f.part_rows, f.columns, 1);
}

int ms_cuda_prepare_adafactor(ms_kernel_call *call) {
  if (call->op == MS_OP_adafactor_norm) return ms_cuda_prepare_sum_squares(call);
  if (call->op != MS_OP_adafactor_sums) return MS_OK;
  const ms_columns c = ms_adafactor_columns(call);
  call->workspace_bytes = bytes_of(&c, 1);
  return MS_OK;
}

/* The loss of each row of the logits. */
int ms_cuda_prepare_cross_entropy(ms_kernel_call *call) {
  call->workspace_bytes = ms_row_count(&call->in[0]) * (int64_t)sizeof(double);
  return MS_OK;
}

/* And its log-sum, which rows that are too long for shared memory need. */
int ms_cuda_prepare_cross_entropy_step(ms_kernel_call *call) {
  call->workspace_bytes = ms_row_count(&call->in[0]) * (int64_t)(sizeof(double) + sizeof(float));
  return MS_OK;
}
