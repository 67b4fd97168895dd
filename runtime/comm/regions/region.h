/* region.h - memory that the ranks of a process group map together. */
#ifndef MS_COMM_REGIONS_REGION_H
#define MS_COMM_REGIONS_REGION_H

#include "comm/group/group.h"

/* `bytes` mapped by every member, zero-filled, pages committed on first touch. */
typedef struct ms_region {
  void *base;
  size_t bytes;
} ms_region;

/* Collective over the group; all give the same size. Of one member alone it is private memory. */
int ms_region_map(ms_group *group, size_t bytes, ms_region *region);
void ms_region_unmap(ms_region *region);

#endif
