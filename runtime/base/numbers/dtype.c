/* dtype.c - the table of element types (dtype.h). */
#include "base/numbers/dtype.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

#include "base/numbers/bf16.h"
#include "base/error.h"
#include "base/numbers/float8.h"

/* ---- to and from f32 -------------------------------------------------------------------------------------------- */

/* Values are moved with memcpy, because both arrays can be in one buffer of another type. */
static void widen_f32(const void *from, int64_t n, float *to) { memmove(to, from, (size_t)n * sizeof *to); }

static void narrow_f32(const float *from, int64_t n, void *to) { memmove(to, from, (size_t)n * sizeof *from); }

static void widen_bf16(const void *from, int64_t n, float *to) {
  for (int64_t i = 0; i < n; i++) {
    ms_bf16 half;
    memcpy(&half, (const char *)from + (int64_t)sizeof half * i, sizeof half);
    const float x = ms_bf16_to_f32(half);
    memcpy(to + i, &x, sizeof x);
  }
}

static void narrow_bf16(const float *from, int64_t n, void *to) {
  for (int64_t i = 0; i < n; i++) {
    const ms_bf16 half = ms_f32_to_bf16(from[i]);
    memcpy((char *)to + (int64_t)sizeof half * i, &half, sizeof half);
  }
}

/* A byte widens before the four bytes of its float are written over it. */
#define EIGHT_BITS(name, to_f32, from_f32)                                  \
  static void widen_##name(const void *from, int64_t n, float *to) {        \
    for (int64_t i = 0; i < n; i++) {                                       \
      const float x = to_f32(((const uint8_t *)from)[i]);                   \
      memcpy(to + i, &x, sizeof x);                                         \
    }                                                                       \
  }                                                                         \
  static void narrow_##name(const float *from, int64_t n, void *to) {       \
    for (int64_t i = 0; i < n; i++) ((uint8_t *)to)[i] = from_f32(from[i]); \
  }

EIGHT_BITS(f8e4m3, ms_f8e4m3_to_f32, ms_f32_to_f8e4m3)
EIGHT_BITS(f8e5m2, ms_f8e5m2_to_f32, ms_f32_to_f8e5m2)
EIGHT_BITS(e8m0, ms_e8m0_to_f32, ms_f32_to_e8m0)

/* ---- the table -------------------------------------------------------------------------------------------------- */

#define BF16_MAX 0x1.fep127
enum {
  MODEL_FLOAT = MS_DTYPE_FLOAT | MS_DTYPE_CAST | MS_DTYPE_PARAM | MS_DTYPE_REDUCE | MS_DTYPE_MOMENT | MS_DTYPE_LOOPS,
};

/* name, PyTorch's name, C type, safetensors' name, bytes, bits, is_float, lowest, largest; uses; wire; casts */
static const ms_dtype_row rows[] = {
    [MS_F32] = {{"f32", "float32", "float", "F32", 4, 32, 1, -FLT_MAX, FLT_MAX},
                MODEL_FLOAT | MS_DTYPE_SUM,
                MS_F32,
                widen_f32,
                narrow_f32},
    [MS_BF16] = {{"bf16", "bfloat16", "uint16_t", "BF16", 2, 16, 1, -BF16_MAX, BF16_MAX},
                 MODEL_FLOAT | MS_DTYPE_STORED,
                 MS_BF16,
                 widen_bf16,
                 narrow_bf16},
    [MS_I32] = {{"i32", "int32", "int32_t", "I32", 4, 32, 0, INT32_MIN, INT32_MAX},
                MS_DTYPE_CAST | MS_DTYPE_LOOPS,
                MS_I32,
                NULL,
                NULL},
    [MS_U8] = {{"u8", "uint8", "uint8_t", "U8", 1, 8, 0, 0, UINT8_MAX}, MS_DTYPE_LOOPS, MS_U8, NULL, NULL},
    [MS_F8E4M3] = {{"f8e4m3", "float8_e4m3fn", "uint8_t", "F8_E4M3", 1, 8, 1, -MS_F8E4M3_MAX, MS_F8E4M3_MAX},
                   MS_DTYPE_CAST,
                   MS_F8E4M3,
                   widen_f8e4m3,
                   narrow_f8e4m3},
    [MS_F8E5M2] = {{"f8e5m2", "float8_e5m2", "uint8_t", "F8_E5M2", 1, 8, 1, -MS_F8E5M2_MAX, MS_F8E5M2_MAX},
                   MS_DTYPE_CAST,
                   MS_F8E5M2,
                   widen_f8e5m2,
                   narrow_f8e5m2},
    [MS_E8M0] = {{"e8m0", "float8_e8m0fnu", "uint8_t", "F8_E8M0", 1, 8, 1, 0x1p-127, 0x1p127},
                 MS_DTYPE_CAST,
                 MS_E8M0,
                 widen_e8m0,
                 narrow_e8m0},
    [MS_I8] = {{"i8", "int8", "int8_t", "I8", 1, 8, 0, INT8_MIN, INT8_MAX},
               MS_DTYPE_CAST | MS_DTYPE_MOMENT | MS_DTYPE_STORED | MS_DTYPE_PIECES | MS_DTYPE_GATHERED,
               MS_I8,
               NULL,
               NULL},
    [MS_I4] = {{"i4", "int4", "uint8_t", "U8", 0, 4, 0, -8, 7}, MS_DTYPE_PIECES, MS_I4, NULL, NULL},
    [MS_NF4] = {{"nf4", "normal_float4", "uint8_t", "U8", 0, 4, 1, -1, 1}, MS_DTYPE_STORED, MS_NF4, NULL, NULL},
};

_Static_assert(sizeof rows / sizeof *rows == MS_DTYPES, "every dtype of moonshard.h has a row");

const ms_dtype_row *ms_dtype_row_of(int dtype) { return dtype >= 0 && dtype < MS_DTYPES ? &rows[dtype] : NULL; }

const char *ms_dtype_name(int dtype) {
  const ms_dtype_row *row = ms_dtype_row_of(dtype);
  return row ? row->info.name : "unknown type";
}

int ms_dtype_size(int dtype) {
  const ms_dtype_row *row = ms_dtype_row_of(dtype);
  return row ? row->info.size : 0;
}

int ms_dtype_bytes(int dtype, int64_t n, int64_t *bytes) {
  MS_GIVEN(bytes);
  const ms_dtype_row *row = ms_dtype_row_of(dtype);
  if (!row) return MS_FAIL(MS_EDTYPE, "unknown element type %d; they are 0 to %d", dtype, MS_DTYPES - 1);
  const int per_byte = row->info.size ? 1 : 8 / row->info.bits;
  if (n < 0 || n > INT64_MAX / 8) return MS_FAIL(MS_ESHAPE, "%lld elements of %s", (long long)n, row->info.name);
  if (n % per_byte)
    return MS_FAIL(MS_ESHAPE, "%lld elements of %s do not fill whole bytes: their number must be a multiple of %d",
                   (long long)n, row->info.name, per_byte);
  *bytes = row->info.size ? n * row->info.size : n / per_byte;
  return MS_OK;
}

/* ---- where it may be used --------------------------------------------------------------------------------------- */

int ms_dtype_may(int dtype, int uses) {
  const ms_dtype_row *row = ms_dtype_row_of(dtype);
  return row && (row->uses & uses) == uses;
}

int ms_dtype_check(int dtype, int uses, const char *what) {
  char allowed[MS_DTYPE_LIST];
  if (ms_dtype_may(dtype, uses)) return MS_OK;
  return MS_FAIL(MS_EDTYPE, "%s is %s; it must be %s", what, ms_dtype_name(dtype), ms_dtype_list(uses, allowed));
}

const char *ms_dtype_list(int uses, char text[MS_DTYPE_LIST]) {
  int used = 0, left = 0;
  for (int i = 0; i < MS_DTYPES; i++) left += ms_dtype_may(i, uses);
  text[0] = 0;
  for (int i = 0; i < MS_DTYPES; i++) {
    if (!ms_dtype_may(i, uses)) continue;
    const char *after = --left > 1 ? ", " : left ? " or " : "";
    used += snprintf(text + used, (size_t)(MS_DTYPE_LIST - used), "%s%s", rows[i].info.name, after);
  }
  return text;
}
