/* swiglu.c - the gated unit silu(a) b (Shazeer 2020), and its gradient; all tensors [n]. */
#include "kernels/cpu/block.h"

#include "kernels/cpu/elementwise/activation.h"
#include "kernels/cpu/parallel.h"

MS_CLONES static void forward_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  MS_BLOCK_BUFFER(a_buffer);
  MS_BLOCK_BUFFER(b_buffer);
  MS_BLOCK_BUFFER(y_buffer);
  for (int64_t first = begin; first < end; first += MS_BLOCK) {
    int64_t n = ms_block_length(first, end);
    const float *a = ms_block_in(call->in_data[0], call->in[0].dtype, first, n, a_buffer);
    const float *b = ms_block_in(call->in_data[1], call->in[1].dtype, first, n, b_buffer);
    float *y = ms_block_out(call->out_data[0], call->out[0].dtype, first, y_buffer);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = ms_silu(a[i]) * b[i];
    ms_block_done(call->out_data[0], call->out[0].dtype, first, n, y_buffer);
  }
}

/* da = dy b silu'(a), db = dy silu(a); with `again` also y = silu(a) b, with the bits of forward. Each output can
 * overwrite any input. */
MS_INLINE void backward(const ms_kernel_call *call, int64_t begin, int64_t end, int again) {
  const int dtype = call->in[0].dtype;
  MS_BLOCK_BUFFER(a_buffer);
  MS_BLOCK_BUFFER(b_buffer);
  MS_BLOCK_BUFFER(dy_buffer);
  MS_BLOCK_BUFFER(da_buffer);
  MS_BLOCK_BUFFER(db_buffer);
  MS_BLOCK_BUFFER(y_buffer);
  for (int64_t first = begin; first < end; first += MS_BLOCK) {
    int64_t n = ms_block_length(first, end);
    const float *as = ms_block_in(call->in_data[0], dtype, first, n, a_buffer);
    const float *bs = ms_block_in(call->in_data[1], dtype, first, n, b_buffer);
    const float *dys = ms_block_in(call->in_data[2], dtype, first, n, dy_buffer);
    float *da = ms_block_out(call->out_data[0], dtype, first, da_buffer);
    float *db = ms_block_out(call->out_data[1], dtype, first, db_buffer);
    float *y = again ? ms_block_out(call->out_data[2], dtype, first, y_buffer) : NULL;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
      float a = as[i], b = bs[i], dy = dys[i];
      ms_gate_value s = ms_gate_and_slope(a);
      float activated = a * s.gate;
      da[i] = dy * b * (s.gate + a * s.slope);
      db[i] = dy * activated;
      if (again) y[i] = activated * b;
    }
    ms_block_done(call->out_data[0], dtype, first, n, da_buffer);
    ms_block_done(call->out_data[1], dtype, first, n, db_buffer);
    if (again) ms_block_done(call->out_data[2], dtype, first, n, y_buffer);
  }
}

MS_CLONES static void backward_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  backward(call, begin, end, 0);
}

MS_CLONES static void backward_again_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) {
  (void)part;
  backward(call, begin, end, 1);
}

static int run_forward(const ms_kernel_call *call) {
  return ms_run_elements(call, ms_numel(&call->out[0]), forward_part);
}

static int run_backward(const ms_kernel_call *call) {
  ms_part_fn *part = call->op == MS_OP_swiglu_backward_recompute ? backward_again_part : backward_part;
  return ms_run_elements(call, ms_numel(&call->out[0]), part);
}

const ms_kernel ms_cpu_swiglu = {.run = run_forward, .in_place = MS_OVER(0, 0) | MS_OVER(0, 1)};
const ms_kernel ms_cpu_swiglu_backward = {.run = run_backward,
                                          .in_place = MS_OVER(0, 0) | MS_OVER(0, 1) | MS_OVER(0, 2) | MS_OVER(1, 0) |
                                                      MS_OVER(1, 1) | MS_OVER(1, 2) | MS_OVER(2, 0) | MS_OVER(2, 1) |
                                                      MS_OVER(2, 2)};
