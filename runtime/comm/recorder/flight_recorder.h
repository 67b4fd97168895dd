/* flight_recorder.h - what every rank of a host has entered and left, in memory that all of them and `moonshard ps` can
** read.
**
** A rank's flight recorder says where the rank is now (which phase of which step, at which unit, or outside the engine
** since when), and has a ring of records for each communicator it is in: which collective it entered, when all had
** come, when it left. A ring has one writer, the thread that drives its communicator; where the rank is has one writer
** too, the thread that calls the engine. Writers only store: they take no lock and never wait, so writing costs tens of
** nanoseconds. Readers may be late by a record, and see from its sequence number that a record was overwritten.
**
** Texts (phases, units) are numbered by the rank that uses them, once, when a plan is bound.
*/
#ifndef MS_COMM_RECORDER_FLIGHT_RECORDER_H
#define MS_COMM_RECORDER_FLIGHT_RECORDER_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "comm/control/control.h"

enum {
  MS_RECORDER_RINGS = 64,   /* ring 0 is that of barrier and all-gather of bytes; the others belong to communicators */
  MS_RECORDER_RECORDS = 64, /* kept of each ring */
  MS_RECORDER_TEXTS = 2048,
  MS_RECORDER_TEXT_BYTES = 64,
  MS_RECORDER_BUCKETS = 4096
};

/* Group of a ring: MS_RECORDER_OPENING, where ranks compare whom they want to form a group with; MS_RECORDER_GROUP + the
** index of the group's entry in the control segment (comm/group/table.h), of which the first is the world's. */
enum { MS_RECORDER_FREE = 0, MS_RECORDER_OPENING = 1, MS_RECORDER_GROUP = 2, MS_RECORDER_WORLD = MS_RECORDER_GROUP };

/* What a record can be of: collectives; the all-gather of bytes of a process group, and the opening of one. */
enum ms_coll_kind {
  MS_COLL_ALL_GATHER = 0,
  MS_COLL_REDUCE_SCATTER = 1,
  MS_COLL_ALL_REDUCE = 2,
  MS_COLL_BROADCAST = 3,
  MS_COLL_BARRIER = 4,
  MS_COLL_SEND = 5,
  MS_COLL_RECV = 6,
  MS_COLL_KINDS = 7,
  MS_RECORDER_ALL_GATHER_BYTES = 7,
  MS_RECORDER_MESH = 8,
  MS_RECORDER_KINDS = 9
};

/* One collective of one rank. Times are nanoseconds of the monotonic clock; 0: not yet. */
typedef struct ms_recorder_record {
  _Alignas(
      64) _Atomic uint64_t sequence;   /* in its group, 1 first, the same on all ranks; 0 while it is being written */
  _Atomic uint64_t entered, met, left; /* met: all had come */
  _Atomic uint64_t bytes;              /* ms_coll_bytes */
  _Atomic int64_t step;
  _Atomic uint32_t kind; /* enum ms_coll_kind */
  _Atomic uint16_t label, activity;
} ms_recorder_record;

typedef struct ms_recorder_ring {
  _Alignas(64) _Atomic uint32_t group;
  _Atomic uint64_t head; /* collectives entered: the last is record[(head - 1) % MS_RECORDER_RECORDS] */
  /* the world ranks that the rank sleeps for, or failed to meet, as ms_rank_set; empty: it does neither */
  _Atomic uint64_t missing[MS_RANK_SET_WORDS];
  _Atomic uint64_t target; /* the count at which others have come, as their tickets count; 0: not told by tickets */
  _Alignas(64) ms_recorder_record record[MS_RECORDER_RECORDS];
} ms_recorder_ring;

typedef struct ms_recorder {
  /* The activity inside the engine ("phase first", "barrier"), or 0: outside. */
  _Alignas(64) _Atomic uint32_t activity;
  _Atomic uint32_t at;                /* module path or unit of the kernel under way */
  _Atomic uint32_t doing;             /* what the program says it does while outside; 0: nothing said */
  _Atomic uint32_t opening;           /* the collective that the plan of a step begins with: "all_gather root" */
  _Atomic uint32_t streams;           /* 1: streams are threads, so one that sleeps says nothing of the others */
  _Atomic uint32_t failed;            /* the activity ended with an error: everything stays as it was then */
  _Atomic uint64_t since;             /* the rank entered the engine, or left it */
  _Atomic uint64_t outside;           /* how long it was outside before it entered */
  _Atomic uint64_t beat;              /* last sign of life */
  _Atomic int64_t step;               /* under way, or the last one */
  _Atomic int64_t done;               /* steps done, as the program said */
  _Atomic uint64_t speed;             /* milli-tokens a second, as the program said */
  int32_t depth;                      /* activities inside each other: the writer's own */
  _Alignas(64) _Atomic uint32_t lock; /* of the texts: they are numbered rarely, and never while a plan runs */
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

/* The number of a text, 1 or more; 0 for an empty text, and for a new one when the table is full. A long text keeps its
** end, which tells more of a path than its beginning. */
int ms_recorder_number(ms_recorder *recorder, const char *text);
/* "" for 0. */
const char *ms_recorder_text(const ms_recorder *recorder, uint32_t number);

/* The rank enters the engine for `activity`, or an activity inside of the one that it is in. Every enter has its leave;
** rc: how it ended. */
void ms_recorder_enter(ms_recorder *recorder, int activity);
void ms_recorder_leave(ms_recorder *recorder, int rc);

/* A kernel begins; now: seconds, from a clock that was read anyway. */
static inline void ms_recorder_at(ms_recorder *recorder, uint32_t label, double now) {
  atomic_store_explicit(&recorder->at, label, memory_order_relaxed);
  atomic_store_explicit(&recorder->beat, (uint64_t)(1e9 * now), memory_order_relaxed);
}

/* A ring for the communicator of this group: the one that it had, or a free one; NULL when all are taken. */
ms_recorder_ring *ms_recorder_ring_of(ms_recorder *recorder, uint32_t group);

/* A collective: entered, all have come, left. */
void ms_recorder_entered(ms_recorder *recorder, ms_recorder_ring *ring, uint64_t sequence, int kind, int label,
                         double bytes);
void ms_recorder_met(ms_recorder_ring *ring);
void ms_recorder_left(ms_recorder_ring *ring);
/* What the collective under way waits for next: that all others count so far. */
static inline void ms_recorder_target(ms_recorder_ring *ring, uint64_t target) {
  atomic_store_explicit(&ring->target, target, memory_order_relaxed);
}
/* The ranks that this one is about to sleep for; NULL: it is awake. */
void ms_recorder_misses(ms_recorder *recorder, ms_recorder_ring *ring, const ms_rank_set *missing);
ms_rank_set ms_recorder_missing(const ms_recorder_ring *ring);

/* The last record of a ring; NULL before the first. */
static inline const ms_recorder_record *ms_recorder_last(const ms_recorder_ring *ring) {
  uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
  return head ? &ring->record[(head - 1) % MS_RECORDER_RECORDS] : NULL;
}

#endif
