/* shared.h - what prepared calls of all plans of a process have in common: primitives and tables that only their shapes
** decide, made once, read by many, freed with the last that took them.
*/
#ifndef MS_KERNELS_CPU_SHARED_H
#define MS_KERNELS_CPU_SHARED_H

#include <stddef.h>
#include <stdint.h>

/* Makes the object of a key: a status, and the object through `object`. */
typedef int (*ms_shared_make)(const void *key, void **object);
typedef void (*ms_shared_free)(void *object);

/* The object of `make` for this key, made at the first call. Keys are compared byte by byte: zero what lies between
** their fields. Objects may be used by several threads at once, so nobody writes to them. */
int ms_shared_take(ms_shared_make make, ms_shared_free release, const void *key, size_t key_bytes, void **object);
/* Gives an object back; NULL is allowed. */
void ms_shared_drop(void *object);
/* How many objects this process has made: what is taken again is not made again. */
int64_t ms_shared_made(void);

#endif
