/* cores.c - reads the affinity mask, the topology below /sys, the quotas of control groups, and the cores granted by a
 * batch system; divides cores among ranks. */
#include "base/machine/cores.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/machine/control_groups.h"
#include "base/env.h"
#include "moonshard.h"

typedef struct place {
  int package, physical, core;
} place;

static int read_number(const char *root, int core, const char *name, int fallback) {
  char path[512];
  int value;
  snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d/topology/%s", root, core, name);
  FILE *file = fopen(path, "r");
  if (!file) return fallback;
  if (fscanf(file, "%d", &value) != 1) value = fallback;
  fclose(file);
  return value;
}

static int compare_places(const void *left, const void *right) {
  const place *a = left, *b = right;
  if (a->package != b->package) return a->package < b->package ? -1 : 1;
  if (a->physical != b->physical) return a->physical < b->physical ? -1 : 1;
  return (a->core > b->core) - (a->core < b->core);
}

/* Neighbours in this order share caches, so a rank that receives a contiguous range shares little with the others. */
static void order_by_topology(const char *root, ms_cores *cores) {
  place at[CPU_SETSIZE];
  for (int i = 0; i < cores->n; i++) {
    int core = cores->core[i];
    at[i] = (place){read_number(root, core, "physical_package_id", 0), read_number(root, core, "core_id", core), core};
  }
  qsort(at, (size_t)cores->n, sizeof *at, compare_places);
  cores->n_physical = 0;
  for (int i = 0; i < cores->n; i++) {
    if (i == 0 || at[i].package != at[i - 1].package || at[i].physical != at[i - 1].physical) cores->n_physical++;
    cores->core[i] = at[i].core;
    cores->physical[i] = cores->n_physical - 1;
  }
}

/* ---- quotas ---- */

/* Lowers *context, the cores that the groups so far pay for, to the quota of one more, if it sets a limit. */
static void visit_quota(void *context, const char *folder, int version) {
  double *most = context;
  char path[MS_CONTROL_GROUP_BYTES + 32];
  long long quota = -1, period = -1; /* microseconds */
  snprintf(path, sizeof path, "%s/%s", folder, version == 2 ? "cpu.max" : "cpu.cfs_quota_us");
  FILE *file = fopen(path, "re");
  if (!file) return;
  int read = version == 2 ? fscanf(file, "%lld %lld", &quota, &period) == 2 : fscanf(file, "%lld", &quota) == 1;
  fclose(file);
  if (version == 1) {
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    file = fopen(path, "re");
    read = read && file && fscanf(file, "%lld", &period) == 1;
    if (file) fclose(file);
  }
  if (read && quota > 0 && period > 0 && (double)quota / (double)period < *most) *most = (double)quota / (double)period;
}

void ms_cores_read(const char *root, ms_cores *cores) {
  cpu_set_t set;
  *cores = (ms_cores){0};
  if (sched_getaffinity(0, sizeof set, &set)) {
    CPU_ZERO(&set);
    CPU_SET(0, &set);
  }
  for (int core = 0; core < CPU_SETSIZE; core++)
    if (CPU_ISSET(core, &set)) cores->core[cores->n++] = core;
  order_by_topology(root, cores);
  cores->quota = cores->n;
  ms_control_groups_visit(root, "cpu", visit_quota, &cores->quota);
}

int ms_cores_usable(const ms_cores *cores) {
  int whole = (int)(cores->quota + 0.5);
  return whole < 1 ? 1 : whole < cores->n ? whole : cores->n;
}

void ms_cores_text(const cpu_set_t *set, char *text, size_t bytes) {
  size_t used = 0;
  text[0] = '\0';
  for (int core = 0; core < CPU_SETSIZE; core++) {
    if (!CPU_ISSET(core, set)) continue;
    int last = core;
    while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, set)) last++;
    if (used < bytes) used += (size_t)snprintf(text + used, bytes - used, used ? ",%d" : "%d", core);
    if (last > core && used < bytes) used += (size_t)snprintf(text + used, bytes - used, "-%d", last);
    core = last;
  }
}

/* ---- threads ---- */

enum { MAX_THREADS = 1024, MAX_CORES = 1 << 16 };

/* Slurm; PBS Professional; Torque; Grid Engine. */
static const char *const NODE_VARIABLES[] = {"SLURM_CPUS_ON_NODE", "NCPUS", "PBS_NUM_PPN", "NSLOTS"};
static const char *const RANK_VARIABLES[] = {"SLURM_CPUS_PER_TASK"};

static int read_first(const char *const *names, size_t n, int *value) {
  *value = 0;
  for (size_t i = 0; i < n && !*value; i++)
    if (ms_env_string(names[i], NULL)) return ms_env_int(names[i], 0, 1, MAX_CORES, value);
  return MS_OK;
}

int ms_grant_read(ms_grant *grant) {
  int rc = read_first(NODE_VARIABLES, sizeof NODE_VARIABLES / sizeof *NODE_VARIABLES, &grant->node);
  return rc ? rc : read_first(RANK_VARIABLES, sizeof RANK_VARIABLES / sizeof *RANK_VARIABLES, &grant->rank);
}

int ms_threads_each(const ms_cores *cores, int granted, int ranks) {
  int usable = ms_cores_usable(cores);
  if (granted > 0 && granted < usable) usable = granted;
  if (usable > cores->n_physical) usable = cores->n_physical;
  return usable > ranks ? usable / ranks : 1;
}

static _Atomic int decided;

void ms_thread_count_decide(int threads) { atomic_store(&decided, threads); }

/* The cores of this process. The files that tell them are read again only if its affinity has changed: a long list of
 * plans asks for each. */
static void read_own(ms_cores *cores) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  static ms_cores known;
  static cpu_set_t of;
  cpu_set_t set;
  const int rc = sched_getaffinity(0, sizeof set, &set);
  pthread_mutex_lock(&mutex);
  if (rc || !known.n || !CPU_EQUAL(&set, &of)) {
    ms_cores_read("", &known);
    of = set;
  }
  *cores = known;
  pthread_mutex_unlock(&mutex);
}

int ms_thread_count(int ranks, int *threads) {
  ms_cores cores;
  ms_grant grant;
  int joined = atomic_load(&decided), rc;
  if (joined || ms_env_string("OMP_NUM_THREADS", NULL))
    return ms_env_int("OMP_NUM_THREADS", joined, 1, MAX_THREADS, threads);
  if ((rc = ms_grant_read(&grant))) return rc;
  read_own(&cores);
  *threads = ms_threads_each(&cores, ranks == 1 && grant.rank ? grant.rank : grant.node, ranks);
  return MS_OK;
}
