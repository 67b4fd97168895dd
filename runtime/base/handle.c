/* handle.c - the lives of handles: made, used, released, ended, and their memory used again. */
#include "base/handle.h"

#include <pthread.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
  #include <sanitizer/asan_interface.h>
#else
  #define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
  #define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

static const char *const names[MS_HANDLE_KINDS] = {[MS_HANDLE_WORLD] = "world",
                                                   [MS_HANDLE_MESH] = "mesh",
                                                   [MS_HANDLE_RULES] = "rules",
                                                   [MS_HANDLE_MODEL] = "model",
                                                   [MS_HANDLE_GRAPH] = "graph",
                                                   [MS_HANDLE_PLAN] = "plan",
                                                   [MS_HANDLE_STATE] = "state",
                                                   [MS_HANDLE_EXEC] = "exec",
                                                   [MS_HANDLE_PROFILE] = "profile",
                                                   [MS_HANDLE_SAFETENSORS] = "safetensors file",
                                                   [MS_HANDLE_SAFETENSORS_WRITER] = "safetensors writer",
                                                   [MS_HANDLE_TOKENS] = "tokens",
                                                   [MS_HANDLE_TOKEN_READER] = "token reader",
                                                   [MS_HANDLE_TOKENIZER] = "tokenizer",
                                                   [MS_HANDLE_SAVE] = "save"};

/* The ended objects of each kind, oldest first; all of a kind are equally large. */
static struct {
  pthread_mutex_t lock;
  struct {
    ms_handle *oldest, *newest;
    int n;
    int64_t bytes;
  } of[MS_HANDLE_KINDS];
} ended = {.lock = PTHREAD_MUTEX_INITIALIZER};

static ms_handle *take_ended(enum ms_handle_kind kind, int64_t bytes) {
  ms_handle *taken = NULL;
  pthread_mutex_lock(&ended.lock);
  ended.of[kind].bytes = bytes;
  if (ended.of[kind].n > MS_HANDLES_KEPT) {
    taken = ended.of[kind].oldest;
    ended.of[kind].oldest = taken->next;
    ended.of[kind].n--;
  }
  pthread_mutex_unlock(&ended.lock);
  return taken;
}

/* The address sanitizer goes on to report whatever inside of the engine still uses an ended object. */
static void end(ms_handle *handle, enum ms_handle_kind kind) {
  handle->on = handle->keeps = handle->next = NULL;
  pthread_mutex_lock(&ended.lock);
  ASAN_POISON_MEMORY_REGION(handle + 1, (size_t)ended.of[kind].bytes - sizeof *handle);
  if (ended.of[kind].n++) ended.of[kind].newest->next = handle;
  else ended.of[kind].oldest = handle;
  ended.of[kind].newest = handle;
  pthread_mutex_unlock(&ended.lock);
}

void *ms_handle_new(enum ms_handle_kind kind, int64_t bytes, void (*destroy)(void *object)) {
  ms_handle *made = take_ended(kind, bytes);
  if (made) {
    ASAN_UNPOISON_MEMORY_REGION(made + 1, (size_t)bytes - sizeof *made);
    memset(made, 0, (size_t)bytes);
  } else if (!(made = ms_calloc(1, bytes))) return NULL;
  made->destroy = destroy;
  atomic_store(&made->uses, 1);
  atomic_store(&made->word, MS_HANDLE_LIVE + kind);
  return made;
}

void ms_handle_keep(const void *object) {
  if (object) atomic_fetch_add(&((ms_handle *)object)->uses, 1);
}

void ms_handle_drop(const void *object) {
  ms_handle *handle = (ms_handle *)object;
  if (!handle || atomic_fetch_sub(&handle->uses, 1) > 1) return;
  ms_handle *on = handle->on, *kept = handle->keeps;
  handle->destroy(handle);
  end(handle, (enum ms_handle_kind)atomic_load(&handle->word));
  ms_handle_drop(kept);
  ms_handle_drop(on);
}

void ms_handle_set_on(void *object, const void *on) {
  ((ms_handle *)object)->on = (ms_handle *)on;
  ms_handle_keep(on);
}

void ms_handle_set_keeps(void *object, const void *kept) {
  ((ms_handle *)object)->keeps = (ms_handle *)kept;
  ms_handle_keep(kept);
}

void ms_handle_release(void *object, enum ms_handle_kind kind) {
  ms_handle *handle = object;
  uint32_t live = MS_HANDLE_LIVE + kind;
  if (handle && atomic_compare_exchange_strong(&handle->word, &live, kind)) ms_handle_drop(handle);
}

void ms_free(void *object) {
  ms_handle *handle = object;
  if (!handle) return;
  const uint32_t word = atomic_load(&handle->word);
  const uint32_t kind = word < MS_HANDLE_LIVE ? word : word - MS_HANDLE_LIVE;
  if (kind < MS_HANDLE_WORLD || kind >= MS_HANDLE_KINDS) {
    MS_FAIL(MS_EINVAL, "ms_free: object is no handle of this library");
    return;
  }
  if (word < MS_HANDLE_LIVE) return;
  if (handle->leave) handle->leave(handle);
  ms_handle_release(handle, (enum ms_handle_kind)kind);
}

static const char *article(const char *name) { return strchr("aeiou", *name) ? "an" : "a"; }

int ms_handle_refuse(const void *object, enum ms_handle_kind kind, const char *function, const char *argument) {
  const ms_handle *handle = object;
  if (!handle)
    return MS_FAIL(MS_EINVAL, "%s: %s is NULL, not %s %s", function, argument, article(names[kind]), names[kind]);
  uint32_t word = atomic_load(&handle->word);
  uint32_t is = word >= MS_HANDLE_LIVE ? word - MS_HANDLE_LIVE : word;
  if (is < MS_HANDLE_WORLD || is >= MS_HANDLE_KINDS)
    return MS_FAIL(MS_EINVAL, "%s: %s is no handle of this library", function, argument);
  if (is != kind)
    return MS_FAIL(MS_EINVAL, "%s: %s is %s %s, not %s %s", function, argument, article(names[is]), names[is],
                   article(names[kind]), names[kind]);
  if (word < MS_HANDLE_LIVE) return MS_FAIL(MS_EINVAL, "%s: this %s was released", function, names[kind]);
  const ms_handle *on = handle->on;
  while (on && atomic_load(&on->word) >= MS_HANDLE_LIVE) on = on->on;
  return MS_FAIL(MS_EINVAL, "%s: the %s of this %s was released", function, on ? names[atomic_load(&on->word)] : "?",
                 names[kind]);
}
