/* quantise.c - f32 elements to codes with scales and back, on the CPU (kernels/formats/quantise.h). Two passes over the
 * elements of a scale, which are in cache when a block is small: the largest magnitude, then the codes. */
#include "kernels/cpu/simd.h"

#include "base/numbers/dtype.h"
#include "base/error.h"
#include "kernels/formats/quantise.h"
#include "kernels/formats/quantise_code.h"

/* How the codes of one scale are made of its elements. */
enum { MULTIPLY, DIVIDE };

MS_CLONES static uint32_t largest_magnitude(const float *x, int64_t n) {
  uint32_t most = 0;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < n; i++) most = ms_magnitude(x[i]) > most ? ms_magnitude(x[i]) : most;
  return most;
}

/* ---- loops, once for each dtype ---------------------------------------------------------------------------------- */

MS_INLINE float scaled(float x, float scale, int way) {
  return way == MULTIPLY ? x * scale : ms_block_quotient(x, scale);
}

MS_INLINE void encode_as(const float *restrict x, int64_t n, float scale, int way, int dtype, uint8_t *restrict codes) {
  if (ms_code_is_packed(dtype)) {
#pragma omp simd
    for (int64_t i = 0; i < n / 2; i++)
      codes[i] = ms_pack4(ms_code_of(scaled(x[2 * i], scale, way), dtype),
                          ms_code_of(scaled(x[2 * i + 1], scale, way), dtype));
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < n; i++) codes[i] = ms_code_of(scaled(x[i], scale, way), dtype);
}

MS_INLINE float restored(uint8_t code, float scale, int way, int dtype) {
  return way == MULTIPLY ? ms_value_of(code, dtype) * scale : ms_value_of(code, dtype) / scale;
}

MS_INLINE void decode_as(const uint8_t *restrict codes, int64_t n, float scale, int way, int dtype, float *restrict x) {
  if (ms_code_is_packed(dtype)) {
#pragma omp simd
    for (int64_t i = 0; i < n / 2; i++) {
      x[2 * i] = restored(ms_first4(codes[i]), scale, way, dtype);
      x[2 * i + 1] = restored(ms_second4(codes[i]), scale, way, dtype);
    }
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < n; i++) x[i] = restored(codes[i], scale, way, dtype);
}

/* ms_quantisation_check accepts a dtype that these loops lack. */
static int no_codes_of(int dtype) {
  return MS_FAIL(MS_EINTERNAL, "quantise: no loop makes or reads codes of %s", ms_dtype_name(dtype));
}

/* Without a top, codes have blocks with scales alone. */
MS_CLONES static int encode(const float *x, int64_t n, float scale, int way, int dtype, uint8_t *codes) {
#define MS_CODES(NAME, largest, top, ...)                                           \
  if (dtype == MS_##NAME) {                                                         \
    if (top && way == MULTIPLY) encode_as(x, n, scale, MULTIPLY, MS_##NAME, codes); \
    else encode_as(x, n, scale, DIVIDE, MS_##NAME, codes);                          \
    return MS_OK;                                                                   \
  }
#include "base/numbers/formats.def"
  return no_codes_of(dtype);
}

MS_CLONES static int decode(const uint8_t *codes, int64_t n, float scale, int way, int dtype, float *x) {
#define MS_CODES(NAME, largest, top, ...)                                       \
  if (dtype == MS_##NAME) {                                                     \
    if (top && way == DIVIDE) decode_as(codes, n, scale, DIVIDE, MS_##NAME, x); \
    else decode_as(codes, n, scale, MULTIPLY, MS_##NAME, x);                    \
    return MS_OK;                                                               \
  }
#include "base/numbers/formats.def"
  return no_codes_of(dtype);
}

/* ---- the elements of one scale ----------------------------------------------------------------------------------- */

static int quantise_block(const ms_quantisation *q, const float *x, int64_t n, int64_t number, void *codes,
                          void *scales) {
  const uint32_t magnitude = largest_magnitude(x, n);
  if (q->scaling == MS_SCALE_TENSOR) {
    const float scale = ((float *)scales)[number] = ms_tensor_scale(magnitude, q->dtype);
    return encode(x, n, scale, MULTIPLY, q->dtype, codes);
  }
  if (q->scaling == MS_SCALE_BLOCK) {
    const float scale = ((float *)scales)[number] = ms_block_scale(magnitude, q->dtype);
    return encode(x, n, scale, DIVIDE, q->dtype, codes);
  }
  const uint8_t scale = ((uint8_t *)scales)[number] = ms_mx_scale(magnitude, q->dtype, q->rounding);
  return encode(x, n, ms_mx_inverse(scale), MULTIPLY, q->dtype, codes);
}

static int dequantise_block(const ms_quantisation *q, const void *codes, const void *scales, int64_t number, int64_t n,
                            float *x) {
  if (q->scaling == MS_SCALE_TENSOR) return decode(codes, n, ((const float *)scales)[number], DIVIDE, q->dtype, x);
  if (q->scaling == MS_SCALE_BLOCK) return decode(codes, n, ((const float *)scales)[number], MULTIPLY, q->dtype, x);
  return decode(codes, n, ms_e8m0_to_f32(((const uint8_t *)scales)[number]), MULTIPLY, q->dtype, x);
}

/* Codes before element `first`, which begins a byte. */
static int64_t bytes_before(const ms_quantisation *q, int64_t first) {
  return ms_code_is_packed(q->dtype) ? first / 2 : first;
}

int ms_cpu_quantise(const ms_quantisation *q, const float *x, int64_t n, void *codes, void *scales) {
  MS_TRY(ms_quantisation_check(q, n));
  const int64_t block = ms_quantisation_block(q, n);
  for (int64_t number = 0; number < ms_quantisation_scales(q, n); number++) {
    const int64_t first = number * block, length = n - first < block ? n - first : block;
    MS_TRY(quantise_block(q, x + first, length, number, (uint8_t *)codes + bytes_before(q, first), scales));
  }
  return MS_OK;
}

int ms_cpu_dequantise(const ms_quantisation *q, const void *codes, const void *scales, int64_t n, float *x) {
  MS_TRY(ms_quantisation_check(q, n));
  const int64_t block = ms_quantisation_block(q, n);
  for (int64_t number = 0; number < ms_quantisation_scales(q, n); number++) {
    const int64_t first = number * block, length = n - first < block ? n - first : block;
    MS_TRY(dequantise_block(q, (const uint8_t *)codes + bytes_before(q, first), scales, number, length, x + first));
  }
  return MS_OK;
}
