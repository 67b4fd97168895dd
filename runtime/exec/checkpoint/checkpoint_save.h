/* checkpoint_save.h - a save of this rank's part of a state, as its thread and those who wait for it see it. */
#ifndef MS_EXEC_CHECKPOINT_SAVE_H
#define MS_EXEC_CHECKPOINT_SAVE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/error.h"
#include "exec/state/state.h"

struct ms_save {
  ms_handle handle;
  ms_state *state;
  ms_save_piece *piece;  /* [n]; the save owns their texts */
  ms_division *division; /* [n] of each piece: see ms_part */
  int64_t *at;           /* [n + 1]: each piece's first element in the copy, and the copy's end */
  int n;
  float *copy; /* NULL before the first asynchronous save */
  /* The current request; the save owns its texts. */
  ms_save_config config;
  char **retires;
  int *awaits;
  pthread_t thread;
  int threaded; /* 1: the thread must be joined */
  atomic_int stop, ended;
  _Atomic int64_t writes;  /* increases with each write, as a sign of progress */
  atomic_int stage;        /* 0: running; 1 + enum ms_save_stage: that stage is reached */
  double deadline;         /* seconds without progress after which a wait fails */
  ms_error_record failure; /* the thread's error, valid once `ended` is set */
};

/* Waits for all parts and turns them into a checkpoint. */
int ms_save_commit(ms_save *save);
/* Waits for the thread, if there is one. */
void ms_save_join(ms_save *save);
/* The same, after telling it to give up. */
void ms_save_cancel(ms_save *save);

#endif
