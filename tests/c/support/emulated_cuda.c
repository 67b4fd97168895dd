/* emulated_cuda.c - see the header. */
#include "tests/c/support/emulated_cuda.h"

#include <dlfcn.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void name_library(const char *variable, const char *file) {
  char self[4096] = {0}, path[4608];
  if (readlink("/proc/self/exe", self, sizeof self - 1) <= 0) abort();
  snprintf(path, sizeof path, "%s/emulated/%s", dirname(self), file);
  setenv(variable, path, 1);
}

void emulate_cuda_kernels(const char *streams) {
  emulate_cuda(streams);
  name_library("MOONSHARD_CUDA_LIBRARY", "libmoonshard_cuda_emulated.so");
  name_library("MOONSHARD_CUBLASLT_LIBRARY", "libcublaslt_emulated.so");
  name_library("MOONSHARD_CUDNN_LIBRARY", "libcudnn_emulated.so");
  setenv("MOONSHARD_CUDA_MATMUL_TUNE", "0", 1);
}

void emulate_cuda(const char *streams) {
  name_library("MOONSHARD_CUDA_LIBRARY", "libmoonshard_cuda_host.so");
  name_library("MOONSHARD_NCCL_LIBRARY", "libnccl_emulated.so");
  setenv("MOONSHARD_EMULATE_STREAMS", streams, 1);
  setenv("MOONSHARD_EMULATE_JITTER", "100", 1);
}

/* A function of an emulated library, which the device's library has loaded, or which is loaded now. */
static void find(const char *file, const char *name, void *function, size_t bytes) {
  char path[4608];
  snprintf(path, sizeof path, "%s", getenv("MOONSHARD_CUDA_LIBRARY"));
  void *library = dlopen(strcat(dirname(path), file), RTLD_NOW), *found = NULL;
  if (library) found = dlsym(library, name);
  if (!found) abort();
  memcpy(function, &found, bytes);
}

void emulate_failure(const char *spec) {
  void (*forget)(void);
  find("/libcudart_emulated.so", "emulated_forget_calls", &forget, sizeof forget);
  setenv("MOONSHARD_EMULATE_FAIL", spec, 1);
  forget();
}

const char *emulated_left(void) {
  const char *(*left)(void), *(*of_cublaslt)(void), *(*of_cudnn)(void);
  find("/libcudart_emulated.so", "emulated_left", &left, sizeof left);
  find("/libcublaslt_emulated.so", "emulated_cublaslt_left", &of_cublaslt, sizeof of_cublaslt);
  find("/libcudnn_emulated.so", "emulated_cudnn_left", &of_cudnn, sizeof of_cudnn);
  return left() ? left() : of_cublaslt() ? of_cublaslt() : of_cudnn();
}
