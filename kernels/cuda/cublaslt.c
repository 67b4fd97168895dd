/* cublaslt.c - finding cuBLASLt, and one handle a device. */
#include "kernels/cuda/cublaslt.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "base/error.h"

#define ENTRY(field, symbol) \
  { symbol, offsetof(ms_cublaslt, field) }
static const ms_library_entry entries[] = {ENTRY(get_version, "cublasLtGetVersion"),
                                           ENTRY(get_status_name, "cublasLtGetStatusName"),
                                           ENTRY(create, "cublasLtCreate"),
                                           ENTRY(destroy, "cublasLtDestroy"),
                                           ENTRY(desc_create, "cublasLtMatmulDescCreate"),
                                           ENTRY(desc_destroy, "cublasLtMatmulDescDestroy"),
                                           ENTRY(desc_set, "cublasLtMatmulDescSetAttribute"),
                                           ENTRY(layout_create, "cublasLtMatrixLayoutCreate"),
                                           ENTRY(layout_destroy, "cublasLtMatrixLayoutDestroy"),
                                           ENTRY(layout_set, "cublasLtMatrixLayoutSetAttribute"),
                                           ENTRY(preference_create, "cublasLtMatmulPreferenceCreate"),
                                           ENTRY(preference_destroy, "cublasLtMatmulPreferenceDestroy"),
                                           ENTRY(preference_set, "cublasLtMatmulPreferenceSetAttribute"),
                                           ENTRY(algo_get_heuristic, "cublasLtMatmulAlgoGetHeuristic"),
                                           ENTRY(algo_check, "cublasLtMatmulAlgoCheck"),
                                           ENTRY(matmul, "cublasLtMatmul")};
enum { ENTRIES = sizeof entries / sizeof *entries, DEVICES = 64, OLDEST = 12, NEWEST = 13 };

static const char *const names[] = {MS_CUBLASLT_NAMES, NULL};
const ms_library ms_cublaslt_library = {
    "MOONSHARD_CUBLASLT_LIBRARY", names, "fast matrix products need cuBLASLt", "cuBLASLt 12", entries, ENTRIES};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ms_cublaslt table;
static int loaded;
static struct {
  ms_lt_handle handle;
  int users;
} opened[DEVICES];

static int load(char why[MS_LIBRARY_WHY_BYTES]) {
  void *handle = ms_library_open(&ms_cublaslt_library, &table, why);
  if (!handle) return 0;
  const size_t version = table.get_version(), major = version / 10000;
  if (major >= OLDEST && major <= NEWEST) return 1;
  dlclose(handle);
  snprintf(why, MS_LIBRARY_WHY_BYTES, "%.512s is cuBLASLt %zu.%zu: a version from %d to %d is needed",
           ms_library_path(&ms_cublaslt_library), major, version / 100 % 100, OLDEST, NEWEST);
  return 0;
}

const ms_cublaslt *ms_cublaslt_load(char why[MS_LIBRARY_WHY_BYTES]) {
  pthread_mutex_lock(&lock);
  if (!loaded) loaded = load(why);
  const ms_cublaslt *found = loaded ? &table : NULL;
  pthread_mutex_unlock(&lock);
  return found;
}

const char *ms_cublaslt_symbol(size_t at) {
  int i = 0;
  while (entries[i].at != at) i++;
  return entries[i].symbol;
}

int ms_cublaslt_check(int status, const char *symbol) {
  if (status == MS_LT_SUCCESS) return MS_OK;
  return MS_FAIL(status == MS_LT_ALLOC_FAILED ? MS_ENOMEM : MS_EDEVICE, "%s: %s", symbol,
                 table.get_status_name(status));
}

int ms_cublaslt_take(ms_lt_handle *handle) {
  int device = 0, rc = MS_OK;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return MS_FAIL(MS_EDEVICE, "cudaGetDevice: %s", cudaGetErrorString(error));
  if (device >= DEVICES) return MS_FAIL(MS_EUNSUPPORTED, "GPU %d: at most %d are supported", device, (int)DEVICES);
  pthread_mutex_lock(&lock);
  if (!opened[device].users) rc = MS_CUBLASLT(&table, create, &opened[device].handle);
  if (!rc) {
    opened[device].users++;
    *handle = opened[device].handle;
  }
  pthread_mutex_unlock(&lock);
  return rc;
}

void ms_cublaslt_drop(ms_lt_handle handle) {
  if (!handle) return;
  pthread_mutex_lock(&lock);
  int device = 0;
  while (!opened[device].users || opened[device].handle != handle) device++;
  if (--opened[device].users == 0) (void)table.destroy(handle);
  pthread_mutex_unlock(&lock);
}
