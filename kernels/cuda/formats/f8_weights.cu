/* f8_weights.cu - weights that are gathered as codes: the largest magnitude of a rank's chunk, 4 bytes read per
 * element, and the scales that follow from those of all ranks. parts.cu makes the codes of a chunk. */
#include "kernels/cuda/reductions/reduce.h"
#include "kernels/cuda/vector.h"

#include "kernels/formats/quantise_code.h"

namespace {

constexpr int THREADS = 256, V = 4;
constexpr int64_t SPAN = 16384; /* elements of a block */

/* Magnitudes are compared as bits, which gives the same result in any order, and keeps NaN. *most begins as 0. */
__global__ void __launch_bounds__(THREADS) find_largest(const float *x, int64_t n, int aligned, unsigned *most) {
  const int64_t begin = blockIdx.x * SPAN, end = min(n, begin + SPAN);
  const int64_t whole = aligned ? begin + (end - begin) / V * V : begin;
  uint32_t own = 0;
#pragma unroll 4
  for (int64_t i = begin + threadIdx.x * V; i < whole; i += THREADS * V) {
    float each[V];
    ms_vector_load<V>(x + i, each);
#pragma unroll
    for (int l = 0; l < V; l++) own = ms_larger_bits()(own, ms_magnitude(each[l]));
  }
  for (int64_t i = whole + threadIdx.x; i < end; i += THREADS) own = ms_larger_bits()(own, ms_magnitude(x[i]));
  own = ms_row_reduce(own, 0u, ms_larger_bits());
  if (threadIdx.x == 0) atomicMax(most, static_cast<unsigned>(own));
}

__global__ void __launch_bounds__(THREADS) scales_of(const float *amax, int64_t n, float *scale) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (i < n) scale[i] = ms_tensor_scale(ms_magnitude(amax[i]), MS_F8E4M3);
}

int run_largest(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->in[0]);
  const float *x = static_cast<const float *>(call->in_data[0]);
  unsigned *most = static_cast<unsigned *>(call->out_data[0]);
  MS_TRY(ms_cuda_status(cudaMemsetAsync(most, 0, sizeof *most, static_cast<cudaStream_t>(call->stream)),
                        "largest_magnitude: cudaMemsetAsync"));
  if (n == 0) return MS_OK;
  return MS_CUDA_LAUNCH(find_largest, static_cast<unsigned>(ms_cuda_ceil(n, SPAN)), THREADS, 0, call->stream, x, n,
                        ms_cuda_aligned(x), most);
}

int run_scales(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->in[0]);
  if (n == 0) return MS_OK;
  return MS_CUDA_LAUNCH(scales_of, static_cast<unsigned>(ms_cuda_ceil(n, THREADS)), THREADS, 0, call->stream,
                        static_cast<const float *>(call->in_data[0]), n, static_cast<float *>(call->out_data[0]));
}

} // namespace

extern const ms_kernel ms_cuda_largest_magnitude = {nullptr, run_largest, nullptr, MS_CUDA_OVER_largest_magnitude};
extern const ms_kernel ms_cuda_f8_scales = {nullptr, run_scales, nullptr, MS_CUDA_OVER_f8_scales};
