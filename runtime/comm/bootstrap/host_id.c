/* host_id.c - a host's identity: boot id, process and network namespaces, node number. */
#include "comm/bootstrap/host_id.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/env.h"
#include "base/error.h"

static int read_boot_id(char *text, size_t bytes) {
  static const char path[] = "/proc/sys/kernel/random/boot_id";
  FILE *file = fopen(path, "re");
  if (!file) return MS_FAIL(MS_EIO, "cannot identify this host: %s: %s", path, strerror(errno));
  size_t n = fread(text, 1, bytes - 1, file);
  fclose(file);
  text[n] = '\0';
  return MS_OK;
}

/* A namespace is identified by its inode. 0 when /proc does not say. */
static uint64_t namespace_of(const char *path) {
  struct stat info;
  return stat(path, &info) ? 0 : (uint64_t)info.st_ino;
}

int ms_host_id(uint8_t id[MS_HOST_ID]) {
  char boot[64], text[256];
  uint8_t digest[crypto_hash_sha256_BYTES];
  int node;
  MS_TRY(read_boot_id(boot, sizeof boot));
  MS_TRY(ms_env_int("MOONSHARD_NODE", 0, 0, 1 << 20, &node));
  int n = snprintf(text, sizeof text, "%s %" PRIx64 " %" PRIx64 " %d", boot, namespace_of("/proc/self/ns/pid"),
                   namespace_of("/proc/self/ns/net"), node);
  crypto_hash_sha256(digest, (const uint8_t *)text, (size_t)n);
  memcpy(id, digest, MS_HOST_ID);
  return MS_OK;
}

void ms_host_name(char *name, size_t bytes) {
  struct utsname system;
  const char *own = uname(&system) ? "unknown" : system.nodename;
  snprintf(name, bytes, "%s", ms_env_string("MOONSHARD_HOST_NAME", own));
}

/* Parent and start time of a running process; 0: no such process. */
static int read_stat(int pid, int *parent, uint64_t *start) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return 0;
  text[n] = '\0';
  /* Field 2, the name, can contain spaces and parentheses, so fields are counted from its last parenthesis. Field 3 is
   * the state. */
  const char *after = strrchr(text, ')');
  char state = 'Z';
  if (!after || sscanf(after + 1, " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %" SCNu64,
                       &state, parent, start) != 3)
    return 0;
  return state != 'Z' && state != 'X';
}

uint64_t ms_process_start(int pid) {
  int parent;
  uint64_t start;
  return read_stat(pid, &parent, &start) ? start : 0;
}

/* A process with an unreadable environment is not one of this job's wrappers: it counts as one without the variable. */
static int has_variable(int pid, const char *name) {
  char path[64], *entry = NULL;
  size_t room = 0, length = strlen(name);
  int found = 0;
  snprintf(path, sizeof path, "/proc/%d/environ", pid);
  FILE *file = fopen(path, "re");
  if (!file) return 0;
  while (!found && getdelim(&entry, &room, '\0', file) > 0)
    found = !strncmp(entry, name, length) && entry[length] == '=';
  free(entry);
  fclose(file);
  return found;
}

int ms_process_starter(const char *variable, uint64_t *start) {
  int pid = (int)getpid(), parent;
  uint64_t began;
  for (; read_stat(pid, &parent, &began) && parent > 0; pid = parent)
    if (!has_variable(parent, variable)) {
      *start = ms_process_start(parent);
      return *start ? parent : 0;
    }
  return 0;
}
