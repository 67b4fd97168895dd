/* ranks.c - ranks for tests. No assertion is made outside the test's own thread and process: cmocka
 * leaves by longjmp. */
#include "tests/c/support/ranks/ranks.h"

#include "tests/c/support/check.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/bootstrap/join.h"
#include "comm/group/table.h"
#include "comm/diagnose/launcher_view.h"

typedef struct thread_rank {
  ms_control *control;
  int rank, status;
  rank_body *body;
  void *context;
  char message[2048];
} thread_rank;

static void *run_thread(void *argument) {
  thread_rank *mine = argument;
  ms_world *world = NULL;
  ms_error_clear();
  mine->status = ms_world_attach(mine->control, mine->rank, &world);
  if (!mine->status) mine->status = mine->body(world, mine->context);
  if (mine->status) {
    snprintf(mine->message, sizeof mine->message, "%s", ms_error_message());
    if (world) ms_world_abort(world, mine->message);
  }
  ms_free(world);
  return NULL;
}

void run_ranks_as_threads(int ranks, rank_body *body, void *context) {
  int fd;
  ms_control *control;
  pthread_t thread[MS_MAX_LOCAL_RANKS];
  thread_rank *rank = calloc((size_t)ranks, sizeof *rank);
  assert_non_null(rank);
  assert_int_equal(ms_job_create(ranks, ranks, 0, &fd), MS_OK);
  assert_int_equal(ms_control_map(fd, &control), MS_OK);
  close(fd);
  for (int r = 0; r < ranks; r++) {
    rank[r] = (thread_rank){.control = control, .rank = r, .body = body, .context = context};
    assert_int_equal(pthread_create(&thread[r], NULL, run_thread, &rank[r]), 0);
  }
  for (int r = 0; r < ranks; r++) pthread_join(thread[r], NULL);
  int row, first = 0;
  if (!ms_control_aborted(control, &row, &first)) first = 0;
  for (int i = 0; i < ranks; i++) {
    int r = (first + i) % ranks; /* the rank that gave up first tells the cause */
    if (rank[r].status) fail_msg("%d ranks as threads, rank %d: %s", ranks, r, rank[r].message);
  }
  ms_control_unmap(control);
  free(rank);
}

static _Noreturn void run_process(int rank, int ranks, int fd, rank_body *body, void *context) {
  char text[16];
  ms_world *world = NULL;
  snprintf(text, sizeof text, "%d", rank);
  setenv("RANK", text, 1);
  snprintf(text, sizeof text, "%d", ranks);
  setenv("WORLD_SIZE", text, 1);
  snprintf(text, sizeof text, "%d", fd);
  setenv("MOONSHARD_JOB_FD", text, 1);
  int status = ms_world_join(NULL, &world);
  if (!status) status = body(world, context);
  if (status && world) ms_world_abort(world, ms_error_message());
  ms_free(world);
  _exit(status);
}

void wait_for_ranks(const pid_t *pid, int count, int *status) {
  const double end = ms_clock() + RANK_SECONDS;
  for (int r = 0; r < count; r++) {
    while (waitpid(pid[r], &status[r], WNOHANG) == 0) {
      if (ms_clock() > end) kill(pid[r], SIGKILL);
      usleep(1000);
    }
  }
}

void run_ranks_as_processes(int ranks, rank_body *body, void *context) {
  int fd, status[MS_MAX_LOCAL_RANKS] = {0};
  pid_t pid[MS_MAX_LOCAL_RANKS] = {0};
  ms_control_view *view;
  assert_int_equal(ms_job_create(ranks, ranks, 0, &fd), MS_OK);
  assert_int_equal(ms_control_view_open(fd, &view), MS_OK);
  for (int r = 0; r < ranks; r++) {
    pid[r] = fork();
    assert_true(pid[r] >= 0);
    if (pid[r] == 0) run_process(r, ranks, fd, body, context);
  }
  wait_for_ranks(pid, ranks, status);
  int failed = -1;
  for (int r = ranks - 1; r >= 0; r--)
    if (status[r]) failed = r;
  int blamed;
  const char *why = ms_control_abort_reason(view, &blamed);
  if (failed >= 0)
    fail_msg("%d ranks as processes, rank %d failed: %s", ranks, why ? blamed : failed,
             why ? why : "it died or ran too long");
  ms_control_view_close(view);
  close(fd);
}

void *share_memory(size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(memory, MAP_FAILED);
  return memory;
}

void unshare_memory(void *memory, size_t bytes) { munmap(memory, bytes); }
