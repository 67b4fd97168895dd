/* nccl.c - loads NCCL: the file named by MOONSHARD_NCCL_LIBRARY, or libnccl.so.2 on the dynamic linker's path. Compares
 * our declarations with NCCL's own header at compile time, if the toolkit has it.
 */
#include "device/cuda/nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "base/numbers/dtype.h"
#include "base/error.h"
#include "base/library.h"

static ms_nccl nccl;
static int loaded; /* 1: nccl is complete; guarded by loading */
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

#define ENTRY(field, symbol) \
  { symbol, offsetof(ms_nccl, field) }
static const ms_library_entry entries[] = {ENTRY(get_version, "ncclGetVersion"),
                                           ENTRY(get_unique_id, "ncclGetUniqueId"),
                                           ENTRY(comm_init_rank_config, "ncclCommInitRankConfig"),
                                           ENTRY(comm_split, "ncclCommSplit"),
                                           ENTRY(comm_get_async_error, "ncclCommGetAsyncError"),
                                           ENTRY(comm_count, "ncclCommCount"),
                                           ENTRY(comm_abort, "ncclCommAbort"),
                                           ENTRY(get_error_string, "ncclGetErrorString"),
                                           ENTRY(get_last_error, "ncclGetLastError"),
                                           ENTRY(group_start, "ncclGroupStart"),
                                           ENTRY(group_end, "ncclGroupEnd"),
                                           ENTRY(all_gather, "ncclAllGather"),
                                           ENTRY(reduce_scatter, "ncclReduceScatter"),
                                           ENTRY(all_reduce, "ncclAllReduce"),
                                           ENTRY(send, "ncclSend"),
                                           ENTRY(recv, "ncclRecv")};
static const char *const names[] = {"libnccl.so.2", NULL};
static const ms_library library = {
    "MOONSHARD_NCCL_LIBRARY",        names, "several GPUs need NCCL", "NCCL 2.18.5", entries,
    sizeof entries / sizeof *entries};

/* Only in later versions. */
static const ms_library_entry window_entries[] = {ENTRY(mem_alloc, "ncclMemAlloc"), ENTRY(mem_free, "ncclMemFree"),
                                                  ENTRY(window_register, "ncclCommWindowRegister"),
                                                  ENTRY(window_deregister, "ncclCommWindowDeregister")};
enum { WINDOW_ENTRIES = sizeof window_entries / sizeof *window_entries };

static void resolve_windows(void *handle) {
  void *found[WINDOW_ENTRIES];
  for (int i = 0; i < WINDOW_ENTRIES; i++)
    if (!(found[i] = dlsym(handle, window_entries[i].symbol))) return;
  for (int i = 0; i < WINDOW_ENTRIES; i++) memcpy((char *)&nccl + window_entries[i].at, &found[i], sizeof *found);
}

static int load(void) {
  int version;
  char why[MS_LIBRARY_WHY_BYTES];
  if (loaded) return MS_OK;
  void *handle = ms_library_open(&library, &nccl, why);
  if (!handle) return MS_FAIL(MS_EUNSUPPORTED, "%s", why);
  const int known = !nccl.get_version(&version);
  if (known && version >= MS_NCCL_OLDEST) {
    if (version >= MS_NCCL_HAS_WINDOWS) resolve_windows(handle);
    loaded = 1;
    return MS_OK;
  }
  dlclose(handle);
  const char *path = ms_library_path(&library);
  if (!known) return MS_FAIL(MS_EUNSUPPORTED, "%s does not report a version: NCCL 2.18.5 or later is needed", path);
  return MS_FAIL(MS_EUNSUPPORTED, "%s is NCCL %d.%d.%d: 2.18.5 or later is needed", path, version / 10000,
                 version / 100 % 100, version % 100);
}

int ms_nccl_load(const ms_nccl **out) {
  pthread_mutex_lock(&loading);
  int rc = load();
  pthread_mutex_unlock(&loading);
  *out = &nccl;
  return rc;
}

int ms_nccl_require(int options) {
  const ms_nccl *found;
  int version = 0, engines = (options & MS_NCCL_COPY_ENGINES) != 0;
  int needed = engines ? MS_NCCL_HAS_COPY_ENGINES : options ? MS_NCCL_HAS_WINDOWS : MS_NCCL_OLDEST;
  MS_TRY(ms_nccl_load(&found));
  if (found->get_version(&version))
    return MS_FAIL(MS_EUNSUPPORTED, "%s does not report a version", ms_library_path(&library));
  if (version >= needed && (!options || found->window_register)) return MS_OK;
  return MS_FAIL(MS_EUNSUPPORTED, "%s is NCCL %d.%d.%d, which has no %s: %d.%d or later is needed",
                 ms_library_path(&library), version / 10000, version / 100 % 100, version % 100,
                 engines ? "gathers by copy engines" : "registered windows", needed / 10000, needed / 100 % 100);
}

int ms_nccl_version(int *version) {
  void *handle, *found = ms_library_ask(&library, "ncclGetVersion", &handle);
  int (*get_version)(int *), rc = -1;
  memcpy(&get_version, &found, sizeof found);
  if (!found) return rc;
  rc = get_version(version);
  dlclose(handle);
  return rc;
}

int ms_nccl_dtype(int dtype, int *number) {
  const ms_dtype_row *row = ms_dtype_row_of(dtype);
  if (!row) return MS_FAIL(MS_EDTYPE, "nccl: dtype %d does not exist", dtype);
  switch (dtype) {
    case MS_F32: *number = MS_NCCL_FLOAT32; return MS_OK;
    case MS_BF16: *number = MS_NCCL_BFLOAT16; return MS_OK;
    case MS_I32: *number = MS_NCCL_INT32; return MS_OK;
    default: break;
  }
  /* Types of 8 bits are only moved (ms_comm_start refuses their sums), and packed ones are not sent at all. */
  if (row->info.size != 1)
    return MS_FAIL(MS_EDTYPE, "nccl: %s elements share bytes; send the bytes as u8", row->info.name);
  *number = MS_NCCL_UINT8;
  return MS_OK;
}

/* ---- our declarations, compared with the header ---- */

#if !defined(EMULATED_CUDA) && __has_include(<nccl.h>)

  #include <nccl.h>

_Static_assert((int)ncclSuccess == (int)MS_NCCL_SUCCESS && (int)ncclInProgress == (int)MS_NCCL_IN_PROGRESS, "results");
_Static_assert((int)ncclSum == (int)MS_NCCL_SUM && (int)ncclMax == (int)MS_NCCL_MAX, "operations");
_Static_assert((int)ncclFloat32 == (int)MS_NCCL_FLOAT32 && (int)ncclBfloat16 == (int)MS_NCCL_BFLOAT16, "types");
_Static_assert(sizeof(ncclUniqueId) == sizeof(ms_nccl_id), "ids");
_Static_assert(offsetof(ncclConfig_t, blocking) == offsetof(ms_nccl_config, blocking), "config: blocking");
_Static_assert(offsetof(ncclConfig_t, netName) == offsetof(ms_nccl_config, net_name), "config: netName");
  #if NCCL_VERSION_CODE >= 22800
_Static_assert(sizeof(ncclConfig_t) == sizeof(ms_nccl_config), "config");
_Static_assert(offsetof(ncclConfig_t, CTAPolicy) == offsetof(ms_nccl_config, cta_policy), "config: CTAPolicy");
_Static_assert((int)NCCL_CTA_POLICY_ZERO == (int)MS_NCCL_CTA_POLICY_ZERO, "policies");
_Static_assert((int)NCCL_WIN_COLL_SYMMETRIC == (int)MS_NCCL_WINDOW_SYMMETRIC, "windows");
  #endif
_Static_assert(offsetof(ncclConfig_t, splitShare) == offsetof(ms_nccl_config, split_share), "config: splitShare");

#endif
