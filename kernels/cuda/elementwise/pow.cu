/* pow.cu - a^b and its gradients with respect to a and b, all with broadcasting (broadcast.h). A thread computes one
 * element: the power takes longer than its memory traffic. The result can overwrite an input of its size. */
#include "kernels/cuda/elementwise/broadcast.h"

namespace {

/* An operand of either dtype. */
struct operand {
  const void *data;
  int bf16;
  __device__ __forceinline__ float at(int64_t i) const {
    return bf16 ? ms_element_load(static_cast<const ms_b16 *>(data) + i)
                : ms_element_load(static_cast<const float *>(data) + i);
  }
};

struct operands {
  operand of[MS_MAX_BROADCAST_INPUTS];
};

__device__ __forceinline__ float base_slope(float a, float b) { return b == 0.0f ? 0.0f : b * powf(a, b - 1.0f); }

__device__ __forceinline__ float exponent_slope(float a, float b) {
  return a == 0.0f && b >= 0.0f ? 0.0f : powf(a, b) * logf(a);
}

template <class Y>
__global__ void __launch_bounds__(MS_BROADCAST_THREADS)
    power(operands in, int inputs, Y *y, ms_broadcast shape, int64_t n, int op) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * MS_BROADCAST_THREADS + threadIdx.x;
  if (at >= n) return;
  int64_t from[MS_MAX_BROADCAST_INPUTS];
  ms_locate(shape, at, n, inputs, from);
  const float a = in.of[0].at(from[0]), b = in.of[1].at(from[1]);
  if (op == MS_OP_pow) return ms_element_store(y + at, powf(a, b));
  const float slope = op == MS_OP_pow_backward_base ? base_slope(a, b) : exponent_slope(a, b);
  ms_element_store(y + at, in.of[2].at(from[2]) * slope);
}

template <class Y> int run_typed(const ms_kernel_call *call) {
  const ms_broadcast shape = ms_broadcast_of(&call->out[0], call->inputs, call->in);
  const int64_t n = ms_numel(&call->out[0]);
  operands in = {};
  for (int i = 0; i < call->inputs; i++) in.of[i] = {call->in_data[i], call->in[i].dtype == MS_BF16};
  if (n == 0) return MS_OK;
  return MS_CUDA_LAUNCH(power<Y>, ms_broadcast_blocks(n, 1), MS_BROADCAST_THREADS, 0, call->stream, in, call->inputs,
                        static_cast<Y *>(call->out_data[0]), shape, n, call->op);
}

int run(const ms_kernel_call *call) { return MS_CUDA_FLOATS(call->out[0].dtype, Y, run_typed<Y>(call)); }

} // namespace

extern const ms_kernel ms_cuda_pow = {nullptr, run, nullptr, MS_CUDA_OVER_pow};
