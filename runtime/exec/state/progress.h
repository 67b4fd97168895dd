/* progress.h - how far a state is in its step: one place, and conditions that hold until something ends them. A table
 * (progress.c) says which phase may follow which place, and what each leaves.
 */
#ifndef MS_EXEC_PROGRESS_H
#define MS_EXEC_PROGRESS_H

typedef struct ms_state ms_state;

enum ms_step_place {
  MS_STEP_IDLE = 1 << 0,      /* no gradients that an UPDATE could use */
  MS_STEP_GRADIENTS = 1 << 1, /* FIRST began gradients */
  MS_STEP_NORMED = 1 << 2,    /* NORM ran last: no peer reads the weights any more, so UPDATE can follow */
  MS_STEP_UPDATED = 1 << 3    /* UPDATE ran last: OUTER can follow */
};

enum ms_condition {
  MS_AVERAGES_SWAPPED = 1 << 0, /* averages and masters are swapped: see ms_state_swap_ema */
  MS_SYNC_FAILED = 1 << 1,      /* OUTER failed part-way: replicas may have different synced weights */
  MS_COPIES_BEHIND = 1 << 2,    /* UPDATE or OUTER failed part-way: copies of masters in bf16 may be older than these */
  MS_REPLICAS_MUST_MEET = 1 << 3 /* this rank swapped its slice back alone: replicas must meet before a run */
};

typedef struct ms_step_progress {
  int place;                /* enum ms_step_place; IDLE where the ranks have recovered since */
  unsigned since;           /* 1 + the world's epoch in which it got there; 0: a new state, which is IDLE */
  int conditions;           /* flags of enum ms_condition */
  unsigned interrupted;     /* 1 + the world's epoch in which a phase failed part-way; 0: none failed */
  char interrupted_by[256]; /* its error, or the beginning of that */
} ms_step_progress;

/* Whether a phase (enum ms_phase) may run now; the errors say what comes before it, or what to do. */
int ms_progress_check(const ms_state *state, int phase);
/* Around a phase that may: rc is its status. After a failure it is interrupted, with the recorded error. */
void ms_progress_begin(ms_state *state, int phase);
void ms_progress_end(ms_state *state, int phase, int rc);
/* Something else than a phase of the step has run: peers read weights again. */
void ms_progress_interlude(ms_state *state);
/* A phase failed part-way, with the recorded error: until all ranks have recovered, some can still be inside a
 * collective. */
void ms_progress_interrupt(ms_state *state);
int ms_progress_is_interrupted(const ms_state *state);

int ms_progress_has(const ms_state *state, int condition);
/* Fails if the averages are in the masters' place: then nothing may `what` ("be saved"). */
int ms_progress_check_masters(const ms_state *state, const char *what);
void ms_progress_set(ms_state *state, int condition, int on);

#endif
