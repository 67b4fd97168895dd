/* max_backward.c - the gradient of max and min: dy goes to the element of x [outer][n][inner] that equals the result y
 * [outer][inner] (or is NaN if y is NaN); several such elements share it equally, as in PyTorch's amax and amin. 0
 * elsewhere. */
#include "kernels/cpu/block.h"

#include "kernels/cpu/parallel.h"
#include "kernels/shape.h"

enum { X, Y, DY };

static ms_axis_view view_of(const ms_kernel_call *call) {
  if (call->attrs.reduce.all) return (ms_axis_view){1, ms_numel(&call->in[X]), 1};
  return ms_view_axis(&call->in[X], call->attrs.reduce.axis);
}

static int is_largest(float x, float y) { return x == y || (x != x && y != y); }

/* Positions [begin, end) of y [outer][inner]. */
static void backward_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  const ms_axis_view view = view_of(call);
  const int bf16 = call->out[0].dtype == MS_BF16;
  for (int64_t at = begin; at < end; at++) {
    const float y = ms_scalar_at(call->in_data[Y], call->in[Y].dtype, at);
    const float dy = ms_scalar_at(call->in_data[DY], call->in[DY].dtype, at);
    const int64_t first = at / view.inner * view.n * view.inner + at % view.inner;
    int64_t ties = 0;
    for (int64_t i = 0; i < view.n; i++)
      ties += is_largest(ms_scalar_at(call->in_data[X], call->in[X].dtype, first + i * view.inner), y);
    for (int64_t i = 0; i < view.n; i++) {
      const int64_t element = first + i * view.inner;
      const float x = ms_scalar_at(call->in_data[X], call->in[X].dtype, element);
      ms_simd_store(call->out_data[0], element, is_largest(x, y) ? dy / (float)ties : 0.0f, bf16);
    }
  }
}

static int run(const ms_kernel_call *call) {
  const ms_axis_view view = view_of(call);
  const int64_t count = view.outer * view.inner;
  ms_run_parts(call, ms_part_count(call, count, ms_call_bytes(call)), count, 1, backward_part);
  return MS_OK;
}

const ms_kernel ms_cpu_max_backward = {.run = run, .in_place = MS_OVER(0, 0)};
