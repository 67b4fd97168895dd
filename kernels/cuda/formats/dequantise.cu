/* dequantise.cu - the elements of a stored parameter (kernels/formats/storage.h), before a kernel reads them. Memory
 * traffic per element: that of its code, and of the result.
 *
 * A block of threads has TILE elements. Its first threads read back the scales of the blocks of elements in it; then
 * each thread has 8 consecutive elements, which are in one of them.
 */
#include "kernels/cuda/vector.h"

extern "C" {
#include "kernels/formats/storage.h"
}

#include "kernels/formats/storage_code.h"

namespace {

constexpr int THREADS = 256, EACH = 8, TILE = THREADS * EACH;

/* Records of 1 << shift elements. */
struct layout {
  int shift, bytes;
};

template <int DTYPE, int BLOCK, int SCALES> __device__ float scale_of(const uint8_t *record, int elements, int block) {
  const uint8_t *scales = record + ms_record_scales(DTYPE, elements);
  if constexpr (SCALES == MS_SCALES_F32) return reinterpret_cast<const float *>(scales)[block];
  else {
    const float *map =
        reinterpret_cast<const float *>(record + ms_record_map(ms_record_scales(DTYPE, elements), elements / BLOCK));
    return ms_restored_scale(scales[block], map[0], map[1]);
  }
}

/* Element k of the 8 whose codes begin at `codes`. */
template <int DTYPE> __device__ __forceinline__ float value_of(const uint8_t *codes, int k) {
  if constexpr (!ms_code_is_packed(DTYPE)) return ms_value_of(codes[k], DTYPE);
  else return ms_value_of(k % 2 ? ms_second4(codes[k / 2]) : ms_first4(codes[k / 2]), DTYPE);
}

/* ALIGNED: y begins at a multiple of 16 bytes. */
template <int DTYPE, int BLOCK, int SCALES, class Y, bool ALIGNED>
__global__ void __launch_bounds__(THREADS) decode(const uint8_t *records, layout of, int64_t n, Y *y) {
  static_assert(TILE % BLOCK == 0 && BLOCK % EACH == 0, "whole blocks, and threads in one of them");
  const int elements = 1 << of.shift;
  __shared__ float scale[TILE / BLOCK];
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * TILE, first = tile + threadIdx.x * EACH;
  if (threadIdx.x < TILE / BLOCK) {
    const int64_t element = tile + threadIdx.x * BLOCK;
    if (element < n)
      scale[threadIdx.x] = scale_of<DTYPE, BLOCK, SCALES>(records + (element >> of.shift) * of.bytes, elements,
                                                          static_cast<int>(element & (elements - 1)) / BLOCK);
  }
  __syncthreads();
  if (first >= n) return;
  const int at = static_cast<int>(first & (elements - 1));
  const uint8_t *codes = records + (first >> of.shift) * of.bytes + ms_record_scales(DTYPE, at);
  const float factor = scale[threadIdx.x * EACH / BLOCK];
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

template <int DTYPE, int BLOCK, int SCALES, class Y> int launch_as(const ms_kernel_call *call, int64_t n, Y *y) {
  if constexpr (BLOCK == 0) {
    static_assert(DTYPE == MS_BF16, "the numbers that are stored");
    return MS_CUDA_LAUNCH((widen<Y>), static_cast<unsigned>(ms_cuda_ceil(n, THREADS)), THREADS, 0, call->stream,
                          static_cast<const ms_b16 *>(call->in_data[0]), n, y);
  } else {
    ms_storage storage;
    MS_TRY(ms_storage_find(DTYPE, call->attrs.stored.record, &storage));
    const layout of = {__builtin_ctzll(static_cast<unsigned long long>(storage.elements)),
                       static_cast<int>(4 * storage.words)};
    const unsigned tiles = static_cast<unsigned>(ms_cuda_ceil(n, TILE));
    const uint8_t *records = static_cast<const uint8_t *>(call->in_data[0]);
    if (reinterpret_cast<uintptr_t>(y) % MS_CUDA_VECTOR_BYTES == 0)
      return MS_CUDA_LAUNCH((decode<DTYPE, BLOCK, SCALES, Y, true>), tiles, THREADS, 0, call->stream, records, of, n,
                            y);
    return MS_CUDA_LAUNCH((decode<DTYPE, BLOCK, SCALES, Y, false>), tiles, THREADS, 0, call->stream, records, of, n, y);
  }
}

template <class Y> int launch(const ms_kernel_call *call) {
  const int64_t n = ms_numel(&call->out[0]);
  Y *y = static_cast<Y *>(call->out_data[0]);
  if (n == 0) return MS_OK;
#define MS_RECORDS(NAME, elements, block, scales) \
  if (call->attrs.stored.storage == MS_##NAME) return launch_as<MS_##NAME, block, MS_SCALES_##scales>(call, n, y);
#include "base/numbers/formats.def"
  return MS_FAIL(MS_EINTERNAL, "dequantise: no kernel reads parameters stored in %s",
                 ms_dtype_name(static_cast<int>(call->attrs.stored.storage)));
}

int run(const ms_kernel_call *call) {
  return call->out[0].dtype == MS_F32 ? launch<float>(call) : launch<ms_b16>(call);
}

} // namespace

extern const ms_kernel ms_cuda_dequantise_stored = {ms_storage_prepare, run, nullptr, MS_CUDA_OVER_dequantise_stored};
