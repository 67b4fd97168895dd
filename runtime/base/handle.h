/* handle.h - the first member of every object that the public header returns: a count of its users, and whether its
 * owner has released it.
 *
 * Handles can be released in any order, so an object keeps a reference to each object that it needs. The memory of an
 * object that has ended is never freed, but reused for objects of the same kind. So a call with a released handle reads
 * a valid ms_handle that says so, however long ago it was released. At least MS_HANDLES_KEPT ended objects of a kind
 * are kept before the oldest is reused, so a stale handle is refused for at least that many releases. Counts are
 * atomic; otherwise only one thread uses a handle at a time.
 */
#ifndef MS_BASE_HANDLE_H
#define MS_BASE_HANDLE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum ms_handle_kind {
  MS_HANDLE_WORLD = 1,
  MS_HANDLE_MESH,
  MS_HANDLE_RULES,
  MS_HANDLE_MODEL,
  MS_HANDLE_GRAPH,
  MS_HANDLE_PLAN,
  MS_HANDLE_STATE,
  MS_HANDLE_EXEC,
  MS_HANDLE_PROFILE,
  MS_HANDLE_SAFETENSORS,
  MS_HANDLE_SAFETENSORS_WRITER,
  MS_HANDLE_TOKENS,
  MS_HANDLE_TOKEN_READER,
  MS_HANDLE_TOKENIZER,
  MS_HANDLE_SAVE,
  MS_HANDLE_KINDS
};

enum { MS_HANDLES_KEPT = 512, MS_HANDLE_LIVE = 0x6d730000 };

typedef struct ms_handle {
  _Atomic uint32_t word; /* MS_HANDLE_LIVE + kind; after its owner has released it, the kind alone */
  _Atomic int uses;      /* references: the owner's, until it releases the object, and those of other objects */
  void (*destroy)(void *object);
  void (*leave)(void *object); /* NULL, or what its release does at once, while others may keep references */
  struct ms_handle *on;    /* a reference to an object whose release makes calls with this one fail (a state's world) */
  struct ms_handle *keeps; /* a reference to an object that can be used after its release, too (a plan's model) */
  struct ms_handle *next;  /* in the list of ended objects of its kind */
} ms_handle;

/* Returns a zero-filled object with one reference, the owner's; NULL: MS_ENOMEM. destroy releases what the object
 * holds, but not the object. */
void *ms_handle_new(enum ms_handle_kind kind, int64_t bytes, void (*destroy)(void *object));
/* Set `on` and `keeps`, at most once each, right after ms_handle_new. Both add a reference, also to const objects. */
void ms_handle_set_on(void *object, const void *on);
void ms_handle_set_keeps(void *object, const void *kept);
/* Add and drop a reference; dropping the last one destroys the object. NULL is ignored. */
void ms_handle_keep(const void *object);
void ms_handle_drop(const void *object);
/* Drops the owner's reference. NULL, and an object that was released before, are ignored. */
void ms_handle_release(void *object, enum ms_handle_kind kind);
/* Raises MS_EINVAL, with what is wrong with a handle: NULL, released, or another kind. */
int ms_handle_refuse(const void *object, enum ms_handle_kind kind, const char *function, const char *argument);

/* Checks that a call can use an object; costs a few loads. */
static inline int ms_handle_check(const void *object, enum ms_handle_kind kind, const char *function,
                                  const char *argument) {
  const ms_handle *handle = object;
  if (!handle || atomic_load_explicit(&handle->word, memory_order_relaxed) != MS_HANDLE_LIVE + kind)
    return ms_handle_refuse(object, kind, function, argument);
  for (const ms_handle *on = handle->on; on; on = on->on)
    if (atomic_load_explicit(&on->word, memory_order_relaxed) < MS_HANDLE_LIVE)
      return ms_handle_refuse(object, kind, function, argument);
  return MS_OK;
}

/* Begin a public function: return MS_EINVAL, or `answer`, if a handle is not valid. */
#define MS_HANDLE(argument, kind) MS_TRY(ms_handle_check(argument, MS_HANDLE_##kind, __func__, #argument))
#define MS_HANDLE_OR(answer, argument, kind)                                             \
  do {                                                                                   \
    if (ms_handle_check(argument, MS_HANDLE_##kind, __func__, #argument)) return answer; \
  } while (0)

#endif
