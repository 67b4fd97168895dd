/* recover.c - a clean start for all ranks after some of them aborted a common operation.
 *
 * The ranks wait for each other twice, on a counter with no other use. After the first wait no rank is inside a
 * collective any more, nor does a thread move bytes for one, so each resets what it has written into the control
 * segment, and other hosts do the same for it: its tickets, and its text about giving up. After the second wait the job
 * is in its initial state. Communicators and states detect this by the epoch, the number of these waits. The launcher's
 * text is kept: a rank that died does not come back.
 */
#include "base/error.h"
#include "comm/group/wait.h"
#include "comm/group/world_state.h"

/* Waits for the recovery counts of all ranks to reach `step`. */
typedef struct recovery {
  const ms_control *control;
  uint32_t step;
} recovery;

static int find_missing(void *context, ms_rank_set *missing) {
  const recovery *r = context;
  *missing = (ms_rank_set){{0}};
  for (int rank = 0; rank < r->control->size; rank++)
    if ((int32_t)(atomic_load(&r->control->rank[rank].recovery) - r->step) < 0) ms_rank_set_add(missing, rank);
  return MS_OK;
}

/* Enters step `step` and waits until all ranks have. */
static int come_to(ms_world *world, uint32_t step) {
  recovery all = {world->control, step};
  ms_wait_for others = {.kind = "recovery", .find = find_missing, .context = &all, .recovers = 1};
  atomic_store(&world->control->rank[world->rank].recovery, step);
  for (int rank = 0; rank < world->size; rank++)
    if (rank != world->rank) ms_control_ring(world->control, rank);
  if (world->mirror) world->mirror->row(world);
  return ms_world_wait(world, &others);
}

/* The launcher can give up at any moment: its text is never removed, and replaces another row's. */
static void reset_abort(ms_control *control) {
  uint32_t none = 0;
  atomic_store(&control->aborted, 0);
  if (atomic_load(&control->launcher.told))
    atomic_compare_exchange_strong(&control->aborted, &none, MS_CONTROL_LAUNCHER + 1);
}

int ms_world_recover(ms_world *world) {
  MS_HANDLE(world, WORLD);
  ms_control *control = world->control;
  if (!control) return MS_OK;
  uint32_t before = atomic_load(&control->rank[world->rank].recovery);
  if (world->progress) world->give_up_transfers(world->progress);
  MS_TRY(come_to(world, before + 1));
  ms_group_table_reset(control, world->rank);
  atomic_store(&control->rank[world->rank].told, 0);
  atomic_store(&control->rank[world->rank].failed, 0);
  world->failures = 0;
  ms_world_set_activity(world, NULL);
  if (ms_world_local_rank(world) == 0) reset_abort(control); /* each host has its own abort word */
  return come_to(world, before + 2);
}
