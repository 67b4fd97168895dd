/* hosts_queue.c - the operations that were started on a lane: one at a time, in their order. Whichever thread finds
 * that one is done begins the next at once, so that the link does not wait until the program looks, which it does only
 * between two kernels.
 *
 * An operation is entered when it is begun, not when it is started: then its record, its ticket, its first messages and
 * its deadlines begin, as if the program had started it at that moment. So this rank enters operation k + 1 only when
 * it has finished operation k, as its tickets say.
 */
#include <string.h>

#include "base/clock.h"
#include "comm/collectives/hosts/hosts.h"
#include "comm/group/world_state.h"

/* ---- steps ---- */

/* The progress threads of the ranks of this host sleep on their transports. */
static void ring_listeners(const ms_hosts_lane *lane) {
  const ms_hosts_shape *shape = &lane->shape;
  const int here = ms_hosts_here(lane);
  for (int i = shape->first[here]; i < shape->first[here + 1]; i++)
    if (shape->member[i] != shape->me)
      ms_control_ring_step(ms_world_control(lane->world), lane->rank[shape->member[i]]);
}

void ms_hosts_await(ms_hosts_lane *lane, enum ms_ticket_step step, enum ms_hosts_stage stage) {
  ms_tickets_publish(&lane->tickets, step);
  ms_tickets_await(&lane->tickets, step);
  ring_listeners(lane);
  /* Later steps concern the ranks of one host only, and are taken by threads that wait for nothing else. */
  ms_recorder_target(lane->tickets.config.ring, lane->tickets.base + MS_TICKET_ENTERED);
  lane->stage = stage;
}

/* ---- entering and leaving ---- */

static int is_pair(const ms_hosts_lane *lane, const ms_coll *coll, int apart) {
  return ms_coll_is_pairwise(coll->kind) && lane->apart[coll->root] == apart;
}

static uint64_t *pairs_with(const ms_hosts_lane *lane, const ms_coll *coll) {
  return &lane->pairs[(coll->kind == MS_COLL_RECV ? lane->shape.size : 0) + coll->root];
}

static void enter_pair(ms_hosts_lane *lane, const ms_coll *coll) {
  ms_channel_entered(&lane->tickets.config, coll, *pairs_with(lane, coll) + 1);
  ms_hosts_begin_pair(lane);
  ms_recorder_target(lane->tickets.config.ring, 0);
  lane->moved_at = lane->entered_at;
  lane->stage = MS_HOSTS_WIRE;
}

static int begin(ms_hosts_lane *lane) {
  const ms_coll *coll = lane->queue[lane->ended % MS_COMM_QUEUE];
  lane->coll = coll;
  lane->entered_at = ms_clock();
  lane->failed_at = 0;
  if (is_pair(lane, coll, 0)) {
    lane->stage = MS_HOSTS_INSIDE;
    return ms_channel_shared_memory.start(lane->inside, coll);
  }
  MS_TRY(ms_hosts_sign(lane, coll));
  ms_tickets_begin(&lane->tickets, coll);
  if (is_pair(lane, coll, 1)) {
    enter_pair(lane, coll);
    return MS_OK;
  }
  ms_channel_entered(&lane->tickets.config, coll, ms_tickets_next(&lane->tickets, coll));
  ms_hosts_begin(lane);
  ms_tickets_sign(&lane->tickets);
  ms_hosts_await(lane, MS_TICKET_ENTERED, MS_HOSTS_ENTER);
  return MS_OK;
}

void ms_hosts_fail(ms_hosts_lane *lane) {
  ms_error_save(&lane->error);
  ms_error_clear();
  lane->cancel = lane->keyed;
  lane->stage = lane->ended < lane->started ? MS_HOSTS_FAILED : MS_HOSTS_BROKEN;
}

void ms_hosts_go_on(ms_hosts_lane *lane) {
  if (lane->stage != MS_HOSTS_DONE) return;
  if (!is_pair(lane, lane->coll, 0)) {
    ms_recorder_met(lane->tickets.config.ring);
    ms_recorder_left(lane->tickets.config.ring);
  }
  if (is_pair(lane, lane->coll, 1)) *pairs_with(lane, lane->coll) += 1;
  lane->ended++;
  lane->stage = MS_HOSTS_NONE;
  if (lane->ended < lane->started && begin(lane)) ms_hosts_fail(lane);
}

/* ---- starting and reporting ---- */

void ms_hosts_drop(ms_hosts_lane *lane) {
  if (lane->stage == MS_HOSTS_INSIDE) ms_channel_shared_memory.abort(lane->inside);
  lane->started = lane->ended = lane->reported = 0;
  lane->owner = NULL;
}

/* After a recovery. */
static void begin_anew(ms_hosts_lane *lane, unsigned epoch) {
  ms_hosts_drop(lane);
  lane->cancel = lane->keyed;
  lane->stage = MS_HOSTS_NONE;
  lane->epoch = epoch;
  memset(lane->pairs, 0, 2 * sizeof *lane->pairs * (size_t)lane->shape.size);
}

int ms_hosts_start(ms_hosts_lane *lane, const ms_channel *channel, const ms_coll *coll) {
  const unsigned epoch = ms_world_epoch(lane->world);
  const char *kind = ms_coll_kind_name(coll->kind), *label = coll->label ? coll->label : "";
  if (epoch != lane->epoch) begin_anew(lane, epoch);
  if (lane->stage == MS_HOSTS_FAILED || lane->stage == MS_HOSTS_BROKEN)
    return MS_FAIL(MS_EPEER, "%s %s: an operation of the same ranks failed or was given up before; recover first", kind,
                   label);
  if (lane->owner && lane->owner != channel)
    return MS_FAIL(MS_EINTERNAL, "%s %s: another communicator of the same ranks has operations in flight", kind, label);
  lane->queue[lane->started % MS_COMM_QUEUE] = coll;
  if (lane->stage == MS_HOSTS_NONE) MS_TRY(begin(lane));
  lane->started++;
  lane->owner = channel;
  return MS_OK;
}

int ms_hosts_report(ms_hosts_lane *lane) {
  if (lane->reported == lane->ended) return 0;
  if (++lane->reported == lane->started) lane->owner = NULL;
  return 1;
}
