/* launcher_view.h - a launcher's side of the control segment: what it says to the ranks, and what it reads of them. */
#ifndef MS_COMM_DIAGNOSE_LAUNCHER_VIEW_H
#define MS_COMM_DIAGNOSE_LAUNCHER_VIEW_H

#include "comm/control/control.h"

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

#endif
