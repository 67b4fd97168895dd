/* verify_peers.c - proves that ranks which share memory meet between the writes of one and the reads of another.
 *
 * A rank's plan shows only its own accesses. Other ranks of the memory run at their own pace: after this rank's phase
 * they read what it wrote, before its writes they may still read what was there. Only a collective in which all of them
 * take part (a meeting) orders them, since a rank enters it when its own earlier accesses are done. From one rank's
 * streams, events and byte ranges this file proves:
 *
 *   after    a write to memory that replicas have together is followed by a meeting of them in the same phase
 *   before   such a write, or one to masters that the shards have together, comes after a meeting of those ranks, in
 *            the same phase or in NORM, after all reads of forward and backward
 *   reading  in a phase that can follow an update, masters of other shards are read after a meeting of the shards,
 *            unless they are resident: these meet in GATHER, and no update writes them
 *   handed   a kernel writes to what ranks gather together only where the latest access was a meeting, which handed
 *            the bytes over
 *
 * Replicas of a node share a copy of the state in blocks of neighbours; chunks of sliced units are shared by all
 * replicas of the node. These are in different blocks, and meet through two collectives: among the ranks at the same
 * place of each block, then in the block.
 */
#include <stdlib.h>

#include "plan/lower/lower.h"
#include "plan/layout/state_layout.h"

typedef struct peers {
  const ms_plan *plan;
  const ms_plan_phase *phase;
  int phase_id;
  const int *clock;  /* [instr][streams] */
  int *place;        /* [instr] position on its stream, from 1 */
  ms_access *access; /* of all instructions, in program order */
  int *first;        /* [instr + 1] index of the instruction's first access */
  int *after;        /* [streams] instructions that a meeting of the block of replicas is known to be after */
  int *chunks;       /* [streams] ... of all replicas of this node */
} peers;

/* ---- meetings ---------------------------------------------------------------------------------------------------- */

enum { SHARDS, BLOCK, COPIES, ALL_REPLICAS };

/* 1 when a collective is a meeting of the shards, of this rank's block of replicas, of the ranks at its place of every
 * block, or of all replicas. */
static int meets(const ms_plan *plan, const ms_plan_coll *coll, int who) {
  const int size = plan->model->dim[coll->dim].size, neighbours = coll->stride == 1 ? coll->ranks : 1;
  if (who == SHARDS) return coll->dim == MS_DIM_SHARD && neighbours == size;
  if (who == BLOCK && coll->replicas >= plan->layout->replicas) return 1;
  if (coll->dim != MS_DIM_REPLICATE) return 0;
  if (who == BLOCK) return neighbours >= plan->layout->replicas;
  return neighbours == size ||
         (who == COPIES && coll->stride == plan->layout->replicas && coll->ranks == size / coll->stride);
}

static const ms_plan_coll *meeting(const peers *v, int i, int who) {
  const ms_instr *instr = &v->phase->instr[i];
  const int moves = instr->kind == MS_INSTR_COLLECTIVE || instr->kind == MS_INSTR_JOIN;
  return moves && meets(v->plan, instr->coll, who) ? instr->coll : NULL;
}

static const int *clock_of(const peers *v, int i) { return &v->clock[i * v->plan->streams]; }

/* Extends `done` to what is done when a meeting ends: also what it writes itself. */
static void extend(const peers *v, int i, int *done) {
  for (int s = 0; s < v->plan->streams; s++)
    if (clock_of(v, i)[s] > done[s]) done[s] = clock_of(v, i)[s];
  if (v->place[i] > done[v->phase->instr[i].stream]) done[v->phase->instr[i].stream] = v->place[i];
}

/* Chunks: after a meeting of the copies, which is after them, and with several replicas a copy one of the block
 * after that. */
static void find_meetings(const peers *v) {
  for (int b = 0; b < v->phase->n; b++) {
    if (meeting(v, b, BLOCK)) extend(v, b, v->after);
    if (!meeting(v, b, v->plan->layout->replicas > 1 ? BLOCK : ALL_REPLICAS)) continue;
    if (meeting(v, b, ALL_REPLICAS)) extend(v, b, v->chunks);
    for (int c = 0; c < b && v->plan->layout->sliced; c++)
      if (meeting(v, c, COPIES) && v->place[c] <= clock_of(v, b)[v->phase->instr[c].stream]) extend(v, c, v->chunks);
  }
}

/* 1 when an instruction starts after a meeting in its phase. */
static int is_behind_meeting(const peers *v, int i, int who) {
  for (int m = 0; m < i; m++)
    if (meeting(v, m, who) && v->place[m] <= clock_of(v, i)[v->phase->instr[m].stream]) return 1;
  return 0;
}

/* 1 when the ranks meet in NORM, which every phase that changes the state follows. */
static int meet_before(const peers *v, int who) {
  const ms_plan_phase *norm = &v->plan->phase[MS_PHASE_NORM];
  const int follows = v->phase_id == MS_PHASE_UPDATE || v->phase_id == MS_PHASE_OUTER;
  for (int i = 0; follows && i < norm->n; i++)
    if (norm->instr[i].kind == MS_INSTR_COLLECTIVE && meets(v->plan, norm->instr[i].coll, who)) return 1;
  return 0;
}

/* ---- which ranks have an arena's bytes together ------------------------------------------------------------------ */

static int shards_share(const ms_plan *plan, int arena) {
  return arena == MS_ARENA_MASTERS && plan->model->dim[MS_DIM_SHARD].size > 1;
}

static int replicas_share(const ms_plan *plan, int arena) {
  if (arena == MS_ARENA_CHUNKS) return plan->layout->replicas > 1 || plan->layout->replicas_here > 1;
  return plan->layout->replicas > 1 && (arena == MS_ARENA_MASTERS || arena == MS_ARENA_REPLICATED);
}

/* 1 when ranks gather into a buffer that they have together. */
static int is_gathered_together(const ms_plan *plan, const ms_buffer *b) {
  if (b->arena == MS_ARENA_GATHERED || b->arena == MS_ARENA_RESIDENT) return plan->model->dim[MS_DIM_SHARD].size > 1;
  return b->arena == MS_ARENA_GROUPED && b->ranks > 1;
}

/* The bytes of a unit's masters that this rank's shard owns are, segment by segment, [begin, end) of their buffer. */
static int is_own(const ms_plan *plan, const ms_access *a) {
  const int unit = a->buffer / MS_SLOTS;
  const ms_unit *u = &plan->model->unit[unit];
  const int64_t start = plan->buffer[a->buffer].offset;
  for (int s = 0; s < u->segments; s++) {
    const ms_segment *seg = &u->segment[s];
    const int64_t begin = start + ms_master_offset(plan->model, u, plan->layout->replicas, 1, s, seg->local);
    if (a->begin >= begin && a->end <= begin + 4 * seg->chunk) return 1;
  }
  return 0;
}

/* 1 for masters that are resident: no step writes them, and GATHER is a meeting after whatever else did. */
static int is_resident(const ms_plan *plan, const ms_access *a) {
  const int unit = a->buffer / MS_SLOTS;
  const ms_unit *u = &plan->model->unit[unit];
  return plan->resident[unit].buffer == a->buffer &&
         a->begin >= plan->buffer[a->buffer].offset + ms_unit_resident_from(plan->model, u);
}

/* ---- the proofs -------------------------------------------------------------------------------------------------- */

static int fail(const peers *v, int i, const ms_access *a, const char *does, const char *lacks) {
  char text[MS_INSTR_TEXT];
  return MS_FAIL(MS_ERACE, "phase %s: instruction %d (%s) %s bytes [%lld, %lld) of arena %s, which %s",
                 ms_phase_name(v->phase_id), i, ms_instr_describe(&v->phase->instr[i], text), does, (long long)a->begin,
                 (long long)a->end, ms_arena_name(a->arena), lacks);
}

/* A barrier, and a gather of masters, which are in place, write nothing. */
static int moves_nothing(const ms_instr *instr, const ms_access *a) {
  return instr->kind != MS_INSTR_KERNEL && (instr->coll->kind == MS_COLL_BARRIER || a->arena == MS_ARENA_MASTERS);
}

static int check_behind(const peers *v, int i, const ms_access *a) {
  const int *done = a->arena == MS_ARENA_CHUNKS ? v->chunks : v->after;
  if (moves_nothing(&v->phase->instr[i], a)) return MS_OK;
  if (!replicas_share(v->plan, a->arena) || v->place[i] <= done[v->phase->instr[i].stream]) return MS_OK;
  return fail(v, i, a, "writes", "other replicas read after the phase, but nothing makes them wait for it");
}

static int check_before(const peers *v, int i, const ms_access *a) {
  const int kernel = v->phase->instr[i].kind == MS_INSTR_KERNEL;
  const int block = v->plan->layout->replicas > 1 ? BLOCK : ALL_REPLICAS;
  if (kernel && shards_share(v->plan, a->arena) && !meet_before(v, SHARDS) && !is_behind_meeting(v, i, SHARDS))
    return fail(v, i, a, "writes", "other shards may still read: nothing makes it wait for them");
  if (kernel && replicas_share(v->plan, a->arena) && !meet_before(v, block) && !is_behind_meeting(v, i, block))
    return fail(v, i, a, "writes", "other replicas may still read: nothing makes it wait for them");
  return MS_OK;
}

static int check_reading(const peers *v, int i, const ms_access *a) {
  const int follows = v->phase_id == MS_PHASE_FIRST || v->phase_id == MS_PHASE_EVALUATE;
  if (!follows || v->phase->instr[i].kind != MS_INSTR_KERNEL || !shards_share(v->plan, a->arena)) return MS_OK;
  if (is_own(v->plan, a) || is_resident(v->plan, a) || is_behind_meeting(v, i, SHARDS)) return MS_OK;
  return fail(v, i, a, "reads", "other shards write in an update: nothing makes it wait for them");
}

/* The latest access before instruction `i` to any of the bytes; NULL: none. */
static const ms_access *find_latest(const peers *v, int i, const ms_access *a, int *instr) {
  for (*instr = i - 1; *instr >= 0; --*instr)
    for (const ms_access *b = &v->access[v->first[*instr]]; b < &v->access[v->first[*instr + 1]]; b++)
      if (b->arena == a->arena && b->begin < a->end && a->begin < b->end) return b;
  return NULL;
}

static int check_handed(const peers *v, int i, const ms_access *a) {
  const ms_buffer *buffer = &v->plan->buffer[a->buffer];
  if (v->phase->instr[i].kind != MS_INSTR_KERNEL || !is_gathered_together(v->plan, buffer)) return MS_OK;
  int m;
  const ms_access *latest = find_latest(v, i, a, &m);
  const ms_plan_coll *coll = latest && latest->write ? v->phase->instr[m].coll : NULL;
  if (coll && latest->begin <= a->begin && a->end <= latest->end && coll->dim == buffer->dim && coll->stride == 1 &&
      coll->ranks == v->plan->model->dim[coll->dim].size)
    return MS_OK;
  return fail(v, i, a, "writes", "other ranks may still use: no collective has handed them over");
}

static int check_instr(const peers *v, int i) {
  for (const ms_access *a = &v->access[v->first[i]]; a < &v->access[v->first[i + 1]]; a++) {
    if (!a->write) {
      MS_TRY(check_reading(v, i, a));
      continue;
    }
    MS_TRY(check_behind(v, i, a));
    MS_TRY(check_before(v, i, a));
    MS_TRY(check_handed(v, i, a));
  }
  return MS_OK;
}

static void number(const peers *v, int *count) {
  for (int i = 0; i < v->phase->n; i++) v->place[i] = ++count[v->phase->instr[i].stream];
}

static void collect(const peers *v, int most) {
  int n = 0;
  for (int i = 0; i < v->phase->n; i++) {
    v->first[i] = n;
    n += ms_instr_accesses(v->plan, &v->phase->instr[i], &v->access[n], most - n);
  }
  v->first[v->phase->n] = n;
}

int ms_plan_verify_peers(const ms_plan *plan, int phase, const int *clock) {
  peers v = {.plan = plan, .phase = &plan->phase[phase], .phase_id = phase, .clock = clock};
  const int most = ms_phase_access_limit(v.phase);
  if (plan->model->members == 1) return MS_OK;
  int *count = ms_calloc(plan->streams, sizeof *count), rc = MS_ENOMEM;
  v.place = ms_calloc(v.phase->n, sizeof *v.place);
  v.first = ms_calloc(v.phase->n + 1, sizeof *v.first);
  v.access = ms_calloc(most, sizeof *v.access);
  v.after = ms_calloc(plan->streams, sizeof *v.after);
  v.chunks = ms_calloc(plan->streams, sizeof *v.chunks);
  if (!count || !v.place || !v.first || !v.access || !v.after || !v.chunks) goto fail;
  rc = MS_OK;
  number(&v, count);
  collect(&v, most);
  find_meetings(&v);
  for (int i = 0; i < v.phase->n; i++) MS_GOTO(check_instr(&v, i));
fail:
  free(count);
  free(v.place);
  free(v.first);
  free(v.access);
  free(v.after);
  free(v.chunks);
  return rc;
}
