/* moments.c - moments in 8 bits (kernels/formats/moments.h): writing and reading them.
 *
 * A record has one scale, so it is made when all of its elements are known. Elements can come in any order and in any
 * pieces, as files of another mesh have them: a record of which some are missing waits in f32, until the rest comes or
 * writing ends (ms_state_finish_writes). So what a checkpoint gives is the same on every mesh.
 */
#include "exec/tensors/moments.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/min.h"

enum { BYTES = MS_MOMENT_WORDS * 4, AT_ONCE = 64 /* records copied to or from a device */ };

/* Its elements as far as they were written. */
struct ms_open_record {
  float x[MS_MOMENT_BLOCK];
  char given[MS_MOMENT_BLOCK];
  int64_t n;
};

static enum ms_moment_map map_of(const ms_elements *e) {
  return e->records == MS_FIRST_MOMENT_RECORDS ? MS_MOMENT_FIRST : MS_MOMENT_SECOND;
}
static char *record_at(const ms_elements *e, int64_t record) { return (char *)e->data + record * BYTES; }

/* Elements of a record: fewer in the last one. */
static int64_t length_of(const ms_elements *e, int64_t record) {
  return ms_min(MS_MOMENT_BLOCK, e->count - record * MS_MOMENT_BLOCK);
}

static struct ms_open_moment *open_moment(const ms_state *state, int param, int map) {
  return state->open_moments ? &state->open_moments[param * MS_MOMENTS + map] : NULL;
}

static void close_record(struct ms_open_moment *moment, int64_t record) {
  if (!moment || !moment->record || !moment->record[record]) return;
  free(moment->record[record]);
  moment->record[record] = NULL;
  moment->open--;
}

void ms_moments_free(ms_state *state) {
  for (int i = 0; state->open_moments && i < state->model->params * MS_MOMENTS; i++) {
    struct ms_open_moment *moment = &state->open_moments[i];
    for (int64_t r = 0; r < moment->records; r++) close_record(moment, r);
    free((void *)moment->record);
  }
  free(state->open_moments);
  state->open_moments = NULL;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static int make_records(ms_state *state, const ms_elements *to, int64_t record, int64_t n, const float *values) {
  char made[AT_ONCE * BYTES];
  for (int64_t taken; n > 0; record += AT_ONCE, values += taken, n -= taken) {
    taken = ms_min(n, (int64_t)AT_ONCE * MS_MOMENT_BLOCK);
    ms_moment_encode(map_of(to), values, taken, made);
    MS_TRY(ms_state_copy_in(state, record_at(to, record), made, ms_moment_records(taken) * BYTES));
  }
  return MS_OK;
}

static int wait_for_rest(ms_state *state, const ms_elements *to, int64_t record, struct ms_open_record **out) {
  if (!state->open_moments)
    state->open_moments = ms_calloc((int64_t)state->model->params * MS_MOMENTS, sizeof *state->open_moments);
  if (!state->open_moments) return MS_ENOMEM;
  struct ms_open_moment *moment = open_moment(state, to->param, (int)map_of(to));
  if (!moment->record) {
    moment->records = ms_moment_records(to->count);
    moment->what = to->what;
    moment->record = ms_calloc(moment->records, sizeof(void *));
    if (!moment->record) return MS_ENOMEM;
  }
  if (!moment->record[record]) {
    moment->record[record] = ms_calloc(1, sizeof **moment->record);
    if (!moment->record[record]) return MS_ENOMEM;
    moment->open++;
  }
  *out = moment->record[record];
  return MS_OK;
}

/* Puts n elements of a record, from its element `at` on, with those that wait. */
static int put_part(ms_state *state, const ms_elements *to, int64_t record, int64_t at, int64_t n,
                    const float *values) {
  struct ms_open_record *open;
  MS_TRY(wait_for_rest(state, to, record, &open));
  memcpy(open->x + at, values, (size_t)n * sizeof *values);
  for (int64_t i = at; i < at + n; i++) {
    open->n += !open->given[i];
    open->given[i] = 1;
  }
  if (open->n < length_of(to, record)) return MS_OK;
  MS_TRY(make_records(state, to, record, open->n, open->x));
  close_record(open_moment(state, to->param, (int)map_of(to)), record);
  return MS_OK;
}

/* Makes the whole records among `count` elements from the start of a record, and returns their elements. */
static int put_whole(ms_state *state, const ms_elements *to, int64_t record, int64_t count, const float *values,
                     int64_t *taken) {
  const int to_end = record * MS_MOMENT_BLOCK + count == to->count;
  *taken = to_end ? count : count / MS_MOMENT_BLOCK * MS_MOMENT_BLOCK;
  for (int64_t r = 0; r < ms_moment_records(*taken); r++)
    close_record(open_moment(state, to->param, (int)map_of(to)), record + r);
  return make_records(state, to, record, *taken, values);
}

int ms_moments_write(ms_state *state, const ms_elements *to, int64_t first, int64_t count, const float *values) {
  for (int64_t taken; count > 0; first += taken, values += taken, count -= taken) {
    const int64_t record = first / MS_MOMENT_BLOCK, at = first % MS_MOMENT_BLOCK;
    taken = ms_min(length_of(to, record) - at, count);
    if (at == 0 && taken == length_of(to, record)) MS_TRY(put_whole(state, to, record, count, values, &taken));
    else MS_TRY(put_part(state, to, record, at, taken, values));
  }
  return MS_OK;
}

/* ---- the end of writing ------------------------------------------------------------------------------------------ */

/* Makes a record of what was written of it, and of what it has. */
static int make_open_record(ms_state *state, const ms_elements *to, int64_t record, const struct ms_open_record *open) {
  char before[BYTES];
  float x[MS_MOMENT_BLOCK];
  MS_TRY(ms_state_copy_out(state, before, record_at(to, record), BYTES));
  ms_moment_decode(map_of(to), before, 0, MS_MOMENT_BLOCK, x);
  for (int i = 0; i < MS_MOMENT_BLOCK; i++)
    if (open->given[i]) x[i] = open->x[i];
  return make_records(state, to, record, length_of(to, record), x);
}

int ms_moments_finish(ms_state *state, int first, int end) {
  for (int i = first * MS_MOMENTS; state->open_moments && i < end * MS_MOMENTS; i++) {
    struct ms_open_moment *moment = &state->open_moments[i];
    ms_elements to;
    if (!moment->record) continue;
    MS_TRY(ms_params_find(state, i / MS_MOMENTS, moment->what, &to));
    for (int64_t r = 0; r < moment->records; r++) {
      if (moment->record[r]) MS_TRY(make_open_record(state, &to, r, moment->record[r]));
      close_record(moment, r);
    }
    free((void *)moment->record);
    moment->record = NULL;
  }
  return MS_OK;
}

int ms_moments_check_finished(const ms_state *state, int param) {
  const int first = param < 0 ? 0 : param, end = param < 0 ? state->model->params : param + 1;
  for (int i = first * MS_MOMENTS; state->open_moments && i < end * MS_MOMENTS; i++)
    if (state->open_moments[i].open)
      return MS_FAIL(MS_EINVAL,
                     "parameter '%s': some of its moments are in records of %d elements that were written in part: "
                     "call ms_state_finish_writes first",
                     state->model->param[i / MS_MOMENTS].name, MS_MOMENT_BLOCK);
  return MS_OK;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

int ms_moments_read(const ms_state *state, const ms_elements *from, int64_t first, int64_t count, float *out) {
  char words[AT_ONCE * BYTES];
  MS_TRY(ms_moments_check_finished(state, from->param));
  if (ms_device_has(state->device, MS_DEVICE_HOST_MEMORY)) {
    ms_moment_decode(map_of(from), from->data, first, count, out);
    return MS_OK;
  }
  for (int64_t n; count > 0; first += n, out += n, count -= n) {
    const int64_t record = first / MS_MOMENT_BLOCK, start = record * MS_MOMENT_BLOCK;
    n = ms_min(count, start + (int64_t)AT_ONCE * MS_MOMENT_BLOCK - first);
    const int64_t copied = (first + n - 1) / MS_MOMENT_BLOCK - record + 1;
    MS_TRY(ms_state_copy_out(state, words, record_at(from, record), copied * BYTES));
    ms_moment_decode(map_of(from), words, first - start, n, out);
  }
  return MS_OK;
}
