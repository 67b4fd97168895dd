/* dequantise.cu - the elements of a stored parameter (kernels/storage.h), before a kernel reads them. Memory traffic
 * per element: that of its code, and of the result.
 *
 * A block of threads has TILE elements. Its first threads read back the scales of the blocks of elements in it; then
 * each thread has 8 consecutive elements, which are in one of them.
 */
#include "kernels/cuda/vector.h"

extern "C" {
#include "kernels/storage.h"
}

#include "kernels/storage_code.h"

namespace {

constexpr int THREADS = 256, EACH = 8, TILE = THREADS * EACH;

/* Of each dtype: elements of a scale and of a record, and words of a record. */
template <int DTYPE> struct layout;
template <> struct layout<MS_NF4> {
  static constexpr int block = MS_STORED_BLOCK_NF4, record = MS_STORED_MOST, bytes = MS_NF4_RECORD;
};
template <> struct layout<MS_I8> {
  static constexpr int block = MS_STORED_BLOCK_I8, record = 4 * MS_STORED_BLOCK_I8, bytes = MS_I8_RECORD;
};

template <int DTYPE> __device__ float scale_of(const uint8_t *record, int block) {
  if constexpr (DTYPE == MS_I8) return reinterpret_cast<const float *>(record + MS_I8_SCALES)[block];
  else
    return ms_restored_scale(record[MS_NF4_SCALE_CODES + block],
                             *reinterpret_cast<const float *>(record + MS_NF4_SCALE),
                             *reinterpret_cast<const float *>(record + MS_NF4_OFFSET));
}

/* Element k of the 8 whose codes begin at `codes`. */
template <int DTYPE> __device__ __forceinline__ float value_of(const uint8_t *codes, int k) {
  if constexpr (DTYPE == MS_I8) return ms_value_of(codes[k], MS_I8);
  else return ms_value_of(k % 2 ? ms_second4(codes[k / 2]) : ms_first4(codes[k / 2]), MS_NF4);
}

/* ALIGNED: y begins at a multiple of 16 bytes. */
template <int DTYPE, class Y, bool ALIGNED>
__global__ void __launch_bounds__(THREADS) decode(const uint8_t *records, int64_t n, Y *y) {
  using of = layout<DTYPE>;
  __shared__ float scale[TILE / of::block];
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * TILE, first = tile + threadIdx.x * EACH;
  if (threadIdx.x < TILE / of::block) {
    const int64_t element = tile + threadIdx.x * of::block;
    if (element < n)
      scale[threadIdx.x] = scale_of<DTYPE>(records + element / of::record * of::bytes,
                                           static_cast<int>(element % of::record) / of::block);
  }
  __syncthreads();
  if (first >= n) return;
  const int at = static_cast<int>(first % of::record);
  const uint8_t *codes = records + first / of::record * of::bytes + (DTYPE == MS_NF4 ? at / 2 : at);
  const float factor = scale[threadIdx.x * EACH / of::block];
  float x[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++) x[k] = value_of<DTYPE>(codes, k) * factor;
  if (ALIGNED && first + EACH <= n) ms_vector_store<EACH>(y + first, x);
  else
    for (int k = 0; k < EACH && first + k < n; k++) ms_element_store(y + first + k, x[k]);
}

/* Stored in bf16, read in f32. */
template <class Y> __global__ void __launch_bounds__(THREADS) widen(const ms_b16 *x, int64_t n, Y *y) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (i < n) ms_element_store(y + i, ms_element_load(x + i));
}

template <int DTYPE, class Y> int launch_decode(const ms_kernel_call *call, int64_t n, Y *y) {
  const unsigned tiles = static_cast<unsigned>(ms_cuda_ceil(n, TILE));
  const uint8_t *records = static_cast<const uint8_t *>(call->in_data[0]);
  if (reinterpret_cast<uintptr_t>(y) % MS_CUDA_VECTOR_BYTES == 0)
    return MS_CUDA_LAUNCH((decode<DTYPE, Y, true>), tiles, THREADS, 0, call->stream, records, n, y);
  return MS_CUDA_LAUNCH((decode<DTYPE, Y, false>), tiles, THREADS, 0, call->stream, records, n, y);
}

template <class Y> int launch(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->out[0]);
  Y *y = static_cast<Y *>(call->out_data[0]);
  if (n == 0) return MS_OK;
  switch (call->attrs.i[0]) {
    case MS_NF4: return launch_decode<MS_NF4>(call, n, y);
    case MS_I8: return launch_decode<MS_I8>(call, n, y);
    default:
      return MS_CUDA_LAUNCH((widen<Y>), static_cast<unsigned>(ms_cuda_ceil(n, THREADS)), THREADS, 0, call->stream,
                            static_cast<const ms_b16 *>(call->in_data[0]), n, y);
  }
}

int run(const ms_kernel_call *call) {
  return call->out[0].dtype == MS_F32 ? launch<float>(call) : launch<ms_b16>(call);
}

} // namespace

extern const ms_kernel ms_cuda_dequantise_stored = {ms_storage_prepare, run, nullptr, MS_CUDA_OVER_dequantise_stored};
