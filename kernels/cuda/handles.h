/* handles.h - an NVIDIA library used by kernels: loaded on first use, with one handle per GPU that all users share. */
#ifndef MS_KERNELS_CUDA_HANDLES_H
#define MS_KERNELS_CUDA_HANDLES_H

#include <pthread.h>

#include "base/library.h"

enum { MS_HANDLE_DEVICES = 64 };

typedef struct ms_handles {
  const ms_library *library;
  void *table; /* table of its functions, filled when it is loaded */
  /* Returns 1 if the loaded version is suitable; otherwise writes the reason to `why`. */
  int (*suits)(char why[MS_LIBRARY_WHY_BYTES]);
  /* Offsets in the table of int (*create)(void **handle), for the current device, and int (*destroy)(void *handle). */
  size_t create, destroy;
  /* Returns MS_OK, or an error with the library's name for the status that a function returned. */
  int (*check)(const void *table, int status, const char *symbol);
  pthread_mutex_t lock;
  int loaded;
  struct {
    void *handle;
    int users;
  } opened[MS_HANDLE_DEVICES];
} ms_handles;

/* Returns the table; the first call loads the library. NULL: it is missing, too old or too new; `why` says which, and
 * where it was searched for. */
const void *ms_handles_load(ms_handles *handles, char why[MS_LIBRARY_WHY_BYTES]);
/* MS_OK, or an error that begins with the function's name. its_table is a const its_type *. */
#define MS_HANDLES_CALL(handles, its_table, its_type, function, ...) \
  (handles).check((its_table), (its_table)->function(__VA_ARGS__),   \
                  ms_library_symbol((handles).library, offsetof(its_type, function)))

/* The handle of the current device: the first user creates it, the last one destroys it. */
int ms_handles_take(ms_handles *handles, void **handle);
/* Safe on NULL. */
void ms_handles_drop(ms_handles *handles, void *handle);

#endif
