/* noted.c - a failure of one rank that its program caught.
**
** A program that catches an error and goes on leaves the others where it should have come to. They find out later, in
** another place, and what they find ("ranks disagree") hides the cause. So each rank's first failure stays in its row
** of the job, and reports about ranks that disagree quote it. A failure that every rank had is no cause: they all went
** on alike.
*/
#include <stdio.h>
#include <string.h>

#include "base/handle.h"
#include "comm/control/control.h"
#include "comm/diagnose/report.h"

void ms_world_note_failure(ms_world *world, const char *why) {
  MS_HANDLE_OR(, world, WORLD);
  ms_control *control = ms_world_control(world);
  if (!control) return;
  ms_control_rank *row = &control->rank[ms_world_local_rank(world)];
  uint32_t untold = 0;
  if (!atomic_compare_exchange_strong(&row->failed, &untold, 1)) return;
  strncpy(row->failure, why, MS_CONTROL_FAILURE - 1);
  atomic_store(&row->failed, 2);
}

void ms_report_noted(const ms_control *control, char *text, size_t bytes) {
  int failed = -1, count = 0;
  snprintf(text, bytes, "%s", "");
  for (int rank = control->size - 1; rank >= 0; rank--) {
    if (atomic_load(&control->rank[rank].failed) != 2) continue;
    failed = rank;
    count++;
  }
  if (failed < 0 || count == control->size) return;
  snprintf(text, bytes, "rank %d failed before, its program caught that and went on: %s",
           atomic_load(&control->rank[failed].number), control->rank[failed].failure);
}
