/* world.h - the ranks of a job on this host, and the memory they share.
**
** A job has one control segment, a memfd that every rank maps: for each rank its pid, state, doorbell (a futex word)
** and last error, the job's abort flag, slots of the all-gather of bytes and the ticket counters of communicators. The
** launcher makes it before it starts the ranks; they inherit it as file descriptor MOONSHARD_JOB_FD (with RANK,
** WORLD_SIZE, LOCAL_RANK). Ranks that another launcher started meet at a store (rendezvous.h), and the first of each
** node makes it. Nothing has a name in the file system, so nothing can be left behind. Regions, further shared memory,
** are told of in members.h.
*/
#ifndef MS_COMM_GROUP_WORLD_H
#define MS_COMM_GROUP_WORLD_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "moonshard.h"

enum { MS_MAX_LOCAL_RANKS = 64 };
/* The name that a control segment has in /proc. */
#define MS_CONTROL_NAME "moonshard-job"

/* Launcher's side: makes the control segment for `size` ranks; forked children inherit the descriptor, an exec closes
** it. */
int ms_control_create(int size, int *fd);
/* What the launcher reads of the ranks while they run and after they ended. */
typedef struct ms_control_view ms_control_view;
int ms_control_view_open(int fd, ms_control_view **view);
void ms_control_view_close(ms_control_view *view);
/* The process that has a row, and its rank in the world: what `moonshard ps` shows before it has joined. */
void ms_control_set_process(ms_control_view *view, int row, int rank, int pid);
/* The rank's process is no more: who waits for it learns so now instead of at the deadline. */
void ms_control_set_ended(ms_control_view *view, int rank);
/* Sets the abort flag with its reason ("rank 2 died: ...") and wakes every rank. rank: the one to blame, or -1. The
** first reason stays. */
void ms_control_abort(ms_control_view *view, int rank, const char *why);
/* The first abort: the rank to blame (-1: none) and the reason; NULL when there is none. */
const char *ms_control_abort_reason(ms_control_view *view, int *rank);
/* What a rank said when it gave up, first or not; NULL when it said nothing. */
const char *ms_control_rank_reason(ms_control_view *view, int rank);

/* Whether ranks save when SIGTERM asks them to end. */
int ms_control_saves(const ms_control_view *view);
/* Who holds the others up, and where each rank is, in a few lines; while they run. */
void ms_control_stuck(const ms_control_view *view, char *text, size_t bytes);
/* "rank 2 was in ...": where a rank was that has died, and what the others waited for, in a few lines; once all have
** ended. */
void ms_control_death(ms_control_view *view, int rank, char *text, size_t bytes);

/* Rank's side, beyond moonshard.h. */
int ms_world_fd(const ms_world *world);
double ms_world_timeout(const ms_world *world);
/* This rank's flight recorder: in the control segment, or in a world of one without a launcher private memory. Never
** NULL. */
struct ms_recorder *ms_world_recorder(const ms_world *world);
/* MS_OK, or MS_EPEER telling who gave up or died and why, or MS_EINTERRUPT. Cheap: one load each. */
int ms_world_check(const ms_world *world);
/* Changes whenever this rank comes back from ms_world_recover: what was under way before is void. */
unsigned ms_world_epoch(const ms_world *world);
/* MS_OK when all ranks share memory; else MS_EUNSUPPORTED, naming the hosts. */
int ms_world_check_one_node(const ms_world *world);
/* Sleeps until this rank's doorbell rings, or `seconds` pass; `seen` is the doorbell's value read before the condition
** was tested (ms_world_doorbell), so no ring is lost. Spins briefly first when every rank has a core, and
** yields once when not. */
unsigned ms_world_doorbell(const ms_world *world);
void ms_world_sleep(ms_world *world, unsigned seen, double seconds);
/* A wait in turns: test the condition, take a turn, test again. Fresh waits are zero-filled. */
typedef struct ms_wait {
  double started; /* later by the time in which the process was stopped */
  double turned_at;
  double looked_at; /* when the ranks were last looked at for a deadlock */
  uint64_t stuck;   /* what they were seen in then, if in one */
  double left_at;   /* when a rank waited for was first seen to have left the world; 0: none was */
} ms_wait;
/* Rings the doorbells of `n` ranks. */
void ms_world_ring(ms_world *world, const int *ranks, int n);

#endif
