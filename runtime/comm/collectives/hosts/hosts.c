/* hosts.c - channels among ranks of several hosts: the table, and the stages of an operation. The progress thread takes
 * an operation through all of them, and the program's thread helps when it looks.
 *
 *   enter    the ranks of this host have entered (tickets)
 *   wire     the partners have entered the same, and all pieces have moved (hosts_plan.h says which, hosts_move.c how)
 *   share    all-reduce: the ranks of this host have their regions' sums, and copy each other's
 *   finish   the ranks of this host have finished, so no rank reads their buffers any more
 *
 * A rank waits for the ranks of its host and for its partners; each rank of another host is the partner of one rank of
 * this host, so an operation is done only when all ranks have entered it. A send or recv has only the wire, and waits
 * for one rank (hosts_pair.c). Groups that lie inside one host do not come here.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/text/hash.h"
#include "comm/collectives/hosts/hosts.h"
#include "comm/collectives/move.h"
#include "comm/group/world_state.h"

/* Seconds from the end of a connection to the failure of the operation. A rank that died is named by the store, to all
 * ranks alike, and one that gave up says why; those that end because of it close their connections too, and must not be
 * blamed. */
static const double FAILURE_GRACE = 0.5;
/* Seconds before the deadline, at most, and as a share of it, from which a failed connection is reported without that
 * grace: the wait would end with less to say. Hearing the other hosts takes most of them. */
static const double LAST_SECONDS = 1.25, LAST_SHARE = 0.25;

struct ms_channel {
  ms_hosts_lane *lane;
};

/* ---- steps within the host, by either thread ---- */

static void finish(ms_hosts_lane *lane) {
  const ms_coll *coll = lane->coll;
  /* The ranks that copy a broadcast from its root do not wait. */
  int waits = coll->kind != MS_COLL_BROADCAST || coll->root == lane->shape.me || lane->apart[coll->root];
  ms_hosts_await(lane, MS_TICKET_FINISHED, waits ? MS_HOSTS_FINISH : MS_HOSTS_DONE);
}

/* This rank's share of what needs no wire. */
static void share(const ms_hosts_lane *lane) {
  const ms_coll *coll = lane->coll;
  int here = coll->kind == MS_COLL_BROADCAST && coll->root != lane->shape.me && !lane->apart[coll->root];
  if (here || coll->kind == MS_COLL_ALL_TO_ALL) ms_move_share(lane->shape.size, lane->shape.me, coll);
}

static int step_inside(ms_hosts_lane *lane, ms_rank_set *missing) {
  enum ms_progress progress;
  MS_TRY(ms_channel_shared_memory.test(lane->inside, &progress, missing));
  if (progress == MS_PROGRESS_DONE) lane->stage = MS_HOSTS_DONE;
  return MS_OK;
}

static int step_within(ms_hosts_lane *lane) {
  while (ms_hosts_is_within(lane->stage) && ms_tickets_all_have_come(&lane->tickets)) {
    if (lane->stage == MS_HOSTS_ENTER) {
      MS_TRY(ms_tickets_compare(&lane->tickets));
      share(lane);
      lane->stage = MS_HOSTS_WIRE;
      lane->moved_at = ms_clock();
    } else if (lane->stage == MS_HOSTS_SHARE) {
      ms_hosts_pull(lane);
      finish(lane);
    } else lane->stage = MS_HOSTS_DONE;
  }
  return MS_OK;
}

/* ---- the progress thread's turn ---- */

static void forget_words(ms_hosts_partner *x) {
  x->take.state = x->tell.state = x->take_asked.state = x->tell_asked.state = MS_TRANSFER_IDLE;
}

/* Afterwards the endpoint touches no memory of the operation. */
static void cancel(ms_hosts_lane *lane) {
  ms_endpoint *endpoint = ms_progress_endpoint(lane->thread);
  for (uint64_t k = 0; lane->keyed && k < MS_HOSTS_KEYS; k++)
    ms_progress_api(lane->thread)->cancel(endpoint, lane->key + k);
  for (int i = 0; i < lane->partners; i++) forget_words(&lane->partner[i]);
  forget_words(&lane->peer);
  lane->keyed = lane->cancel = 0;
  pthread_cond_broadcast(&lane->cancelled);
}

/* Every recovery begins with new keys: the old ones may still be in use on another rank. */
static void use_key(ms_hosts_lane *lane) {
  if (lane->keyed) return;
  lane->key = ms_hash_int(lane->name, (int64_t)lane->epoch) & ~3ull;
  lane->keyed = 1;
}

static int is_over(const ms_hosts_lane *lane) {
  for (int i = 0; i < lane->partners; i++)
    if (!ms_hosts_is_over_with(&lane->partner[i])) return 0;
  return 1;
}

/* If a host's link is down, all its connections fail; on other hosts only those to it do. */
static void note_lost_hosts(const ms_hosts_lane *lane, const ms_hosts_partner *noticed) {
  int lost = 0;
  for (int host = 0; host < lane->shape.hosts; host++) {
    int failed = lane->shape.host_of[noticed->p] == host;
    for (int i = 0; i < lane->partners && !failed; i++) {
      const ms_hosts_partner *x = &lane->partner[i];
      failed = lane->shape.host_of[x->p] == host && ms_progress_failure(lane->thread, x->rank);
    }
    lost += failed;
  }
  ms_control_note_lost(ms_world_control(lane->world), lost);
}

static double end_of_grace(const ms_hosts_lane *lane) {
  double end = lane->failed_at + ms_wait_scale * FAILURE_GRACE;
  /* The partner of a send or recv connects when it enters: it can just be late. */
  if (ms_coll_is_pairwise(lane->coll->kind)) return end;
  const double timeout = lane->world->timeout;
  return fmin(end, lane->entered_at + timeout - fmin(LAST_SECONDS, LAST_SHARE * timeout));
}

static int check_partner(ms_hosts_lane *lane, const ms_hosts_partner *x) {
  const char *why = ms_progress_failure(lane->thread, x->rank), *label = lane->coll->label;
  if (!why || ms_hosts_is_over_with(x)) return MS_OK;
  if (lane->failed_at == 0) lane->failed_at = ms_clock();
  if (ms_clock() < end_of_grace(lane)) return MS_OK;
  note_lost_hosts(lane, x);
  return MS_FAIL(MS_EPEER, "%s %s: the connection between rank %d and rank %d failed: %s",
                 ms_coll_kind_name(lane->coll->kind), label ? label : "", lane->rank[lane->shape.me], x->rank, why);
}

static int check_partners(ms_hosts_lane *lane) {
  for (int i = 0; i < lane->partners; i++) MS_TRY(check_partner(lane, &lane->partner[i]));
  return MS_OK;
}

static int move(ms_hosts_lane *lane, int *busy) {
  if (lane->stage == MS_HOSTS_WIRE) MS_TRY(ms_hosts_move(lane, busy));
  if (lane->stage != MS_HOSTS_WIRE || !is_over(lane)) return check_partners(lane);
  for (int i = 0; i < lane->partners; i++) forget_words(&lane->partner[i]);
  if (ms_hosts_pulls(lane)) ms_hosts_await(lane, MS_TICKET_SHARED, MS_HOSTS_SHARE);
  else finish(lane);
  *busy = 1;
  return step_within(lane);
}

static int move_pair(ms_hosts_lane *lane, int *news) {
  MS_TRY(ms_hosts_move_pair(lane, news));
  if (!ms_hosts_is_over_with(&lane->peer)) return check_partner(lane, &lane->peer);
  forget_words(&lane->peer);
  lane->stage = MS_HOSTS_DONE;
  return MS_OK;
}

/* ---- the operation in flight ---- */

static enum ms_progress progress_of(const ms_hosts_lane *lane) {
  if (lane->stage == MS_HOSTS_DONE) return MS_PROGRESS_DONE;
  if (lane->stage == MS_HOSTS_ENTER || lane->stage == MS_HOSTS_INSIDE) return MS_PROGRESS_WAITS;
  if (ms_coll_is_pairwise(lane->coll->kind)) return lane->peer.agreed ? MS_PROGRESS_MET : MS_PROGRESS_WAITS;
  for (int i = 0; i < lane->partners; i++)
    if (!lane->partner[i].agreed) return MS_PROGRESS_WAITS;
  return MS_PROGRESS_MET;
}

/* After a step by either thread. */
static void go_on(ms_hosts_lane *lane) {
  if (ms_hosts_is_in_flight(lane) && progress_of(lane) == MS_PROGRESS_MET) ms_recorder_met(lane->tickets.config.ring);
  ms_hosts_go_on(lane);
}

static int advance(ms_hosts_lane *lane, int *news, int *busy) {
  use_key(lane);
  if (lane->stage != MS_HOSTS_SHARE && lane->stage != MS_HOSTS_FINISH) MS_TRY(ms_hosts_agree(lane, news));
  if (lane->stage == MS_HOSTS_INSIDE) return step_inside(lane, NULL);
  if (!ms_hosts_is_in_flight(lane)) return MS_OK;
  if (ms_coll_is_pairwise(lane->coll->kind)) return move_pair(lane, news);
  MS_TRY(step_within(lane));
  return lane->stage == MS_HOSTS_ENTER || lane->stage == MS_HOSTS_WIRE ? move(lane, busy) : MS_OK;
}

static int is_whole(const ms_hosts_lane *lane) {
  return lane->stage != MS_HOSTS_FAILED && lane->stage != MS_HOSTS_BROKEN;
}

/* A send within the host rings no listener. */
static int has_to_poll(const ms_hosts_lane *lane) {
  return lane->stage == MS_HOSTS_INSIDE || (lane->failed_at > 0 && ms_hosts_is_in_flight(lane));
}

/* The program's thread has the lock for a moment, or while it copies: it wakes this one when it is done (unlock). */
static int take_lock(ms_hosts_lane *lane) {
  if (!pthread_mutex_trylock(&lane->lock)) return 1;
  atomic_store(&lane->wanted, 1);
  return !pthread_mutex_trylock(&lane->lock);
}

static enum ms_turn turn(ms_progress_task *task) {
  ms_hosts_lane *lane = (ms_hosts_lane *)task;
  int news = 0, busy = 0;
  if (!take_lock(lane)) return MS_TURN_SLEEPS;
  const enum ms_hosts_stage before = lane->stage;
  const uint64_t ended = lane->ended;
  if (lane->cancel) cancel(lane);
  if (is_whole(lane) && advance(lane, &news, &busy)) ms_hosts_fail(lane);
  go_on(lane);
  /* The next operation has begun: its first messages leave at once. */
  busy |= lane->ended != ended || lane->cancel;
  enum ms_turn needs = busy ? MS_TURN_BUSY : has_to_poll(lane) ? MS_TURN_POLLS : MS_TURN_SLEEPS;
  news |= lane->stage != before || lane->ended != ended;
  pthread_mutex_unlock(&lane->lock);
  if (news) ms_control_ring(ms_world_control(lane->world), ms_world_rank(lane->world));
  return needs;
}

/* In the program's thread. */
static void unlock(ms_hosts_lane *lane) {
  pthread_mutex_unlock(&lane->lock);
  if (atomic_exchange(&lane->wanted, 0)) ms_progress_wake(lane->thread);
}

/* ---- giving up ---- */

/* Waits until the progress thread has cancelled what is in flight. */
static void give_up_locked(ms_hosts_lane *lane) {
  ms_hosts_drop(lane);
  if (lane->stage == MS_HOSTS_NONE) return;
  lane->stage = MS_HOSTS_BROKEN;
  lane->cancel = lane->keyed;
  while (lane->cancel) {
    ms_progress_wake(lane->thread);
    pthread_cond_wait(&lane->cancelled, &lane->lock);
  }
}

static void give_up(ms_progress_task *task) {
  ms_hosts_lane *lane = (ms_hosts_lane *)task;
  pthread_mutex_lock(&lane->lock);
  give_up_locked(lane);
  unlock(lane);
}

/* ---- the table ---- */

static int open_channel(const ms_channel_config *config, ms_channel **channel) {
  int rc;
  if (!config->world->progress) return ms_world_check_one_host(config->world, config->size, config->rank);
  ms_channel *opened = ms_calloc(1, sizeof *opened);
  if (!opened) return MS_ENOMEM;
  MS_GOTO(ms_hosts_lane_open(config, &(ms_progress_task){.turn = turn, .give_up = give_up}, &opened->lane));
  *channel = opened;
  return MS_OK;
fail:
  free(opened);
  return rc;
}

/* Plans share copies among replicas of one host only (plan/nodes.c). */
static int check_supported(const ms_hosts_lane *lane, const ms_coll *coll) {
  if (coll->replicas <= 1) return MS_OK;
  return MS_FAIL(MS_EINTERNAL, "%s %s: %d replicas share one copy, but their ranks are on %d hosts",
                 ms_coll_kind_name(coll->kind), coll->label ? coll->label : "", coll->replicas, lane->shape.hosts);
}

static int start(ms_channel *channel, const ms_coll *coll) {
  ms_hosts_lane *lane = channel->lane;
  MS_TRY(check_supported(lane, coll));
  if (ms_coll_is_pairwise(coll->kind) && lane->apart[coll->root]) MS_TRY(ms_hosts_meet_peer(lane, coll->root));
  pthread_mutex_lock(&lane->lock);
  int rc = ms_hosts_start(lane, channel, coll);
  atomic_store(&lane->wanted, 1);
  unlock(lane);
  return rc;
}

/* The oldest operation is the one in flight. */
static int step(ms_hosts_lane *lane, enum ms_progress *progress, ms_rank_set *missing) {
  const enum ms_hosts_stage before = lane->stage;
  if (before == MS_HOSTS_FAILED) {
    ms_error_restore(&lane->error);
    return ms_error_code();
  }
  if (!ms_hosts_is_in_flight(lane)) return MS_FAIL(MS_EPEER, "the operation was given up by a recovery");
  MS_TRY(before == MS_HOSTS_INSIDE ? step_inside(lane, missing) : step_within(lane));
  *progress = progress_of(lane);
  if (missing && ms_hosts_is_in_flight(lane) && before != MS_HOSTS_INSIDE) *missing = ms_hosts_missing(lane);
  if (lane->stage != before) atomic_store(&lane->wanted, 1);
  go_on(lane);
  return MS_OK;
}

/* With the lock. */
static int look(ms_hosts_lane *lane, enum ms_progress *progress, ms_rank_set *missing) {
  if (lane->reported == lane->ended) MS_TRY(step(lane, progress, missing));
  if (ms_hosts_report(lane)) *progress = MS_PROGRESS_DONE;
  return MS_OK;
}

static int test(ms_channel *channel, enum ms_progress *progress, ms_rank_set *missing) {
  ms_hosts_lane *lane = channel->lane;
  *progress = MS_PROGRESS_WAITS;
  /* While the progress thread has its turn, there is nothing to do here; it rings when something has changed. */
  if (missing) pthread_mutex_lock(&lane->lock);
  else if (pthread_mutex_trylock(&lane->lock)) return MS_OK;
  int rc = look(lane, progress, missing);
  unlock(lane);
  return rc;
}

static void abort_operations(ms_channel *channel) {
  ms_hosts_lane *lane = channel->lane;
  pthread_mutex_lock(&lane->lock);
  if (lane->owner == channel) give_up_locked(lane);
  unlock(lane);
}

static void close_channel(ms_channel *channel) { free(channel); }

const ms_channel_api ms_channel_hosts = {.name = "hosts",
                                         .depth = MS_COMM_QUEUE,
                                         .open = open_channel,
                                         .start = start,
                                         .test = test,
                                         .abort = abort_operations,
                                         .close = close_channel};
