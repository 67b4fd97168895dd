/* stored.c - parameters that are kept as codes (kernels/formats/storage.h): writing and reading them.
 *
 * Values are quantised as they are written, record by record, so that a parameter is never whole in f32: it is written
 * from its first owned element on, in order, in pieces of any size, of which at most one record waits for its rest. The
 * late scales are kept in f32 until all ranks know their mean (stored_finish.c).
 */
#include "exec/tensors/stored.h"

#include <stdlib.h>
#include <string.h>

#include "base/numbers/dtype.h"
#include "base/error.h"
#include "base/min.h"
#include "kernels/formats/storage_code.h"

static void release(struct ms_unfinished *u) {
  if (!u) return;
  free(u->done);
  free(u->scale);
  free(u);
}

void ms_stored_forget(ms_state *state, int param) {
  if (!state->unfinished) return;
  release(state->unfinished[param]);
  state->unfinished[param] = NULL;
}

void ms_stored_free(ms_state *state) {
  for (int i = 0; state->unfinished && i < state->model->params; i++) release(state->unfinished[i]);
  free((void *)state->unfinished);
  state->unfinished = NULL;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static int begin(ms_state *state, const ms_elements *to, struct ms_unfinished **out) {
  const ms_storage *storage = to->storage;
  if (!state->unfinished) state->unfinished = ms_calloc(state->model->params, sizeof *state->unfinished);
  if (!state->unfinished) return MS_ENOMEM;
  if ((*out = state->unfinished[to->param])) return MS_OK;
  struct ms_unfinished *u = ms_calloc(1, sizeof *u);
  if (!u) return MS_ENOMEM;
  u->records = (to->count + storage->elements - 1) / storage->elements;
  u->done = ms_calloc(u->records, 1);
  u->scale = ms_calloc(storage->late ? u->records * ms_scales_of(storage) : 0, sizeof *u->scale);
  if (!u->done || !u->scale) {
    release(u);
    return MS_ENOMEM;
  }
  *out = state->unfinished[to->param] = u;
  return MS_OK;
}

char *ms_stored_record(const ms_elements *of, int64_t record) {
  return (char *)of->data + 4 * of->storage->words * record;
}

static int put_record(ms_state *state, struct ms_unfinished *u, const ms_elements *to, int64_t first, int64_t n,
                      const float *values) {
  const ms_storage *storage = to->storage;
  const int64_t record = first / storage->elements;
  uint32_t words[MS_MAX_STORED / 4]; /* more than a record has */
  float none;
  float *scales = storage->late ? u->scale + record * ms_scales_of(storage) : &none;
  MS_TRY(ms_storage_encode(storage, values, n, words, scales));
  u->done[record] = 1;
  u->staged = 0;
  return ms_state_copy_in(state, ms_stored_record(to, record), words, 4 * storage->words);
}

static int refuse_order(const ms_state *state, const ms_elements *to, int64_t first) {
  return MS_FAIL(MS_EINVAL,
                 "parameter '%s' is stored in %s, in records of %lld elements: write it in order from its first owned "
                 "element, or from the start of a record; element %lld is neither",
                 state->model->param[to->param].name, ms_dtype_name(to->dtype), (long long)to->storage->elements,
                 (long long)(to->first + first));
}

int ms_stored_write(ms_state *state, const ms_elements *to, int64_t first, int64_t count, const float *values) {
  const int64_t length = to->storage->elements;
  struct ms_unfinished *u;
  if (!count) return MS_OK;
  MS_TRY(begin(state, to, &u));
  for (int64_t taken; count; first += taken, values += taken, count -= taken) {
    if (u->staged ? first != u->at + u->staged : first % length) return refuse_order(state, to, first);
    const int64_t start = first - u->staged, n = ms_min(length, to->count - start);
    taken = ms_min(n - u->staged, count);
    if (taken == n) { /* a whole record, which needs no copy */
      MS_TRY(put_record(state, u, to, start, n, values));
      continue;
    }
    memcpy(u->room + u->staged, values, (size_t)taken * sizeof *values);
    u->at = start;
    u->staged += taken;
    if (u->staged == n) MS_TRY(put_record(state, u, to, start, n, u->room));
  }
  return MS_OK;
}

int ms_stored_check_finished(const ms_state *state, int param) {
  const int first = param < 0 ? 0 : param, end = param < 0 ? state->model->params : param + 1;
  for (int i = first; state->unfinished && i < end; i++)
    if (state->unfinished[i])
      return MS_FAIL(MS_EINVAL,
                     "parameter '%s' was written, and its scales are not complete yet: call ms_state_finish_writes on "
                     "all ranks first",
                     state->model->param[i].name);
  return MS_OK;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

int ms_stored_read(const ms_state *state, const ms_elements *from, int64_t first, int64_t count, float *out) {
  enum { RECORDS = 64 }; /* copied from a device at a time */
  const ms_storage *storage = from->storage;
  MS_TRY(ms_stored_check_finished(state, from->param));
  if (ms_device_has(state->device, MS_DEVICE_HOST_MEMORY)) {
    ms_storage_decode(storage, from->data, first, count, out);
    return MS_OK;
  }
  void *words = ms_calloc(RECORDS, (size_t)storage->words * 4);
  int rc = words ? MS_OK : MS_ENOMEM;
  for (int64_t n; count && !rc; first += n, out += n, count -= n) {
    const int64_t record = first / storage->elements, start = record * storage->elements;
    n = ms_min(count, start + RECORDS * storage->elements - first);
    const int64_t copied = (first + n - 1) / storage->elements - record + 1;
    rc = ms_state_copy_out(state, words, ms_stored_record(from, record), copied * storage->words * 4);
    if (!rc) ms_storage_decode(storage, words, first - start, n, out);
  }
  free(words);
  return rc;
}
