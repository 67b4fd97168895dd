/* team.h - the threads of a rank that compute one kernel together.
 *
 * The caller runs part 0 and worker threads of the process run the others; the call returns when all parts are done. A
 * waiting thread spins for some microseconds and then sleeps. If other processes compete for the same cores it sleeps
 * at once, because spinning would occupy the core that another part needs. Workers start on first use, so a process can
 * fork before that; if all kernels use one thread, none is ever started.
 */
#ifndef MS_KERNELS_CPU_TEAM_H
#define MS_KERNELS_CPU_TEAM_H

typedef void ms_team_fn(void *context, int part);

/* Runs parts 0 .. parts - 1. They must not depend on each other: if another thread of the process is using the team,
 * or the system refuses to create threads, the caller runs all of them itself, with the same results. */
void ms_team_run(int parts, ms_team_fn *run, void *context);

#endif
