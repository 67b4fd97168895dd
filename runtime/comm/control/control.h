/* control.h - the layout of a job's control segment, and its primitives: doorbells and the abort word. Internal to
 * comm, the launcher and `moonshard ps`.
 *
 * The segment is one memfd, mapped whole by the launcher and by every rank. Untouched pages cost nothing, so the tables
 * have their largest possible size. Each word has one writer, or is changed only by atomic operations. Words that
 * several ranks poll have their own cache line.
 */
#ifndef MS_COMM_CONTROL_CONTROL_H
#define MS_COMM_CONTROL_CONTROL_H

#include <stdatomic.h>

#include "comm/control/rank_set.h"

enum {
  MS_CONTROL_VERSION = 6,
  MS_CONTROL_TEXT = 2048,                   /* bytes of an error message */
  MS_CONTROL_FAILURE = 512,                 /* bytes of an error that the program caught */
  MS_CONTROL_LAUNCHER = MS_MAX_LOCAL_RANKS, /* the launcher's row in the table of ranks */
  /* Bytes of the tables of the floors above; each asserts that its tables fit. */
  MS_CONTROL_RECORDER_BYTES = 408 << 10, /* per rank */
  MS_CONTROL_GROUP_BYTES = 33 << 20
};

/* The name of a control segment's memfd in /proc. */
#define MS_CONTROL_NAME "moonshard-job"

enum ms_control_rank_state { MS_CONTROL_ABSENT = 0, MS_CONTROL_JOINED = 1, MS_CONTROL_LEFT = 2 };

typedef struct ms_control_rank {
  _Alignas(64) _Atomic uint32_t doorbell; /* a futex word: counts rings */
  _Atomic uint32_t sleepers;              /* threads of this rank inside FUTEX_WAIT, or about to be */
  _Alignas(64) _Atomic int32_t pid;
  _Atomic int32_t number;    /* its rank in the world; equal to its row, unless the job spans several nodes */
  _Atomic int32_t state;     /* enum ms_control_rank_state */
  _Atomic uint32_t told;     /* 0, 1 while text is written, 2 when it is complete */
  _Atomic uint32_t recovery; /* steps of ms_world_recover that it has reached; odd inside the call */
  char text[MS_CONTROL_TEXT];
  _Atomic uint32_t failed; /* like told, for ms_world_note_failure */
  char failure[MS_CONTROL_FAILURE];
} ms_control_rank;

typedef struct ms_control {
  uint64_t magic;
  int32_t version, size;
  int32_t cores; /* cores that the ranks can run on */
  int32_t maker; /* pid of the process that made the segment */
  uint64_t made; /* when it was made: nanoseconds of the monotonic clock */
  /* 0, or 1 + row of the text | (1 + rank at fault) << 16: one word, so the first abort is published atomically */
  _Alignas(64) _Atomic uint32_t aborted;
  _Atomic uint32_t saves;       /* some rank saves its state before it ends on SIGTERM */
  _Atomic uint32_t terminating; /* some rank received SIGTERM */
  ms_control_rank rank[MS_MAX_LOCAL_RANKS + 1];
  /* Memory of the floors above, initially zero: see ms_recorder_in and ms_group_table. */
  _Alignas(4096) char recorder[MS_MAX_LOCAL_RANKS][MS_CONTROL_RECORDER_BYTES];
  _Alignas(4096) char group[MS_CONTROL_GROUP_BYTES];
} ms_control;

/* Makes the control segment for `size` ranks. Forked children inherit the descriptor; exec closes it. */
int ms_control_create(int size, int *fd);
/* Maps the control segment behind fd, after checking that it is one. */
int ms_control_map(int fd, ms_control **control);
/* The same, read-only. */
int ms_control_peek(int fd, const ms_control **control);
void ms_control_unmap(const ms_control *control);
/* Opens descriptor fd_there of process pid, which is rank `owner`. rank: the calling rank, for messages. */
int ms_memory_open(int rank, int owner, int pid, int fd_there, int *fd);
/* Rings one rank's doorbell; makes a system call only when a thread sleeps on it. */
void ms_control_ring(ms_control *control, int rank);
/* Sleeps until rank's doorbell differs from `seen`, a signal comes, or `seconds` pass. */
void ms_control_sleep(ms_control *control, int rank, uint32_t seen, double seconds);
/* The text with which row `row` gave up, even if something else aborted the job first. */
const char *ms_control_text(const ms_control *control, int row);
/* Writes row `row`'s text (once), publishes it as the job's abort unless there is one, and wakes every rank. */
void ms_control_give_up(ms_control *control, int row, int blame, const char *why);
/* Text of the first abort, or NULL. row: the row that wrote it (MS_CONTROL_LAUNCHER or a rank); blame: the rank at
 * fault, -1 for none. */
const char *ms_control_aborted(ms_control *control, int *row, int *blame);

#endif
