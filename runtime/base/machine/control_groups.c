/* control_groups.c - reads from /proc/self/cgroup where this process's control groups are below /sys/fs/cgroup. */
#include "base/machine/control_groups.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void visit_upwards(const char *mount, const char *group, int version, ms_control_group_visit *visit,
                          void *context) {
  char folder[MS_CONTROL_GROUP_BYTES];
  snprintf(folder, sizeof folder, "%s%s", mount, strcmp(group, "/") ? group : "");
  for (size_t top = strlen(mount);;) {
    visit(context, folder, version);
    char *slash = strrchr(folder, '/');
    if (!slash || (size_t)(slash - folder) < top) return;
    *slash = '\0';
  }
}

/* Whether a comma-separated list has a controller. */
static int names(const char *controllers, const char *controller) {
  const size_t length = strlen(controller);
  for (const char *at = controllers; (at = strstr(at, controller)); at += length)
    if ((at == controllers || at[-1] == ',') && (at[length] == '\0' || at[length] == ',')) return 1;
  return 0;
}

/* The second version is mounted in place of the first, or next to its controllers. */
static void find_mount(const char *root, int version, const char *controller, char *mount, size_t bytes) {
  snprintf(mount, bytes, "%s/sys/fs/cgroup/%s", root, version == 1 ? controller : "unified");
  if (version == 2 && access(mount, F_OK)) snprintf(mount, bytes, "%s/sys/fs/cgroup", root);
}

void ms_control_groups_visit(const char *root, const char *controller, ms_control_group_visit *visit, void *context) {
  char path[512], line[1024], mount[512];
  snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
  FILE *file = fopen(path, "re");
  if (!file) return;
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = '\0';
    char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) continue;
    *group++ = '\0';
    controllers++;
    const int version = *controllers ? 1 : 2;
    if (version == 1 && !names(controllers, controller)) continue;
    find_mount(root, version, controller, mount, sizeof mount);
    visit_upwards(mount, group, version, visit, context);
  }
  fclose(file);
}
