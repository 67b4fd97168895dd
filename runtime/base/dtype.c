/* dtype.c - the table of element types. */
#include "base/error.h"

#include <string.h>

static const struct {
  const char *name;
  int size;
} types[MS_DTYPES] = {[MS_F32] = {"f32", 4}, [MS_BF16] = {"bf16", 2}, [MS_I32] = {"i32", 4}, [MS_U8] = {"u8", 1}};

static int is_type(int dtype) { return dtype >= 0 && dtype < MS_DTYPES; }

const char *ms_dtype_name(int dtype) { return is_type(dtype) ? types[dtype].name : "unknown type"; }

int ms_dtype_size(int dtype) { return is_type(dtype) ? types[dtype].size : 0; }

int ms_dtype_parse(const char *name, int *dtype) {
  for (int i = 0; name && i < MS_DTYPES; i++) {
    if (strcmp(name, types[i].name)) continue;
    *dtype = i;
    return MS_OK;
  }
  return MS_FAIL(MS_EDTYPE, "unknown element type \"%s\": it must be f32, bf16, i32 or u8", name ? name : "");
}
