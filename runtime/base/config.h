/* config.h - structs of callers that were compiled with an older or a newer header.
 *
 * Every config struct begins with `int struct_size`, its size in the header that the caller was compiled with. The
 * engine never reads a caller's struct directly, but copies it over its own defaults. Structs that the engine fills
 * have no such field: the call says their size. New fields are only added at the end.
 */
#ifndef MS_BASE_CONFIG_H
#define MS_BASE_CONFIG_H

#include "base/error.h"

/* Writes `known` bytes of defaults to a caller's struct of `size` bytes: as many as fit, and zeros after them. */
int ms_config_give(void *to, int size, const void *defaults, int known, const char *type);
/* Copies the caller's struct over `own`, which contains `known` bytes of defaults. */
int ms_config_take(void *own, int known, const void *given, const char *type);

/* Fills a caller's struct of `size` bytes from `info`, of `known` bytes: as many as fit, and zeros after them. */
int ms_info_give(void *to, int size, const void *info, int known, const char *function);

/* Ends a public function that describes something: `info` is a struct, and `to` the caller's, of `size` bytes. */
#define MS_GIVE_INFO(to, size, info) return ms_info_give(to, size, &(info), (int)sizeof(info), __func__)

/* Declares `own` and copies the caller's struct to it; returns MS_EINVAL or MS_EUNSUPPORTED if that fails. */
#define MS_TAKE_CONFIG(type, own, given)                   \
  type own;                                                \
  MS_TRY(ms_config_default(#type, &own, (int)sizeof own)); \
  MS_TRY(ms_config_take(&own, sizeof own, given, #type))

#endif
