/* nccl.c - finding NCCL: by MOONSHARD_NCCL_LIBRARY, else as the dynamic linker finds libnccl.so.2. */
#include "device/cuda/nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static ms_nccl nccl;
static int loaded; /* 1: complete */
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

#define ENTRY(field, symbol) \
  { symbol, offsetof(ms_nccl, field) }
static const struct {
  const char *symbol;
  size_t at;
} entries[] = {ENTRY(get_version, "ncclGetVersion"),
               ENTRY(get_unique_id, "ncclGetUniqueId"),
               ENTRY(comm_init_rank_config, "ncclCommInitRankConfig"),
               ENTRY(comm_split, "ncclCommSplit"),
               ENTRY(comm_get_async_error, "ncclCommGetAsyncError"),
               ENTRY(comm_abort, "ncclCommAbort"),
               ENTRY(get_error_string, "ncclGetErrorString"),
               ENTRY(get_last_error, "ncclGetLastError"),
               ENTRY(group_start, "ncclGroupStart"),
               ENTRY(group_end, "ncclGroupEnd"),
               ENTRY(all_gather, "ncclAllGather"),
               ENTRY(reduce_scatter, "ncclReduceScatter"),
               ENTRY(all_reduce, "ncclAllReduce"),
               ENTRY(broadcast, "ncclBroadcast")};
enum { ENTRIES = sizeof entries / sizeof *entries };

static const char *path_of(void) {
  const char *path = getenv("MOONSHARD_NCCL_LIBRARY");
  return path && *path ? path : "libnccl.so.2";
}

/* The first function that the library lacks; NULL: it has all. */
static const char *resolve(void *library) {
  for (int i = 0; i < ENTRIES; i++) {
    void *found = dlsym(library, entries[i].symbol);
    if (!found) return entries[i].symbol;
    memcpy((char *)&nccl + entries[i].at, &found, sizeof found);
  }
  return NULL;
}

static int load(void) {
  int version;
  if (loaded) return MS_OK;
  void *library = dlopen(path_of(), RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return MS_FAIL(MS_EUNSUPPORTED, "several GPUs need NCCL: %s (MOONSHARD_NCCL_LIBRARY may name the library)",
                   dlerror());
  const char *lacks = resolve(library);
  if (!lacks && nccl.get_version(&version)) lacks = "a version";
  if (!lacks && version >= MS_NCCL_OLDEST) {
    loaded = 1;
    return MS_OK;
  }
  dlclose(library);
  if (lacks) return MS_FAIL(MS_EUNSUPPORTED, "%s lacks %s: NCCL 2.18.5 or later is needed", path_of(), lacks);
  return MS_FAIL(MS_EUNSUPPORTED, "%s is NCCL %d.%d.%d: 2.18.5 or later is needed", path_of(), version / 10000,
                 version / 100 % 100, version % 100);
}

int ms_nccl_load(const ms_nccl **out) {
  pthread_mutex_lock(&loading);
  int rc = load();
  pthread_mutex_unlock(&loading);
  *out = &nccl;
  return rc;
}

int ms_nccl_version(int *version) {
  void *library = dlopen(path_of(), RTLD_LAZY | RTLD_LOCAL), *found = library ? dlsym(library, "ncclGetVersion") : NULL;
  int (*get_version)(int *), rc = -1;
  memcpy(&get_version, &found, sizeof found);
  if (found) rc = get_version(version);
  if (library) dlclose(library);
  return rc;
}
