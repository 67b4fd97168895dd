/* safetensors_dtype.c - element types of the format, and the size of a shape. */
#include "base/error.h"
#include "io/safetensors/safetensors.h"

#include <string.h>

/* The writer orders tensors from the last row to the first: by descending alignment. */
static const ms_st_dtype rows[] = {
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

const ms_st_dtype *ms_st_dtype_row(int dtype) { return &rows[dtype]; }

int ms_st_dtype_find(const char *name) {
  for (int i = 0; i < ROWS; i++)
    if (!strcmp(rows[i].name, name)) return i;
  return -1;
}

const char *ms_st_dtype_names(void) {
  return "BOOL, U8, I8, I16, U16, F16, BF16, I32, U32, F32, C64, F64, I64, U64, F8_E5M2, F8_E4M3, F8_E8M0, "
         "F8_E4M3FNUZ, F8_E5M2FNUZ, F4, F6_E2M3 or F6_E3M2";
}

/* Products are checked from the first dimension on, as in the reference library: an overflowing shape is rejected
 * even if a later dimension is 0. */
int ms_st_measure(int dtype, int ndim, const int64_t *dims, int64_t *elements, int64_t *bytes) {
  int64_t count = 1, bits;
  for (int d = 0; d < ndim; d++) {
    if (dims[d] < 0)
      return MS_FAIL(MS_EINVAL, "shape: dimension %d is %lld: it must not be negative", d, (long long)dims[d]);
    if (__builtin_mul_overflow(count, dims[d], &count))
      return MS_FAIL(MS_EINVAL, "shape: the product of its %d dimensions exceeds 63 bits", ndim);
  }
  if (__builtin_mul_overflow(count, (int64_t)rows[dtype].bits, &bits))
    return MS_FAIL(MS_EINVAL, "shape: %lld elements of %s exceed 63 bits", (long long)count, rows[dtype].name);
  if (bits % 8)
    return MS_FAIL(MS_EINVAL, "shape: %lld elements of %s (%d bits) do not fill whole bytes", (long long)count,
                   rows[dtype].name, rows[dtype].bits);
  *elements = count;
  *bytes = bits / 8;
  return MS_OK;
}
