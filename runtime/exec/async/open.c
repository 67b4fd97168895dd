/* open.c - what a state has on an asynchronous device: streams, events, control words. */
#include "exec/async/async.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"

enum { CONTROL_BYTES = 4096, FAULT_AT = 256 };

static int open_streams(ms_device *d, ms_async *async) {
  const ms_device_api *api = d->api;
  for (int s = 0; s < MS_STREAMS; s++) {
    MS_TRY(api->stream_open(d, s != MS_STREAM_COMPUTE, &async->stream[s]));
    if (s != MS_STREAM_COMPUTE) MS_TRY(api->event_open(d, 0, &async->join[s]));
  }
  MS_TRY(api->event_open(d, 0, &async->fork));
  for (int r = 0; r < MS_ASYNC_RUNS; r++) {
    MS_TRY(api->event_open(d, 1, &async->run[r].begin));
    MS_TRY(api->event_open(d, 1, &async->run[r].end));
    async->run[r].words = (ms_async_words *)async->words + r;
  }
  return MS_OK;
}

int ms_async_open(ms_state *state) {
  ms_device *device = state->device;
  if (!ms_device_has(device, MS_DEVICE_ASYNCHRONOUS)) return MS_OK;
  ms_async *async = ms_calloc(1, sizeof *async);
  if (!async) return MS_ENOMEM;
  state->async = async;
  async->state = state;
  async->device = device;
  MS_TRY(device->api->pin(device, MS_ASYNC_RUNS * (int64_t)sizeof(ms_async_words), &async->words));
  MS_TRY(device->api->allocate(device, CONTROL_BYTES, 0, "control words", &async->control));
  async->args = async->control;
  async->fault = (ms_fault *)(void *)((char *)async->control + FAULT_AT);
  MS_TRY(open_streams(device, async));
  return ms_async_reserve(state, 0);
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
  async->issued = async->done = 0; /* nothing is under way: the ring begins anew */
  return MS_OK;
}

static void close_event(ms_device *device, ms_device_event *event) {
  if (event) device->api->event_close(device, event);
}

void ms_async_leave(ms_state *state) {
  ms_async *async = state->async;
  if (!async) return;
  ms_async_settle(async);
  ms_async_disconnect(state);
  async->state = NULL;
}

void ms_async_release(ms_async *async) {
  if (!async || async->state || async->execs) return;
  ms_device *device = async->device;
  for (int i = 0; i < async->ring_size; i++) {
    close_event(device, async->ring[i].before);
    close_event(device, async->ring[i].after);
  }
  for (int r = 0; r < MS_ASYNC_RUNS; r++) {
    close_event(device, async->run[r].begin);
    close_event(device, async->run[r].end);
  }
  close_event(device, async->fork);
  for (int s = 0; s < MS_STREAMS; s++) {
    close_event(device, async->join[s]);
    if (async->stream[s]) device->api->stream_close(device, async->stream[s]);
  }
  if (async->control) device->api->release(device, async->control, CONTROL_BYTES, 0);
  if (async->words) device->api->unpin(device, async->words, MS_ASYNC_RUNS * (int64_t)sizeof(ms_async_words));
  free(async->ring);
  free(async->window);
  free(async->group);
  free(async);
  device->api->close(device);
}
