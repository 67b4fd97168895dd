/* group.c - meeting and exchanging among the ranks of a submesh, by one channel of their own.
**
** Who waits for ranks that do not wait for it would wait forever. So ranks first announce whom they want to meet, where
** all can read it without waiting, and read the announcements of those: what differs is an error on the spot.
*/
#include "comm/group/group.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "comm/control/control.h"

static int are_the_world(const ms_group *members) { return members->size == ms_world_size(members->world); }

static int take_place(ms_group *members, const int *ranks) {
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
static int describe(const ms_group *members, ms_text *text) {
  ms_text_append(text, "%s, rank%s", members->barrier.label, members->size == 1 ? "" : "s");
  for (int i = 0; i < members->size; i++) ms_text_append(text, "%s %d", i ? "," : "", members->rank[i]);
  MS_TRY(ms_text_status(text));
  if (text->length >= MS_CONTROL_ANNOUNCEMENT) text->data[MS_CONTROL_ANNOUNCEMENT - 1] = '\0';
  return MS_OK;
}

static uint32_t announce(ms_world *world, const char *text) {
  ms_control *control = ms_world_control(world);
  ms_control_announcement *mine = &control->announcement[ms_world_rank(world)];
  uint32_t number = atomic_load(&mine->number) + 1;
  /* Those who met this rank before have read the text that goes now; others can only find that it is another one. */
  strcpy(mine->text, text);
  atomic_store(&mine->number, number);
  for (int rank = 0; rank < ms_world_size(world); rank++)
    if (rank != ms_world_rank(world)) ms_control_ring(control, rank);
  return number;
}

static int report(int a, const char *text_a, int b, const char *text_b) {
  if (a > b) return report(b, text_b, a, text_a);
  return MS_FAIL(MS_EMISMATCH, "ranks have different meshes: rank %d has \"%s\", rank %d has \"%s\"", a, text_a, b,
                 text_b);
}

/* The announcement `number` of a rank that has made it. */
static int compare(ms_world *world, int rank, uint32_t number, const char *mine) {
  const ms_control_announcement *theirs = &ms_world_control(world)->announcement[rank];
  char text[MS_CONTROL_ANNOUNCEMENT];
  memcpy(text, theirs->text, sizeof text);
  text[sizeof text - 1] = '\0';
  if (atomic_load(&theirs->number) != number)
    return report(ms_world_rank(world), mine, rank, "another one, in which it has gone on");
  return strcmp(mine, text) ? report(ms_world_rank(world), mine, rank, text) : MS_OK;
}

/* Bits of the members that have not announced so much yet. */
static uint64_t find_missing(const ms_group *members, uint32_t number) {
  const ms_control *control = ms_world_control(members->world);
  uint64_t missing = 0;
  for (int i = 0; i < members->size; i++)
    if (atomic_load(&control->announcement[members->rank[i]].number) < number) missing |= 1ull << members->rank[i];
  return missing;
}

static int find_each_other(ms_group *members) {
  ms_world *world = members->world;
  ms_recorder *recorder = ms_world_recorder(world);
  ms_recorder_ring *ring = ms_recorder_ring_of(recorder, MS_RECORDER_MESHES);
  ms_text text = {0};
  ms_wait wait = {0};
  uint64_t compared = 1ull << ms_world_rank(world);
  int rc = describe(members, &text);
  uint32_t number = rc ? 0 : announce(world, text.data);
  ms_recorder_entered(recorder, ring, number, MS_RECORDER_MESH, ms_recorder_number(recorder, members->barrier.label),
                      0);
  ms_recorder_target(ring, number);
  for (uint64_t missing = ~0ull; !rc && missing;) {
    unsigned seen = ms_world_doorbell(world);
    missing = find_missing(members, number);
    for (int i = 0; !rc && i < members->size; i++) {
      uint64_t bit = 1ull << members->rank[i];
      if ((missing | compared) & bit) continue;
      rc = compare(world, members->rank[i], number, text.data);
      compared |= bit;
    }
    ms_recorder_misses(recorder, ring, missing);
    if (!rc && missing) rc = ms_world_turn(world, &wait, seen, "mesh", members->barrier.label, missing);
  }
  if (!rc) ms_recorder_left(ring);
  ms_text_free(&text);
  return rc;
}

int ms_group_open(ms_world *world, int n, const int *ranks, const char *label, ms_group *members) {
  MS_TRY(ms_world_check_one_node(world));
  if (n < 1 || n > ms_world_size(world) || n > MS_MAX_LOCAL_RANKS)
    return MS_FAIL(MS_EINVAL, "%d ranks shall meet in a world of %d", n, ms_world_size(world));
  *members = (ms_group){.world = world, .size = n, .barrier = {.kind = MS_COLL_BARRIER, .label = label}};
  MS_TRY(take_place(members, ranks));
  if (ms_world_control(world)) MS_TRY(find_each_other(members));
  if (n > 1 && !are_the_world(members)) MS_TRY(ms_comm_open(world, n, members->rank, MS_GROUP_CHANNEL, &members->comm));
  /* Nobody announces anything else before all have read this. */
  int rc = ms_group_barrier(members);
  if (rc) ms_group_close(members);
  return rc;
}

void ms_group_close(ms_group *members) {
  ms_comm_close(members->comm);
  members->comm = NULL;
}

/* ---- meeting ---- */

int ms_group_barrier(ms_group *members) {
  if (!members->comm) return are_the_world(members) ? ms_world_barrier(members->world) : ms_world_check(members->world);
  MS_TRY(ms_comm_start(members->comm, &members->barrier));
  return ms_comm_wait(members->comm);
}

/* From the order of ranks to that of the members. */
static int gather_in_world(ms_group *members, const void *mine, int bytes, void *all) {
  char *by_rank = ms_calloc(members->size, bytes);
  if (!by_rank) return MS_ENOMEM;
  int rc = ms_world_all_gather_bytes(members->world, mine, bytes, by_rank);
  for (int i = 0; !rc && i < members->size; i++)
    memcpy((char *)all + (size_t)i * (size_t)bytes, by_rank + (size_t)members->rank[i] * (size_t)bytes, (size_t)bytes);
  free(by_rank);
  return rc;
}

int ms_group_all_gather_bytes(ms_group *members, const void *mine, int bytes, void *all) {
  if (bytes < 0 || bytes > MS_CONTROL_SLOT)
    return MS_FAIL(MS_EINVAL, "all_gather_bytes: %d bytes a rank; at most %d fit", bytes, MS_CONTROL_SLOT);
  if (are_the_world(members)) return gather_in_world(members, mine, bytes, all);
  if (!members->comm) {
    memcpy(all, mine, (size_t)bytes);
    return ms_world_check(members->world);
  }
  /* The second barrier lets nobody write its slot again, here or with other members, before all have read it. */
  char(*slot)[MS_CONTROL_SLOT] = ms_world_control(members->world)->submesh_slot;
  memcpy(slot[members->rank[members->me]], mine, (size_t)bytes);
  MS_TRY(ms_group_barrier(members));
  for (int i = 0; i < members->size; i++)
    memcpy((char *)all + (size_t)i * (size_t)bytes, slot[members->rank[i]], (size_t)bytes);
  return ms_group_barrier(members);
}

/* One round of all_gather_text: bytes [first, first + MS_CONTROL_SLOT) of every member's text. */
static int gather_piece(ms_group *members, const char *mine, const int *length, int first, char *pieces, char **texts) {
  char piece[MS_CONTROL_SLOT] = {0};
  int rest = length[members->me] - first;
  if (rest > 0) memcpy(piece, mine + first, (size_t)(rest < MS_CONTROL_SLOT ? rest : MS_CONTROL_SLOT));
  MS_TRY(ms_group_all_gather_bytes(members, piece, MS_CONTROL_SLOT, pieces));
  for (int i = 0; i < members->size; i++) {
    rest = length[i] - first;
    if (rest <= 0) continue;
    memcpy(texts[i] + first, pieces + (size_t)i * MS_CONTROL_SLOT,
           (size_t)(rest < MS_CONTROL_SLOT ? rest : MS_CONTROL_SLOT));
  }
  return MS_OK;
}

int ms_group_all_gather_text(ms_group *members, const char *mine, char **texts) {
  enum { LONGEST = 1 << 20 };
  int rc = MS_OK, longest = 0, length[MS_MAX_LOCAL_RANKS];
  size_t bytes = strlen(mine);
  for (int i = 0; i < members->size; i++) texts[i] = NULL;
  char *pieces = ms_calloc(members->size, MS_CONTROL_SLOT);
  if (!pieces) return MS_ENOMEM;
  if (bytes > LONGEST)
    MS_GOTO(MS_FAIL(MS_EINVAL, "all_gather_text: a text of %zu bytes; at most %d fit", bytes, LONGEST));
  int mine_bytes = (int)bytes;
  MS_GOTO(ms_group_all_gather_bytes(members, &mine_bytes, sizeof mine_bytes, length));
  for (int i = 0; i < members->size; i++) {
    if (length[i] > longest) longest = length[i];
    texts[i] = ms_calloc(length[i] + 1, 1);
    if (!texts[i]) MS_GOTO(MS_ENOMEM);
  }
  for (int first = 0; first < longest; first += MS_CONTROL_SLOT)
    MS_GOTO(gather_piece(members, mine, length, first, pieces, texts));
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
