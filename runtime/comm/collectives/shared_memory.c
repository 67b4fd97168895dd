/* shared_memory.c - channels within one host: peers' buffers are mapped here, so each rank moves its share of the
 * data by itself as soon as the others have entered. Most operations need no step between entered and finished.
 */
#include <stdlib.h>

#include "base/error.h"
#include "comm/collectives/move.h"
#include "comm/collectives/tickets.h"
#include "comm/collectives/channel.h"

struct ms_channel {
  ms_tickets tickets;
};

static int open_channel(const ms_channel_config *config, ms_channel **channel) {
  ms_channel *opened = ms_calloc(1, sizeof *opened);
  if (!opened) return MS_ENOMEM;
  opened->tickets.config = *config;
  *channel = opened;
  return MS_OK;
}

static int start(ms_channel *channel, const ms_coll *coll) {
  ms_tickets *t = &channel->tickets;
  ms_channel_entered(&t->config, coll, ms_tickets_next(t, coll));
  ms_tickets_begin(t, coll);
  if (ms_coll_is_pairwise(coll->kind)) {
    if (coll->kind == MS_COLL_SEND) ms_tickets_publish_pair(t, ms_tickets_sent(t, t->config.me, coll->root));
    ms_tickets_await(t, coll->kind == MS_COLL_SEND ? MS_TICKET_FINISHED : MS_TICKET_ENTERED);
    return MS_OK;
  }
  ms_tickets_sign(t);
  /* A broadcast's root and a barrier have no work between entering and finishing. */
  int at_once = coll->kind == MS_COLL_BARRIER || (coll->kind == MS_COLL_BROADCAST && coll->root == t->config.me);
  enum ms_ticket_step step = at_once ? MS_TICKET_FINISHED : MS_TICKET_ENTERED;
  ms_tickets_publish(t, step);
  ms_tickets_await(t, step);
  return MS_OK;
}

static void share_or_finish(ms_tickets *t, enum ms_ticket_step step) {
  ms_tickets_publish(t, step);
  ms_tickets_await(t, step);
}

/* Complete as soon as all ranks have entered. */
static int is_in_place_gather(const ms_coll *coll) {
  if (coll->kind != MS_COLL_ALL_GATHER) return 0;
  for (int i = 0; i < coll->parts; i++)
    if (coll->part[i].src) return 0;
  return 1;
}

/* The current wait is over: moves this rank's share, and continues with the next wait or the end. */
static int advance(ms_tickets *t) {
  const ms_channel_config *c = &t->config;
  int kind = t->coll->kind;
  if (t->phase == MS_TICKET_FINISHED) {
    t->phase = MS_TICKET_IDLE;
    return MS_OK;
  }
  if (t->phase == MS_TICKET_SHARED) {
    ms_move_pull(c->size, c->me, t->coll);
    share_or_finish(t, MS_TICKET_FINISHED);
    return MS_OK;
  }
  if (kind != MS_COLL_RECV) MS_TRY(ms_tickets_compare(t));
  ms_move_share(c->size, c->me, t->coll);
  if (kind == MS_COLL_RECV) ms_tickets_publish_pair(t, ms_tickets_received(t, c->me, t->coll->root));
  else share_or_finish(t, ms_move_pulls(c->size, c->me, t->coll) ? MS_TICKET_SHARED : MS_TICKET_FINISHED);
  if (kind == MS_COLL_RECV || kind == MS_COLL_BROADCAST || is_in_place_gather(t->coll)) t->phase = MS_TICKET_IDLE;
  return MS_OK;
}

static int test(ms_channel *channel, enum ms_progress *progress, ms_rank_set *missing) {
  ms_tickets *t = &channel->tickets;
  int met = 0;
  while (t->phase != MS_TICKET_IDLE && ms_tickets_all_have_come(t)) {
    met = 1;
    ms_recorder_met(t->config.ring); /* before this rank moves its share */
    MS_TRY(advance(t));
  }
  *progress = t->phase == MS_TICKET_IDLE ? MS_PROGRESS_DONE : met ? MS_PROGRESS_MET : MS_PROGRESS_WAITS;
  if (*progress == MS_PROGRESS_DONE) ms_recorder_left(t->config.ring);
  else if (missing) *missing = ms_tickets_missing(t);
  return MS_OK;
}

static void abort_operation(ms_channel *channel) { channel->tickets.phase = MS_TICKET_IDLE; }

static void close_channel(ms_channel *channel) { free(channel); }

const ms_channel_api ms_channel_shared_memory = {.name = "shared memory",
                                                 .depth = 1,
                                                 .open = open_channel,
                                                 .start = start,
                                                 .test = test,
                                                 .abort = abort_operation,
                                                 .close = close_channel};
