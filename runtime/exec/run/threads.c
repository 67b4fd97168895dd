/* threads.c - runs each stream on its own thread, as an accelerator does. Slower than one thread, and meant for checks:
 * only the plan's events order the streams, so a thread sanitizer detects a missing wait.
 *
 * The compute stream runs on the caller's thread, the others on threads that sleep between phases. An event is a futex
 * word: sleeping on it orders threads no further than the event itself. The first error stops all streams.
 */
#include <limits.h>
#include <linux/futex.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "exec/profile/profile.h"

enum { NOT_FAILED = -1 };

typedef struct worker {
  struct ms_exec_threads *pool;
  pthread_t thread;
  int stream, started;
} worker;

struct ms_exec_threads {
  ms_exec *exec;
  worker worker[MS_NAMED_STREAMS]; /* compute's entry is unused: it runs on the caller's thread */
  pthread_mutex_t lock;
  pthread_cond_t start, finish;
  int phase, running, leaving; /* guarded by lock */
  int last;                    /* guarded by lock; the stream that ended last in this phase */
  unsigned run;                /* guarded by lock; counts phases */
  _Atomic int failed;          /* the stream whose error came first, or NOT_FAILED */
  ms_error_record error;       /* that error, carried from its thread to the caller's */
};

/* ---- events ---- */

static void record(ms_exec *exec, int event) {
  atomic_store_explicit(&exec->event[event], exec->epoch, memory_order_release);
  syscall(SYS_futex, &exec->event[event], FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static int has_failed(const ms_exec_threads *pool) {
  return atomic_load_explicit(&pool->failed, memory_order_acquire) != NOT_FAILED;
}

/* Waits for an event, or until another stream has failed, which it checks every 20 ms. */
static void wait_for(const ms_exec_threads *pool, int event) {
  const struct timespec now_and_then = {.tv_nsec = 20 * 1000 * 1000};
  _Atomic uint32_t *word = &pool->exec->event[event];
  for (;;) {
    uint32_t seen = atomic_load_explicit(word, memory_order_acquire);
    if (seen == pool->exec->epoch || has_failed(pool)) return;
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &now_and_then, NULL, 0);
  }
}

/* ---- one stream ---- */

static int run_collective(ms_exec_threads *pool, int phase, int stream, const ms_exec_instr *instr) {
  ms_exec *exec = pool->exec;
  ms_exec_cursor *cursor = &exec->cursor[stream];
  double now = ms_clock();
  for (;;) {
    unsigned seen = ms_world_doorbell(exec->state->world);
    int done = 0;
    MS_TRY(ms_exec_start_ahead(exec, phase, stream));
    if (cursor->in_flight) MS_TRY(ms_exec_test_collective(exec, cursor, instr, &done));
    now = ms_exec_charge(now, &cursor->collective_seconds);
    if (done || has_failed(pool)) return MS_OK;
    if (cursor->in_flight || instr->in_flight) MS_TRY(ms_comm_pause(instr->comm, &cursor->wait, seen));
    else ms_delay_sleep(fmax(0, cursor->ready_at - now));
    now = ms_clock(); /* only compute's waits count as wait_seconds */
  }
}

static int run_stream(ms_exec_threads *pool, int phase, int stream) {
  ms_exec *exec = pool->exec;
  const ms_exec_stream *list = &exec->phase[phase].stream[stream];
  ms_exec_cursor *cursor = &exec->cursor[stream];
  for (; cursor->at < list->n; cursor->at++) {
    const ms_exec_instr *instr = &list->instr[cursor->at];
    double began = ms_clock();
    if (instr->kind == MS_INSTR_KERNEL) {
      MS_TRY(ms_exec_run_kernel(exec, phase, instr, began));
      ms_exec_charge(began, &cursor->kernel_seconds);
    } else if (instr->kind == MS_INSTR_RECORD) {
      record(exec, instr->event);
    } else if (instr->kind == MS_INSTR_WAIT) {
      wait_for(pool, instr->event);
      const int dim = ms_exec_dim(exec, instr->recorder);
      if (stream == MS_STREAM_COMPUTE) ms_exec_charge(began, &cursor->wait_seconds);
      if (stream == MS_STREAM_COMPUTE && dim >= 0) ms_exec_charge(began, &cursor->waited_for[dim]);
    } else MS_TRY(run_collective(pool, phase, stream, instr));
    if (has_failed(pool)) return MS_OK;
    if (exec->profile && instr->kind != MS_INSTR_KERNEL) ms_profile_add(exec, phase, stream, instr);
    cursor->instructions++;
  }
  return MS_OK;
}

/* Runs a stream on the calling thread; keeps the first error of all streams. */
static void run_and_keep_error(ms_exec_threads *pool, int phase, int stream) {
  int none = NOT_FAILED;
  if (!run_stream(pool, phase, stream)) return;
  if (!atomic_compare_exchange_strong(&pool->failed, &none, stream)) return;
  ms_error_save(&pool->error);
}

/* ---- the threads ---- */

static void *work(void *context) {
  worker *self = context;
  ms_exec_threads *pool = self->pool;
  unsigned seen = 0;
  pthread_mutex_lock(&pool->lock);
  for (;;) {
    while (pool->run == seen && !pool->leaving) pthread_cond_wait(&pool->start, &pool->lock);
    if (pool->leaving) break;
    seen = pool->run;
    int phase = pool->phase;
    pthread_mutex_unlock(&pool->lock);
    run_and_keep_error(pool, phase, self->stream);
    pthread_mutex_lock(&pool->lock);
    pool->last = self->stream;
    if (--pool->running == 0) pthread_cond_signal(&pool->finish);
  }
  pthread_mutex_unlock(&pool->lock);
  return NULL;
}

/* Compute has ended, and its thread waits for the other streams: for the last of them, as far as counters go. */
static void join_streams(ms_exec_threads *pool) {
  ms_exec_cursor *compute = &pool->exec->cursor[MS_STREAM_COMPUTE];
  const double began = ms_clock();
  pthread_mutex_lock(&pool->lock);
  const int waits = pool->running > 0;
  while (pool->running) pthread_cond_wait(&pool->finish, &pool->lock);
  const int dim = ms_exec_dim(pool->exec, pool->last);
  pthread_mutex_unlock(&pool->lock);
  if (!waits) return;
  if (dim >= 0) ms_exec_charge(began, &compute->waited_for[dim]);
  ms_exec_charge(began, &compute->wait_seconds);
}

static int run_threads(ms_exec *exec, int phase) {
  ms_exec_threads *pool = exec->threads;
  atomic_store(&pool->failed, NOT_FAILED);
  pthread_mutex_lock(&pool->lock);
  pool->phase = phase;
  pool->running = pool->exec->plan->streams - 1;
  pool->run++;
  pthread_cond_broadcast(&pool->start);
  pthread_mutex_unlock(&pool->lock);
  run_and_keep_error(pool, phase, MS_STREAM_COMPUTE);
  join_streams(pool);
  if (!has_failed(pool)) return MS_OK;
  ms_error_restore(&pool->error);
  return pool->error.code;
}

static int start_threads(ms_exec *exec) {
  ms_exec_threads *pool = exec->threads = ms_calloc(1, sizeof *pool);
  if (!pool) return MS_ENOMEM;
  pool->exec = exec;
  atomic_store(&exec->recorder->streams, 1);
  pthread_mutex_init(&pool->lock, NULL);
  pthread_cond_init(&pool->start, NULL);
  pthread_cond_init(&pool->finish, NULL);
  for (int s = MS_STREAM_COMPUTE + 1; s < exec->plan->streams; s++) {
    worker *w = &pool->worker[s];
    *w = (worker){.pool = pool, .stream = s};
    int error = pthread_create(&w->thread, NULL, work, w);
    if (error) return MS_FAIL(MS_EIO, "cannot start a thread for stream %s: %s", ms_stream_name(s), strerror(error));
    w->started = 1;
  }
  return MS_OK;
}

static void end_threads(ms_exec *exec) {
  ms_exec_threads *pool = exec->threads;
  if (!pool) return;
  pthread_mutex_lock(&pool->lock);
  pool->leaving = 1;
  pthread_cond_broadcast(&pool->start);
  pthread_mutex_unlock(&pool->lock);
  for (int s = 0; s < MS_NAMED_STREAMS; s++)
    if (pool->worker[s].started) pthread_join(pool->worker[s].thread, NULL);
  pthread_cond_destroy(&pool->finish);
  pthread_cond_destroy(&pool->start);
  pthread_mutex_destroy(&pool->lock);
  free(pool);
}

const ms_runner ms_threads_runner = {.open = start_threads, .close = end_threads, .run = run_threads};
