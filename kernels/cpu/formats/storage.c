/* storage.c - records of stored parameters on the host (kernels/formats/storage.h): making, reading and converting
 * them. */
#include "kernels/formats/storage.h"

#include "kernels/cpu/simd.h"

#include <string.h>

#include "base/numbers/bf16.h"
#include "base/numbers/dtype.h"
#include "base/error.h"
#include "base/min.h"
#include "kernels/formats/storage_code.h"

/* ---- making a record --------------------------------------------------------------------------------------------- */

int ms_storage_encode(const ms_storage *s, const float *x, int64_t n, void *record, float *scales) {
  memset(record, 0, (size_t)s->words * 4);
  if (!s->block) {
    ms_dtype_row_of(s->dtype)->narrow(x, n, record);
    return MS_OK;
  }
  const ms_quantisation blocks = {.dtype = s->dtype, .scaling = MS_SCALE_BLOCK, .block = s->block};
  float *to = s->late ? scales : (float *)((char *)record + s->scales);
  memset(to, 0, (size_t)(s->elements / s->block) * sizeof *to);
  if (!ms_code_is_packed(s->dtype) || n % 2 == 0) return ms_cpu_quantise(&blocks, x, n, record, to);
  /* The last byte of an odd number of elements has half an element more, which is 0. */
  const int64_t whole = n / s->block * s->block;
  float last[MS_STORED_BLOCK] = {0};
  memcpy(last, x + whole, (size_t)(n - whole) * sizeof *x);
  MS_TRY(ms_cpu_quantise(&blocks, x, whole, record, to));
  return ms_cpu_quantise(&blocks, last, n - whole + 1, (char *)record + whole / 2, to + whole / s->block);
}

uint32_t ms_storage_max(const float *scales, int64_t n, float offset) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; i++) {
    const uint32_t rest = ms_magnitude(scales[i] - offset);
    if (rest > most) most = rest;
  }
  return most;
}

void ms_storage_set_scales(const ms_storage *s, void *record, const float *scales, int64_t n, float offset,
                           uint32_t most) {
  uint8_t *codes = (uint8_t *)record + s->scales;
  char *map = (char *)record + s->late;
  const float scale = ms_float8_value(most);
  for (int64_t i = 0; i < n; i++) codes[i] = ms_f32_to_dynamic(ms_block_quotient(scales[i] - offset, scale));
  memcpy(map, &scale, sizeof scale);
  memcpy(map + sizeof scale, &offset, sizeof offset);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Elements of a block are products with its scale, and those of packed codes are 16 different ones. */
MS_INLINE void decode_as(const uint8_t *restrict codes, float scale, int dtype, int block, float *restrict x) {
  if (ms_code_is_packed(dtype)) {
    float product[16];
    for (int code = 0; code < 16; code++) product[code] = ms_value_of((uint8_t)code, dtype) * scale;
    for (int i = 0; i < block / 2; i++) {
      x[2 * i] = product[ms_first4(codes[i])];
      x[2 * i + 1] = product[ms_second4(codes[i])];
    }
    return;
  }
#pragma omp simd
  for (int i = 0; i < block; i++) x[i] = ms_value_of(codes[i], dtype) * scale;
}

MS_CLONES static void decode_codes(int dtype, const uint8_t *restrict codes, float scale, float *restrict x) {
#define MS_RECORDS(NAME, elements, block, scales) \
  if (dtype == MS_##NAME) decode_as(codes, scale, MS_##NAME, block, x);
#include "base/numbers/formats.def"
}

static float float_at(const uint8_t *record, int64_t byte) {
  float x;
  memcpy(&x, record + byte, sizeof x);
  return x;
}

static float scale_of(const ms_storage *s, const uint8_t *record, int64_t block) {
  if (!s->late) return float_at(record, s->scales + (int64_t)sizeof(float) * block);
  return ms_restored_scale(record[s->scales + block], float_at(record, s->late),
                           float_at(record, s->late + (int64_t)sizeof(float)));
}

static void decode_block(const ms_storage *s, const uint8_t *record, int64_t block, float *x) {
  decode_codes(s->dtype, record + ms_record_scales(s->dtype, block * s->block), scale_of(s, record, block), x);
}

/* Elements [first, first + n) of a record of blocks. */
static void decode_blocks(const ms_storage *s, const uint8_t *record, int64_t first, int64_t n, float *x) {
  const int64_t length = s->block;
  float whole[MS_STORED_BLOCK];
  for (int64_t at = first, taken; at < first + n; at += taken) {
    const int64_t skipped = at % length;
    taken = ms_min(length - skipped, first + n - at);
    float *to = taken == length ? x + (at - first) : whole;
    decode_block(s, record, at / length, to);
    if (to == whole) memcpy(x + (at - first), whole + skipped, (size_t)taken * sizeof *x);
  }
}

MS_CLONES static void widen(const ms_bf16 *restrict from, int64_t n, float *restrict x) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) x[i] = ms_from_bf16(from[i]);
}

void ms_storage_decode(const ms_storage *s, const void *records, int64_t first, int64_t n, float *x) {
  if (!s->block) {
    widen((const ms_bf16 *)records + first, n, x);
    return;
  }
  for (int64_t at = first, taken; at < first + n; at += taken) {
    const int64_t record = at / s->elements, skipped = at % s->elements;
    taken = ms_min(s->elements - skipped, first + n - at);
    decode_blocks(s, (const uint8_t *)records + record * s->words * 4, skipped, taken, x + (at - first));
  }
}

/* ---- records of another length ----------------------------------------------------------------------------------- */

/* The blocks of a fragment that lies in one record of each kind. */
static void copy_fragment(const ms_storage *from, const uint8_t *record, int64_t first, int64_t n, const ms_storage *to,
                          uint8_t *out, int64_t at) {
  const int64_t blocks = (n + from->block - 1) / from->block, each = from->late ? 1 : (int64_t)sizeof(float);
  const int dtype = from->dtype, half = ms_code_is_packed(dtype);
  memcpy(out + ms_record_scales(dtype, at), record + ms_record_scales(dtype, first),
         (size_t)ms_record_scales(dtype, n + half));
  memcpy(out + to->scales + at / to->block * each, record + from->scales + first / from->block * each,
         (size_t)(blocks * each));
  if (from->late) memcpy(out + to->late, record + from->late, 2 * sizeof(float)); /* and the offset after it */
}

void ms_storage_convert(const ms_storage *from, const void *records, int64_t first, int64_t n, const ms_storage *to,
                        void *out, int64_t at) {
  for (int64_t taken; n > 0; first += taken, at += taken, n -= taken) {
    const int64_t skipped = first % from->elements, place = at % to->elements;
    taken = ms_min(n, ms_min(from->elements - skipped, to->elements - place));
    copy_fragment(from, (const uint8_t *)records + first / from->elements * from->words * 4, skipped, taken, to,
                  (uint8_t *)out + at / to->elements * to->words * 4, place);
  }
}
