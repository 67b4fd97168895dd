/* settings_text.c - values of settings and their ranges as text, for messages and for the lines that ranks compare. */
#include <stdio.h>
#include <string.h>

#include "base/numbers/dtype.h"
#include "base/numbers/number.h"
#include "base/settings/settings.h"

int ms_setting_name(const char *names, int n, char name[MS_SETTING_TEXT]) {
  while (n-- > 0 && *names) {
    names += strcspn(names, " ");
    names += *names == ' ';
  }
  snprintf(name, MS_SETTING_TEXT, "%.*s", (int)strcspn(names, " "), names);
  return *names != 0;
}

static void list_names(const char *names, char *text) {
  char name[MS_SETTING_TEXT], next[MS_SETTING_TEXT];
  for (int i = 0, used = 0; ms_setting_name(names, i, name); i++) {
    const char *before = i == 0 ? "" : ms_setting_name(names, i + 1, next) ? ", " : " or ";
    used += snprintf(text + used, (size_t)(MS_SETTING_TEXT - used), "%s%s (%d)", before, name, i);
  }
}

const char *ms_range_text(const ms_range *range, char text[MS_SETTING_TEXT]) {
  if (range->names) {
    list_names(range->names, text);
  } else if (range->is_dtype) {
    char list[MS_DTYPE_LIST];
    snprintf(text, MS_SETTING_TEXT, "%s%s", range->or_f32 ? "f32, " : "", ms_dtype_list(range->uses, list));
  } else if (range->text) {
    snprintf(text, MS_SETTING_TEXT, "%s", range->text);
  } else {
    ms_format(text, MS_SETTING_TEXT, "%g to %g", range->low, range->high);
  }
  const size_t n = strlen(text);
  if (range->inherits) snprintf(text + n, MS_SETTING_TEXT - n, ", or -1, the default");
  return text;
}

/* The shortest that reads as the same number. */
static void number_text(double value, char text[MS_SETTING_TEXT]) {
  char *end;
  ms_format(text, MS_SETTING_TEXT, "%.9g", value);
  if (ms_number_read(text, &end) != value) ms_format(text, MS_SETTING_TEXT, "%.17g", value);
}

const char *ms_setting_text(const ms_setting *s, double value, char text[MS_SETTING_TEXT]) {
  if (s->range.is_dtype && value >= 0) snprintf(text, MS_SETTING_TEXT, "%s", ms_dtype_name((int)value));
  else if (!s->range.names || !(value >= 0) || !ms_setting_name(s->range.names, (int)value, text))
    number_text(value, text);
  return text;
}

void ms_settings_describe(const ms_settings *settings, const void *config, int scope, ms_text *text) {
  for (int i = 0; i < settings->rows; i++) {
    const ms_setting *s = &settings->row[i];
    char is[MS_SETTING_TEXT];
    if (s->kind == MS_SETTING_PART)
      ms_settings_describe(ms_settings_of(s->part), (const char *)config + s->at, scope, text);
    if (!ms_setting_is_number(s) || s->scope != scope) continue;
    const double value = ms_setting_value(s, config);
    if (value == s->initial) continue;
    ms_text_string(text, ", ");
    ms_text_string(text, s->name);
    ms_text_string(text, " ");
    ms_text_string(text, ms_setting_text(s, value, is));
  }
}
