/* handles.c - loads an NVIDIA library and counts the users of its handles; see handles.h. */
#include "kernels/cuda/handles.h"

#include <dlfcn.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "base/error.h"

static int load(const ms_handles *handles, char why[MS_LIBRARY_WHY_BYTES]) {
  void *opened = ms_library_open(handles->library, handles->table, why);
  if (!opened) return 0;
  if (handles->suits(why)) return 1;
  dlclose(opened);
  return 0;
}

const void *ms_handles_load(ms_handles *handles, char why[MS_LIBRARY_WHY_BYTES]) {
  pthread_mutex_lock(&handles->lock);
  if (!handles->loaded) handles->loaded = load(handles, why);
  const int loaded = handles->loaded;
  pthread_mutex_unlock(&handles->lock);
  return loaded ? handles->table : NULL;
}

static int create(const ms_handles *handles, void **handle) {
  int (*function)(void **handle);
  memcpy(&function, (const char *)handles->table + handles->create, sizeof function);
  return handles->check(handles->table, function(handle), ms_library_symbol(handles->library, handles->create));
}

static void destroy(const ms_handles *handles, void *handle) {
  int (*function)(void *handle);
  memcpy(&function, (const char *)handles->table + handles->destroy, sizeof function);
  (void)function(handle);
}

int ms_handles_take(ms_handles *handles, void **handle) {
  int device = 0, rc = MS_OK;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return MS_FAIL(MS_EDEVICE, "cudaGetDevice: %s", cudaGetErrorString(error));
  if (device >= MS_HANDLE_DEVICES)
    return MS_FAIL(MS_EUNSUPPORTED, "GPU %d: at most %d are supported", device, (int)MS_HANDLE_DEVICES);
  pthread_mutex_lock(&handles->lock);
  if (!handles->opened[device].users) rc = create(handles, &handles->opened[device].handle);
  if (!rc) {
    handles->opened[device].users++;
    *handle = handles->opened[device].handle;
  }
  pthread_mutex_unlock(&handles->lock);
  return rc;
}

void ms_handles_drop(ms_handles *handles, void *handle) {
  if (!handle) return;
  pthread_mutex_lock(&handles->lock);
  int device = 0;
  while (!handles->opened[device].users || handles->opened[device].handle != handle) device++;
  if (--handles->opened[device].users == 0) destroy(handles, handle);
  pthread_mutex_unlock(&handles->lock);
}
