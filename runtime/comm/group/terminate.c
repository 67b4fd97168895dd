/* terminate.c - SIGTERM to one rank, told to all of its host; where some rank of it saves, none ends before that is done.
**
** Schedulers send it to every process of a job, or to one, or to the launcher alone, which passes it on. A word in the
** control segment makes that the same; it stands for good, since a run that was asked to end does not go on.
*/
#include "base/interrupt.h"
#include "comm/group/world_state.h"

void ms_world_catch_termination(ms_world *world) {
  MS_HANDLE_OR(, world, WORLD);
  if (world->control) atomic_store(&world->control->saves, 1);
  ms_termination_catch(NULL);
}

void ms_world_heed_termination(ms_world *world) {
  MS_HANDLE_OR(, world, WORLD);
  if (world->control) ms_termination_catch(&world->control->saves);
}

int ms_world_terminating(ms_world *world) {
  MS_HANDLE_OR(0, world, WORLD);
  if (!world->control) return ms_terminated();
  if (ms_terminated()) atomic_store_explicit(&world->control->terminating, 1, memory_order_relaxed);
  return atomic_load_explicit(&world->control->terminating, memory_order_relaxed) != 0;
}
