/* group.h - process groups: ranks that wait for each other and gather bytes, either the whole world (group
 * 0) or a submesh. The operations of a group do not involve other ranks of the world, which can run the same operations
 * in other groups at the same time.
 */
#ifndef MS_COMM_GROUP_GROUP_H
#define MS_COMM_GROUP_GROUP_H

#include "comm/group/table.h"
#include "comm/group/world.h"

typedef struct ms_group {
  ms_world *world;
  int size, me;           /* me: this rank's index */
  int spans;              /* its ranks are on several hosts */
  int outlasts;           /* Ctrl-C and ranks that gave up do not end its waits; 0 unless the owner sets it */
  int *rank;              /* [size] world ranks; belongs to the group */
  const char *label;      /* for reports of waits; NULL: what the program is doing (the whole world) */
  ms_group_entry *entry;  /* NULL: this rank alone */
  ms_recorder_ring *ring; /* NULL: this rank alone */
} ms_group;

/* Opens a group. ranks: world ranks in order, including this one; NULL: all n of the world. label: for reports of
 * waits; lives as long as the group. Collective over the ranks: all must pass the same ranks in the same order and the
 * same label, otherwise MS_EMISMATCH says which rank passed what, also when a named rank opens a different group. A
 * rank's k-th opening matches the k-th of the others. */
int ms_group_open(ms_world *world, int n, const int *ranks, const char *label, ms_group *group);
/* Opens group 0 when a rank joins; communicates with no other rank. */
int ms_group_open_world(ms_world *world, ms_group *group);
/* Accepts a zero-filled group. */
void ms_group_close(ms_group *group);
int ms_group_barrier(ms_group *group);
/* Gathers `bytes` bytes, at most 4096, from every member into all [size][bytes] on every member, in group order. */
int ms_group_all_gather_bytes(ms_group *group, const void *mine, int bytes, void *all);
/* Gathers every member's text (up to 1 MiB); for comparing plans. *texts [size] and each text are malloc'd and belong
 * to the caller (ms_group_free_texts). */
int ms_group_all_gather_text(ms_group *group, const char *mine, char ***texts);
void ms_group_free_texts(const ms_group *group, char **texts);

/* The entry and the ring of these ranks and channel, made at first use; waits briefly while another rank makes them. */
int ms_group_enter(ms_world *world, int n, const int *ranks, int channel, ms_group_entry **entry,
                   ms_recorder_ring **ring);

#endif
