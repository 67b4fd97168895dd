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
  /* Offsets in the table: int (*create)(void **handle), for the current device, and int (*destroy)(void *handle). */
  size_t create, destroy;
  /* MS_OK, or an error with what the library of this table calls the status that its function gave. */
  int (*check)(const void *table, int status, const char *symbol);
  pthread_mutex_t lock;
  int loaded;
  struct {
    void *handle;
    int users;
  } opened[MS_HANDLE_DEVICES];
} ms_handles;

/* The table, once the library is loaded, by the first call. NULL: there is none, or one that is too old or too new; `why` says which,
** and where it was looked for. */
const void *ms_handles_load(ms_handles *handles, char why[MS_LIBRARY_WHY_BYTES]);
/* MS_OK, or an error that begins with the function's name: its_table is of its_type. */
#define MS_HANDLES_CALL(handles, its_table, its_type, function, ...) \
  (handles).check((its_table), (its_table)->function(__VA_ARGS__),   \
                  ms_library_symbol((handles).library, offsetof(its_type, function)))

/* The handle of the current device, opened by the first who takes it and closed by the last who drops it. */
int ms_handles_take(ms_handles *handles, void **handle);
/* NULL: nothing. */
void ms_handles_drop(ms_handles *handles, void *handle);

#endif
