/* queue.c - the host waits for the device, and watches its collectives meanwhile. */
#include "base/clock.h"
#include "base/error.h"
#include "exec/async/async.h"

/* The host looks again at once for that long, then after naps: a device that is nearly done is not overslept. Seconds. */
static const double EAGER = 2e-4, SHORT_NAP = 2e-5, LONG_NAP = 5e-4, LONG_AFTER = 0.05;
/* How often peers and communicators are looked at. */
static const double LOOK = 2e-3;

static int query(const ms_state *state, ms_device_event *event, int *done) {
  return state->device->api->query(state->device, event, done);
}

/* Whether the device has come to where a collective begins, or to its end. */
static int is_past(const ms_state *state, const ms_flight *flight, int end, int *past) {
  if (!flight->marks) return query(state, end ? flight->after : flight->before, past);
  *past = __atomic_load_n(&flight->marks[end], __ATOMIC_ACQUIRE) >= flight->run;
  return MS_OK;
}

static void enter(ms_flight *flight) {
  flight->entered = 1;
  flight->wait = (ms_wait){0};
  ms_comm_entered(flight->comm, flight->coll);
  if (flight->profiled)
    flight->profiled->sequence =
        atomic_load_explicit(&ms_recorder_last(ms_comm_ring(flight->comm))->sequence, memory_order_relaxed);
}

/* Writes down how far each stream has come with its collectives. */
static int follow(const ms_state *state) {
  ms_apart *apart = state->apart;
  int held[MS_STREAMS] = {0};
  for (int64_t i = apart->done; i < apart->issued; i++) {
    ms_flight *flight = &apart->flight[i % apart->flights];
    int past = 0;
    if (held[flight->stream] || !flight->coll) continue;
    if (!flight->entered) {
      MS_TRY(is_past(state, flight, 0, &past));
      if (past) enter(flight);
    }
    if (flight->entered) MS_TRY(is_past(state, flight, 1, &past));
    if (!flight->entered || !past) {
      held[flight->stream] = 1;
      continue;
    }
    ms_comm_left(flight->comm);
    flight->coll = NULL;
  }
  while (apart->done < apart->issued && !apart->flight[apart->done % apart->flights].coll) apart->done++;
  return MS_OK;
}

/* Collectives that are under way: do their peers come, has the library met an error? */
static int look(const ms_state *state) {
  ms_apart *apart = state->apart;
  int seen[MS_STREAMS] = {0}, ready;
  for (int64_t i = apart->done; i < apart->issued; i++) {
    ms_flight *flight = &apart->flight[i % apart->flights];
    if (!flight->coll || seen[flight->stream]++) continue;
    MS_TRY(state->device->api->comm_ready(state->device, flight->by, &ready));
    if (flight->entered) MS_TRY(ms_comm_watch(flight->comm, &flight->wait));
  }
  return ms_world_check(state->world);
}

/* Until an event has come, or with NULL until the ring has room. */
static int wait_for(const ms_state *state, ms_device_event *event) {
  ms_apart *apart = state->apart;
  double began = ms_clock(), looked = began, now = began;
  for (;;) {
    int done = 0;
    unsigned seen = ms_world_doorbell(state->world);
    MS_TRY(follow(state));
    if (event) MS_TRY(query(state, event, &done));
    else done = apart->issued - apart->done < apart->flights;
    if (done) return follow(state);
    now = ms_clock();
    if (now > looked + LOOK) {
      MS_TRY(look(state));
      looked = now;
    }
    if (now > began + EAGER) ms_world_sleep(state->world, seen, now > began + LONG_AFTER ? LONG_NAP : SHORT_NAP);
  }
}

int ms_apart_wait(const ms_state *state, ms_device_event *event) { return wait_for(state, event); }

void ms_apart_settle(const ms_apart *apart) {
  double began = ms_clock();
  int done = apart->begun == apart->ended, pending = ms_error_code();
  while (!done && ms_clock() < began + MS_APART_ENDING) {
    ms_device_event *last = apart->run[(apart->begun - 1) % MS_APART_RUNS].end;
    if (apart->device->api->query(apart->device, last, &done)) break;
    if (!done) ms_delay_sleep(SHORT_NAP);
  }
  if (!pending) ms_error_clear(); /* what the device has met is told by what asks for results */
}

int ms_apart_drain(const ms_state *state) {
  ms_apart *apart = state->apart;
  if (!apart || apart->ended == apart->begun) return MS_OK;
  MS_TRY(wait_for(state, apart->run[(apart->begun - 1) % MS_APART_RUNS].end));
  apart->ended = apart->begun;
  return MS_OK;
}

int ms_apart_take_flight(ms_state *state, ms_flight **flight) {
  ms_apart *apart = state->apart;
  if (apart->issued - apart->done == apart->flights) MS_TRY(wait_for(state, NULL));
  *flight = &apart->flight[apart->issued++ % apart->flights];
  return MS_OK;
}

int ms_apart_take_run(ms_state *state, ms_apart_run **run) {
  ms_apart *apart = state->apart;
  if (apart->begun - apart->ended == MS_APART_RUNS) {
    MS_TRY(wait_for(state, apart->run[apart->ended % MS_APART_RUNS].end));
    apart->ended++;
  }
  *run = &apart->run[apart->begun++ % MS_APART_RUNS];
  return MS_OK;
}
