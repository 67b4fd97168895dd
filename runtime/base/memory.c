/* memory.c - allocation that records why it failed. For descriptions (names, graphs, plans); tensors live in arenas. */
#include "base/error.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic int64_t allocations;

static _Thread_local int uncounted;

static void count(void) {
  if (!uncounted) atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
}

int ms_allocations_set_counted(int counted) {
  const int before = !uncounted;
  uncounted = !counted;
  return before;
}

int64_t ms_allocations(void) { return atomic_load_explicit(&allocations, memory_order_relaxed); }

void *ms_calloc(int64_t n, int64_t size) {
  void *memory = NULL;
  count();
  if (n >= 0 && size >= 0) memory = calloc(n ? (size_t)n : 1, size ? (size_t)size : 1);
  if (!memory) MS_FAIL(MS_ENOMEM, "out of memory: %lld items of %lld bytes", (long long)n, (long long)size);
  return memory;
}

/* The pointer is read and written by memcpy: callers pass the address of a T *, which is no void * to the compiler. */
int ms_grow_more(void **items, int *capacity, int need, int64_t size) {
  count();
  int64_t wanted = *capacity > 0 ? *capacity : 8;
  while (wanted < need) wanted *= 2;
  if (wanted > INT_MAX) wanted = INT_MAX;
  void *old, *grown = NULL;
  memcpy(&old, items, sizeof old);
  int64_t bytes;
  if (!__builtin_mul_overflow(wanted, size, &bytes) && bytes > 0) grown = realloc(old, (size_t)bytes);
  if (!grown)
    return MS_FAIL(MS_ENOMEM, "out of memory: an array of %lld items of %lld bytes", (long long)wanted,
                   (long long)size);
  memcpy(items, &grown, sizeof grown);
  *capacity = (int)wanted;
  return MS_OK;
}

char *ms_strdup(const char *text) {
  size_t bytes = strlen(text) + 1;
  char *copy = ms_calloc((int64_t)bytes, 1);
  if (copy) memcpy(copy, text, bytes);
  return copy;
}
