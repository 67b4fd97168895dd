/* hosts_agree.c - the first messages of an operation between hosts: what the partners entered, and, for a sliced sum,
 * which elements they receive. The receive of the next first message is always posted, so it can be sent at once; all
 * others follow the comparison, so that no message has a size that its receiver does not expect.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text/hash.h"
#include "comm/collectives/hosts/hosts.h"
#include "comm/group/world_state.h"

/* ---- signatures ---- */

static int ask(ms_hosts_lane *lane, const ms_coll *coll) {
  MS_TRY(ms_grow((void **)&lane->asked, &lane->asked_capacity, coll->parts, sizeof *lane->asked));
  for (int i = 0; i < coll->parts; i++) lane->asked[i] = (ms_hosts_range){coll->part[i].first, coll->part[i].n};
  for (int i = 0; i < lane->partners; i++) {
    ms_hosts_partner *x = &lane->partner[i];
    MS_TRY(ms_grow((void **)&x->asked, &x->asked_capacity, coll->parts, sizeof *x->asked));
  }
  return MS_OK;
}

int ms_hosts_sign(ms_hosts_lane *lane, const ms_coll *coll) {
  ms_hosts_signature *mine = &lane->mine;
  memset(mine, 0, sizeof *mine);
  mine->kind = coll->kind;
  mine->parts = coll->parts;
  mine->part_of = coll->part_of;
  mine->layout = ms_hash_int(ms_hash_int(MS_HASH_INIT, coll->sliced | coll->largest << 1),
                             coll->kind == MS_COLL_BROADCAST ? coll->root : 0);
  for (int i = 0; i < coll->parts; i++) {
    mine->elements += coll->part[i].count;
    mine->layout = ms_hash_int(ms_hash_int(mine->layout, coll->part[i].count), ms_hosts_wire_dtype(coll, i));
  }
  snprintf(mine->label, sizeof mine->label, "%s", coll->label ? coll->label : "");
  const ms_recorder *recorder = ms_world_recorder(lane->world);
  mine->step = atomic_load_explicit(&recorder->step, memory_order_relaxed);
  snprintf(mine->activity, sizeof mine->activity, "%s",
           ms_recorder_text(recorder, atomic_load_explicit(&recorder->activity, memory_order_relaxed)));
  return coll->sliced ? ask(lane, coll) : MS_OK;
}

/* "all_gather layers.3 (phase first of step 5) of 4 parts, 12 elements" */
static void describe(const ms_hosts_lane *lane, const ms_hosts_signature *s, char *text, size_t bytes) {
  char named[192];
  lane->world->diagnosis->describe(ms_coll_kind_name(s->kind), s->label, s->activity, s->step, named, sizeof named);
  snprintf(text, bytes, "%s of %d parts, %lld elements", named, s->parts, (long long)s->elements);
}

/* A send meets a recv, all others meet their like. */
static int kind_of_partner(int kind) {
  return kind == MS_COLL_SEND ? MS_COLL_RECV : kind == MS_COLL_RECV ? MS_COLL_SEND : kind;
}

int ms_hosts_compare(const ms_hosts_lane *lane, ms_hosts_partner *x) {
  char ours[256], theirs[256], noted[MS_CONTROL_TEXT];
  const ms_hosts_signature *mine = &lane->mine;
  const ms_world *world = lane->world;
  x->theirs.label[MS_HOSTS_LABEL - 1] = x->theirs.activity[MS_RECORDER_TEXT_BYTES - 1] = '\0';
  int named = x->theirs.kind == kind_of_partner(mine->kind) && x->theirs.parts == mine->parts &&
              x->theirs.elements == mine->elements && !strcmp(x->theirs.label, mine->label);
  const int sized = named && x->theirs.layout == mine->layout;
  if (sized && x->theirs.part_of == mine->part_of) return MS_OK;
  world->diagnosis->noted(world->control, noted, sizeof noted);
  describe(lane, mine, ours, sizeof ours);
  describe(lane, &x->theirs, theirs, sizeof theirs);
  return MS_FAIL(MS_EMISMATCH, "%s%sranks disagree: rank %d entered %s, but rank %d entered %s%s", noted,
                 *noted ? "; now " : "", lane->rank[lane->shape.me], ours, x->rank, theirs,
                 sized   ? ms_tickets_part_of_another
                 : named ? "; the sizes or types of their parts, or their roots, differ"
                         : "");
}

/* ---- messages ---- */

int ms_hosts_post(ms_hosts_lane *lane, ms_transfer *transfer) {
  return ms_progress_api(lane->thread)->post(ms_progress_endpoint(lane->thread), transfer);
}

/* The slice that a partner asks for is used as a range of this rank's memory. */
static int check_asked(const ms_hosts_lane *lane, const ms_hosts_partner *x) {
  for (int i = 0; i < lane->coll->parts; i++) {
    ms_hosts_range asked = x->asked[i];
    int64_t count = lane->coll->part[i].count;
    if (asked.first < 0 || asked.n < 0 || asked.first > count || asked.n > count - asked.first)
      return MS_FAIL(MS_EMISMATCH, "rank %d asks rank %d for elements %lld to %lld of %lld", x->rank,
                     lane->rank[lane->shape.me], (long long)asked.first, (long long)(asked.first + asked.n),
                     (long long)count);
  }
  return MS_OK;
}

static int exchange_asked(ms_hosts_lane *lane, ms_hosts_partner *x) {
  int64_t bytes = lane->coll->parts * (int64_t)sizeof *x->asked;
  if (x->take_asked.state == MS_TRANSFER_IDLE) {
    x->take_asked = (ms_transfer){.peer = x->rank, .receives = 1, .key = lane->key, .data = x->asked, .bytes = bytes};
    x->tell_asked = (ms_transfer){.peer = x->rank, .key = lane->key, .data = lane->asked, .bytes = bytes};
    MS_TRY(ms_hosts_post(lane, &x->take_asked));
    MS_TRY(ms_hosts_post(lane, &x->tell_asked));
  }
  if (x->take_asked.state != MS_TRANSFER_DONE) return MS_OK;
  x->agreed = 1;
  return check_asked(lane, x);
}

static int agree_with(ms_hosts_lane *lane, ms_hosts_partner *x) {
  if (x->take.state == MS_TRANSFER_IDLE) {
    x->take =
        (ms_transfer){.peer = x->rank, .receives = 1, .key = lane->key, .data = &x->theirs, .bytes = sizeof x->theirs};
    MS_TRY(ms_hosts_post(lane, &x->take));
  }
  if (lane->stage == MS_HOSTS_NONE || lane->stage == MS_HOSTS_DONE || ms_coll_is_pairwise(lane->coll->kind))
    return MS_OK;
  if (!x->told) {
    x->tell = (ms_transfer){.peer = x->rank, .key = lane->key, .data = &lane->mine, .bytes = sizeof lane->mine};
    MS_TRY(ms_hosts_post(lane, &x->tell));
    x->told = 1;
  }
  /* Sent first, so that the partner, too, can say who entered what. */
  if (x->agreed || x->take.state != MS_TRANSFER_DONE || x->tell.state != MS_TRANSFER_DONE) return MS_OK;
  MS_TRY(ms_hosts_compare(lane, x));
  if (lane->coll->sliced && lane->coll->parts) return exchange_asked(lane, x);
  x->agreed = 1;
  return MS_OK;
}

int ms_hosts_agree(ms_hosts_lane *lane, int *news) {
  for (int i = 0; i < lane->partners; i++) {
    int before = lane->partner[i].agreed;
    MS_TRY(agree_with(lane, &lane->partner[i]));
    *news |= lane->partner[i].agreed != before;
  }
  return MS_OK;
}
