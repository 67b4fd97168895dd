/* emulated_window.c - NCCL's memory and windows. Registered memory must come from ncclMemAlloc. Once a communicator has
 * a window, everything that it reads and writes must be in one, at equal offsets on all ranks
 * (emulated_nccl_collectives.c checks it). MOONSHARD_EMULATE_FAIL also accepts "window:1": the first registration does
 * not end, and its handle is stored when the communicator is aborted. */
#include "emulated_window.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulated_nccl.h"
#include "emulated_runtime.h"

typedef struct memory {
  char *base;
  size_t bytes;
  struct memory *next;
} memory;

struct ncclWindow_vidmem {
  ms_nccl_comm comm;
  const char *base;
  size_t bytes;
  ms_nccl_window next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static memory *memories;
static ms_nccl_window windows;

int ncclMemAlloc(void **data, size_t bytes) {
  if (emulated_fails("ncclMemAlloc") || cudaMalloc(data, bytes) != cudaSuccess) return INTERNAL;
  memory *m = malloc(sizeof *m);
  if (!m) return INTERNAL;
  pthread_mutex_lock(&lock);
  *m = (memory){*data, bytes, memories};
  memories = m;
  pthread_mutex_unlock(&lock);
  return MS_NCCL_SUCCESS;
}

int ncclMemFree(void *data) {
  pthread_mutex_lock(&lock);
  memory **at = &memories, *found;
  while (*at && (*at)->base != data) at = &(*at)->next;
  found = *at;
  if (found) *at = found->next;
  for (ms_nccl_window w = windows; w && found; w = w->next)
    if (w->base == found->base) fprintf(stderr, "emulated NCCL: ncclMemFree of memory that is still registered\n");
  pthread_mutex_unlock(&lock);
  if (!found) return INVALID_ARGUMENT;
  free(found);
  return cudaFree(data) == cudaSuccess ? MS_NCCL_SUCCESS : INTERNAL;
}

typedef struct registration {
  ms_nccl_comm comm;
  ms_nccl_window made, *out;
  int lost;
} registration;

/* Stores the handle some time after the call; a lost one when the communicator is aborted. */
static void *register_on_thread(void *argument) {
  registration *r = argument;
  for (int turn = 0; r->lost && !atomic_load(&r->comm->aborted); turn++) emulated_nccl_nap(turn);
  emulated_nccl_nap(0);
  *r->out = r->made;
  atomic_store(&r->comm->state, MS_NCCL_SUCCESS);
  atomic_fetch_sub(&r->comm->pending, 1);
  free(r);
  return NULL;
}

/* Without support for windows, NCCL reports success and stores nothing. */
static int has_windows(void) {
  const char *text = getenv("MOONSHARD_EMULATE_NCCL_WINDOWS");
  return !text || strcmp(text, "none") != 0;
}

int ncclCommWindowRegister(ms_nccl_comm comm, void *base, size_t bytes, ms_nccl_window *window, int flags) {
  if (emulated_fails("ncclCommWindowRegister")) return INTERNAL;
  if (flags != MS_NCCL_WINDOW_SYMMETRIC) return INVALID_ARGUMENT;
  if (!has_windows()) return MS_NCCL_SUCCESS;
  pthread_mutex_lock(&lock);
  const memory *m = memories;
  while (m && (m->base != base || m->bytes < bytes)) m = m->next;
  ms_nccl_window made = m ? malloc(sizeof *made) : NULL;
  if (made) {
    *made = (struct ncclWindow_vidmem){comm, base, bytes, windows};
    windows = made;
  }
  pthread_mutex_unlock(&lock);
  registration *r = made ? malloc(sizeof *r) : NULL;
  pthread_t thread;
  if (!r) return INVALID_ARGUMENT;
  *r = (registration){comm, made, window, emulated_fails("window")};
  atomic_fetch_add(&comm->pending, 1);
  atomic_store(&comm->state, MS_NCCL_IN_PROGRESS);
  if (pthread_create(&thread, NULL, register_on_thread, r)) return INTERNAL;
  pthread_detach(thread);
  return MS_NCCL_IN_PROGRESS;
}

/* Removes one window of a communicator, or all of them (NULL); returns their number. */
static int take_off(ms_nccl_comm comm, ms_nccl_window window) {
  int n = 0;
  pthread_mutex_lock(&lock);
  for (ms_nccl_window *at = &windows; *at;) {
    ms_nccl_window w = *at;
    if (w->comm != comm || (window && w != window)) {
      at = &w->next;
      continue;
    }
    *at = w->next;
    free(w);
    n++;
  }
  pthread_mutex_unlock(&lock);
  return n;
}

int ncclCommWindowDeregister(ms_nccl_comm comm, ms_nccl_window window) {
  if (take_off(comm, window)) return MS_NCCL_SUCCESS;
  fprintf(stderr, "emulated NCCL: ncclCommWindowDeregister of what is no window\n");
  abort();
}

void emulated_window_forget(ms_nccl_comm comm) { take_off(comm, NULL); }

int emulated_window_any(ms_nccl_comm comm) {
  int any = 0;
  pthread_mutex_lock(&lock);
  for (ms_nccl_window w = windows; w; w = w->next) any |= w->comm == comm;
  pthread_mutex_unlock(&lock);
  return any;
}

int emulated_window_has(ms_nccl_comm comm, const void *at, size_t bytes, size_t *offset) {
  int found = 0;
  const char *begin = at;
  pthread_mutex_lock(&lock);
  for (ms_nccl_window w = windows; w && !found; w = w->next) {
    if (w->comm != comm || begin < w->base || begin + bytes > w->base + w->bytes) continue;
    *offset = (size_t)(begin - w->base);
    found = 1;
  }
  pthread_mutex_unlock(&lock);
  if (!found) fprintf(stderr, "emulated NCCL: a collective uses %zu bytes that are not in a window\n", bytes);
  return found;
}
