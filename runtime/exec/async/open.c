/* open.c - what a state has on a device that works apart from the host: streams, events, control words. */
#include "exec/async/async.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"

enum { CONTROL_BYTES = 4096, FAULT_AT = 256 };

static int open_streams(ms_device *d, ms_apart *apart) {
  const ms_device_api *api = d->api;
  for (int s = 0; s < MS_STREAMS; s++) {
    MS_TRY(api->stream_open(d, s != MS_STREAM_COMPUTE, &apart->stream[s]));
    if (s != MS_STREAM_COMPUTE) MS_TRY(api->event_open(d, 0, &apart->join[s]));
  }
  MS_TRY(api->event_open(d, 0, &apart->fork));
  for (int r = 0; r < MS_APART_RUNS; r++) {
    MS_TRY(api->event_open(d, 1, &apart->run[r].begin));
    MS_TRY(api->event_open(d, 1, &apart->run[r].end));
    apart->run[r].words = (ms_apart_words *)apart->words + r;
  }
  return MS_OK;
}

int ms_apart_open(ms_state *state) {
  ms_device *device = state->device;
  if (!ms_device_has(device, MS_DEVICE_ASYNCHRONOUS)) return MS_OK;
  ms_apart *apart = ms_calloc(1, sizeof *apart);
  if (!apart) return MS_ENOMEM;
  state->apart = apart;
  apart->state = state;
  apart->device = device;
  MS_TRY(device->api->pin(device, MS_APART_RUNS * (int64_t)sizeof(ms_apart_words), &apart->words));
  MS_TRY(device->api->allocate(device, CONTROL_BYTES, 0, "control words", &apart->control));
  apart->orders = apart->control;
  apart->fault = (ms_fault *)(void *)((char *)apart->control + FAULT_AT);
  MS_TRY(open_streams(device, apart));
  return ms_apart_reserve(state, 0);
}

int ms_apart_reserve(ms_state *state, int colls) {
  ms_apart *apart = state->apart;
  int wanted = MS_APART_RUNS * (colls + 1);
  if (wanted <= apart->flights) return MS_OK;
  MS_TRY(ms_apart_drain(state));
  ms_flight *grown = ms_calloc(wanted, sizeof *grown);
  if (!grown) return MS_ENOMEM;
  if (apart->flights) memcpy(grown, apart->flight, (size_t)apart->flights * sizeof *grown);
  free(apart->flight);
  apart->flight = grown;
  for (; apart->flights < wanted; apart->flights++) {
    ms_flight *flight = &apart->flight[apart->flights];
    MS_TRY(state->device->api->event_open(state->device, 0, &flight->before));
    int rc = state->device->api->event_open(state->device, 0, &flight->after);
    if (rc) {
      state->device->api->event_close(state->device, flight->before);
      return rc;
    }
  }
  apart->issued = apart->done = 0; /* nothing is under way: the ring begins anew */
  return MS_OK;
}

static void close_event(ms_device *device, ms_device_event *event) {
  if (event) device->api->event_close(device, event);
}

void ms_apart_leave(ms_state *state) {
  ms_apart *apart = state->apart;
  if (!apart) return;
  ms_apart_settle(apart);
  ms_apart_part(state);
  apart->state = NULL;
}

void ms_apart_release(ms_apart *apart) {
  if (!apart || apart->state || apart->execs) return;
  ms_device *device = apart->device;
  for (int i = 0; i < apart->flights; i++) {
    close_event(device, apart->flight[i].before);
    close_event(device, apart->flight[i].after);
  }
  for (int r = 0; r < MS_APART_RUNS; r++) {
    close_event(device, apart->run[r].begin);
    close_event(device, apart->run[r].end);
  }
  close_event(device, apart->fork);
  for (int s = 0; s < MS_STREAMS; s++) {
    close_event(device, apart->join[s]);
    if (apart->stream[s]) device->api->stream_close(device, apart->stream[s]);
  }
  if (apart->control) device->api->release(device, apart->control, CONTROL_BYTES, 0);
  if (apart->words) device->api->unpin(device, apart->words, MS_APART_RUNS * (int64_t)sizeof(ms_apart_words));
  free(apart->flight);
  free(apart->window);
  free(apart->group);
  free(apart);
  device->api->close(device);
}
