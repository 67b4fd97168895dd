/* launch.c - a launch from its beginning to its end.
 *
 * The launcher has one thread with one poll loop over a signal descriptor and the ranks' output. It leaves nothing
 * behind: the control segment is an unnamed memfd, and the kernel kills the ranks when the launcher dies.
 */
#include "host/launcher/launch.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/env.h"
#include "base/error.h"
#include "comm/bootstrap/join.h"
#include "comm/group/table.h"

static int plan_pinning(ms_running *run) {
  ms_cores cores;
  ms_grant grant;
  const char *threads = ms_env_string("OMP_NUM_THREADS", NULL);
  if (run->config->ranks > 1 && omp_get_proc_bind() != omp_proc_bind_false)
    return MS_FAIL(MS_EINVAL, "OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY is set, with which the OpenMP library "
                              "binds every rank to the same cores: unset it; --pin controls the cores of ranks");
  MS_TRY(ms_grant_read(&grant));
  ms_cores_read("", &cores);
  return ms_pinning_plan(&cores, grant.node ? grant.node : grant.rank, run->config->pin, threads ? atoi(threads) : 0,
                         run->config->ranks, &run->pinning);
}

static int make_segment(ms_running *run) {
  const int ranks = run->config->ranks, nodes = run->config->nodes ? run->config->nodes : 1;
  if (!run->config->link && (int64_t)ranks * nodes > MS_MAX_RANKS)
    return MS_FAIL(MS_EINVAL, "a job has at most %d ranks, not %d nodes of %d", MS_MAX_RANKS, nodes, ranks);
  return ms_job_create(ms_nodes_world(run->config), ranks, 0, &run->control_fd);
}

static int prepare(ms_running *run) {
  MS_TRY(ms_nodes_prepare(run->config));
  MS_TRY(make_segment(run));
  MS_TRY(ms_control_view_open(run->control_fd, &run->view));
  MS_TRY(plan_pinning(run));
  run->ranks = ms_calloc(run->config->ranks, sizeof *run->ranks);
  run->output = ms_calloc(2, sizeof *run->output);
  if (!run->ranks || !run->output) return MS_ENOMEM;
  for (int i = 0; i < 2; i++) ms_output_buffer_open(&run->output[i], i == 0 ? STDOUT_FILENO : STDERR_FILENO);
  for (int rank = 0; rank < run->config->ranks; rank++) {
    run->ranks[rank].file = -1;
    for (int i = 0; i < 2; i++) run->ranks[rank].log[i].fd = -1;
  }
  ms_orphans_adopt(&run->orphans);
  return ms_take_signals(run);
}

static void close_launch(ms_running *run) {
  ms_give_signals_back(run);
  for (int rank = 0; run->ranks && rank < run->config->ranks; rank++) {
    for (int i = 0; i < 2; i++) ms_rank_log_close(&run->ranks[rank].log[i]);
    if (run->ranks[rank].file >= 0) close(run->ranks[rank].file);
  }
  for (int i = 0; run->output && i < 2; i++) ms_output_buffer_close(&run->output[i]);
  free(run->ranks);
  free(run->output);
  free(run->stuck);
  ms_control_view_close(run->view);
  if (run->control_fd >= 0) close(run->control_fd);
}

int ms_launch(const ms_launch_config *config, int *exit_status) {
  int rc;
  ms_running run = {.config = config, .control_fd = -1, .signals = -1, .first_failed = -1};
  double timeout;
  MS_GOTO(ms_world_read_timeout(&timeout));
  MS_GOTO(prepare(&run));
  MS_GOTO(ms_open_log_files(&run));
  fflush(NULL); /* otherwise every rank would write what is buffered now */
  for (int rank = 0; rank < config->ranks; rank++) MS_GOTO(ms_start_rank(&run, rank));
  ms_watch(&run);
  ms_finish_output(&run);
  if (run.first_failed < 0 && !run.unread) ms_output_buffer_tell_lost(run.output, run.gone, sizeof run.gone);
  *exit_status = ms_choose_status(&run);
  ms_orphans_finish(&run.orphans, *exit_status != 0);
  ms_report(&run, *exit_status);
  ms_finish_output(&run);
fail:
  if (run.running) { /* a rank could not be started */
    ms_kill_ranks(&run);
    ms_watch(&run);
  }
  ms_orphans_finish(&run.orphans, 1);
  close_launch(&run);
  return rc;
}
