/* profile_list.c - a profile as lists of numbers, for programs that compute with what was measured.
 */
#include <string.h>

#include "base/config.h"
#include "exec/profile/profile.h"

static double seconds(uint64_t ns) { return 1e-9 * (double)ns; }

static void describe(const ms_profile_event *event, int stream, ms_profile_item *item) {
  const int collective = event->kind == MS_PROFILE_COLLECTIVE;
  /* The flight recorder does not know when the ranks met if this one was the last. */
  const uint64_t met = event->met > event->begin ? event->met : event->begin;
  memset(item, 0, sizeof *item); /* what is between its fields, too: programs compare rows */
  item->phase = event->phase;
  item->instruction = event->source;
  item->stream = stream;
  item->collective = collective;
  item->run = event->run;
  item->name = collective ? ms_coll_name(event->op) : ms_op_row_of(event->op)->name;
  item->begin = seconds(event->begin);
  item->end = seconds(event->end);
  item->met = seconds(met);
  item->bytes = event->bytes;
  item->inside = event->inside;
  item->wire = event->wire;
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
