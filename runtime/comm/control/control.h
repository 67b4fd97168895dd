/* control.h - the layout of a job's control segment, and the primitives over it. Internal to comm.
**
** The segment is one memfd, mapped whole by the launcher and by every rank; pages that nobody touches cost nothing, so
** the tables are simply as large as they may ever become. Each word has one writer, or is changed by atomic operations
** only. What several ranks poll stands in a cache line of its own.
*/
#ifndef MS_COMM_CONTROL_CONTROL_H
#define MS_COMM_CONTROL_CONTROL_H

#include "comm/recorder/flight_recorder.h"
#include "comm/group/world.h"

enum {
  MS_CONTROL_VERSION = 5,
  MS_CONTROL_CHANNELS = 16,
  MS_CONTROL_GROUPS = 512,                 /* communicators a job can have */
  MS_CONTROL_TEXT = 2048,                  /* bytes of an error message */
  MS_CONTROL_FAILURE = 512,                /* bytes of one that was caught */
  MS_CONTROL_SLOT = 4096,                  /* bytes of ms_world_all_gather_bytes */
  MS_CONTROL_ANNOUNCEMENT = 1024,          /* bytes of what ms_group_open compares */
  MS_CONTROL_LAUNCHER = MS_MAX_LOCAL_RANKS /* the launcher's row in the table of ranks */
};

enum ms_control_rank_state { MS_CONTROL_ABSENT = 0, MS_CONTROL_JOINED = 1, MS_CONTROL_LEFT = 2 };
enum ms_control_channel_state {
  MS_CONTROL_CHANNEL_FREE = 0,
  MS_CONTROL_CHANNEL_FILLING = 1,
  MS_CONTROL_CHANNEL_READY = 2
};

typedef struct ms_control_rank {
  _Alignas(64) _Atomic uint32_t doorbell; /* a futex word: counts rings */
  _Atomic uint32_t sleepers;              /* threads of this rank inside FUTEX_WAIT, or about to be */
  _Alignas(64) _Atomic int32_t pid;
  _Atomic int32_t number;    /* its rank in the world; its row, unless the job is one of several nodes */
  _Atomic int32_t state;     /* enum ms_control_rank_state */
  _Atomic uint32_t told;     /* 0, 1 while text is written, 2 when it stands */
  _Atomic uint32_t recovery; /* steps of ms_world_recover that it has come to; odd while it is inside */
  char text[MS_CONTROL_TEXT];
  _Atomic uint32_t failed; /* as told, of ms_world_note_failure */
  char failure[MS_CONTROL_FAILURE];
} ms_control_rank;

/* How far a rank has come in a sequence of collectives that all its group issues: two steps an operation, entered and
** finished. The signature tells peers what was entered. */
typedef struct ms_control_ticket {
  _Alignas(64) _Atomic uint64_t count;
  _Atomic uint64_t signature;
} ms_control_ticket;

typedef struct ms_control_group {
  _Alignas(4096) _Atomic uint32_t state; /* enum ms_control_channel_state */
  int32_t channel, size;
  int32_t rank[MS_MAX_LOCAL_RANKS];
  ms_control_ticket ticket[MS_MAX_LOCAL_RANKS];
  /* send and recv count apart, since only two ranks take part: [sender][receiver] and [receiver][sender] */
  _Atomic uint32_t sent[MS_MAX_LOCAL_RANKS][MS_MAX_LOCAL_RANKS];
  _Atomic uint32_t received[MS_MAX_LOCAL_RANKS][MS_MAX_LOCAL_RANKS];
} ms_control_group;

/* Whom a rank wants to meet, of its latest ms_group_open. */
typedef struct ms_control_announcement {
  _Alignas(64) _Atomic uint32_t number; /* of openings by this rank; set when the text stands */
  char text[MS_CONTROL_ANNOUNCEMENT];
} ms_control_announcement;

typedef struct ms_control {
  uint64_t magic;
  int32_t version, size;
  int32_t cores; /* that the ranks may run on */
  int32_t maker; /* the process that made the job */
  uint64_t made; /* when, as ms_recorder_now */
  /* 0, or 1 + row of the text | (1 + rank to blame) << 16: one word, so that the first abort is published whole */
  _Alignas(64) _Atomic uint32_t aborted;
  _Atomic uint32_t saves;       /* some rank saves before it ends, when it is asked to by SIGTERM */
  _Atomic uint32_t terminating; /* some rank was */
  ms_control_rank rank[MS_MAX_LOCAL_RANKS + 1];
  ms_control_ticket ticket[MS_MAX_LOCAL_RANKS]; /* of barrier and all-gather of bytes: one step an operation */
  /* what each rank came to, of every other barrier or all-gather of bytes, as the slots below */
  _Alignas(64) _Atomic uint64_t meeting[2][MS_MAX_LOCAL_RANKS];
  _Alignas(4096) char slot[2][MS_MAX_LOCAL_RANKS][MS_CONTROL_SLOT];
  ms_control_announcement announcement[MS_MAX_LOCAL_RANKS];
  char submesh_slot[MS_MAX_LOCAL_RANKS][MS_CONTROL_SLOT]; /* of ms_group: by world rank */
  ms_control_group group[MS_CONTROL_GROUPS];
  _Alignas(4096) ms_recorder recorder[MS_MAX_LOCAL_RANKS];
} ms_control;

/* Maps the control segment behind fd after checking that it is one. */
int ms_control_map(int fd, ms_control **control);
/* The same for a reader, who cannot change it. */
int ms_control_peek(int fd, const ms_control **control);
void ms_control_unmap(const ms_control *control);
/* Opens descriptor fd_there of process pid, which is rank `owner`; rank: who opens, for messages. */
int ms_memory_open(int rank, int owner, int pid, int fd_there, int *fd);
/* Rings one rank's doorbell; enters the kernel only when somebody sleeps there. */
void ms_control_ring(ms_control *control, int rank);
/* Sleeps until rank's doorbell differs from `seen`, a signal comes, or `seconds` pass. */
void ms_control_sleep(ms_control *control, int rank, uint32_t seen, double seconds);
/* Writes row `row`'s text (once) and publishes it as the job's abort unless there is one; wakes every rank. */
void ms_control_give_up(ms_control *control, int row, int blame, const char *why);
/* Text of the first abort, or NULL. row: who wrote it (MS_CONTROL_LAUNCHER or a rank); blame: the rank, -1 for none. */
const char *ms_control_aborted(ms_control *control, int *row, int *blame);

/* Rank `rank` of a job that is mapped already: a test can make every rank a thread of one process. ms_world_leave does
** not unmap the job. */
int ms_world_attach(ms_control *control, int rank, ms_world **world);
/* The control segment; NULL in a world of one that no launcher made. */
ms_control *ms_world_control(const ms_world *world);

/* Sleeps once. seen: the doorbell before the condition was tested. missing: the world ranks waited for, as bits. Fails
** with MS_ETIMEOUT after the world's deadline, naming kind, label, the missing ranks and who is behind; MS_EPEER when
** the job was aborted or a missing rank has left; MS_EINTERRUPT. */
int ms_world_turn(ms_world *world, ms_wait *wait, unsigned seen, const char *kind, const char *label, uint64_t missing);
/* The same without the sleep. rest: seconds until the deadline. */
int ms_world_watch(ms_world *world, ms_wait *wait, const char *kind, const char *label, uint64_t missing, double *rest);

#endif
