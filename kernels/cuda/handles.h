/* handles.h - a library of NVIDIA's that kernels call: loaded when it is first needed, with one handle for each GPU, which all who use
** it share.
*/
#ifndef MS_KERNELS_CUDA_HANDLES_H
#define MS_KERNELS_CUDA_HANDLES_H

#include <pthread.h>

#include "base/library.h"

enum { MS_HANDLE_DEVICES = 64 };

typedef struct ms_handles {
  const ms_library *library;
  void *table; /* of its functions, to be filled */
  /* 1 when the version that was loaded will do; else `why` is told. */
  int (*suits)(char why[MS_LIBRARY_WHY_BYTES]);
  int (*create)(void **handle); /* on the current device: a status */
  void (*destroy)(void *handle);
  pthread_mutex_t lock;
  int loaded;
  struct {
    void *handle;
    int users;
  } opened[MS_HANDLE_DEVICES];
} ms_handles;

/* 1 when the library is there, loaded at the first call. 0: there is none, or one that is too old or too new; `why` says which, and
** where it was looked for. */
int ms_handles_load(ms_handles *handles, char why[MS_LIBRARY_WHY_BYTES]);
/* The handle of the current device, opened by the first who takes it and closed by the last who drops it. */
int ms_handles_take(ms_handles *handles, void **handle);
/* NULL: nothing. */
void ms_handles_drop(ms_handles *handles, void *handle);

#endif
