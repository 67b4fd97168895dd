/* shared.h - primitives and tables that depend only on shapes. All plans of a process share them: the first user
 * creates an object, calls only read it, and the last user frees it. */
#ifndef MS_KERNELS_CPU_SHARED_H
#define MS_KERNELS_CPU_SHARED_H

#include <stddef.h>
#include <stdint.h>

/* Creates the object for a key and stores it in *object; returns a status. */
typedef int (*ms_shared_make)(const void *key, void **object);
typedef void (*ms_shared_free)(void *object);

/* Returns the object of `make` for this key, creating it on the first call. Keys are compared byte by byte, so zero
 * the padding between their fields. Several threads can use an object at once; treat it as read-only. */
int ms_shared_take(ms_shared_make make, ms_shared_free release, const void *key, size_t key_bytes, void **object);
/* Releases one reference; safe on NULL. */
void ms_shared_drop(void *object);
/* The number of objects that this process has created; reuse does not count. */
int64_t ms_shared_made(void);

#endif
