/* dtype.c - the table of element types (dtype.h). */
#include "base/dtype.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

#include "base/bf16.h"
#include "base/error.h"

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

/* ---- the table -------------------------------------------------------------------------------------------------- */

#define BF16_MAX 0x1.fep127
enum {
  MODEL_FLOAT = MS_DTYPE_FLOAT | MS_DTYPE_CAST | MS_DTYPE_PARAM | MS_DTYPE_REDUCE | MS_DTYPE_MOMENT,
};

/* name, PyTorch's name, C type, bytes, is_float, lowest, largest; uses; wire; casts */
static const ms_dtype_row rows[] = {
    [MS_F32] = {{"f32", "float32", "float", 4, 1, -FLT_MAX, FLT_MAX},
                MODEL_FLOAT | MS_DTYPE_SUM | MS_DTYPE_LOOPS,
                MS_F32,
                widen_f32,
                narrow_f32},
    [MS_BF16] = {{"bf16", "bfloat16", "uint16_t", 2, 1, -BF16_MAX, BF16_MAX},
                 MODEL_FLOAT | MS_DTYPE_LOOPS,
                 MS_BF16,
                 widen_bf16,
                 narrow_bf16},
    [MS_I32] =
        {{"i32", "int32", "int32_t", 4, 0, INT32_MIN, INT32_MAX}, MS_DTYPE_CAST | MS_DTYPE_LOOPS, MS_I32, NULL, NULL},
    [MS_U8] = {{"u8", "uint8", "uint8_t", 1, 0, 0, UINT8_MAX}, MS_DTYPE_LOOPS, MS_U8, NULL, NULL},
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

int ms_dtype_describe(int dtype, ms_dtype_info *info) {
  MS_GIVEN(info);
  const ms_dtype_row *row = ms_dtype_row_of(dtype);
  if (!row) return MS_FAIL(MS_EDTYPE, "unknown element type %d; they are 0 to %d", dtype, MS_DTYPES - 1);
  *info = row->info;
  return MS_OK;
}

int ms_dtype_parse(const char *name, int *dtype) {
  char known[MS_DTYPE_LIST];
  MS_GIVEN(name);
  MS_GIVEN(dtype);
  for (int i = 0; i < MS_DTYPES; i++) {
    if (strcmp(name, rows[i].info.name)) continue;
    *dtype = i;
    return MS_OK;
  }
  return MS_FAIL(MS_EDTYPE, "unknown element type \"%s\": it must be %s", name, ms_dtype_list(0, known));
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
