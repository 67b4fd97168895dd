/* group.h - process groups: ranks of one host that wait for each other and gather bytes, all of the world (group 0) or
** those of a submesh. Other ranks of the world take no part in what a group does, and may meanwhile do the same among
** themselves.
*/
#ifndef MS_COMM_GROUP_GROUP_H
#define MS_COMM_GROUP_GROUP_H

#include "comm/group/table.h"
#include "comm/group/world.h"

typedef struct ms_group {
  ms_world *world;
  int size, me; /* me: this rank's place */
  int rank[MS_MAX_LOCAL_RANKS];
  const char *label;      /* in reports of waits; NULL: what the program is doing (all of the world) */
  ms_group_entry *entry;  /* NULL: this rank alone */
  ms_recorder_ring *ring; /* NULL: this rank alone */
} ms_group;

/* ranks: world ranks in order, this one among them; NULL: all n of the world. label: in reports of waits; lives as long as
** the group. Collective over them, and all name the same ranks in the same order, and the same label: else MS_EMISMATCH
** says which rank has what, also where ranks name each other that do not want to form a group. A rank's k-th opening is
** that of the k-th of the others. */
int ms_group_open(ms_world *world, int n, const int *ranks, const char *label, ms_group *group);
/* Group 0, when a rank joins: communicates with no other rank. */
int ms_group_open_world(ms_world *world, ms_group *group);
/* Safe on zero-filled ones. */
void ms_group_close(ms_group *group);
int ms_group_barrier(ms_group *group);
/* The same at the end of the program: ranks that have left count as there. */
int ms_group_finish(ms_group *group);
/* Every member's `bytes` bytes, at most 4096, to every member: all is [size][bytes], in their order. */
int ms_group_all_gather_bytes(ms_group *group, const void *mine, int bytes, void *all);
/* Every member's text (any length up to 1 MiB) to every member; for comparing plans. texts is [size], each malloc'd. */
int ms_group_all_gather_text(ms_group *group, const char *mine, char **texts);

/* The entry and the ring of these ranks and channel, made at first use; waits the moment while another rank makes them. */
int ms_group_enter(ms_world *world, int n, const int *ranks, int channel, ms_group_entry **entry,
                   ms_recorder_ring **ring);

#endif
