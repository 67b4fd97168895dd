/* table.h - the table of groups in a control segment: one entry per list of ranks and channel, which all its ranks
 * find, with the tickets that show how far each has come.
 *
 * Entry 0 is the world's. The others form an open-addressing hash table that only grows, so an entry stays valid once
 * found. All sizes follow from the number of ranks in the world, which is also the most that an entry can have.
 */
#ifndef MS_COMM_GROUP_TABLE_H
#define MS_COMM_GROUP_TABLE_H

#include "comm/recorder/flight_recorder.h"

enum {
  MS_GROUP_CHANNELS = 16,       /* of one list of ranks: below MS_GROUP_CHANNEL those of communicators */
  MS_GROUP_CHANNEL = 15,        /* of process groups: barrier, all-gather of bytes */
  MS_GROUP_ENTRIES = 512,       /* that a job can have */
  MS_GROUP_SLOTS_A_RANK = 24,   /* of the all-gather of bytes: one for each rank of each process group */
  MS_GROUP_SLOT = 4096,         /* bytes of an all-gather of bytes */
  MS_GROUP_ANNOUNCEMENT = 1024, /* bytes of what ms_group_open compares */
  MS_GROUP_NO_SLOT = -1
};

enum ms_group_entry_state { MS_GROUP_FREE = 0, MS_GROUP_FILLING = 1, MS_GROUP_READY = 2 };

/* The step of a communicator's operation that its ranks wait for, added to their tickets before it. */
enum ms_ticket_step { MS_TICKET_IDLE = 0, MS_TICKET_ENTERED = 1, MS_TICKET_SHARED = 2, MS_TICKET_FINISHED = 3 };

/* How far a rank has come in the sequence of operations that its whole group issues: process groups count one step per
 * operation, communicators three. The signatures say what was entered: a process group uses the two in turn; of a
 * communicator's operation, the first says what it is and the second what it is a part of. */
typedef struct ms_group_ticket {
  _Alignas(64) _Atomic uint64_t count;
  _Atomic uint64_t signature[2];
} ms_group_ticket;

typedef struct ms_group_entry {
  _Alignas(64) _Atomic uint32_t state; /* enum ms_group_entry_state */
  int32_t channel, size;
  int32_t slot; /* MS_GROUP_CHANNEL: the first of its slots; otherwise MS_GROUP_NO_SLOT */
  uint64_t key; /* hash of ranks and channel: names the group on every host */
  /* [ranks of the world]; behind them the group's ranks (ms_group_ranks), and counts of pairs (ms_group_sent). */
  ms_group_ticket ticket[];
} ms_group_entry;

/* The ranks with which a rank wants to form a group, from its latest ms_group_open. */
typedef struct ms_group_announcement {
  _Alignas(64) _Atomic uint32_t number; /* number of openings by this rank; stored when the text is complete */
  char text[MS_GROUP_ANNOUNCEMENT];
} ms_group_announcement;

/* Makes the control segment of a job, with the table of groups (see ms_control_create). */
int ms_job_create(int size, int local, int cores, int *fd);
/* ms_control_copy of a job's segment, whose tables are whole. Their contents are untrusted. */
int ms_job_copy(int fd, ms_control **control);

ms_group_announcement *ms_group_announcement_of(const ms_control *control, int rank);
/* Entry i, 0 to MS_GROUP_ENTRIES - 1. */
ms_group_entry *ms_group_entry_at(const ms_control *control, int i);
/* [entry->size]: the world ranks of a group. */
int32_t *ms_group_ranks(const ms_control *control, const ms_group_entry *entry);
/* Numbers of sends from one group rank to another, and of receives by one from another; counted separately, since only
 * two ranks take part. Only for groups of worlds with at most MS_MAX_LOCAL_RANKS ranks. */
_Atomic uint32_t *ms_group_sent(const ms_control *control, ms_group_entry *entry, int from, int to);
_Atomic uint32_t *ms_group_received(const ms_control *control, ms_group_entry *entry, int by, int from);
/* The slot of a group rank for an all-gather of bytes. There are two sets, used alternately (turn 0 or 1): a rank
 * writes for all-gather k + 2 only after all have reached k + 1, so all have read k. */
char *ms_group_slot(const ms_control *control, const ms_group_entry *entry, int turn, int place);

/* The group number that a flight recorder's ring stores for an entry. */
uint32_t ms_group_number(const ms_control *control, const ms_group_entry *entry);
/* The entry of a ring's group, and its number of ranks; NULL when the ring has none. `number` is untrusted: any rank
 * can have overwritten it, so it is checked. */
const ms_group_entry *ms_group_by_number(const ms_control *control, uint32_t number, int *size);
/* Finds or makes the entry of these ranks and channel. *found NULL: another rank is filling an entry at the moment; try
 * again. */
int ms_group_entry_find(ms_control *control, int n, const int *ranks, int channel, ms_group_entry **found);
/* The entry of the group with this key; NULL when this host has none, or no slots for it. */
ms_group_entry *ms_group_by_key(const ms_control *control, uint64_t key);
/* Resets the counts of `rank` in every group, as if it had begun nothing. */
void ms_group_table_reset(ms_control *control, int rank);

#endif
