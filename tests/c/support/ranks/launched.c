/* launched.c - see launched.h. */
#include "tests/c/support/ranks/launched.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/group/world.h"

blackboard *board;
outcome result;

int with_board(void **state) {
  board = share_memory(sizeof *board);
  return start_without_error(state);
}

int without_board(void **state) {
  (void)state;
  unshare_memory(board, sizeof *board);
  return 0;
}

int join(ms_world **world) {
  if (ms_world_join(NULL, world)) return 2;
  board->pid[ms_world_rank(*world)] = getpid();
  return 0;
}

int leave(ms_world *world, int rc) {
  if (rc) ms_world_abort(world, ms_error_message());
  ms_free(world);
  return rc ? STATUS_FAILED_RUN : 0;
}

void be_ready(void) { __atomic_fetch_add(&board->ready, 1, __ATOMIC_SEQ_CST); }

static _Noreturn void launch_and_exit(const ms_launch_config *config) {
  int status;
  if (!ms_launch(config, &status)) _exit(status);
  fprintf(stderr, "cannot launch: %s\n", ms_error_message());
  _exit(99);
}

pid_t start(const ms_launch_config *config, int *out, int *err) {
  int out_pipe[2], err_pipe[2];
  assert_int_equal(pipe(out_pipe), 0);
  assert_int_equal(pipe(err_pipe), 0);
  fflush(NULL);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    dup2(out_pipe[1], 1);
    dup2(err_pipe[1], 2);
    close(out_pipe[0]);
    close(out_pipe[1]);
    close(err_pipe[0]);
    close(err_pipe[1]);
    launch_and_exit(config);
  }
  close(out_pipe[1]);
  close(err_pipe[1]);
  *out = out_pipe[0];
  *err = err_pipe[0];
  return pid;
}

pid_t start_at_terminal(const ms_launch_config *config, int columns, int *screen) {
  char name[64];
  *screen = posix_openpt(O_RDWR | O_NOCTTY);
  assert_true(*screen >= 0 && !grantpt(*screen) && !unlockpt(*screen));
  assert_int_equal(ptsname_r(*screen, name, sizeof name), 0);
  int terminal = open(name, O_RDWR | O_NOCTTY);
  assert_true(terminal >= 0);
  struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
  ioctl(terminal, TIOCSWINSZ, &size);
  fflush(NULL);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    close(*screen);
    setsid();
    ioctl(terminal, TIOCSCTTY, 0);
    for (int fd = 0; fd < 3; fd++) dup2(terminal, fd);
    if (terminal > 2) close(terminal);
    launch_and_exit(config);
  }
  close(terminal);
  return pid;
}

/* To the end, also what there is no room for: a run whose reader goes away does not end well. */
static void read_all(int fd, char *text) {
  char rest[4096];
  size_t used = 0;
  ssize_t bytes;
  while ((bytes = read(fd, text + used, OUTPUT_BYTES - 1 - used)) > 0) used += (size_t)bytes;
  text[used] = '\0';
  while (used == OUTPUT_BYTES - 1 && read(fd, rest, sizeof rest) > 0) continue;
  close(fd);
}

char state_of(pid_t pid) {
  char path[64], state = 0;
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 0;
  fclose(file);
  return state;
}

int is_gone(pid_t pid) {
  for (int i = 0; i < 2000; i++) {
    char state = state_of(pid);
    if (!state || state == 'Z') return 1;
    usleep(1000);
  }
  return 0;
}

static void assert_nothing_is_left(void) {
  for (int rank = 0; rank < MAX_RANKS; rank++)
    if (board->pid[rank] && !is_gone(board->pid[rank]))
      fail_msg("rank %d (process %d) is still there", rank, (int)board->pid[rank]);
}

static void take_result(pid_t pid, double began) {
  int status;
  waitpid(pid, &status, 0);
  result.seconds = ms_clock() - began;
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  assert_nothing_is_left();
}

void finish(pid_t pid, int out, int err, double began) {
  read_all(out, result.out);
  read_all(err, result.err);
  take_result(pid, began);
}

void finish_at_terminal(pid_t pid, int screen, double began) {
  read_all(screen, result.out); /* it fails when the other side is closed everywhere */
  take_result(pid, began);
}

void launch_config(const ms_launch_config *config) {
  int out, err;
  double began = ms_clock();
  pid_t pid = start(config, &out, &err);
  finish(pid, out, err, began);
}

void launch_ranks(int ranks, int (*rank_main)(void *), void *context) {
  ms_launch_config config = {.ranks = ranks, .rank_main = rank_main, .context = context};
  launch_config(&config);
}

void wait_until_ready(int ranks) {
  for (int i = 0; i < 10000 && __atomic_load_n(&board->ready, __ATOMIC_SEQ_CST) < ranks; i++) usleep(1000);
  assert_int_equal(__atomic_load_n(&board->ready, __ATOMIC_SEQ_CST), ranks);
}

void launch_and_signal(int (*rank_main)(void *), double grace, const int *signals, int n) {
  int out, err;
  ms_launch_config config = {.ranks = 3, .rank_main = rank_main, .grace = grace};
  pid_t pid = start(&config, &out, &err);
  wait_until_ready(3);
  double began = ms_clock();
  for (int i = 0; i < n; i++) {
    if (i) usleep(100000);
    kill(pid, signals[i]);
  }
  finish(pid, out, err, began);
}

int count_lines(const char *text) {
  int n = 0;
  for (; *text; text++) n += *text == '\n';
  return n;
}
