/* inline.c - simulates a rank of the CPU, whose one thread runs kernels and collectives in turn, as exec/run/inline.c
 * does.
 *
 * After each kernel the thread looks at the heads of the other streams. A collective whose waits are over begins: the
 * thread copies or sums its part, and then, if the ranks are on several nodes, the bytes move while the thread computes
 * on. Bytes of several collectives move one after another, since they share the node's link. The thread sleeps only
 * while compute waits for a collective.
 *
 * Moving bytes between nodes takes processor time: that of copies into and out of the kernel, of the network's protocol
 * and of sums. Other threads of the node spend it, on idle cores if there are any. Where all cores compute, whatever
 * the rank's thread runs while bytes move is slower by the part of its core that they take (ms_cost.taken); while the
 * thread sleeps they cost it nothing.
 */
#include <math.h>
#include <stdlib.h>

#include "price/price.h"

typedef struct stream {
  int at, ahead;       /* the first instruction that is not done, and that has not begun; phase->n: none is left */
  int begun, finished; /* the latest kernel or collective that began, and that is done; -1: none */
  int because;         /* the instruction that the latest wait was for; -1: none since the latest one began */
} stream;

/* Bytes that move on the node's link, from `begin` to `end`. */
typedef struct transfer {
  double begin, end, taken;
} transfer;

typedef struct thread {
  const ms_model *model;
  const ms_plan_phase *phase;
  const ms_cost *cost;
  stream *stream; /* [streams] */
  int streams;
  char *recorded;        /* [events] */
  int *recorder;         /* [events] the instruction that was done when the event was recorded */
  double now, link_free; /* link_free: when the link has moved all that was given to it */
  transfer *transfer;    /* [transfers] one after another; those below `passed` have ended */
  int transfers, transfer_capacity, passed;
  ms_simulated *out;
  const ms_simulated *carried;
} thread;

static int after(const thread *t, int stream, int i) {
  while (i < t->phase->n && t->phase->instr[i].stream != stream) i++;
  return i;
}

static int is_collective(const ms_instr *instr) {
  return instr->kind == MS_INSTR_COLLECTIVE || instr->kind == MS_INSTR_JOIN;
}

static int cause_of(const stream *s) { return s->because >= 0 ? s->because : s->begun; }

static void note_begin(stream *s, int i) {
  s->begun = i;
  s->because = -1;
}

/* ---- time ------------------------------------------------------------------------------------------------------- */

/* Gives bytes to the link, which moves them after those before; *end: when they have arrived. */
static int give_to_link(thread *t, double seconds, double taken, double *end) {
  MS_TRY(ms_grow((void **)&t->transfer, &t->transfer_capacity, t->transfers + 1, sizeof *t->transfer));
  const double begin = fmax(t->now, t->link_free);
  *end = t->link_free = begin + seconds;
  t->transfer[t->transfers++] = (transfer){begin, *end, taken};
  return MS_OK;
}

/* The thread works for so many seconds of a core; what moves meanwhile takes a part of its core. */
static void work(thread *t, double seconds) {
  for (; t->passed < t->transfers; t->passed++) {
    const transfer *moves = &t->transfer[t->passed];
    const double alone = fmin(seconds, fmax(0, moves->begin - t->now)), rate = 1 - moves->taken;
    t->now += alone;
    seconds -= alone;
    if (t->now >= moves->end) continue;
    if (t->now + seconds / rate <= moves->end) {
      t->now += seconds / rate;
      return;
    }
    seconds -= (moves->end - t->now) * rate;
    t->now = moves->end;
  }
  t->now += seconds;
}

/* ---- collectives ------------------------------------------------------------------------------------------------ */

static double end_of_joined(const thread *t, const ms_plan_coll *coll) {
  for (int k = 0; t->carried && k < t->carried->n_outlasting; k++)
    if (t->carried->outlasting[k].coll == coll) return t->carried->outlasting[k].end;
  return 0;
}

static void charge(thread *t, int i, double seconds) {
  const int dim = t->model->dim[t->phase->instr[i].coll->dim].mesh_dim;
  t->out->moment[i].waited += seconds;
  if (dim >= 0) t->out->waiting[dim] += seconds;
}

/* The thread does its part of a collective, and gives the rest to the link. */
static int begin(thread *t, stream *s, int i) {
  const ms_instr *instr = &t->phase->instr[i];
  ms_moment *moment = &t->out->moment[i];
  *moment = (ms_moment){.issued = t->now, .begin = t->now, .cause = cause_of(s)};
  note_begin(s, i);
  if (instr->kind == MS_INSTR_JOIN) {
    moment->end = fmax(t->now, end_of_joined(t, instr->coll));
    return MS_OK;
  }
  work(t, t->cost[i].work);
  charge(t, i, t->now - moment->begin);
  moment->end = t->now;
  if (t->cost[i].transfer > 0) MS_TRY(give_to_link(t, t->cost[i].transfer, t->cost[i].taken, &moment->end));
  if (!instr->coll->in_flight) return MS_OK;
  ms_simulated *out = t->out;
  MS_TRY(ms_grow((void **)&out->outlasting, &out->outlasting_capacity, out->n_outlasting + 1, sizeof *out->outlasting));
  out->outlasting[out->n_outlasting++] = (ms_outlasting){instr->coll, moment->end, t->cost[i].taken};
  return MS_OK;
}

/* Inside a node a collective begins when the one before it is done; between nodes the link always has the next one. */
static int begin_ahead(thread *t, int number, int *moved) {
  stream *s = &t->stream[number];
  for (; s->ahead < t->phase->n; s->ahead = after(t, number, s->ahead + 1), *moved = 1) {
    const ms_instr *instr = &t->phase->instr[s->ahead];
    if (instr->kind == MS_INSTR_WAIT) {
      if (!t->recorded[instr->event]) return MS_OK;
      s->because = t->recorder[instr->event];
    } else if (is_collective(instr)) {
      if (s->ahead != s->at && !t->cost[s->ahead].between) return MS_OK;
      MS_TRY(begin(t, s, s->ahead));
    }
  }
  return MS_OK;
}

static int poll(thread *t, int number, int *moved) {
  stream *s = &t->stream[number];
  for (;;) {
    MS_TRY(begin_ahead(t, number, moved));
    if (s->at == s->ahead) return MS_OK;
    const ms_instr *instr = &t->phase->instr[s->at];
    const int leaves = instr->kind == MS_INSTR_COLLECTIVE && instr->coll->in_flight;
    if (is_collective(instr) && !leaves && t->out->moment[s->at].end > t->now) return MS_OK;
    if (is_collective(instr)) s->finished = s->at;
    if (instr->kind == MS_INSTR_RECORD) {
      t->recorded[instr->event] = 1;
      t->recorder[instr->event] = s->finished;
    }
    s->at = after(t, number, s->at + 1);
    *moved = 1;
  }
}

/* ---- kernels ---------------------------------------------------------------------------------------------------- */

/* Runs compute's instructions up to the end of its next kernel, or to a wait that is not over. */
static void compute(thread *t, int *moved) {
  stream *s = &t->stream[MS_STREAM_COMPUTE];
  for (int ran = 0; s->at < t->phase->n && !ran; *moved = 1) {
    const ms_instr *instr = &t->phase->instr[s->at];
    if (instr->kind == MS_INSTR_WAIT) {
      if (!t->recorded[instr->event]) return;
      s->because = t->recorder[instr->event];
    } else if (instr->kind == MS_INSTR_RECORD) {
      t->recorded[instr->event] = 1;
      t->recorder[instr->event] = s->finished;
    } else {
      const double begin = t->now;
      work(t, t->cost[s->at].work);
      t->out->moment[s->at] = (ms_moment){.issued = begin, .begin = begin, .end = t->now, .cause = cause_of(s)};
      note_begin(s, s->at);
      s->finished = s->at;
      ran = 1;
    }
    s->at = after(t, MS_STREAM_COMPUTE, s->at + 1);
  }
}

/* Sleeps until the first of the collectives that are moving has ended. */
static int sleep_until_moved(thread *t) {
  int first = -1;
  for (int s = MS_STREAM_COMPUTE + 1; s < t->streams; s++) {
    const int at = t->stream[s].at;
    if (at != t->stream[s].ahead && (first < 0 || t->out->moment[at].end < t->out->moment[first].end)) first = at;
  }
  if (first < 0) return MS_FAIL(MS_EINTERNAL, "the plan's streams wait for each other");
  charge(t, first, t->out->moment[first].end - t->now);
  t->now = t->out->moment[first].end;
  return MS_OK;
}

/* ---- a phase ---------------------------------------------------------------------------------------------------- */

static int is_done(const thread *t) {
  for (int s = 0; s < t->streams; s++)
    if (t->stream[s].at < t->phase->n) return 0;
  return 1;
}

static int open_thread(const ms_plan *plan, thread *t) {
  t->streams = plan->streams;
  t->stream = ms_calloc(t->streams, sizeof *t->stream);
  t->recorded = ms_calloc(t->phase->events, 1);
  t->recorder = ms_calloc(t->phase->events, sizeof *t->recorder);
  t->out->moment = ms_calloc(t->phase->n, sizeof *t->out->moment);
  if (!t->stream || !t->recorded || !t->recorder || !t->out->moment) return MS_ENOMEM;
  for (int s = 0; s < t->streams; s++) {
    const int first = after(t, s, 0);
    t->stream[s] = (stream){first, first, -1, -1, -1};
  }
  return MS_OK;
}

/* What the phase before left in flight is on the link first. */
static int take_over(thread *t) {
  double end;
  for (int k = 0; t->carried && k < t->carried->n_outlasting; k++) {
    const ms_outlasting *left = &t->carried->outlasting[k];
    if (left->end > t->link_free) MS_TRY(give_to_link(t, left->end - t->link_free, left->taken, &end));
  }
  return MS_OK;
}

static int run(thread *t) {
  while (!is_done(t)) {
    int moved = 0;
    for (int s = MS_STREAM_COMPUTE + 1; s < t->streams; s++) MS_TRY(poll(t, s, &moved));
    compute(t, &moved);
    if (!moved) MS_TRY(sleep_until_moved(t));
  }
  return MS_OK;
}

int ms_simulate_inline(const ms_plan *plan, int phase, const ms_cost *cost, const ms_simulated *before,
                       ms_simulated *out) {
  thread t = {.model = plan->model, .phase = &plan->phase[phase], .cost = cost, .out = out, .carried = before};
  int rc;
  MS_GOTO(open_thread(plan, &t));
  MS_GOTO(take_over(&t));
  MS_GOTO(run(&t));
  out->end = t.now;
  for (int i = 0; i < out->n_outlasting; i++) out->outlasting[i].end = fmax(0, out->outlasting[i].end - t.now);
fail:
  free(t.stream);
  free(t.transfer);
  free(t.recorded);
  free(t.recorder);
  return rc;
}
