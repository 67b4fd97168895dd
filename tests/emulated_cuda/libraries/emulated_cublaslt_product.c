/* emulated_cublaslt_product.c - the product that a call of the emulated cuBLASLt enqueues: plain loops over
 * column-major matrices, with the scales of 8-bit operands and the epilogue.
 */
#include "emulated_cublaslt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/numbers/bf16.h"
#include "base/numbers/float8.h"

static float load(const void *data, int type, int64_t i) {
  if (type == MS_LT_R_8F_E4M3) return ms_f8e4m3_to_f32(((const uint8_t *)data)[i]);
  if (type == MS_LT_R_8F_E5M2) return ms_f8e5m2_to_f32(((const uint8_t *)data)[i]);
  return type == MS_LT_R_16BF ? ms_bf16_to_f32(((const ms_bf16 *)data)[i]) : ((const float *)data)[i];
}

static void put(void *data, int type, int64_t i, float value) {
  if (type == MS_LT_R_16BF) ((ms_bf16 *)data)[i] = ms_f32_to_bf16(value);
  else ((float *)data)[i] = value;
}

/* Rounds to TF32: 10 bits of mantissa, to nearest. */
static float to_tf32(float x) {
  uint32_t bits;
  if (!isfinite(x)) return x;
  memcpy(&bits, &x, sizeof bits);
  bits = (bits + 0x1000u) & ~0x1fffu;
  memcpy(&x, &bits, sizeof bits);
  return x;
}

/* The scale of element k of a row: 512 bytes have 4 blocks of 128 rows, of which rows i, i + 32, i + 64 and i + 96 are
 * neighbours. */
static float block_scale(const uint8_t *scales, int64_t row, int64_t k, int64_t depth) {
  const int64_t block = k / BLOCK, across = (depth / BLOCK + 3) / 4;
  const uint8_t *tile = scales + (row / 128 * across + block / 4) * 512;
  return ms_e8m0_to_f32(tile[row % 32 * 16 + row / 32 % 4 * 4 + block % 4]);
}

/* The scale of element k of a row: of 128 elements, [blocks][rows], or of squares, [rows / 128][blocks], whose last
 * size is rounded up to 4. */
static float scale_of_128(const float *scales, int mode, int64_t row, int64_t rows, int64_t k, int64_t depth) {
  const int64_t blocks = (depth + 127) / 128;
  if (mode == MS_LT_SCALE_BLK128X128_32F) return scales[row / 128 * ((blocks + 3) / 4 * 4) + k / 128];
  return scales[k / 128 * ((rows + 3) / 4 * 4) + row];
}

static float sum_of(const emulated_product *t, const char *a, const char *b, int64_t row, int64_t column) {
  const int64_t depth = t->desc.trans_a ? t->a.rows : t->a.columns;
  const int tf32 = t->desc.compute == MS_LT_COMPUTE_32F_FAST_TF32;
  float sum = 0;
  for (int64_t i = 0; i < depth; i++) {
    const int64_t k = t->backwards ? depth - 1 - i : i;
    float x = load(a, t->a.type, t->desc.trans_a ? row * t->a.leading + k : k * t->a.leading + row);
    float y = load(b, t->b.type, t->desc.trans_b ? k * t->b.leading + column : column * t->b.leading + k);
    if (t->desc.a_mode == MS_LT_SCALE_VEC32_UE8M0) {
      x *= block_scale(t->desc.a_scale, row, k, depth);
      y *= block_scale(t->desc.b_scale, column, k, depth);
    }
    if (emulated_is_128(t->desc.a_mode)) {
      x *= scale_of_128(t->desc.a_scale, t->desc.a_mode, row, t->d.rows, k, depth);
      y *= scale_of_128(t->desc.b_scale, t->desc.b_mode, column, t->d.columns, k, depth);
    }
    if (tf32) x = to_tf32(x), y = to_tf32(y);
    sum += x * y;
  }
  return sum;
}

/* What the product of 8-bit operands is multiplied by. */
static float scale_at(const emulated_product *t, int64_t row, int64_t column) {
  const int each = t->desc.a_mode == MS_LT_SCALE_OUTER_VEC_32F;
  const float *a = t->desc.a_scale, *b = t->desc.b_scale;
  if (!a || t->desc.a_mode == MS_LT_SCALE_VEC32_UE8M0 || emulated_is_128(t->desc.a_mode)) return 1.0f;
  return a[each ? row : 0] * b[each ? column : 0];
}

static const double ROOT = 0.79788456080286536, CUBIC = 0.044715; /* sqrt(2 / pi) */

static float gelu(float x) { return (float)(0.5 * x * (1 + tanh(ROOT * (x + CUBIC * x * x * x)))); }

static float gelu_slope(float x) {
  const double t = tanh(ROOT * (x + CUBIC * x * x * x));
  return (float)(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * ROOT * (1 + 3 * CUBIC * x * x));
}

static float finish(const emulated_product *t, float value, int64_t row, int64_t column) {
  const int type = t->d.type, epilogue = t->desc.epilogue;
  const int64_t aux = column * t->desc.aux_ld + row;
  if (epilogue & BIAS) value += load(t->desc.bias, type, row);
  if ((epilogue & GELU) && (epilogue & AUX)) put(t->desc.aux, type, aux, value);
  if (epilogue & GELU) value = gelu(value);
  if (epilogue & DGELU) value *= gelu_slope(load(t->desc.aux, type, aux));
  return value;
}

void emulated_multiply(void *argument) {
  const emulated_product *t = argument;
  const size_t in = emulated_element_bytes(t->a.type), out = emulated_element_bytes(t->d.type);
  if (t->milliseconds) nanosleep(&(struct timespec){.tv_nsec = 1000000 * t->milliseconds}, NULL);
  float *sums = calloc((size_t)t->d.rows, sizeof *sums);
  if (!sums) abort();
  for (int batch = 0; batch < t->d.batch; batch++) {
    const char *a = (const char *)t->a_data + (int64_t)in * batch * t->a.stride;
    const char *b = (const char *)t->b_data + (int64_t)in * batch * t->b.stride;
    const char *c = (const char *)t->c_data + (int64_t)out * batch * t->d.stride;
    char *d = (char *)t->d_data + (int64_t)out * batch * t->d.stride;
    for (int64_t column = 0; column < t->d.columns; column++)
      for (int64_t row = 0; row < t->d.rows; row++) {
        const int64_t at = column * t->d.leading + row;
        float value = t->alpha * scale_at(t, row, column) * sum_of(t, a, b, row, column);
        if (t->beta != 0) value += t->beta * load(c, t->d.type, at);
        value = finish(t, value, row, column);
        sums[row] += value;
        put(d, t->d.type, at, value);
      }
  }
  for (int64_t row = 0; (t->desc.epilogue & BGRAD) && row < t->d.rows; row++)
    put(t->desc.bias, t->d.type, row, sums[row]);
  free(sums);
}
