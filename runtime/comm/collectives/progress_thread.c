/* progress_thread.c - the thread behind collectives between hosts: its loop, its endpoint, and the peers that failed.
 */
#include "comm/collectives/progress_thread.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/group/world_state.h"

/* Seconds between rounds: while a task polls, and with nothing to do. The second shows peers that this process runs. */
static const double POLL_SECONDS = 1e-3, IDLE_SECONDS = 0.1;

struct ms_progress_thread {
  const ms_transport_api *api;
  ms_endpoint *endpoint;
  double idle; /* seconds */
  int size, started;
  char **failure; /* [size]; NULL: the rank has not failed. Only the thread uses it. */
  pthread_t thread;
  pthread_mutex_t lock; /* of the fields below */
  ms_progress_task *first;
  ms_transport_counts counts;
  int ends;
  /* The endpoint itself failed: all ranks of other hosts are out of reach. */
  char *broken;
};

/* ---- the thread ---- */

static void note_failure(void *context, int peer, const char *why) {
  ms_progress_thread *thread = context;
  if (!thread->failure[peer]) thread->failure[peer] = ms_strdup(why);
}

const char *ms_progress_failure(const ms_progress_thread *thread, int rank) {
  return thread->broken ? thread->broken : thread->failure[rank];
}

static int has_to_end(ms_progress_thread *thread) {
  ms_transport_counts counts = {0};
  thread->api->counts(thread->endpoint, &counts);
  pthread_mutex_lock(&thread->lock);
  int ends = thread->ends;
  thread->counts = counts;
  pthread_mutex_unlock(&thread->lock);
  return ends;
}

static void *run(void *argument) {
  ms_progress_thread *thread = argument;
  ms_allocations_uncounted();
  while (!has_to_end(thread)) {
    enum ms_turn most = MS_TURN_SLEEPS;
    for (ms_progress_task *task = ms_progress_first(thread); task; task = task->next) {
      enum ms_turn needs = task->turn(task);
      if (needs > most) most = needs;
    }
    double seconds = most == MS_TURN_BUSY ? 0 : most == MS_TURN_POLLS ? POLL_SECONDS : thread->idle;
    if (thread->api->progress(thread->endpoint, seconds) && !thread->broken)
      thread->broken = ms_strdup(ms_error_message());
  }
  return NULL;
}

/* Signals are for the program's own threads. */
static int start(ms_progress_thread *thread) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = pthread_create(&thread->thread, NULL, run, thread);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (failed) return MS_FAIL(MS_ENOMEM, "cannot start the thread that moves bytes between hosts (error %d)", failed);
  thread->started = 1;
  return MS_OK;
}

/* For ms_world_recover: afterwards the thread touches no memory that ranks share. */
static void give_up(ms_progress_thread *thread) {
  for (ms_progress_task *task = ms_progress_first(thread); task; task = task->next) task->give_up(task);
}

/* ---- opening ---- */

/* Connects to the ranks of all other hosts. */
static int connect_ranks(ms_progress_thread *thread, ms_world *world) {
  int rc, n = 0, here = ms_world_node_of(world, world->rank);
  char mine[MS_TRANSPORT_ADDRESS], *all = ms_calloc(world->size, MS_TRANSPORT_ADDRESS);
  int *peer = ms_calloc(world->size, sizeof *peer);
  if (!all || !peer) MS_GOTO(MS_ENOMEM);
  MS_GOTO(thread->api->address(thread->endpoint, mine));
  MS_GOTO(ms_group_all_gather_bytes(&world->everyone, mine, MS_TRANSPORT_ADDRESS, all));
  for (int rank = 0; rank < world->size; rank++) {
    if (ms_world_node_of(world, rank) == here) continue;
    memmove(all + (size_t)n * MS_TRANSPORT_ADDRESS, all + (size_t)rank * MS_TRANSPORT_ADDRESS, MS_TRANSPORT_ADDRESS);
    peer[n++] = rank;
  }
  MS_GOTO(thread->api->connect(thread->endpoint, n, peer, all));
fail:
  free(peer);
  free(all);
  return rc;
}

int ms_progress_open(ms_world *world, const ms_transport_api *api, const char *token, const char *job) {
  int rc;
  if (world->progress) return MS_FAIL(MS_EINVAL, "this rank's transport is already open");
  ms_progress_thread *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  made->api = api;
  made->size = world->size;
  made->idle = fmin(IDLE_SECONDS, world->timeout / 8);
  pthread_mutex_init(&made->lock, NULL);
  made->failure = ms_calloc(world->size, sizeof *made->failure);
  if (!made->failure) MS_GOTO(MS_ENOMEM);
  ms_transport_config config = {.rank = world->rank,
                                .size = world->size,
                                .token = token,
                                .job = job,
                                .timeout = world->timeout,
                                .failed = note_failure,
                                .context = made};
  MS_GOTO(api->open(&config, &made->endpoint));
  MS_GOTO(connect_ranks(made, world));
  MS_GOTO(start(made));
  world->progress = made;
  world->give_up_transfers = give_up;
  return MS_OK;
fail:
  ms_progress_close(made);
  return rc;
}

void ms_progress_close(ms_progress_thread *thread) {
  if (!thread) return;
  if (thread->started) {
    pthread_mutex_lock(&thread->lock);
    thread->ends = 1;
    pthread_mutex_unlock(&thread->lock);
    ms_progress_wake(thread);
    pthread_join(thread->thread, NULL);
  }
  thread->api->close(thread->endpoint);
  for (ms_progress_task *task = thread->first, *next; task; task = next) {
    next = task->next;
    task->free(task);
  }
  for (int rank = 0; thread->failure && rank < thread->size; rank++) free(thread->failure[rank]);
  free(thread->failure);
  free(thread->broken);
  pthread_mutex_destroy(&thread->lock);
  free(thread);
}

/* ---- tasks ---- */

const ms_transport_api *ms_progress_api(const ms_progress_thread *thread) { return thread->api; }

ms_endpoint *ms_progress_endpoint(const ms_progress_thread *thread) { return thread->endpoint; }

void ms_progress_add(ms_progress_thread *thread, ms_progress_task *task) {
  pthread_mutex_lock(&thread->lock);
  task->next = thread->first;
  thread->first = task;
  pthread_mutex_unlock(&thread->lock);
  ms_progress_wake(thread);
}

ms_progress_task *ms_progress_first(ms_progress_thread *thread) {
  pthread_mutex_lock(&thread->lock);
  ms_progress_task *first = thread->first;
  pthread_mutex_unlock(&thread->lock);
  return first;
}

void ms_progress_wake(ms_progress_thread *thread) { thread->api->wake(thread->endpoint); }

ms_transport_counts ms_progress_counts(ms_progress_thread *thread) {
  pthread_mutex_lock(&thread->lock);
  ms_transport_counts counts = thread->counts;
  pthread_mutex_unlock(&thread->lock);
  return counts;
}
