/* mirror.h - how what a rank writes into its host's control segment reaches the segments of the other hosts.
 *
 * Each host's segment has a row, an announcement and tickets for every rank of the world, and each word has one writer.
 * A rank of a world on several hosts publishes its words after it has written them. On each other host one thread
 * writes them into the segment there, in the order in which they were published, and rings the doorbells of the ranks
 * that they concern. Waits, comparisons and reports thus read local memory, wherever the ranks are.
 *
 * Lower floors call no upper one, so a world holds this table (ms_world.mirror); it is NULL when all ranks are on one
 * host. Bootstrap implements it over the store's connections. No function blocks or fails: a connection that does not
 * work ends the job, as the death of rank 0 does, and ms_world_check reports it.
 */
#ifndef MS_COMM_GROUP_MIRROR_H
#define MS_COMM_GROUP_MIRROR_H

#include "comm/group/table.h"
#include "comm/group/world.h"

typedef struct ms_mirror {
  /* The group's list of ranks and its channel; before the first ticket of this rank in it. */
  void (*group)(ms_world *world, const ms_group_entry *entry);
  /* This rank's ticket, group rank `place` of the entry, with its signatures; for an all-gather of bytes also its slot
   * (bytes of it; slot NULL: none); and the ring's last record, from which other hosts describe what it entered. */
  void (*ticket)(ms_world *world, const ms_group_entry *entry, int place, const ms_recorder_ring *ring,
                 const void *slot, int bytes);
  /* This rank's announcement. */
  void (*announce)(ms_world *world);
  /* This rank's row: how often it has recovered, with what it gave up, which failure it noted; why
   * the job ended, if its host's launcher said so; and whether ranks of its host save, or received SIGTERM. A rank that
   * recovers resets its words on every host. */
  void (*row)(ms_world *world);
  /* Asks for the flight recorders of the ranks of other hosts, and their tickets in communicators, which `ticket` does
   * not post: each answer sets ms_control_rank.seen. Cheap: the store passes on a few requests a second, and every host
   * answers all others. */
  void (*look)(ms_world *world);
} ms_mirror;

/* 1 when the ranks are on several hosts. ranks NULL: the first n of the world. */
int ms_world_spans(const ms_world *world, int n, const int *ranks);

#endif
