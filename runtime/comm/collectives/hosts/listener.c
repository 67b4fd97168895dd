/* listener.c - the thread that hears the steps of the other ranks of this host for the progress thread.
 *
 * The progress thread sleeps on descriptors of its transport. Ranks of a host tell each other their steps by words in
 * the control segment, with a futex to sleep on, and no system call waits for both. The program's thread hears them,
 * but it can be in a long kernel. So this thread sleeps on the futex and passes each ring on.
 */
#include "comm/collectives/hosts/listener.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "base/error.h"
#include "comm/group/world_state.h"

struct ms_listener {
  ms_control *control;
  int rank;
  const ms_transport_api *api;
  ms_endpoint *endpoint;
  pthread_t self;
  _Atomic int ends;
};

/* Seconds; a ring ends a sleep. */
static const double SLEEP_SECONDS = 60;

static void *listen(void *argument) {
  ms_listener *listener = argument;
  ms_allocations_set_counted(0);
  while (!atomic_load(&listener->ends)) {
    /* Read before the progress thread looks: a ring after that ends the sleep at once. */
    const uint32_t seen = atomic_load(&listener->control->rank[listener->rank].step_bell);
    listener->api->wake(listener->endpoint);
    ms_control_sleep_step(listener->control, listener->rank, seen, SLEEP_SECONDS);
  }
  return NULL;
}

int ms_listener_start(ms_world *world, const ms_transport_api *api, ms_endpoint *endpoint, ms_listener **listener) {
  sigset_t all, before;
  ms_listener *made = ms_calloc(1, sizeof *made);
  if (!made) return MS_ENOMEM;
  made->control = ms_world_control(world);
  made->rank = ms_world_rank(world);
  made->api = api;
  made->endpoint = endpoint;
  /* Signals are for the program's own threads. */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = pthread_create(&made->self, NULL, listen, made);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (!failed) {
    *listener = made;
    return MS_OK;
  }
  free(made);
  return MS_FAIL(MS_ENOMEM, "cannot start the thread that hears the other ranks of this host (error %d)", failed);
}

void ms_listener_stop(ms_listener *listener) {
  if (!listener) return;
  atomic_store(&listener->ends, 1);
  ms_control_ring_step(listener->control, listener->rank);
  pthread_join(listener->self, NULL);
  free(listener);
}
