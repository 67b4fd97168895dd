/* config.h - config structs of callers that were compiled with an older or a newer header.
 *
 * Every config struct begins with `int struct_size`, its size in the header that the caller was compiled with. The
 * engine never reads a caller's struct directly, but copies it over its own defaults. New fields are only added at the
 * end.
 */
#ifndef MS_BASE_CONFIG_H
#define MS_BASE_CONFIG_H

#include "base/error.h"

/* Writes `known` bytes of defaults to a caller's struct of `size` bytes: as many as fit, and zeros after them. */
void ms_config_give(void *to, int size, const void *defaults, int known, const char *type);
/* Copies the caller's struct over `own`, which contains `known` bytes of defaults. */
int ms_config_take(void *own, int known, const void *given, const char *type);

/* Declares `own` and copies the caller's struct to it; returns MS_EINVAL or MS_EUNSUPPORTED if that fails. */
#define MS_TAKE_CONFIG(type, own, given) \
  type own;                              \
  type##_default(&own, sizeof own);      \
  MS_TRY(ms_config_take(&own, sizeof own, given, #type))

#endif
