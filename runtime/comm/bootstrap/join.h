/* join.h - what the launcher, tests and benchmarks need of joining, besides moonshard.h. */
#ifndef MS_COMM_BOOTSTRAP_JOIN_H
#define MS_COMM_BOOTSTRAP_JOIN_H

#include "comm/group/world.h"

/* Joins as `rank` of a job whose control segment is already mapped, so a test can run every rank as a thread of one
 * process. ms_free does not unmap the segment. */
int ms_world_attach(ms_control *control, int rank, ms_world **world);
/* MOONSHARD_TIMEOUT, or the default. The launcher checks it before it starts ranks, so that the error is reported once
 * and not by every rank. */
int ms_world_read_timeout(double *seconds);

#endif
