/* profile_list.c - a profile as lists of numbers, for programs that compute with what was measured.
 */
#include "base/error.h"
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

int ms_profile_items(const ms_profile *profile, int capacity, ms_profile_item *list, int *n) {
  MS_HANDLE(profile, PROFILE);
  MS_GIVEN(n);
  if (capacity > 0) MS_GIVEN(list);
  *n = 0;
  for (int s = 0; s < MS_NAMED_STREAMS; s++) {
    for (int i = 0; i < profile->stream[s].n; i++) {
      const ms_profile_event *event = &profile->stream[s].event[i];
      if (event->kind != MS_PROFILE_KERNEL && event->kind != MS_PROFILE_COLLECTIVE) continue;
      if (*n < capacity) describe(event, s, &list[*n]);
      (*n)++;
    }
  }
  return MS_OK;
}
