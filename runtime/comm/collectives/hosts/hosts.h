/* hosts.h - the parts of channels between hosts (hosts.c, hosts_lane.c, hosts_queue.c, hosts_agree.c, hosts_flow.c,
 * hosts_move.c, hosts_pair.c, hosts_missing.c). Internal to collectives.
 *
 * All channels of the same ranks and number share a lane: its keys, its staging memory, its operations. The lock
 * protects everything in it except for the transfers, which belong to the progress thread. The thread that calls the
 * engine starts operations; it and the progress thread do the steps among the ranks of this host, whichever comes
 * first, and begin the next operation; only the progress thread does the wire.
 *
 * Memory of a lane, in pieces of 256 KiB (MS_HOSTS_PIECE), allocated when it is opened and touched when it is used: at
 * most 8 that come in and 8 that go out, or 2 for each partner if that is more, and one for the sum of this host. A
 * late rank costs no more: nothing is sent before its receiver has entered the operation.
 */
#ifndef MS_COMM_COLLECTIVES_HOSTS_H
#define MS_COMM_COLLECTIVES_HOSTS_H

#include <pthread.h>

#include "base/error.h"
#include "comm/collectives/hosts/hosts_plan.h"
#include "comm/collectives/hosts/progress_thread.h"
#include "comm/collectives/tickets.h"

/* Keys of a lane: its own for messages and sums, and these above it. */
enum { MS_HOSTS_COPY_KEY = 1, MS_HOSTS_PAIR_KEY = 2, MS_HOSTS_KEYS = 3 };
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
  uint64_t layout;  /* hash of what determines the sizes of all messages, and of the root */
  uint64_t part_of; /* as in ms_coll */
  int32_t kind, parts;
  /* For messages: the unit, and the activity and step of which the operation is a part. */
  int64_t step;
  char label[MS_HOSTS_LABEL], activity[MS_RECORDER_TEXT_BYTES];
} ms_hosts_signature;

typedef struct ms_hosts_partner {
  int p, rank;             /* group rank, world rank */
  int handles_me, handled; /* it handles this rank's region on its host; this rank handles its region here */
  int agreed;              /* it entered the same */
  int told;                /* `tell` was posted */
  int begun, sent_words;   /* its first pieces are known; `tell` and `tell_asked` were sent */
  ms_hosts_signature theirs;
  ms_transfer take, tell;
  /* What it receives of a sliced sum, [asked_capacity]. */
  ms_hosts_range *asked;
  int asked_capacity;
  ms_transfer take_asked, tell_asked;
  ms_hosts_flow sums_out, sums_in, copies_out, copies_in;
} ms_hosts_partner;

enum ms_hosts_stage {
  MS_HOSTS_NONE = 0, /* nothing is in flight */
  MS_HOSTS_ENTER,    /* waits until the ranks of this host have entered */
  MS_HOSTS_WIRE,
  MS_HOSTS_SHARE,  /* all-reduce: waits until all of this host have their sums */
  MS_HOSTS_FINISH, /* waits until the ranks of this host have finished */
  MS_HOSTS_INSIDE, /* a send or recv between two ranks of this host, through its memory */
  MS_HOSTS_DONE,   /* until ms_hosts_go_on */
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
  ms_hosts_partner peer;     /* of the send or recv in flight */
  uint8_t *met;              /* [size] ranks with which this one has sent or received; NULL: none */
  uint64_t *pairs;           /* [2][size] number of sends to each rank, and of receives from it */
  int *sender;               /* [hosts] the partner that handles this rank's region there; -1: this host */
  char *staging, *own;       /* own [MS_HOSTS_PIECE]: the sum of this host */
  const void **source;       /* scratch: sources of a sum */
  uint64_t key, name;        /* key: the first of MS_HOSTS_KEYS; name: hash of the ranks and the channel */
  ms_channel *inside;        /* does sends and receives between ranks of this host */
  _Atomic int wanted;        /* the progress thread found the lock taken, or has something to do now */
  /* Under the lock. */
  pthread_mutex_t lock;
  pthread_cond_t cancelled;
  int keyed, cancel; /* the key is in use; the progress thread has to cancel it */
  unsigned epoch;    /* the world's, when the last operation was started */
  /* Operation k, from 0, is in place k % MS_COMM_QUEUE. Those below `reported` were reported as done, those below
   * `ended` are done, `ended` is in flight if it was started, and those behind it wait for their turn. */
  const ms_coll *queue[MS_COMM_QUEUE];
  uint64_t started, ended, reported;
  const ms_channel *owner; /* the channel that started them; NULL: all were reported */
  double entered_at;       /* when this rank entered coll (ms_clock) */
  double failed_at;        /* when a connection that it needs had failed; 0: none has */
  enum ms_hosts_stage stage;
  ms_tickets tickets;
  const ms_coll *coll; /* in flight */
  ms_hosts_signature mine;
  ms_hosts_range *asked; /* [asked_capacity] */
  int asked_capacity;
  ms_hosts_flow cast; /* all-gather: the piece of this rank's chunk that is cast next; it is not posted */
  uint64_t ready;     /* pieces of this rank's region that have their sums, or are cast: they can be sent */
  uint64_t moved;     /* pieces of all flows that are finished */
  double moved_at;    /* when that changed last, or the wire began (ms_clock) */
  ms_error_record error;
} ms_hosts_lane;

static inline int ms_hosts_here(const ms_hosts_lane *lane) { return lane->shape.host_of[lane->shape.me]; }

/* 1: the operation waits for tickets of ranks of this host. */
static inline int ms_hosts_is_within(enum ms_hosts_stage stage) {
  return stage == MS_HOSTS_ENTER || stage == MS_HOSTS_SHARE || stage == MS_HOSTS_FINISH;
}

static inline int ms_hosts_is_in_flight(const ms_hosts_lane *lane) {
  return ms_hosts_is_within(lane->stage) || lane->stage == MS_HOSTS_WIRE || lane->stage == MS_HOSTS_INSIDE;
}

/* 1: in the operation in flight, the ranks of this host end with parts of the result in their shared buffers, and then
 * copy each other's. */
static inline int ms_hosts_pulls(const ms_hosts_lane *lane) {
  const ms_coll *coll = lane->coll;
  return (coll->kind == MS_COLL_ALL_REDUCE && !coll->sliced) ||
         (coll->kind == MS_COLL_BROADCAST && lane->apart[coll->root]);
}

/* Finds or opens the lane of these ranks and channel; task: its functions, except for `free`. */
int ms_hosts_lane_open(const ms_channel_config *config, const ms_progress_task *task, ms_hosts_lane **lane);

/* hosts_queue.c: the operations that were started, with the lock. */
/* Starts an operation; begins it if none is in flight. Fails with MS_EPEER when one failed or was given up before, with
 * MS_EINTERNAL while another channel has operations here. */
int ms_hosts_start(ms_hosts_lane *lane, const ms_channel *channel, const ms_coll *coll);
/* If the operation in flight is done (MS_HOSTS_DONE), leaves it and begins the next one. */
void ms_hosts_go_on(ms_hosts_lane *lane);
/* 1: the oldest operation is done, and counts as reported now. */
int ms_hosts_report(ms_hosts_lane *lane);
/* Forgets all operations. */
void ms_hosts_drop(ms_hosts_lane *lane);
/* The operation in flight fails with the error of the calling thread, which is clear again; the progress thread has to
 * cancel its transfers. */
void ms_hosts_fail(ms_hosts_lane *lane);
/* Publishes a step of the operation in flight, and waits in `stage` until the ranks of this host have reached it. */
void ms_hosts_await(ms_hosts_lane *lane, enum ms_ticket_step step, enum ms_hosts_stage stage);

/* hosts_agree.c: the first messages. */
/* Fills what this rank enters. Fails with MS_ENOMEM. */
int ms_hosts_sign(ms_hosts_lane *lane, const ms_coll *coll);
/* Posts first messages and compares those that have come. *news: a partner has agreed. Fails with MS_EMISMATCH. */
int ms_hosts_agree(ms_hosts_lane *lane, int *news);
/* Posts a transfer with a partner. */
int ms_hosts_post(ms_hosts_lane *lane, ms_transfer *transfer);

/* Fails with MS_EMISMATCH when the partner entered something else. */
int ms_hosts_compare(const ms_hosts_lane *lane, ms_hosts_partner *partner);

/* hosts_flow.c. used 0: nothing moves in this flow. */
void ms_hosts_begin_flow(ms_hosts_flow *flow, int used, int p, const ms_hosts_range *asked);
/* Before the first piece is posted. */
void ms_hosts_find_first(const ms_hosts_lane *lane, ms_hosts_flow *flow);
int ms_hosts_is_ended(const ms_hosts_flow *flow);
int ms_hosts_has_room(const ms_hosts_flow *flow);
/* The oldest piece has moved; finishes all that have. */
int ms_hosts_has_moved(const ms_hosts_flow *flow);
void ms_hosts_finish_moved(ms_hosts_flow *flow);
/* Staging memory of piece `number`; NULL: the flow has none. */
char *ms_hosts_slot(const ms_hosts_flow *flow, uint64_t number);
/* Posts the next piece, which is at `data`. */
int ms_hosts_post_piece(ms_hosts_lane *lane, int peer, ms_hosts_flow *flow, int receives, uint64_t key, void *data);
/* A piece of the buffer of group rank p, which is of this host. */
char *ms_hosts_piece_in(const ms_hosts_lane *lane, int p, const ms_hosts_piece *piece);

/* hosts_pair.c: sends and receives between hosts. */
/* Before the first one with group rank p: connects to it. In the thread that calls the engine. */
int ms_hosts_meet_peer(ms_hosts_lane *lane, int p);
void ms_hosts_begin_pair(ms_hosts_lane *lane);
int ms_hosts_move_pair(ms_hosts_lane *lane, int *news);

/* hosts_missing.c: the world ranks that the operation waits for. Sets the target of the flight recorder's ring to what
 * they lack. */
ms_rank_set ms_hosts_missing(const ms_hosts_lane *lane);

/* hosts_move.c: the pieces. */
void ms_hosts_begin(ms_hosts_lane *lane);
/* Moves and sums what it can. *busy: there is more to do at once. */
int ms_hosts_move(ms_hosts_lane *lane, int *busy);
/* 1: everything between this rank and the partner is done. */
int ms_hosts_is_over_with(const ms_hosts_partner *partner);
/* Copies the sums that other ranks of this host have. */
void ms_hosts_pull(const ms_hosts_lane *lane);

#endif
