/* profile.h - what ran on each stream of one rank, and when: recorded while an exec runs phases (profile.c), and
** written for all ranks as one Chrome trace (profile_write.c). An exec without a profile tests one pointer.
*/
#ifndef MS_EXEC_PROFILE_H
#define MS_EXEC_PROFILE_H

#include "exec/exec.h"

enum ms_profile_kind { MS_PROFILE_KERNEL = 0, MS_PROFILE_COLLECTIVE = 1, MS_PROFILE_RECORD = 2, MS_PROFILE_WAIT = 3 };

typedef struct ms_profile_event {
  uint64_t begin, met, end; /* ns, as ms_recorder_now; met: of a collective, when all had come */
  int64_t step;
  int kind, phase;
  int op;                     /* KERNEL: enum ms_op_id; COLLECTIVE: enum ms_coll_kind */
  int label, backward;        /* in the flight recorder's numbers */
  int event, run;             /* RECORD, WAIT: the plan's event, and which run of a phase it was */
  const ms_exec_instr *instr; /* while the run is under way */
  double flops, bytes;
  ms_computed computed; /* KERNEL; by NULL: nobody else could */
  uint64_t sequence;    /* COLLECTIVE */
} ms_profile_event;

/* A list that one thread appends to, with room made before the thread runs. */
typedef struct ms_profile_list {
  ms_profile_event *event;
  int n, capacity;
  int before; /* the run under way: those that were there */
} ms_profile_list;

/* What the thread that calls the engine did: steps, phases, data, barriers and all-gathers of bytes. */
typedef struct ms_profile_span {
  uint64_t begin, end;
  int name, label; /* in the flight recorder's numbers */
  int64_t step;
  double flops, bytes;
} ms_profile_span;

struct ms_profile {
  ms_handle handle;
  ms_world *world;
  ms_recorder *recorder;
  ms_profile_list stream[MS_STREAMS];
  ms_profile_span *span;
  int spans, spans_capacity;
  int runs;          /* of phases, so far */
  uint64_t meetings; /* barriers and all-gathers of bytes are in spans up to this sequence number */
};

/* Room for a run of a phase, before it; after it, what can be said of it then (began: ms_recorder_now), or nothing
** of it. */
int ms_profile_reserve(ms_profile *profile, const ms_exec_phase *phase);
int ms_profile_finish_phase(ms_profile *profile, const ms_exec *exec, int phase, uint64_t began);
void ms_profile_drop(ms_profile *profile);
/* An entry for an instruction, without its times. */
ms_profile_event *ms_profile_append(ms_exec *exec, int phase, int stream, const ms_exec_instr *instr);
/* A kernel has run since `began`. */
void ms_profile_kernel(ms_exec *exec, int phase, const ms_exec_instr *instr, uint64_t began);
/* Any other instruction is done: a collective, or a RECORD or WAIT, which lead from one stream to another. */
void ms_profile_add(ms_exec *exec, int phase, int stream, const ms_exec_instr *instr);

#endif
