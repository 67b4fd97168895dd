/* unary.c - y = f(x) for each element; x, y [n], and y can be x. */
#include "kernels/cpu/block.h"

#include <math.h>

#include "kernels/cpu/elementwise/activation.h"
#include "kernels/cpu/parallel.h"

/* Defines the loop of one op: `value` is an expression of x, and of two attributes, a and b. */
#define UNARY_OF(name, one, two, value)                                                                 \
  MS_CLONES static void name##_part(const ms_kernel_call *call, int part, int64_t begin, int64_t end) { \
    (void)part;                                                                                         \
    const float a = (float)(one), b = (float)(two);                                                     \
    (void)a;                                                                                            \
    (void)b;                                                                                            \
    MS_BLOCK_BUFFER(x_buffer);                                                                          \
    MS_BLOCK_BUFFER(y_buffer);                                                                          \
    for (int64_t first = begin; first < end; first += MS_BLOCK) {                                       \
      int64_t n = ms_block_length(first, end);                                                          \
      const float *xs = ms_block_in(call->in_data[0], call->in[0].dtype, first, n, x_buffer);           \
      float *ys = ms_block_out(call->out_data[0], call->out[0].dtype, first, y_buffer);                 \
      _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                             \
        float x = xs[i];                                                                                \
        ys[i] = value;                                                                                  \
      }                                                                                                 \
      ms_block_done(call->out_data[0], call->out[0].dtype, first, n, y_buffer);                         \
    }                                                                                                   \
  }

#define UNARY(name, value) UNARY_OF(name, 0, 0, value)

UNARY_OF(scale, call->attrs.scale.alpha, call->attrs.scale.beta, b + a * x)
UNARY(abs, fabsf(x))
UNARY_OF(clamp, call->attrs.clamp.min, call->attrs.clamp.max, x<a ? a : x> b ? b : x)
UNARY(exp, ms_exp(x))
UNARY(log, ms_log(x))
UNARY(sqrt, sqrtf(x))
UNARY(rsqrt, 1.0f / sqrtf(x))
UNARY(tanh, ms_tanh(x))
UNARY(sigmoid, ms_gate(x))
UNARY(softplus, ms_softplus(x))
UNARY(relu, ms_relu(x))
UNARY(gelu, ms_gelu(x))
UNARY(gelu_tanh, ms_gelu_tanh(x))
UNARY(silu, ms_silu(x))

static int run(const ms_kernel_call *call) {
  ms_part_fn *part = scale_part;
  switch (call->op) {
    case MS_OP_abs: part = abs_part; break;
    case MS_OP_clamp: part = clamp_part; break;
    case MS_OP_exp: part = exp_part; break;
    case MS_OP_log: part = log_part; break;
    case MS_OP_sqrt: part = sqrt_part; break;
    case MS_OP_rsqrt: part = rsqrt_part; break;
    case MS_OP_tanh: part = tanh_part; break;
    case MS_OP_sigmoid: part = sigmoid_part; break;
    case MS_OP_softplus: part = softplus_part; break;
    case MS_OP_relu: part = relu_part; break;
    case MS_OP_gelu: part = gelu_part; break;
    case MS_OP_gelu_tanh: part = gelu_tanh_part; break;
    case MS_OP_silu: part = silu_part; break;
  }
  return ms_run_elements(call, ms_numel(&call->out[0]), part);
}

const ms_kernel ms_cpu_unary = {.run = run, .in_place = MS_OVER(0, 0)};
