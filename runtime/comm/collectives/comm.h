/* comm.h - collectives among the ranks of a group, as state machines that never block by themselves.
**
** A communicator is one ordered channel: all its ranks issue the same operations in the same order. An operation is
** started, then tested until it is done; ms_comm_wait tests and sleeps on the doorbell with a deadline. So one thread
** can keep several channels moving while it computes. Sums are taken in rank order of the group with f32 accumulation,
** so they repeat bit for bit. Buffers that peers read live in shared regions: the caller gives each peer's address.
**
** Steps of an operation over shared memory:
**   all_gather      enter; when all entered: cast own chunk into the shared result, finish; done when all finished.
**                   In place (src NULL) it is done when all entered
**   reduce_scatter  enter; when all entered: sum own chunk over the peers' sources into dst, finish; done when all finished
**   all_reduce      the same of everything (in place, or small), or own slice; then copy the others' slices, finish
**   broadcast       root enters; others copy, finish
**   send, recv      pairwise: the sender's buffer is read in place by the receiver
** Sources may be overwritten as soon as an operation is done, and the shared result of an all_gather is read until the
** rank enters the next all_gather into it. An all_reduce may overwrite the sources itself.
*/
#ifndef MS_COMM_COLLECTIVES_COMM_H
#define MS_COMM_COLLECTIVES_COMM_H

#include "comm/group/group.h"
#include "comm/group/wait.h"

typedef struct ms_comm ms_comm;

/* One buffer of a grouped collective. count is in elements:
**   all_gather      each rank's chunk. src [count] private to this rank, any of f32/bf16; shared [ranks*count] is the ONE result
**                   that all ranks of the group map (shared[0] == the address in this process); chunk r from rank r
**   reduce_scatter  each rank's chunk. shared[p] [ranks*count] is rank p's source as mapped here; dst [count]: sum of chunk `me`
**   all_reduce      of everything. shared[p] [count] is rank p's source as mapped here; dst [count]; dst may equal shared[me]
**   broadcast       shared[root] [count] source; dst [count] (unused on root)
**   send/recv       shared[sender] [count] source as mapped here; dst [count] on the receiver
** src NULL in all_gather: this rank's chunk is in place already.
**
** With replicas R the group is R times the same n shards, replica by replica, and a collective is that of the shards,
** done by all of them together: a rank moves its slice of its shard's chunk. For whoever has the same shard, too:
**   all_gather      the replicas have one result, and one copy of each chunk; [n*count]
**   reduce_scatter, all_reduce   the sum is over all ranks' sources
** Sums may be sliced: of its chunk, or of everything, each rank has elements [first, first + n) alone, in dst [n]. */
typedef struct ms_coll_part {
  int64_t count;
  int src_dtype;  /* all_gather: of src. Others: of shared */
  int dst_dtype;  /* all_gather: of shared. Others: of dst; bf16 results round once, after the f32 sum */
  int accumulate; /* reduce_scatter, all_reduce with f32 dst: dst += sum instead of dst = sum */
  const void *src;
  void *const *shared;
  void *dst;
  int64_t first, n; /* of a sliced sum */
} ms_coll_part;

typedef struct ms_coll {
  int kind;     /* enum ms_coll_kind */
  int replicas; /* all_gather, reduce_scatter, all_reduce: R, or 0 */
  int sliced;   /* reduce_scatter, all_reduce; with replicas a reduce_scatter is */
  int parts;
  const ms_coll_part *part; /* lives as long as the operation */
  int root;                 /* broadcast: group rank; send, recv: the peer's group rank */
  const char *label;        /* unit, for reports; lives as long as the operation */
  int label_number;         /* the label's ms_recorder_number; 0: it is looked up at the start */
} ms_coll;

/* Opens channel `channel` (0..15) among `ranks` (world ranks in group order, this rank among them); collective over
** them. The same (ranks, channel) opened again shares its counters, so it must not be in flight twice at once. */
int ms_comm_open(ms_world *world, int n, const int *ranks, int channel, ms_comm **comm);
void ms_comm_close(ms_comm *comm);
int ms_comm_size(const ms_comm *comm);
int ms_comm_rank(const ms_comm *comm);
/* The flight recorder's ring of this communicator; its last record is that of the last operation started. */
struct ms_recorder_ring *ms_comm_ring(const ms_comm *comm);

/* Starts the next operation; the previous one must be done. Never blocks. */
int ms_comm_start(ms_comm *comm, const ms_coll *coll);
/* Advances as far as possible without waiting; *done = 1 when the operation is complete. */
int ms_comm_test(ms_comm *comm, int *done);
/* Sleeps once until something may have changed for the operation in flight; for callers that keep several channels
** moving: read the doorbell (seen), test every channel, and pause on one when nothing moved. `wait` is zero-filled when
** the operation starts. Fails as ms_comm_wait does. */
int ms_comm_pause(ms_comm *comm, ms_wait *wait, unsigned seen);
/* Of a collective that a device runs, the communicator keeps the count and the flight recorder alone: this rank's
** device has come to it, and has left it, as soon as the host knows. `coll` lives until it has left. */
void ms_comm_entered(ms_comm *comm, const ms_coll *coll);
void ms_comm_left(ms_comm *comm);
/* In between, now and then: fails as ms_comm_wait does when the others do not come. `wait` is zero-filled when it was
** entered. */
int ms_comm_watch(ms_comm *comm, ms_wait *wait);
/* Until done, or MS_ETIMEOUT (naming operation, label and the ranks that have not come), MS_EPEER, MS_EINTERRUPT. */
int ms_comm_wait(ms_comm *comm);
/* Bytes that this rank reads from or writes for others in one such operation: the ring closed forms, (n-1)/n of the
** full buffer for all_gather (in dst_dtype) and reduce_scatter (in src_dtype), twice that for all_reduce. */
double ms_coll_bytes(int kind, int ranks, const ms_coll_part *part, int parts);

#endif
