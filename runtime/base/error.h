/* error.h - what the engine reports: the thread-local error record, the macros that pass a status up, and notes.
 *
 * The latest error wins: after a public function has failed, the record holds what its status stands for, whatever
 * failed before. So code that goes on after a failure saves the record and restores it: a probe that may fail restores
 * what the caller had, a clean-up that may fail restores the cause. Nothing in the engine clears the caller's record.
 * Messages say what, where in the user's terms, and what would be right. C code never exits and never prints an error:
 * it returns the status.
 */
#ifndef MS_BASE_ERROR_H
#define MS_BASE_ERROR_H

#include "moonshard.h"

enum { MS_ERROR_MESSAGE_BYTES = 2048, MS_ERROR_WHERE_BYTES = 64 };

/* Code, message and place of one error: they are written, saved and restored together. */
typedef struct ms_error_record {
  int code; /* MS_OK: there is none, and the texts are undefined */
  char message[MS_ERROR_MESSAGE_BYTES];
  char where[MS_ERROR_WHERE_BYTES];
} ms_error_record;

/* Copies the calling thread's record, and makes a copy the record of the calling thread (which may be another one). */
void ms_error_save(ms_error_record *record);
void ms_error_restore(const ms_error_record *record);

/* Records an error in place of an earlier one; returns code. The arguments may quote ms_error_message(). */
int ms_error_raise(int code, const char *file, int line, const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Puts "context: " before the pending message (module path, file name). Returns the pending code. */
int ms_error_prefix(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define MS_FAIL(code, ...) ms_error_raise((code), __FILE__, __LINE__, __VA_ARGS__)
/* Returns the status of expr from the enclosing function unless it is MS_OK. */
#define MS_TRY(expr)           \
  do {                         \
    int ms_rc_ = (expr);       \
    if (ms_rc_) return ms_rc_; \
  } while (0)
/* Sets rc and jumps to fail: for functions that hold something. */
#define MS_GOTO(expr)  \
  do {                 \
    rc = (expr);       \
    if (rc) goto fail; \
  } while (0)

/* The first lines of a public function, behind the handles: a pointer that must lead somewhere, a count. */
#define MS_GIVEN(argument)                                                             \
  do {                                                                                 \
    if (!(argument)) return MS_FAIL(MS_EINVAL, "%s: %s is NULL", __func__, #argument); \
  } while (0)
#define MS_GIVEN_OR(answer, argument)                            \
  do {                                                           \
    if (!(argument)) {                                           \
      MS_FAIL(MS_EINVAL, "%s: %s is NULL", __func__, #argument); \
      return answer;                                             \
    }                                                            \
  } while (0)
#define MS_NOT_NEGATIVE(count)                                                                                 \
  do {                                                                                                         \
    if ((count) < 0)                                                                                           \
      return MS_FAIL(MS_EINVAL, "%s: %s is %lld; it must be 0 or more", __func__, #count, (long long)(count)); \
  } while (0)

/* Queues a note until ms_note_next (moonshard.h) returns it: something works, but not as well as it could, and how to
 * improve it. Failures are errors, not notes. Each text is queued once per process. */
void ms_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* calloc that records MS_ENOMEM; NULL on failure. n == 0 gives a valid pointer. */
void *ms_calloc(int64_t n, int64_t size);
int ms_grow_more(void **items, int *capacity, int need, int64_t size);
/* Grows an array to hold at least `need` elements, doubling; *items and *capacity are updated. What is new is not
 * zeroed. */
static inline int ms_grow(void **items, int *capacity, int need, int64_t size) {
  return need <= *capacity ? MS_OK : ms_grow_more(items, capacity, need, size);
}
char *ms_strdup(const char *text);
/* How often this process has allocated through the functions above. */
int64_t ms_allocations(void);
/* Stops counting for the calling thread, which works in parallel to steps and not for them. */
void ms_allocations_uncounted(void);

#endif
