/* config.h - structs of callers that were compiled with an older or a newer header.
 *
 * Every config struct begins with `int struct_size`, its size in the header that the caller was compiled with. The
 * engine never reads a caller's struct directly, but copies it over its own defaults. Of other structs the call says
 * the size, which is also the distance from row to row where they are lists. New fields are only added at the end.
 */
#ifndef MS_BASE_CONFIG_H
#define MS_BASE_CONFIG_H

#include "base/error.h"

/* Writes `known` bytes of defaults to a caller's struct of `size` bytes: as many as fit, and zeros after them. */
int ms_config_give(void *to, int size, const void *defaults, int known, const char *type);
/* Copies the caller's struct over `own`, which contains `known` bytes of defaults. */
int ms_config_take(void *own, int known, const void *given, const char *type);

/* Checks the size of a caller's struct. */
int ms_info_check(int size, const char *function);
/* Fills a caller's struct of `size` bytes from `info`, of `known` bytes: as many as fit, and zeros after them. */
int ms_info_give(void *to, int size, const void *info, int known, const char *function);

/* Ends a public function that describes something: `info` is a struct, and `to` the caller's, of `size` bytes. */
#define MS_GIVE_INFO(to, size, info) return ms_info_give(to, size, &(info), (int)sizeof(info), __func__)

/* Copies a caller's struct of `size` bytes over `own`, which contains `known` bytes of defaults. MS_EUNSUPPORTED if it
 * sets fields that are not known here. */
int ms_info_take(void *own, int known, const void *given, int size, const char *function);

/* Declares `own`, of zeros, and copies the caller's struct of `size` bytes to it; returns MS_EINVAL or MS_EUNSUPPORTED
 * if that fails. */
#define MS_TAKE_INFO(type, own, given, size) \
  type own = {0};                            \
  MS_GIVEN(given);                           \
  MS_TRY(ms_info_take(&own, (int)sizeof own, given, size, __func__))

/* A caller's list that the engine fills: rows of `size` bytes each, of which there is room for `capacity`. */
typedef struct ms_row_list {
  char *at;
  int size, capacity;
  int n; /* how many were added, also those for which there was no room */
} ms_row_list;
/* at can be NULL if capacity is 0. */
int ms_rows_open(ms_row_list *rows, void *at, int size, int capacity, const char *function);
/* Adds a row of `known` bytes: as many of them as the caller's rows have, and zeros after them. */
void ms_rows_add(ms_row_list *rows, const void *row, int known);

/* Declares `own` and copies the caller's struct to it; returns MS_EINVAL or MS_EUNSUPPORTED if that fails. */
#define MS_TAKE_CONFIG(type, own, given)                   \
  type own;                                                \
  MS_TRY(ms_config_default(#type, &own, (int)sizeof own)); \
  MS_TRY(ms_config_take(&own, sizeof own, given, #type))

#endif
