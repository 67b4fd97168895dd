/* moment_layout.c - offsets and sizes of moments. */
#include "plan/layout/moment_layout.h"

#include <pthread.h>
#include <stdio.h>

#include "base/numbers/dtype.h"
#include "base/least.h"
#include "base/settings/settings.h"
#include "shard/param_group.h"

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* The setting of each optimizer, looked up once, because every parameter asks. */
static const ms_setting *moments_setting[MS_OPTIMIZER_KINDS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void look_up(void) {
  for (int kind = 0; kind < MS_OPTIMIZER_KINDS; kind++) {
    char name[MS_SETTING_TEXT];
    snprintf(name, sizeof name, "%.100s.moments", ms_optimizer_name(kind));
    moments_setting[kind] = ms_setting_find(ms_settings_of("ms_plan_config"), name);
  }
}

int ms_moment_dtype_of(const ms_plan_config *config) {
  pthread_once(&once, look_up);
  const ms_setting *setting = moments_setting[config->optimizer];
  return setting ? (int)ms_setting_value(setting, config) : MS_F32;
}

int ms_moment_dtype(const ms_param *p, int dtype) {
  if (ms_param_takes_muon(p)) return MS_F32;
  return ms_moment_form_of(dtype)->block && !p->config.packed_moments ? MS_F32 : dtype;
}

int ms_moment_is_kept(const ms_param *p, ms_moment moment) {
  return moment.index < (ms_param_takes_muon(p) ? 1 : moment.kept);
}

static int64_t bytes_in(const ms_segment *segment, ms_moment moment, int64_t n) {
  if (segment->muon) return moment.index == 0 ? 4 * n : 0;
  if (moment.index >= moment.kept) return 0;
  const ms_moment_form *form = ms_moment_form_of(moment.dtype);
  if (form->block && !segment->packed_moments) form = ms_moment_form_of(MS_F32);
  return ms_dtype_size(form->kept) * ms_moment_count(form, n);
}

/* Bytes of a moment of elements [begin, end) of the trainable chunks. */
static int64_t bytes_of(const ms_unit *unit, ms_moment moment, int64_t begin, int64_t end) {
  int64_t bytes = 0;
  for (int s = 0; s < unit->segments && !unit->segment[s].frozen; s++) {
    const ms_segment *segment = &unit->segment[s];
    const int last = s + 1 == unit->segments || unit->segment[s + 1].frozen;
    const int64_t behind = last ? unit->trainable_count : unit->segment[s + 1].local;
    const int64_t n = ms_least(end, behind) - most(begin, segment->local);
    if (n > 0) bytes += bytes_in(segment, moment, n);
  }
  return bytes;
}

int64_t ms_moment_offset(const ms_model *model, const ms_unit *unit, int replicas, ms_moment moment, int64_t local) {
  int64_t first = 0;
  if (ms_unit_is_sliced(model, unit, replicas)) ms_unit_slice(model, unit, replicas, &first);
  return bytes_of(unit, moment, first, most(first, local));
}

/* Slices have as many elements, but not as many records. */
int64_t ms_moment_room(const ms_model *model, const ms_unit *unit, int replicas, ms_moment moment) {
  if (!ms_unit_is_sliced(model, unit, replicas)) return bytes_of(unit, moment, 0, unit->trainable_count);
  const int64_t slice = ms_unit_slice_room(model, unit, replicas);
  int64_t room = 0;
  for (int64_t at = 0; at < unit->trainable_count; at += slice)
    room = most(room, bytes_of(unit, moment, at, ms_least(at + slice, unit->trainable_count)));
  return room;
}
