/* checkpoint_wait.c - ends a save: commits it, waits for it, together with all ranks or alone when a run ends, and
 * gives one up. */
#include <time.h>

#include "base/clock.h"
#include "comm/group/world.h"
#include "comm/recorder/flight_recorder.h"
#include "exec/checkpoint/checkpoint_save.h"
#include "io/checkpoint/checkpoint.h"

int ms_save_commit(ms_save *save) {
  const ms_commit commit = {
      .folder = save->config.folder,
      .target = save->config.target,
      .head = save->config.head,
      .writers = save->config.writers,
      .awaits = save->awaits,
      .apart = save->config.part_head != NULL,
      .retired = save->config.retired,
      .retires = (const char *const *)save->retires,
      .deadline = save->deadline,
      .stop = &save->stop,
      .writes = &save->writes,
  };
  return ms_commit_run(&commit);
}

void ms_save_join(ms_save *save) {
  if (save->threaded) pthread_join(save->thread, NULL);
  save->threaded = 0;
}

/* ---- waiting for the thread ---- */

typedef struct progress {
  double moved_at; /* ms_clock */
  int64_t writes;  /* of this rank's save */
  uint32_t others; /* ms_world_finished */
} progress;

/* 1 when this rank has written more since the last look. */
static int has_written(ms_save *save, progress *p) {
  const int64_t before = p->writes;
  p->writes = atomic_load(&save->writes);
  return p->writes != before;
}

static int check_patience(const ms_save *save, const progress *p, double patience) {
  if (ms_clock() - p->moved_at > patience)
    return MS_FAIL(MS_ETIMEOUT, "%s: writing it has made no progress for %g s", save->config.folder, patience);
  nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
  return MS_OK;
}

static int end_of_thread(ms_save *save) {
  ms_save_join(save);
  if (save->failure.code) ms_error_restore(&save->failure);
  return save->failure.code;
}

static int wait_for_thread(ms_save *save, int stage, double patience) {
  progress p = {.moved_at = ms_clock(), .writes = atomic_load(&save->writes)};
  while (!atomic_load(&save->ended) && atomic_load(&save->stage) < 1 + stage) {
    MS_TRY(ms_world_check(save->state->world));
    if (has_written(save, &p)) p.moved_at = ms_clock();
    MS_TRY(check_patience(save, &p, patience));
  }
  return atomic_load(&save->ended) ? end_of_thread(save) : MS_OK;
}

static int commit_now(ms_save *save) {
  if (!save->config.target || atomic_load(&save->stage) != 1 + MS_SAVE_WRITTEN) return MS_OK;
  MS_TRY(ms_save_commit(save));
  atomic_store(&save->stage, 1 + MS_SAVE_COMMITTED);
  return MS_OK;
}

void ms_save_cancel(ms_save *save) {
  atomic_store(&save->stop, 1);
  ms_save_join(save);
}

/* Seconds without progress once a rank has failed, whose part may never come. */
static const double PATIENCE_AFTER_FAILURE = 2.0;

/* Other ranks of this host that wait so can still be writing their parts, which this one commits. */
static int has_moved(ms_save *save, progress *p) {
  const uint32_t before = p->others;
  const int written = has_written(save, p);
  p->others = ms_world_finished(save->state->world, written);
  return written || p->others != before;
}

static int drain_thread(ms_save *save, double patience) {
  progress p = {.moved_at = ms_clock(), .writes = atomic_load(&save->writes)};
  while (!atomic_load(&save->ended)) {
    if (has_moved(save, &p)) p.moved_at = ms_clock();
    if (patience > ms_wait_scale * PATIENCE_AFTER_FAILURE && ms_world_check(save->state->world)) {
      ms_error_clear();
      patience = ms_wait_scale * PATIENCE_AFTER_FAILURE;
    }
    MS_TRY(check_patience(save, &p, patience));
  }
  return end_of_thread(save);
}

static int drain(ms_save *save, double patience) {
  if (!save->threaded) return MS_OK;
  ms_world_count_finishing(save->state->world, 1);
  int rc = drain_thread(save, patience);
  ms_world_count_finishing(save->state->world, -1);
  return rc;
}

int ms_save_wait(ms_save *save, int stage, double patience) {
  MS_HANDLE(save, SAVE);
  if (stage < MS_SAVE_WRITTEN || stage > MS_SAVE_ENDED)
    return MS_FAIL(MS_EINVAL, "ms_save_wait: stage %d does not exist", stage);
  if (!(patience >= 0)) return MS_FAIL(MS_EINVAL, "ms_save_wait: patience is %g; it must be 0 or more", patience);
  patience = patience > 0 ? ms_wait_scale * patience : save->deadline;
  if (stage == MS_SAVE_ENDED) return drain(save, patience);
  if (!save->config.folder) return MS_OK;
  ms_recorder *recorder = ms_world_recorder(save->state->world);
  ms_recorder_enter(recorder, ms_recorder_number(recorder, "waiting for a checkpoint"));
  int rc = save->config.asynchronous ? wait_for_thread(save, stage, patience) : MS_OK;
  if (!rc && !save->config.asynchronous && stage == MS_SAVE_COMMITTED) rc = commit_now(save);
  ms_recorder_leave(recorder, rc);
  return rc;
}

int ms_save_running(const ms_save *save) {
  MS_HANDLE_OR(0, save, SAVE);
  return save->threaded && !atomic_load(&save->ended);
}

void ms_save_stop(ms_save *save) {
  MS_HANDLE_OR(, save, SAVE);
  ms_save_cancel(save);
}
