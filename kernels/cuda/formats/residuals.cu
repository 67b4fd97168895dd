/* residuals.cu - what rounding left of sums of gradients, in the units of another step (kernels/formats/residuals.h).
 * The factor is computed on the device, which alone knows the divisors. Memory traffic: 8 bytes per element, and none
 * where the divisor has not changed. */
#include "kernels/cuda/launch.h"

extern "C" {
#include "kernels/formats/residuals.h"
}

namespace {

constexpr int THREADS = 256;

__global__ void __launch_bounds__(THREADS) rescale(const float *divisor, const float *total, ms_op_attrs attrs,
                                                   const ms_scalars *now, float *rest, int64_t n) {
  const float factor = ms_residual_factor(divisor, total, &attrs, now->micro_batches);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (factor != 1.0f && i < n) rest[i] *= factor;
}

__global__ void __launch_bounds__(THREADS) keep_divisor(const float *norm, float *divisor, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (norm[MS_NORM_DIVISOR] > 0.0f && i < n) divisor[i] = norm[MS_NORM_DIVISOR];
}

int run(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->out[0]);
  const float *first = static_cast<const float *>(call->in_data[0]);
  float *out = static_cast<float *>(call->out_data[0]);
  const unsigned blocks = static_cast<unsigned>(ms_cuda_ceil(n, THREADS));
  if (n == 0) return MS_OK;
  if (call->op == MS_OP_residual_divisor)
    return MS_CUDA_LAUNCH(keep_divisor, blocks, THREADS, 0, call->stream, first, out, n);
  const float *total = call->inputs == 2 ? static_cast<const float *>(call->in_data[1]) : nullptr;
  return MS_CUDA_LAUNCH(rescale, blocks, THREADS, 0, call->stream, first, total, call->attrs, call->scalars, out, n);
}

} // namespace

extern const ms_kernel ms_cuda_residuals = {nullptr, run, nullptr, MS_CUDA_OVER_residuals};
