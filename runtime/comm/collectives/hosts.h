/* hosts.h - the parts of channels between hosts (hosts.c, hosts_agree.c, hosts_move.c). Internal to collectives.
 *
 * All channels of the same ranks and number share a lane: its keys, its staging memory, the operation in flight. The
 * lock protects everything in it except for the transfers, which belong to the progress thread. The thread that calls
 * the engine starts operations; it and the progress thread do the steps among the ranks of this host, whichever comes
 * first; only the progress thread does the wire.
 *
 * Memory of a lane, in pieces of 256 KiB (MS_HOSTS_PIECE), allocated when it is opened and touched when it is used: at
 * most 8 that come in and 8 that go out, or 2 for each partner if that is more, and one for the sum of this host. A
 * late rank costs no more: nothing is sent before its receiver has entered the operation.
 */
#ifndef MS_COMM_COLLECTIVES_HOSTS_H
#define MS_COMM_COLLECTIVES_HOSTS_H

#include <pthread.h>

#include "base/error.h"
#include "comm/collectives/hosts_plan.h"
#include "comm/collectives/progress_thread.h"
#include "comm/collectives/tickets.h"

enum { MS_HOSTS_UNDER_WAY = 8, MS_HOSTS_LABEL = 96 };

/* Pieces on their way to or from a partner, in order: number k is in place k % window. */
typedef struct ms_hosts_flow {
  int window;
  int more;           /* `next` has not been posted */
  ms_hosts_walk walk; /* behind next */
  ms_hosts_piece next;
  uint64_t posted, finished; /* finished: moved, and summed if that is to be */
  char *slot;                /* [window][MS_HOSTS_PIECE]; NULL: the bytes move from or to their own place */
  ms_hosts_piece piece[MS_HOSTS_UNDER_WAY];
  ms_transfer transfer[MS_HOSTS_UNDER_WAY];
} ms_hosts_flow;

/* The first message of an operation: what the sender entered. */
typedef struct ms_hosts_signature {
  int64_t elements;
  uint64_t layout; /* hash of what determines the sizes of all messages, and of the root */
  int32_t kind, parts;
  char label[MS_HOSTS_LABEL];
} ms_hosts_signature;

typedef struct ms_hosts_partner {
  int p, rank;             /* group rank, world rank */
  int handles_me, handled; /* it handles this rank's region on its host; this rank handles its region here */
  int agreed;              /* it entered the same */
  int told;                /* `tell` was posted */
  int begun, sent_words;   /* its first pieces are known; `tell` and `tell_asked` were sent */
  ms_hosts_signature theirs;
  ms_transfer take, tell;
  /* What it receives of a sliced sum, [asked_room]. */
  ms_hosts_range *asked;
  int asked_room;
  ms_transfer take_asked, tell_asked;
  ms_hosts_flow sums_out, sums_in, copies_out, copies_in;
} ms_hosts_partner;

enum ms_hosts_stage {
  MS_HOSTS_NONE = 0, /* nothing is in flight */
  MS_HOSTS_ENTER,    /* waits until the ranks of this host have entered */
  MS_HOSTS_WIRE,
  MS_HOSTS_SHARE,  /* all-reduce: waits until all of this host have their sums */
  MS_HOSTS_FINISH, /* waits until the ranks of this host have finished */
  MS_HOSTS_DONE,
  MS_HOSTS_FAILED, /* `error` has not been reported */
  MS_HOSTS_BROKEN  /* until the next recovery */
};

typedef struct ms_hosts_lane {
  ms_progress_task task;
  ms_progress_thread *thread;
  ms_world *world;
  ms_hosts_shape shape;
  int *rank;      /* [size] world ranks */
  uint8_t *apart; /* [size] 1: on another host */
  int channel, partners;
  ms_hosts_partner *partner; /* [partners] */
  int *giver;                /* [hosts] the partner that handles this rank's region there; -1: this host */
  char *staging, *own;       /* own [MS_HOSTS_PIECE]: the sum of this host */
  const void **source;       /* scratch: sources of a sum */
  uint64_t key, name; /* key: of messages and sums, of copies is key + 1; name: hash of the ranks and the channel */
  /* Under the lock. */
  pthread_mutex_t lock;
  pthread_cond_t cancelled;
  int keyed, cancel; /* the key is in use; the progress thread has to cancel it */
  unsigned epoch;    /* the world's, when the last operation was started */
  enum ms_hosts_stage stage;
  ms_tickets tickets;
  const ms_coll *coll;
  const ms_channel *owner; /* the channel that started coll */
  ms_hosts_signature mine;
  ms_hosts_range *asked; /* [asked_room] */
  int asked_room;
  uint64_t summed; /* pieces of this rank's region that have their sums */
  uint64_t moved;  /* pieces of all flows that are finished */
  double moved_at; /* when that changed last, or the wire began (ms_clock) */
  ms_error_record error;
} ms_hosts_lane;

static inline int ms_hosts_here(const ms_hosts_lane *lane) { return lane->shape.host_of[lane->shape.me]; }

/* 1: in the operation in flight, the ranks of a host end with sums in their sources, and then copy each other's. */
static inline int ms_hosts_pulls(const ms_coll *coll) { return coll->kind == MS_COLL_ALL_REDUCE && !coll->sliced; }

/* Finds or opens the lane of these ranks and channel; task: its functions, except for `free`. */
int ms_hosts_lane_open(const ms_channel_config *config, const ms_progress_task *task, ms_hosts_lane **lane);

/* hosts_agree.c: the first messages. */
/* Fills what this rank enters. Fails with MS_ENOMEM. */
int ms_hosts_sign(ms_hosts_lane *lane, const ms_coll *coll);
/* Posts first messages and compares those that have come. *news: a partner has agreed. Fails with MS_EMISMATCH. */
int ms_hosts_agree(ms_hosts_lane *lane, int *news);
/* Posts a transfer with a partner. */
int ms_hosts_post(ms_hosts_lane *lane, ms_transfer *transfer);

/* hosts_move.c: the pieces. */
void ms_hosts_begin(ms_hosts_lane *lane);
/* Moves and sums what it can. *busy: there is more to do at once. */
int ms_hosts_move(ms_hosts_lane *lane, int *busy);
/* 1: everything between this rank and the partner is done. */
int ms_hosts_is_over_with(const ms_hosts_partner *partner);
/* Copies the sums that other ranks of this host have. */
void ms_hosts_pull(const ms_hosts_lane *lane);

#endif
