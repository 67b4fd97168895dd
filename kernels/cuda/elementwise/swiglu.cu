/* swiglu.cu - the gated unit silu(a) b (Shazeer 2020), and its gradient; all tensors [n] (elementwise.h). Memory
 * traffic: 3 s bytes per element of s bytes; 5 s for the gradient, 6 s if it also recomputes the result. Outputs can
 * overwrite inputs. */
#include "kernels/cuda/elementwise/activation.h"
#include "kernels/cuda/elementwise/elementwise.h"

namespace {

struct forward_of {
  __device__ __forceinline__ void operator()(const float *from, float *to) const { to[0] = ms_silu(from[0]) * from[1]; }
};

/* da = dy b silu'(a), db = dy silu(a); with `again` also silu(a) b, with the bits of forward. */
template <bool again> struct backward_of {
  __device__ __forceinline__ void operator()(const float *from, float *to) const {
    const float a = from[0], b = from[1], dy = from[2];
    const ms_gate_value s = ms_gate_and_slope(a);
    const float activated = a * s.gate;
    to[0] = dy * b * ms_silu_grad_of(a, s);
    to[1] = dy * activated;
    if constexpr (again) to[2] = activated * b;
  }
};

int run_forward(const ms_kernel_call *call) {
  return MS_CUDA_FLOATS(call->in[0].dtype, T, ms_run_elementwise<T, T, 2, 1>(call, forward_of{}));
}

int run_backward(const ms_kernel_call *call) {
  if (call->op == MS_OP_swiglu_backward_recompute)
    return MS_CUDA_FLOATS(call->in[0].dtype, T, ms_run_elementwise<T, T, 3, 3>(call, backward_of<true>{}));
  return MS_CUDA_FLOATS(call->in[0].dtype, T, ms_run_elementwise<T, T, 3, 2>(call, backward_of<false>{}));
}

} // namespace

extern const ms_kernel ms_cuda_swiglu = {nullptr, run_forward, nullptr, MS_CUDA_OVER_swiglu};
extern const ms_kernel ms_cuda_swiglu_backward = {nullptr, run_backward, nullptr, MS_CUDA_OVER_swiglu_backward};
