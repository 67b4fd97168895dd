/* handle.h - what every object that the public header hands out begins with: who still uses it, and whether its owner
 * has released it.
 *
 * Handles may be released in any order, so an object that works with others keeps them: what it was given stays in
 * memory until the last that keeps it is gone. The memory of an object that has ended stays its kind's: a call with a
 * handle that was released reads a header that says so, however long ago that was, and never what malloc has made of
 * the place since. MS_HANDLES_KEPT ended objects of a kind wait before the oldest is used for a new one, so a stale
 * handle is refused for at least so many releases. Counts are atomic; otherwise one thread uses a handle at a time.
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

/* The first member of every such object. */
typedef struct ms_handle {
  _Atomic uint32_t word; /* MS_HANDLE_LIVE + kind until its owner releases it, then the kind alone */
  _Atomic int uses;      /* its owner until then, and what keeps it */
  void (*destroy)(void *object);
  struct ms_handle *on;    /* what it works on: calls are refused once that is released (a state's world); kept */
  struct ms_handle *keeps; /* what it works with, released or not (a plan's model) */
  struct ms_handle *next;  /* of the ended ones of its kind */
} ms_handle;

/* A zero-filled object with one use, its owner's; NULL: MS_ENOMEM. destroy gives back what it holds, but not the
 * object. */
void *ms_handle_new(enum ms_handle_kind kind, int64_t bytes, void (*destroy)(void *object));
/* What an object works on, and what it works with; once each, right after ms_handle_new. Objects in const pointers are
 * counted all the same. */
void ms_handle_set_on(void *object, const void *on);
void ms_handle_set_keeps(void *object, const void *kept);
/* One use more, one less. The last one destroys the object. NULL: nothing. */
void ms_handle_keep(const void *object);
void ms_handle_drop(const void *object);
/* The owner's: NULL, and an object that its owner has released before, are left alone. */
void ms_handle_release(void *object, enum ms_handle_kind kind);
/* Its owner has not released it: what a release that does more than that asks first. */
int ms_handle_is_live(const void *object, enum ms_handle_kind kind);
/* Records what is wrong with the argument of a function, MS_EINVAL. */
int ms_handle_refuse(const void *object, enum ms_handle_kind kind, const char *function, const char *argument);

/* Whether a call may use an object; a few loads. */
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

/* The first lines of a public function: with a handle that is NULL or released it returns MS_EINVAL, or `answer`. */
#define MS_HANDLE(argument, kind) MS_TRY(ms_handle_check(argument, MS_HANDLE_##kind, __func__, #argument))
#define MS_HANDLE_OR(answer, argument, kind)                                             \
  do {                                                                                   \
    if (ms_handle_check(argument, MS_HANDLE_##kind, __func__, #argument)) return answer; \
  } while (0)

#endif
