/* device_run.c - collectives that run on a device: the communicator keeps only their count and their records, so
 * deadlines, reports and comparisons work as for the collectives of this process.
 */
#include "base/clock.h"
#include "base/error.h"
#include "comm/collectives/comm_state.h"
#include "comm/group/world_state.h"

static void record_met(ms_comm *comm) {
  if (!comm->met++) ms_recorder_met(comm->ring);
}

void ms_comm_entered(ms_comm *comm, const ms_coll *coll) {
  comm->coll = coll;
  comm->epoch = ms_world_epoch(comm->world);
  ms_comm_record(comm, coll, ms_tickets_next(&comm->tickets, coll));
  ms_tickets_begin(&comm->tickets, coll);
  ms_tickets_sign(&comm->tickets);
  ms_tickets_publish(&comm->tickets, MS_TICKET_ENTERED);
  ms_tickets_await(&comm->tickets, MS_TICKET_ENTERED);
}

void ms_comm_left(ms_comm *comm) {
  record_met(comm);
  ms_recorder_misses(comm->recorder, comm->ring, NULL);
  ms_tickets_publish(&comm->tickets, MS_TICKET_FINISHED);
  comm->tickets.phase = MS_TICKET_IDLE;
  ms_recorder_left(comm->ring);
}

int ms_comm_watch(ms_comm *comm, ms_wait *wait) {
  double rest;
  const char *kind = ms_coll_kind_name(comm->coll->kind), *label = comm->coll->label ? comm->coll->label : "";
  const ms_world *world = comm->world;
  ms_rank_set missing = ms_tickets_missing(&comm->tickets);
  int all_came = ms_rank_set_is_empty(&missing);
  ms_recorder_misses(comm->recorder, comm->ring, all_came ? NULL : &missing);
  if (!all_came)
    return ms_world_watch(comm->world, wait, &(ms_wait_for){.kind = kind, .label = label}, &missing, &rest);
  record_met(comm);
  MS_TRY(ms_tickets_compare(&comm->tickets));
  double now = ms_clock();
  if (wait->left_at == 0) wait->left_at = now;
  if (now < wait->left_at + world->timeout) return ms_world_check(world);
  char behind[MS_CONTROL_TEXT];
  ms_rank_set unfinished = ms_tickets_unfinished(&comm->tickets);
  world->diagnosis->behind(world->control, world->rank, &unfinished, behind, sizeof behind);
  return MS_FAIL(MS_ETIMEOUT, "%s %s: all ranks have entered it, but rank %d has not finished it within %g s%s", kind,
                 label, comm->rank[comm->me], world->timeout, behind);
}
