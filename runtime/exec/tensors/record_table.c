/* record_table.c - the rows of the table of forms; elements themselves are narrowed and widened here. */
#include "exec/tensors/record_table.h"

#include <stdlib.h>

#include "base/min.h"
#include "base/numbers/dtype.h"
#include "exec/tensors/moments.h"
#include "exec/tensors/stored.h"

/* ---- elements ---------------------------------------------------------------------------------------------------- */

static void *element(const ms_elements *e, int64_t i) { return (char *)e->data + ms_dtype_size(e->dtype) * i; }

static int read_elements(const ms_state *state, const ms_elements *from, int64_t first, int64_t count, float *out) {
  const int64_t bytes = ms_dtype_size(from->dtype) * count;
  if (from->dtype == MS_F32) return ms_state_copy_out(state, out, element(from, first), bytes);
  void *packed =
      (char *)(out + count) - bytes; /* at the end of `out`, so that widening upwards never overwrites unread input */
  MS_TRY(ms_state_copy_out(state, packed, element(from, first), bytes));
  ms_dtype_row_of(from->dtype)->widen(packed, count, out);
  return MS_OK;
}

static int write_elements(ms_state *state, const ms_elements *to, int64_t first, int64_t count, const float *values) {
  enum { AT_ONCE = 1 << 18 };
  int rc = MS_OK;
  if (to->dtype == MS_F32) return ms_state_copy_in(state, element(to, first), values, count * (int64_t)sizeof *values);
  const ms_dtype_row *row = ms_dtype_row_of(to->dtype);
  void *rounded = ms_calloc(ms_min(count, AT_ONCE), row->info.size);
  if (!rounded) return MS_ENOMEM;
  for (int64_t at = 0; at < count && !rc; at += AT_ONCE) {
    const int64_t n = ms_min(count - at, AT_ONCE);
    row->narrow(values + at, n, rounded);
    rc = ms_state_copy_in(state, element(to, first + at), rounded, n * row->info.size);
  }
  free(rounded);
  return rc;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* In the order in which their writes are finished. */
const ms_record_row ms_record_rows[MS_SLOT_RECORDS] = {
    [MS_ELEMENTS] = {.read = read_elements, .write = write_elements},
    [MS_FIRST_MOMENT_RECORDS] = {.read = ms_moments_read,
                                 .write = ms_moments_write,
                                 .finish = ms_moments_finish,
                                 .check_finished = ms_moments_check_finished,
                                 .drop = ms_moments_free},
    [MS_SECOND_MOMENT_RECORDS] = {.read = ms_moments_read, .write = ms_moments_write},
    [MS_STORED_RECORDS] = {.read = ms_stored_read,
                           .write = ms_stored_write,
                           .finish = ms_stored_finish,
                           .check_finished = ms_stored_check_finished,
                           .drop = ms_stored_free},
};

int ms_params_copy_out(const ms_state *state, const ms_elements *from, int64_t first, int64_t count, float *out) {
  return count ? ms_record_rows[from->records].read(state, from, first, count, out) : MS_OK;
}

int ms_params_copy_in(ms_state *state, const ms_elements *to, int64_t first, int64_t count, const float *values) {
  return count ? ms_record_rows[to->records].write(state, to, first, count, values) : MS_OK;
}

int ms_records_finish(ms_state *state) {
  for (int r = 0; r < MS_SLOT_RECORDS; r++)
    if (ms_record_rows[r].finish) MS_TRY(ms_record_rows[r].finish(state, 0, state->model->params));
  return MS_OK;
}

int ms_records_check_finished(const ms_state *state) {
  for (int r = 0; r < MS_SLOT_RECORDS; r++)
    if (ms_record_rows[r].check_finished) MS_TRY(ms_record_rows[r].check_finished(state, -1));
  return MS_OK;
}

void ms_records_drop(ms_state *state) {
  for (int r = 0; r < MS_SLOT_RECORDS; r++)
    if (ms_record_rows[r].drop) ms_record_rows[r].drop(state);
}
