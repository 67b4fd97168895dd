/* report.h - reads the flight recorders of a job: where each rank is, which ranks hold up the others, where a rank was
 * when it died. */
#ifndef MS_COMM_DIAGNOSE_REPORT_H
#define MS_COMM_DIAGNOSE_REPORT_H

#include "comm/group/wait.h"
#include "comm/group/table.h"

/* A collective as read from its record, with its texts. */
typedef struct ms_rank_op {
  const char *kind; /* NULL: none */
  char label[MS_RECORDER_TEXT_BYTES],
      activity[MS_RECORDER_TEXT_BYTES]; /* unit, "" for none; the activity that it was part of */
  uint64_t sequence, bytes;
  int64_t step;
  ms_rank_set missing; /* world ranks that it waited for */
  double seconds;      /* since it was entered, or left */
} ms_rank_op;

typedef struct ms_rank_status {
  int pid, state; /* pid: on its host; state: enum ms_control_rank_state */
  int stopped;    /* the process exists and was stopped by a signal */
  int printing;   /* it is blocked until its output is read */
  char activity[MS_RECORDER_TEXT_BYTES], at[MS_RECORDER_TEXT_BYTES], doing[MS_RECORDER_TEXT_BYTES];
  int64_t step, done;
  double tokens_per_s;
  double since;          /* seconds in the activity, or outside the engine */
  double outside;        /* seconds outside before the activity began */
  double beat;           /* seconds since the last sign of life */
  ms_rank_op wait, last; /* the collective that it waits in; the last one that it left */
} ms_rank_status;

/* Whether a process of this host is stopped by a signal, and whether it is blocked until its output is read. */
void ms_report_process(int pid, int *stopped, int *printing);
int ms_report_is_stopped(int pid);
/* The process of a rank (of another host: as reported), if a signal has stopped it; 0 while a debugger holds it, or a
 * sanitizer that looks for leaks at its end. */
int ms_report_stopped(const ms_control *control, int rank);
void ms_report_status(const ms_control *control, int rank, ms_rank_status *status);
/* Reads all ranks `looks` times. A rank that waits in any one of them counts as waiting, since between two sleeps it is
 * briefly awake. */
void ms_report_look(const ms_control *control, int looks, ms_rank_status *all);

/* The answers that waits and comparisons need (comm/group/wait.h), read from the flight recorders. */
extern const ms_diagnosis ms_report_diagnosis;

/* How far a rank has come in the operations of a ring's group, by its ticket. */
uint64_t ms_report_count(const ms_control *control, uint32_t group, int rank);
/* Reads a record of a flight recorder; returns 0 when it was overwritten in the meantime. */
int ms_report_read(const ms_recorder *recorder, const ms_recorder_record *record, ms_rank_op *op);
ms_rank_set ms_report_deadlock(const ms_control *control, uint64_t *state);
/* The same while all ranks run: the ranks at the end of the chain of waits that starts at the first waiting rank; then
 * the place of each. */
void ms_report_stuck(const ms_control *control, char *text, size_t bytes);
/* Where a dead rank was, and what the others waited for; "" when its flight recorder is empty. */
void ms_report_death(const ms_control *control, int rank, char *text, size_t bytes);
/* "phase evaluate of step 3", "barrier after step 3", ... for the record with this sequence number in a group; "" when
 * it is overwritten. */
void ms_report_entered(const ms_control *control, int rank, uint32_t group, uint64_t sequence, char *text,
                       size_t bytes);
/* For errors about ranks that disagree: the failure of a rank whose program caught it and continued; "" when there is
 * none. */
void ms_report_noted(const ms_control *control, char *text, size_t bytes);

#endif
