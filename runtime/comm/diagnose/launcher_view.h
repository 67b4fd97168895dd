/* launcher_view.h - the launcher's access to the control segment: what it reports to the ranks, and what it reads about
 * them. */
#ifndef MS_COMM_DIAGNOSE_LAUNCHER_VIEW_H
#define MS_COMM_DIAGNOSE_LAUNCHER_VIEW_H

#include "comm/control/control.h"

/* The launcher's mapping of the control segment, used while the ranks run and after they have ended. */
typedef struct ms_control_view ms_control_view;
int ms_control_view_open(int fd, ms_control_view **view);
void ms_control_view_close(ms_control_view *view);
/* Records the process of a rank: `moonshard ps` shows it before the rank has joined. */
void ms_control_set_process(ms_control_view *view, int rank, int pid);
/* Records that the rank's process has ended: ranks that wait for it fail now instead of at the deadline. */
void ms_control_set_ended(ms_control_view *view, int rank);
/* Sets the abort flag with its reason ("rank 2 died: ...") and wakes every rank. rank: the rank at fault, or -1. The
 * first reason is kept. */
void ms_control_abort(ms_control_view *view, int rank, const char *why);
/* The reason of the first abort and the rank at fault (-1: none); NULL when there was none. */
const char *ms_control_abort_reason(ms_control_view *view, int *rank);
/* The text with which a rank gave up, whether first or not; NULL when it did not. */
const char *ms_control_rank_reason(ms_control_view *view, int rank);

/* How many other hosts the ranks of this one could not reach when they failed. */
int ms_control_lost(const ms_control_view *view);
/* Whether a signal has stopped the process of a rank of this host. */
int ms_control_is_stopped(const ms_control_view *view, int rank);
/* Whether ranks save their state on SIGTERM. */
int ms_control_saves(const ms_control_view *view);
/* Whether ranks of this host wait for a save before they end. */
int ms_control_finishing(const ms_control_view *view);
/* Describes in a few lines which ranks hold up the others, and where each rank is. Only while they run. */
void ms_control_stuck(const ms_control_view *view, char *text, size_t bytes);
/* "rank 2 was in ...": describes in a few lines where a dead rank was, and what the others waited for. Only after all
 * have ended. */
void ms_control_death(ms_control_view *view, int rank, char *text, size_t bytes);

#endif
