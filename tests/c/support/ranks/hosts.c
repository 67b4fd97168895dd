/* hosts.c - see hosts.h. */
#include "tests/c/support/ranks/hosts.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/c/support/ranks/callers.h"
#include "tests/c/support/check.h"

static ended *board;

static void set_number(const char *name, double value) {
  char text[32];
  snprintf(text, sizeof text, "%g", value);
  setenv(name, text, 1);
}

static _Noreturn void become_rank(const hosts *how, int rank, int port) {
  ms_world *world = NULL;
  ended *mine = &board[rank];
  set_number("RANK", rank);
  set_number("WORLD_SIZE", how->size);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  set_number("MASTER_PORT", port);
  set_number("MOONSHARD_TIMEOUT", 20);
  set_number("MOONSHARD_NODE", rank / how->per_host);
  ms_error_clear();
  int status = ms_world_join(NULL, &world);
  if (!status && how->timeout > 0) ms_world_set_timeout(world, how->timeout);
  if (!status) status = how->body(world, how->context);
  if (status) snprintf(mine->message, sizeof mine->message, "%s", ms_error_message());
  mine->at = ms_clock();
  mine->status = status;
  if (status && world) ms_world_abort(world, mine->message);
  ms_free(world);
  exit(0);
}

const ended *run_hosts(const hosts *how) {
  static const char *const names[] = {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "MOONSHARD_JOB_FD"};
  pid_t pid[MAX_HOST_RANKS] = {0};
  int status[MAX_HOST_RANKS] = {0}, port = find_port();
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) unsetenv(names[i]);
  if (!board) board = share_memory(MAX_HOST_RANKS * sizeof *board);
  memset(board, 0, MAX_HOST_RANKS * sizeof *board);
  for (int rank = 0; rank < how->size; rank++) board[rank].status = -1;
  fflush(NULL);
  for (int rank = how->size - 1; rank >= 0; rank--) {
    pid[rank] = fork();
    assert_true(pid[rank] >= 0);
    if (pid[rank] == 0) become_rank(how, rank, port);
  }
  wait_for_ranks(pid, how->size, status);
  return board;
}

void expect_hosts(const hosts *how) {
  const ended *all = run_hosts(how);
  for (int rank = 0; rank < how->size; rank++)
    if (all[rank].status)
      fail_msg("%d ranks, %d a host, rank %d: status %d: %s", how->size, how->per_host, rank, all[rank].status,
               all[rank].status < 0 ? "it died, or was ended because it ran too long" : all[rank].message);
}
