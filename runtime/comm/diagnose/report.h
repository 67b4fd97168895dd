/* report.h - reading the flight recorders of a job: where each rank is, who holds the others up, where a rank was when
** it died. */
#ifndef MS_COMM_DIAGNOSE_REPORT_H
#define MS_COMM_DIAGNOSE_REPORT_H

#include "comm/group/diagnosis.h"
#include "comm/group/table.h"

/* A collective as its record tells it, with its texts. */
typedef struct ms_rank_op {
  const char *kind;                                                     /* NULL: none */
  char label[MS_RECORDER_TEXT_BYTES], activity[MS_RECORDER_TEXT_BYTES]; /* unit, "" for none; what it was part of */
  uint64_t sequence, bytes;
  int64_t step;
  ms_rank_set missing; /* the world ranks that it waited for */
  double seconds;      /* since it was entered, or left */
} ms_rank_op;

typedef struct ms_rank_status {
  int pid, state; /* enum ms_control_rank_state */
  int stopped;    /* the process is there, and stopped by a signal */
  int printing;   /* it waits until somebody reads what it prints */
  char activity[MS_RECORDER_TEXT_BYTES], at[MS_RECORDER_TEXT_BYTES], doing[MS_RECORDER_TEXT_BYTES];
  int64_t step, done;
  double tokens_per_s;
  double since;          /* seconds in the activity, or outside the engine */
  double outside;        /* seconds outside before the activity began */
  double beat;           /* seconds since the last sign of life */
  ms_rank_op wait, last; /* the collective that it waits in; the last one that it left */
} ms_rank_status;

void ms_report_status(const ms_control *control, int rank, ms_rank_status *status);
/* All ranks, in `looks` looks: a rank that is seen to wait in one of them waits, since between two sleeps it is awake for
** a moment. */
void ms_report_look(const ms_control *control, int looks, ms_rank_status *all);

/* The flight recorders' answers to what waits and comparisons ask (comm/group/diagnosis.h). */
extern const ms_diagnosis ms_report_diagnosis;

/* How far a rank has come in what the group of a ring does together, as its tickets count. */
uint64_t ms_report_count(const ms_control *control, uint32_t group, int rank);
/* Reads a record of a flight recorder; 0 when it was overwritten meanwhile. */
int ms_report_read(const ms_recorder *recorder, const ms_recorder_record *record, ms_rank_op *op);
ms_rank_set ms_report_deadlock(const ms_control *control, uint64_t *state);
/* What to append to the error of rank `me` that waited for the world ranks in `missing`: who is behind and where, what it
** did not enter, and in a line for each kind of rank what the others wait for. */
void ms_report_behind(const ms_control *control, int me, const ms_rank_set *missing, char *text, size_t bytes);
/* The same of ranks that all still run: the ranks that the first one that waits, waits for in the end; then where each is. */
void ms_report_stuck(const ms_control *control, char *text, size_t bytes);
/* Where a rank was that has died, and what the others waited for; "" when the flight recorder knows nothing of it. */
void ms_report_death(const ms_control *control, int rank, char *text, size_t bytes);
/* "phase evaluate of step 3", "barrier after step 3", ... of the record with this sequence number in a group; "" when it
** is gone. */
void ms_report_entered(const ms_control *control, int rank, uint32_t group, uint64_t sequence, char *text,
                       size_t bytes);
/* To quote where ranks disagree: the failure of a rank whose program caught it and went on; "" when there is none. */
void ms_report_noted(const ms_control *control, char *text, size_t bytes);

#endif
