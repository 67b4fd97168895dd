/* storage.c - records of stored parameters on the host (kernels/formats/storage.h): making, reading and converting
 * them. */
#include "kernels/formats/storage.h"

#include "kernels/cpu/simd.h"

#include <string.h>

#include "base/numbers/bf16.h"
#include "base/numbers/dtype.h"
#include "base/error.h"
#include "base/least.h"
#include "kernels/formats/storage_code.h"

static const ms_quantisation blocks_of_i8 = {.dtype = MS_I8, .scaling = MS_SCALE_BLOCK, .block = MS_STORED_BLOCK_I8};
static const ms_quantisation blocks_of_nf4 = {.dtype = MS_NF4, .scaling = MS_SCALE_BLOCK, .block = MS_STORED_BLOCK_NF4};

/* ---- making a record --------------------------------------------------------------------------------------------- */

/* The last byte of an odd number of elements has half an element more, which is 0. */
static int encode_nf4(const ms_storage *s, const float *x, int64_t n, void *record, float *scales) {
  memset(scales, 0, (size_t)(s->elements / s->block) * sizeof *scales);
  const int64_t even = n / 2 * 2, whole = n / MS_STORED_BLOCK_NF4 * MS_STORED_BLOCK_NF4;
  if (n == even) return ms_cpu_quantise(&blocks_of_nf4, x, n, record, scales);
  float last[MS_STORED_BLOCK_NF4] = {0};
  memcpy(last, x + whole, (size_t)(n - whole) * sizeof *x);
  MS_TRY(ms_cpu_quantise(&blocks_of_nf4, x, whole, record, scales));
  return ms_cpu_quantise(&blocks_of_nf4, last, n - whole + 1, (char *)record + whole / 2,
                         scales + whole / MS_STORED_BLOCK_NF4);
}

int ms_storage_encode(const ms_storage *s, const float *x, int64_t n, void *record, float *scales) {
  memset(record, 0, (size_t)s->words * 4);
  if (s->dtype == MS_NF4) return encode_nf4(s, x, n, record, scales);
  if (s->dtype == MS_I8)
    return ms_cpu_quantise(&blocks_of_i8, x, n, record, (char *)record + ms_i8_scales(s->elements));
  ms_dtype_row_of(s->dtype)->narrow(x, n, record);
  return MS_OK;
}

uint32_t ms_storage_most(const float *scales, int64_t n, float offset) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; i++) {
    const uint32_t rest = ms_magnitude(scales[i] - offset);
    if (rest > most) most = rest;
  }
  return most;
}

void ms_storage_set_scales(const ms_storage *s, void *record, const float *scales, int64_t n, float offset,
                           uint32_t most) {
  uint8_t *bytes = record, *codes = bytes + ms_nf4_scale_codes(s->elements);
  const float scale = ms_float8_value(most);
  for (int64_t i = 0; i < n; i++) codes[i] = ms_f32_to_dynamic(ms_block_quotient(scales[i] - offset, scale));
  memcpy(bytes + ms_nf4_scale(s->elements), &scale, sizeof scale);
  memcpy(bytes + ms_nf4_offset(s->elements), &offset, sizeof offset);
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

static void decode_block(const ms_storage *s, const uint8_t *record, int64_t block, float *x) {
  const int64_t n = s->elements;
  if (s->dtype == MS_NF4) {
    const float scale = ms_restored_scale(record[ms_nf4_scale_codes(n) + block], float_at(record, ms_nf4_scale(n)),
                                          float_at(record, ms_nf4_offset(n)));
    decode_nf4(record + block * MS_STORED_BLOCK_NF4 / 2, scale, x);
  } else decode_i8(record + block * MS_STORED_BLOCK_I8, float_at(record, ms_i8_scales(n) + 4 * block), x);
}

/* Elements [first, first + n) of a record of blocks. */
static void decode_blocks(const ms_storage *s, const uint8_t *record, int64_t first, int64_t n, float *x) {
  const int64_t length = s->block;
  float whole[MS_STORED_BLOCK_I8];
  for (int64_t at = first, taken; at < first + n; at += taken) {
    const int64_t skipped = at % length;
    taken = ms_least(length - skipped, first + n - at);
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
    taken = ms_least(s->elements - skipped, first + n - at);
    decode_blocks(s, (const uint8_t *)records + record * s->words * 4, skipped, taken, x + (at - first));
  }
}

/* ---- records of another length ----------------------------------------------------------------------------------- */

/* The blocks of a fragment that lies in one record of each kind. */
static void copy_fragment(const ms_storage *from, const uint8_t *record, int64_t first, int64_t n, const ms_storage *to,
                          uint8_t *out, int64_t at) {
  const int64_t blocks = (n + from->block - 1) / from->block, old = from->elements, new = to->elements;
  if (from->dtype == MS_NF4) {
    memcpy(out + at / 2, record + first / 2, (size_t)((n + 1) / 2));
    memcpy(out + ms_nf4_scale_codes(new) + at / to->block, record + ms_nf4_scale_codes(old) + first / from->block,
           (size_t)blocks);
    memcpy(out + ms_nf4_scale(new), record + ms_nf4_scale(old), 2 * sizeof(float)); /* and the offset behind it */
    return;
  }
  memcpy(out + at, record + first, (size_t)n);
  memcpy(out + ms_i8_scales(new) + at / to->block * 4, record + ms_i8_scales(old) + first / from->block * 4,
         (size_t)blocks * sizeof(float));
}

void ms_storage_convert(const ms_storage *from, const void *records, int64_t first, int64_t n, const ms_storage *to,
                        void *out, int64_t at) {
  for (int64_t taken; n > 0; first += taken, at += taken, n -= taken) {
    const int64_t skipped = first % from->elements, place = at % to->elements;
    taken = ms_least(n, ms_least(from->elements - skipped, to->elements - place));
    copy_fragment(from, (const uint8_t *)records + first / from->elements * from->words * 4, skipped, taken, to,
                  (uint8_t *)out + at / to->elements * to->words * 4, place);
  }
}
