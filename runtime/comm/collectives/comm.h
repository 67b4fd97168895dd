/* comm.h - collectives among the ranks of a group, as state machines that never block by themselves.
 *
 * A communicator is one ordered channel: all its ranks issue the same operations in the same order. An operation is
 * started, then tested until it is done; ms_comm_wait tests and sleeps on the doorbell with a deadline. One thread can
 * therefore keep several channels moving while it computes. Between hosts several operations can be started: they are
 * executed strictly in order, and each is entered by itself as soon as the one before it is done on this rank, so the
 * link does not stand still until the caller looks. Within a host sums are taken in rank order of the group
 * with f32 accumulation, so results are reproducible bit for bit. Buffers that peers read are in shared regions: the
 * caller passes each peer's address.
 *
 * Steps of an operation over shared memory:
 *   all_gather      enter; when all have entered: cast own chunk into the shared result, finish; done when all have
 *                   finished. In place (src NULL): done when all have entered
 *   reduce_scatter  enter; when all have entered: sum own chunk over the peers' sources into dst, finish; done when all
 *                   have finished
 *   all_reduce      as reduce_scatter, over the whole buffer (in place, or small); or sum own slice, then copy the
 *                   others' slices, finish
 *   all_to_all      enter; when all have entered: copy own chunk of every peer's source, finish; done when all have
 *                   finished
 *   broadcast       root enters; the others copy, finish
 *   send, recv      pairwise: the receiver reads the sender's buffer in place; between hosts its pieces are sent
 * Between hosts (hosts.c) the same operations add up in another order: first, in f32, the ranks of a host in group
 * order, rounded to the sources' type; then the hosts, in the order of their lowest ranks. An all_reduce that is not
 * sliced is rounded to the sources' type, too, before it is cast or accumulated, because that is how its sums travel:
 * those of bf16 in f32 would double the bytes of that half. shared[p] is NULL for a rank of another host, except for
 * shared[0] of an all_gather: the ranks of each host share a result. On a host without the root of a broadcast, the
 * ranks copy it from each other: there shared[p] [count] is a buffer of rank p that is overwritten. Sources can be
 * overwritten as soon as an operation is done. The shared result of an all_gather stays valid until this rank starts
 * the next all_gather into it. An all_reduce can overwrite the sources itself.
 */
#ifndef MS_COMM_COLLECTIVES_COMM_H
#define MS_COMM_COLLECTIVES_COMM_H

#include "base/numbers/dtype.h"
#include "comm/group/group.h"
#include "comm/group/wait.h"

typedef struct ms_comm ms_comm;

/* Operations of a communicator between hosts that can be started and not done. */
enum { MS_COMM_QUEUE = 128 };

/* One buffer of a grouped collective. count is in elements:
 *   all_gather      count: each rank's chunk. src [count] is private to this rank, f32 or bf16; shared [ranks*count] is
 *                   the single result that all ranks of the group map (shared[0]: its address in this process); rank r
 *                   fills chunk r. From f32 to f8e4m3, with src times *scale, which is read when the chunk is cast
 *   reduce_scatter  count: each rank's chunk. shared[p] [ranks*count] is rank p's source as mapped here; dst [count]
 *                   receives the sum of chunk `me`
 *   all_reduce      count: the whole buffer. shared[p] [count] is rank p's source as mapped here; dst [count], can
 *                   equal shared[me]
 *   all_to_all      count: a chunk. shared[p] [ranks*count] is rank p's source as mapped here; chunk p of dst
 *                   [ranks*count] receives chunk `me` of rank p's source. Both have the same type, and nothing is added
 *   broadcast       shared[root] [count] is the source; dst [count] (unused on root)
 *   send/recv       shared[sender] [count] is the source as mapped here, if the sender is on this host; dst [count] on
 *                   the receiver
 * src NULL in all_gather: this rank's chunk is already in place.
 *
 * With R replicas the group consists of R copies of the same n shards, replica by replica. A collective is that of the
 * n shards, and all R*n ranks share the work: a rank moves its slice of its shard's chunk on behalf of all ranks with
 * the same shard.
 *   all_gather      the replicas have one result [n*count], with one copy of each chunk
 *   reduce_scatter, all_reduce   sum over the sources of all ranks
 * Sums can be sliced: each rank receives only elements [first, first + n) of its chunk, or of the whole buffer, in dst
 * [n]. */
typedef struct ms_coll_part {
  int64_t count;
  int src_dtype;  /* all_gather: type of src. Others: of shared */
  int dst_dtype;  /* all_gather: type of shared. Others: of dst; bf16 results are rounded once, after the f32 sum */
  int accumulate; /* reduce_scatter, all_reduce with f32 dst: dst += sum instead of dst = sum */
  const void *src;
  const float *scale; /* all_gather from f32 to f8e4m3; on a device, in its memory */
  void *const *shared;
  void *dst;
  int64_t first, n; /* elements of a sliced sum */
} ms_coll_part;

/* 1 when an all_gather makes codes of its source. */
static inline int ms_part_is_coded(const ms_coll_part *part) {
  return part->src_dtype == MS_F32 && ms_dtype_may(part->dst_dtype, MS_DTYPE_SCALED) && (part->scale || !part->src);
}

typedef struct ms_coll {
  int kind;     /* enum ms_coll_kind */
  int replicas; /* all_gather, reduce_scatter, all_reduce: R, or 0 */
  int sliced;   /* reduce_scatter, all_reduce; a reduce_scatter with replicas always is */
  int largest;  /* all_reduce: 1: the largest of the ranks' numbers instead of their sum; NaN if one of them is NaN */
  int parts;
  const ms_coll_part *part; /* lives as long as the operation */
  int root;                 /* broadcast: group rank; send, recv: the peer's group rank */
  const char *label;        /* unit, for reports; lives as long as the operation */
  int label_number;         /* the label's ms_recorder_number; 0: looked up at the start */
  uint64_t part_of;         /* hash of what it is a part of, which all ranks must be running; 0: nothing of that kind */
} ms_coll;

/* Opens channel `channel` (0 to 15) among `ranks` (world ranks in group order, including this one); collective over
 * them. Opening the same (ranks, channel) again shares the counters, so the two must not be in flight at the same
 * time. */
int ms_comm_open(ms_world *world, int n, const int *ranks, int channel, ms_comm **comm);
void ms_comm_close(ms_comm *comm);
int ms_comm_size(const ms_comm *comm);
int ms_comm_rank(const ms_comm *comm);
/* [size] world ranks in group order; the communicator's. */
const int *ms_comm_ranks(const ms_comm *comm);
/* The flight recorder's ring of this communicator; its last record is the last operation entered. */
struct ms_recorder_ring *ms_comm_ring(const ms_comm *comm);
/* In that ring, the record of the operation that was last reported as done. */
const struct ms_recorder_record *ms_comm_last_done(const ms_comm *comm);

/* How many further operations can be started now. Inside one host: 1 when none is in flight, otherwise 0. Between hosts
 * up to MS_COMM_QUEUE are in flight or wait for their turn; 0 after one has failed, until the next recovery. */
int ms_comm_free(const ms_comm *comm);
/* Starts the next operation; ms_comm_free is above 0. Never blocks. */
int ms_comm_start(ms_comm *comm, const ms_coll *coll);
/* Advances as far as possible without waiting. About the oldest operation that was started and not reported as done:
 * *done = 1 reports it; the next call is about the one after it. *done = 1, too, when there is none. Operations behind
 * one that fails are not done either. */
int ms_comm_test(ms_comm *comm, int *done);
/* Sleeps once until the oldest operation may have advanced; for callers that keep several channels moving: read the
 * doorbell (seen), test every channel, and pause on one when none advanced. `wait` is zero-filled when the operation
 * becomes the oldest. Fails as ms_comm_wait does. */
int ms_comm_pause(ms_comm *comm, ms_wait *wait, unsigned seen);
/* For a collective that runs on a device, the communicator only keeps the count and the flight record: call these as
 * soon as the host knows that this rank's device has entered it, and has left it. `coll` lives until then. */
void ms_comm_entered(ms_comm *comm, const ms_coll *coll);
void ms_comm_left(ms_comm *comm);
/* Checks on such a collective between the two calls: fails as ms_comm_wait does when the others do not enter. `wait` is
 * zero-filled when it was entered. */
int ms_comm_watch(ms_comm *comm, ms_wait *wait);
/* Waits until the oldest operation is done, and reports it. Fails with MS_ETIMEOUT (naming operation, label and the
 * missing ranks), MS_EPEER or MS_EINTERRUPT. */
int ms_comm_wait(ms_comm *comm);
/* Gives up the operations that are not done: this rank does not touch their buffers any more. If there were any, the
 * communicator can be used again after a recovery. */
void ms_comm_give_up(ms_comm *comm);
/* Bytes that this rank reads from or writes for others in one such operation, by the closed forms of a ring: (n-1)/n of
 * the full buffer for all_gather (in dst_dtype), reduce_scatter and all_to_all (in src_dtype), twice that for
 * all_reduce. */
double ms_coll_bytes(int kind, int ranks, const ms_coll_part *part, int parts);

#endif
