/* table.h - the groups of a job in its control segment: for each list of ranks and channel an entry that all its ranks
** find, with the tickets by which they see how far each has come.
**
** Entry 0 is the world's. The others are an open hash table that only grows, so an entry that was found stays valid.
** Ranks are those of one host: world ranks, since groups on several hosts have no entry yet.
*/
#ifndef MS_COMM_GROUP_TABLE_H
#define MS_COMM_GROUP_TABLE_H

#include "comm/recorder/flight_recorder.h"

enum {
  MS_GROUP_CHANNELS = 16,       /* of one list of ranks: below MS_GROUP_CHANNEL those of communicators */
  MS_GROUP_CHANNEL = 15,        /* of process groups: barrier, all-gather of bytes */
  MS_GROUP_ENTRIES = 512,       /* that a job can have */
  MS_GROUP_SLOTS = 1536,        /* of the all-gather of bytes: one for each rank of each process group */
  MS_GROUP_SLOT = 4096,         /* bytes of an all-gather of bytes */
  MS_GROUP_ANNOUNCEMENT = 1024, /* bytes of what ms_group_open compares */
  MS_GROUP_NO_SLOT = -1
};

enum ms_group_entry_state { MS_GROUP_FREE = 0, MS_GROUP_FILLING = 1, MS_GROUP_READY = 2 };

/* How far a rank has come in the sequence of operations that all its group issues; process groups count one step an
** operation, communicators three. Signatures, in turn, tell peers what was entered. */
typedef struct ms_group_ticket {
  _Alignas(64) _Atomic uint64_t count;
  _Atomic uint64_t signature[2];
} ms_group_ticket;

typedef struct ms_group_entry {
  _Alignas(4096) _Atomic uint32_t state; /* enum ms_group_entry_state */
  int32_t channel, size;
  int32_t slot; /* of MS_GROUP_CHANNEL: the first of its slots; else MS_GROUP_NO_SLOT */
  int32_t rank[MS_MAX_LOCAL_RANKS];
  ms_group_ticket ticket[MS_MAX_LOCAL_RANKS];
  /* send and recv count apart, since only two ranks take part: [sender][receiver] and [receiver][sender] */
  _Atomic uint32_t sent[MS_MAX_LOCAL_RANKS][MS_MAX_LOCAL_RANKS];
  _Atomic uint32_t received[MS_MAX_LOCAL_RANKS][MS_MAX_LOCAL_RANKS];
} ms_group_entry;

/* Whom a rank wants to form a group with, of its latest ms_group_open. */
typedef struct ms_group_announcement {
  _Alignas(64) _Atomic uint32_t number; /* of openings by this rank; set when the text is complete */
  char text[MS_GROUP_ANNOUNCEMENT];
} ms_group_announcement;

typedef struct ms_group_table {
  ms_group_announcement announcement[MS_MAX_LOCAL_RANKS];
  ms_group_entry entry[MS_GROUP_ENTRIES];
  _Alignas(64) _Atomic int32_t slots; /* given to entries */
  /* Two sets in turn: a rank writes for all-gather k + 2 only when all have come to k + 1, so all have read k. */
  _Alignas(4096) char slot[2][MS_GROUP_SLOTS][MS_GROUP_SLOT];
} ms_group_table;

static inline ms_group_table *ms_group_table_in(const ms_control *control) { return (ms_group_table *)control->group; }

/* The group of a ring of a flight recorder. */
uint32_t ms_group_number(const ms_control *control, const ms_group_entry *entry);
/* The entry of a ring's group, and how many ranks it has; NULL when the ring has none. What any rank may have overwritten
** leads nowhere. */
const ms_group_entry *ms_group_by_number(const ms_control *control, uint32_t number, int *size);
/* Finds or makes the entry of these ranks and channel. *found NULL: another rank is filling an entry just now; try again. */
int ms_group_entry_find(ms_control *control, int n, const int *ranks, int channel, ms_group_entry **found);
/* Resets what `rank` has counted in every group, as if it had begun nothing. */
void ms_group_table_reset(ms_control *control, int rank);

#endif
