/* group.h - ranks that agree and share memory among themselves: the whole world, or those of a submesh. Other ranks of
** the world take no part in what they do, and may meanwhile do the same among themselves.
*/
#ifndef MS_COMM_GROUP_GROUP_H
#define MS_COMM_GROUP_GROUP_H

#include "comm/collectives/comm.h"

enum { MS_GROUP_CHANNEL = 15 }; /* of communicators: below are the streams' */

typedef struct ms_group {
  ms_world *world;
  int size, me; /* me: this rank's place */
  int rank[MS_MAX_LOCAL_RANKS];
  ms_comm *comm;   /* NULL: all of the world, which has its own ways, or this rank alone */
  ms_coll barrier; /* what comm is in while they wait for each other */
} ms_group;

/* ranks: world ranks in order, this one among them; NULL: all n of the world. label: in reports of waits; lives as long
** as the members. Collective over them, and all name the same ranks in the same order, and the same label: else
** MS_EMISMATCH says which rank has what, also where ranks name each other that do not want to meet. A rank's k-th
** opening meets the k-th of the others. */
int ms_group_open(ms_world *world, int n, const int *ranks, const char *label, ms_group *members);
/* Safe on zero-filled ones. */
void ms_group_close(ms_group *members);
int ms_group_barrier(ms_group *members);
/* Every member's `bytes` bytes, at most 4096, to every member: all is [size][bytes], in their order. */
int ms_group_all_gather_bytes(ms_group *members, const void *mine, int bytes, void *all);
/* Every member's text (any length up to 1 MiB) to every member; for comparing plans. texts is [size], each malloc'd. */
int ms_group_all_gather_text(ms_group *members, const char *mine, char **texts);

/* A region of `bytes` mapped by every member, zero-filled, pages committed on first touch; all give the same size. Of
** one member alone it is private memory. */
typedef struct ms_region {
  void *base;
  size_t bytes;
} ms_region;
int ms_region_map(ms_group *members, size_t bytes, ms_region *region);
void ms_region_unmap(ms_region *region);

#endif
