/* config.h - config structs of callers that were compiled with an older or a newer header.
 *
 * Every config struct begins with `int struct_size`, what the caller's compiler made of sizeof. The engine never reads
 * a caller's struct directly: it copies what is there over the defaults of its own. Fields are only ever added at the
 * end.
 */
#ifndef MS_BASE_CONFIG_H
#define MS_BASE_CONFIG_H

#include "base/error.h"

/* The defaults, which are `known` bytes, to a caller's struct of `size` bytes: as much as fits, and zeros behind it. */
void ms_config_give(void *to, int size, const void *defaults, int known, const char *type);
/* What the caller gave over `own`, which holds the defaults and is `known` bytes. */
int ms_config_take(void *own, int known, const void *given, const char *type);

/* Declares `own` and fills it; returns MS_EINVAL or MS_EUNSUPPORTED for a struct that cannot be read. */
#define MS_TAKE_CONFIG(type, own, given) \
  type own;                              \
  type##_default(&own, sizeof own);      \
  MS_TRY(ms_config_take(&own, sizeof own, given, #type))

#endif
