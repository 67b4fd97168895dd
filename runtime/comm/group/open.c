/* open.c - opens a process group. Each rank first announces the ranks of its group where all can read it without
 * waiting, and reads the announcements of these ranks. Without this, a rank could wait forever for ranks that do not
 * wait for it; now a difference is an immediate error.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text/text.h"
#include "comm/group/group.h"
#include "comm/group/wait.h"
#include "comm/group/world_state.h"

int ms_group_enter(ms_world *world, int n, const int *ranks, int channel, ms_group_entry **entry,
                   ms_recorder_ring **ring) {
  ms_control *control = ms_world_control(world);
  for (;;) {
    unsigned seen = ms_world_doorbell(world);
    MS_TRY(ms_group_entry_find(control, n, ranks, channel, entry));
    if (*entry) break;
    MS_TRY(ms_world_check(world));
    ms_world_sleep(world, seen, 1e-4);
  }
  *ring = ms_recorder_ring_of(ms_world_recorder(world), ms_group_number(control, *entry));
  if (*ring && world->mirror && ms_world_spans(world, n, ranks)) world->mirror->group(world, *entry);
  if (*ring) return MS_OK;
  return MS_FAIL(MS_ENOMEM, "this rank already has %d communicators, the most that fit: open fewer meshes or slices",
                 MS_RECORDER_RINGS - 1);
}

static int take_place(ms_group *group, const int *ranks) {
  group->me = -1;
  group->rank = ms_calloc(group->size, sizeof *group->rank);
  if (!group->rank) return MS_ENOMEM;
  for (int i = 0; i < group->size; i++) {
    group->rank[i] = ranks ? ranks[i] : i;
    if (group->rank[i] < 0 || group->rank[i] >= ms_world_size(group->world))
      return MS_FAIL(MS_EINVAL, "a process group with rank %d in a world of %d", group->rank[i],
                     ms_world_size(group->world));
    if (group->rank[i] == ms_world_rank(group->world)) group->me = i;
  }
  group->spans = ms_world_spans(group->world, group->size, group->rank);
  if (group->me >= 0) return MS_OK;
  return MS_FAIL(MS_EINVAL, "a process group without this rank: rank %d is not among the %d ranks",
                 ms_world_rank(group->world), group->size);
}

/* ---- announcements ---- */

/* What a rank checks while the others announce. */
typedef struct announced {
  const ms_group *group;
  uint32_t number; /* number of this opening */
  const char *text;
  ms_rank_set compared;
} announced;

/* "2x2 (replicate, shard), ranks 0, 1, 2, 3" */
static int describe(const ms_group *group, const char *label, ms_text *text) {
  ms_text_append(text, "%s, rank%s", label, group->size == 1 ? "" : "s");
  for (int i = 0; i < group->size; i++) ms_text_append(text, "%s %d", i ? "," : "", group->rank[i]);
  MS_TRY(ms_text_status(text));
  if (text->length >= MS_GROUP_ANNOUNCEMENT) text->data[MS_GROUP_ANNOUNCEMENT - 1] = '\0';
  return MS_OK;
}

static ms_group_announcement *announcement_of(const ms_world *world, int rank) {
  return ms_group_announcement_of(ms_world_control(world), rank);
}

static uint32_t announce(ms_world *world, const char *text) {
  ms_group_announcement *mine = announcement_of(world, ms_world_rank(world));
  uint32_t number = atomic_load(&mine->number) + 1;
  /* Ranks that formed a group with this one before have read the text that is overwritten here; other ranks can only
   * detect that it changed. */
  strcpy(mine->text, text);
  atomic_store(&mine->number, number);
  for (int rank = 0; rank < ms_world_size(world); rank++)
    if (rank != ms_world_rank(world)) ms_control_ring(ms_world_control(world), rank);
  if (world->mirror) world->mirror->announce(world);
  return number;
}

static int report(int a, const char *text_a, int b, const char *text_b) {
  if (a > b) return report(b, text_b, a, text_a);
  return MS_FAIL(MS_EMISMATCH, "ranks have different meshes: rank %d has \"%s\", rank %d has \"%s\"", a, text_a, b,
                 text_b);
}

/* Compares announcement `number` of a rank that has published it. */
static int compare(const ms_world *world, int rank, uint32_t number, const char *mine) {
  const ms_group_announcement *theirs = announcement_of(world, rank);
  char text[MS_GROUP_ANNOUNCEMENT];
  memcpy(text, theirs->text, sizeof text);
  text[sizeof text - 1] = '\0';
  if (atomic_load(&theirs->number) != number)
    return report(ms_world_rank(world), mine, rank, "a later one: it has already continued");
  return strcmp(mine, text) ? report(ms_world_rank(world), mine, rank, text) : MS_OK;
}

static int find_unannounced(void *context, ms_rank_set *missing) {
  announced *a = context;
  const ms_world *world = a->group->world;
  *missing = (ms_rank_set){{0}};
  for (int i = 0; i < a->group->size; i++) {
    int rank = a->group->rank[i];
    if (atomic_load(&announcement_of(world, rank)->number) < a->number) ms_rank_set_add(missing, rank);
    else if (!ms_rank_set_has(&a->compared, rank)) {
      MS_TRY(compare(world, rank, a->number, a->text));
      ms_rank_set_add(&a->compared, rank);
    }
  }
  return MS_OK;
}

static int find_each_other(ms_group *group, const char *label) {
  ms_world *world = group->world;
  ms_recorder *recorder = ms_world_recorder(world);
  ms_recorder_ring *ring = ms_recorder_ring_of(recorder, MS_RECORDER_OPENING);
  ms_text text = {0};
  int rc = describe(group, label, &text);
  announced a = {.group = group, .number = rc ? 0 : announce(world, text.data), .text = text.data};
  ms_rank_set_add(&a.compared, ms_world_rank(world));
  ms_recorder_entered(recorder, ring, a.number, MS_RECORDER_MESH, ms_recorder_number(recorder, label), 0);
  ms_recorder_target(ring, a.number);
  ms_wait_for others = {.kind = "mesh", .label = label, .ring = ring, .find = find_unannounced, .context = &a};
  if (!rc) rc = ms_world_wait(world, &others);
  if (!rc) ms_recorder_left(ring);
  ms_text_free(&text);
  return rc;
}

/* ---- opening ---- */

static int is_the_world(const ms_group *group) {
  for (int i = 0; i < group->size; i++)
    if (group->rank[i] != i) return 0;
  return group->size == ms_world_size(group->world);
}

int ms_group_open(ms_world *world, int n, const int *ranks, const char *label, ms_group *group) {
  if (n < 1 || n > ms_world_size(world))
    return MS_FAIL(MS_EINVAL, "a process group of %d ranks in a world of %d", n, ms_world_size(world));
  *group = (ms_group){.world = world, .size = n};
  int rc = take_place(group, ranks);
  if (rc) goto fail;
  if (!is_the_world(group)) group->label = label;
  if (ms_world_control(world)) MS_GOTO(find_each_other(group, label));
  if (n > 1) MS_GOTO(ms_group_enter(world, n, group->rank, MS_GROUP_CHANNEL, &group->entry, &group->ring));
  /* No rank publishes its next announcement before all have read this one. */
  MS_GOTO(ms_group_barrier(group));
  return MS_OK;
fail:
  ms_group_close(group);
  return rc;
}

int ms_group_open_world(ms_world *world, ms_group *group) {
  *group = (ms_group){.world = world, .size = ms_world_size(world)};
  int rc = take_place(group, NULL);
  if (!rc && group->size > 1)
    rc = ms_group_enter(world, group->size, group->rank, MS_GROUP_CHANNEL, &group->entry, &group->ring);
  if (rc) ms_group_close(group);
  return rc;
}

void ms_group_close(ms_group *group) {
  free(group->rank);
  group->rank = NULL;
  group->entry = NULL;
}
