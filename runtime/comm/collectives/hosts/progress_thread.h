/* progress_thread.h - the thread that moves a rank's bytes between hosts, also while the program computes. It owns the
 * rank's endpoint, and gives each of its tasks a turn whenever something may have happened. A task is the wire work of
 * one group (hosts.c). Internal to collectives, except for opening and closing.
 */
#ifndef MS_COMM_COLLECTIVES_PROGRESS_THREAD_H
#define MS_COMM_COLLECTIVES_PROGRESS_THREAD_H

#include "comm/group/world.h"
#include "comm/transport/transport.h"

typedef struct ms_progress_thread ms_progress_thread;

/* What a task needs after its turn. */
enum ms_turn {
  MS_TURN_SLEEPS = 0, /* nothing, until a transfer ends or ms_progress_wake is called */
  MS_TURN_POLLS = 1,  /* a turn within a millisecond: nothing wakes it for what it waits for */
  MS_TURN_BUSY = 2    /* another turn at once */
};

typedef struct ms_progress_task {
  enum ms_turn (*turn)(struct ms_progress_task *task); /* in the progress thread */
  void (*give_up)(struct ms_progress_task *task);      /* what is in flight; waits until no buffer is in use */
  void (*free)(struct ms_progress_task *task);         /* when the thread has ended */
  struct ms_progress_task *next;
} ms_progress_task;

/* Opens the endpoint of this rank and starts the thread; the world keeps and closes it. Collective over the world,
 * whose ranks gather their addresses; no connection is made yet. Fails with MS_EMISMATCH: the ranks use different
 * transports, which they know before any of them opens its own. */
int ms_progress_open(ms_world *world, const ms_transport_api *api, const char *token, const char *job);
/* Accepts NULL. Frees the tasks: nothing is in flight. */
void ms_progress_close(ms_progress_thread *thread);

/* The endpoint and its table; only the progress thread uses them. */
const ms_transport_api *ms_progress_api(const ms_progress_thread *thread);
ms_endpoint *ms_progress_endpoint(const ms_progress_thread *thread);
/* Starts to connect to n world ranks of other hosts, if that has not been done before; waits only for the thread. For
 * the thread that calls the engine. Fails as ms_transport_api.connect does. */
int ms_progress_connect(ms_progress_thread *thread, int n, const int *ranks);
/* Adds a task, which lives as long as the thread. From any thread, as are the next three. */
void ms_progress_add(ms_progress_thread *thread, ms_progress_task *task);
ms_progress_task *ms_progress_first(ms_progress_thread *thread);
/* Soon gives every task a turn. */
void ms_progress_wake(ms_progress_thread *thread);
/* Bytes moved as of the thread's last round. */
ms_transport_counts ms_progress_counts(ms_progress_thread *thread);
/* Why the connection to a world rank failed; NULL: it has not. In the progress thread. */
const char *ms_progress_failure(const ms_progress_thread *thread, int rank);

#endif
