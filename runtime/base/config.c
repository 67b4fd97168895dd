/* config.c - see config.h. */
#include "base/config.h"

#include <string.h>

enum { MAX_BYTES = 65536 }; /* no struct will be larger: a size that is was never set */

int ms_config_give(void *to, int size, const void *defaults, int known, const char *type) {
  if (size < (int)sizeof size || size > MAX_BYTES)
    return MS_FAIL(MS_EINVAL, "ms_config_default: size is %d: give the sizeof of the %s", size, type);
  memset(to, 0, (size_t)size);
  memcpy(to, defaults, (size_t)(size < known ? size : known));
  memcpy(to, &size, sizeof size);
  return MS_OK;
}

int ms_config_take(void *own, int known, const void *given, const char *type) {
  int size;
  if (!given) return MS_FAIL(MS_EINVAL, "the %s is NULL: fill one with ms_config_default first", type);
  memcpy(&size, given, sizeof size);
  if (size < (int)sizeof size || size > MAX_BYTES)
    return MS_FAIL(MS_EINVAL, "the struct_size of a %s is %d: call ms_config_default first", type, size);
  for (int i = known; i < size; i++)
    if (((const char *)given)[i])
      return MS_FAIL(MS_EUNSUPPORTED,
                     "a %s of %d bytes sets a field that this library does not know (its own has %d bytes): install a "
                     "newer libmoonshard",
                     type, size, known);
  memcpy(own, given, (size_t)(size < known ? size : known));
  memcpy(own, &known, sizeof known);
  return MS_OK;
}

int ms_info_check(int size, const char *function) {
  if (size >= 1 && size <= MAX_BYTES) return MS_OK;
  return MS_FAIL(MS_EINVAL, "%s: size is %d: give the sizeof of the struct that it takes or fills", function, size);
}

static void give(void *to, int size, const void *info, int known) {
  memset(to, 0, (size_t)size);
  memcpy(to, info, (size_t)(size < known ? size : known));
}

int ms_info_give(void *to, int size, const void *info, int known, const char *function) {
  MS_TRY(ms_info_check(size, function));
  give(to, size, info, known);
  return MS_OK;
}

int ms_info_take(void *own, int known, const void *given, int size, const char *function) {
  MS_TRY(ms_info_check(size, function));
  for (int i = known; i < size; i++)
    if (((const char *)given)[i])
      return MS_FAIL(MS_EUNSUPPORTED,
                     "%s: a struct of %d bytes sets a field that this library does not know (its own has %d bytes): "
                     "install a newer libmoonshard",
                     function, size, known);
  memcpy(own, given, (size_t)(size < known ? size : known));
  return MS_OK;
}

int ms_rows_open(ms_row_list *rows, void *at, int size, int capacity, const char *function) {
  *rows = (ms_row_list){.at = at, .size = size, .capacity = capacity};
  if (capacity < 0) return MS_FAIL(MS_EINVAL, "%s: capacity is %d; it must be 0 or more", function, capacity);
  if (!capacity) return MS_OK;
  if (!at) return MS_FAIL(MS_EINVAL, "%s: rows is NULL", function);
  return ms_info_check(size, function);
}

void ms_rows_add(ms_row_list *rows, const void *row, int known) {
  if (rows->n < rows->capacity) give(rows->at + (int64_t)rows->n * rows->size, rows->size, row, known);
  rows->n++;
}
