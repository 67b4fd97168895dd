/* token_dtype.c - tokens as integers of 8 to 64 bits, copied to int32, and whether they are tokens. */
#include "io/tokens/token_dtype.h"

#include <stddef.h>
#include <string.h>

/* A value that is no token sets a bit of `wrong`, so that the loop has no branch; where one did, the first is found. */
#define COPY(name, type)                                                      \
  static int64_t copy_##name(const void *from, int64_t count, int32_t *out) { \
    const uint8_t *bytes = from;                                              \
    uint64_t wrong = 0;                                                       \
    type value;                                                               \
    for (int64_t i = 0; i < count; i++) {                                     \
      memcpy(&value, bytes + i * (int64_t)sizeof value, sizeof value);        \
      wrong |= (uint64_t)(int64_t)value & ~(uint64_t)INT32_MAX;               \
      out[i] = (int32_t)value;                                                \
    }                                                                         \
    for (int64_t i = 0; wrong && i < count; i++) {                            \
      memcpy(&value, bytes + i * (int64_t)sizeof value, sizeof value);        \
      if ((uint64_t)(int64_t)value & ~(uint64_t)INT32_MAX) return i;          \
    }                                                                         \
    return count;                                                             \
  }

COPY(u8, uint8_t)
COPY(i8, int8_t)
COPY(u16, uint16_t)
COPY(i16, int16_t)
COPY(u32, uint32_t)
COPY(i32, int32_t)
COPY(i64, int64_t)

static const ms_token_dtype dtypes[] = {
    {"u8", 1, 1, copy_u8},   {"i8", 2, 1, copy_i8},   {"i16", 3, 2, copy_i16},
    {"i32", 4, 4, copy_i32}, {"i64", 5, 8, copy_i64}, {"f64", 6, 8, NULL},
    {"f32", 7, 4, NULL},     {"u16", 8, 2, copy_u16}, {"u32", 0, 4, copy_u32},
};

enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

const ms_token_dtype *ms_token_dtype_of_code(int code) {
  for (int i = 0; i < DTYPES; i++)
    if (code > 0 && dtypes[i].code == code) return &dtypes[i];
  return NULL;
}

const ms_token_dtype *ms_token_dtype_named(const char *name) {
  for (int i = 0; i < DTYPES; i++)
    if (!strcmp(dtypes[i].name, name)) return &dtypes[i];
  return NULL;
}
