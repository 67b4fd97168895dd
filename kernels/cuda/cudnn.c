/* cudnn.c - finding cuDNN, and one handle a device. */
#include "kernels/cuda/cudnn.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "base/error.h"

#define ENTRY(field, symbol) \
  { symbol, offsetof(ms_cudnn, field) }
static const ms_library_entry entries[] = {ENTRY(get_version, "cudnnGetVersion"),
                                           ENTRY(get_error_string, "cudnnGetErrorString"),
                                           ENTRY(get_last_error, "cudnnGetLastErrorString"),
                                           ENTRY(create, "cudnnCreate"),
                                           ENTRY(destroy, "cudnnDestroy"),
                                           ENTRY(set_stream, "cudnnSetStream"),
                                           ENTRY(descriptor_create, "cudnnBackendCreateDescriptor"),
                                           ENTRY(descriptor_destroy, "cudnnBackendDestroyDescriptor"),
                                           ENTRY(descriptor_finalize, "cudnnBackendFinalize"),
                                           ENTRY(descriptor_set, "cudnnBackendSetAttribute"),
                                           ENTRY(descriptor_get, "cudnnBackendGetAttribute"),
                                           ENTRY(execute, "cudnnBackendExecute")};
/* 9.6: before it, the caller had to clear the f32 sums of the gradients of queries. */
enum { ENTRIES = sizeof entries / sizeof *entries, DEVICES = 64, OLDEST = 90600, MAJOR = 9 };

static const char *const names[] = {MS_CUDNN_NAMES, NULL};
const ms_library ms_cudnn_library = {
    "MOONSHARD_CUDNN_LIBRARY", names, "the fastest attention needs cuDNN", "cuDNN 9.6", entries, ENTRIES};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ms_cudnn table;
static int loaded;
static struct {
  ms_dnn_handle handle;
  int users;
} opened[DEVICES];

static int load(char why[MS_LIBRARY_WHY_BYTES]) {
  void *handle = ms_library_open(&ms_cudnn_library, &table, why);
  if (!handle) return 0;
  const size_t version = table.get_version();
  if (version >= OLDEST && version / 10000 == MAJOR) return 1;
  dlclose(handle);
  snprintf(why, MS_LIBRARY_WHY_BYTES, "%.512s is cuDNN %zu.%zu: 9.6 or a later 9 is needed",
           ms_library_path(&ms_cudnn_library), version / 10000, version / 100 % 100);
  return 0;
}

const ms_cudnn *ms_cudnn_load(char why[MS_LIBRARY_WHY_BYTES]) {
  pthread_mutex_lock(&lock);
  if (!loaded) loaded = load(why);
  const ms_cudnn *found = loaded ? &table : NULL;
  pthread_mutex_unlock(&lock);
  return found;
}

const char *ms_cudnn_symbol(size_t at) {
  int i = 0;
  while (entries[i].at != at) i++;
  return entries[i].symbol;
}

int ms_cudnn_check(const ms_cudnn *dnn, int status, const char *symbol) {
  char said[512] = "";
  if (status == MS_DNN_SUCCESS) return MS_OK;
  dnn->get_last_error(said, sizeof said);
  return MS_FAIL(status == MS_DNN_ALLOC_FAILED ? MS_ENOMEM : MS_EDEVICE, "%s: %s%s%s", symbol,
                 dnn->get_error_string(status), said[0] ? ": " : "", said);
}

int ms_cudnn_take(ms_dnn_handle *handle) {
  int device = 0, rc = MS_OK;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return MS_FAIL(MS_EDEVICE, "cudaGetDevice: %s", cudaGetErrorString(error));
  if (device >= DEVICES) return MS_FAIL(MS_EUNSUPPORTED, "GPU %d: at most %d are supported", device, (int)DEVICES);
  pthread_mutex_lock(&lock);
  if (!opened[device].users) rc = MS_CUDNN(&table, create, &opened[device].handle);
  if (!rc) {
    opened[device].users++;
    *handle = opened[device].handle;
  }
  pthread_mutex_unlock(&lock);
  return rc;
}

void ms_cudnn_drop(ms_dnn_handle handle) {
  if (!handle) return;
  pthread_mutex_lock(&lock);
  int device = 0;
  while (!opened[device].users || opened[device].handle != handle) device++;
  if (--opened[device].users == 0) (void)table.destroy(handle);
  pthread_mutex_unlock(&lock);
}

int ms_cudnn_execute(ms_dnn_handle handle, void *stream, ms_dnn_descriptor plan, ms_dnn_descriptor pack) {
  pthread_mutex_lock(&lock);
  int rc = MS_CUDNN(&table, set_stream, handle, stream);
  if (!rc) rc = MS_CUDNN(&table, execute, handle, plan, pack);
  pthread_mutex_unlock(&lock);
  return rc;
}
