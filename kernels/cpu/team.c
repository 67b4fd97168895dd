/* team.c - the worker threads of a process. To dispatch a turn, the caller stores one futex word, `turn`, which also
 * contains the number of parts. A worker can only miss turns that have no part for it, because otherwise the caller
 * would still be waiting. */
#include "kernels/cpu/team.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"

enum { MAX_PARTS = 1 << 10, TURN = MAX_PARTS, CACHE_LINE = 64 };

/* Longer than the time between two kernels of a step, and shorter than the cost of a sleep and a wake-up. */
static const double SPIN_SECONDS = 50e-6;

static struct team {
  _Atomic uint32_t turn __attribute__((aligned(CACHE_LINE))); /* number of the turn times TURN, plus parts - 1 */
  _Atomic uint32_t left __attribute__((aligned(CACHE_LINE))); /* parts of this turn that workers have to finish */
  _Atomic int sleepers,
      caller_sleeps __attribute__((aligned(CACHE_LINE))); /* threads in a futex call or about to enter it */
  _Atomic int busy;                                       /* 1 while a caller uses the team */
  ms_team_fn *run; /* this and the following fields: written by the caller that uses the team */
  void *context;
  int workers;
} team;

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

/* ---- waiting ---- */

/* Returns the word's value once it is no longer `seen`. */
static uint32_t wait_change(_Atomic uint32_t *word, uint32_t seen, _Atomic int *sleepers) {
  uint32_t value = atomic_load_explicit(word, memory_order_acquire);
  const double limit = value == seen && !ms_crowded() ? ms_clock() + SPIN_SECONDS : 0;
  while (value == seen && limit > 0 && ms_clock() < limit)
    for (int i = 0; i < 32 && value == seen; i++) {
      ms_relax();
      value = atomic_load_explicit(word, memory_order_acquire);
    }
  while (value == seen) {
    atomic_fetch_add(sleepers, 1);
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(sleepers, 1);
    value = atomic_load_explicit(word, memory_order_acquire);
  }
  return value;
}

/* Call after a store to the word. Stores and counters are sequentially consistent: a thread that is not counted yet
 * will see the new word and not sleep. */
static void wake(_Atomic uint32_t *word, _Atomic int *sleepers) {
  if (atomic_load(sleepers)) syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* ---- threads ---- */

/* A worker's part, from 1 on, and the last turn before it started. */
typedef struct place {
  int part;
  uint32_t turn;
} place;

static void *work(void *data) {
  const place mine = *(place *)data;
  uint32_t turn = mine.turn;
  free(data);
  for (;;) {
    turn = wait_change(&team.turn, turn, &team.sleepers);
    if (mine.part > (int)(turn % TURN)) continue;
    team.run(team.context, mine.part);
    if (atomic_fetch_sub(&team.left, 1) == 1) wake(&team.left, &team.caller_sleeps);
  }
  return NULL;
}

/* A forked child has none of its parent's threads. */
static void forget_workers(void) {
  atomic_store(&team.busy, 0);
  atomic_store(&team.sleepers, 0);
  team.workers = 0;
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, forget_workers); }

/* Starts a detached worker that blocks all signals (handlers run on the application's threads) and sleeps until the
 * process exits. Returns 0 on failure. */
static int start_worker(int part) {
  sigset_t all, before;
  pthread_attr_t attributes;
  pthread_t thread;
  place *mine = malloc(sizeof *mine);
  if (!mine) return 0;
  if (pthread_attr_init(&attributes)) {
    free(mine);
    return 0;
  }
  *mine = (place){part, atomic_load_explicit(&team.turn, memory_order_relaxed)};
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED) ||
               pthread_create(&thread, &attributes, work, mine);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  if (failed) free(mine);
  return !failed;
}

/* ---- a turn ---- */

/* Returns 1 if the caller now owns the team and it has parts - 1 workers, otherwise 0. */
static int take_team(int parts) {
  int free_team = 0;
  if (parts > MAX_PARTS || !atomic_compare_exchange_strong(&team.busy, &free_team, 1)) return 0;
  pthread_once(&fork_once, watch_forks);
  while (team.workers < parts - 1 && start_worker(team.workers + 1)) team.workers++;
  if (team.workers >= parts - 1) return 1;
  atomic_store(&team.busy, 0);
  return 0;
}

void ms_team_run(int parts, ms_team_fn *run, void *context) {
  if (parts <= 1 || !take_team(parts)) {
    for (int part = 0; part < parts; part++) run(context, part);
    return;
  }
  team.run = run;
  team.context = context;
  atomic_store_explicit(&team.left, (uint32_t)parts - 1, memory_order_relaxed);
  uint32_t turn = atomic_load_explicit(&team.turn, memory_order_relaxed);
  atomic_store(&team.turn, turn / TURN * TURN + TURN + (uint32_t)parts - 1);
  wake(&team.turn, &team.sleepers);
  run(context, 0);
  uint32_t left = atomic_load_explicit(&team.left, memory_order_acquire);
  while (left) left = wait_change(&team.left, left, &team.caller_sleeps);
  atomic_store_explicit(&team.busy, 0, memory_order_release);
}
