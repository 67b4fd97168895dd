/* group.c - meeting and exchanging among the ranks of a submesh, by one channel of their own.
**
** Who waits for ranks that do not wait for it would wait forever. So ranks first announce whom they want to meet, where all can
** read it without waiting, and read the announcements of those: what differs is an error on the spot.
*/
#include "comm/group/group.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "comm/control/control.h"

static int are_the_world(const ms_members *members) { return members->size == ms_world_size(members->world); }

static int take_place(ms_members *members, const int *ranks) {
  members->me = -1;
  for (int i = 0; i < members->size; i++) {
    members->rank[i] = ranks ? ranks[i] : i;
    if (members->rank[i] < 0 || members->rank[i] >= ms_world_size(members->world))
      return MS_FAIL(MS_EINVAL, "rank %d shall meet others in a world of %d", members->rank[i],
                     ms_world_size(members->world));
    if (members->rank[i] == ms_world_rank(members->world)) members->me = i;
  }
  if (members->me >= 0) return MS_OK;
  return MS_FAIL(MS_EINVAL, "rank %d is none of the %d ranks that shall meet", ms_world_rank(members->world),
                 members->size);
}

/* ---- opening ---- */

/* "2x2 (replicate, shard), ranks 0, 1, 2, 3" */
static int describe(const ms_members *members, ms_text *text) {
  ms_text_append(text, "%s, rank%s", members->barrier.label, members->size == 1 ? "" : "s");
  for (int i = 0; i < members->size; i++) ms_text_append(text, "%s %d", i ? "," : "", members->rank[i]);
  MS_TRY(ms_text_status(text));
  if (text->length >= MS_JOB_ANNOUNCEMENT) text->data[MS_JOB_ANNOUNCEMENT - 1] = '\0';
  return MS_OK;
}

static uint32_t announce(ms_world *world, const char *text) {
  ms_job *job = ms_world_job(world);
  ms_job_announcement *mine = &job->announcement[ms_world_rank(world)];
  uint32_t number = atomic_load(&mine->number) + 1;
  /* Those who met this rank before have read the text that goes now; others can only find that it is another one. */
  strcpy(mine->text, text);
  atomic_store(&mine->number, number);
  for (int rank = 0; rank < ms_world_size(world); rank++)
    if (rank != ms_world_rank(world)) ms_job_ring(job, rank);
  return number;
}

static int report(int a, const char *text_a, int b, const char *text_b) {
  if (a > b) return report(b, text_b, a, text_a);
  return MS_FAIL(MS_EMISMATCH, "ranks have different meshes: rank %d has \"%s\", rank %d has \"%s\"", a, text_a, b,
                 text_b);
}

/* The announcement `number` of a rank that has made it. */
static int compare(ms_world *world, int rank, uint32_t number, const char *mine) {
  const ms_job_announcement *theirs = &ms_world_job(world)->announcement[rank];
  char text[MS_JOB_ANNOUNCEMENT];
  memcpy(text, theirs->text, sizeof text);
  text[sizeof text - 1] = '\0';
  if (atomic_load(&theirs->number) != number)
    return report(ms_world_rank(world), mine, rank, "another one, in which it has gone on");
  return strcmp(mine, text) ? report(ms_world_rank(world), mine, rank, text) : MS_OK;
}

/* Bits of the members that have not announced so much yet. */
static uint64_t find_missing(const ms_members *members, uint32_t number) {
  const ms_job *job = ms_world_job(members->world);
  uint64_t missing = 0;
  for (int i = 0; i < members->size; i++)
    if (atomic_load(&job->announcement[members->rank[i]].number) < number) missing |= 1ull << members->rank[i];
  return missing;
}

static int find_each_other(ms_members *members) {
  ms_world *world = members->world;
  ms_ledger *ledger = ms_world_ledger(world);
  ms_ledger_ring *ring = ms_ledger_ring_of(ledger, MS_LEDGER_MESHES);
  ms_text text = {0};
  ms_wait wait = {0};
  uint64_t compared = 1ull << ms_world_rank(world);
  int rc = describe(members, &text);
  uint32_t number = rc ? 0 : announce(world, text.data);
  ms_ledger_entered(ledger, ring, number, MS_LEDGER_MESH, ms_ledger_number(ledger, members->barrier.label), 0);
  ms_ledger_target(ring, number);
  for (uint64_t missing = ~0ull; !rc && missing;) {
    unsigned seen = ms_world_doorbell(world);
    missing = find_missing(members, number);
    for (int i = 0; !rc && i < members->size; i++) {
      uint64_t bit = 1ull << members->rank[i];
      if ((missing | compared) & bit) continue;
      rc = compare(world, members->rank[i], number, text.data);
      compared |= bit;
    }
    ms_ledger_misses(ledger, ring, missing);
    if (!rc && missing) rc = ms_world_turn(world, &wait, seen, "mesh", members->barrier.label, missing);
  }
  if (!rc) ms_ledger_left(ring);
  ms_text_free(&text);
  return rc;
}

int ms_members_open(ms_world *world, int n, const int *ranks, const char *label, ms_members *members) {
  MS_TRY(ms_world_check_one_node(world));
  if (n < 1 || n > ms_world_size(world) || n > MS_MAX_LOCAL_RANKS)
    return MS_FAIL(MS_EINVAL, "%d ranks shall meet in a world of %d", n, ms_world_size(world));
  *members = (ms_members){.world = world, .size = n, .barrier = {.kind = MS_COLL_BARRIER, .label = label}};
  MS_TRY(take_place(members, ranks));
  if (ms_world_job(world)) MS_TRY(find_each_other(members));
  if (n > 1 && !are_the_world(members))
    MS_TRY(ms_comm_open(world, n, members->rank, MS_MEMBERS_CHANNEL, &members->comm));
  /* Nobody announces anything else before all have read this. */
  int rc = ms_members_barrier(members);
  if (rc) ms_members_close(members);
  return rc;
}

void ms_members_close(ms_members *members) {
  ms_comm_close(members->comm);
  members->comm = NULL;
}

/* ---- meeting ---- */

int ms_members_barrier(ms_members *members) {
  if (!members->comm) return are_the_world(members) ? ms_world_barrier(members->world) : ms_world_check(members->world);
  MS_TRY(ms_comm_start(members->comm, &members->barrier));
  return ms_comm_wait(members->comm);
}

/* From the order of ranks to that of the members. */
static int exchange_in_world(ms_members *members, const void *mine, int bytes, void *all) {
  char *by_rank = ms_calloc(members->size, bytes);
  if (!by_rank) return MS_ENOMEM;
  int rc = ms_world_exchange(members->world, mine, bytes, by_rank);
  for (int i = 0; !rc && i < members->size; i++)
    memcpy((char *)all + (size_t)i * (size_t)bytes, by_rank + (size_t)members->rank[i] * (size_t)bytes, (size_t)bytes);
  free(by_rank);
  return rc;
}

int ms_members_exchange(ms_members *members, const void *mine, int bytes, void *all) {
  if (bytes < 0 || bytes > MS_JOB_EXCHANGE)
    return MS_FAIL(MS_EINVAL, "exchange: %d bytes a rank; at most %d fit", bytes, MS_JOB_EXCHANGE);
  if (are_the_world(members)) return exchange_in_world(members, mine, bytes, all);
  if (!members->comm) {
    memcpy(all, mine, (size_t)bytes);
    return ms_world_check(members->world);
  }
  /* The second barrier lets nobody write its slot again, here or with other members, before all have read it. */
  char(*slot)[MS_JOB_EXCHANGE] = ms_world_job(members->world)->submesh_exchange;
  memcpy(slot[members->rank[members->me]], mine, (size_t)bytes);
  MS_TRY(ms_members_barrier(members));
  for (int i = 0; i < members->size; i++)
    memcpy((char *)all + (size_t)i * (size_t)bytes, slot[members->rank[i]], (size_t)bytes);
  return ms_members_barrier(members);
}

/* One round of exchange_text: bytes [first, first + MS_JOB_EXCHANGE) of every member's text. */
static int exchange_piece(ms_members *members, const char *mine, const int *length, int first, char *pieces,
                          char **texts) {
  char piece[MS_JOB_EXCHANGE] = {0};
  int rest = length[members->me] - first;
  if (rest > 0) memcpy(piece, mine + first, (size_t)(rest < MS_JOB_EXCHANGE ? rest : MS_JOB_EXCHANGE));
  MS_TRY(ms_members_exchange(members, piece, MS_JOB_EXCHANGE, pieces));
  for (int i = 0; i < members->size; i++) {
    rest = length[i] - first;
    if (rest <= 0) continue;
    memcpy(texts[i] + first, pieces + (size_t)i * MS_JOB_EXCHANGE,
           (size_t)(rest < MS_JOB_EXCHANGE ? rest : MS_JOB_EXCHANGE));
  }
  return MS_OK;
}

int ms_members_exchange_text(ms_members *members, const char *mine, char **texts) {
  enum { LONGEST = 1 << 20 };
  int rc = MS_OK, longest = 0, length[MS_MAX_LOCAL_RANKS];
  size_t bytes = strlen(mine);
  for (int i = 0; i < members->size; i++) texts[i] = NULL;
  char *pieces = ms_calloc(members->size, MS_JOB_EXCHANGE);
  if (!pieces) return MS_ENOMEM;
  if (bytes > LONGEST) MS_GOTO(MS_FAIL(MS_EINVAL, "exchange: a text of %zu bytes; at most %d fit", bytes, LONGEST));
  int mine_bytes = (int)bytes;
  MS_GOTO(ms_members_exchange(members, &mine_bytes, sizeof mine_bytes, length));
  for (int i = 0; i < members->size; i++) {
    if (length[i] > longest) longest = length[i];
    texts[i] = ms_calloc(length[i] + 1, 1);
    if (!texts[i]) MS_GOTO(MS_ENOMEM);
  }
  for (int first = 0; first < longest; first += MS_JOB_EXCHANGE)
    MS_GOTO(exchange_piece(members, mine, length, first, pieces, texts));
  free(pieces);
  return MS_OK;
fail:
  free(pieces);
  for (int i = 0; i < members->size; i++) {
    free(texts[i]);
    texts[i] = NULL;
  }
  return rc;
}
