/* code.c - whether the library contains code that a GPU can run.
 *
 * Machine code runs on GPUs of its major compute capability, from its minor one on. PTX runs on its capability and all
 * later ones, but only if the driver is as new as the toolkit that made it: the driver compiles it. Without either, a
 * GPU opens and the first launch fails, so this is checked before a GPU is opened, and by `moonshard doctor`.
 */
#include <stdio.h>

#include "device/cuda/cuda.h"
#include "kernels/cuda/architectures.h"

enum { ARCHITECTURES_TEXT = 128 };
/* The oldest GPUs with what the kernels use: bf16, and copies to shared memory that do not wait. */
enum { OLDEST = 80 };

/* "8.0, 9.0" */
static const char *list_architectures(char text[ARCHITECTURES_TEXT], int *newest) {
  int length = 0;
  for (const int *a = ms_cuda_architectures; *a && length < ARCHITECTURES_TEXT; a++) {
    length += snprintf(text + length, (size_t)(ARCHITECTURES_TEXT - length), "%s%d.%d", length ? ", " : "", *a / 100,
                       *a / 10 % 10);
    *newest = *a;
  }
  return text;
}

static int has_machine_code(int major, int minor) {
  for (const int *a = ms_cuda_architectures; *a; a++)
    if (*a / 100 == major && *a / 10 % 10 <= minor) return 1;
  return 0;
}

int ms_cuda_check_code(int index) {
  char text[ARCHITECTURES_TEXT] = "", driver_too_old[160] = "";
  int major, minor, driver, newest = 0;
  struct cudaDeviceProp properties;
  MS_TRY(MS_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index)));
  MS_TRY(MS_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index)));
  if (has_machine_code(major, minor)) return MS_OK;
  MS_TRY(MS_CUDA(cudaDriverGetVersion(&driver)));
  list_architectures(text, &newest);
  if (10 * (10 * major + minor) >= newest) {
    if (driver >= CUDART_VERSION) return MS_OK;
    snprintf(driver_too_old, sizeof driver_too_old, " and PTX of %d.%d, for which its driver (CUDA %d.%d) is too old",
             newest / 100, newest / 10 % 10, driver / 1000, driver % 1000 / 10);
  }
  MS_TRY(MS_CUDA(cudaGetDeviceProperties(&properties, index)));
  if (10 * major + minor < OLDEST)
    return MS_FAIL(MS_EUNSUPPORTED,
                   "device cuda: GPU %d (%s) has compute capability %d.%d: Moonshard's kernels need %d.%d or later",
                   index, properties.name, major, minor, OLDEST / 10, OLDEST % 10);
  return MS_FAIL(MS_EUNSUPPORTED,
                 "device cuda: GPU %d (%s) has compute capability %d.%d, but libmoonshard_cuda.so contains code for "
                 "%s%s: build it with `make cuda CUDA_ARCHS=%d`",
                 index, properties.name, major, minor, text, driver_too_old, 10 * major + minor);
}
