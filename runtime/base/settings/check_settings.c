/* check_settings.c - whether the values of a config struct are in their rows' ranges, and go together. */
#include <stdio.h>
#include <string.h>

#include "base/numbers/dtype.h"
#include "base/settings/settings.h"

/* ---- one value --------------------------------------------------------------------------------------------------- */

static int count_of(const char *names) {
  char name[MS_SETTING_TEXT];
  int n = 0;
  while (ms_setting_name(names, n, name)) n++;
  return n;
}

static int is_in(const ms_range *range, double value) {
  if (range->inherits && value == -1) return 1;
  if (range->is_dtype) return ms_dtype_may((int)value, range->uses) || (range->or_f32 && (int)value == MS_F32);
  if (range->names) return value >= 0 && value < count_of(range->names);
  return value >= range->low && (range->open ? value < range->high : value <= range->high);
}

int ms_setting_check(const ms_setting *s, double value) {
  char range[MS_SETTING_TEXT], is[MS_SETTING_TEXT];
  if (is_in(&s->range, value)) return MS_OK;
  return MS_FAIL(s->range.is_dtype ? MS_EDTYPE : MS_EINVAL, "%s must be %s, not %s", s->name,
                 ms_range_text(&s->range, range), ms_setting_text(s, value, is));
}

/* ---- what excludes what ------------------------------------------------------------------------------------------ */

enum { SET = -1000000 }; /* any value but the default */

typedef struct exclusion {
  int status;
  const char *type, *name;
  int value;
  const char *other; /* a name; of what is needed, names separated by spaces */
  int other_value;
  int needs; /* 1: the other must be set */
  const char *why;
} exclusion;

static const exclusion exclusions[] = {
#define MS_NEEDS(type, name, others, why) {MS_EINVAL, "ms_" #type, #name, SET, others, SET, 1, why},
#define MS_EXCLUDES(status, type, name, value, other, other_value, why) \
  {status, "ms_" #type, #name, value, #other, other_value, 0, why},
#include "base/settings/each_setting.h"
};

static int is_set(const ms_setting *s, const void *config, int value) {
  const double is = ms_setting_value(s, config);
  return value == SET ? is != s->initial : is == value;
}

static int check_need(const ms_settings *of, const void *config, const exclusion *x) {
  const ms_setting *s = ms_setting_find(of, x->name);
  char name[MS_SETTING_TEXT], list[MS_SETTING_TEXT] = "", is[MS_SETTING_TEXT];
  if (!is_set(s, config, x->value)) return MS_OK;
  for (int i = 0, used = 0; ms_setting_name(x->other, i, name); i++) {
    if (is_set(ms_setting_find(of, name), config, SET)) return MS_OK;
    used += snprintf(list + used, (size_t)(MS_SETTING_TEXT - used), "%s%s", i ? " or " : "", name);
  }
  const double value = ms_setting_value(s, config);
  const int is_flag = s->range.text && s->range.high == 1; /* "nesterov needs momentum": its 1 would say no more */
  return MS_FAIL(x->status, "%s%s%s needs %s: %s", x->name, is_flag ? "" : " ",
                 is_flag ? "" : ms_setting_text(s, value, is), list, x->why);
}

static int check_exclusion(const ms_settings *of, const void *config, const exclusion *x) {
  const ms_setting *s = ms_setting_find(of, x->name), *other = ms_setting_find(of, x->other);
  char is[MS_SETTING_TEXT], other_is[MS_SETTING_TEXT];
  if (!is_set(s, config, x->value) || !is_set(other, config, x->other_value)) return MS_OK;
  return MS_FAIL(x->status, "%s %s with %s %s: %s", x->name, ms_setting_text(s, ms_setting_value(s, config), is),
                 x->other, ms_setting_text(other, ms_setting_value(other, config), other_is), x->why);
}

/* ---- a struct ---------------------------------------------------------------------------------------------------- */

int ms_settings_check(const char *type, const void *config) {
  const ms_settings *of = ms_settings_of(type);
  for (int i = 0; i < of->rows; i++) {
    const ms_setting *s = &of->row[i];
    if (s->kind == MS_SETTING_PART) MS_TRY(ms_settings_check(s->part, (const char *)config + s->at));
    if (ms_setting_is_number(s)) MS_TRY(ms_setting_check(s, ms_setting_value(s, config)));
  }
  for (size_t i = 0; i < sizeof exclusions / sizeof *exclusions; i++) {
    const exclusion *x = &exclusions[i];
    if (!strcmp(x->type, type)) MS_TRY((x->needs ? check_need : check_exclusion)(of, config, x));
  }
  return MS_OK;
}
