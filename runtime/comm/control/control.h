/* control.h - the layout of a job's control segment, and its primitives: doorbells and the abort word. Internal to
 * comm, the launcher and `moonshard ps`.
 *
 * Each host has one segment, a memfd that its launcher and its ranks map whole. It has a row for every rank of the
 * world, also for those of other hosts. Untouched pages cost nothing, so the tables have their largest possible size.
 * Each word has one writer, or is changed only by atomic operations. Words that several ranks poll have their own cache
 * line.
 */
#ifndef MS_COMM_CONTROL_CONTROL_H
#define MS_COMM_CONTROL_CONTROL_H

#include <stdatomic.h>

#include "comm/control/rank_set.h"

enum {
  MS_CONTROL_VERSION = 10,
  MS_CONTROL_PAGE = 4096,
  MS_CONTROL_TEXT = 2048,               /* bytes of an error message */
  MS_CONTROL_FAILURE = 512,             /* bytes of an error that the program caught */
  MS_CONTROL_LAUNCHER = MS_MAX_RANKS,   /* stands for the launcher where a row is named by its rank */
  MS_CONTROL_RECORDER_BYTES = 440 << 10 /* per rank, for the floor above, which asserts that its table fits */
};

/* The name of a control segment's memfd in /proc. */
#define MS_CONTROL_NAME "moonshard-job"

enum ms_control_rank_state { MS_CONTROL_ABSENT = 0, MS_CONTROL_JOINED = 1, MS_CONTROL_LEFT = 2 };

typedef struct ms_control_rank {
  _Alignas(64) _Atomic uint32_t doorbell;    /* a futex word: counts rings */
  _Atomic uint32_t sleepers;                 /* threads of this rank inside FUTEX_WAIT, or about to be */
  _Atomic uint32_t step_bell, step_sleepers; /* the same; counts steps of collectives between hosts */
  _Alignas(64) _Atomic int32_t pid;
  _Atomic int32_t state;     /* enum ms_control_rank_state */
  _Atomic uint32_t told;     /* 0, 1 while text is written, 2 when it is complete */
  _Atomic uint32_t recovery; /* steps of ms_world_recover that it has reached; odd inside the call */
  char text[MS_CONTROL_TEXT];
  _Atomic uint32_t failed; /* like told, for ms_world_note_failure */
  char failure[MS_CONTROL_FAILURE];
  _Atomic uint32_t applies; /* its store thread writes what ranks of other hosts publish, or can begin to */
  _Atomic uint32_t posts;   /* how often it has posted its doings to other hosts; on those, how many posts have come */
  /* For a rank of another host: from the last report of its host. */
  _Atomic uint64_t seen;    /* when the report came: nanoseconds of the monotonic clock; 0: never */
  _Atomic uint32_t ahead;   /* 1: the report was made after posts that have not come, which lost frames can delay */
  _Atomic int32_t stopped;  /* its process there, if a signal has stopped it; otherwise 0 */
  _Atomic int32_t printing; /* it is blocked until its output is read */
} ms_control_rank;

typedef struct ms_control {
  uint64_t magic;
  int32_t version;
  int32_t size;  /* ranks of the world */
  int32_t local; /* ranks of this host */
  int32_t cores; /* cores that the ranks of this host can run on */
  int32_t maker; /* pid of the process that made the segment */
  uint64_t made; /* when it was made: nanoseconds of the monotonic clock */
  /* Bytes of the whole segment, and where the tables of the layers above begin, all initially zero: flight recorders
   * (ms_recorder_in) and groups (ms_group_table_in). */
  uint64_t bytes, recorders_at, groups_at;
  /* The first page ends here, and is mapped read-only: a stray write cannot change the layout. */
  /* 0, or 1 + row of the text | (1 + rank at fault) << 16: one word, so the first abort is published atomically */
  _Alignas(MS_CONTROL_PAGE) _Atomic uint32_t aborted;
  _Atomic uint32_t saves;       /* some rank saves its state before it ends on SIGTERM */
  _Atomic uint32_t terminating; /* some rank received SIGTERM */
  _Atomic int32_t finishing;    /* ranks of this host that wait for a save before they end */
  _Atomic uint32_t finished;    /* how often the saves of these ranks have progressed */
  _Atomic uint32_t lost;        /* how many other hosts a failing rank of this one could not reach */
  ms_control_rank launcher;
  ms_control_rank rank[]; /* [size], by world rank */
} ms_control;

/* Makes the control segment of a host with `local` of the world's `size` ranks, and group_bytes for the table of groups
 * (ms_job_create knows how many). cores: that the ranks can run on; 0: those of this process. Forked children inherit
 * the descriptor; exec closes it. */
int ms_control_create(int size, int local, int cores, uint64_t group_bytes, int *fd);
/* Maps the control segment behind fd, after checking that it is one. */
int ms_control_map(int fd, ms_control **control);
/* A copy of a control segment, of another user perhaps, who can shrink or overwrite it meanwhile: it is read, never
 * mapped. Where the segment has no pages the copy has none. */
int ms_control_copy(int fd, ms_control **control);
/* Unmaps a mapped segment, or frees a copy. */
void ms_control_unmap(const ms_control *control);
/* Opens descriptor fd_there of process pid, which is rank `owner`. rank: the calling rank, for messages. */
int ms_memory_open(int rank, int owner, int pid, int fd_there, int *fd);
/* The row of a rank, or the launcher's for MS_CONTROL_LAUNCHER. */
static inline ms_control_rank *ms_control_row(ms_control *control, int rank) {
  return rank == MS_CONTROL_LAUNCHER ? &control->launcher : &control->rank[rank];
}
/* Rings one rank's doorbell; makes a system call only when a thread sleeps on it. */
void ms_control_ring(ms_control *control, int rank);
/* Sleeps until rank's doorbell differs from `seen`, a signal comes, or `seconds` pass. */
void ms_control_sleep(ms_control *control, int rank, uint32_t seen, double seconds);
/* The same two for the step bell, on which only the rank's listener sleeps (collectives/listener.c). */
void ms_control_ring_step(ms_control *control, int rank);
void ms_control_sleep_step(ms_control *control, int rank, uint32_t seen, double seconds);
/* The text with which a rank or the launcher gave up, even if something else aborted the job first. */
const char *ms_control_text(const ms_control_rank *row);
/* Writes row `row`'s text (once), publishes it as the job's abort unless there is one, and wakes every rank. */
void ms_control_give_up(ms_control *control, int row, int blame, const char *why);
/* Notes how many other hosts this rank cannot reach: the largest number counts. */
void ms_control_note_lost(ms_control *control, int hosts);
/* Text of the first abort, or NULL. row: the row that wrote it (MS_CONTROL_LAUNCHER or a rank); blame: the rank at
 * fault, -1 for none. */
const char *ms_control_aborted(ms_control *control, int *row, int *blame);

#endif
