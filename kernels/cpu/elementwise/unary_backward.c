/* unary_backward.c - dx = dy f'(x) for each element, with f' computed from y or x as the op requires. All [n]; dx can
 * overwrite either input. */
#include "kernels/cpu/block.h"

#include "kernels/cpu/elementwise/activation.h"
#include "kernels/cpu/parallel.h"

/* Defines the loop of one op: `value` is an expression of a (the first input, x or y), dy, and clamp's low and high. */
#define UNARY_BACKWARD(name, value)                                                                     \
  MS_CLONES static void name##_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) { \
    (void)part;                                                                                         \
    const float low = (float)call->attrs.clamp.min, high = (float)call->attrs.clamp.max;                \
    (void)low;                                                                                          \
    (void)high;                                                                                         \
    MS_BLOCK_BUFFER(a_buffer);                                                                          \
    MS_BLOCK_BUFFER(dy_buffer);                                                                         \
    MS_BLOCK_BUFFER(dx_buffer);                                                                         \
    for (int64_t first = begin; first < end; first += MS_BLOCK) {                                       \
      int64_t n = ms_block_length(first, end);                                                          \
      const float *as = ms_block_in(call->in_data[0], call->in[0].dtype, first, n, a_buffer);           \
      const float *dys = ms_block_in(call->in_data[1], call->in[1].dtype, first, n, dy_buffer);         \
      float *dxs = ms_block_out(call->out_data[0], call->out[0].dtype, first, dx_buffer);               \
      _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                             \
        float a = as[i], dy = dys[i];                                                                   \
        dxs[i] = value;                                                                                 \
      }                                                                                                 \
      ms_block_done(call->out_data[0], call->out[0].dtype, first, n, dx_buffer);                        \
    }                                                                                                   \
  }

/* Whether clamp returned a bound, or a equals one (the gradient is 0 there, as for relu at 0). False for NaN, whose
 * gradient must not be lost. */
MS_INLINE int bounded(float a, float low, float high) { return a <= low || a >= high; }

UNARY_BACKWARD(tanh, dy *ms_tanh_grad(a))
UNARY_BACKWARD(sigmoid, dy *ms_sigmoid_grad(a))
UNARY_BACKWARD(relu, a <= 0.0f ? 0.0f : dy)
UNARY_BACKWARD(abs, a > 0.0f ? dy : a < 0.0f ? -dy : dy * a)
UNARY_BACKWARD(clamp, bounded(a, low, high) ? 0.0f : dy)
UNARY_BACKWARD(gelu, dy *ms_gelu_grad(a))
UNARY_BACKWARD(gelu_tanh, dy *ms_gelu_tanh_grad(a))
UNARY_BACKWARD(silu, dy *ms_silu_grad(a))

static int run(const ms_kernel_call *call) {
  ms_part_fn *part = tanh_part;
  switch (call->op) {
    case MS_OP_sigmoid_backward: part = sigmoid_part; break;
    case MS_OP_relu_backward: part = relu_part; break;
    case MS_OP_abs_backward: part = abs_part; break;
    case MS_OP_clamp_backward: part = clamp_part; break;
    case MS_OP_gelu_backward: part = gelu_part; break;
    case MS_OP_gelu_tanh_backward: part = gelu_tanh_part; break;
    case MS_OP_silu_backward: part = silu_part; break;
  }
  return ms_run_elements(call, ms_numel(&call->out[0]), part);
}

const ms_kernel ms_cpu_unary_backward = {.run = run, .in_place = MS_OVER(0, 0) | MS_OVER(0, 1)};
