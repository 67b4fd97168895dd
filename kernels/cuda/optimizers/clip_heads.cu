/* clip_heads.cu - scales the rows of heads whose largest attention score is above a threshold (QK-clip). A thread has
 * one element. Memory traffic: 8 bytes for each. */
#include "kernels/cuda/launch.h"

extern "C" {
#include "kernels/clip_heads.h"
}

namespace {

constexpr int THREADS = 256;

__global__ void __launch_bounds__(THREADS) clip(ms_clip_heads c, const float *largest, float *p, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (i < n) p[i] *= ms_clip_heads_factor(&c, largest, (c.first + i) / c.columns);
}

int run(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->out[0]);
  if (n == 0) return MS_OK;
  return MS_CUDA_LAUNCH(clip, static_cast<unsigned>(ms_cuda_ceil(n, THREADS)), THREADS, 0, call->stream,
                        ms_clip_heads_of(&call->attrs), static_cast<const float *>(call->in_data[0]),
                        static_cast<float *>(call->out_data[0]), n);
}

} // namespace

extern const ms_kernel ms_cuda_clip_heads = {nullptr, run, nullptr, MS_CUDA_OVER_clip_heads};
