/* recover.c - a clean start for all ranks after some of them left what they were doing together half-way.
**
** The ranks meet twice, on a counter that nothing else uses. After the first meeting nobody is inside a collective any
** more, so each rank takes back what it has written into the control segment: its tickets, its words on why it gave up.
** After the second everything is as it was when the job began. Communicators and states notice by the epoch, the count
** of these meetings. What the launcher has said stands: a rank that died does not come back.
*/
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/handle.h"
#include "comm/control/control.h"

/* As in other waits: the launcher may tell within this time why a rank has left. */
static const double LEFT_GRACE = 0.3;

unsigned ms_world_epoch(const ms_world *world) {
  const ms_control *control = ms_world_control(world);
  return control ? atomic_load(&control->rank[ms_world_local_rank(world)].recovery) : 0;
}

static int check_launcher(ms_control *control) {
  const ms_control_rank *launcher = &control->rank[MS_CONTROL_LAUNCHER];
  if (atomic_load(&launcher->told) != 2) return MS_OK;
  return MS_FAIL(MS_EPEER, "%s", launcher->text);
}

/* A rank that has not come to step `step`, or -1. */
static int find_missing(const ms_control *control, uint32_t step, int *has_left) {
  int missing = -1;
  for (int rank = 0; rank < control->size; rank++) {
    if ((int32_t)(atomic_load(&control->rank[rank].recovery) - step) >= 0) continue;
    *has_left = atomic_load(&control->rank[rank].state) == MS_CONTROL_LEFT;
    missing = rank;
    if (*has_left) break;
  }
  return missing;
}

/* Comes to step `step` and waits until all ranks have. Ctrl-C and what ranks gave up for do not matter here. */
static int meet(ms_world *world, ms_control *control, uint32_t step) {
  double began = ms_clock(), left_at = 0;
  atomic_store(&control->rank[ms_world_rank(world)].recovery, step);
  for (int rank = 0; rank < control->size; rank++)
    if (rank != ms_world_rank(world)) ms_control_ring(control, rank);
  for (;;) {
    unsigned seen = ms_world_doorbell(world);
    int has_left = 0, missing = find_missing(control, step, &has_left);
    if (missing < 0) return MS_OK;
    MS_TRY(check_launcher(control));
    double now = ms_clock(), rest = began + ms_world_timeout(world) - now;
    if (has_left && left_at == 0) left_at = now;
    if (has_left && now > left_at + LEFT_GRACE)
      return MS_FAIL(MS_EPEER, "recovery: rank %d left while rank %d waits", missing, ms_world_rank(world));
    if (rest <= 0)
      return MS_FAIL(MS_ETIMEOUT, "recovery: rank %d has waited %g s for rank %d", ms_world_rank(world),
                     ms_world_timeout(world), missing);
    ms_world_sleep(world, seen, rest);
  }
}

static void reset_ticket(ms_control_ticket *ticket) {
  atomic_store(&ticket->count, 0);
  atomic_store(&ticket->signature, 0);
}

static void reset_group(ms_control_group *group, int rank) {
  if (atomic_load(&group->state) != MS_CONTROL_CHANNEL_READY) return;
  for (int me = 0; me < group->size; me++) {
    if (group->rank[me] != rank) continue;
    reset_ticket(&group->ticket[me]);
    for (int peer = 0; peer < group->size; peer++) {
      atomic_store(&group->sent[me][peer], 0);
      atomic_store(&group->received[me][peer], 0);
    }
  }
}

/* The launcher may give up at any moment: its word is never taken back, and put in where another's was. */
static void reset_abort(ms_control *control) {
  uint32_t none = 0;
  atomic_store(&control->aborted, 0);
  if (atomic_load(&control->rank[MS_CONTROL_LAUNCHER].told))
    atomic_compare_exchange_strong(&control->aborted, &none, MS_CONTROL_LAUNCHER + 1);
}

int ms_world_recover(ms_world *world) {
  MS_HANDLE(world, WORLD);
  ms_control *control = ms_world_control(world);
  if (!control) return MS_OK;
  MS_TRY(ms_world_check_one_node(world));
  int rank = ms_world_rank(world);
  uint32_t before = atomic_load(&control->rank[rank].recovery);
  MS_TRY(meet(world, control, before + 1));
  reset_ticket(&control->ticket[rank]);
  atomic_store(&control->announcement[rank].number, 0);
  for (int i = 0; i < MS_CONTROL_GROUPS; i++) reset_group(&control->group[i], rank);
  atomic_store(&control->rank[rank].told, 0);
  atomic_store(&control->rank[rank].failed, 0);
  ms_world_doing(world, NULL);
  if (rank == 0) reset_abort(control);
  return meet(world, control, before + 2);
}
