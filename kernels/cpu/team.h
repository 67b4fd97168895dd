/* team.h - the threads of a rank that share one kernel's work.
**
** The caller runs part 0, sleeping threads of the process run the others, and the call returns when all parts are done.
** Waits spin for some microseconds and then sleep; where other processes compete for the same cores they sleep at once,
** because a thread that spins keeps the very core that another part needs. Threads start when they are first needed, so a
** process may fork before that, and never in a process whose kernels use one thread.
*/
#ifndef MS_KERNELS_CPU_TEAM_H
#define MS_KERNELS_CPU_TEAM_H

typedef void ms_team_fn(void *context, int part);

/* Runs parts 0 .. parts - 1. They must not depend on each other: while another thread of the process uses the team, or where
** the system refuses more threads, the caller runs all of them itself, with the same results. */
void ms_team_run(int parts, ms_team_fn *run, void *context);

#endif
