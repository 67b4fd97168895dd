/* launcher_view.c - the launcher's access to the control segment. */
#include "comm/diagnose/launcher_view.h"

#include <stdlib.h>

#include "base/error.h"
#include "comm/diagnose/report.h"

struct ms_control_view {
  ms_control *control;
};

int ms_control_view_open(int fd, ms_control_view **view) {
  ms_control_view *opened = ms_calloc(1, sizeof *opened);
  if (!opened) return MS_ENOMEM;
  int rc = ms_control_map(fd, &opened->control);
  if (rc) {
    free(opened);
    return rc;
  }
  *view = opened;
  return MS_OK;
}

void ms_control_view_close(ms_control_view *view) {
  if (!view) return;
  ms_control_unmap(view->control);
  free(view);
}

void ms_control_set_process(ms_control_view *view, int rank, int pid) {
  atomic_store(&view->control->rank[rank].pid, pid);
}

void ms_control_set_ended(ms_control_view *view, int rank) {
  atomic_store(&view->control->rank[rank].state, MS_CONTROL_LEFT);
  for (int other = 0; other < view->control->size; other++) ms_control_ring(view->control, other);
}

void ms_control_abort(ms_control_view *view, int rank, const char *why) {
  ms_control_give_up(view->control, MS_CONTROL_LAUNCHER, rank, why);
}

const char *ms_control_abort_reason(ms_control_view *view, int *rank) {
  int row;
  return ms_control_aborted(view->control, &row, rank);
}

const char *ms_control_rank_reason(ms_control_view *view, int rank) {
  return atomic_load(&view->control->rank[rank].told) == 2 ? ms_control_text(&view->control->rank[rank]) : NULL;
}

int ms_control_lost(const ms_control_view *view) { return (int)atomic_load(&view->control->lost); }

int ms_control_is_stopped(const ms_control_view *view, int rank) { return ms_report_stopped(view->control, rank) != 0; }

int ms_control_saves(const ms_control_view *view) { return atomic_load(&view->control->saves) != 0; }

int ms_control_finishing(const ms_control_view *view) { return atomic_load(&view->control->finishing) > 0; }

void ms_control_stuck(const ms_control_view *view, char *text, size_t bytes) {
  ms_report_stuck(view->control, text, bytes);
}

void ms_control_death(ms_control_view *view, int rank, char *text, size_t bytes) {
  ms_report_death(view->control, rank, text, bytes);
}
