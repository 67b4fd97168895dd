/* profile_write.c - writes a profile as one Chrome trace file (JSON) for ui.perfetto.dev and chrome://tracing: a
 * process per rank, a thread per stream and one for the program itself, arrows where a stream waited for another.
 *
 * Every rank writes a text, and rank 0 the file (profile_combine.c). Times are microseconds since the first event of
 * all ranks. The ranks of a host have the same clock; those of other hosts are related to it when the trace is written
 * (profile_clocks.c), and each process says how exactly.
 *
 * Perfetto identifies threads by tid alone and treats tid 0 as an idle processor, so numbers are unique across ranks:
 * process (rank + 1) * 100, and its threads counted from there. It reads ids of arrows as integers only. It closes
 * slices with equal times in the order of the file, so a thread's slices are written in order of their beginning, and
 * the longest first.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text/text.h"
#include "exec/profile/profile.h"

enum { PROGRAM_LANE = 0, FIRST_STREAM_LANE = 1, PROCESS_STEP = 100 };
_Static_assert(FIRST_STREAM_LANE + MS_NAMED_STREAMS <= PROCESS_STEP,
               "the lanes of a rank reach into the next rank's numbers");

typedef struct writer {
  const ms_profile *profile;
  ms_text text;
  int rank;
  uint64_t base;       /* ns, by this host's clock */
  int64_t clock_error; /* ns, at most; 0 on rank 0's host */
  int arrows;
  const ms_profile_event **record; /* the RECORDs of all streams, by run and event */
  int records;
} writer;

/* ---- pieces ---- */

static double microseconds(const writer *w, uint64_t ns) { return ns > w->base ? 1e-3 * (double)(ns - w->base) : 0; }

static const char *text_of(const writer *w, int number) {
  return ms_recorder_text(w->profile->recorder, (uint32_t)number);
}

/* Writes {"ph":"X","pid":100,"tid":101,"ts":1.5 without an end; the caller adds fields and closes it. */
static void open_event(writer *w, const char *kind, int lane, uint64_t at) {
  int process = (w->rank + 1) * PROCESS_STEP;
  ms_text_append(&w->text, "%s{\"ph\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f", w->text.length ? ",\n" : "", kind,
                 process, process + lane, microseconds(w, at));
}

static void open_slice(writer *w, int lane, uint64_t begin, uint64_t end) {
  open_event(w, "X", lane, begin);
  ms_text_append(&w->text, ",\"dur\":%.3f", microseconds(w, end) - microseconds(w, begin));
}

static void name_lane(writer *w, int lane, const char *name) {
  open_event(w, "M", lane, w->base);
  ms_text_append(&w->text, ",\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}}", name);
  open_event(w, "M", lane, w->base);
  ms_text_append(&w->text, ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%d}}", lane);
}

static void name_lanes(writer *w) {
  const ms_world *world = w->profile->world;
  const int spans = ms_world_nodes(world) > 1;
  open_event(w, "M", PROGRAM_LANE, w->base);
  ms_text_append(&w->text, ",\"name\":\"process_name\",\"args\":{\"name\":\"rank %d%s%s (process %d)\"}}", w->rank,
                 spans ? " on " : "", spans ? ms_world_node_name(world, ms_world_node_of(world, w->rank)) : "",
                 (int)getpid());
  if (w->clock_error) {
    open_event(w, "M", PROGRAM_LANE, w->base);
    ms_text_append(&w->text, ",\"name\":\"process_labels\",\"args\":{\"labels\":\"clock within %.1f us of rank 0's\"}}",
                   1e-3 * (double)w->clock_error);
  }
  open_event(w, "M", PROGRAM_LANE, w->base);
  ms_text_append(&w->text, ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%d}}", w->rank);
  name_lane(w, PROGRAM_LANE, "program");
  for (int s = 0; s < MS_NAMED_STREAMS; s++)
    if (w->profile->stream[s].n) name_lane(w, FIRST_STREAM_LANE + s, ms_stream_name(s));
}

/* ---- what the program did ---- */

static const char *category_of(const char *name) {
  if (!strncmp(name, "phase ", 6)) return "phase";
  if (!strncmp(name, "step ", 5)) return "step";
  return !strcmp(name, "barrier") || !strcmp(name, "all_gather_bytes") ? "sync" : "program";
}

static int by_begin_longest_first(const void *left, const void *right) {
  const ms_profile_span *a = left, *b = right;
  if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
  return a->end != b->end ? (a->end > b->end ? -1 : 1) : 0;
}

static void write_spans(writer *w) {
  if (w->profile->spans > 1)
    qsort(w->profile->span, (size_t)w->profile->spans, sizeof *w->profile->span, by_begin_longest_first);
  for (int i = 0; i < w->profile->spans; i++) {
    const ms_profile_span *span = &w->profile->span[i];
    const char *name = text_of(w, span->name), *label = text_of(w, span->label);
    char whole[2 * MS_RECORDER_TEXT_BYTES + 2];
    snprintf(whole, sizeof whole, "%s%s%s", name, *label ? " " : "", label);
    open_slice(w, PROGRAM_LANE, span->begin, span->end);
    ms_text_append(&w->text, ",\"cat\":\"%s\",\"name\":", category_of(name));
    ms_text_json_string(&w->text, whole);
    ms_text_append(&w->text, ",\"args\":{\"step\":%lld", (long long)span->step);
    if (span->flops > 0) ms_text_append(&w->text, ",\"flops\":%.0f", span->flops);
    if (span->bytes > 0) ms_text_append(&w->text, ",\"bytes\":%.0f", span->bytes);
    ms_text_append(&w->text, "}}");
  }
}

/* ---- what the streams did ---- */

static void write_where(writer *w, const ms_profile_event *event, const char *key) {
  ms_text_append(&w->text, ",\"args\":{\"%s\":", key);
  ms_text_json_string(&w->text, text_of(w, event->label));
  ms_text_append(&w->text, ",\"phase\":\"%s\",\"step\":%lld,\"bytes\":%.0f", ms_phase_name(event->phase),
                 (long long)event->step, event->bytes);
}

static void write_kernel(writer *w, int lane, const ms_profile_event *event) {
  const char *pass = event->phase == MS_PHASE_UPDATE || event->phase == MS_PHASE_OUTER ? "optimizer"
                     : event->backward                                                 ? "backward"
                                                                                       : "forward";
  double seconds = 1e-9 * (double)(event->end - event->begin);
  open_slice(w, lane, event->begin, event->end);
  ms_text_append(&w->text, ",\"cat\":\"kernel,%s\",\"name\":\"%s\"", pass, ms_op_row_of(event->op)->name);
  write_where(w, event, "module");
  if (event->computed.by) ms_text_append(&w->text, ",\"by\":\"%s\"", event->computed.by);
  if (event->computed.because) ms_text_append(&w->text, ",\"because\":\"%s\"", event->computed.because);
  ms_text_append(&w->text, ",\"flops\":%.0f", event->flops);
  if (seconds > 0)
    ms_text_append(&w->text, ",\"tflop_per_s\":%.4g,\"gb_per_s\":%.4g", 1e-12 * event->flops / seconds,
                   1e-9 * event->bytes / seconds);
  ms_text_append(&w->text, "}}");
}

static void write_collective(writer *w, int lane, const ms_profile_event *event) {
  char name[2 * MS_RECORDER_TEXT_BYTES];
  uint64_t met = event->met > event->begin ? event->met : event->begin;
  snprintf(name, sizeof name, "%s %s", ms_coll_name(event->op), text_of(w, event->label));
  open_slice(w, lane, event->begin, event->end);
  ms_text_append(&w->text, ",\"cat\":\"collective,%s\",\"name\":", ms_coll_name(event->op));
  ms_text_json_string(&w->text, name);
  write_where(w, event, "unit");
  ms_text_append(&w->text, ",\"waiting_us\":%.3f,\"sequence\":%llu}}", 1e-3 * (double)(met - event->begin),
                 (unsigned long long)event->sequence);
}

static int is_slice(const ms_profile_event *event) {
  return event->kind == MS_PROFILE_KERNEL || event->kind == MS_PROFILE_COLLECTIVE;
}

static int by_run_and_event(const void *left, const void *right) {
  const ms_profile_event *a = *(const ms_profile_event *const *)left, *b = *(const ms_profile_event *const *)right;
  return a->run != b->run ? a->run - b->run : a->event - b->event;
}

/* Gives each RECORD the times of the slice before it in its stream, and the stream's lane as op. */
static int collect_records(writer *w) {
  int n = 0;
  for (int s = 0; s < MS_NAMED_STREAMS; s++) n += w->profile->stream[s].n;
  w->record = ms_calloc(n, sizeof *w->record);
  if (!w->record) return MS_ENOMEM;
  for (int s = 0; s < MS_NAMED_STREAMS; s++) {
    const ms_profile_event *before = NULL;
    for (int i = 0; i < w->profile->stream[s].n; i++) {
      ms_profile_event *event = &w->profile->stream[s].event[i];
      if (is_slice(event)) before = event;
      if (event->kind != MS_PROFILE_RECORD || !before || before->run != event->run) continue;
      event->begin = before->begin;
      event->end = before->end;
      event->op = FIRST_STREAM_LANE + s;
      w->record[w->records++] = event;
    }
  }
  if (w->records > 1) qsort(w->record, (size_t)w->records, sizeof *w->record, by_run_and_event);
  return MS_OK;
}

/* An arrow from the end of the slice that was waited for to the beginning of the slice that waited. */
static void write_arrow(writer *w, const ms_profile_event *wait, int lane, uint64_t at) {
  const ms_profile_event **found = bsearch(&wait, w->record, (size_t)w->records, sizeof *w->record, by_run_and_event);
  if (!found) return;
  const ms_profile_event *from = *found;
  /* Unique across ranks, and below 2^53, so that every JSON reader keeps it exact. */
  uint64_t id = ((uint64_t)w->rank + 1) << 32 | (uint64_t)w->arrows++;
  open_event(w, "s", from->op, from->end > from->begin ? from->end - 1 : from->end);
  ms_text_append(&w->text, ",\"cat\":\"order\",\"name\":\"waited for\",\"id\":%llu}", (unsigned long long)id);
  open_event(w, "f", lane, at);
  ms_text_append(&w->text, ",\"bp\":\"e\",\"cat\":\"order\",\"name\":\"waited for\",\"id\":%llu}",
                 (unsigned long long)id);
}

static void write_stream(writer *w, int s) {
  const ms_profile_list *list = &w->profile->stream[s];
  int lane = FIRST_STREAM_LANE + s, first_wait = 0;
  for (int i = 0; i < list->n; i++) {
    const ms_profile_event *event = &list->event[i];
    if (!is_slice(event)) continue;
    if (event->kind == MS_PROFILE_KERNEL) write_kernel(w, lane, event);
    else write_collective(w, lane, event);
    for (int k = first_wait; k < i; k++)
      if (list->event[k].kind == MS_PROFILE_WAIT && list->event[k].run == event->run)
        write_arrow(w, &list->event[k], lane, event->begin);
    first_wait = i + 1;
  }
}

/* ---- all ranks ---- */

static uint64_t first_moment(const ms_profile *profile) {
  uint64_t first = UINT64_MAX;
  for (int i = 0; i < profile->spans; i++)
    if (profile->span[i].begin < first) first = profile->span[i].begin;
  for (int s = 0; s < MS_NAMED_STREAMS; s++)
    for (int i = 0; i < profile->stream[s].n; i++)
      if (is_slice(&profile->stream[s].event[i]) && profile->stream[s].event[i].begin < first)
        first = profile->stream[s].event[i].begin;
  return first;
}

static int agree_on_base(writer *w) {
  const int ranks = ms_world_size(w->profile->world);
  int64_t ahead;
  MS_TRY(ms_profile_align(w->profile->world, &ahead, &w->clock_error));
  uint64_t first = first_moment(w->profile), mine = first == UINT64_MAX ? first : first - (uint64_t)ahead;
  uint64_t base = UINT64_MAX, *all = ms_calloc(ranks, sizeof *all);
  if (!all) return MS_ENOMEM;
  int rc = ms_world_all_gather_bytes(w->profile->world, &mine, sizeof mine, all);
  for (int rank = 0; rank < ranks && !rc; rank++)
    if (all[rank] < base) base = all[rank];
  w->base = base == UINT64_MAX ? base : base + (uint64_t)ahead;
  free(all);
  return rc;
}

static int write_own(writer *w) {
  MS_TRY(collect_records(w));
  name_lanes(w);
  write_spans(w);
  for (int s = 0; s < MS_NAMED_STREAMS; s++) write_stream(w, s);
  return ms_text_status(&w->text);
}

int ms_profile_write(ms_profile *profile, const char *path) {
  MS_HANDLE(profile, PROFILE);
  MS_GIVEN(path);
  writer w = {.profile = profile, .rank = ms_world_rank(profile->world)};
  int rc;
  ms_recorder_enter(profile->recorder, ms_recorder_number(profile->recorder, "writing a trace"));
  MS_GOTO(agree_on_base(&w));
  MS_GOTO(write_own(&w));
  MS_GOTO(ms_profile_combine(profile->world, &w.text, path));
fail:
  ms_recorder_leave(profile->recorder, rc);
  free(w.record);
  ms_text_free(&w.text);
  return rc;
}
