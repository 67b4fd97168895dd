/* profile.h - what ran on each stream of a rank, and when: recorded while an exec runs phases (profile.c), and written
 * for all ranks as one Chrome trace (profile_write.c). Without a profile, the cost is one test of a pointer per
 * instruction.
 */
#ifndef MS_EXEC_PROFILE_H
#define MS_EXEC_PROFILE_H

#include "base/text/text.h"
#include "exec/bound/exec.h"

enum ms_profile_kind { MS_PROFILE_KERNEL = 0, MS_PROFILE_COLLECTIVE = 1, MS_PROFILE_RECORD = 2, MS_PROFILE_WAIT = 3 };

typedef struct ms_profile_event {
  uint64_t begin, met, end; /* ns, as ms_recorder_now; met: when all ranks had entered the collective */
  int64_t step;
  int kind, phase;
  int source;                 /* its number in the plan's phase */
  int op;                     /* KERNEL: enum ms_op_id; COLLECTIVE: enum ms_coll_kind */
  int label, backward;        /* label: as a flight recorder number */
  int event, run;             /* RECORD, WAIT: the plan's event, and the number of the phase's run */
  const ms_exec_instr *instr; /* set during the run only: the exec can be freed afterwards */
  double flops, bytes;
  double inside, wire;  /* COLLECTIVE: of bytes, from this node; to other nodes, or from them if that is more */
  ms_computed computed; /* KERNEL: which library computed it, and why; by NULL: there is only one way */
  uint64_t sequence;    /* COLLECTIVE */
} ms_profile_event;

/* One stream's events. Only the stream's thread appends, into memory that was reserved before the run. */
typedef struct ms_profile_list {
  ms_profile_event *event;
  int n, capacity;
  int before; /* n when the current run began */
} ms_profile_list;

/* What the thread that calls the engine did: steps, phases, loading of data, barriers and all-gathers of bytes. */
typedef struct ms_profile_span {
  uint64_t begin, end; /* ns, as ms_recorder_now */
  int name, label;     /* as flight recorder numbers */
  int64_t step;
  double flops, bytes;
} ms_profile_span;

struct ms_profile {
  ms_handle handle;
  ms_world *world;
  ms_recorder *recorder;
  ms_profile_list stream[MS_NAMED_STREAMS];
  ms_profile_span *span;
  int spans, spans_capacity;
  int runs;        /* counts the runs of phases */
  uint64_t synced; /* barriers and all-gathers of bytes up to this sequence number are in span */
};

/* Before a run of a phase: allocates room for its events. */
int ms_profile_reserve(ms_profile *profile, const ms_exec_phase *phase);
/* After a run: completes its events, while the exec still exists, and adds a span from `began` (ns) to now. */
int ms_profile_finish_phase(ms_profile *profile, const ms_exec *exec, int phase, uint64_t began);
/* After a run that failed: discards its events. */
void ms_profile_drop(ms_profile *profile);
/* Appends an event for an instruction, without times. */
ms_profile_event *ms_profile_append(ms_exec *exec, int phase, int stream, const ms_exec_instr *instr);
/* Appends a kernel that ran from `began` (ns) to now. */
void ms_profile_kernel(ms_exec *exec, int phase, const ms_exec_instr *instr, uint64_t began);
/* Appends any other instruction that is done: a collective, or a RECORD or WAIT, which order streams. */
void ms_profile_add(ms_exec *exec, int phase, int stream, const ms_exec_instr *instr);

/* How far this host's clock is ahead of that of rank 0's host, and the greatest possible error of that, in ns; both are
 * 0 on rank 0's host. Collective over the world. */
int ms_profile_align(ms_world *world, int64_t *ahead, int64_t *error);
/* The lowest rank of a node. */
int ms_profile_lowest_of_node(const ms_world *world, int node);
/* Writes the texts of all ranks as one trace; every rank returns the error if rank 0 cannot. Collective over the world.
 */
int ms_profile_combine(ms_world *world, const ms_text *text, const char *path);

#endif
