/* comm.c - communicators: argument checks and waits around the operations of a channel. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/numbers/dtype.h"
#include "base/error.h"
#include "comm/collectives/tickets.h"
#include "comm/collectives/channel.h"
#include "comm/group/world_state.h"

/* Longest sleep while bytes move. */
static const double MOVING_SECONDS = 0.05;

struct ms_comm {
  ms_world *world;
  ms_recorder *recorder;
  ms_recorder_ring *ring;
  int size, me; /* me: the group rank */
  int *rank;    /* [size] world ranks */
  const ms_channel_api *api;
  ms_channel *channel;
  const ms_coll *queue[MS_COMM_QUEUE]; /* operation k, from 0, is in place k % MS_COMM_QUEUE */
  uint64_t started, reported;          /* operations; reported: as done */
  uint64_t at;                         /* the oldest operation's place in the ring, as a count of records */
  int done, failed;                    /* the oldest operation: it is done and not reported; its test failed */
  unsigned epoch;                      /* the world's epoch when an operation was started last */
  ms_tickets tickets;                  /* of collectives that run on a device */
  const ms_coll *on_device;            /* the one in flight there; NULL: none is */
};

/* ---- opening ---- */

static int check_members(const ms_world *world, int n, const int *ranks, int channel, int *me) {
  if (n < 2) return MS_FAIL(MS_EINVAL, "a communicator needs at least 2 ranks, not %d", n);
  if (n > ms_world_size(world))
    return MS_FAIL(MS_EINVAL, "a communicator of %d ranks in a world of %d", n, ms_world_size(world));
  if (channel < 0 || channel >= MS_GROUP_CHANNELS)
    return MS_FAIL(MS_EINVAL, "channel %d: channels are 0 to %d", channel, MS_GROUP_CHANNELS - 1);
  ms_rank_set members = {{0}};
  *me = -1;
  for (int i = 0; i < n; i++) {
    if (ranks[i] < 0 || ranks[i] >= ms_world_size(world))
      return MS_FAIL(MS_EINVAL, "a communicator with rank %d in a world of %d", ranks[i], ms_world_size(world));
    if (ms_rank_set_has(&members, ranks[i])) return MS_FAIL(MS_EINVAL, "a communicator with rank %d twice", ranks[i]);
    ms_rank_set_add(&members, ranks[i]);
    if (ranks[i] == ms_world_rank(world)) *me = i;
  }
  if (*me >= 0) return MS_OK;
  return MS_FAIL(MS_EINVAL, "a communicator without rank %d, which opens it", ms_world_rank(world));
}

/* Of members that were checked, of which this rank is the one at `me`. */
static int open_among(const ms_channel_api *api, ms_world *world, int n, const int *ranks, int channel, int me,
                      ms_comm **comm) {
  int rc;
  ms_group_entry *entry = NULL;
  ms_comm *opened = ms_calloc(1, sizeof *opened);
  if (!opened) return MS_ENOMEM;
  MS_GOTO(ms_group_enter(world, n, ranks, channel, &entry, &opened->ring));
  opened->world = world;
  opened->recorder = ms_world_recorder(world);
  opened->size = n;
  opened->me = me;
  opened->rank = ms_calloc(n, sizeof *ranks);
  if (!opened->rank) MS_GOTO(MS_ENOMEM);
  memcpy(opened->rank, ranks, sizeof *ranks * (size_t)n);
  opened->tickets.config = (ms_channel_config){
      .world = world, .size = n, .me = me, .rank = opened->rank, .entry = entry, .ring = opened->ring};
  opened->api = api;
  MS_GOTO(api->open(&opened->tickets.config, &opened->channel));
  *comm = opened;
  return MS_OK;
fail:
  free(opened->rank);
  free(opened);
  return rc;
}

int ms_comm_open_over(const ms_channel_api *api, ms_world *world, int n, const int *ranks, int channel,
                      ms_comm **comm) {
  int me;
  MS_TRY(check_members(world, n, ranks, channel, &me));
  return open_among(api, world, n, ranks, channel, me, comm);
}

int ms_comm_open(ms_world *world, int n, const int *ranks, int channel, ms_comm **comm) {
  int me, spans = 0;
  MS_TRY(check_members(world, n, ranks, channel, &me));
  for (int i = 1; i < n; i++) spans |= ms_world_node_of(world, ranks[i]) != ms_world_node_of(world, ranks[0]);
  return open_among(spans ? &ms_channel_hosts : &ms_channel_shared_memory, world, n, ranks, channel, me, comm);
}

static int in_flight(const ms_comm *comm) { return (int)(comm->started - comm->reported); }

void ms_comm_give_up(ms_comm *comm) {
  if (in_flight(comm)) comm->api->abort(comm->channel);
  comm->started = comm->reported = 0;
  comm->done = comm->failed = 0;
}

void ms_comm_close(ms_comm *comm) {
  if (!comm) return;
  ms_comm_give_up(comm);
  comm->api->close(comm->channel);
  free(comm->rank);
  free(comm);
}

int ms_comm_size(const ms_comm *comm) { return comm->size; }

int ms_comm_rank(const ms_comm *comm) { return comm->me; }

const int *ms_comm_ranks(const ms_comm *comm) { return comm->rank; }

ms_recorder_ring *ms_comm_ring(const ms_comm *comm) { return comm->ring; }

const ms_recorder_record *ms_comm_last_done(const ms_comm *comm) {
  return &comm->ring->record[(comm->at - 1) % MS_RECORDER_RECORDS];
}

/* ---- starting ---- */

static int check_part(const ms_comm *comm, const ms_coll *coll, const ms_coll_part *part) {
  const char *kind = ms_coll_kind_name(coll->kind), *label = coll->label ? coll->label : "";
  int sums = coll->kind == MS_COLL_REDUCE_SCATTER || coll->kind == MS_COLL_ALL_REDUCE;
  if (part->count < 0)
    return MS_FAIL(MS_EINVAL, "%s %s: negative number of elements: %lld", kind, label, (long long)part->count);
  if (coll->kind != MS_COLL_BARRIER && !(ms_dtype_row_of(part->src_dtype) && ms_dtype_row_of(part->dst_dtype)))
    return MS_FAIL(MS_EDTYPE, "%s %s: unknown element type %d", kind, label,
                   ms_dtype_row_of(part->src_dtype) ? part->dst_dtype : part->src_dtype);
  if (coll->kind != MS_COLL_BARRIER && !(ms_dtype_size(part->src_dtype) && ms_dtype_size(part->dst_dtype)))
    return MS_FAIL(MS_EDTYPE, "%s %s: %s elements share bytes; send the bytes as u8", kind, label,
                   ms_dtype_name(ms_dtype_size(part->src_dtype) ? part->dst_dtype : part->src_dtype));
  if (coll->kind == MS_COLL_ALL_GATHER && ms_part_is_coded(part)) return MS_OK;
  const int needed = MS_DTYPE_REDUCE | MS_DTYPE_LOOPS; /* sum.c tells bf16 from f32 and asks no further */
  if ((sums || part->src_dtype != part->dst_dtype) &&
      !(ms_dtype_may(part->src_dtype, needed) && ms_dtype_may(part->dst_dtype, needed)))
    return MS_FAIL(MS_EDTYPE, "%s %s: %s to %s: sums and casts support only f32 and bf16", kind, label,
                   ms_dtype_name(part->src_dtype), ms_dtype_name(part->dst_dtype));
  if (sums && part->accumulate && !ms_dtype_may(part->dst_dtype, MS_DTYPE_SUM))
    return MS_FAIL(MS_EDTYPE, "%s %s: can accumulate only in f32, not in %s", kind, label,
                   ms_dtype_name(part->dst_dtype));
  if (coll->kind == MS_COLL_ALL_TO_ALL && (part->accumulate || part->src_dtype != part->dst_dtype))
    return MS_FAIL(MS_EDTYPE, "%s %s: it moves elements as they are: %s to %s%s", kind, label,
                   ms_dtype_name(part->src_dtype), ms_dtype_name(part->dst_dtype), part->accumulate ? ", added" : "");
  if (coll->largest && (coll->kind != MS_COLL_ALL_REDUCE || part->accumulate))
    return MS_FAIL(MS_EINVAL, "%s %s: only an all_reduce that does not accumulate takes the largest number", kind,
                   label);
  if (coll->kind != MS_COLL_ALL_REDUCE || part->dst != part->shared[comm->me] || !part->count) return MS_OK;
  if (part->accumulate || part->src_dtype != part->dst_dtype)
    return MS_FAIL(MS_EINVAL, "%s %s: in place, it cannot accumulate or change the element type", kind, label);
  return MS_OK;
}

static const ms_coll *oldest(const ms_comm *comm) { return comm->queue[comm->reported % MS_COMM_QUEUE]; }

int ms_comm_free(const ms_comm *comm) {
  if (comm->epoch != ms_world_epoch(comm->world)) return comm->api->depth;
  if (comm->on_device) return 0;
  return comm->failed ? 0 : comm->api->depth - in_flight(comm);
}

int ms_comm_start(ms_comm *comm, const ms_coll *coll) {
  unsigned epoch = ms_world_epoch(comm->world);
  const char *kind = ms_coll_kind_name(coll->kind);
  if (!ms_comm_free(comm)) {
    const ms_coll *first = comm->on_device ? comm->on_device : oldest(comm);
    return MS_FAIL(MS_EINTERNAL, "%s was started while %s is in flight", kind, ms_coll_kind_name(first->kind));
  }
  int pairwise = ms_coll_is_pairwise(coll->kind), rooted = coll->kind == MS_COLL_BROADCAST || pairwise;
  if (rooted && (coll->root < 0 || coll->root >= comm->size || (pairwise && coll->root == comm->me)))
    return MS_FAIL(MS_EINVAL, "%s: invalid peer or root %d in a group of %d", kind, coll->root, comm->size);
  for (int i = 0; i < coll->parts; i++) MS_TRY(check_part(comm, coll, &coll->part[i]));
  if (comm->epoch != epoch) ms_comm_give_up(comm); /* given up before a recovery */
  comm->epoch = epoch;
  if (!in_flight(comm)) comm->at = atomic_load_explicit(&comm->ring->head, memory_order_relaxed);
  MS_TRY(comm->api->start(comm->channel, coll));
  comm->queue[comm->started++ % MS_COMM_QUEUE] = coll;
  return MS_OK;
}

/* ---- waiting for completion ---- */

static int advance(ms_comm *comm, int *done, ms_rank_set *missing) {
  enum ms_progress progress = MS_PROGRESS_DONE;
  *done = comm->done || !in_flight(comm);
  if (*done) return MS_OK;
  comm->failed = comm->api->test(comm->channel, &progress, missing) != MS_OK;
  if (comm->failed) return ms_error_code() == MS_EPEER ? ms_world_collect_cause(comm->world) : ms_error_code();
  *done = comm->done = progress == MS_PROGRESS_DONE;
  return MS_OK;
}

/* A rank that has finished the operation can give up afterwards for another reason. Testing once more after the check
 * ensures that an operation that all ranks entered completes on all of them, or on none. */
static int test(ms_comm *comm, int *done) {
  MS_TRY(advance(comm, done, NULL));
  if (*done) return MS_OK;
  ms_error_record before;
  ms_error_save(&before);
  int rc = ms_world_check(comm->world);
  if (!rc) return MS_OK;
  ms_rank_set missing = {{0}};
  if (advance(comm, done, &missing)) return ms_error_code();
  if (!*done && !ms_rank_set_is_empty(&missing)) {
    ms_recorder_misses(comm->recorder, comm->ring, &missing);
    return rc;
  }
  ms_error_restore(&before);
  return MS_OK;
}

int ms_comm_test(ms_comm *comm, int *done) {
  MS_TRY(test(comm, done));
  if (!comm->done) return MS_OK;
  comm->done = 0;
  comm->reported++;
  comm->at++;
  return MS_OK;
}

static int find_missing(void *context, ms_rank_set *missing) {
  int done;
  *missing = (ms_rank_set){{0}};
  return advance(context, &done, missing);
}

int ms_comm_pause(ms_comm *comm, ms_wait *wait, unsigned seen) {
  int done;
  ms_rank_set missing = {{0}};
  MS_TRY(advance(comm, &done, &missing));
  if (done) return MS_OK;
  /* All have entered, and bytes are on their way: the channel rings the doorbell, and names ranks if they stop. */
  if (ms_rank_set_is_empty(&missing)) {
    ms_world_sleep(comm->world, seen, MOVING_SECONDS);
    return MS_OK;
  }
  ms_wait_for others = {.kind = ms_coll_kind_name(oldest(comm)->kind),
                        .label = oldest(comm)->label,
                        .ring = comm->ring,
                        .find = find_missing,
                        .context = comm};
  return ms_world_wait_turn(comm->world, wait, &others, seen);
}

int ms_comm_wait(ms_comm *comm) {
  ms_wait wait = {0};
  for (;;) {
    unsigned seen = ms_world_doorbell(comm->world);
    int done;
    MS_TRY(ms_comm_test(comm, &done));
    if (done) return MS_OK;
    MS_TRY(ms_comm_pause(comm, &wait, seen));
  }
}

/* ---- collectives that run on a device ----
 *
 * The communicator keeps only their count and their records, so deadlines, reports and comparisons work as for the
 * collectives of this process. */

void ms_comm_entered(ms_comm *comm, const ms_coll *coll) {
  comm->on_device = coll;
  comm->epoch = ms_world_epoch(comm->world);
  ms_channel_entered(&comm->tickets.config, coll, ms_tickets_next(&comm->tickets, coll));
  ms_tickets_begin(&comm->tickets, coll);
  ms_tickets_sign(&comm->tickets);
  ms_tickets_publish(&comm->tickets, MS_TICKET_ENTERED);
  ms_tickets_await(&comm->tickets, MS_TICKET_ENTERED);
}

void ms_comm_left(ms_comm *comm) {
  ms_recorder_met(comm->ring);
  ms_recorder_misses(comm->recorder, comm->ring, NULL);
  ms_tickets_publish(&comm->tickets, MS_TICKET_FINISHED);
  comm->tickets.phase = MS_TICKET_IDLE;
  comm->on_device = NULL;
  ms_recorder_left(comm->ring);
}

int ms_comm_watch(ms_comm *comm, ms_wait *wait) {
  double rest;
  const ms_coll *coll = comm->on_device;
  const char *kind = ms_coll_kind_name(coll->kind), *label = coll->label ? coll->label : "";
  const ms_world *world = comm->world;
  ms_rank_set missing = ms_tickets_missing(&comm->tickets);
  int all_came = ms_rank_set_is_empty(&missing);
  ms_recorder_misses(comm->recorder, comm->ring, all_came ? NULL : &missing);
  if (!all_came)
    return ms_world_watch(comm->world, wait, &(ms_wait_for){.kind = kind, .label = label}, &missing, &rest);
  ms_recorder_met(comm->ring);
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
