/* ema.cu - the exponential moving average a of the master weights p, both f32 [n], in one pass over a chunk. Memory
 * traffic: 12 bytes per element.
 *
 *   a = p                       in the first step
 *   a = a + (1 - d) (p - a)     afterwards; d = decay, or min(decay, (1 + step) / (10 + step)) during the warm-up
 *
 * As torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn; the warm-up is that of TensorFlow's
 * ExponentialMovingAverage. The step is read on the device, so that a captured graph sees new values.
 */
#include "kernels/cuda/vector.h"

namespace {

constexpr int THREADS = 256, V = 4;
constexpr int64_t BLOCKS = 8448;

__device__ __forceinline__ float rest_of(double decay, int warmup, double step) {
  const double now = warmup ? fmin(decay, (1.0 + step) / (10.0 + step)) : decay;
  return static_cast<float>(1.0 - now);
}

__device__ __forceinline__ float moved(float average, float weight, float rest, bool first) {
  return first ? weight : fmaf(rest, weight - average, average);
}

__global__ void __launch_bounds__(THREADS) ema(const float *weights, float *average, int64_t n, int64_t vectors,
                                               double decay, int warmup, const ms_scalars *now) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * THREADS;
  const bool first = now->step <= 1;
  const float rest = rest_of(decay, warmup, static_cast<double>(now->step));
  for (int64_t i = thread; i < vectors; i += threads) {
    float p[V], a[V];
    ms_vector_load<V>(weights + i * V, p);
    ms_vector_load<V>(average + i * V, a);
#pragma unroll
    for (int l = 0; l < V; l++) a[l] = moved(a[l], p[l], rest, first);
    ms_vector_store<V>(average + i * V, a);
  }
  for (int64_t i = vectors * V + thread; i < n; i += threads) average[i] = moved(average[i], weights[i], rest, first);
}

int run(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->in[0]);
  const float *weights = static_cast<const float *>(call->in_data[0]);
  float *average = static_cast<float *>(call->out_data[0]);
  if (n == 0) return MS_OK;
  const int aligned = ms_cuda_aligned(weights) && ms_cuda_aligned(average);
  const int64_t wanted = ms_cuda_ceil(n, THREADS * V), blocks = wanted < BLOCKS ? wanted : BLOCKS;
  return MS_CUDA_LAUNCH(ema, static_cast<unsigned>(blocks), THREADS, 0, call->stream, weights, average, n,
                        aligned ? n / V : 0, call->attrs.ema.decay, static_cast<int>(call->attrs.ema.warmup),
                        call->scalars);
}

} // namespace

extern const ms_kernel ms_cuda_ema = {nullptr, run, nullptr, MS_CUDA_OVER_ema};
