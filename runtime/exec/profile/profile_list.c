/* profile_list.c - a profile as lists of numbers, for programs that compute with what was measured.
 */
#include "base/config.h"
#include "exec/profile/profile.h"

static double seconds(uint64_t ns) { return 1e-9 * (double)ns; }

static void describe(const ms_profile_event *event, int stream, ms_profile_item *item) {
  const int collective = event->kind == MS_PROFILE_COLLECTIVE;
  /* The flight recorder does not know when the ranks met if this one was the last. */
  const uint64_t met = event->met > event->begin ? event->met : event->begin;
  *item = (ms_profile_item){.phase = event->phase,
                            .instruction = event->source,
                            .stream = stream,
                            .collective = collective,
                            .run = event->run,
                            .name = collective ? ms_coll_name(event->op) : ms_op_row_of(event->op)->name,
                            .begin = seconds(event->begin),
                            .end = seconds(event->end),
                            .met = seconds(met),
                            .bytes = event->bytes,
                            .inside = event->inside,
                            .wire = event->wire};
}

int ms_profile_items(const ms_profile *profile, ms_profile_item *rows, int size, int capacity, int *n) {
  MS_HANDLE(profile, PROFILE);
  MS_GIVEN(n);
  ms_row_list all;
  MS_TRY(ms_rows_open(&all, rows, size, capacity, __func__));
  for (int s = 0; s < MS_NAMED_STREAMS; s++) {
    for (int i = 0; i < profile->stream[s].n; i++) {
      const ms_profile_event *event = &profile->stream[s].event[i];
      ms_profile_item item;
      if (event->kind != MS_PROFILE_KERNEL && event->kind != MS_PROFILE_COLLECTIVE) continue;
      describe(event, s, &item);
      ms_rows_add(&all, &item, sizeof item);
    }
  }
  *n = all.n;
  return MS_OK;
}
