/* unary_backward.cu - dx = dy f'(x) for each element, with f' computed from y or x as the op requires; all [n]
 * (elementwise.h). Memory traffic: 3 s bytes per element of s bytes. dx can overwrite either input. */
#include "kernels/cuda/elementwise/activation.h"
#include "kernels/cuda/elementwise/elementwise.h"

/* `value` is an expression of a (the first input, x or y) and dy. */
#define UNARY_BACKWARD(name, value)                                                  \
  struct name##_of {                                                                 \
    __device__ __forceinline__ void operator()(const float *from, float *to) const { \
      const float a = from[0], dy = from[1];                                         \
      to[0] = value;                                                                 \
    }                                                                                \
  };

namespace {

UNARY_BACKWARD(tanh, dy *fmaf(-a, a, 1.0f))
UNARY_BACKWARD(sigmoid, dy *(a *(1.0f - a)))
UNARY_BACKWARD(relu, a <= 0.0f ? 0.0f : dy)
UNARY_BACKWARD(abs, a > 0.0f ? dy : a < 0.0f ? -dy : dy * a)
UNARY_BACKWARD(gelu, dy *ms_gelu_grad(a))
UNARY_BACKWARD(gelu_tanh, dy *ms_gelu_tanh_grad(a))
UNARY_BACKWARD(silu, dy *ms_silu_grad(a))

struct clamp_of {
  float low, high;
  __device__ __forceinline__ void operator()(const float *from, float *to) const {
    to[0] = from[0] <= low || from[0] >= high ? 0.0f : from[1];
  }
};

template <class T> int run_typed(const ms_kernel_call *call) {
  switch (call->op) {
    case MS_OP_sigmoid_backward: return ms_run_elementwise<T, T, 2, 1>(call, sigmoid_of{});
    case MS_OP_relu_backward: return ms_run_elementwise<T, T, 2, 1>(call, relu_of{});
    case MS_OP_abs_backward: return ms_run_elementwise<T, T, 2, 1>(call, abs_of{});
    case MS_OP_clamp_backward: {
      const clamp_of clamp = {static_cast<float>(call->attrs.clamp.min), static_cast<float>(call->attrs.clamp.max)};
      return ms_run_elementwise<T, T, 2, 1>(call, clamp);
    }
    case MS_OP_gelu_backward: return ms_run_elementwise<T, T, 2, 1>(call, gelu_of{});
    case MS_OP_gelu_tanh_backward: return ms_run_elementwise<T, T, 2, 1>(call, gelu_tanh_of{});
    case MS_OP_silu_backward: return ms_run_elementwise<T, T, 2, 1>(call, silu_of{});
    default: return ms_run_elementwise<T, T, 2, 1>(call, tanh_of{});
  }
}

int run(const ms_kernel_call *call) { return MS_CUDA_FLOATS(call->in[0].dtype, T, run_typed<T>(call)); }

} // namespace

extern const ms_kernel ms_cuda_unary_backward = {nullptr, run, nullptr, MS_CUDA_OVER_unary_backward};
