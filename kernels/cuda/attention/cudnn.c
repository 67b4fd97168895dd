/* cudnn.c - loads cuDNN, checks its version, and runs its plans. */
#include "kernels/cuda/attention/cudnn.h"

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
/* 9.10.0 and 9.10.1 compute wrong attention. Before 9.6 the caller had to zero the f32 sums of dq. */
enum { ENTRIES = sizeof entries / sizeof *entries, OLDEST = 90600, MAJOR = 9, WRONG = 91000, RIGHT_AGAIN = 91002 };

static const char *const names[] = {MS_CUDNN_NAMES, NULL};
const ms_library ms_cudnn_library = {
    "MOONSHARD_CUDNN_LIBRARY", names, "the fastest attention needs cuDNN", "cuDNN 9.6", entries, ENTRIES};

static ms_cudnn table;

static int suits(char why[MS_LIBRARY_WHY_BYTES]) {
  const size_t version = table.get_version();
  const int wrong = version >= WRONG && version < RIGHT_AGAIN;
  if (version >= OLDEST && version / 10000 == MAJOR && !wrong) return 1;
  snprintf(why, MS_LIBRARY_WHY_BYTES,
           "%.512s is cuDNN %zu.%zu.%zu: 9.6 or a later 9 except 9.10.0 and 9.10.1 is required",
           ms_library_path(&ms_cudnn_library), version / 10000, version / 100 % 100, version % 100);
  return 0;
}

static int check(const void *of, int status, const char *symbol) {
  const ms_cudnn *dnn = of;
  char said[512] = "";
  if (status == MS_DNN_SUCCESS) return MS_OK;
  dnn->get_last_error(said, sizeof said);
  return MS_FAIL(status == MS_DNN_ALLOC_FAILED ? MS_ENOMEM : MS_EDEVICE, "%s: %s%s%s", symbol,
                 dnn->get_error_string(status), said[0] ? ": " : "", said);
}

ms_handles ms_cudnn_handles = {.library = &ms_cudnn_library,
                               .table = &table,
                               .suits = suits,
                               .create = offsetof(ms_cudnn, create),
                               .destroy = offsetof(ms_cudnn, destroy),
                               .check = check,
                               .lock = PTHREAD_MUTEX_INITIALIZER};

int ms_cudnn_execute(ms_dnn_handle handle, void *stream, ms_dnn_descriptor plan, ms_dnn_descriptor pack) {
  pthread_mutex_lock(&ms_cudnn_handles.lock);
  int rc = MS_CUDNN(&table, set_stream, handle, stream);
  if (!rc) rc = MS_CUDNN(&table, execute, handle, plan, pack);
  pthread_mutex_unlock(&ms_cudnn_handles.lock);
  return rc;
}
