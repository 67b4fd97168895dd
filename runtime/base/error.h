/* error.h - what the engine reports: the thread-local error record, the macros that pass a status up, and notes.
 *
 * The latest error wins: after a public function has failed, the record describes that failure. So code that continues
 * after a failure saves the record before and restores it after: a probe that may fail restores the caller's record, a
 * clean-up that may fail restores the cause. The engine never clears the caller's record. Messages say what is wrong,
 * where in the user's terms, and what would be right. C code never exits and never prints errors; it returns a status.
 */
#ifndef MS_BASE_ERROR_H
#define MS_BASE_ERROR_H

#include "moonshard.h"

enum { MS_ERROR_MESSAGE_BYTES = 2048, MS_ERROR_WHERE_BYTES = 64 };

/* One error: code, message and place, which are written, saved and restored together. */
typedef struct ms_error_record {
  int code; /* MS_OK: no error; the texts are undefined */
  char message[MS_ERROR_MESSAGE_BYTES];
  char where[MS_ERROR_WHERE_BYTES];
} ms_error_record;

/* Copy the calling thread's record, and replace it by a copy, which can be from another thread. */
void ms_error_save(ms_error_record *record);
void ms_error_restore(const ms_error_record *record);

/* Replaces the record; returns code. The arguments can include ms_error_message(). */
int ms_error_raise(int code, const char *file, int line, const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Puts "context: " before the record's message (a module path, a file name); returns the record's code. */
int ms_error_prefix(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define MS_FAIL(code, ...) ms_error_raise((code), __FILE__, __LINE__, __VA_ARGS__)
/* Returns the status of expr from the enclosing function if it is not MS_OK. */
#define MS_TRY(expr)           \
  do {                         \
    int ms_rc_ = (expr);       \
    if (ms_rc_) return ms_rc_; \
  } while (0)
/* Sets rc to the status of expr and jumps to `fail` if it is not MS_OK: for functions that must clean up. */
#define MS_GOTO(expr)  \
  do {                 \
    rc = (expr);       \
    if (rc) goto fail; \
  } while (0)

/* Begin a public function, after its handles are checked: a pointer must not be NULL, a count not negative. */
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

/* calloc that raises MS_ENOMEM and returns NULL on failure. n == 0 returns a valid pointer. */
void *ms_calloc(int64_t n, int64_t size);
int ms_grow_more(void **items, int *capacity, int need, int64_t size);
/* Grows an array to at least `need` elements, by doubling; updates *items and *capacity. New ones are not zeroed. */
static inline int ms_grow(void **items, int *capacity, int need, int64_t size) {
  return need <= *capacity ? MS_OK : ms_grow_more(items, capacity, need, size);
}
char *ms_strdup(const char *text);
/* How many times this process has allocated with the functions above. */
int64_t ms_allocations(void);
/* Sets whether allocations of the calling thread are counted, and returns what was set. They are from the start; work
 * that is no part of a step, such as a search for a deadlock while a step waits, is not. */
int ms_allocations_set_counted(int counted);

#endif
