/* group.c - the operations of a process group: the barrier and the all-gather of bytes; also those of the world, which
 * use group 0.
 *
 * Each operation is one step of the members' tickets. A rank publishes what it enters (its signature), increments its
 * ticket, waits until all have, and compares. A group of one has no entry in the control segment: its operations are
 * copies.
 */
#include "comm/group/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text/hash.h"
#include "comm/group/wait.h"
#include "comm/group/world_state.h"

enum operation { BARRIER = 0, GATHER = 1, END = 2 };

static const char END_OF_RUN[] = "at the end of the run";

/* One operation of a group under way on this rank. */
typedef struct step {
  ms_group *group;
  enum operation operation;
  uint64_t target; /* the ticket count of a rank that has entered it */
} step;

/* ---- which ranks have entered, and what ---- */

static int has_come(const step *s, int place) {
  return atomic_load_explicit(&s->group->entry->ticket[place].count, memory_order_acquire) >= s->target;
}

/* A rank that left after its work was done does not have to enter the end of the run. One that gave up does: it never
 * will, so the wait fails with its reason. */
static int has_ended(const step *s, int place) {
  const ms_control_rank *row = &s->group->world->control->rank[s->group->rank[place]];
  return s->operation == END && atomic_load(&row->state) == MS_CONTROL_LEFT && !atomic_load(&row->told);
}

static int find_missing(void *context, ms_rank_set *missing) {
  const step *s = context;
  const ms_group *group = s->group;
  *missing = (ms_rank_set){{0}};
  for (int i = 0; i < group->size; i++)
    if (!has_come(s, i) && !has_ended(s, i)) ms_rank_set_add(missing, group->rank[i]);
  return MS_OK;
}

/* Hash of what a rank enters: the kind, the size, and the activity that it is part of, inside the engine or outside. */
static uint64_t sign(const step *s, int bytes) {
  const ms_recorder *recorder = s->group->world->recorder;
  int within = recorder->depth > 1;
  const char *part_of = ms_recorder_text(recorder, atomic_load(within ? &recorder->activity : &recorder->doing));
  return ms_hash_int(ms_hash_string(MS_HASH_INIT, part_of),
                     (int64_t)s->operation << 33 | (int64_t)within << 32 | bytes);
}

static void describe_entered(const step *s, int place, char *text, size_t bytes) {
  const ms_world *world = s->group->world;
  uint32_t number = ms_group_number(world->control, s->group->entry);
  world->diagnosis->entered(world->control, s->group->rank[place], number, s->target, text, bytes);
}

/* Why ranks enter different operations: some have left the loop earlier than the others, or one made a call that
 * another did not. */
static void describe_cause(const step *s, char *text, size_t bytes) {
  char entered[160], who[512];
  ms_rank_set ended = {{0}}, others = {{0}};
  for (int i = 0; i < s->group->size; i++) {
    describe_entered(s, i, entered, sizeof entered);
    ms_rank_set_add(strstr(entered, END_OF_RUN) ? &ended : &others, s->group->rank[i]);
  }
  snprintf(text, bytes,
           "; all ranks must make the same calls with the same options, in the same order: is one under an if?");
  if (ms_rank_set_is_empty(&ended) || ms_rank_set_is_empty(&others)) return;
  int many = ms_rank_set_count(&ended) > ms_rank_set_count(&others);
  ms_rank_set_text(many ? &others : &ended, who, sizeof who);
  snprintf(text, bytes, "; %s %s", who, many ? "continued after the others had left the loop" : "left the loop early");
}

/* Once all have entered (or left, at the end): checks that all entered the same. */
static int compare_signatures(const step *s, uint64_t mine) {
  char ours[160], theirs[160], cause[640], noted[MS_CONTROL_TEXT];
  const ms_group *group = s->group;
  for (int i = 0; i < group->size; i++) {
    if (!has_come(s, i)) continue;
    const ms_group_ticket *ticket = &group->entry->ticket[i];
    if (atomic_load_explicit(&ticket->signature[s->target & 1], memory_order_relaxed) == mine) continue;
    describe_entered(s, group->me, ours, sizeof ours);
    describe_entered(s, i, theirs, sizeof theirs);
    describe_cause(s, cause, sizeof cause);
    group->world->diagnosis->noted(group->world->control, noted, sizeof noted);
    return MS_FAIL(MS_EMISMATCH, "%s%sranks disagree: rank %d entered %s, but rank %d entered %s%s", noted,
                   *noted ? "; now " : "", group->rank[group->me], ours, group->rank[i], theirs, cause);
  }
  return MS_OK;
}

/* ---- one step ---- */

static step next_step(ms_group *group, enum operation operation) {
  const ms_group_ticket *mine = &group->entry->ticket[group->me];
  uint64_t count = atomic_load_explicit(&mine->count, memory_order_relaxed);
  return (step){.group = group, .operation = operation, .target = count + 1};
}

/* Publishes that this rank enters the step, and waits until all have. bytes: of this rank's slot. */
static int take_step(step *s, int bytes) {
  ms_group *group = s->group;
  ms_world *world = group->world;
  ms_recorder *recorder = world->recorder;
  ms_group_ticket *mine = &group->entry->ticket[group->me];
  const char *name = s->operation == GATHER ? "all_gather_bytes" : "barrier";
  int label = s->operation == END ? ms_recorder_number(recorder, END_OF_RUN)
              : group->label      ? ms_recorder_number(recorder, group->label)
                                  : (int)recorder->doing;
  ms_recorder_enter(recorder, ms_recorder_number(recorder, name));
  ms_recorder_entered(recorder, group->ring, s->target,
                      s->operation == GATHER ? MS_RECORDER_ALL_GATHER_BYTES : MS_COLL_BARRIER, label, bytes);
  ms_recorder_target(group->ring, s->target);
  uint64_t signature = sign(s, bytes);
  atomic_store_explicit(&mine->signature[s->target & 1], signature, memory_order_relaxed);
  atomic_store_explicit(&mine->count, s->target, memory_order_release);
  ms_world_ring(world, group->rank, group->size);
  const char *slot =
      s->operation == GATHER ? ms_group_slot(world->control, group->entry, (int)(s->target & 1), group->me) : NULL;
  if (group->spans) world->mirror->ticket(world, group->entry, group->me, group->ring, slot, bytes);
  ms_wait_for others = {.kind = name,
                        .label = group->label,
                        .ring = group->ring,
                        .find = find_missing,
                        .context = s,
                        .recovers = group->outlasts};
  int rc = ms_world_wait(world, &others);
  if (!rc) rc = compare_signatures(s, signature);
  if (!rc) {
    ms_recorder_met(group->ring);
    ms_recorder_left(group->ring);
  }
  ms_recorder_leave(recorder, rc);
  return rc;
}

int ms_group_barrier(ms_group *group) {
  if (!group->entry) return ms_world_check(group->world);
  step s = next_step(group, BARRIER);
  return take_step(&s, 0);
}

/* The barrier at the end of the program: ranks that have left count as present. */
static int finish_group(ms_group *group) {
  if (!group->entry) return ms_world_check(group->world);
  step s = next_step(group, END);
  return take_step(&s, 0);
}

int ms_group_all_gather_bytes(ms_group *group, const void *mine, int bytes, void *all) {
  if (bytes < 0 || bytes > MS_GROUP_SLOT)
    return MS_FAIL(MS_EINVAL, "all_gather_bytes: %d bytes per rank, but at most %d fit", bytes, MS_GROUP_SLOT);
  if (!group->entry) {
    memcpy(all, mine, (size_t)bytes);
    return ms_world_check(group->world);
  }
  step s = next_step(group, GATHER);
  const ms_control *control = group->world->control;
  const int turn = (int)(s.target & 1);
  memcpy(ms_group_slot(control, group->entry, turn, group->me), mine, (size_t)bytes);
  MS_TRY(take_step(&s, bytes));
  for (int i = 0; i < group->size; i++)
    memcpy((char *)all + (size_t)i * (size_t)bytes, ms_group_slot(control, group->entry, turn, i), (size_t)bytes);
  return MS_OK;
}

/* One round of ms_group_all_gather_text: bytes [first, first + MS_GROUP_SLOT) of every member's text. */
static int gather_piece(ms_group *group, const char *mine, const int *length, int first, char *pieces, char **texts) {
  char piece[MS_GROUP_SLOT] = {0};
  int rest = length[group->me] - first;
  if (rest > 0) memcpy(piece, mine + first, (size_t)(rest < MS_GROUP_SLOT ? rest : MS_GROUP_SLOT));
  MS_TRY(ms_group_all_gather_bytes(group, piece, MS_GROUP_SLOT, pieces));
  for (int i = 0; i < group->size; i++) {
    rest = length[i] - first;
    if (rest <= 0) continue;
    memcpy(texts[i] + first, pieces + (size_t)i * MS_GROUP_SLOT, (size_t)(rest < MS_GROUP_SLOT ? rest : MS_GROUP_SLOT));
  }
  return MS_OK;
}

void ms_group_free_texts(const ms_group *group, char **texts) {
  for (int i = 0; texts && i < group->size; i++) free(texts[i]);
  free(texts);
}

int ms_group_all_gather_text(ms_group *group, const char *mine, char ***gathered) {
  enum { LONGEST = 1 << 20 };
  int rc = MS_OK, longest = 0;
  size_t bytes = strlen(mine);
  char *pieces = ms_calloc(group->size, MS_GROUP_SLOT), **texts = ms_calloc(group->size, sizeof *texts);
  int *length = ms_calloc(group->size, sizeof *length);
  if (!pieces || !texts || !length) MS_GOTO(MS_ENOMEM);
  if (bytes > LONGEST)
    MS_GOTO(MS_FAIL(MS_EINVAL, "all_gather_text: the text has %zu bytes, but at most %d fit", bytes, LONGEST));
  int mine_bytes = (int)bytes;
  MS_GOTO(ms_group_all_gather_bytes(group, &mine_bytes, sizeof mine_bytes, length));
  for (int i = 0; i < group->size; i++) {
    if (length[i] > longest) longest = length[i];
    texts[i] = ms_calloc(length[i] + 1, 1);
    if (!texts[i]) MS_GOTO(MS_ENOMEM);
  }
  for (int first = 0; first < longest; first += MS_GROUP_SLOT)
    MS_GOTO(gather_piece(group, mine, length, first, pieces, texts));
  *gathered = texts;
  texts = NULL;
fail:
  ms_group_free_texts(group, texts);
  free(length);
  free(pieces);
  return rc;
}

/* ---- operations of the world ---- */

int ms_world_barrier(ms_world *world) {
  MS_HANDLE(world, WORLD);
  return ms_group_barrier(&world->everyone);
}

int ms_world_finish(ms_world *world) {
  MS_HANDLE(world, WORLD);
  return finish_group(&world->everyone);
}

int ms_world_all_gather_bytes(ms_world *world, const void *mine, int bytes, void *all) {
  MS_HANDLE(world, WORLD);
  MS_GIVEN(mine);
  MS_GIVEN(all);
  return ms_group_all_gather_bytes(&world->everyone, mine, bytes, all);
}
