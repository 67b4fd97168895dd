/* activation_backward_bias.c - dx = dy act'(a) and the bias gradient (the sum of dx over all rows) in one pass.
 *
 * a, dy, dx [rows][columns] f32 or bf16; bias gradient [columns]. a is the activation's output for relu and its input
 * for the others. Each part sums its rows in f32 in its scratch row; the parts are then added in order.
 *
 * The two recompute ops also write the activation's result y [rows][columns], as their last output, so that the plan
 * does not have to keep it from forward to backward. It has the same bits as the result of the forward kernel.
 */
#include "kernels/cpu/block.h"

#include "kernels/cpu/elementwise/activation.h"
#include "kernels/cpu/parallel.h"
#include "kernels/shape.h"

MS_INLINE float gradient(int activation, float a, float dy) {
  switch (activation) {
    case MS_ACT_RELU: return a <= 0.0f ? 0.0f : dy;
    case MS_ACT_GELU: return dy * ms_gelu_grad(a);
    case MS_ACT_GELU_TANH: return dy * ms_gelu_tanh_grad(a);
    case MS_ACT_SILU: return dy * ms_silu_grad(a);
    default: return dy;
  }
}

/* Inlined with constant `activation` and `again` (1: also write y). */
MS_INLINE void backward_rows(const ms_kernel_call *call, int part, int64_t begin, int64_t end, int activation,
                             int again) {
  const int64_t columns = ms_row_length(&call->in[0]);
  const int dtype = call->in[0].dtype;
  void *const result = again ? call->out_data[call->outputs - 1] : NULL;
  float *sums = ms_scratch_row(call, part, 1, 0, columns);
  MS_BLOCK_BUFFER(a_buffer);
  MS_BLOCK_BUFFER(dy_buffer);
  MS_BLOCK_BUFFER(dx_buffer);
  MS_BLOCK_BUFFER(y_buffer);
  ms_block_fill(sums, 0.0f, columns);
  for (int64_t r = begin; r < end; r++)
    for (int64_t c = 0; c < columns; c += MS_BLOCK) {
      int64_t n = ms_block_length(c, columns), first = r * columns + c;
      const float *as = ms_block_in(call->in_data[0], dtype, first, n, a_buffer);
      const float *dys = ms_block_in(call->in_data[1], dtype, first, n, dy_buffer);
      float *dxs = ms_block_out(call->out_data[0], dtype, first, dx_buffer);
      float *ys = again ? ms_block_out(result, dtype, first, y_buffer) : NULL, *sum = sums + c;
#pragma omp simd
      for (int64_t i = 0; i < n; i++) {
        float a = as[i], dx = gradient(activation, a, dys[i]);
        if (again) ys[i] = ms_activate(a, activation);
        dxs[i] = dx;
        sum[i] += dx;
      }
      ms_block_done(call->out_data[0], dtype, first, n, dx_buffer);
      if (again) ms_block_done(result, dtype, first, n, y_buffer);
    }
}

#define BACKWARD(name, activation, again)                                                        \
  MS_CLONES static void name(const ms_kernel_call *call, int part, int64_t begin, int64_t end) { \
    backward_rows(call, part, begin, end, activation, again);                                    \
  }
BACKWARD(none_part, MS_ACT_NONE, 0)
BACKWARD(relu_part, MS_ACT_RELU, 0)
BACKWARD(gelu_part, MS_ACT_GELU, 0)
BACKWARD(gelu_tanh_part, MS_ACT_GELU_TANH, 0)
BACKWARD(silu_part, MS_ACT_SILU, 0)
BACKWARD(gelu_again, MS_ACT_GELU, 1)
BACKWARD(gelu_tanh_again, MS_ACT_GELU_TANH, 1)
BACKWARD(silu_again, MS_ACT_SILU, 1)

static int parts_of(const ms_kernel_call *call) {
  return ms_part_count(call, ms_row_count(&call->in[0]), ms_call_bytes(call));
}

static int prepare(ms_kernel_call *call) {
  call->workspace_bytes = ms_scratch_bytes(parts_of(call), 1, ms_row_length(&call->in[0]));
  return MS_OK;
}

static void store_bias_gradient(const ms_kernel_call *call, int parts) {
  const int64_t columns = ms_row_length(&call->in[0]);
  const int bf16 = call->out[1].dtype == MS_BF16;
  for (int64_t i = 0; i < columns; i++) {
    float total = 0.0f;
    for (int p = 0; p < parts; p++) total += ms_scratch_row(call, p, 1, 0, columns)[i];
    ms_simd_store(call->out_data[1], i, total, bf16);
  }
}

static int run(const ms_kernel_call *call) {
  static ms_part_fn *const by_activation[2][MS_ACT_SILU + 1] = {
      {[MS_ACT_NONE] = none_part,
       [MS_ACT_RELU] = relu_part,
       [MS_ACT_GELU] = gelu_part,
       [MS_ACT_GELU_TANH] = gelu_tanh_part,
       [MS_ACT_SILU] = silu_part},
      {[MS_ACT_GELU] = gelu_again, [MS_ACT_GELU_TANH] = gelu_tanh_again, [MS_ACT_SILU] = silu_again}};
  const int parts = parts_of(call), again = call->op != MS_OP_activation_backward_bias;
  ms_run_parts(call, parts, ms_row_count(&call->in[0]), 1, by_activation[again][call->attrs.product.activation]);
  if (call->op != MS_OP_activation_backward_recompute) store_bias_gradient(call, parts);
  return MS_OK;
}

/* Every row is read before the bias gradient is written, so outputs 1 and 2 can overwrite inputs as well. */
const ms_kernel ms_cpu_activation_backward_bias = {.prepare = prepare,
                                                   .run = run,
                                                   .in_place = MS_OVER(0, 0) | MS_OVER(0, 1) | MS_OVER(1, 0) |
                                                               MS_OVER(1, 1) | MS_OVER(2, 0) | MS_OVER(2, 1)};
