/* phrases.c - building blocks of the reports: a collective, the place of a rank, a duration. */
#include "comm/diagnose/phrases.h"

#include <string.h>

void ms_append_ranks(ms_text *text, const ms_rank_set *set) {
  char ranks[512];
  ms_rank_set_text(set, ranks, sizeof ranks);
  ms_text_append(text, "%s", ranks);
}

/* "phase first of step 5", "barrier after step 5", "making the state". */
static void append_when(ms_text *text, const char *activity, int64_t step) {
  int is_phase = !strncmp(activity, "phase ", 6);
  ms_text_append(text, "%s", activity);
  if (step > 0)
    ms_text_append(text, "%s%s %lld", *activity ? " " : "", is_phase ? "of step" : "after step", (long long)step);
  else ms_text_append(text, "%s%s", *activity && !is_phase ? " " : "", is_phase ? "" : "before the first step");
}

/* "all_gather layers.3 (phase first of step 5)" */
void ms_append_op(ms_text *text, const ms_rank_op *op) {
  ms_text_append(text, "%s%s%s (", op->kind, *op->label ? " " : "", op->label);
  append_when(text, strcmp(op->activity, op->kind) ? op->activity : "", op->step);
  ms_text_append(text, ")");
}

/* Three significant digits, no powers of ten. */
static void append_number(ms_text *text, double value) {
  if (value >= 100) ms_text_append(text, "%.0f", value);
  else ms_text_append(text, "%.3g", value < 1e-3 ? 0 : value);
}

void ms_append_seconds(ms_text *text, double least, double most) {
  double unit = most < 1 ? 1e3 : 1;
  const char *name = most < 1 ? "ms" : "s";
  if (most < 1e-4) {
    ms_text_append(text, "less than 0.1 ms");
    return;
  }
  if (most - least >= 0.1 * most) {
    append_number(text, unit * least);
    ms_text_append(text, "-");
  }
  append_number(text, unit * most);
  ms_text_append(text, " %s", name);
}

void ms_append_place(ms_text *text, const ms_rank_status *s, const char *verb, int now) {
  if (s->state == MS_CONTROL_ABSENT) ms_text_append(text, "%s not joined the run yet", now ? "has" : "had");
  else if (s->state == MS_CONTROL_LEFT && now) ms_text_append(text, "has left the run");
  else if (!*s->activity) {
    ms_text_append(text, "%soutside the engine", verb);
    if (now) {
      ms_text_append(text, " for ");
      ms_append_seconds(text, s->since, s->since);
    }
    ms_text_append(text, " (%s ", *s->doing ? s->doing : "Lua");
    append_when(text, "", s->step);
    ms_text_append(text, ")");
  } else {
    ms_text_append(text, "%sin ", verb);
    append_when(text, s->activity, s->step);
    if (*s->at) ms_text_append(text, " at %s", s->at);
    if (now) {
      ms_text_append(text, " without a sign of life for ");
      ms_append_seconds(text, s->beat, s->beat);
    }
  }
  if (s->printing && now) ms_text_append(text, ", blocked in print: its output is not being read");
  if (s->stopped) ms_text_append(text, ", process %d is stopped by a signal", s->pid);
}
