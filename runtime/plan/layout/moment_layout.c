/* moment_layout.c - offsets and sizes of moments. */
#include "plan/layout/moment_layout.h"

#include "base/min.h"
#include "base/numbers/dtype.h"
#include "plan/layout/replica_slices.h"

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

const ms_moment_form *ms_moment_form_for(const ms_state_layout *layout, const ms_segment *segment) {
  const ms_moment_form *form = ms_moment_form_of(layout->optimizer[segment->optimizer].dtype);
  return form->block && !segment->packed_moments ? ms_moment_form_of(MS_F32) : form;
}

static int64_t bytes_in(const ms_state_layout *layout, const ms_segment *segment, int index, int64_t n) {
  const ms_moment_form *form = ms_moment_form_for(layout, segment);
  const int has = index < layout->optimizer[segment->optimizer].moments;
  return has ? ms_dtype_size(form->in_state) * ms_moment_count(form, n) : 0;
}

/* Bytes of a moment of elements [begin, end) of the trainable chunks. */
static int64_t bytes_of(const ms_state_layout *layout, const ms_unit *unit, int index, int64_t begin, int64_t end) {
  int64_t bytes = 0;
  for (int s = 0; s < unit->segments && !unit->segment[s].frozen; s++) {
    const ms_segment *segment = &unit->segment[s];
    const int last = s + 1 == unit->segments || unit->segment[s + 1].frozen;
    const int64_t after = last ? unit->trainable_count : unit->segment[s + 1].local;
    const int64_t n = ms_min(end, after) - most(begin, segment->local);
    if (n > 0) bytes += bytes_in(layout, segment, index, n);
  }
  return bytes;
}

int64_t ms_moment_offset(const ms_model *model, const ms_state_layout *layout, const ms_unit *unit, int index,
                         int64_t local) {
  int64_t first = 0;
  if (ms_unit_is_sliced(model, unit, layout->replicas)) ms_unit_slice(model, unit, layout->replicas, &first);
  return bytes_of(layout, unit, index, first, most(first, local));
}

/* Slices have as many elements, but not as many records. */
int64_t ms_moment_bytes(const ms_model *model, const ms_state_layout *layout, const ms_unit *unit, int index) {
  if (!ms_unit_is_sliced(model, unit, layout->replicas)) return bytes_of(layout, unit, index, 0, unit->trainable_count);
  const int64_t slice = ms_unit_slice_capacity(model, unit, layout->replicas);
  int64_t room = 0;
  for (int64_t at = 0; at < unit->trainable_count; at += slice)
    room = most(room, bytes_of(layout, unit, index, at, ms_min(at + slice, unit->trainable_count)));
  return room;
}
