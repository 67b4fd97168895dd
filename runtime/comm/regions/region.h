/* region.h - memory that all ranks of a process group map. */
#ifndef MS_COMM_REGIONS_REGION_H
#define MS_COMM_REGIONS_REGION_H

#include "comm/group/group.h"

/* A mapping of `bytes` bytes in every member: zero-filled, pages are committed on first touch. */
typedef struct ms_region {
  void *base;
  size_t bytes;
} ms_region;

/* Collective over the group; all pass the same size. In a group of one it is private memory. */
int ms_region_map(ms_group *group, size_t bytes, ms_region *region);
void ms_region_unmap(ms_region *region);

#endif
