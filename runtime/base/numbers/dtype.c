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

#define widen_none NULL
#define narrow_none NULL

static const ms_dtype_row rows[] = {
#define MS_DTYPE(NAME, name, long_name, c_type, stored, bits, is_float, lowest, largest, casts, uses, tolerance, norm) \
  [MS_##                                                                                                               \
      NAME] = {{name, long_name, c_type, stored, (bits) / 8, bits, is_float, lowest, largest, uses, tolerance, norm},  \
               widen_##casts,                                                                                          \
               narrow_##casts},
#include "base/numbers/formats.def"
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
  return row && (row->info.uses & uses) == uses;
}

int ms_dtype_check(int dtype, int uses, const char *what) {
  char allowed[MS_DTYPE_LIST];
  if (ms_dtype_may(dtype, uses)) return MS_OK;
  return MS_FAIL(MS_EDTYPE, "%s is %s; it must be %s", what, ms_dtype_name(dtype), ms_dtype_list(uses, allowed));
}

const char *ms_dtype_names(unsigned set, char text[MS_DTYPE_LIST]) {
  int used = 0, left = 0;
  for (int i = 0; i < MS_DTYPES; i++) left += set >> i & 1;
  text[0] = 0;
  for (int i = 0; i < MS_DTYPES; i++) {
    if (!(set >> i & 1)) continue;
    const char *after = --left > 1 ? ", " : left ? " or " : "";
    used += snprintf(text + used, (size_t)(MS_DTYPE_LIST - used), "%s%s", rows[i].info.name, after);
  }
  return text;
}

const char *ms_dtype_list(int uses, char text[MS_DTYPE_LIST]) {
  unsigned set = 0;
  for (int i = 0; i < MS_DTYPES; i++) set |= (unsigned)ms_dtype_may(i, uses) << i;
  return ms_dtype_names(set, text);
}
