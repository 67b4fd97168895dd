/* ps.c - the runs on this host, for `moonshard ps`: found through /proc, and read from their flight recorders without
 * any effect on them.
 *
 * A run has no file and no name, but each of its processes has the control segment open, and /proc shows the targets of
 * descriptors. Users can read only the descriptors of their own processes, so they see their own runs; root sees all,
 * also what somebody has only given the name of a segment. So a segment is copied before it is looked at, and what is
 * opened is a file in memory.
 */
#include "host/ps.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <lauxlib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/diagnose/report.h"

enum { PATH_BYTES = 320, MAX_RUNS = 1024, TMPFS = 0x01021994 /* as in linux/magic.h: where memfds are */ };

typedef struct seen_runs {
  ino_t inode[MAX_RUNS];
  int n;
} seen_runs;

static int is_number(const char *name) {
  for (const char *c = name; *c; c++)
    if (!isdigit((unsigned char)*c)) return 0;
  return *name != '\0';
}

static int add_unseen(seen_runs *seen, ino_t inode) {
  for (int i = 0; i < seen->n; i++)
    if (seen->inode[i] == inode) return 0;
  if (seen->n == MAX_RUNS) return 0;
  seen->inode[seen->n++] = inode;
  return 1;
}

/* ---- a run as a Lua table, on top of the stack ---- */

static void set_text(lua_State *L, const char *key, const char *text) {
  if (!text || !*text) return;
  lua_pushstring(L, text);
  lua_setfield(L, -2, key);
}

static void set_number(lua_State *L, const char *key, double number) {
  lua_pushnumber(L, number);
  lua_setfield(L, -2, key);
}

/* The arguments of a process, joined by spaces. */
static void set_command(lua_State *L, int pid) {
  char path[PATH_BYTES], text[1024];
  snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
  FILE *file = fopen(path, "re");
  if (!file) return;
  size_t bytes = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  while (bytes && !text[bytes - 1]) bytes--;
  for (size_t i = 0; i < bytes; i++)
    if (!text[i]) text[i] = ' ';
  text[bytes] = '\0';
  set_text(L, "command", text);
}

static void set_ranks(lua_State *L, const ms_rank_set *ranks) {
  int n = 0;
  if (ms_rank_set_is_empty(ranks)) return;
  lua_newtable(L);
  MS_EACH_RANK(rank, ranks) {
    lua_pushinteger(L, rank);
    lua_rawseti(L, -2, ++n);
  }
  lua_setfield(L, -2, "ranks");
}

static void set_op(lua_State *L, const char *key, const ms_rank_op *op) {
  if (!op->kind) return;
  lua_newtable(L);
  set_text(L, "kind", op->kind);
  set_text(L, "unit", op->label);
  set_text(L, "activity", op->activity);
  set_number(L, "seconds", op->seconds);
  set_ranks(L, &op->missing);
  lua_setfield(L, -2, key);
}

static void push_rank(lua_State *L, const ms_control *control, int rank) {
  static const char *const states[] = {"absent", "joined", "left"};
  ms_rank_status s;
  ms_report_status(control, rank, &s);
  lua_newtable(L);
  set_number(L, "rank", rank);
  set_number(L, "pid", s.pid);
  set_text(L, "state", states[s.state >= 0 && s.state <= MS_CONTROL_LEFT ? s.state : 0]);
  set_number(L, "step", (double)s.done);
  set_number(L, "tokens_per_s", s.tokens_per_s);
  set_text(L, "activity", s.activity);
  set_text(L, "unit", s.at);
  set_text(L, "doing", s.doing);
  if (s.state == MS_CONTROL_JOINED) set_number(L, "seconds", s.since);
  set_op(L, "waits", &s.wait);
  set_op(L, "last", &s.last);
}

static void push_run(lua_State *L, const ms_control *control) {
  lua_newtable(L);
  set_number(L, "pid", control->maker);
  set_number(L, "seconds", 1e-9 * (double)(ms_recorder_now() - control->made));
  set_command(L, control->maker);
  lua_newtable(L);
  for (int rank = 0, listed = 0; rank < control->size; rank++) {
    if (!atomic_load(&control->rank[rank].pid)) continue; /* of another host, or not started yet */
    push_rank(L, control, rank);
    lua_rawseti(L, -2, ++listed);
  }
  lua_setfield(L, -2, "ranks");
}

/* A run whose control segment this program cannot read. */
static void push_stranger(lua_State *L, int pid, const char *why) {
  lua_newtable(L);
  set_number(L, "pid", pid);
  set_command(L, pid);
  set_text(L, "unreadable", why);
}

/* ---- finding runs ---- */

/* 0 for the unused segment of a launcher that only writes the log file of another launcher's rank. */
static int has_ranks(const ms_control *control) {
  for (int rank = 0; rank < control->size; rank++)
    if (atomic_load(&control->rank[rank].pid)) return 1;
  return 0;
}

static void push(lua_State *L, const ms_control *control) {
  if (!has_ranks(control)) return;
  push_run(L, control);
  lua_rawseti(L, -2, (int)lua_objlen(L, -2) + 1);
}

/* Opens a process's descriptor if it is a file in memory: opening something else can block, or do something. -1: it is
 * not, or is gone. */
static int open_segment(const char *descriptor, struct stat *info) {
  char path[PATH_BYTES];
  struct statfs system;
  int fd = -1, place = open(descriptor, O_PATH | O_CLOEXEC); /* opens nothing yet */
  if (place < 0) return -1;
  if (!fstat(place, info) && S_ISREG(info->st_mode) && !fstatfs(place, &system) && system.f_type == TMPFS) {
    snprintf(path, sizeof path, "/proc/self/fd/%d", place);
    fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  }
  close(place);
  return fd;
}

static void add_run(lua_State *L, seen_runs *seen, int pid, const char *descriptor) {
  struct stat info;
  ms_control *control;
  int fd = open_segment(descriptor, &info);
  if (fd < 0) return;
  if (add_unseen(seen, info.st_ino)) {
    if (ms_job_copy(fd, &control)) {
      push_stranger(L, pid, ms_error_message());
      lua_rawseti(L, -2, (int)lua_objlen(L, -2) + 1);
      ms_error_clear();
    } else {
      push(L, control);
      ms_control_unmap(control);
    }
  }
  close(fd);
}

static void look_into(lua_State *L, seen_runs *seen, int pid) {
  static const char wanted[] = "/memfd:" MS_CONTROL_NAME;
  char folder[PATH_BYTES], path[2 * PATH_BYTES], target[sizeof wanted];
  snprintf(folder, sizeof folder, "/proc/%d/fd", pid);
  DIR *descriptors = opendir(folder);
  if (!descriptors) return;
  for (struct dirent *entry; (entry = readdir(descriptors));) {
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    ssize_t length = readlink(path, target, sizeof target);
    /* The target continues with " (deleted)", as for every memfd. */
    if (length == (ssize_t)sizeof target && target[sizeof wanted - 1] == ' ' &&
        !memcmp(target, wanted, sizeof wanted - 1))
      add_run(L, seen, pid, path);
  }
  closedir(descriptors);
}

int ms_host_runs(lua_State *L) {
  seen_runs *seen = lua_newuserdata(L, sizeof *seen);
  seen->n = 0;
  lua_newtable(L);
  DIR *processes = opendir("/proc");
  if (!processes) return luaL_error(L, "cannot list runs: /proc cannot be read");
  for (struct dirent *entry; (entry = readdir(processes));)
    if (is_number(entry->d_name)) look_into(L, seen, atoi(entry->d_name));
  closedir(processes);
  return 1;
}
