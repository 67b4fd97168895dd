/* machine_memory.c - reads the memory of this machine from /proc/meminfo, and the limits of control groups. */
#include "base/machine/machine_memory.h"

#include <stdio.h>
#include <string.h>

#include "base/machine/control_groups.h"

/* The names of a group's files, and in memory.stat of cached pages of files, which the kernel frees when memory is
 * short; those of the groups below are included. */
static const struct {
  const char *limit, *used, *cached[2];
} FILES[] = {
    [1] = {"memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}},
    [2] = {"memory.max", "memory.current", {"inactive_file", "active_file"}},
};

/* -1: there is no such file, or it holds no number (as "max" for no limit). */
static int64_t read_bytes(const char *folder, const char *name) {
  char path[MS_CONTROL_GROUP_BYTES + 32];
  long long bytes;
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "re");
  if (!file) return -1;
  if (fscanf(file, "%lld", &bytes) != 1 || bytes < 0) bytes = -1;
  fclose(file);
  return bytes;
}

static int64_t read_cached(const char *folder, int version) {
  char path[MS_CONTROL_GROUP_BYTES + 32], name[64];
  long long bytes;
  int64_t cached = 0;
  snprintf(path, sizeof path, "%s/memory.stat", folder);
  FILE *file = fopen(path, "re");
  if (!file) return 0;
  while (fscanf(file, "%63s %lld", name, &bytes) == 2)
    for (int i = 0; i < 2; i++)
      if (!strcmp(name, FILES[version].cached[i]) && bytes > 0) cached += bytes;
  fclose(file);
  return cached;
}

typedef struct found_limit {
  ms_machine_memory *memory;
  int64_t left; /* of the group in memory->limit_file */
} found_limit;

static void visit_limit(void *context, const char *folder, int version) {
  found_limit *found = context;
  ms_machine_memory *memory = found->memory;
  const int64_t limit = read_bytes(folder, FILES[version].limit), used = read_bytes(folder, FILES[version].used);
  if (limit < 0 || (memory->total >= 0 && limit >= memory->total)) return;
  int64_t left = limit - (used < 0 ? 0 : used) + read_cached(folder, version);
  left = left < 0 ? 0 : left > limit ? limit : left;
  if (memory->limit >= 0 && left >= found->left) return;
  found->left = left;
  memory->limit = limit;
  snprintf(memory->limit_file, sizeof memory->limit_file, "%s/%s", folder, FILES[version].limit);
}

static void read_machine(const char *root, ms_machine_memory *memory) {
  char path[512], line[256];
  long long kib;
  snprintf(path, sizeof path, "%s/proc/meminfo", root);
  FILE *file = fopen(path, "re");
  if (!file) return;
  while (fgets(line, sizeof line, file)) {
    if (sscanf(line, "MemTotal: %lld kB", &kib) == 1) memory->total = 1024 * kib;
    if (sscanf(line, "MemAvailable: %lld kB", &kib) == 1) memory->available = 1024 * kib;
  }
  fclose(file);
}

void ms_machine_memory_read(const char *root, ms_machine_memory *memory) {
  found_limit found = {.memory = memory};
  *memory = (ms_machine_memory){.total = -1, .available = -1, .limit = -1};
  read_machine(root, memory);
  ms_control_groups_visit(root, "memory", visit_limit, &found);
  if (memory->limit >= 0 && (memory->available < 0 || found.left < memory->available)) memory->available = found.left;
}
