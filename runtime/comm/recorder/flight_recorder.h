/* flight_recorder.h - records what every rank of a host has entered and left, in memory that all of them and `moonshard
 * ps` can read.
 *
 * A rank's flight recorder says where the rank is now (in which phase of which step, at which unit, or since when
 * outside the engine), and has a ring of records per communicator: which collective it entered, when all ranks had
 * entered it, when it left. A ring has one writer at a time, the thread that drives its communicator: between hosts,
 * the one that holds its lane's lock. The rank's place has one writer, the thread that calls the engine. Writers only
 * store: they take no lock and never wait, so a write costs tens of nanoseconds. Readers can be late by a record; its
 * sequence number shows whether a record was overwritten.
 *
 * Texts (phases, units) are numbered once, when a plan is bound, by the rank that uses them.
 */
#ifndef MS_COMM_RECORDER_FLIGHT_RECORDER_H
#define MS_COMM_RECORDER_FLIGHT_RECORDER_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "comm/control/control.h"

enum {
  MS_RECORDER_RINGS = 64,   /* ring 0 belongs to barrier and all-gather of bytes, the others to communicators */
  MS_RECORDER_RECORDS = 64, /* records kept per ring */
  MS_RECORDER_TEXTS = 2048,
  MS_RECORDER_TEXT_BYTES = 64,
  MS_RECORDER_BUCKETS = 4096
};

/* Group of a ring: MS_RECORDER_OPENING, for ranks that compare the group that they open; or MS_RECORDER_GROUP + the
 * index of the group's entry in the control segment (comm/group/table.h), of which the first is the world's. */
enum { MS_RECORDER_FREE = 0, MS_RECORDER_OPENING = 1, MS_RECORDER_GROUP = 2, MS_RECORDER_WORLD = MS_RECORDER_GROUP };

/* Kinds of records: collectives, the all-gather of bytes of a process group, and the opening of a group. */
enum ms_coll_kind {
  MS_COLL_ALL_GATHER = 0,
  MS_COLL_REDUCE_SCATTER = 1,
  MS_COLL_ALL_REDUCE = 2,
  MS_COLL_BROADCAST = 3,
  MS_COLL_BARRIER = 4,
  MS_COLL_SEND = 5,
  MS_COLL_RECV = 6,
  MS_COLL_ALL_TO_ALL = 7,
  MS_COLL_KINDS = 8,
  MS_RECORDER_ALL_GATHER_BYTES = 8,
  MS_RECORDER_MESH = 9,
  MS_RECORDER_KINDS = 10
};

/* One collective of one rank. Times are nanoseconds of the monotonic clock; 0: not yet. */
typedef struct ms_recorder_record {
  _Alignas(64) _Atomic uint64_t sequence; /* in its group, from 1, the same on all ranks; 0 during a write */
  _Atomic uint64_t entered, met, left;    /* met: all ranks had entered */
  _Atomic uint64_t bytes;                 /* ms_coll_bytes */
  _Atomic int64_t step;
  _Atomic uint32_t kind; /* enum ms_coll_kind */
  _Atomic uint16_t label, activity;
} ms_recorder_record;

typedef struct ms_recorder_ring {
  _Alignas(64) _Atomic uint32_t group;
  _Atomic uint64_t head; /* collectives entered: the last is record[(head - 1) % MS_RECORDER_RECORDS] */
  /* ms_rank_set of world ranks that this rank sleeps for, or failed to synchronise with; empty: neither */
  _Atomic uint64_t missing[MS_RANK_SET_WORDS];
  _Atomic uint64_t target; /* the ticket count that the others must reach; 0: no tickets */
  _Alignas(64) ms_recorder_record record[MS_RECORDER_RECORDS];
} ms_recorder_ring;

typedef struct ms_recorder {
  /* The activity inside the engine ("phase first", "barrier"), or 0: outside. */
  _Alignas(64) _Atomic uint32_t activity;
  _Atomic uint32_t at;                /* module path or unit of the kernel under way */
  _Atomic uint32_t doing;             /* what the program reports to be doing while outside; 0: unknown */
  _Atomic uint32_t opening;           /* the collective with which a step's plan begins: "all_gather root" */
  _Atomic uint32_t streams;           /* 1: streams are threads, so a sleeping one says nothing about the others */
  _Atomic uint32_t failed;            /* the activity failed: all fields keep the values of that moment */
  _Atomic uint64_t since;             /* when the rank entered or left the engine */
  _Atomic uint64_t outside;           /* how long it was outside before it entered */
  _Atomic uint64_t beat;              /* last sign of life */
  _Atomic int64_t step;               /* current step, or the last one */
  _Atomic int64_t done;               /* completed steps, as reported by the program */
  _Atomic uint64_t speed;             /* milli-tokens per second, as reported by the program */
  int32_t depth;                      /* nesting of activities; used only by the writer */
  _Alignas(64) _Atomic uint32_t lock; /* protects the texts: numbering is rare, and never happens while a plan runs */
  _Atomic uint32_t texts;
  _Atomic uint16_t bucket[MS_RECORDER_BUCKETS];
  char text[MS_RECORDER_TEXTS][MS_RECORDER_TEXT_BYTES];
  ms_recorder_ring ring[MS_RECORDER_RINGS];
} ms_recorder;

/* "all_gather"; never NULL. */
const char *ms_coll_kind_name(int kind);
/* The flight recorder of a rank of this host, in the control segment. */
ms_recorder *ms_recorder_in(const ms_control *control, int rank);

static inline uint64_t ms_recorder_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The number of a text, from 1; 0 for an empty text, and for a new one when the table is full. A long text is cut at
 * its beginning, since the end of a path says more. */
int ms_recorder_number(ms_recorder *recorder, const char *text);
/* "" for 0. */
const char *ms_recorder_text(const ms_recorder *recorder, uint32_t number);

/* The rank enters the engine for `activity`, or an activity nested in the current one. Every enter needs a leave. rc:
 * the status with which it ended. */
void ms_recorder_enter(ms_recorder *recorder, int activity);
void ms_recorder_leave(ms_recorder *recorder, int rc);

/* A kernel begins. now: seconds, from a clock that the caller has read anyway. */
static inline void ms_recorder_at(ms_recorder *recorder, uint32_t label, double now) {
  atomic_store_explicit(&recorder->at, label, memory_order_relaxed);
  atomic_store_explicit(&recorder->beat, (uint64_t)(1e9 * now), memory_order_relaxed);
}

/* The ring of this group: the one that it already has, or a free one; NULL when all are taken. */
ms_recorder_ring *ms_recorder_ring_of(ms_recorder *recorder, uint32_t group);

/* Record a collective: entered, entered by all (the first call counts), left. */
void ms_recorder_entered(ms_recorder *recorder, ms_recorder_ring *ring, uint64_t sequence, int kind, int label,
                         double bytes);
void ms_recorder_met(ms_recorder_ring *ring);
void ms_recorder_left(ms_recorder_ring *ring);
/* Sets the ticket count that the collective in flight waits for on all other ranks. */
static inline void ms_recorder_target(ms_recorder_ring *ring, uint64_t target) {
  atomic_store_explicit(&ring->target, target, memory_order_relaxed);
}
/* Records the ranks for which this rank is about to sleep; NULL: it is awake. */
void ms_recorder_misses(ms_recorder *recorder, ms_recorder_ring *ring, const ms_rank_set *missing);
ms_rank_set ms_recorder_missing(const ms_recorder_ring *ring);

/* The last record of a ring; NULL before the first. */
static inline const ms_recorder_record *ms_recorder_last(const ms_recorder_ring *ring) {
  uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
  return head ? &ring->record[(head - 1) % MS_RECORDER_RECORDS] : NULL;
}

#endif
