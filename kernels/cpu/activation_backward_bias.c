/* activation_backward_bias.c - dx = dy act'(a), and the bias gradient, the sum of dx over all rows, in one pass. a is the
** activation's output for relu, its input for the others. Each part adds up its rows in f32; the parts are added in order.
*/
#include "kernels/cpu/block.h"

#include "kernels/cpu/activation.h"
#include "kernels/cpu/parallel.h"
#include "kernels/shape.h"

#define BACKWARD(name, value)                                                                           \
  MS_CLONES static void name##_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) { \
    const int64_t columns = ms_row_length(&call->in[0]);                                                \
    float *sums = ms_scratch_row(call, part, 1, 0, columns);                                            \
    MS_BLOCK_BUFFER(a_buffer);                                                                          \
    MS_BLOCK_BUFFER(dy_buffer);                                                                         \
    MS_BLOCK_BUFFER(dx_buffer);                                                                         \
    ms_block_fill(sums, 0.0f, columns);                                                                 \
    for (int64_t r = begin; r < end; r++)                                                               \
      for (int64_t c = 0; c < columns; c += MS_BLOCK) {                                                 \
        int64_t n = ms_block_length(c, columns), first = r * columns + c;                               \
        const float *as = ms_block_in(call->in_data[0], call->in[0].dtype, first, n, a_buffer);         \
        const float *dys = ms_block_in(call->in_data[1], call->in[1].dtype, first, n, dy_buffer);       \
        float *dxs = ms_block_out(call->out_data[0], call->out[0].dtype, first, dx_buffer);             \
        float *sum = sums + c;                                                                          \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                           \
          float a = as[i], dy = dys[i], dx = value;                                                     \
          dxs[i] = dx;                                                                                  \
          sum[i] += dx;                                                                                 \
        }                                                                                               \
        ms_block_done(call->out_data[0], call->out[0].dtype, first, n, dx_buffer);                      \
      }                                                                                                 \
  }

BACKWARD(none, ((void)a, dy))
BACKWARD(relu, a <= 0.0f ? 0.0f : dy)
BACKWARD(gelu, dy *ms_gelu_grad(a))
BACKWARD(gelu_tanh, dy *ms_gelu_tanh_grad(a))
BACKWARD(silu, dy *ms_silu_grad(a))

static int parts_of(const ms_kernel_call *call) {
  return ms_part_count(call, ms_row_count(&call->in[0]), ms_call_bytes(call));
}

static int prepare(ms_kernel_call *call) {
  call->workspace_bytes = ms_scratch_bytes(parts_of(call), 1, ms_row_length(&call->in[0]));
  return MS_OK;
}

static int run(const ms_kernel_call *call) {
  static ms_part_fn *const by_activation[] = {[MS_ACT_NONE] = none_part,
                                              [MS_ACT_RELU] = relu_part,
                                              [MS_ACT_GELU] = gelu_part,
                                              [MS_ACT_GELU_TANH] = gelu_tanh_part,
                                              [MS_ACT_SILU] = silu_part};
  int parts = parts_of(call);
  ms_run_parts(call, parts, ms_row_count(&call->in[0]), 1, by_activation[call->attrs.i[2]]);

  const int64_t columns = ms_row_length(&call->in[0]);
  const int bf16 = call->out[1].dtype == MS_BF16;
  for (int64_t i = 0; i < columns; i++) {
    float total = 0.0f;
    for (int p = 0; p < parts; p++) total += ms_scratch_row(call, p, 1, 0, columns)[i];
    ms_store(call->out_data[1], i, total, bf16);
  }
  return MS_OK;
}

const ms_kernel ms_cpu_activation_backward_bias = {.prepare = prepare, .run = run, .in_place = 1};
