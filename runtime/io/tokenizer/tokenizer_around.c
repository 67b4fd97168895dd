/* tokenizer_around.c - the tokens that a tokenizer.json's post_processor puts around one text.
 *
 * TemplateProcessing writes them as "single", BertProcessing and RobertaProcessing as cls and sep; ByteLevel has none.
 * In a Sequence each processor puts its own around those of the earlier ones. The ids are those that the post_processor
 * gives, as in the reference library, which does not look the tokens up.
 */
#include "base/config.h"
#include "io/tokenizer/tokenizer_fields.h"

#include "base/error.h"
#include "io/safetensors/safetensors.h"

#include <stdio.h>
#include <string.h>

enum { FRONT, BACK, MAX_AROUND = 1024 };

static const char where[] = "post_processor";

/* Puts an id next to the text, at `at` among those of a side. */
static int insert(ms_tokenizer *t, int side, int64_t at, const json_t *value, const char *token) {
  ms_around *around = &t->around[side];
  int32_t id;
  char quoted[MS_ST_QUOTED];
  if (ms_field_id(value, token, &id)) return ms_error_prefix("%s", where);
  if (id >= t->vocab || !t->token[id].at)
    return MS_FAIL(MS_EINVAL, "%s: %s has the id %d, which is that of no token", where, ms_st_quote(token, quoted), id);
  if (around->count >= MAX_AROUND)
    return MS_FAIL(MS_EUNSUPPORTED, "%s: more than %d tokens around a text are not supported", where, MAX_AROUND);
  MS_TRY(ms_grow((void **)&around->id, &around->room, around->count + 1, sizeof *around->id));
  memmove(around->id + at + 1, around->id + at, (size_t)(around->count - at) * sizeof *around->id);
  around->id[at] = id;
  around->count++;
  return MS_OK;
}

/* The ids of one special token of a template; *at moves after them. */
static int read_special(ms_tokenizer *t, const json_t *known, const json_t *special, int side, int64_t *at) {
  const char *name = json_string_value(json_object_get(special, "id"));
  const json_t *ids = json_object_get(json_object_get(known, name ? name : ""), "ids");
  char quoted[MS_ST_QUOTED];
  size_t i;
  json_t *id;
  if (!name) return MS_FAIL(MS_EINVAL, "%s.single: a SpecialToken has no id", where);
  if (!json_is_array(ids))
    return MS_FAIL(MS_EINVAL, "%s.special_tokens must list the ids of %s, which single has", where,
                   ms_st_quote(name, quoted));
  json_array_foreach(ids, i, id) MS_TRY(insert(t, side, (*at)++, id, name));
  return MS_OK;
}

static int read_template(ms_tokenizer *t, const json_t *part) {
  const json_t *single = json_object_get(part, "single"), *known = json_object_get(part, "special_tokens");
  int side = FRONT;
  int64_t at = 0;
  size_t i;
  json_t *piece;
  MS_TRY(ms_field_known(part, where, " type single pair special_tokens "));
  json_array_foreach(single, i, piece) {
    const json_t *special = json_object_get(piece, "SpecialToken");
    const char *text = json_string_value(json_object_get(json_object_get(piece, "Sequence"), "id"));
    if (special) {
      MS_TRY(read_special(t, known, special, side, &at));
    } else if (text && !strcmp(text, "A") && side == FRONT) {
      side = BACK;
      at = t->around[BACK].count;
    } else {
      return MS_FAIL(MS_EUNSUPPORTED, "%s.single: entry %zu is not supported: special tokens and one text, A, are",
                     where, i);
    }
  }
  if (side == FRONT) return MS_FAIL(MS_EINVAL, "%s.single must be a list that has the text, Sequence A", where);
  return MS_OK;
}

/* cls and sep: [token, id] each. */
static int read_pair(ms_tokenizer *t, const json_t *part) {
  static const char *const names[] = {"cls", "sep"};
  MS_TRY(ms_field_known(part, where, " type cls sep trim_offsets add_prefix_space "));
  for (int side = FRONT; side <= BACK; side++) {
    const json_t *pair = json_object_get(part, names[side]);
    const char *token = json_string_value(json_array_get(pair, 0));
    if (!token || json_array_size(pair) != 2)
      return MS_FAIL(MS_EINVAL, "%s.%s must be a token and its id", where, names[side]);
    MS_TRY(insert(t, side, side == FRONT ? 0 : t->around[BACK].count, json_array_get(pair, 1), token));
  }
  return MS_OK;
}

static int read_nothing(ms_tokenizer *t, const json_t *part) {
  (void)t, (void)part;
  return MS_OK;
}

static const struct processor {
  const char *type;
  int (*read)(ms_tokenizer *t, const json_t *part);
} processors[] = {
    {"ByteLevel", read_nothing},
    {"TemplateProcessing", read_template},
    {"BertProcessing", read_pair},
    {"RobertaProcessing", read_pair},
};

static int read_part(ms_tokenizer *t, const json_t *part) {
  enum { COUNT = (int)(sizeof processors / sizeof *processors) };
  char types[256], quoted[MS_ST_QUOTED];
  size_t used = 0;
  types[0] = '\0';
  for (int i = 0; i < COUNT; i++) {
    if (!strcmp(ms_field_type(part), processors[i].type)) return processors[i].read(t, part);
    used += (size_t)snprintf(types + used, sizeof types - used, " %s", processors[i].type);
  }
  return MS_FAIL(MS_EUNSUPPORTED, "%s of type %s is not supported; supported:%s", where,
                 ms_st_quote(ms_field_type(part), quoted), types);
}

int ms_around_read(ms_tokenizer *t, const json_t *part) {
  const json_t *list = json_object_get(part, "processors");
  size_t i;
  json_t *inner;
  if (!part || json_is_null(part)) return MS_OK;
  if (strcmp(ms_field_type(part), "Sequence") || !json_is_array(list)) return read_part(t, part);
  json_array_foreach((json_t *)list, i, inner) MS_TRY(read_part(t, inner));
  return MS_OK;
}

int ms_tokenizer_describe(const ms_tokenizer *t, ms_tokenizer_info *info, int size) {
  MS_HANDLE(t, TOKENIZER);
  MS_GIVEN(info);
  const ms_tokenizer_info own = {.vocab = t->vocab,
                                 .before = t->around[FRONT].id,
                                 .n_before = t->around[FRONT].count,
                                 .behind = t->around[BACK].id,
                                 .n_behind = t->around[BACK].count,
                                 .added = t->added_id,
                                 .added_flags = t->added_flags,
                                 .model = t->model->name,
                                 .n_added = t->n_added};
  MS_GIVE_INFO(info, size, own);
}
