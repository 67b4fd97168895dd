/* unary.cu - y = f(x) for each element; x, y [n] (elementwise.h), and y can be x. Memory traffic: 2 s bytes per element
 * of s bytes. */
#include "kernels/cuda/elementwise/activation.h"
#include "kernels/cuda/elementwise/elementwise.h"

#define UNARY(name, value)                                                           \
  struct name##_of {                                                                 \
    __device__ __forceinline__ void operator()(const float *from, float *to) const { \
      const float x = from[0];                                                       \
      to[0] = value;                                                                 \
    }                                                                                \
  };

namespace {

struct scale_of {
  float alpha, beta;
  __device__ __forceinline__ void operator()(const float *from, float *to) const { to[0] = fmaf(alpha, from[0], beta); }
};

struct clamp_of {
  float low, high;
  __device__ __forceinline__ void operator()(const float *from, float *to) const {
    to[0] = from[0] < low ? low : from[0] > high ? high : from[0];
  }
};

UNARY(abs, fabsf(x))
UNARY(exp, expf(x))
UNARY(log, logf(x))
UNARY(sqrt, sqrtf(x))
UNARY(rsqrt, 1.0f / sqrtf(x))
UNARY(tanh, tanhf(x))
UNARY(sigmoid, ms_gate(x))
UNARY(softplus, (x > 0.0f ? x : 0.0f) + log1pf(expf(-fabsf(x))))
UNARY(relu, ms_relu(x))
UNARY(gelu, ms_gelu(x))
UNARY(gelu_tanh, ms_gelu_tanh(x))
UNARY(silu, ms_silu(x))

template <class T> int run_typed(const ms_kernel_call *call) {
  switch (call->op) {
    case MS_OP_abs: return ms_run_elementwise<T, T, 1, 1>(call, abs_of{});
    case MS_OP_clamp: {
      const clamp_of clamp = {static_cast<float>(call->attrs.clamp.min), static_cast<float>(call->attrs.clamp.max)};
      return ms_run_elementwise<T, T, 1, 1>(call, clamp);
    }
    case MS_OP_exp: return ms_run_elementwise<T, T, 1, 1>(call, exp_of{});
    case MS_OP_log: return ms_run_elementwise<T, T, 1, 1>(call, log_of{});
    case MS_OP_sqrt: return ms_run_elementwise<T, T, 1, 1>(call, sqrt_of{});
    case MS_OP_rsqrt: return ms_run_elementwise<T, T, 1, 1>(call, rsqrt_of{});
    case MS_OP_tanh: return ms_run_elementwise<T, T, 1, 1>(call, tanh_of{});
    case MS_OP_sigmoid: return ms_run_elementwise<T, T, 1, 1>(call, sigmoid_of{});
    case MS_OP_softplus: return ms_run_elementwise<T, T, 1, 1>(call, softplus_of{});
    case MS_OP_relu: return ms_run_elementwise<T, T, 1, 1>(call, relu_of{});
    case MS_OP_gelu: return ms_run_elementwise<T, T, 1, 1>(call, gelu_of{});
    case MS_OP_gelu_tanh: return ms_run_elementwise<T, T, 1, 1>(call, gelu_tanh_of{});
    case MS_OP_silu: return ms_run_elementwise<T, T, 1, 1>(call, silu_of{});
    default: {
      const scale_of scale = {static_cast<float>(call->attrs.scale.alpha), static_cast<float>(call->attrs.scale.beta)};
      return ms_run_elementwise<T, T, 1, 1>(call, scale);
    }
  }
}

int run(const ms_kernel_call *call) { return MS_CUDA_FLOATS(call->in[0].dtype, T, run_typed<T>(call)); }

} // namespace

extern const ms_kernel ms_cuda_unary = {nullptr, run, nullptr, MS_CUDA_OVER_unary};
