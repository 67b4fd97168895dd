/* join.h - joins a world without reading the environment (ms_world_join of moonshard.h does). For tests and
 * benchmarks. */
#ifndef MS_COMM_BOOTSTRAP_JOIN_H
#define MS_COMM_BOOTSTRAP_JOIN_H

#include "comm/group/world.h"

/* Joins as `rank` of a job whose control segment is already mapped, so a test can run every rank as a thread of one
 * process. ms_world_leave does not unmap the segment. */
int ms_world_attach(ms_control *control, int rank, ms_world **world);

#endif
