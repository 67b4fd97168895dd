/* device.c - the kinds of device: the CPU, and CUDA, whose library is loaded on first use.
 *
 * The library is the file named by MOONSHARD_CUDA_LIBRARY, or libmoonshard_cuda.so (ms_library_open_own). Without it
 * only plans can be made for CUDA (planned_cuda.c). No other part of the engine refers to CUDA.
 */
#include "device/device.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/env.h"
#include "base/error.h"
#include "base/library.h"

enum { KINDS = 2 };

static const ms_device_api *devices[KINDS] = {[MS_DEVICE_CPU] = &ms_cpu_device};
static const char *const names[KINDS] = {"cpu", "cuda"};
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

static int raise_message(int code, const char *file, int line, const char *message) {
  return ms_error_raise(code, file, line, "%s", message);
}

static void note(const char *text) { ms_note("%s", text); }

static const ms_device_host host = {.version = MS_DEVICE_VERSION, .raise = raise_message, .note = note};

static const char variable[] = "MOONSHARD_CUDA_LIBRARY";

/* *library NULL: none is installed; `why` says why not. */
static int open_library(void **library, char why[MS_LIBRARY_WHY_BYTES]) {
  *library = ms_library_open_own(variable, "libmoonshard_cuda.so", RTLD_LOCAL, why);
  if (*library || !*ms_env_string(variable, "")) return MS_OK;
  return MS_FAIL(MS_EUNSUPPORTED, "device cuda: %s: %s", variable, why);
}

/* Enters a library into the table; closes it if it cannot be used. */
static int take_library(void *library) {
  ms_device_entry entry;
  void *symbol = dlsym(library, MS_DEVICE_ENTRY);
  memcpy(&entry, &symbol, sizeof entry);
  const ms_device_api *api = symbol ? entry(&host) : NULL;
  const int fits = api && api->version == MS_DEVICE_VERSION && api->kind == MS_DEVICE_CUDA;
  if (fits && !devices[MS_DEVICE_CUDA]) {
    devices[MS_DEVICE_CUDA] = api;
    return MS_OK;
  }
  dlclose(library);
  if (fits)
    return MS_FAIL(MS_EUNSUPPORTED,
                   "device cuda: this process has compiled plans without libmoonshard_cuda.so, which is "
                   "there now: start it again");
  return MS_FAIL(MS_EUNSUPPORTED,
                 "device cuda: libmoonshard_cuda.so belongs to a different version than the engine: rebuild both");
}

static int load_cuda(int for_plans) {
  void *library;
  char why[MS_LIBRARY_WHY_BYTES];
  const ms_device_api *known = devices[MS_DEVICE_CUDA];
  if (known && (for_plans || known != &ms_planned_cuda_device)) return MS_OK;
  MS_TRY(open_library(&library, why));
  if (library) return take_library(library);
  if (for_plans) {
    devices[MS_DEVICE_CUDA] = &ms_planned_cuda_device;
    return MS_OK;
  }
  return MS_FAIL(
      MS_EUNSUPPORTED,
      "device cuda: this installation has no libmoonshard_cuda.so: build it on a machine with CUDA's nvcc, or set "
      "%s to its path (%s)",
      variable, why);
}

static int find(int kind, int for_plans, const ms_device_api **api) {
  int rc = MS_OK;
  if (kind < 0 || kind >= KINDS)
    return MS_FAIL(MS_EINVAL, "device %d does not exist: it must be cpu (%d) or cuda (%d)", kind, MS_DEVICE_CPU,
                   MS_DEVICE_CUDA);
  pthread_mutex_lock(&loading);
  if (kind == MS_DEVICE_CUDA) rc = load_cuda(for_plans);
  *api = devices[kind];
  pthread_mutex_unlock(&loading);
  return rc;
}

int ms_device_find(int kind, const ms_device_api **api) { return find(kind, 0, api); }

int ms_device_find_for_plans(int kind) {
  const ms_device_api *found;
  return find(kind, 1, &found);
}

const ms_kernel *ms_device_kernel(int kind, int op) { return devices[kind]->kernel(op); }

int ms_device_can(int kind, enum ms_device_capability capability) {
  return (devices[kind]->capabilities & capability) != 0;
}

const char *ms_device_name(int kind) { return kind >= 0 && kind < KINDS ? names[kind] : "unknown"; }

/* ---- information about devices ---- */

int ms_device_count(int device, int *count) {
  MS_GIVEN(count);
  const ms_device_api *api;
  MS_TRY(ms_device_find(device, &api));
  return api->count(count);
}

int ms_device_describe(int device, int index, ms_device_info *info, int size) {
  MS_GIVEN(info);
  MS_NOT_NEGATIVE(index);
  const ms_device_api *api;
  MS_TRY(ms_device_find(device, &api));
  ms_device_info own;
  MS_TRY(api->describe(index, &own));
  MS_GIVE_INFO(info, size, own);
}

int ms_device_check(int device, int index) {
  MS_NOT_NEGATIVE(index);
  const ms_device_api *api;
  MS_TRY(ms_device_find(device, &api));
  return api->check(index);
}

int ms_device_library(int device, int library, char *version, int bytes) {
  MS_GIVEN(version);
  static const char *const libraries[MS_LIBRARIES] = {"driver", "runtime",      "cublasLt",         "cudnn",
                                                      "nccl",   "nccl_windows", "nccl_copy_engines"};
  const ms_device_api *api;
  if (library < 0 || library >= MS_LIBRARIES)
    return MS_FAIL(MS_EINVAL, "library must be one of enum ms_gpu_library, not %d", library);
  if (bytes < 1) return MS_FAIL(MS_EINVAL, "a version of %d bytes: give room for some", bytes);
  MS_TRY(ms_device_find(device, &api));
  if (!api->library) return MS_FAIL(MS_EINVAL, "the device %s has no such libraries", api->name);
  return api->library(libraries[library], version, bytes);
}
