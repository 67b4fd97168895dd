/* settings.h - the table of settings (settings.def), and what loops over its rows: defaults, checks, exclusions, and
 * their text. A new setting is a row there, and its use.
 */
#ifndef MS_BASE_SETTINGS_H
#define MS_BASE_SETTINGS_H

#include <stddef.h>

#include "base/config.h"
#include "base/text/text.h"
#include "moonshard.h"

enum ms_setting_kind { MS_SETTING_INT, MS_SETTING_DOUBLE, MS_SETTING_POINTER, MS_SETTING_PART, MS_SETTING_SIZE };
/* Who must have the same value (settings.def). */
enum ms_setting_scope { MS_SCOPE_STATE, MS_SCOPE_PLAN, MS_SCOPE_LOCAL };

/* What a setting can be: low to high, but without high if open; or, of dtypes, what supports `uses`. */
typedef struct ms_range {
  int is_dtype, uses, or_f32, open, inherits; /* inherits: -1 as well */
  double low, high;
  const char *names; /* of 0, 1, ..., separated by spaces; NULL: numbers */
  const char *text;  /* "0 or 1"; NULL: as names or dtypes say */
} ms_range;

typedef struct ms_setting {
  const char *name; /* of a group's: "adamw.beta1" */
  int kind;         /* enum ms_setting_kind */
  size_t at;
  double initial;
  ms_range range;
  int scope;
  const char *part; /* of MS_SETTING_PART: the type of its struct */
} ms_setting;

/* The rows of a struct. */
typedef struct ms_settings {
  const char *type; /* "ms_plan_config" */
  size_t bytes;
  const ms_setting *row;
  int rows;
} ms_settings;

/* By type; NULL: there is none. */
const ms_settings *ms_settings_of(const char *type);
/* NULL: it has none of this name. */
const ms_setting *ms_setting_find(const ms_settings *settings, const char *name);
/* The value of an int or a double in a struct of these settings. */
double ms_setting_value(const ms_setting *setting, const void *config);
static inline int ms_setting_is_number(const ms_setting *setting) {
  return setting->kind == MS_SETTING_INT || setting->kind == MS_SETTING_DOUBLE;
}

/* Sets all settings of a struct of the library's own size to their defaults. */
void ms_settings_default(const ms_settings *settings, void *config);
/* Fills a caller's struct of `size` bytes with the defaults (base/config.h). */
int ms_settings_give(const ms_settings *settings, void *config, int size);
/* Checks every value, then what excludes what. The messages name the setting; the caller puts whose it is before. */
int ms_settings_check(const char *type, const void *config);
/* Checks one value. */
int ms_setting_check(const ms_setting *setting, double value);

enum { MS_SETTING_TEXT = 256 };
/* What a setting can be: "0 or 1", "rows (0) or ragged (1)", "f32 or bf16, or -1, the default". Returns text. */
const char *ms_range_text(const ms_range *range, char text[MS_SETTING_TEXT]);
/* A value: dtypes and choices by name. Returns text. */
const char *ms_setting_text(const ms_setting *setting, double value, char text[MS_SETTING_TEXT]);
/* Copies the n-th of names that spaces separate; 0: there are fewer. */
int ms_setting_name(const char *names, int n, char name[MS_SETTING_TEXT]);
/* Appends ", name value" for each setting of this scope that differs from its default. */
void ms_settings_describe(const ms_settings *settings, const void *config, int scope, ms_text *text);

#endif
