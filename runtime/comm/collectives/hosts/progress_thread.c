/* progress_thread.c - the thread behind collectives between hosts: its loop, its endpoint, and the peers that failed.
 */
#include "comm/collectives/hosts/progress_thread.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/collectives/hosts/hosts.h"
#include "comm/collectives/hosts/listener.h"
#include "comm/group/world_state.h"

enum { TRANSPORT_NAME = 16 }; /* bytes of a transport's name */
/* Seconds between rounds: while a task polls, and with nothing to do. The second shows peers that this process runs. */
static const double POLL_SECONDS = 1e-3, IDLE_SECONDS = 0.1;

struct ms_progress_thread {
  const ms_transport_api *api;
  ms_endpoint *endpoint;
  double idle; /* seconds */
  int size, started;
  char **failure; /* [size]; NULL: the rank has not failed. Only the thread uses it. */
  char *address;  /* [size][MS_TRANSPORT_ADDRESS] */
  pthread_t thread;
  ms_listener *listener;
  pthread_mutex_t lock; /* of the fields below */
  ms_progress_task *first;
  ms_transport_counts counts;
  int ends;
  /* The call of ms_progress_connect that the thread has to do; peers NULL: none. */
  struct {
    const int *peers;
    const char *addresses;
    int n, rc;
    ms_error_record error;
    pthread_cond_t done;
  } connect;
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

/* Only the thread uses the endpoint, so it connects for others. */
static void connect_for_others(ms_progress_thread *thread) {
  pthread_mutex_lock(&thread->lock);
  if (thread->connect.peers) {
    thread->connect.rc =
        thread->api->connect(thread->endpoint, thread->connect.n, thread->connect.peers, thread->connect.addresses);
    ms_error_save(&thread->connect.error);
    thread->connect.peers = NULL;
    pthread_cond_broadcast(&thread->connect.done);
  }
  pthread_mutex_unlock(&thread->lock);
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
  ms_allocations_set_counted(0);
  while (!has_to_end(thread)) {
    enum ms_turn most = MS_TURN_SLEEPS;
    connect_for_others(thread);
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

/* Opening may wait for all ranks to open the same one (mpi), so they agree first. */
static int agree_on_transport(const ms_transport_api *api, ms_world *world) {
  int rc;
  char mine[TRANSPORT_NAME] = "", *names = ms_calloc(world->size, TRANSPORT_NAME);
  if (!names) return MS_ENOMEM;
  snprintf(mine, sizeof mine, "%s", api->name);
  MS_GOTO(ms_group_all_gather_bytes(&world->everyone, mine, TRANSPORT_NAME, names));
  for (int rank = 0; rank < world->size; rank++) {
    const char *name = names + (size_t)rank * TRANSPORT_NAME;
    if (strncmp(mine, name, TRANSPORT_NAME))
      MS_GOTO(MS_FAIL(MS_EMISMATCH,
                      "rank %d moves bytes between hosts by the transport %s, rank %d by %.*s: set MOONSHARD_TRANSPORT "
                      "(or --transport) to the same on all hosts",
                      world->rank, mine, rank, TRANSPORT_NAME, name));
  }
fail:
  free(names);
  return rc;
}

static int gather_addresses(ms_progress_thread *thread, ms_world *world) {
  char mine[MS_TRANSPORT_ADDRESS];
  MS_TRY(thread->api->address(thread->endpoint, mine));
  return ms_group_all_gather_bytes(&world->everyone, mine, MS_TRANSPORT_ADDRESS, thread->address);
}

int ms_progress_open(ms_world *world, const ms_transport_api *api, const char *token, const char *job) {
  int rc;
  if (world->progress) return MS_FAIL(MS_EINVAL, "this rank's transport is already open");
  MS_TRY(agree_on_transport(api, world));
  ms_progress_thread *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  made->api = api;
  made->size = world->size;
  made->idle = fmin(IDLE_SECONDS, world->timeout / 8);
  pthread_mutex_init(&made->lock, NULL);
  pthread_cond_init(&made->connect.done, NULL);
  made->failure = ms_calloc(world->size, sizeof *made->failure);
  made->address = ms_calloc(world->size, MS_TRANSPORT_ADDRESS);
  if (!made->failure || !made->address) MS_GOTO(MS_ENOMEM);
  ms_transport_config config = {.rank = world->rank,
                                .size = world->size,
                                .token = token,
                                .job = job,
                                .timeout = world->timeout,
                                .failed = note_failure,
                                .context = made};
  MS_GOTO(api->open(&config, &made->endpoint));
  MS_GOTO(gather_addresses(made, world));
  MS_GOTO(start(made));
  MS_GOTO(ms_listener_start(world, api, made->endpoint, &made->listener));
  world->progress = made;
  world->give_up_transfers = give_up;
  return MS_OK;
fail:
  ms_progress_close(made);
  return rc;
}

void ms_progress_close(ms_progress_thread *thread) {
  if (!thread) return;
  ms_listener_stop(thread->listener);
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
  free(thread->address);
  pthread_cond_destroy(&thread->connect.done);
  pthread_mutex_destroy(&thread->lock);
  free(thread);
}

/* ---- connecting ---- */

/* The thread that calls the engine is the only one that opens communicators. */
int ms_progress_connect(ms_progress_thread *thread, int n, const int *ranks) {
  char *addresses = ms_calloc(n, MS_TRANSPORT_ADDRESS);
  if (!addresses) return MS_ENOMEM;
  for (int i = 0; i < n; i++)
    memcpy(addresses + (size_t)i * MS_TRANSPORT_ADDRESS, thread->address + (size_t)ranks[i] * MS_TRANSPORT_ADDRESS,
           MS_TRANSPORT_ADDRESS);
  pthread_mutex_lock(&thread->lock);
  thread->connect.n = n;
  thread->connect.addresses = addresses;
  thread->connect.peers = ranks;
  ms_progress_wake(thread);
  while (thread->connect.peers) pthread_cond_wait(&thread->connect.done, &thread->lock);
  int rc = thread->connect.rc;
  if (rc) ms_error_restore(&thread->connect.error);
  pthread_mutex_unlock(&thread->lock);
  free(addresses);
  return rc;
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

_Static_assert(sizeof(ms_hosts_signature) == MS_ENTRY_BYTES, "the first message of an operation");
