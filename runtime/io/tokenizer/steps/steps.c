/* steps.c - what normalizers, pre-tokenizers and decoders share: reading lists of them, and lists of pieces.
 */
#include "io/tokenizer/steps/steps.h"

#include "base/error.h"
#include "io/safetensors/safetensors.h"
#include "io/tokenizer/tokenizer_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ---- */

static int refuse_type(const json_t *part, const char *where, const ms_step_type *types) {
  char names[512], quoted[MS_ST_QUOTED];
  size_t used = 0;
  names[0] = '\0';
  for (; types->name; types++) used += (size_t)snprintf(names + used, sizeof names - used, " %s", types->name);
  return MS_FAIL(MS_EUNSUPPORTED, "%s of type %s is not supported; supported:%s", where,
                 ms_st_quote(ms_field_type(part), quoted), names);
}

static int read_step(ms_tokenizer *t, ms_step_list *to, const json_t *part, const char *where,
                     const ms_step_type *types) {
  const ms_step_type *type = types;
  char inner[96];
  while (type->name && strcmp(type->name, ms_field_type(part))) type++;
  if (!type->name) return refuse_type(part, where, types);
  snprintf(inner, sizeof inner, "%s: %s", where, type->name);
  MS_TRY(ms_field_known(part, inner, type->fields));
  MS_TRY(ms_grow((void **)&to->step, &to->room, to->count + 1, sizeof *to->step));
  ms_step *step = &to->step[to->count++];
  *step = (ms_step){.type = type, .by_lines = type->by_lines};
  return type->read ? type->read(t, step, part, inner) : MS_OK;
}

int ms_steps_read(ms_tokenizer *t, ms_step_list *to, const json_t *part, const char *where, const char *list,
                  const ms_step_type *types) {
  const json_t *steps = json_object_get(part, list);
  size_t i;
  json_t *inner;
  if (!part || json_is_null(part)) return MS_OK;
  if (strcmp(ms_field_type(part), "Sequence")) return read_step(t, to, part, where, types);
  if (!json_is_array(steps) || json_object_size(part) != 2)
    return MS_FAIL(MS_EUNSUPPORTED, "%s: a Sequence must have a list of %s, and nothing else", where, list);
  json_array_foreach((json_t *)steps, i, inner) MS_TRY(ms_steps_read(t, to, inner, where, list, types));
  return MS_OK;
}

void ms_steps_free(ms_step_list *steps) {
  for (int i = 0; i < steps->count; i++) {
    ms_step *step = &steps->step[i];
    ms_pieces_free(step->pattern);
    free(step->from);
    free(step->to);
    ms_charsmap_free(step->charsmap);
  }
  free(steps->step);
}

int ms_step_read_text(const json_t *part, const char *where, const char *field, char **text, int64_t *bytes) {
  const json_t *given = json_object_get(part, field);
  if (!json_is_string(given)) return MS_FAIL(MS_EINVAL, "%s: %s must be a text", where, field);
  *bytes = (int64_t)json_string_length(given);
  return (*text = ms_strdup(json_string_value(given))) ? MS_OK : MS_ENOMEM;
}

int ms_step_read_pattern(ms_tokenizer *t, ms_step *step, const json_t *part, const char *where) {
  const json_t *pattern = json_object_get(part, "pattern");
  const char *regex = json_string_value(json_object_get(pattern, "Regex"));
  if (json_object_size(pattern) == 1 && json_object_get(pattern, "String"))
    return ms_step_read_text(pattern, where, "String", &step->from, &step->from_bytes);
  if (!regex || json_object_size(pattern) != 1)
    return MS_FAIL(MS_EUNSUPPORTED, "%s.pattern: one String or one Regex is supported", where);
  if (ms_pieces_compile(regex, &step->pattern)) return ms_error_prefix("%s.pattern", where);
  MS_TRY(ms_grow((void **)&t->pattern, &t->patterns_capacity, t->patterns + 1, sizeof(ms_pieces *)));
  step->matcher = t->patterns;
  t->pattern[t->patterns++] = step->pattern;
  return MS_OK;
}

/* ---- pieces ---- */

void ms_pieces_clear(ms_piece_list *list) {
  list->count = 0;
  list->text.length = 0;
}

int ms_piece_add(ms_piece_list *list, ms_span text, int first) {
  MS_TRY(ms_grow((void **)&list->piece, &list->room, list->count + 1, sizeof *list->piece));
  list->piece[list->count++] = (ms_piece){(int64_t)list->text.length, text.bytes, first};
  ms_text_raw(&list->text, (const char *)text.at, (size_t)text.bytes);
  return ms_text_status(&list->text);
}

void ms_piece_list_free(ms_piece_list *list) {
  ms_text_free(&list->text);
  free(list->piece);
}

/* memmem would do, but sanitizers look at all that it may read, for each place again. */
const uint8_t *ms_step_find(const ms_step *step, ms_span text, int64_t at) {
  const int64_t n = step->from_bytes;
  while (n > 0 && n <= text.bytes - at) {
    const uint8_t *found = memchr(text.at + at, step->from[0], (size_t)(text.bytes - at - n + 1));
    if (!found || !memcmp(found, step->from, (size_t)n)) return found;
    at = found - text.at + 1;
  }
  return NULL;
}
