/* orphans.c - finds orphaned programs, which become children of this process, in /proc, and kills them. */
#include "host/launcher/orphans.h"

#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_CHILDREN = 256, ROUNDS = 1000, ROUND_MICROSECONDS = 1000 };

static int list_children(pid_t *pid, int most) {
  char path[64];
  int n = 0;
  snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  for (int child; n < most && fscanf(file, "%d", &child) == 1;) pid[n++] = child;
  fclose(file);
  return n;
}

void ms_orphans_adopt(ms_orphans *orphans) {
  orphans->known = list_children(orphans->known_pid, MS_ORPHANS_KNOWN);
  prctl(PR_GET_CHILD_SUBREAPER, &orphans->adopted_before);
  orphans->adopts = !prctl(PR_SET_CHILD_SUBREAPER, 1);
}

static int is_known(const ms_orphans *orphans, pid_t pid) {
  for (int i = 0; i < orphans->known; i++)
    if (orphans->known_pid[i] == pid) return 1;
  return 0;
}

/* Reaps unknown children that have ended and, if end is 1, kills the others. Returns the number found. */
static int sweep_once(const ms_orphans *orphans, int end) {
  pid_t child[MAX_CHILDREN];
  int found = 0, n = list_children(child, MAX_CHILDREN);
  for (int i = 0; i < n; i++) {
    if (is_known(orphans, child[i])) continue;
    if (end) kill(child[i], SIGKILL);
    waitpid(child[i], NULL, WNOHANG);
    found++;
  }
  return found;
}

void ms_orphans_finish(ms_orphans *orphans, int end) {
  if (!orphans->adopts) return;
  /* Children of a killed program become children of this process in turn, hence several rounds. */
  for (int round = 0; round < ROUNDS && sweep_once(orphans, end) && end; round++) usleep(ROUND_MICROSECONDS);
  prctl(PR_SET_CHILD_SUBREAPER, orphans->adopted_before);
  orphans->adopts = 0;
}
