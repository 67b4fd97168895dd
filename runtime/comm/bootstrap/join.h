/* join.h - joining a world other than through the environment (moonshard.h's ms_world_join). For tests and benchmarks. */
#ifndef MS_COMM_BOOTSTRAP_JOIN_H
#define MS_COMM_BOOTSTRAP_JOIN_H

#include "comm/group/world.h"

/* Rank `rank` of a job whose segment is mapped already: a test can make every rank a thread of one process. ms_world_leave
** does not unmap the segment. */
int ms_world_attach(ms_control *control, int rank, ms_world **world);

#endif
