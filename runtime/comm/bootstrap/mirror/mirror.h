/* mirror.h - the mirror (comm/group/mirror.h) over the store's connections. Internal to comm.
 *
 * mirror.c posts what this rank publishes, mirror_apply.c writes what ranks of other hosts post into this host's
 * control segment, mirror_records.c does both for flight recorders, and mirror_tickets.c for the tickets that travel
 * with them.
 */
#ifndef MS_COMM_BOOTSTRAP_MIRROR_H
#define MS_COMM_BOOTSTRAP_MIRROR_H

#include "comm/bootstrap/mirror/mirror_code.h"
#include "comm/group/world_state.h"

/* What the store's thread calls, with the world; also for worlds on one host, to which nothing is posted. */
extern const ms_store_listener ms_mirror_listener;

/* Before the store's thread starts: the world publishes from now on. */
void ms_mirror_open(ms_world *world);
/* After the store's thread has ended: the host's next rank applies posts. */
void ms_mirror_close(ms_world *world);

/* Writes a record without the recorder's numbers; record: can be NULL. */
void ms_mirror_put_record(ms_mirror_writer *writer, const ms_recorder *recorder, const ms_recorder_record *record);
/* Reads a record into a ring of another host's rank, unless the ring already has a later one. ring NULL: only reads. */
void ms_mirror_take_record(ms_mirror_reader *reader, ms_recorder *recorder, ms_recorder_ring *ring);
/* Posts the flight recorders of all ranks of this host. */
void ms_mirror_post_records(ms_world *world);
/* 0: the payload makes no sense. */
int ms_mirror_take_records(ms_world *world, int from, ms_mirror_reader *reader);

/* The tickets of a rank of this host in communicators that span hosts. */
void ms_mirror_put_tickets(ms_mirror_writer *writer, const ms_world *world, int rank);
/* Writes those of a rank of another host; valid 0: only reads. */
void ms_mirror_take_tickets(ms_mirror_reader *reader, const ms_world *world, int rank, int valid);

#endif
