/* quantise.cu - f32 elements to codes with scales and back (kernels/formats/quantise.h). Memory traffic per element: 4
 * bytes and those of its code; with one scale for all, 4 bytes more to find it.
 *
 * A warp has the elements of one scale: it reads them for the largest magnitude, and again, from cache, for the codes.
 * With one scale for all, blocks of threads find the largest magnitude together, by a maximum of bits, which has the
 * same result in any order. Each lane takes two elements at a time, since two can share a byte.
 */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/reductions/reduce.h"

extern "C" {
#include "kernels/formats/quantise.h"
}

#include "kernels/formats/quantise_code.h"

namespace {

constexpr int THREADS = 256, WARPS = THREADS / MS_WARP;
constexpr int64_t TILE = 4096; /* elements of a block of threads, with one scale for all */

/* Codes of elements [first, end), which begin a byte; lane of `lanes`. quotient: x / scale, else x * scale. */
template <int DTYPE, bool QUOTIENT>
__device__ void encode(const float *x, int64_t first, int64_t end, float scale, uint8_t *codes, int lane, int lanes) {
  for (int64_t i = first + 2 * lane; i < end; i += 2 * lanes) {
    uint8_t code[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < 2; k++)
      if (i + k < end) code[k] = ms_code_of(QUOTIENT ? ms_block_quotient(x[i + k], scale) : x[i + k] * scale, DTYPE);
    if constexpr (ms_code_is_packed(DTYPE)) codes[i / 2] = ms_pack4(code[0], code[1]);
    else {
      codes[i] = code[0];
      if (i + 1 < end) codes[i + 1] = code[1];
    }
  }
}

__device__ uint32_t magnitude_of(const float *x, int64_t first, int64_t end, int lane, int lanes) {
  uint32_t most = 0;
  for (int64_t i = first + lane; i < end; i += lanes) most = ms_larger_bits()(most, ms_magnitude(x[i]));
  return most;
}

/* ---- a scale a block --------------------------------------------------------------------------------------------- */

template <int DTYPE, bool MX>
__global__ void __launch_bounds__(THREADS)
    quantise_blocks(const float *x, int64_t n, int64_t block, int rounding, uint8_t *codes, void *scales) {
  const int lane = threadIdx.x % MS_WARP;
  const int64_t number = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / MS_WARP;
  const int64_t first = number * block, end = min(n, first + block);
  if (first >= n) return;
  const uint32_t magnitude = ms_warp_reduce(magnitude_of(x, first, end, lane, MS_WARP), ms_larger_bits());
  if constexpr (MX) {
    const uint8_t scale = ms_mx_scale(magnitude, DTYPE, rounding);
    if (lane == 0) static_cast<uint8_t *>(scales)[number] = scale;
    encode<DTYPE, false>(x, first, end, ms_mx_inverse(scale), codes, lane, MS_WARP);
  } else {
    const float scale = ms_block_scale(magnitude, DTYPE);
    if (lane == 0) static_cast<float *>(scales)[number] = scale;
    encode<DTYPE, true>(x, first, end, scale, codes, lane, MS_WARP);
  }
}

/* ---- one scale for all ------------------------------------------------------------------------------------------- */

/* *most: the bits of the largest magnitude; 0 before. */
__global__ void __launch_bounds__(THREADS) find_magnitude(const float *x, int64_t n, unsigned *most) {
  const int64_t first = blockIdx.x * TILE;
  const uint32_t own = magnitude_of(x, first, min(n, first + TILE), threadIdx.x, THREADS);
  const uint32_t of_warp = ms_warp_reduce(own, ms_larger_bits());
  if (threadIdx.x % MS_WARP == 0) atomicMax(most, static_cast<unsigned>(of_warp));
}

/* Replaces the magnitude by the scale. */
template <int DTYPE> __global__ void set_scale(float *scale) {
  *scale = ms_tensor_scale(ms_float8_bits(*scale), DTYPE);
}

template <int DTYPE>
__global__ void __launch_bounds__(THREADS) encode_all(const float *x, int64_t n, const float *scale, uint8_t *codes) {
  const int64_t first = blockIdx.x * TILE;
  encode<DTYPE, false>(x, first, min(n, first + TILE), *scale, codes, threadIdx.x, THREADS);
}

/* ---- back -------------------------------------------------------------------------------------------------------- */

template <int DTYPE, int SCALING>
__global__ void __launch_bounds__(THREADS)
    decode_all(const uint8_t *codes, const void *scales, int64_t n, int64_t block, float *x) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
  if (i >= n) return;
  uint8_t code;
  if constexpr (ms_code_is_packed(DTYPE)) code = i % 2 ? ms_second4(codes[i / 2]) : ms_first4(codes[i / 2]);
  else code = codes[i];
  const float value = ms_value_of(code, DTYPE);
  if constexpr (SCALING == MS_SCALE_TENSOR) x[i] = value / static_cast<const float *>(scales)[0];
  else if constexpr (SCALING == MS_SCALE_BLOCK) x[i] = value * static_cast<const float *>(scales)[i / block];
  else x[i] = value * ms_e8m0_to_f32(static_cast<const uint8_t *>(scales)[i / block]);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

unsigned grid(int64_t n, int64_t of_each) { return static_cast<unsigned>(ms_cuda_ceil(n, of_each)); }

template <int DTYPE> int quantise_all(const float *x, int64_t n, uint8_t *codes, float *scale, void *stream) {
  MS_TRY(ms_cuda_status(cudaMemsetAsync(scale, 0, sizeof *scale, static_cast<cudaStream_t>(stream)),
                        "quantise: cudaMemsetAsync"));
  if (n > 0)
    MS_TRY(
        MS_CUDA_LAUNCH(find_magnitude, grid(n, TILE), THREADS, 0, stream, x, n, reinterpret_cast<unsigned *>(scale)));
  MS_TRY(MS_CUDA_LAUNCH(set_scale<DTYPE>, 1, 1, 0, stream, scale));
  if (n == 0) return MS_OK;
  return MS_CUDA_LAUNCH(encode_all<DTYPE>, grid(n, TILE), THREADS, 0, stream, x, n, scale, codes);
}

template <int DTYPE, bool MX>
int quantise_each(const ms_quantisation *q, const float *x, int64_t n, uint8_t *codes, void *scales, void *stream) {
  if (n == 0) return MS_OK;
  return MS_CUDA_LAUNCH((quantise_blocks<DTYPE, MX>), grid(ms_quantisation_scales(q, n), WARPS), THREADS, 0, stream, x,
                        n, ms_quantisation_block(q, n), q->rounding, codes, scales);
}

/* TOP: 0: codes of the type have blocks with scales alone. */
template <int DTYPE, int TOP>
int quantise_as(const ms_quantisation *q, const float *x, int64_t n, uint8_t *codes, void *scales, void *stream) {
  if constexpr (TOP != 0) {
    if (q->scaling == MS_SCALE_TENSOR) return quantise_all<DTYPE>(x, n, codes, static_cast<float *>(scales), stream);
    if (q->scaling == MS_SCALE_MX) return quantise_each<DTYPE, true>(q, x, n, codes, scales, stream);
  }
  return quantise_each<DTYPE, false>(q, x, n, codes, scales, stream);
}

template <int DTYPE, int SCALING>
int dequantise(const ms_quantisation *q, const void *codes, const void *scales, int64_t n, float *x, void *stream) {
  if (n == 0) return MS_OK;
  return MS_CUDA_LAUNCH((decode_all<DTYPE, SCALING>), grid(n, THREADS), THREADS, 0, stream,
                        static_cast<const uint8_t *>(codes), scales, n, ms_quantisation_block(q, n), x);
}

template <int DTYPE, int TOP>
int dequantise_as(const ms_quantisation *q, const void *codes, const void *scales, int64_t n, float *x, void *stream) {
  if constexpr (TOP != 0) {
    if (q->scaling == MS_SCALE_TENSOR) return dequantise<DTYPE, MS_SCALE_TENSOR>(q, codes, scales, n, x, stream);
    if (q->scaling == MS_SCALE_MX) return dequantise<DTYPE, MS_SCALE_MX>(q, codes, scales, n, x, stream);
  }
  return dequantise<DTYPE, MS_SCALE_BLOCK>(q, codes, scales, n, x, stream);
}

/* ms_quantisation_check accepts a dtype that these kernels lack. */
int no_codes_of(int dtype) {
  return MS_FAIL(MS_EINTERNAL, "quantise: no kernel makes or reads codes of %s", ms_dtype_name(dtype));
}

} // namespace

extern "C" int ms_cuda_quantise(const ms_quantisation *q, const float *x, int64_t n, void *codes, void *scales,
                                void *stream) {
  MS_TRY(ms_quantisation_check(q, n));
  uint8_t *to = static_cast<uint8_t *>(codes);
#define MS_CODES(NAME, largest, top, ...) \
  if (q->dtype == MS_##NAME) return quantise_as<MS_##NAME, top>(q, x, n, to, scales, stream);
#include "base/numbers/formats.def"
  return no_codes_of(q->dtype);
}

extern "C" int ms_cuda_dequantise(const ms_quantisation *q, const void *codes, const void *scales, int64_t n, float *x,
                                  void *stream) {
  MS_TRY(ms_quantisation_check(q, n));
#define MS_CODES(NAME, largest, top, ...) \
  if (q->dtype == MS_##NAME) return dequantise_as<MS_##NAME, top>(q, codes, scales, n, x, stream);
#include "base/numbers/formats.def"
  return no_codes_of(q->dtype);
}
