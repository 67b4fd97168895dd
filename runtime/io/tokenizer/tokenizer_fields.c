/* tokenizer_fields.c - checks of fields of a tokenizer.json, by name. */
#include "io/tokenizer/tokenizer_fields.h"

#include "base/error.h"
#include "io/safetensors/safetensors.h"

#include <stdio.h>
#include <string.h>

static const char *dot_after(const char *where) { return *where ? "." : ""; }

int ms_field_known(const json_t *object, const char *where, const char *names) {
  const char *name;
  json_t *value;
  char quoted[MS_ST_QUOTED], search[64];
  json_object_foreach((json_t *)object, name, value) {
    const int length = snprintf(search, sizeof search, " %s ", name);
    if (length < (int)sizeof search && !strchr(name, ' ') && strstr(names, search)) continue;
    return MS_FAIL(MS_EUNSUPPORTED, "%s%sfield %s is unknown, and so is its effect on the tokens", where,
                   *where ? ": " : "", ms_st_quote(name, quoted));
  }
  return MS_OK;
}

int ms_field_off(const json_t *object, const char *where, const char *field) {
  const json_t *value = json_object_get(object, field);
  if (!value || json_is_null(value) || json_is_false(value)) return MS_OK;
  if (json_is_string(value) && !*json_string_value(value)) return MS_OK;
  if (json_is_number(value) && json_number_value(value) == 0) return MS_OK;
  return MS_FAIL(MS_EUNSUPPORTED, "%s%s%s is set: it is not supported", where, dot_after(where), field);
}

int ms_field_flag(const json_t *object, const char *where, const char *field, int *value) {
  const json_t *given = json_object_get(object, field);
  if (!given) return MS_OK;
  if (!json_is_boolean(given))
    return MS_FAIL(MS_EINVAL, "%s%s%s must be true or false", where, dot_after(where), field);
  *value = json_is_true(given);
  return MS_OK;
}

const char *ms_field_type(const json_t *object) {
  const char *type = json_string_value(json_object_get(object, "type"));
  return type ? type : "";
}

int ms_field_id(const json_t *value, const char *what, int32_t *id) {
  char quoted[MS_ST_QUOTED];
  if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) >= MS_TOKENIZER_MAX_IDS)
    return MS_FAIL(MS_EINVAL, "the id of %s must be a whole number from 0 to %d", ms_st_quote(what, quoted),
                   MS_TOKENIZER_MAX_IDS - 1);
  *id = (int32_t)json_integer_value(value);
  return MS_OK;
}
