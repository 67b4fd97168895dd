/* settings.c - the rows of settings.def as tables, and their defaults and values. */
#include "base/settings/settings.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "base/numbers/dtype.h"

/* ---- ranges ------------------------------------------------------------------------------------------------------ */

#define FLAG .high = 1, .text = "0 or 1"
#define FROM(least) .low = (least), .high = INT_MAX, .text = #least " or more"
#define WITHIN(least, most) .low = (least), .high = (most)
#define ANY_INT .low = INT_MIN, .high = INT_MAX
#define CHOICE(all) .names = (all)
#define DTYPES(what) .is_dtype = 1, .uses = (what)
#define F32_OR(what) .is_dtype = 1, .uses = (what), .or_f32 = 1
#define FRACTION .high = 1, .open = 1, .text = "at least 0 and below 1"
#define SHARE .high = 1
#define RATE .high = INFINITY, .open = 1, .text = "0 or more, and finite"
#define LIMIT .high = INFINITY, .text = "0 (no limit) or more"
#define POSITIVE .low = FLT_TRUE_MIN, .high = INFINITY, .open = 1, .text = "above 0 and finite, also in f32"
#define NOT_POSITIVE .low = -DBL_MAX, .text = "at most 0 and finite"
#define FROM_1 .low = 1, .high = INFINITY, .open = 1, .text = "1 or more, and finite"
#define FINITE .low = -DBL_MAX, .high = INFINITY, .open = 1, .text = "finite"
#define OR_INHERITS(range) range, .inherits = 1

static const char optimizer_names[] = "none"
#define MS_OPTIMIZER(name, ...) " " #name
#include "base/settings/each_setting.h"
    ;
#define OPTIMIZERS CHOICE(optimizer_names)

/* ---- rows -------------------------------------------------------------------------------------------------------- */

enum { KIND_int = MS_SETTING_INT, KIND_double = MS_SETTING_DOUBLE };

#define MS_CONFIG(type) static const ms_setting rows_of_##type[] = {
#define MS_SIZE {.name = "struct_size", .kind = MS_SETTING_SIZE},
#define MS_SETTING(type, number, field, value, can_be, whose) \
  {.name = #field,                                            \
   .kind = KIND_##number,                                     \
   .at = offsetof(ms_##type, field),                          \
   .initial = (value),                                        \
   .range = {can_be},                                         \
   .scope = MS_SCOPE_##whose},
#define MS_POINTER(type, pointer, field) {.name = #field, .kind = MS_SETTING_POINTER, .at = offsetof(ms_##type, field)},
#define MS_PART(type, other, field) \
  {.name = #field, .kind = MS_SETTING_PART, .at = offsetof(ms_##type, field), .part = "ms_" #other},
#define MS_END \
  }            \
  ;
#include "base/settings/each_setting.h"

static const ms_settings all[] = {
#define MS_CONFIG(type) \
  {"ms_" #type, sizeof(ms_##type), rows_of_##type, sizeof rows_of_##type / sizeof *rows_of_##type},
#include "base/settings/each_setting.h"
};

const ms_settings *ms_settings_of(const char *type) {
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (!strcmp(all[i].type, type)) return &all[i];
  return NULL;
}

const ms_setting *ms_setting_find(const ms_settings *settings, const char *name) {
  for (int i = 0; settings && i < settings->rows; i++)
    if (!strcmp(settings->row[i].name, name)) return &settings->row[i];
  return NULL;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

double ms_setting_value(const ms_setting *setting, const void *config) {
  const char *at = (const char *)config + setting->at;
  return setting->kind == MS_SETTING_INT ? *(const int *)at : *(const double *)at;
}

void ms_settings_default(const ms_settings *settings, void *config) {
  for (int i = 0; i < settings->rows; i++) {
    const ms_setting *s = &settings->row[i];
    char *at = (char *)config + s->at;
    if (s->kind == MS_SETTING_INT) *(int *)at = (int)s->initial;
    if (s->kind == MS_SETTING_DOUBLE) *(double *)at = s->initial;
    if (s->kind == MS_SETTING_PART) ms_settings_default(ms_settings_of(s->part), at);
  }
}

int ms_settings_give(const ms_settings *settings, void *config, int size) {
  enum { MAX_BYTES = 1024 };
  _Static_assert(sizeof(ms_plan_config) <= MAX_BYTES, "the largest struct fits");
  _Alignas(double) char defaults[MAX_BYTES] = {0};
  ms_settings_default(settings, defaults);
  return ms_config_give(config, size, defaults, (int)settings->bytes, settings->type);
}
