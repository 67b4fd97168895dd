/* rdma.c - looks for RDMA devices where the kernel lists them. */
#include "comm/transport/rdma.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "base/env.h"

static const char DEVICES[] = "/sys/class/infiniband";

/* Whether a list such as "rc,tcp" or "^tcp" lets UCX use RDMA: it names something other than shared memory and TCP. */
static int allows_rdma(const char *tls) {
  static const char *const others[] = {"tcp", "self", "sm", "shm", "mm", "posix", "sysv", "cma", "knem", "xpmem"};
  if (!tls || *tls == '^') return 1;
  for (const char *at = tls; *at;) {
    size_t n = strcspn(at, ","), i = 0;
    while (i < sizeof others / sizeof *others && (strlen(others[i]) != n || memcmp(at, others[i], n))) i++;
    if (n && i == sizeof others / sizeof *others) return 1;
    at += n + (at[n] == ',');
  }
  return 0;
}

int ms_rdma_device(char *name, size_t bytes) {
  int found = 0;
  DIR *devices = allows_rdma(ms_env_string("UCX_TLS", NULL)) ? opendir(DEVICES) : NULL;
  if (!devices) return 0;
  for (const struct dirent *entry; !found && (entry = readdir(devices));) {
    found = *entry->d_name != '.';
    if (found && name) snprintf(name, bytes, "%s", entry->d_name);
  }
  closedir(devices);
  return found;
}
