/* token_reader.c - batches of tokens that a thread reads ahead, while the previous steps compute.
 *
 * A ring of slots, one batch each: batches are requested, filled by the thread, and taken in the same order. The
 * thread knows only the ring and the mapped files; the caller decides which samples a batch contains.
 */
#include "base/clock.h"
#include "base/error.h"
#include "base/handle.h"
#include "io/tokens/token_file.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { LOOK_FOR_INTERRUPT_NS = 50000000 };

typedef struct slot {
  int64_t *first;  /* [rows], in the reader's firsts */
  int32_t *tokens; /* [rows][columns + 1], in the reader's tokens */
  int rc;
  ms_error_record failure; /* valid if rc is not MS_OK */
} slot;

struct ms_token_reader {
  ms_handle handle;
  ms_tokens *source;
  int rows, columns, slots;
  slot *slot;      /* [slots]; batch number i is in slot i % slots */
  int64_t *firsts; /* [slots][rows] */
  int32_t *tokens; /* [slots][rows][columns + 1] */
  pthread_mutex_t lock;
  pthread_cond_t was_asked, was_filled;
  int64_t asked, filled, taken; /* batches so far, ever */
  int stop, started;
  pthread_t thread;
};

static void fill(const ms_token_reader *reader, slot *to) {
  const int64_t stride = (int64_t)reader->columns + 1;
  to->rc = MS_OK;
  for (int row = 0; row < reader->rows && !to->rc; row++)
    to->rc = ms_tokens_copy(reader->source, to->first[row], stride, to->tokens + row * stride);
  if (to->rc) ms_error_save(&to->failure);
}

static void *run(void *context) {
  ms_token_reader *reader = context;
  pthread_mutex_lock(&reader->lock);
  while (!reader->stop) {
    if (reader->filled == reader->asked) {
      pthread_cond_wait(&reader->was_asked, &reader->lock);
      continue;
    }
    slot *next = &reader->slot[reader->filled % reader->slots];
    pthread_mutex_unlock(&reader->lock);
    fill(reader, next);
    pthread_mutex_lock(&reader->lock);
    reader->filled++;
    pthread_cond_signal(&reader->was_filled);
  }
  pthread_mutex_unlock(&reader->lock);
  return NULL;
}

/* The program's main thread handles signals. */
static int start(ms_token_reader *reader) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  int failed = pthread_create(&reader->thread, NULL, run, reader);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (failed) return MS_FAIL(MS_EIO, "a thread that reads tokens ahead: %s", strerror(failed));
  reader->started = 1;
  return MS_OK;
}

/* One block for the tokens of all slots: sizes that no memory has fail at once, not after filling what there is. */
static int make_slots(ms_token_reader *reader) {
  const int64_t rows = (int64_t)reader->slots * reader->rows, columns = (int64_t)reader->columns + 1;
  int64_t tokens;
  if (__builtin_mul_overflow(rows, columns, &tokens))
    return MS_FAIL(MS_ENOMEM, "out of memory: %lld rows of %lld tokens", (long long)rows, (long long)columns);
  if (!(reader->tokens = ms_calloc(tokens, sizeof *reader->tokens))) return MS_ENOMEM;
  if (!(reader->firsts = ms_calloc(rows, sizeof *reader->firsts))) return MS_ENOMEM;
  if (!(reader->slot = ms_calloc(reader->slots, sizeof *reader->slot))) return MS_ENOMEM;
  for (int i = 0; i < reader->slots; i++) {
    reader->slot[i].first = reader->firsts + (int64_t)i * reader->rows;
    reader->slot[i].tokens = reader->tokens + (int64_t)i * reader->rows * columns;
  }
  return MS_OK;
}

static void destroy_reader(void *object) {
  ms_token_reader *reader = object;
  if (reader->started) {
    pthread_mutex_lock(&reader->lock);
    reader->stop = 1;
    pthread_cond_signal(&reader->was_asked);
    pthread_mutex_unlock(&reader->lock);
    pthread_join(reader->thread, NULL);
  }
  pthread_cond_destroy(&reader->was_filled);
  pthread_cond_destroy(&reader->was_asked);
  pthread_mutex_destroy(&reader->lock);
  free(reader->firsts);
  free(reader->tokens);
  free(reader->slot);
}

int ms_token_reader_new(ms_tokens *tokens, int rows, int columns, int slots, ms_token_reader **reader) {
  MS_HANDLE(tokens, TOKENS);
  MS_GIVEN(reader);
  pthread_condattr_t monotonic;
  *reader = NULL;
  if (rows < 1 || columns < 1 || slots < 1)
    return MS_FAIL(MS_EINVAL, "ms_token_reader_new: %d rows of %d tokens in %d slots: each must be at least 1", rows,
                   columns, slots);
  ms_token_reader *made = ms_handle_new(MS_HANDLE_TOKEN_READER, sizeof *made, destroy_reader);
  if (!made) return MS_ENOMEM;
  made->source = tokens;
  ms_handle_set_keeps(made, tokens);
  made->rows = rows;
  made->columns = columns;
  made->slots = slots;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_mutex_init(&made->lock, NULL);
  pthread_cond_init(&made->was_asked, NULL);
  pthread_cond_init(&made->was_filled, &monotonic);
  pthread_condattr_destroy(&monotonic);
  int rc = make_slots(made);
  if (!rc) rc = start(made);
  if (rc) {
    ms_free(made);
    return rc;
  }
  *reader = made;
  return MS_OK;
}

int ms_token_reader_request(ms_token_reader *reader, const int64_t *first) {
  MS_HANDLE(reader, TOKEN_READER);
  MS_GIVEN(first);
  int rc = MS_OK;
  pthread_mutex_lock(&reader->lock);
  if (reader->asked - reader->taken == reader->slots) {
    rc = MS_FAIL(MS_EINVAL, "ms_token_reader_request: %d batches are requested and not taken: take one first",
                 reader->slots);
  } else {
    memcpy(reader->slot[reader->asked % reader->slots].first, first, (size_t)reader->rows * sizeof *first);
    reader->asked++;
    pthread_cond_signal(&reader->was_asked);
  }
  pthread_mutex_unlock(&reader->lock);
  return rc;
}

/* A deadline that is not a number would never pass. */
static int check_seconds(double seconds) {
  return seconds >= 0 ? MS_OK : MS_FAIL(MS_EINVAL, "a reader of tokens waits 0 seconds or more, not %g", seconds);
}

/* Waits until `count` batches are filled; the caller holds the lock. */
static int wait_filled(ms_token_reader *reader, int64_t count, double seconds) {
  const double deadline = ms_clock() + seconds;
  while (reader->filled < count) {
    struct timespec until;
    if (ms_interrupted()) return MS_FAIL(MS_EINTERRUPT, "interrupted");
    if (ms_clock() >= deadline)
      return MS_FAIL(MS_ETIMEOUT, "waited %g s for tokens to be read: the disk, or whatever holds the files, is stuck",
                     seconds);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LOOK_FOR_INTERRUPT_NS;
    if (until.tv_nsec >= 1000000000) {
      until.tv_sec++;
      until.tv_nsec -= 1000000000;
    }
    pthread_cond_timedwait(&reader->was_filled, &reader->lock, &until);
  }
  return MS_OK;
}

static void copy_out(const ms_token_reader *reader, const slot *from, int32_t *tokens, int32_t *targets) {
  const size_t columns = (size_t)reader->columns;
  for (size_t row = 0; row < (size_t)reader->rows; row++) {
    const int32_t *source = from->tokens + row * (columns + 1);
    memcpy(tokens + row * columns, source, columns * sizeof *tokens);
    memcpy(targets + row * columns, source + 1, columns * sizeof *targets);
  }
}

int ms_token_reader_take(ms_token_reader *reader, double seconds, int32_t *tokens, int32_t *targets) {
  MS_HANDLE(reader, TOKEN_READER);
  MS_GIVEN(tokens);
  MS_GIVEN(targets);
  MS_TRY(check_seconds(seconds));
  int rc;
  pthread_mutex_lock(&reader->lock);
  if (reader->taken == reader->asked) {
    rc = MS_FAIL(MS_EINVAL, "ms_token_reader_take: no batch was asked for");
  } else {
    rc = wait_filled(reader, reader->taken + 1, seconds);
  }
  pthread_mutex_unlock(&reader->lock);
  MS_TRY(rc);
  /* The reader thread has finished this slot, and will not reuse it before `taken` advances. */
  const slot *from = &reader->slot[reader->taken % reader->slots];
  if (from->rc) {
    rc = from->rc;
    ms_error_restore(&from->failure);
  } else {
    copy_out(reader, from, tokens, targets);
  }
  pthread_mutex_lock(&reader->lock);
  reader->taken++;
  pthread_mutex_unlock(&reader->lock);
  return rc;
}

int ms_token_reader_discard(ms_token_reader *reader, double seconds) {
  MS_HANDLE(reader, TOKEN_READER);
  MS_TRY(check_seconds(seconds));
  pthread_mutex_lock(&reader->lock);
  int rc = wait_filled(reader, reader->asked, seconds);
  if (!rc) reader->taken = reader->asked;
  pthread_mutex_unlock(&reader->lock);
  return rc;
}
