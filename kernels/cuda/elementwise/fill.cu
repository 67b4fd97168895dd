/* fill.cu - fills a tensor of any dtype with a constant, 16 bytes per thread; memory traffic: s bytes per element of s
 * bytes. Also copy, by the driver: 2 s bytes per element. */
#include "kernels/cuda/launch.h"

#include <string.h>

namespace {

constexpr int THREADS = 256;

/* y [bytes]; `pattern` is 4 bytes of the repeated element. */
__global__ void __launch_bounds__(THREADS) fill(unsigned char *y, int64_t bytes, int64_t vectors, unsigned pattern) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (thread < vectors) reinterpret_cast<uint4 *>(y)[thread] = make_uint4(pattern, pattern, pattern, pattern);
  for (int64_t i = vectors * 16 + thread; i < bytes; i += static_cast<int64_t>(gridDim.x) * THREADS)
    y[i] = static_cast<unsigned char>(pattern >> 8 * (i % 4));
}

unsigned pattern_of(int dtype, double value) {
  const float real = static_cast<float>(value);
  unsigned bits;
  memcpy(&bits, &real, sizeof bits);
  switch (dtype) {
    case MS_F32: return bits;
    case MS_BF16: {
      const unsigned rounded = value != value ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
      return rounded | rounded << 16;
    }
    case MS_I32: return static_cast<unsigned>(static_cast<int32_t>(value));
    default: return 0x01010101u * static_cast<unsigned char>(value);
  }
}

int run_fill(const ms_kernel_call *call) {
  unsigned char *y = static_cast<unsigned char *>(call->out_data[0]);
  const int64_t bytes = ms_numel(&call->out[0]) * ms_dtype_size(call->out[0].dtype);
  if (bytes == 0) return MS_OK;
  const int64_t vectors = ms_cuda_aligned(y) ? bytes / 16 : 0, blocks = ms_cuda_ceil(ms_cuda_ceil(bytes, 16), THREADS);
  return MS_CUDA_LAUNCH(fill, static_cast<unsigned>(blocks), THREADS, 0, call->stream, y, bytes, vectors,
                        pattern_of(call->out[0].dtype, call->attrs.shape.value));
}

int run_copy(const ms_kernel_call *call) {
  const size_t bytes = static_cast<size_t>(ms_numel(&call->out[0]) * ms_dtype_size(call->out[0].dtype));
  if (bytes == 0 || call->out_data[0] == call->in_data[0]) return MS_OK;
  return ms_cuda_status(cudaMemcpyAsync(call->out_data[0], call->in_data[0], bytes, cudaMemcpyDeviceToDevice,
                                        static_cast<cudaStream_t>(call->stream)),
                        "cudaMemcpyAsync");
}

} // namespace

extern const ms_kernel ms_cuda_fill = {nullptr, run_fill, nullptr, MS_CUDA_OVER_fill};
extern const ms_kernel ms_cuda_copy = {nullptr, run_copy, nullptr, MS_CUDA_OVER_copy};
