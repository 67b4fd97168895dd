/* shared.c - a list of shared objects with reference counts, under one lock. It is searched when plans are compiled or
 * freed, and has a few dozen entries. */
#include "kernels/cpu/shared.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

typedef struct shared {
  struct shared *next;
  ms_shared_make make;
  ms_shared_free release;
  void *object;
  int users;
  size_t key_bytes;
  char key[];
} shared;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static shared *first;
static int64_t made;

static shared *find(ms_shared_make make, const void *key, size_t key_bytes) {
  for (shared *s = first; s; s = s->next)
    if (s->make == make && s->key_bytes == key_bytes && !memcmp(s->key, key, key_bytes)) return s;
  return NULL;
}

static int add(ms_shared_make make, ms_shared_free release, const void *key, size_t key_bytes, shared **out) {
  shared *s = ms_calloc(1, (int64_t)(sizeof *s + key_bytes));
  if (!s) return MS_ENOMEM;
  int rc = make(key, &s->object);
  if (rc) {
    free(s);
    return rc;
  }
  s->make = make;
  s->release = release;
  s->key_bytes = key_bytes;
  memcpy(s->key, key, key_bytes);
  s->next = first;
  first = s;
  made++;
  *out = s;
  return MS_OK;
}

int ms_shared_take(ms_shared_make make, ms_shared_free release, const void *key, size_t key_bytes, void **object) {
  pthread_mutex_lock(&lock);
  shared *s = find(make, key, key_bytes);
  int rc = s ? MS_OK : add(make, release, key, key_bytes, &s);
  if (!rc) {
    s->users++;
    *object = s->object;
  }
  pthread_mutex_unlock(&lock);
  return rc;
}

void ms_shared_drop(void *object) {
  if (!object) return;
  pthread_mutex_lock(&lock);
  shared **at = &first;
  while ((*at)->object != object) at = &(*at)->next;
  shared *s = *at;
  if (--s->users == 0) {
    *at = s->next;
    s->release(s->object);
    free(s);
  }
  pthread_mutex_unlock(&lock);
}

int64_t ms_shared_made(void) {
  pthread_mutex_lock(&lock);
  int64_t count = made;
  pthread_mutex_unlock(&lock);
  return count;
}
