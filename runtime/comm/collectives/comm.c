/* comm.c - the state machine of an operation of a communicator.
**
** Every rank counts three steps an operation in its ticket: entered, shared (its part of a result stands where peers
** can read it), finished. An operation waits for the tickets of the others, does this rank's share of the data
** movement, and counts on; most go from entered to finished at once. Send and recv count apart, pair by pair, because
** the other ranks of the group take no part.
*/
#include <stdio.h>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/error.h"
#include "comm/collectives/comm_state.h"
#include "comm/collectives/move.h"
#include "comm/diagnose/report.h"

static const char *const kind_names[MS_RECORDER_KINDS] = {
    [MS_COLL_ALL_GATHER] = "all_gather",
    [MS_COLL_REDUCE_SCATTER] = "reduce_scatter",
    [MS_COLL_ALL_REDUCE] = "all_reduce",
    [MS_COLL_BROADCAST] = "broadcast",
    [MS_COLL_BARRIER] = "barrier",
    [MS_COLL_SEND] = "send",
    [MS_COLL_RECV] = "recv",
    [MS_RECORDER_ALL_GATHER_BYTES] = "all_gather_bytes",
    [MS_RECORDER_MESH] = "mesh",
};

_Static_assert((int)MS_RECORDER_ALL_GATHER_BYTES == (int)MS_COLL_KINDS,
               "the flight recorder's kinds follow those of collectives");

const char *ms_coll_kind_name(int kind) { return kind_names[kind >= 0 && kind < MS_RECORDER_KINDS ? kind : 0]; }

/* ---- checks at start ---- */

static int is_pairwise(int kind) { return kind == MS_COLL_SEND || kind == MS_COLL_RECV; }

static int check_part(const ms_comm *comm, const ms_coll *coll, const ms_coll_part *part) {
  const char *kind = kind_names[coll->kind], *label = coll->label ? coll->label : "";
  int sums = coll->kind == MS_COLL_REDUCE_SCATTER || coll->kind == MS_COLL_ALL_REDUCE;
  if (part->count < 0) return MS_FAIL(MS_EINVAL, "%s %s: %lld elements", kind, label, (long long)part->count);
  if (coll->kind != MS_COLL_BARRIER && !(ms_dtype_row_of(part->src_dtype) && ms_dtype_row_of(part->dst_dtype)))
    return MS_FAIL(MS_EDTYPE, "%s %s: there is no element type %d", kind, label,
                   ms_dtype_row_of(part->src_dtype) ? part->dst_dtype : part->src_dtype);
  if ((sums || part->src_dtype != part->dst_dtype) &&
      !(ms_dtype_may(part->src_dtype, MS_DTYPE_REDUCE) && ms_dtype_may(part->dst_dtype, MS_DTYPE_REDUCE)))
    return MS_FAIL(MS_EDTYPE, "%s %s: %s to %s; sums and casts are of f32 and bf16", kind, label,
                   ms_dtype_name(part->src_dtype), ms_dtype_name(part->dst_dtype));
  if (sums && part->accumulate && !ms_dtype_may(part->dst_dtype, MS_DTYPE_SUM))
    return MS_FAIL(MS_EDTYPE, "%s %s: accumulates in f32 only, not in %s", kind, label, ms_dtype_name(part->dst_dtype));
  if (coll->kind != MS_COLL_ALL_REDUCE || part->dst != part->shared[comm->me] || !part->count) return MS_OK;
  if (part->accumulate || part->src_dtype != part->dst_dtype)
    return MS_FAIL(MS_EINVAL, "%s %s: in place, it cannot accumulate or change the element type", kind, label);
  return MS_OK;
}

/* What a rank entered, for its peers: kind, number of parts, a sum over the ways of an all-reduce's parts, elements. */
enum { SIGN_KIND = 60, SIGN_PARTS = 52, SIGN_WAYS = 44 };
static const uint64_t SIGN_ELEMENTS = (1ull << SIGN_WAYS) - 1;

static uint64_t sign(const ms_comm *comm, const ms_coll *coll) {
  uint64_t elements = 0, ways = 0;
  for (int i = 0; i < coll->parts; i++) {
    elements += (uint64_t)coll->part[i].count;
    if (coll->kind == MS_COLL_ALL_REDUCE)
      ways += (uint64_t)ms_move_way(comm->size, comm->me, coll, &coll->part[i]) * (uint64_t)(i + 1);
  }
  return (uint64_t)coll->kind << SIGN_KIND | ((uint64_t)coll->parts & 0xff) << SIGN_PARTS | (ways & 0xff) << SIGN_WAYS |
         (elements & SIGN_ELEMENTS);
}

/* "all_gather layers.3 (phase first of step 5) of 4 parts, 12 elements": the flight recorder knows what the signature
** does not. */
static void describe_entered(const ms_comm *comm, int p, uint64_t signature, char *text, size_t bytes) {
  char named[192];
  uint32_t group = ms_comm_group_number(comm->world, comm->group);
  ms_report_entered(ms_world_control(comm->world), comm->rank[p], group, comm->base / FINISHED + 1, named,
                    sizeof named);
  snprintf(text, bytes, "%s of %d parts, %lld elements",
           *named ? named : kind_names[(signature >> SIGN_KIND) % MS_COLL_KINDS], (int)(signature >> SIGN_PARTS & 0xff),
           (long long)(signature & SIGN_ELEMENTS));
}

static int report_mismatch(const ms_comm *comm, int p, uint64_t mine, uint64_t theirs) {
  char ours[256], peers[256], caught[MS_CONTROL_TEXT];
  ms_report_noted(ms_world_control(comm->world), caught, sizeof caught);
  describe_entered(comm, comm->me, mine, ours, sizeof ours);
  describe_entered(comm, p, theirs, peers, sizeof peers);
  return MS_FAIL(MS_EMISMATCH, "%s%sranks disagree: rank %d entered %s; rank %d entered %s%s", caught,
                 *caught ? "; now " : "", comm->rank[comm->me], ours, comm->rank[p], peers,
                 (mine ^ theirs) >> SIGN_WAYS & 0xff ? "; one of them is in place, the other is not" : "");
}

/* The signature of a peer that has finished may be that of its next operation already. It need not be compared then:
** the peer has compared itself with this rank, whose signature stands. */
static int compare_signatures(const ms_comm *comm) {
  const ms_control_ticket *ticket = comm->group->ticket;
  uint64_t mine = atomic_load_explicit(&ticket[comm->me].signature, memory_order_relaxed);
  for (int p = 0; p < comm->size; p++) {
    if (comm->coll->kind == MS_COLL_BROADCAST && p != comm->coll->root) continue;
    uint64_t theirs = atomic_load_explicit(&ticket[p].signature, memory_order_acquire);
    int finished = atomic_load_explicit(&ticket[p].count, memory_order_acquire) >= comm->base + FINISHED;
    if (theirs != mine && !finished) return report_mismatch(comm, p, mine, theirs);
  }
  return MS_OK;
}

/* ---- the state machine ---- */

/* Stores this rank's ticket (or pair count) and rings those who may wait for it. */
static void publish(ms_comm *comm, enum phase step) {
  atomic_store_explicit(&comm->group->ticket[comm->me].count, comm->base + (uint64_t)step, memory_order_release);
  ms_world_ring(comm->world, comm->rank, comm->size);
}

static void publish_pair(ms_comm *comm, _Atomic uint32_t *count) {
  atomic_fetch_add_explicit(count, 1, memory_order_release);
  ms_world_ring(comm->world, &comm->rank[comm->coll->root], 1);
}

static void begin_wait(ms_comm *comm, enum phase phase) {
  comm->phase = phase;
  comm->arrived = 0;
  ms_recorder_target(comm->ring, is_pairwise(comm->coll->kind) ? 0 : comm->base + (uint64_t)phase);
}

/* As if the shards were reduced first, then the replicas. */
static double bytes_of(const ms_comm *comm, const ms_coll *coll) {
  if (!coll->replicas) return ms_coll_bytes(coll->kind, comm->size, coll->part, coll->parts);
  double bytes = ms_coll_bytes(coll->kind, comm->size / coll->replicas, coll->part, coll->parts);
  if (coll->kind != MS_COLL_ALL_GATHER)
    bytes += ms_coll_bytes(MS_COLL_ALL_REDUCE, coll->replicas, coll->part, coll->parts);
  return bytes;
}

/* Send and recv are numbered by the pair, all others by the group: the same on all that take part. */
static void record_start(ms_comm *comm) {
  const ms_coll *coll = comm->coll;
  const ms_control_group *group = comm->group;
  comm->base = atomic_load_explicit(&group->ticket[comm->me].count, memory_order_relaxed);
  uint64_t before = comm->base / FINISHED;
  if (coll->kind == MS_COLL_SEND) before = atomic_load(&group->sent[comm->me][coll->root]);
  if (coll->kind == MS_COLL_RECV) before = atomic_load(&group->received[comm->me][coll->root]);
  int label = coll->label_number ? coll->label_number : ms_recorder_number(comm->recorder, coll->label);
  comm->met = 0;
  ms_recorder_entered(comm->recorder, comm->ring, before + 1, coll->kind, label, bytes_of(comm, coll));
}

int ms_comm_start(ms_comm *comm, const ms_coll *coll) {
  unsigned epoch = ms_world_epoch(comm->world);
  if (comm->phase != IDLE && comm->epoch == epoch)
    return MS_FAIL(MS_EINTERNAL, "%s started while %s is in flight", kind_names[coll->kind],
                   kind_names[comm->coll->kind]);
  int rooted = coll->kind == MS_COLL_BROADCAST || is_pairwise(coll->kind);
  if (rooted && (coll->root < 0 || coll->root >= comm->size || (is_pairwise(coll->kind) && coll->root == comm->me)))
    return MS_FAIL(MS_EINVAL, "%s: peer or root %d in a group of %d", kind_names[coll->kind], coll->root, comm->size);
  for (int i = 0; i < coll->parts; i++) MS_TRY(check_part(comm, coll, &coll->part[i]));
  comm->coll = coll;
  comm->epoch = epoch;
  record_start(comm);
  if (is_pairwise(coll->kind)) {
    if (coll->kind == MS_COLL_SEND) publish_pair(comm, &comm->group->sent[comm->me][coll->root]);
    begin_wait(comm, coll->kind == MS_COLL_SEND ? FINISHED : ENTERED);
    return MS_OK;
  }
  ms_control_ticket *mine = &comm->group->ticket[comm->me];
  /* Who sees this signature sees that the operation before it is finished, too: hence release. */
  atomic_store_explicit(&mine->signature, sign(comm, coll), memory_order_release);
  /* A broadcast's root and a barrier have nothing to do between entering and finishing. */
  int at_once = coll->kind == MS_COLL_BARRIER || (coll->kind == MS_COLL_BROADCAST && coll->root == comm->me);
  enum phase step = at_once ? FINISHED : ENTERED;
  publish(comm, step);
  begin_wait(comm, step);
  return MS_OK;
}

/* Whether group rank p has come to where the current wait wants it. */
static int has_come(const ms_comm *comm, int p) {
  const ms_coll *coll = comm->coll;
  const ms_control_group *group = comm->group;
  int me = comm->me;
  if (p == me) return 1;
  if (is_pairwise(coll->kind)) {
    if (p != coll->root) return 1;
    if (coll->kind == MS_COLL_SEND)
      return atomic_load_explicit(&group->received[p][me], memory_order_acquire) ==
             atomic_load_explicit(&group->sent[me][p], memory_order_relaxed);
    return atomic_load_explicit(&group->sent[p][me], memory_order_acquire) !=
           atomic_load_explicit(&group->received[me][p], memory_order_relaxed);
  }
  if (coll->kind == MS_COLL_BROADCAST && coll->root != me && p != coll->root) return 1;
  return atomic_load_explicit(&group->ticket[p].count, memory_order_acquire) >= comm->base + (uint64_t)comm->phase;
}

static int all_have_come(ms_comm *comm) {
  while (comm->arrived < comm->size && has_come(comm, comm->arrived)) comm->arrived++;
  return comm->arrived == comm->size;
}

static void share_or_finish(ms_comm *comm, enum phase step) {
  publish(comm, step);
  begin_wait(comm, step);
}

/* Everything is there as soon as everybody has entered. */
static int is_in_place_gather(const ms_coll *coll) {
  if (coll->kind != MS_COLL_ALL_GATHER) return 0;
  for (int i = 0; i < coll->parts; i++)
    if (coll->part[i].src) return 0;
  return 1;
}

/* The wait is over: this rank's share, and on to the next wait or the end. */
static int advance(ms_comm *comm) {
  int kind = comm->coll->kind;
  if (comm->phase == FINISHED) {
    comm->phase = IDLE;
    return MS_OK;
  }
  if (comm->phase == SHARED) {
    ms_move_pull(comm->size, comm->me, comm->coll);
    share_or_finish(comm, FINISHED);
    return MS_OK;
  }
  if (kind != MS_COLL_RECV) MS_TRY(compare_signatures(comm));
  ms_move_share(comm->size, comm->me, comm->coll);
  if (kind == MS_COLL_RECV) publish_pair(comm, &comm->group->received[comm->me][comm->coll->root]);
  else share_or_finish(comm, ms_move_pulls(comm->size, comm->me, comm->coll) ? SHARED : FINISHED);
  if (kind == MS_COLL_RECV || kind == MS_COLL_BROADCAST || is_in_place_gather(comm->coll)) comm->phase = IDLE;
  return MS_OK;
}

/* The world ranks that the current wait is for. */
static uint64_t find_missing(const ms_comm *comm) {
  uint64_t missing = 0;
  for (int p = comm->arrived; p < comm->size; p++)
    if (!has_come(comm, p)) missing |= 1ull << comm->rank[p];
  return missing;
}

static int advance_all(ms_comm *comm, int *done) {
  int ran = comm->phase != IDLE;
  while (comm->phase != IDLE && all_have_come(comm)) {
    if (!comm->met++) ms_recorder_met(comm->ring);
    MS_TRY(advance(comm));
  }
  *done = comm->phase == IDLE;
  if (*done && ran) ms_recorder_left(comm->ring);
  return MS_OK;
}

/* A rank that is through with the operation may have given up since, for another reason: looking once more after the
** check makes sure that what all ranks have come to is done on all of them, or on none. */
int ms_comm_test(ms_comm *comm, int *done) {
  MS_TRY(advance_all(comm, done));
  if (*done) return MS_OK;
  ms_error_record before;
  ms_error_save(&before);
  int rc = ms_world_check(comm->world);
  if (!rc) return MS_OK;
  uint64_t missing = find_missing(comm);
  if (missing) {
    ms_recorder_misses(comm->recorder, comm->ring, missing);
    return rc;
  }
  ms_error_restore(&before);
  return advance_all(comm, done);
}

int ms_comm_pause(ms_comm *comm, ms_wait *wait, unsigned seen) {
  uint64_t missing = find_missing(comm);
  if (!missing) return MS_OK;
  ms_recorder_misses(comm->recorder, comm->ring, missing);
  ms_error_record before;
  ms_error_save(&before);
  int rc = ms_world_turn(comm->world, wait, seen, kind_names[comm->coll->kind], comm->coll->label, missing);
  if (rc && find_missing(comm)) return rc;
  if (rc) ms_error_restore(&before);
  ms_recorder_misses(comm->recorder, comm->ring, 0);
  return MS_OK;
}

/* ---- collectives that a device runs ---- */

void ms_comm_entered(ms_comm *comm, const ms_coll *coll) {
  comm->coll = coll;
  comm->epoch = ms_world_epoch(comm->world);
  record_start(comm);
  atomic_store_explicit(&comm->group->ticket[comm->me].signature, sign(comm, coll), memory_order_release);
  publish(comm, ENTERED);
  begin_wait(comm, ENTERED);
}

void ms_comm_left(ms_comm *comm) {
  if (!comm->met++) ms_recorder_met(comm->ring);
  ms_recorder_misses(comm->recorder, comm->ring, 0);
  publish(comm, FINISHED);
  comm->phase = IDLE;
  ms_recorder_left(comm->ring);
}

/* The other world ranks that are not known to have left it. */
static uint64_t find_unfinished(const ms_comm *comm) {
  uint64_t unfinished = 0;
  for (int p = 0; p < comm->size; p++)
    if (p != comm->me && atomic_load(&comm->group->ticket[p].count) < comm->base + FINISHED)
      unfinished |= 1ull << comm->rank[p];
  return unfinished;
}

int ms_comm_watch(ms_comm *comm, ms_wait *wait) {
  double rest;
  uint64_t missing = find_missing(comm);
  ms_recorder_misses(comm->recorder, comm->ring, missing);
  if (missing)
    return ms_world_watch(comm->world, wait, kind_names[comm->coll->kind], comm->coll->label, missing, &rest);
  if (!comm->met++) ms_recorder_met(comm->ring);
  MS_TRY(compare_signatures(comm));
  double now = ms_clock(), timeout = ms_world_timeout(comm->world);
  if (wait->left_at == 0) wait->left_at = now;
  if (now < wait->left_at + timeout) return ms_world_check(comm->world);
  char behind[MS_CONTROL_TEXT];
  ms_report_behind(ms_world_control(comm->world), ms_world_rank(comm->world), find_unfinished(comm), behind,
                   sizeof behind);
  return MS_FAIL(MS_ETIMEOUT, "%s %s: all ranks have come to it, and rank %d has not left it for %g s%s",
                 kind_names[comm->coll->kind], comm->coll->label ? comm->coll->label : "", comm->rank[comm->me],
                 timeout, behind);
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

double ms_coll_bytes(int kind, int ranks, const ms_coll_part *part, int parts) {
  double bytes = 0, others = ranks - 1;
  for (int i = 0; i < parts; i++) {
    double count = (double)part[i].count;
    int src = ms_dtype_size(part[i].src_dtype), dst = ms_dtype_size(part[i].dst_dtype);
    if (kind == MS_COLL_ALL_GATHER) bytes += others * count * dst;
    else if (kind == MS_COLL_REDUCE_SCATTER) bytes += others * count * src;
    else if (kind == MS_COLL_ALL_REDUCE) bytes += 2 * others / ranks * count * src;
    else if (kind != MS_COLL_BARRIER) bytes += count * src;
  }
  return bytes;
}
