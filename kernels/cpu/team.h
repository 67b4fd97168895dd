/* team.h - the threads of a rank that share one kernel's work.
 *
 * The caller runs part 0, sleeping threads of the process run the other parts, and the call returns when all parts
 * are done. Waits spin for some microseconds and then sleep; if other processes compete for the same cores they sleep
 * at once, because spinning would keep the core that another part needs. Threads start on first use, so a process can
 * fork before that; a process whose kernels use one thread never starts any.
 */
#ifndef MS_KERNELS_CPU_TEAM_H
#define MS_KERNELS_CPU_TEAM_H

typedef void ms_team_fn(void *context, int part);

/* Runs parts 0 .. parts - 1. They must not depend on each other: if another thread of the process is using the team,
 * or the system refuses to create threads, the caller runs all of them itself, with the same results. */
void ms_team_run(int parts, ms_team_fn *run, void *context);

#endif
