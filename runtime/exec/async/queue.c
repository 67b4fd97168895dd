/* queue.c - work in flight on the device: runs of phases, and a ring of collectives.
 *
 * The host waits for the device here, and watches the collectives while it waits.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "exec/async/async.h"

/* In seconds. Without a core to itself the host spins for EAGER, then takes short naps, and long ones after LONG_AFTER;
 * with one it spins for SPINS, longer than most steps take. */
static const double EAGER = 2e-4, SPINS = 1, SHORT_NAP = 2e-5, LONG_NAP = 5e-4, LONG_AFTER = 0.05;
/* Seconds between checks of peers and communicators. */
static const double LOOK = 2e-3;

double ms_async_nap(double waited, int has_core) {
  if (waited <= (has_core ? SPINS : EAGER)) return 0;
  return waited > LONG_AFTER ? LONG_NAP : SHORT_NAP;
}

void ms_async_turn(const ms_state *state, unsigned seen, double began) {
  const double nap = ms_async_nap(ms_clock() - began, ms_world_spins(state->world));
  if (nap > 0) {
    state->async->naps++;
    ms_world_sleep(state->world, seen, nap);
  } else {
    ms_relax();
  }
}

static int query(const ms_state *state, ms_device_event *event, int *done) {
  return state->device->api->query(state->device, event, done);
}

/* *past: the device has reached the collective's beginning (end 0) or end (end 1). */
static int is_past(const ms_state *state, const ms_async_coll *pending, int end, int *past) {
  if (!pending->marks) return query(state, end ? pending->after : pending->before, past);
  *past = __atomic_load_n(&pending->marks[end], __ATOMIC_ACQUIRE) >= pending->run;
  return MS_OK;
}

static void enter(ms_async_coll *pending) {
  pending->entered = 1;
  pending->wait = (ms_wait){0};
  ms_comm_entered(pending->comm, pending->coll);
  if (pending->profiled)
    pending->profiled->sequence =
        atomic_load_explicit(&ms_recorder_last(ms_comm_ring(pending->comm))->sequence, memory_order_relaxed);
}

/* Updates the flight recorder: which collectives each stream has entered and left. */
static int follow(const ms_state *state) {
  ms_async *async = state->async;
  int blocked[MS_NAMED_STREAMS] = {0};
  for (int64_t i = async->done; i < async->issued; i++) {
    ms_async_coll *pending = &async->ring[i % async->ring_size];
    int past = 0;
    if (blocked[pending->stream] || !pending->coll) continue;
    if (!pending->entered) {
      MS_TRY(is_past(state, pending, 0, &past));
      if (past) enter(pending);
    }
    if (pending->entered) MS_TRY(is_past(state, pending, 1, &past));
    if (!pending->entered || !past) {
      blocked[pending->stream] = 1;
      continue;
    }
    ms_comm_left(pending->comm);
    pending->coll = NULL;
  }
  while (async->done < async->issued && !async->ring[async->done % async->ring_size].coll) async->done++;
  return MS_OK;
}

/* Checks the first collective in flight of each stream: peers that do not arrive, errors of the library. */
static int look(const ms_state *state) {
  ms_async *async = state->async;
  int seen[MS_NAMED_STREAMS] = {0}, ready;
  for (int64_t i = async->done; i < async->issued; i++) {
    ms_async_coll *pending = &async->ring[i % async->ring_size];
    if (!pending->coll || seen[pending->stream]++) continue;
    MS_TRY(state->device->api->comm_ready(state->device, pending->by, &ready));
    if (pending->entered) MS_TRY(ms_comm_watch(pending->comm, &pending->wait));
  }
  return ms_world_check(state->world);
}

/* Waits until the device has reached the event or, with NULL, until the ring has room. */
static int wait_for(const ms_state *state, ms_device_event *event) {
  ms_async *async = state->async;
  double began = ms_clock(), looked = began, now = began;
  for (;;) {
    int done = 0;
    unsigned seen = ms_world_doorbell(state->world);
    MS_TRY(follow(state));
    if (event) MS_TRY(query(state, event, &done));
    else done = async->issued - async->done < async->ring_size;
    if (done) return follow(state);
    now = ms_clock();
    if (now > looked + LOOK) {
      MS_TRY(look(state));
      looked = now;
    }
    ms_async_turn(state, seen, began);
  }
}

int ms_async_wait(const ms_state *state, ms_device_event *event) { return wait_for(state, event); }

void ms_async_settle(const ms_state *state) {
  const ms_async *async = state->async;
  double began = ms_clock();
  int done = async->begun == async->ended;
  ms_error_record before;
  ms_error_save(&before);
  while (!done && ms_clock() < began + MS_ASYNC_CLOSE_SECONDS) {
    ms_device_event *last = async->run[(async->begun - 1) % MS_ASYNC_RUNS].end;
    if (query(state, last, &done)) break;
    if (!done) ms_delay_sleep(SHORT_NAP);
  }
  ms_error_restore(&before); /* the call that asks for results reports the device's errors */
}

int ms_async_drain(const ms_state *state) {
  ms_async *async = state->async;
  if (!async || async->ended == async->begun) return MS_OK;
  MS_TRY(wait_for(state, async->run[(async->begun - 1) % MS_ASYNC_RUNS].end));
  async->ended = async->begun;
  return MS_OK;
}

int ms_async_take_coll(ms_state *state, ms_async_coll **pending) {
  ms_async *async = state->async;
  if (async->issued - async->done == async->ring_size) MS_TRY(wait_for(state, NULL));
  *pending = &async->ring[async->issued++ % async->ring_size];
  return MS_OK;
}

int ms_async_take_run(ms_state *state, ms_async_run **run) {
  ms_async *async = state->async;
  if (async->begun - async->ended == MS_ASYNC_RUNS) {
    MS_TRY(wait_for(state, async->run[async->ended % MS_ASYNC_RUNS].end));
    async->ended++;
  }
  *run = &async->run[async->begun++ % MS_ASYNC_RUNS];
  return MS_OK;
}

int ms_async_reserve(ms_state *state, int colls) {
  ms_async *async = state->async;
  int wanted = MS_ASYNC_RUNS * (colls + 1);
  if (wanted <= async->ring_size) return MS_OK;
  MS_TRY(ms_async_drain(state));
  ms_async_coll *grown = ms_calloc(wanted, sizeof *grown);
  if (!grown) return MS_ENOMEM;
  if (async->ring_size) memcpy(grown, async->ring, (size_t)async->ring_size * sizeof *grown);
  free(async->ring);
  async->ring = grown;
  for (; async->ring_size < wanted; async->ring_size++) {
    ms_async_coll *pending = &async->ring[async->ring_size];
    MS_TRY(state->device->api->event_open(state->device, 0, &pending->before));
    int rc = state->device->api->event_open(state->device, 0, &pending->after);
    if (rc) {
      state->device->api->event_close(state->device, pending->before);
      return rc;
    }
  }
  async->issued = async->done = 0; /* nothing is in flight: restart at the first entry */
  return MS_OK;
}
