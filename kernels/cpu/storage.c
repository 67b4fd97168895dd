/* storage.c - records of stored parameters on the host (kernels/storage.h): making and reading them. */
#include "kernels/storage.h"

#include "kernels/cpu/simd.h"

#include <string.h>

#include "base/bf16.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/least.h"
#include "kernels/storage_code.h"

static const ms_quantisation blocks_of_i8 = {.dtype = MS_I8, .scaling = MS_SCALE_BLOCK, .block = MS_STORED_BLOCK_I8};
static const ms_quantisation blocks_of_nf4 = {.dtype = MS_NF4, .scaling = MS_SCALE_BLOCK, .block = MS_STORED_BLOCK_NF4};

/* ---- making a record --------------------------------------------------------------------------------------------- */

/* The last byte of an odd number of elements has half an element more, which is 0. */
static int encode_nf4(const float *x, int64_t n, void *record, float *scales) {
  memset(scales, 0, MS_STORED_SCALES * sizeof *scales);
  const int64_t even = n / 2 * 2, whole = n / MS_STORED_BLOCK_NF4 * MS_STORED_BLOCK_NF4;
  if (n == even) return ms_cpu_quantise(&blocks_of_nf4, x, n, record, scales);
  float last[MS_STORED_BLOCK_NF4] = {0};
  memcpy(last, x + whole, (size_t)(n - whole) * sizeof *x);
  MS_TRY(ms_cpu_quantise(&blocks_of_nf4, x, whole, record, scales));
  return ms_cpu_quantise(&blocks_of_nf4, last, n - whole + 1, (char *)record + whole / 2,
                         scales + whole / MS_STORED_BLOCK_NF4);
}

int ms_storage_encode(int dtype, const float *x, int64_t n, void *record, float *scales) {
  memset(record, 0, (size_t)ms_storage_of(dtype)->words * 4);
  if (dtype == MS_NF4) return encode_nf4(x, n, record, scales);
  if (dtype == MS_I8) return ms_cpu_quantise(&blocks_of_i8, x, n, record, (char *)record + MS_I8_SCALES);
  ms_dtype_row_of(dtype)->narrow(x, n, record);
  return MS_OK;
}

void ms_storage_set_scales(void *record, const float *scales, int64_t n, float offset) {
  uint8_t *bytes = record;
  float rest[MS_STORED_SCALES];
  uint32_t most = 0;
  for (int64_t i = 0; i < n; i++) {
    rest[i] = scales[i] - offset;
    if (ms_magnitude(rest[i]) > most) most = ms_magnitude(rest[i]);
  }
  const float scale = ms_float8_value(most);
  for (int64_t i = 0; i < n; i++) bytes[MS_NF4_SCALE_CODES + i] = ms_f32_to_dynamic(ms_block_quotient(rest[i], scale));
  memcpy(bytes + MS_NF4_SCALE, &scale, sizeof scale);
  memcpy(bytes + MS_NF4_OFFSET, &offset, sizeof offset);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Elements of a block are products with its scale, and those of nf4 are 16 different ones. */
MS_CLONES static void decode_nf4(const uint8_t *restrict codes, float scale, float *restrict x) {
  float product[16];
  for (int code = 0; code < 16; code++) product[code] = ms_value_of((uint8_t)code, MS_NF4) * scale;
  for (int i = 0; i < MS_STORED_BLOCK_NF4 / 2; i++) {
    x[2 * i] = product[ms_first4(codes[i])];
    x[2 * i + 1] = product[ms_second4(codes[i])];
  }
}

MS_CLONES static void decode_i8(const uint8_t *restrict codes, float scale, float *restrict x) {
#pragma omp simd
  for (int i = 0; i < MS_STORED_BLOCK_I8; i++) x[i] = ms_value_of(codes[i], MS_I8) * scale;
}

static float float_at(const uint8_t *record, int64_t byte) {
  float x;
  memcpy(&x, record + byte, sizeof x);
  return x;
}

static void decode_block(int dtype, const uint8_t *record, int64_t block, float *x) {
  if (dtype == MS_NF4) {
    const float scale = ms_restored_scale(record[MS_NF4_SCALE_CODES + block], float_at(record, MS_NF4_SCALE),
                                          float_at(record, MS_NF4_OFFSET));
    decode_nf4(record + block * MS_STORED_BLOCK_NF4 / 2, scale, x);
  } else decode_i8(record + block * MS_STORED_BLOCK_I8, float_at(record, MS_I8_SCALES + 4 * block), x);
}

/* Elements [first, first + n) of a record of blocks. */
static void decode_blocks(const ms_storage *s, const uint8_t *record, int64_t first, int64_t n, float *x) {
  const int64_t length = s->block;
  float whole[MS_STORED_BLOCK_I8];
  for (int64_t at = first, taken; at < first + n; at += taken) {
    const int64_t skipped = at % length;
    taken = ms_least(length - skipped, first + n - at);
    float *to = taken == length ? x + (at - first) : whole;
    decode_block(s->dtype, record, at / length, to);
    if (to == whole) memcpy(x + (at - first), whole + skipped, (size_t)taken * sizeof *x);
  }
}

MS_CLONES static void widen(const ms_bf16 *restrict from, int64_t n, float *restrict x) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) x[i] = ms_from_bf16(from[i]);
}

void ms_storage_decode(int dtype, const void *records, int64_t first, int64_t n, float *x) {
  const ms_storage *s = ms_storage_of(dtype);
  if (!s->block) {
    widen((const ms_bf16 *)records + first, n, x);
    return;
  }
  for (int64_t at = first, taken; at < first + n; at += taken) {
    const int64_t record = at / s->elements, skipped = at % s->elements;
    taken = ms_least(s->elements - skipped, first + n - at);
    decode_blocks(s, (const uint8_t *)records + record * s->words * 4, skipped, taken, x + (at - first));
  }
}
