/* balance.cu - moves the biases of a router by the sign of their gradient, which is how far the load of an expert is
 * above the mean: p [n] -= rate sign(gradient [n]). A NaN stays one. There are few: a thread has one. */
#include "kernels/cuda/launch.h"

namespace {

constexpr int THREADS = 256;

__global__ void __launch_bounds__(THREADS) balance(const float *gradient, float *p, int64_t n, float rate) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (i >= n) return;
  const float g = gradient[i];
  p[i] -= g > 0 ? rate : g < 0 ? -rate : g;
}

int run(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->in[0]);
  if (n == 0) return MS_OK;
  return MS_CUDA_LAUNCH(balance, static_cast<unsigned>(ms_cuda_ceil(n, THREADS)), THREADS, 0, call->stream,
                        static_cast<const float *>(call->in_data[0]), static_cast<float *>(call->out_data[0]), n,
                        static_cast<float>(call->attrs.balance.rate));
}

} // namespace

extern const ms_kernel ms_cuda_balance = {nullptr, run, nullptr, MS_CUDA_OVER_balance};
